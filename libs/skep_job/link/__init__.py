"""The connection between a process of a job and its agent: frames, settings, orders."""
