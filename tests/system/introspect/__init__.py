"""Gandiva's time-slicing, packing, growth and migration, live: one command for each figure.

    python -m tests.system.introspect slices|packs|grows|gathers [--svg FILE]

Each starts an embedded cluster, trains real PyTorch jobs in it, and prints one JSON object: rates
before and after, what was decided and when, how long it took until it showed. What is drawn is
what the jobs themselves noted of each of their mini-batches, beside the facts on the bus.
"""
