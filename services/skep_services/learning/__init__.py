"""What surrounds learners: their runs on disk, curves, rollouts on engines, and the registry.

Learners themselves are in `skep_lab.learn`; they are imported when one is run, and nothing here
imports PyTorch.
"""
