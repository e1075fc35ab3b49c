"""The laboratory: traces, models of jobs, the trace simulator, experiments and studies.

It plays the scheduler of `skep` on traces and measures what comes of it. Nothing of `skep` imports
it.
"""
