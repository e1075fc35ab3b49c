"""Benchmarks, each a module; `python -m benchmarks NAME` runs one (see `__main__`)."""
