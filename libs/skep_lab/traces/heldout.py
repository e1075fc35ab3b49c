"""Which traces learners train on, and which are kept for judging what they learned.

A generated workload is drawn by a seed. Seeds below `HELD_OUT_FROM` are for training, seeds from
there on for evaluation, so no learner that takes its seeds from `training_seed` has seen an
evaluation trace. A trace of a file has no seed: the jobs that were submitted first are for
training, the later ones for evaluation, as a scheduler meets them (`split`). Two limits remain. A
generator draws training and evaluation from one distribution. A generator that draws run times from
a past trace may draw the same ones for both.
"""

from __future__ import annotations

import msgspec

from skep.units import Duration
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.traces.problems import rows_of

HELD_OUT_FROM = 10**9
"""The first seed of evaluation. No training draws so many traces."""
TRAINING_TENTHS = 7
"""Of ten jobs of a file, so many are for training."""


class HeldOutError(ValueError):
    """A seed belongs to the other side, or a trace has too few jobs to be split."""


def training_seed(number: int) -> int:
    """Return the seed of the n-th training trace.

    Args:
        number: From 0.

    Raises:
        HeldOutError: The number is negative, or the seed is one of evaluation.
    """
    if not 0 <= number < HELD_OUT_FROM:
        reason = f"seed {number}: training draws seeds 0 to {HELD_OUT_FROM - 1:,}; the others judge"
        raise HeldOutError(reason)
    return number


def evaluation_seed(number: int) -> int:
    """Return the seed of the n-th evaluation trace, which no training draws.

    Args:
        number: From 0.

    Raises:
        HeldOutError: The number is not one of `HELD_OUT_FROM` numbers.
    """
    return HELD_OUT_FROM + training_seed(number)


def is_held_out(seed: int) -> bool:
    """Return whether a seed is one of evaluation."""
    return seed >= HELD_OUT_FROM


def split(trace: Trace) -> tuple[Trace, Trace]:
    """Return the jobs for training and those for evaluation; the latter's times begin at 0.

    Args:
        trace: Jobs that no seed has drawn, in the order of submission.

    Raises:
        HeldOutError: One part would have no jobs.
    """
    jobs, rows = trace.jobs, rows_of(trace)
    count = len(jobs) * TRAINING_TENTHS // 10
    if not 0 < count < len(jobs):
        reason = f"{trace.name} has {len(jobs)} jobs: too few to keep some for evaluation"
        raise HeldOutError(reason)
    begin = jobs[count].at
    replace = msgspec.structs.replace
    return (
        replace(trace, jobs=jobs[:count], rows=tuple(rows[:count])),
        replace(
            trace,
            jobs=tuple(_earlier(job, begin) for job in jobs[count:]),
            rows=tuple(rows[count:]),
        ),
    )


def _earlier(job: TraceJob, by: Duration) -> TraceJob:
    deadline = None if job.deadline is None else Duration(job.deadline - by)
    return msgspec.structs.replace(job, at=Duration(job.at - by), deadline=deadline)
