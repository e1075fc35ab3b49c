"""Workloads as papers describe them, from a seed: each says which number is from where."""
