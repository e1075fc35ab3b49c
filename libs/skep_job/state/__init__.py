"""The state of a training: taken, written, sent, and loaded again."""
