"""Nodes in allocations of a Slurm cluster: `skep up --on slurm`."""
