"""Experiments of the papers on this machine: several processes, a report, pictures."""
