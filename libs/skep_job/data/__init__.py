"""Where a training is in its data."""
