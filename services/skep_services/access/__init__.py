"""The access service: `skep.machines.access` on real ports, and the signer that it calls."""
