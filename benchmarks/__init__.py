"""Benchmarks: each module measures one thing and prints JSON."""
