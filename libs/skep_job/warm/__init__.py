"""A process that has imported what a script begins with, and forks ranks of it.

`python -m skep_job.warm FD` is the warm process: the runner starts it, speaks with it over the
socket FD, and has it fork. Each fork becomes a rank as `python -m skep_job script.py` would have
been.
"""
