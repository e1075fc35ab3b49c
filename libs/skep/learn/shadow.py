"""What a model in shadow would have begun, where its rule began something.

When GPUs come free the rule uses them in the same decision, so no sight ever shows a model the
choice that there was. It is made again: the jobs that the rule began wait still, and their GPUs are
free, on the fullest nodes that they could have been taken from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from skep.wire.learned import SEEN_MAX, JobSight, RoomSight, Sight


class Shadow:
    """The jobs of a VC as the latest sight had them."""

    def __init__(self) -> None:
        """Begin without a sight."""
        self._jobs: dict[str, JobSight] = {}

    def follow(self, sight: Sight) -> tuple[tuple[str, ...], Sight] | None:
        """Take over a sight; return which jobs were begun, and what was seen before that.

        Args:
            sight: The next one, or a whole one.

        Returns:
            None: no job that had waited was begun.
        """
        before = dict(self._jobs)
        if sight.whole:
            self._jobs.clear()
        for name in sight.gone:
            self._jobs.pop(name, None)
        self._jobs.update({job.job: job for job in sight.jobs})
        waiting = {
            job.job: before.get(job.job, job)
            for job in sight.jobs
            if job.phase in ("starting", "running") and _waited(before.get(job.job), sight)
        }
        if not waiting:
            return None
        jobs = [_waits(waiting[job.job]) if job.job in waiting else job for job in self._shown()]
        taken = [self._jobs[name] for name in waiting]
        gpus = sum(job.workers * job.each for job in taken)
        room = put_back(sight.room, [job.workers * job.each for job in taken])
        seen = replace(sight, whole=True, free=sight.free + gpus, room=room, jobs=tuple(jobs))
        return tuple(waiting), replace(seen, gone=())

    def check(self) -> None:
        """Assert that it keeps no more jobs than sights show.

        Raises:
            AssertionError: It keeps more.
        """
        assert len(self._jobs) <= SEEN_MAX

    def _shown(self) -> list[JobSight]:
        return sorted(self._jobs.values(), key=lambda job: job.sequence)[:SEEN_MAX]


def _waited(before: JobSight | None, sight: Sight) -> bool:
    """Return whether a job that has GPUs now had none: it waited, or has come since."""
    return before.phase == "waiting" if before is not None else not sight.whole


def _waits(job: JobSight) -> JobSight:
    return replace(job, phase="waiting", nodes=0, resizable=False)


def put_back(room: Sequence[RoomSight], taken: Sequence[int]) -> tuple[RoomSight, ...]:
    """Return the nodes with GPUs that jobs have given back.

    Args:
        room: The nodes by their size, and how many of their GPUs are free.
        taken: How many GPUs each job gives back.
    """
    counts = Counter[tuple[int, int]]()
    for each in room:
        counts[each.gpus, each.free] += each.count
    for gpus in taken:
        left = gpus
        while left > 0:
            used = [(size, free) for size, free in counts if free < size]
            if not used:
                break
            whole = [(size, free) for size, free in used if size - free >= left]
            size, free = min(whole or used, key=lambda node: (node[1], node[0]))
            back = min(left, size - free)
            # As many at once as are chosen alike, for a sight may tell of very many: until one node
            # could take the rest.
            most = max(size - free for size, free in used)
            nodes = 1 if whole else min(counts[size, free], (left - most - 1) // back + 1)
            counts[size, free + back] += nodes
            counts[size, free] -= nodes
            if not counts[size, free]:
                del counts[size, free]
            left -= nodes * back
    return tuple(RoomSight(gpus=g, free=f, count=count) for (g, f), count in sorted(counts.items()))
