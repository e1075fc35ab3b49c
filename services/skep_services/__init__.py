"""Skep's processes: shells that drive the machines of `skep` through ports."""
