"""The schedulers that a cluster file can name, one file for each paper or family."""
