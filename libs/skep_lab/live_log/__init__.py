"""What the log of a live cluster says: its jobs, and whether its decisions would be made again."""
