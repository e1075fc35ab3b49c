"""A cluster of real machines: servers that run bus and services, nodes that run jobs."""
