"""Learners: single files on the fast environment, with PyTorch; no service imports this package.

It needs the extra `learn`. A learner is a generator: it yields its progress, and on request all
that it goes on from (`progress`). What stores files, draws curves and spreads rollouts over
machines is `skep_services.learning`.
"""
