"""Policies: pure functions from a view of a virtual cluster to a plan of its jobs."""
