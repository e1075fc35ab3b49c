"""What a job may have beyond the cells of its virtual cluster."""

from __future__ import annotations

from skep.ledger.job_state import JobState


def borrows(job: JobState) -> bool:
    """Return whether a guaranteed job also takes idle GPUs, until its VC's cells are free."""
    return job.spec.over_quota == "opportunistic" and not job.spec.opportunistic


def lends(job: JobState) -> bool:
    """Return whether a job may have idle GPUs while it waits, as it can presumably give them back.

    What its latest attempt could do is known. Before that a script is presumed to train with
    PyTorch, so that it can be suspended; of a command nothing is presumed.
    """
    if job.spec.over_quota != "auto" or job.spec.opportunistic:
        return False
    return job.spec.script is not None if job.gives_back is None else job.gives_back
