"""The door: tenants reach the bus server through it, a few messages at a time, each in its turn."""
