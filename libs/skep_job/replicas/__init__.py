"""Checkpoints in the memory of a gang's nodes: each rank's part on its node and on another one."""
