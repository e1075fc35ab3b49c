"""Chaos over a cluster of machines: kills, power, partitions, certificates changed meanwhile."""
