"""Secrets of people and virtual clusters: which there are, and which a node may have."""
