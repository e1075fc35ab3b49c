"""The admission service: `skep.machines.admission` on real ports."""
