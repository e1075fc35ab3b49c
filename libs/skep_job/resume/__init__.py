"""Finds the newest whole checkpoint that earlier attempts of a job wrote by a library of their own.

It runs in the job's place before the job's command, with the job's rights and nothing more:
`python -c "... skep_job.resume.before"`. Standard library only, as all of `skep_job`.
"""
