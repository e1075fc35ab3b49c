"""Sizes of jobs that share GPUs: which are worth the most, and how to come to them.

Each job has choices, so many GPUs and what that adds. The steps of the upper concave envelope of
each job's choices are taken in the order of what they add per GPU: the best choice for the number
of GPUs that the steps use up, and a step may pass over sizes that add nothing by themselves.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skep.policy.plan import Resize, Turn
from skep.policy.view import JobView, Phase
from skep.wire.reasons import Reason


class Choice(NamedTuple):
    """A size that a job may have, and what it adds to the fitness."""

    gpus: int
    workers: int
    worth: float


class _Step(NamedTuple):
    """A step of a job from one size to a larger one. The first in order adds the most per GPU."""

    loss: float
    """What it adds per GPU, negative."""
    sequence: int
    job: str
    choice: Choice
    gpus: int


def share_out(
    jobs: Sequence[JobView], choices: Mapping[str, Sequence[Choice]], gpus: int, *, strict: bool
) -> dict[str, Choice]:
    """Return the size of each job that maximises the sum of what they add.

    Args:
        jobs: Those that run come first: they keep at least their smallest size. The others get
            theirs in this order.
        choices: By job, its sizes, the smallest first. That may be no GPU at all, for a job that
            waits unless it is worth more than larger sizes of others.
        gpus: How many GPUs there are for all.
        strict: Whether a waiting job that does not fit keeps the jobs after it waiting.

    Returns:
        Sizes by job; jobs that have to wait are not in it.
    """
    sizes: dict[str, Choice] = {}
    left = gpus
    for job in jobs:
        least = choices[job.job][0]
        if least.gpus <= left or job.phase is Phase.RUNNING:
            sizes[job.job] = least
            left -= least.gpus
        elif strict:
            break
    steps: list[_Step] = []
    for job in jobs:
        if job.job in sizes:
            _add_step(steps, job, sizes[job.job], choices[job.job], left)
    heapq.heapify(steps)
    named = {job.job: job for job in jobs}
    while steps and left > 0:
        step = heapq.heappop(steps)
        if step.gpus <= left:
            left -= step.gpus
            sizes[step.job] = step.choice
        again: list[_Step] = []
        _add_step(again, named[step.job], sizes[step.job], choices[step.job], left)
        for other in again:
            heapq.heappush(steps, other)
    return sizes


def _add_step(
    steps: list[_Step], job: JobView, now: Choice, choices: Sequence[Choice], left: int
) -> None:
    """Add the step of a job that adds the most per GPU, if one adds anything.

    Args:
        steps: It is added to these.
        job: The job.
        now: The size that it has.
        choices: Its sizes.
        left: GPUs that are left.
    """
    best, loss = None, math.inf
    for choice in choices:
        more = choice.gpus - now.gpus
        if 0 < more <= left and choice.worth > now.worth:
            costs = (now.worth - choice.worth) / more
            if costs < loss:
                best, loss = choice, costs
    if best is not None:
        steps.append(_Step(loss, job.sequence, job.job, best, best.gpus - now.gpus))


def carry_out(
    running: Sequence[JobView],
    waiting: Sequence[JobView],
    sizes: Mapping[str, Choice],
    free: int,
    *,
    shrinks: bool,
) -> tuple[list[Turn], list[Resize]]:
    """Return the turns and changes that lead to these sizes with the GPUs that are free now.

    Waiting jobs come before growing ones. What is not free yet is given out when it is.

    Args:
        running: Jobs whose size can be changed.
        waiting: Jobs that wait, in their order.
        sizes: The sizes that jobs are to have.
        free: GPUs that are free now.
        shrinks: Whether jobs may be made smaller.
    """
    turns, resizes = [], []
    for job in waiting:
        size = sizes.get(job.job)
        if size is not None and size.gpus:
            begins = size.workers if job.phase is Phase.WAITING and job.spec.elastic else 0
            turns.append(Turn(job.job, Reason.MOST_GAIN, workers=begins))
            free -= size.gpus
    changes = [(sizes[job.job].gpus - job.gpus, job.sequence, job) for job in running]
    for more, _, job in sorted(changes, key=lambda each: each[:2]):
        if not more or (more < 0 and not shrinks) or more > max(free, 0):
            continue
        free -= max(more, 0)
        resizes.append(Resize(job.job, Reason.MOST_GAIN, sizes[job.job].workers))
    return turns, resizes
