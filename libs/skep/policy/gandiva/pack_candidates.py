"""Candidates for packs, kept from one view to the next, so that a plan looks at few of them.

Guests are sorted by utilisation. A guest that found no host is *blocked*, and left out, until there
is another job where it was, or the rules for packs differ from those when it looked.

Source: Gandiva, section 4.2.2 (packing).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from heapq import merge

from skep.base.timers import TimerHeap
from skep.policy.capacity import Place
from skep.policy.gandiva.rules import profiled
from skep.policy.incremental import keep
from skep.policy.view import JobView, Phase
from skep.units import Instant

Idle = tuple[int, int, str]
"""The sort key of a guest: its utilisation, its place in the order of arrival, its name."""


def idlest(job: JobView) -> Idle:
    """Return the sort key of jobs by utilisation, the lowest first."""
    return job.utilisation, job.sequence, job.job


class PackCandidates:
    """Jobs that may be in a pack on trial: alone and measured, on one node, or suspended there."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.guests: dict[str, JobView] = {}
        """Suspended jobs that have had few enough trials."""
        self._hosts: dict[Place, dict[str, JobView]] = {}
        self._suspended: dict[Place, dict[str, JobView]] = {}
        self._lines: dict[str, list[Idle]] = {}
        """By pin: guests that may find a host, the lowest utilisation first."""
        self._blocked: dict[str, None] = {}
        self._known: object = None
        """The rules by which the blocked guests found no host."""
        self._resting: dict[str, JobView] = {}
        self._rest_timers = TimerHeap[str]()

    def count(self, job: JobView, come: bool, now: Instant) -> None:
        """Add a job, or remove it as it was.

        Args:
            job: The job.
            come: True to add it, False to remove it.
            now: The time of the view.
        """
        if not job.measured or job.phase not in (Phase.AWAY, Phase.RUNNING) or not _alone(job):
            return
        if come and now < job.trial_after:
            self._resting[job.job] = job
            self._rest_timers.set_timer(job.job, job.trial_after)
        elif not come and self._resting.pop(job.job, None) is not None:
            self._rest_timers.cancel(job.job)
        else:
            self._count(job, come)

    def follow(self, now: Instant) -> None:
        """Set the time, and add jobs that may be tried again."""
        for name in self._rest_timers.pop_due(now):
            self._count(self._resting.pop(name), come=True)

    def _count(self, job: JobView, come: bool) -> None:
        if job.phase is Phase.RUNNING:
            keep(self._hosts.setdefault(job.nodes, {}), job, come)
            if come:
                self._wake(self._suspended.get(job.nodes, ()))
            elif not self._hosts[job.nodes]:
                del self._hosts[job.nodes]
            return
        keep(self.guests, job, come)
        there = self._suspended.setdefault(job.nodes, {})
        keep(there, job, come)
        if not there:
            del self._suspended[job.nodes]
        if come:
            insort(self._lines.setdefault(job.pin, []), idlest(job))
        elif job.job in self._blocked:
            del self._blocked[job.job]
        else:
            line = self._lines[job.pin]
            del line[bisect_left(line, idlest(job))]

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._blocked:
                del self._blocked[name]
                job = self.guests[name]
                insort(self._lines.setdefault(job.pin, []), idlest(job))

    def look(self, known: object) -> None:
        """Set the rules by which hosts are found: if they differ, blocked guests look again."""
        if known != self._known:
            self._known = known
            self._wake([*self._blocked])

    def line(self, pins: Iterable[str]) -> Iterator[JobView]:
        """Yield guests with these pins that may find a host, the lowest utilisation first."""
        for *_, name in merge(*(self._lines.get(pin, ()) for pin in pins)):
            yield self.guests[name]

    def standing(self, nodes: Container[str]) -> list[JobView]:
        """Return the guests on these nodes that may find a host, the lowest utilisation first."""
        found = [
            job
            for place, there in self._suspended.items()
            if place[0][0] in nodes
            for job in there.values()
            if job.job not in self._blocked
        ]
        return sorted(found, key=idlest)

    def hosts(self, guest: JobView) -> Iterable[JobView]:
        """Return the jobs that run where a guest was."""
        return self._hosts.get(guest.nodes, {}).values()

    def block(self, guests: Iterable[JobView]) -> None:
        """Leave out guests that have no host."""
        for job in guests:
            line = self._lines[job.pin]
            del line[bisect_left(line, idlest(job))]
            self._blocked[job.job] = None


def _alone(job: JobView) -> bool:
    free = not (job.trial or job.partners or job.proven_milli or job.borrows)
    return free and len(job.nodes) == 1 and "release" in job.can and profiled(job)
