"""Chaos over a cluster of machines: kills, power, partitions, and certificates changed meanwhile."""
