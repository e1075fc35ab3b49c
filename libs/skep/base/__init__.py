"""Data structures that know nothing of clusters, jobs or policies."""
