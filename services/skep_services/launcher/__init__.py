"""The launcher: the one privileged process of a node. Standard library only."""
