"""The service of searches: `skep.machines.searches` on real ports."""
