"""The jobs of a VC in the order of a policy, kept from one view to the next.

    view --changes--> lanes: held jobs, waiting jobs by what they ask for --> Order, read by a plan

A job stays where it is in its lane until something happens to it, or until the instant at which
its key changes otherwise than that of its like. A plan reads the lanes from the first job that
wants GPUs on: how many jobs run before it, and how many wait behind those that it can serve, does
not matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from skep.base.timers import TimerHeap
from skep.policy.capacity import NodeCapacity
from skep.policy.incremental import add, changes
from skep.policy.view import QUEUED, STOPPABLE, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.spec import Resources

Key = Callable[[JobView], Any]
"""Returns a sort key of a job: the lowest comes first."""
Rank = tuple[int, Any, int]
"""The place of a job in an order: its priority (negative), its key, its number of arrival."""
Ranked = tuple[Rank, JobView, str]
"""A job that has GPUs: its rank, and its pin."""


class Course(NamedTuple):
    """How the key of a job changes while its view stays the same."""

    place: Any
    """Sorts the job among its like: the key itself where `like` is None."""
    like: Any = None
    """The keys of all jobs with this value change with time in such a way that they keep their
    order; None: the key stays the same."""
    until: Instant | None = None
    """From then on the course is another one; None: it never is."""


Courses = Callable[[JobView], Course]
"""Returns the course of a job at the time of a view."""


class Shape(NamedTuple):
    """What the jobs of a lane ask for, or hold."""

    waits: bool
    """Whether they have no GPUs; else they hold them, or are being stopped, and may be placed
    again."""
    pin: str
    gpus: int
    workers: int = 0
    resources: Resources | None = None
    """All that they ask for: where one has no place, none behind it has; None: they may differ in
    the rest."""
    holds: bool = False
    """Whether they have GPUs that may be taken; `gpus` is 0 then, as they may differ."""


class Lane:
    """Jobs that keep their order while time passes: held ones of a pin, or like ones that wait."""

    def __init__(self, like: Any, shape: Shape) -> None:
        """Begin without jobs.

        Args:
            like: `Course.like` of its jobs.
            shape: What its jobs ask for, or hold.
        """
        self.like, self.shape = like, shape
        self.ranks: list[Rank] = []
        """By place, ascending."""
        self.jobs: list[JobView] = []
        """In the same order."""

    def insert(self, rank: Rank, job: JobView) -> None:
        """Add a job."""
        at = bisect_left(self.ranks, rank)
        self.ranks.insert(at, rank)
        self.jobs.insert(at, job)

    def remove(self, rank: Rank) -> None:
        """Remove the job of a rank."""
        at = bisect_left(self.ranks, rank)
        del self.ranks[at], self.jobs[at]

    def rank(self, at: int, key: Key) -> Rank:
        """Return the rank of a job at the time of a key."""
        rank = self.ranks[at]
        return rank if self.like is None else (rank[0], key(self.jobs[at]), rank[2])

    def after(self, rank: Rank, key: Key) -> int:
        """Return the place of the first job behind a rank, at the time of a key."""
        if self.like is None:
            return bisect_right(self.ranks, rank)
        return bisect_right(range(len(self.ranks)), rank, key=lambda at: self.rank(at, key))


Head = tuple[Rank, int, int, Lane]
"""The next job of a lane: its rank, the number of the lane, its place in it, the lane."""
_rank = itemgetter(0)


class Order:
    """The jobs that have or want GPUs of a VC, without jobs that borrow, in an order.

    Attributes:
        held: Lanes of the jobs whose GPUs may be taken.
        held_gpus: GPUs of these, by pin.
        fixed_gpus: GPUs of jobs that keep theirs whatever the order says, by pin.
        stopping: Jobs that are being stopped.
        waits: Whether some job has no GPUs.
        until: When the order of two jobs may change without an event; None: not known to.
    """

    def __init__(self, roster: Roster, key: Key) -> None:
        """Read a roster at the time of a key; valid until it follows another view."""
        lanes = [lane for lane in roster.lanes.values() if lane.jobs]
        wanting = [lane for lane in lanes if not lane.shape.holds]
        self.held = [lane for lane in lanes if lane.shape.holds]
        self.held_gpus, self.fixed_gpus = roster.held_gpus, roster.fixed_gpus
        self.stopping = sorted(roster.stopping.values(), key=lambda job: job.sequence)
        self.waits = roster.queued > 0
        first = roster.timers.first_due()
        self.until = None if first is None else Instant(first)
        self._key = key
        heads = [(lane.rank(0, key), number, 0, lane) for number, lane in enumerate(wanting)]
        self._heads: list[Head] = sorted(heads, key=_rank)
        """The first jobs of the lanes of those that wait, or wait again once they are stopped."""

    def first(self) -> Rank:
        """Return the rank of the first job that wants GPUs; there has to be one."""
        return self._heads[0][0]

    def behind(self, rank: Rank | None) -> list[Ranked]:
        """Return the jobs whose GPUs may be taken, in their order.

        Args:
            rank: Only those behind it; None: all.
        """
        key, found = self._key, list[Ranked]()
        for lane in self.held:
            start = 0 if rank is None else lane.after(rank, key)
            ranks, jobs, pin = lane.ranks[start:], lane.jobs[start:], lane.shape.pin
            if lane.like is not None:
                there = zip(ranks, jobs, strict=True)
                ranks = [(priority, key(job), sequence) for (priority, _, sequence), job in there]
            found += zip(ranks, jobs, repeat(pin))
        found.sort(key=_rank)
        return found

    def read(self) -> Reading:
        """Begin to read the jobs that want GPUs."""
        return Reading(self._heads, self._key)

    def queue(self) -> Iterator[JobView]:
        """Yield the jobs that wait, in their order."""
        waiting = [head for head in self._heads if head[3].shape.waits]
        reading = Reading(waiting, self._key)
        while reading.heads:
            yield reading.read()


class Reading:
    """The jobs of several lanes in one order, as far as they are read.

    A lane can be left: until it is taken up again, or for good.
    """

    def __init__(self, heads: Sequence[Head], key: Key) -> None:
        """Begin with the first job of each lane.

        Args:
            heads: These jobs, in their order.
            key: The sort key of jobs.
        """
        self._key = key
        self.heads = [*heads]
        """A heap of the next job of each lane."""
        self._left: list[tuple[int, Lane]] = []

    def read(self) -> JobView:
        """Return the next job, and go past it."""
        _, number, at, lane = self.heads[0]
        if at + 1 < len(lane.jobs):
            heapreplace(self.heads, (lane.rank(at + 1, self._key), number, at + 1, lane))
        else:
            heappop(self.heads)
        return lane.jobs[at]

    def leave(self) -> None:
        """Skip the next job and all behind it in its lane, until it is taken up again."""
        _, number, _, lane = heappop(self.heads)
        self._left.append((number, lane))

    def leave_larger(self, most: Callable[[str], int]) -> None:
        """Skip all jobs that ask for more GPUs than there will be.

        Args:
            most: By pin, how many there will be at most.
        """
        shapes = ((head, head[3].shape) for head in self.heads)
        self.heads[:] = [head for head, shape in shapes if shape.gpus <= most(shape.pin)]
        heapify(self.heads)

    def take_up(self, rank: Rank) -> None:
        """Read all lanes again that were left, from behind a rank on."""
        for number, lane in self._left:
            at = lane.after(rank, self._key)
            if at < len(lane.jobs):
                heappush(self.heads, (lane.rank(at, self._key), number, at, lane))
        self._left.clear()


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
        self._now = Instant(0)
        self.lanes: dict[Any, Lane] = {}
        """By `Course.like` and what the jobs ask for."""
        self._spots: dict[str, tuple[Lane, Rank]] = {}
        """By job: its lane, and its rank there."""
        self.timers = TimerHeap[str]()
        """When the course of a job is another one."""
        self.stopping: dict[str, JobView] = {}
        self.held_gpus: dict[str, int] = {}
        self.fixed_gpus: dict[str, int] = {}
        self.queued = 0
        """Jobs without GPUs."""

    def follow(self, view: VcView, key: Key, courses: Courses, basis: Any = None) -> Order:
        """Take over a view.

        Args:
            view: The VC.
            key: The sort key of jobs within a priority, at the time of the view.
            courses: How the key of a job changes from the time of the view on.
            basis: What all keys depend on beside the job and the time; with another one than
                before all jobs are ranked again.

        Returns:
            The order at the time of the view, valid until the next call.
        """
        if basis != self._basis or view.now < self._now:
            self._forget()
        try:
            for name in self.timers.pop_due(view.now):
                lane, rank = self._spots[name]
                job = lane.jobs[bisect_left(lane.ranks, rank)]
                self._leave(job)
                self._come(job, courses)
            for old, new in changes(self._seen, view.jobs):
                if old is not None and not old.borrows:
                    self._leave(old)
                if new is not None and not new.borrows:
                    self._come(new, courses)
        except BaseException:
            self._forget()  # It may be half changed.
            raise
        self._seen, self._basis, self._now = view.jobs, basis, view.now
        self.nodes.follow(view.nodes)
        return Order(self, key)

    def _come(self, job: JobView, courses: Courses) -> None:
        self._count(job, 1)
        shape = _shape(job)
        if shape is None:
            return  # It keeps its GPUs whatever its place is.
        course = courses(job)
        rank = -job.spec.priority, course.place, job.sequence
        lane = self.lanes.get((course.like, shape))
        if lane is None:
            lane = self.lanes[course.like, shape] = Lane(course.like, shape)
        lane.insert(rank, job)
        self._spots[job.job] = lane, rank
        if course.until is not None:
            self.timers.set_timer(job.job, course.until)

    def _leave(self, job: JobView) -> None:
        self._count(job, -1)
        spot = self._spots.pop(job.job, None)
        if spot is None:
            return
        lane, rank = spot
        lane.remove(rank)
        if not lane.jobs:
            del self.lanes[lane.like, lane.shape]
        self.timers.cancel(job.job)

    def _count(self, job: JobView, sign: int) -> None:
        if job.phase in QUEUED:
            self.queued += sign
        elif job.phase in STOPPABLE:
            add(self.held_gpus, job.pin, sign * job.gpus)
        elif job.phase is not Phase.STOPPING:
            add(self.fixed_gpus, job.pin, sign * job.gpus)
        elif sign > 0:
            self.stopping[job.job] = job
        else:
            del self.stopping[job.job]


def _shape(job: JobView) -> Shape | None:
    """Return what a job asks for or holds; None: it has GPUs, and keeps them."""
    if job.phase is Phase.STOPPING or job.at_home:
        return Shape(job.phase is not Phase.STOPPING, job.pin, job.gpus)
    if job.phase in QUEUED:
        return Shape(True, job.pin, job.gpus, job.workers, job.spec.resources)
    return Shape(False, job.pin, 0, holds=True) if job.phase in STOPPABLE else None
