"""What users of Slurm write, and what it means here: options, batch scripts, listings. Pure."""
