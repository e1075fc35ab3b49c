"""What a person may still submit to a VC with limits."""

from __future__ import annotations

from skep.wire.cluster import PersonLimits
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Problem


def problem(
    limits: PersonLimits, person: str, queued: int, spec: JobSpec, jobs: int = 1
) -> Problem | None:
    """Return why a person may not submit a job; None: it may.

    Args:
        limits: Those of the VC.
        person: Whose job it would be; empty: the VC's as a whole.
        queued: How many of its jobs have not begun.
        spec: The job.
        jobs: How many it becomes: the tasks of an array.
    """
    whose = f"`{person}`" if person else "the virtual cluster as a whole"
    if limits.gpus is not None and spec.gpus > limits.gpus:
        text = f"it needs {spec.gpus} GPUs, and one person of `{spec.vc}` has {limits.gpus} at most"
        return Problem(
            path="$.resources",
            reason=Reason.ABOVE_PERSON_LIMIT,
            text=text,
            suggestion="use fewer GPUs, or ask the operator for a higher limit",
        )
    if limits.queued is not None and queued < limits.queued < queued + jobs:
        text = (
            f"{whose} has {queued} jobs in `{spec.vc}` that have not begun, and may have "
            f"{limits.queued}: {jobs} tasks are too many"
        )
        return Problem(
            path="$.array",
            reason=Reason.ABOVE_PERSON_LIMIT,
            text=text,
            suggestion=f"use at most {limits.queued - queued} tasks",
        )
    if limits.queued is not None and queued >= limits.queued:
        text = f"{whose} has {queued} jobs in `{spec.vc}` that have not begun, as many as one may"
        return Problem(
            path="$.vc",
            reason=Reason.ABOVE_PERSON_LIMIT,
            text=text,
            suggestion="wait for some to begin, or cancel some",
        )
    return None
