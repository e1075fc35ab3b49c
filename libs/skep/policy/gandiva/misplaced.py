"""Suspended jobs that have their homes where they do not belong, and may be moved at their turn.

A gang on several nodes belongs on one that can hold it whole. A job beside larger ones belongs
where all jobs have its size: alone on GPUs of a larger job it leaves the others of these idle.
"""

from __future__ import annotations

from skep.policy.gandiva.migrate import SURELY, gain, needed_gain
from skep.policy.view import JobView
from skep.units import Instant


def movable_at_turn(job: JobView, now: Instant) -> bool:
    """Return whether a suspended job may go on at another place, and has time left to gain by it.

    Args:
        job: The job.
        now: The time of the view.
    """
    if "migrate" not in job.can or job.trial or job.partners or job.proven_milli:
        return False
    return needed_gain(job, now) < float("inf")


def is_scattered(job: JobView, node_gpus: int, now: Instant) -> bool:
    """Return whether a gang has its home on several nodes, and would be faster on one.

    It counts as faster where its family was never measured on one node and on as many.

    Args:
        job: The gang.
        node_gpus: The GPUs of the largest node.
        now: The time of the view.
    """
    if len(job.nodes) < 2 or job.gpus > node_gpus:
        return False
    known = gain(job, 1)
    return not known or known > needed_gain(job, now) * SURELY
