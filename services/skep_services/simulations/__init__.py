"""Simulated runs as an administrator orders them: several at a time, compared, reported.

What is simulated is `skep.sim.cluster`; here are files, processes, progress and pictures.
"""
