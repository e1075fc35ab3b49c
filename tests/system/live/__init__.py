"""Workloads on a live embedded cluster whose logs are replayed afterwards."""
