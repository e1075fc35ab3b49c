"""Nodes on machines that another system owns: `skep up --on slurm`, `skep up --on kubernetes`."""
