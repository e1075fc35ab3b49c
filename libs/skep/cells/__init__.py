"""What there is to allocate: nodes and their GPUs."""
