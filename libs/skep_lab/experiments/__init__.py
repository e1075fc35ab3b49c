"""The papers' experiments, run end to end: workloads, arms that are compared, and results."""
