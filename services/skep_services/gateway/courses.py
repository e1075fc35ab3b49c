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
POINTS_LEAST."""
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


class Course:
    """One job's rates, through all attempts that this process saw."""

    def __init__(self) -> None:
        self._kept = array("q")
        self._open: list[Rated] = []
        """What has been heard of the point that is not full."""
        self._every = 1

    def add(self, heard: Rated, most: int = POINTS_MAX) -> None:
        """Take what was measured of a window. Points never reach over two attempts.

        Args:
            heard: What was measured.
            most: How many points there may be.
        """
        if self._every == 1:
            self._kept.extend(heard)
            self._bound(most)
            return
        if self._open and self._open[-1].attempt != heard.attempt:
            self._close()
        self._open.append(heard)
        if len(self._open) >= self._every:
            self._close()
            self._bound(most)

    def points(self) -> list[Rated]:
        """Return the points, earliest first, and what has been heard of the next one."""
        found = [self._at(place) for place in range(len(self._kept) // WIDTH)]
        return [*found, _merged(self._open)] if self._open else found

    def _close(self) -> None:
        self._kept.extend(_merged(self._open))
        self._open = []

    def _bound(self, most: int) -> None:
        if len(self._kept) > most * WIDTH:
            self._halve()

    def _halve(self) -> None:
        points, kept = self.points(), array("q")
        while points:
            pair = [points.pop(0)]
            if points and points[0].attempt == pair[0].attempt:
                pair.append(points.pop(0))
            kept.extend(_merged(pair))
        self._kept, self._every = kept, 2 * self._every

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


def _merged(points: list[Rated]) -> Rated:
    count, latest = len(points), points[-1]
    return latest._replace(
        rate_milli=sum(each.rate_milli for each in points) // count,
        utilisation=sum(each.utilisation for each in points) // count,
        memory=max(each.memory for each in points),
    )
