"""Statistics of a list of numbers: mean, quantiles, distribution."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

CDF_POINTS_MAX = 200
"""The most points of a distribution that are kept: a plot shows no more."""

Curve = tuple[tuple[float, float], ...]


class Stat(msgspec.Struct, frozen=True):
    """Statistics of some numbers, all in the same unit; all 0 if there were none."""

    count: int = 0
    mean: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0


def stat(values: Iterable[float]) -> Stat:
    """Return their count, mean, quantiles and maximum, independent of their order."""
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
    """Return the quantile of sorted values, interpolated linearly.

    As NumPy and the published simulators do by default (Hyndman and Fan, type 7).

    Args:
        ordered: At least one value, ascending.
        part: 0 to 1.
    """
    at = part * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def distribution(values: Iterable[float], points_max: int = CDF_POINTS_MAX) -> Curve:
    """Return points of the empirical CDF: (value, part of all values that are not larger).

    Args:
        values: The values.
        points_max: Of more values, points at equal steps of the part are returned, always with
            the last.
    """
    ordered = sorted(values)
    count = len(ordered)
    points = min(count, points_max)
    ranks = [-(-count * point // points) for point in range(1, points + 1)]
    return tuple((ordered[rank - 1], rank / count) for rank in ranks)


class Steps:
    """A number that changes in steps over time, and its integral."""

    def __init__(self, changes: Iterable[tuple[int, float]]) -> None:
        """Sum up the changes.

        Args:
            changes: When, and by how much, in any order; the number is 0 before the first.
        """
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
        """Return its average over a time; if that is empty, its value there."""
        return self.integral(begin, end) / (end - begin) if end > begin else self.at(begin)

    def _integral(self, time: int) -> float:
        place = bisect_right(self.times, time)
        if not place:
            return 0.0
        return self._until[place - 1] + self.values[place - 1] * (time - self.times[place - 1])
