"""What a model in shadow would have begun, where its rule began something.

When GPUs come free the rule uses them in the same decision, so no sight ever shows a model the
choice that there was. It is made again: the jobs that the rule began wait still, and their GPUs are
free, on the fullest nodes that they could have been taken from. What a model says all the same is
what its rule has not done: to begin a job that is held, or to change a size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from skep.wire.learned import SEEN_MAX, AdvisedMove, JobSight, RoomSight, Sight


class Shadow:
    """The jobs of a VC as the latest sight had them."""

    def __init__(self) -> None:
        """Begin without a sight."""
        self._jobs: dict[str, JobSight] = {}
        self._wished: dict[str, None] = {}
        """Jobs that the model would have begun already, or that would have another size."""

    def follow(self, sight: Sight) -> tuple[dict[str, JobSight], Sight] | None:
        """Take over a sight; return how jobs were begun, by name, and what was seen before that.

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
        self._wished = {name: None for name in self._wished if name in self._jobs}
        waiting = {
            job.job: before.get(job.job, job)
            for job in sight.jobs
            if job.phase in ("starting", "running") and _waited(before.get(job.job), sight)
        }
        if not waiting:
            return None
        jobs = [_waits(waiting[job.job]) if job.job in waiting else job for job in self._shown()]
        taken = {name: self._jobs[name] for name in waiting}
        gpus = sum(job.workers * job.each for job in taken.values())
        room = put_back(sight.room, [job.workers * job.each for job in taken.values()])
        seen = replace(sight, whole=True, free=sight.free + gpus, room=room, jobs=tuple(jobs))
        return taken, replace(seen, gone=())

    def wish(self, moves: Sequence[AdvisedMove]) -> list[str]:
        """Take over what the model would do now; return the jobs whose size it would change.

        Args:
            moves: Its moves. A job is returned once.
        """
        named = dict.fromkeys(move.job for move in moves)
        new = [name for name in named if name in self._jobs and name not in self._wished]
        self._wished.update(dict.fromkeys(new))
        return [name for name in new if self._jobs[name].phase == "running"]

    def is_alike(self, job: JobSight, move: AdvisedMove | None, node_gpus: int) -> bool:
        """Return whether the model would have begun a job as its rule did: as large, when and how.

        Args:
            job: As the rule began it.
            move: What the model would have done then.
            node_gpus: GPUs of a node.
        """
        if move is None or job.job in self._wished:
            return False
        fewest = -(-job.workers * job.each // max(node_gpus, 1))
        return move.workers in (0, job.workers) and move.spread == (job.nodes > fewest)

    def check(self) -> None:
        """Assert that it keeps no more jobs than sights show.

        Raises:
            AssertionError: It keeps more.
        """
        assert len(self._jobs) <= SEEN_MAX
        assert self._wished.keys() <= self._jobs.keys()

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
