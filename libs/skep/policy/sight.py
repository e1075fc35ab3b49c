"""What a learned model is shown of a VC: its jobs and its room, and what differs from before."""

from __future__ import annotations

from math import log2

from skep.policy.sizes import resizable
from skep.policy.view import QUEUED, JobView, NodeView, VcView
from skep.wire.bounds import RANKS_MAX
from skep.wire.learned import CURVE_MAX, ROOM_MAX, SEEN_MAX, JobSight, RoomSight, Sight


def sight_of(view: VcView, number: int) -> Sight:
    """Return all that a model sees of a VC.

    Args:
        view: The VC, with its nodes.
        number: Of the sight.
    """
    return Sight(
        vc=view.vc,
        number=number,
        whole=True,
        at=view.now,
        gpus=view.gpus,
        free=view.free,
        node_gpus=view.node_gpus,
        room=room_of(view.nodes),
        jobs=tuple(job_sight(job) for job in seen(view.jobs)),
    )


def seen(jobs: tuple[JobView, ...]) -> tuple[JobView, ...]:
    """Return the jobs that a sight has room for: those with GPUs, then the first to arrive."""
    if len(jobs) <= SEEN_MAX:
        return jobs
    chosen = sorted(jobs, key=lambda job: (job.phase in QUEUED, job.sequence))[:SEEN_MAX]
    return tuple(sorted(chosen, key=lambda job: job.sequence))


def job_sight(job: JobView) -> JobSight:
    """Return what a model sees of a job."""
    elastic = job.spec.elastic
    return JobSight(
        job=job.job,
        sequence=job.sequence,
        phase=job.phase.value,
        each=max(job.spec.resources.gpus, 1),
        workers=max(job.workers, 1),
        least=max(job.workers, 1) if elastic is None else min(elastic.min, RANKS_MAX),
        most=max(job.workers, 1) if elastic is None else min(elastic.max, RANKS_MAX),
        submitted_at=job.submitted_at,
        since=job.since,
        served=job.served,
        expected=job.expected,
        left=job.left,
        rates=_thinned(job.rates, max(job.workers, 1)),
        slowdown=_thinned(job.slowdown, max(len(job.nodes), 1)),
        doubt=_doubt(job),
        nodes=len(job.nodes),
        resizable=elastic is not None and resizable(job),
        borrows=job.borrows,
        pause=job.pause,
    )


def _doubt(job: JobView) -> int:
    """Return by how much of it a predicted rate may be too high, at most; 0: not known.

    That is its P90 of time against its P50. Where all rates were measured, it is one thousandth.
    """
    low = dict(job.rates_low)
    found = [1000 - low[size] * 1000 // rate for size, rate in job.rates if rate and size in low]
    return max(1, *found) if found else 0


def _thinned(curve: tuple[tuple[int, int], ...], near: int) -> tuple[tuple[int, int], ...]:
    """Return at most CURVE_MAX points: both ends, those close to `near`, and powers of two."""
    if len(curve) <= CURVE_MAX:
        return curve
    ends = curve[0][0], curve[-1][0]

    def place(point: tuple[int, int]) -> tuple[int, float]:
        at = point[0]
        first = at in ends or abs(at - near) <= 1
        return 0 if first else 1 if at & (at - 1) == 0 else 2, abs(log2(max(at, 1) / near))

    return tuple(sorted(sorted(curve, key=place)[:CURVE_MAX]))


def room_of(nodes: tuple[NodeView, ...]) -> tuple[RoomSight, ...]:
    """Return how many nodes there are of each size and number of free GPUs."""
    counts: dict[tuple[int, int], int] = {}
    for node in nodes:
        kind = node.gpus, min(node.free, node.gpus)
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(
        RoomSight(gpus=gpus, free=free, count=count)
        for (gpus, free), count in sorted(counts.items())[:ROOM_MAX]
    )


def changes(before: Sight, after: Sight) -> Sight:
    """Return a sight as what differs from the one before.

    Args:
        before: A whole sight.
        after: The next whole sight of the same VC.
    """
    assert before.whole
    assert after.whole
    assert after.number == before.number + 1
    old = {job.job: job for job in before.jobs}
    changed = tuple(job for job in after.jobs if old.pop(job.job, None) != job)
    return Sight(
        vc=after.vc,
        number=after.number,
        whole=False,
        at=after.at,
        gpus=after.gpus,
        free=after.free,
        node_gpus=after.node_gpus,
        room=after.room,
        jobs=changed,
        gone=tuple(old),
    )
