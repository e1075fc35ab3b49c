"""The speed of jobs with known models: by type of GPU, spread, and neighbours."""
