"""What jobs say about their training, by mini-batch: for the moment only, like rates."""

from __future__ import annotations

from typing import NamedTuple

from skep.units import Instant
from skep.wire.findings import Measured

POINTS_MAX = 600
"""Points kept of one job: more than a picture has columns. Beyond it every second one goes."""
JOBS_MAX = 2_000
"""Jobs whose numbers are kept, the latest to report: 100 MB where each reports a few."""


class Point(NamedTuple):
    """What a job said at one mini-batch."""

    at: Instant
    attempt: int
    step: int
    values: dict[str, float]


class Curve:
    """One job's numbers over its mini-batches, through all attempts that this process saw."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._every = 1
        self._passed = 0

    def add(self, point: Point) -> None:
        """Take a point, as often as the ones before were thinned out."""
        self._passed += 1
        latest = self.points[-1] if self.points else None
        if latest is not None and latest.attempt == point.attempt and self._passed % self._every:
            # The latest is always there, whatever the thinning leaves of those before.
            self.points[-1] = point
            return
        self.points.append(point)
        if len(self.points) > POINTS_MAX:
            self.points = [*self.points[:-1:2], self.points[-1]]
            self._every *= 2


class Curves:
    """The curves of the jobs that spoke last."""

    def __init__(self) -> None:
        self._jobs: dict[str, Curve] = {}

    def take(self, measured: Measured) -> None:
        """Take over what a job said."""
        curve = self._jobs.pop(measured.job, None) or Curve()
        self._jobs[measured.job] = curve
        if len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
        curve.add(Point(measured.at, measured.attempt, measured.step, measured.values))

    def of(self, job: str) -> list[Point]:
        """Return a job's points, earliest first; none if it said nothing."""
        curve = self._jobs.get(job)
        return curve.points if curve is not None else []
