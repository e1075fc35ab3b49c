"""Numbers about many numbers: mean, quantiles, distribution."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

CDF_POINTS_MAX = 200
"""Points kept of a distribution: a plot shows no more."""

Curve = tuple[tuple[float, float], ...]


class Stat(msgspec.Struct, frozen=True):
    """What became of some numbers, all in the same unit; all 0 where there were none."""

    count: int = 0
    mean: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0


def stat(values: Iterable[float]) -> Stat:
    """Return their count, mean, quantiles and maximum. The order of the values changes nothing."""
    ordered = sorted(values)
    if not ordered:
        return Stat()
    return Stat(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        median=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        most=ordered[-1],
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the quantile of sorted values, between two of them in proportion.

    As NumPy and the published simulators do by default (Hyndman and Fan, type 7).
    """
    at = part * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def distribution(values: Iterable[float], points_max: int = CDF_POINTS_MAX) -> Curve:
    """Return points (value, part of all that are at most so large) of the empirical CDF.

    Of more than `points_max` values, those at equal steps of the part; the last is always there.
    """
    ordered = sorted(values)
    count = len(ordered)
    points = min(count, points_max)
    ranks = [-(-count * point // points) for point in range(1, points + 1)]
    return tuple((ordered[rank - 1], rank / count) for rank in ranks)


class Steps:
    """A number that changes in steps over time, and its integral."""

    def __init__(self, changes: Iterable[tuple[int, float]]) -> None:
        """Take changes (when, by how much) in any order; it is 0 before the first."""
        by_time: dict[int, float] = {}
        for at, by in changes:
            by_time[at] = by_time.get(at, 0) + by
        self.times = sorted(by_time)
        self.values: list[float] = []
        value = 0.0
        for at in self.times:
            value += by_time[at]
            self.values.append(value)
        self._until = [0.0]
        """The integral up to each of `times`."""
        for value, (here, there) in zip(self.values, pairwise(self.times), strict=False):
            self._until.append(self._until[-1] + value * (there - here))

    def at(self, time: int) -> float:
        """Return its value from `time` on."""
        place = bisect_right(self.times, time)
        return self.values[place - 1] if place else 0.0

    def integral(self, begin: int, end: int) -> float:
        """Return value times time between two times, `begin` not after `end`."""
        return self._integral(end) - self._integral(begin)

    def mean(self, begin: int, end: int) -> float:
        """Return its average over a time; over none, its value there."""
        return self.integral(begin, end) / (end - begin) if end > begin else self.at(begin)

    def _integral(self, time: int) -> float:
        place = bisect_right(self.times, time)
        if not place:
            return 0.0
        return self._until[place - 1] + self.values[place - 1] * (time - self.times[place - 1])
