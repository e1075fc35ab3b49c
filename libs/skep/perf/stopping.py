"""When a mini-batch has been timed often enough: a sequential rule.

It stops once the 95 % confidence interval of the mean is within 5 % of it on either side, and in
any case after 100 mini-batches or 30 s. The first mini-batch never counts: it allocates, compiles
and fills caches. Looking after each mini-batch makes an interval too narrow at first, when the
estimate of the deviation may be small by chance, so there is a minimum as well (Chow and Robbins,
1965: the coverage of such a rule approaches the nominal one as intervals become narrow).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate
from math import sqrt

from skep.units import Duration, seconds

PART = 0.05
"""Of the mean, on either side."""
SAMPLES_MIN = 8
"""Below that an estimate of a deviation is too often far too small."""
SAMPLES_MAX = 100
TIME_MAX = seconds(30.0)
NORMAL = 1.959964
"""97.5 % of a normal distribution lie below so many deviations."""


class Stop(StrEnum):
    """Why no further mini-batch needs to be timed."""

    PRECISE = "precise"
    COUNT = "count"
    TIME = "time"


def stop(samples: int, mean: float, deviation: float, *, made: int, lasted: int) -> Stop | None:
    """Return why to stop timing; None: go on.

    Args:
        samples: Timed mini-batches, without the first.
        mean: Of their durations.
        deviation: Their standard deviation, in the same unit.
        made: Mini-batches since the first one: more than `samples` if only the latest are known.
        lasted: How long those took, in nanoseconds.
    """
    if samples >= SAMPLES_MIN and half_width(samples, deviation) <= PART * mean:
        return Stop.PRECISE
    if samples >= 2 and made >= SAMPLES_MAX:
        return Stop.COUNT
    if samples >= 2 and lasted >= TIME_MAX:
        return Stop.TIME
    return None


def half_width(samples: int, deviation: float) -> float:
    """Return half of the 95 % confidence interval of a mean, infinite for fewer than two samples.

    Args:
        samples: Durations that it is the mean of.
        deviation: Their standard deviation.
    """
    if samples < 2:
        return float("inf")
    return quantile(samples - 1) * deviation / sqrt(samples)


def quantile(freedom: int) -> float:
    """Return Student's t at 97.5 %, within 0.5 % from four degrees of freedom on.

    Source: the expansion of Fisher and Cornish in powers of 1 / freedom.
    """
    if freedom < 4:
        return (12.706, 4.303, 3.182)[freedom - 1]
    z, n = NORMAL, float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def stops_at(durations: Sequence[Duration]) -> tuple[int, Stop | None]:
    """Return how many mini-batches a measurement takes, the first one included, and why it ends.

    Args:
        durations: Of the mini-batches of a process in their order, the first one included.

    Returns:
        All of them and None if they are too few.
    """
    timed = durations[1:]
    sums = list(accumulate(timed, initial=0))
    squares = list(accumulate((each * each for each in timed), initial=0))
    for count in range(1, len(timed) + 1):
        mean = sums[count] / count
        spread = max(0.0, squares[count] - count * mean * mean) / max(count - 1, 1)
        why = stop(count, mean, sqrt(spread), made=count, lasted=sums[count])
        if why is not None:
            return count + 1, why
    return len(durations), None
