"""What jobs that take turns are owed: shares of the GPUs by weight, and an account of each job.

A job's share is the part of the time for which it should have its GPUs. Higher priorities come
first; within one, shares are as the weights, but nobody's is above 1, and together they come to
what there is (water-filling). The account says for how long a job should have run longer than it
has. It counts when ranks really began and really stopped, so what a job runs on until its
mini-batch is over shortens its next turn by as much, and who had to wait for that loses nothing
(Gandiva, section 4.1: the scheduler keeps track of this delay and adjusts the interval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from skep.units import Instant
from skep.view.view import HOLDING, JobView, Phase, VcView

Weigh = Callable[[JobView], float]

OWED_SLICES_MAX = 2
"""An account is never beyond so many slices, either way: who has had idle GPUs for a day does not
pay for it when others come, and who could not be placed does not keep others waiting as long."""


def may_yield(job: JobView) -> bool:
    """Return whether a job can be suspended for others: it runs, alone, and can give its GPUs."""
    runs = job.phase is Phase.RUNNING and not job.borrows and not job.partners
    return runs and "release" in job.can


def shares(view: VcView, weigh: Weigh) -> dict[str, float]:
    """Return by job for what part of the time it should have its GPUs."""
    found: dict[str, float] = {}
    for pin, gpus in view.gpus_for().items():
        left = float(gpus)
        there = [job for job in view.jobs if job.pin == pin and not job.borrows]
        for job in there:
            if _fixed(job):
                found[job.job], left = 1.0, left - job.gpus
        turning = sorted(
            (job for job in there if job.job not in found), key=lambda job: -job.spec.priority
        )
        for _, level in groupby(turning, key=lambda job: job.spec.priority):
            left = _fill(list(level), max(left, 0.0), weigh, found)
    return found


def _fixed(job: JobView) -> bool:
    """Return whether a job has its GPUs until its end, or its tenant's word."""
    if job.phase is Phase.RUNNING:
        return not may_yield(job)
    return job.phase is Phase.SUSPENDED


def _fill(jobs: Iterable[JobView], gpus: float, weigh: Weigh, found: dict[str, float]) -> float:
    """Divide GPUs among jobs by weight, none above 1; return what is left over."""
    left = {job.job: job for job in sorted(jobs, key=lambda job: (-weigh(job), job.sequence))}
    weight = sum(weigh(job) * job.gpus for job in left.values())
    for job in left.values():
        # The heaviest first: once one is below 1, so are all after it, at the same level.
        level = gpus / weight if weight > 0 else 0.0
        share = min(1.0, level * weigh(job))
        found[job.job] = share
        weight -= weigh(job) * job.gpus
        gpus -= share * job.gpus
    return max(gpus, 0.0)


def owed(job: JobView, share: float, now: Instant, slice_ns: int) -> int:
    """Return for how long a job should have run longer by now, in nanoseconds.

    It counts from when its policy last suspended it, and goes on with what was noted then.
    """
    most = OWED_SLICES_MAX * slice_ns
    begun = job.owed_at or job.waiting_since
    since, before = max(job.since, begun), job.owed
    if job.owed_at and job.since >= begun:
        before += round(share * (since - begun)) - (job.served - job.owed_ran)
    elif not job.owed_at:
        before = round(share * (since - begun))
    rest = max(now - since, 0)
    after = max(-most, min(before, most)) + round(share * rest)
    if job.phase is Phase.RUNNING:
        after -= rest
    return max(-most, min(after, most))


def height(view: VcView) -> int:
    """Return the height of the VC: the most jobs that any GPU of a server is allocated to.

    That is the ceiling of allocated GPUs by GPUs (Gandiva, section 4.2), suspended jobs included.
    """
    return max((-(-gpus // size) for _, gpus, size in loads(view)), default=0)


def loads(view: VcView) -> list[tuple[str, int, int]]:
    """Return for each node the GPUs allocated there, suspended jobs included, and what it has.

    What it has is what is free for the VC's jobs there and what they hold.
    """
    size = {node.node: node.free + sum(gpus for _, gpus in node.pins) for node in view.nodes}
    taken = dict.fromkeys(size, 0)
    for job in view.jobs:
        for node, gpus in job.nodes if not job.borrows else ():
            if node in size:
                taken[node] += gpus
                size[node] += gpus if job.phase in HOLDING else 0
    return [(node, taken[node], max(size[node], 1)) for node in size]
