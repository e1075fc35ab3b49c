"""The introspector service: `skep.machines.introspector` on real ports."""
