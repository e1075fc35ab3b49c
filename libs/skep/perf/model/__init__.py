"""Predicts what a mini-batch takes on other GPUs, nodes and batch sizes, with an honest error.

The forms (`genie`, `optimus`, `theta`, `kernel`) and `predict` are pure Python `math`: they may run
wherever something is decided. What fits them to measurements (`fit`, `pool`) uses numpy, and only
the advisor and the laboratory import it.
"""
