"""Facts of the process: how much memory it holds, how it ends."""
