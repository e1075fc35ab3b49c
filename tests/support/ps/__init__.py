"""Parameter-server jobs of real processes: what tests and benchmarks start, and what they train."""
