"""Facts of the process: its place in its rank, its memory, its end."""
