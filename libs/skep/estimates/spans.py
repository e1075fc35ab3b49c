"""A length that is not known, as P10, P50 and P90: its distribution, and arithmetic on it.

Between and beyond the three it is taken to be log-normal, with a width of its own on either side of
P50: lengths are off by factors, and later more often than earlier.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from skep.units import Duration
from skep.wire.promises import Lasts

LENGTH_MAX = 10 * 365 * 24 * 3600 * 10**9
"""Ten years, in nanoseconds, stand for everything longer."""
Z = 1.2815515655446004
"""The 90 % quantile of the standard normal distribution."""
LOG_MAX = 40.0
TAIL = 1e-9
"""A chance below this is none: a job that outran its P90 so far says nothing by its estimate."""

_NORMAL = NormalDist()


def span(p10: float, p50: float, p90: float) -> Lasts:
    """Return three lengths as a span: in order, and within bounds, whatever they are.

    Args:
        p10: Nanoseconds. What is no number counts as the end of its side.
        p50: Likewise.
        p90: Likewise.
    """
    middle = _bounded(p50, LENGTH_MAX)
    return Lasts(
        p10=Duration(min(_bounded(p10, 0), middle)),
        p50=Duration(middle),
        p90=Duration(max(_bounded(p90, LENGTH_MAX), middle)),
    )


def around(middle: float, sigma: float) -> Lasts:
    """Return a span around a length.

    Args:
        middle: P50, in nanoseconds.
        sigma: The standard deviation of its logarithm.
    """
    factor = math.exp(min(Z * sigma, LOG_MAX))
    return span(middle / factor, middle, middle * factor)


def at(lasts: Lasts, chance: float) -> float:
    """Return the length below which it is with a chance.

    Args:
        lasts: A span.
        chance: Between 0 and 1, without both.
    """
    return at_z(lasts, _NORMAL.inv_cdf(chance))


def at_z(lasts: Lasts, z: float) -> float:
    """Return the length so many widths from P50.

    Args:
        lasts: A span.
        z: As of the standard normal distribution.
    """
    low, high = _widths(lasts)
    middle = max(lasts.p50, 1)
    return middle * math.exp(max(min(z * (high if z > 0 else low), LOG_MAX), -LOG_MAX))


def chance_below(lasts: Lasts, length: int) -> float:
    """Return the chance that it is less than a length.

    Args:
        lasts: A span.
        length: Nanoseconds.
    """
    apart = math.log(max(length, 1) / max(lasts.p50, 1))
    low, high = _widths(lasts)
    width = high if apart > 0 else low
    if width <= 0:
        return 0.5 if apart == 0 else float(apart > 0)
    return _NORMAL.cdf(apart / width)


def widened(lasts: Lasts, factor: float) -> Lasts:
    """Return a span whose ends are farther from P50 by a factor.

    Args:
        lasts: A span.
        factor: 1 or more: on logarithms.
    """
    if factor == 1:
        return lasts
    return span(at_z(lasts, -Z * factor), lasts.p50, at_z(lasts, Z * factor))


def more(lasts: Lasts, least: int, middle: int, most: int) -> Lasts:
    """Return a span with something added to each of the three, which may be below 0."""
    return span(lasts.p10 + least, lasts.p50 + middle, lasts.p90 + most)


def then(one: Lasts, other: Lasts) -> Lasts:
    """Return how long two things take, one after the other: their lengths are independent.

    Args:
        one: The first.
        other: The second.
    """
    middle = one.p50 + other.p50
    early = math.hypot(one.p50 - one.p10, other.p50 - other.p10)
    late = math.hypot(one.p90 - one.p50, other.p90 - other.p50)
    return span(middle - early, middle, middle + late)


def left(lasts: Lasts, ran: int) -> Lasts:
    """Return what is left of a length of which so much is over: given that it is not over yet.

    Args:
        lasts: All of it.
        ran: Nanoseconds.
    """
    if ran <= 0:
        return lasts
    over = chance_below(lasts, ran)
    if 1 - over < TAIL:
        # The estimate was wrong: as long again is as likely as not.
        return span(ran / 10, ran, 10.0 * ran)
    ends = (at(lasts, _inside(over + (1 - over) * part)) for part in (0.1, 0.5, 0.9))
    p10, p50, p90 = (max(end - ran, 0.0) for end in ends)
    return span(p10, p50, p90)


def _inside(chance: float) -> float:
    return min(max(chance, 1e-12), 1 - 1e-12)


def _widths(lasts: Lasts) -> tuple[float, float]:
    """Return the standard deviations of the logarithm below P50 and above it."""
    middle = max(lasts.p50, 1)
    low = math.log(middle / max(lasts.p10, 1)) / Z
    high = math.log(max(lasts.p90, 1) / middle) / Z
    return max(low, 0.0), max(high, 0.0)


def _bounded(value: float, otherwise: int) -> int:
    if math.isnan(value):
        return otherwise
    return round(min(max(value, 0.0), LENGTH_MAX))
