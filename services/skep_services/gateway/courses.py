"""How fast running jobs went, over time: for the moment only, like the rates themselves.

A job has POINTS_MAX points at most, and fewer where many jobs run. Once it has so many, two
neighbours become one, and each further point stands for twice the time: the whole run stays in the
picture, coarser the longer it is.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from skep.units import Instant
from skep.wire.findings import JobRate

POINTS_MAX: Final = 500
"""As many as a picture has columns to show them in."""
POINTS_LEAST: Final = 50
POINTS_ALL: Final = 500_000
"""Points of all jobs together: 24 MB, for six numbers of 8 bytes. Shared evenly, but each job has
POINTS_LEAST: of JOBS_MAX jobs it is 48 MB."""
JOBS_MAX: Final = 20_000
"""Jobs whose rates are kept, the latest to be measured. All that run must find room: of more than
so many, none would keep its points until it is measured again."""
WIDTH: Final = 6


class Rated(NamedTuple):
    """A stretch of a run up to `at`: means of rate and utilisation, the most memory (bytes)."""

    at: Instant
    attempt: int
    steps: int
    rate_milli: int
    utilisation: int
    memory: int


class _Sum:
    """Windows that become one point."""

    def __init__(self, first: Rated) -> None:
        self.latest, self.count = first, 1
        self._rate_milli, self._utilisation = first.rate_milli, first.utilisation
        self._memory = first.memory

    def add(self, more: Rated) -> None:
        """Take one more."""
        self.latest, self.count = more, self.count + 1
        self._rate_milli += more.rate_milli
        self._utilisation += more.utilisation
        self._memory = max(self._memory, more.memory)

    def mean(self) -> Rated:
        """Return the point."""
        return self.latest._replace(
            rate_milli=self._rate_milli // self.count,
            utilisation=self._utilisation // self.count,
            memory=self._memory,
        )


class Course:
    """One job's rates, through all attempts that this process saw."""

    def __init__(self) -> None:
        self._kept = array("q")
        self._open: _Sum | None = None
        """What has been heard of the point that is not full."""
        self._every = 1

    def add(self, heard: Rated, most: int = POINTS_MAX) -> None:
        """Take what was measured of a window. Points never reach over two attempts.

        Args:
            heard: What was measured.
            most: How many points there may be.
        """
        if self._open is not None and self._open.latest.attempt != heard.attempt:
            self._close(self._open, most)
        if self._open is None:
            self._open = _Sum(heard)
        else:
            self._open.add(heard)
        if self._open.count >= self._every:
            self._close(self._open, most)

    def points(self) -> list[Rated]:
        """Return the points, earliest first, and what has been heard of the next one."""
        found = [self._at(place) for place in range(len(self._kept) // WIDTH)]
        return [*found, self._open.mean()] if self._open is not None else found

    def _close(self, point: _Sum, most: int) -> None:
        self._kept.extend(point.mean())
        self._open = None
        if len(self._kept) > most * WIDTH:
            self._halve(most)

    def _halve(self, most: int) -> None:
        """Make one of two neighbours; of points that are each of another attempt, keep the last."""
        merged: list[_Sum] = []
        for point in self.points():
            last = merged[-1] if merged else None
            if last is None or last.count > 1 or last.latest.attempt != point.attempt:
                merged.append(_Sum(point))
            else:
                last.add(point)
        if any(each.count > 1 for each in merged):
            self._every *= 2
        self._kept = array("q")
        for each in merged[-most:]:
            self._kept.extend(each.mean())

    def _at(self, place: int) -> Rated:
        at, *numbers = self._kept[place * WIDTH : (place + 1) * WIDTH]
        return Rated(Instant(at), *numbers)


class Courses:
    """The rates of the jobs that were measured last."""

    def __init__(self) -> None:
        self._jobs: dict[str, Course] = {}

    def take(self, rate: JobRate, at: Instant) -> None:
        """Take over what was measured of a job."""
        course = self._jobs.pop(rate.job, None) or Course()
        self._jobs[rate.job] = course
        if len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
        most = min(POINTS_MAX, max(POINTS_LEAST, POINTS_ALL // len(self._jobs)))
        heard = (at, rate.attempt, rate.steps, rate.rate_milli, rate.utilisation, rate.memory)
        course.add(Rated._make(heard), most)

    def of(self, job: str) -> list[Rated]:
        """Return a job's points, earliest first; none if nothing was measured."""
        course = self._jobs.get(job)
        return course.points() if course is not None else []
