"""Rates and delays, from when mini-batches ended and from what the facts say: pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from skep.units import NS_PER_SECOND

STANDS_AFTER = 3.0
"""A gap of so many usual mini-batches is time in which the job stood."""


class Steps:
    """When the mini-batches of one job ended (ns, in order): how many until any moment.

    A mini-batch counts evenly over the time it took, so that a window may begin and end in the
    middle of one. After a gap its length is a usual one.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        """Take the ends."""
        self.ends = sorted(ends)
        gaps = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        self.usual = statistics.median(gaps) if gaps else 0.0
        self._lasted = [
            min(gap, self.usual) if gap > STANDS_AFTER * self.usual else gap
            for gap in [self.usual, *gaps]
        ]

    @classmethod
    def noted(cls, text: str) -> Steps:
        """Return them from what a job noted: `began ended` of each optimizer step (ns), in lines.

        A job is suspended within such a step, once it is done, and notes its end when it goes on:
        it ended a usual time after it began.
        """
        whole = text[: text.rfind("\n") + 1]  # The line in progress says nothing yet.
        words = (line.split() for line in whole.splitlines())
        pairs = [(int(began), int(ended)) for began, ended, *_ in words]
        usual = statistics.median(ended - began for began, ended in pairs) if pairs else 0
        return cls(
            [
                ended if ended - began <= STANDS_AFTER * usual else round(began + usual)
                for began, ended in pairs
            ]
        )

    def until(self, at: float) -> float:
        """Return how many mini-batches were done at a moment."""
        done = bisect_right(self.ends, at)
        if done == len(self.ends) or not self._lasted[done]:
            return float(done)
        began = self.ends[done] - self._lasted[done]
        return done + max(0.0, (at - began) / self._lasted[done])

    def rate(self, begin: float, end: float) -> float:
        """Return mini-batches per second between two moments."""
        return (self.until(end) - self.until(begin)) * NS_PER_SECOND / (end - begin)

    def after(self, at: float) -> int | None:
        """Return when the first mini-batch since a moment ended."""
        index = bisect_left(self.ends, at)
        return self.ends[index] if index < len(self.ends) else None

    def curve(self, begin: int, end: int, window_s: float) -> list[tuple[float, float]]:
        """Return rates over windows around moments, a quarter of a window apart."""
        window = window_s * NS_PER_SECOND
        count = max(1, int((end - begin) / window * 4))
        points = [begin + index * window / 4 for index in range(count + 1)]
        spans = [(at, max(begin, at - window / 2), min(end, at + window / 2)) for at in points]
        return [(at, self.rate(since, to)) for at, since, to in spans if since < to]


def total(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the sum of curves over the same moments."""
    return [(each[0][0], sum(value for _, value in each)) for each in zip(*curves, strict=True)]


class Mark(NamedTuple):
    """Something decided or seen: when (ns), and in a few words."""

    at: int
    words: str
    colour: str = "#a02020"


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum of some delays in seconds, as JSON."""
    known = sorted(values)
    if not known:
        return {"count": 0}
    return {
        "count": len(known),
        "median": round(statistics.median(known), 3),
        "p95": round(known[min(len(known) - 1, int(0.95 * len(known)))], 3),
        "max": round(known[-1], 3),
    }


def seconds(begin: float, end: float) -> float:
    """Return the time between two moments (ns) in seconds."""
    return (end - begin) / NS_PER_SECOND


def changes(facts: Sequence[tuple[int, Any]]) -> list[tuple[Any, Any]]:
    """Return each change with its end: the JobChanging that began it, and its JobChanged."""
    open_: dict[tuple[str, int], Any] = {}
    found = []
    for _, fact in facts:
        name = type(fact).__name__
        if name == "JobChanging":
            open_.setdefault((fact.job, fact.attempt), fact)
        elif name == "JobChanged" and (fact.job, fact.attempt) in open_:
            found.append((open_.pop((fact.job, fact.attempt)), fact))
    return found
