"""Simulated runs as an administrator orders them: several at a time, compared, reported.

What is simulated is `skep_lab.simulator`; here are files, processes, progress and pictures.
"""
