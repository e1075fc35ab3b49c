"""The allocator service: `skep.machines.allocator` on real ports."""
