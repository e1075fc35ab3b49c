"""Models for tests of the policy `learned`: plain rules and nonsense, as seats of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from skep.units import Instant
from skep.wire.learned import SCHEMA, SEEN_MAX, AdvisedMove, JobSight, Sight

MODEL = "a" * 64
OTHER_MODEL = "b" * 64


class Wish(NamedTuple):
    """What a model would do."""

    moves: Sequence[AdvisedMove] = ()
    holds: Sequence[str] = ()
    reliable: bool = True


class Follower:
    """A seat that keeps the jobs it is told of."""

    schema = SCHEMA

    def __init__(self) -> None:
        """Begin without a sight."""
        self.number = -1
        self.jobs: dict[str, JobSight] = {}
        self.free = 0

    def follow(self, sight: Sight) -> bool:
        """Take over a sight; return False if a whole one is needed."""
        if not sight.whole and sight.number != self.number + 1:
            return False
        if sight.whole:
            self.jobs.clear()
        for name in sight.gone:
            self.jobs.pop(name, None)
        self.jobs.update({job.job: job for job in sight.jobs})
        self.number, self.free = sight.number, sight.free
        return True

    def check(self) -> None:
        """Assert that it knows no more jobs than sights show."""
        assert len(self.jobs) <= SEEN_MAX

    def waiting(self) -> list[JobSight]:
        """Return the jobs that wait, in the order of their arrival."""
        waiting = [job for job in self.jobs.values() if job.phase == "waiting"]
        return sorted(waiting, key=lambda job: job.sequence)

    def decide(self, _now: Instant) -> Wish:
        """Return no move."""
        return Wish()


class Shortest(Follower):
    """Places the shortest job first, as close together as it can be."""

    def decide(self, _now: Instant) -> Wish:
        """Return a move for each job that waits and that there may be room for."""
        order = sorted(self.waiting(), key=self.key)
        return Wish([AdvisedMove(job=job.job, margin_milli=9) for job in self.fitting(order)])

    def key(self, job: JobSight) -> tuple[int, int]:
        """Return what the jobs are sorted by."""
        return job.expected or 0, job.sequence

    def fitting(self, order: list[JobSight]) -> list[JobSight]:
        """Return the first jobs that the free GPUs hold."""
        found, free = [], self.free
        for job in order[:32]:
            if job.each * job.workers <= free:
                found.append(job)
                free -= job.each * job.workers
        return found


class Longest(Shortest):
    """Places the longest job first."""

    def key(self, job: JobSight) -> tuple[int, int]:
        """Return what the jobs are sorted by."""
        return -(job.expected or 0), job.sequence


class Says(Follower):
    """Says what a function makes of it."""

    def __init__(self, say: Callable[[Follower, Instant], Any]) -> None:
        """Take what it says."""
        super().__init__()
        self._say = say

    def decide(self, now: Instant) -> Any:
        """Return what the function says."""
        return self._say(self, now)
