"""Changes of running jobs, crashed at every phase: cells, how they are played, and judged."""
