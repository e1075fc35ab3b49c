"""The jobs of a VC in the order of a policy, kept from one view to the next.

A job that waits keeps its place in the order until something happens to it; only jobs that run
move with time. So a plan sorts the running jobs, and merges them with the waiting ones as far as
the VC's GPUs go: how many jobs wait behind those does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from heapq import merge
from operator import itemgetter
from typing import Any

from skep.policy.capacity import NodeCapacity
from skep.policy.incremental import changes
from skep.policy.view import HOLDING, JobView, Phase, VcView

Key = Callable[[JobView], Any]
"""Returns a sort key of a job: the lowest comes first."""
Ranked = tuple[tuple[int, Any, int], JobView]
"""A job behind its place in the order: its priority (negative), its key, its number of arrival."""

MOVING = frozenset({Phase.RUNNING, Phase.STOPPING})
"""Phases in which the place of a job may depend on the time, under every policy."""


class Order:
    """The jobs that have or want GPUs of a VC, without jobs that borrow, in an order.

    It is sorted when it is first read.
    """

    def __init__(
        self, resting: list[Ranked], moving: Iterable[JobView], holding: Iterable[JobView], key: Key
    ) -> None:
        """Begin with a sorted list, and others.

        Args:
            resting: Jobs that keep their place while time passes, sorted.
            moving: The others.
            holding: Those of both that have GPUs.
            key: The sort key of jobs within a priority.
        """
        self._resting, self._key = resting, key
        self.moving = [*moving]
        """The jobs whose place depends on the time."""
        self.held = [*holding]
        """The jobs that have GPUs, in any order."""
        self.waits = len(resting) + len(self.moving) > len(self.held)
        """Whether some job has no GPUs."""

    def __iter__(self) -> Iterator[Ranked]:
        """Yield the jobs in their order; to read the first of many costs nothing for the others."""
        return merge(self._resting, self._moved, key=itemgetter(0))

    @cached_property
    def _moved(self) -> list[Ranked]:
        return _ranked(self.moving, self._key)

    @cached_property
    def holding(self) -> list[Ranked]:
        """Return the jobs that have GPUs, sorted."""
        return _ranked(self.held, self._key)


class Roster:
    """Keeps an order from one view of a VC to the next."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.nodes = NodeCapacity()
        """What the nodes of the latest view have free."""
        self._forget()

    def _forget(self) -> None:
        self._seen: tuple[JobView, ...] = ()
        self._basis: Any = None
        self._resting: list[Ranked] = []
        self._places: dict[str, Ranked] = {}
        """Entries of `_resting`, by job."""
        self._moving: dict[str, JobView] = {}
        self._holding: dict[str, JobView] = {}

    def follow(
        self, view: VcView, key: Key, rests: Callable[[JobView], bool], basis: Any = None
    ) -> Order:
        """Take over a view.

        Args:
            view: The VC.
            key: The sort key of jobs within a priority, at the time of the view.
            rests: Whether the key of a job stays the same until its view is another one.
            basis: What all keys depend on beside the job and the time; with another one than
                before all jobs are ranked again.

        Returns:
            The order at the time of the view, valid until the next call.
        """
        if basis != self._basis:
            self._forget()
        try:
            if self._seen:
                for old, new in changes(self._seen, view.jobs):
                    if old is not None:
                        self._leave(old)
                    if new is not None and not new.borrows:
                        self._come(new, key, rests)
            else:
                self._begin(view, key, rests)
        except BaseException:
            self._forget()  # It may be half changed.
            raise
        self._seen, self._basis = view.jobs, basis
        self.nodes.follow(view.nodes)
        return Order(self._resting, self._moving.values(), self._holding.values(), key)

    def _begin(self, view: VcView, key: Key, rests: Callable[[JobView], bool]) -> None:
        own = [job for job in view.jobs if not job.borrows]
        self._holding = {job.job: job for job in own if job.phase in HOLDING}
        self._moving = {job.job: job for job in own if not rests(job)}
        self._resting = _ranked((job for job in own if job.job not in self._moving), key)
        self._places = {each[1].job: each for each in self._resting}

    def _come(self, job: JobView, key: Key, rests: Callable[[JobView], bool]) -> None:
        if job.phase in HOLDING:
            self._holding[job.job] = job
        if rests(job):
            entry = self._places[job.job] = _place(job, key), job
            insort(self._resting, entry, key=itemgetter(0))
        else:
            self._moving[job.job] = job

    def _leave(self, job: JobView) -> None:
        self._holding.pop(job.job, None)
        self._moving.pop(job.job, None)
        entry = self._places.pop(job.job, None)
        if entry is not None:
            del self._resting[bisect_left(self._resting, entry[0], key=itemgetter(0))]


def _place(job: JobView, key: Key) -> tuple[int, Any, int]:
    return -job.spec.priority, key(job), job.sequence


def _ranked(jobs: Iterable[JobView], key: Key) -> list[Ranked]:
    return sorted([(_place(job, key), job) for job in jobs], key=itemgetter(0))
