"""How fast a job goes while nothing about it changes, and how much that varies.

Adjacent windows of a rank are gathered until there are enough of them to compare a later rate with.
One that is another rate than they are, by more than they vary, begins anew: something has changed.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

WINDOWS = 8
"""Windows that tell a mean and what it is worth: as many as a trial's test asks for."""
APART_DIVISOR = 50
"""Rates that differ by one in so many at most are one rate, however little they vary."""
APART_SPREADS = 3
"""Otherwise by so many standard deviations: one window in 300 where they are as in a bell curve."""


class Steady(NamedTuple):
    """A mean rate, the standard deviation of the samples it rests on (in its unit), and how many.

    Samples are adjacent and do not overlap. None of them: unknown yet.
    """

    mean: int = 0
    spread: int = 0
    samples: int = 0


NOT_YET = Steady()


class Gathering:
    """Windows since a job last went otherwise. Rates are in any unit."""

    __slots__ = ("_rates", "_steady", "_told")

    def __init__(self) -> None:
        """Begin with none."""
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._rates: list[int] = []
        self._steady, self._told = NOT_YET, True

    @property
    def missing(self) -> int:
        """Return how many windows are to come until there are enough."""
        return WINDOWS - len(self._rates)

    def add(self, rate: int) -> None:
        """Take over the rate of the next window."""
        if self._rates and self._is_other(rate):
            self.clear()
        if self.missing:
            self._rates.append(rate)
            if not self.missing:
                self._steady = of(self._rates)
        self._told = self._steady is NOT_YET

    def repeat(self, rate: int, count: int) -> None:
        """Take over further windows of one rate that are over; nothing is told of them."""
        for _ in range(min(count, WINDOWS + 1)):  # The first may begin anew.
            self.add(rate)
        self._told = True

    def news(self) -> Steady:
        """Return what is known, once for each window; else NOT_YET."""
        told, self._told = self._told, True
        return NOT_YET if told else self._steady

    def _is_other(self, rate: int) -> bool:
        return is_other(rate, self._steady if self._steady is not NOT_YET else of(self._rates))


def is_other(rate: int, known: Steady) -> bool:
    """Return whether a rate differs from a mean by more than those that it is of vary."""
    limit = max(known.mean // APART_DIVISOR, APART_SPREADS * known.spread)
    return abs(rate - known.mean) > limit


def of(rates: list[int]) -> Steady:
    """Return the mean of at least one rate, and how much they vary."""
    count, total = len(rates), sum(rates)
    squares = count * sum(rate * rate for rate in rates) - total * total
    spread = isqrt(squares // (count * (count - 1))) if count > 1 else 0
    return Steady(total // count, spread, count)
