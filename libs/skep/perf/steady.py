"""The rate of a job while nothing about it changes, and how much it varies.

Adjacent windows of a rank are gathered until there are enough of them to compare a later rate with.
A rate that differs from them by more than they vary starts a new series: something has changed.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

WINDOWS = 8
"""Windows that are needed for a mean and its uncertainty: as many as the test of a trial needs."""
APART_DIVISOR = 50
"""Rates that differ by at most this part are one rate, however little they vary."""
APART_SPREADS = 3
"""Otherwise rates may differ by this many standard deviations: one window in 300 exceeds them under
a normal distribution."""


class Steady(NamedTuple):
    """A mean rate, the standard deviation of its samples (in its unit), and their number.

    Samples are adjacent and do not overlap. Without samples the rate is not known yet.
    """

    mean: int = 0
    spread: int = 0
    samples: int = 0


NOT_YET = Steady()


class Gathering:
    """Windows since the rate of a job last changed. Rates are in any unit."""

    __slots__ = ("_rates", "_reported", "_steady")

    def __init__(self) -> None:
        """Begin without windows."""
        self.clear()

    def clear(self) -> None:
        """Begin again without windows."""
        self._rates: list[int] = []
        self._steady, self._reported = NOT_YET, True

    @property
    def missing(self) -> int:
        """Return how many more windows are needed."""
        return WINDOWS - len(self._rates)

    def add(self, rate: int) -> None:
        """Add the rate of the next window."""
        if self._rates and self._is_other(rate):
            self.clear()
        if self.missing:
            self._rates.append(rate)
            if not self.missing:
                self._steady = of(self._rates)
        self._reported = self._steady is NOT_YET

    def repeat(self, rate: int, count: int) -> None:
        """Add `count` past windows of one rate; `news` does not return them."""
        for _ in range(min(count, WINDOWS + 1)):  # The first may begin anew.
            self.add(rate)
        self._reported = True

    def news(self) -> Steady:
        """Return what is known, once for each window; else NOT_YET."""
        reported, self._reported = self._reported, True
        return NOT_YET if reported else self._steady

    def _is_other(self, rate: int) -> bool:
        return is_other(rate, self._steady if self._steady is not NOT_YET else of(self._rates))


def is_other(rate: int, known: Steady) -> bool:
    """Return whether a rate differs from a mean by more than its samples vary.

    Args:
        rate: The rate.
        known: The mean, in the same unit.
    """
    limit = max(known.mean // APART_DIVISOR, APART_SPREADS * known.spread)
    return abs(rate - known.mean) > limit


def of(rates: list[int]) -> Steady:
    """Return the mean of at least one rate, and how much they vary."""
    count, total = len(rates), sum(rates)
    squares = count * sum(rate * rate for rate in rates) - total * total
    spread = isqrt(squares // (count * (count - 1))) if count > 1 else 0
    return Steady(total // count, spread, count)
