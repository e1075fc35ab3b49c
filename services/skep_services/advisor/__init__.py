"""The advisor service: `skep.machines.advisor` on real ports."""
