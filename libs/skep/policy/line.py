"""The waiting jobs of a VC in an order in which each has its placement, kept from view to view.

    view --changes--> Line: lanes of jobs by key --> Reading, from the first job of all on

A job stays where it is until something happens to it, or until the instant at which it is to have
another placement. Jobs that are to have alike placements are a lane: where one of them finds no
room, those behind it in the lane are not looked at. So a plan costs no more for a longer queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

from skep.base.timers import TimerHeap
from skep.policy.incremental import changes
from skep.policy.symmetric import Option, Task
from skep.policy.view import QUEUED, JobView, VcView
from skep.units import Instant

NEVER = 1 << 62
"""The sort key of what comes after all times."""


class Stand(NamedTuple):
    """Where a job stands in an order."""

    key: Any
    """Its sort key: the lowest comes first."""
    lane: Any
    """Where one job of a lane finds no room, none that comes after it there does."""
    task: Task | None = None
    option: Option | None = None
    """The placement that it is to have; None: that of its spec, or it depends on what is free."""
    until: Instant | None = None
    """From then on it is another one; None: it stays."""
    ends: Instant | None = None
    """Its expected completion time."""


Entry = tuple[Any, int, str]
"""The place of a job in the order: its key, its number of arrival, its name."""


class Line:
    """The waiting jobs in an order, kept from one view to the next."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self._forget()

    def _forget(self) -> None:
        self._seen: tuple[JobView, ...] = ()
        self._now, self._platform = Instant(0), (0, 0)
        self.stands: dict[str, tuple[JobView, Stand]] = {}
        self.lanes: dict[Any, list[Entry]] = {}
        self._timers = TimerHeap[str]()

    def follow(self, view: VcView, stand: Callable[[JobView], Stand]) -> Reading:
        """Take over a view; return its waiting jobs in their order.

        Args:
            view: The VC.
            stand: Returns where a job stands at the time of the view.
        """
        platform = len(view.nodes), view.node_gpus
        if view.now < self._now or platform != self._platform:
            self._forget()
        try:
            for name in self._timers.pop_due(view.now):
                job, _ = self.stands[name]
                self._leave(job)
                self._come(job, stand)
            for old, new in changes(self._seen, view.jobs):
                if old is not None:
                    self._leave(old)
                if new is not None and new.phase in QUEUED:
                    self._come(new, stand)
        except BaseException:
            self._forget()  # It may be half changed.
            raise
        self._seen, self._now, self._platform = view.jobs, view.now, platform
        return Reading(self)

    def _come(self, job: JobView, stand: Callable[[JobView], Stand]) -> None:
        found = stand(job)
        self.stands[job.job] = job, found
        insort(self.lanes.setdefault(found.lane, []), (found.key, job.sequence, job.job))
        if found.until is not None:
            self._timers.set_timer(job.job, found.until)

    def _leave(self, job: JobView) -> None:
        known = self.stands.pop(job.job, None)
        if known is None:
            return
        stand = known[1]
        lane = self.lanes[stand.lane]
        del lane[bisect_left(lane, (stand.key, job.sequence, job.job))]
        if not lane:
            del self.lanes[stand.lane]
        self._timers.cancel(job.job)


class Reading:
    """The jobs of a line in their order, as far as they are read."""

    def __init__(self, line: Line) -> None:
        """Begin before the first job; valid until the line follows another view."""
        self._stands = line.stands
        self._heads = [
            (lane[0], number, 0, lane) for number, lane in enumerate(line.lanes.values())
        ]
        heapify(self._heads)

    def __bool__(self) -> bool:
        """Return whether there is a job left."""
        return bool(self._heads)

    def first(self) -> tuple[JobView, Stand]:
        """Return the next job, and where it stands."""
        return self._stands[self._heads[0][0][2]]

    def go_past(self) -> None:
        """Go past the next job."""
        _, number, at, lane = self._heads[0]
        if at + 1 < len(lane):
            heapreplace(self._heads, (lane[at + 1], number, at + 1, lane))
        else:
            heappop(self._heads)

    def leave_lane(self) -> None:
        """Go past the next job and all that come after it in its lane."""
        heappop(self._heads)


def plain_lane(job: JobView) -> Any:
    """Return the lane of a job that has the placement of its spec, or returns to where it was."""
    return job.job if job.at_home else (job.gpus, job.pin, job.spec.resources)
