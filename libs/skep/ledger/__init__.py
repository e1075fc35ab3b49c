"""The ledger: the state of the cluster as the allocator's facts tell it, and nothing that chooses.

`state.ClusterState` is the state, `fold.apply` the only code that changes it, `delta.Delta` what a
fact changed. A program that has to know the state folds the log with this package.
"""
