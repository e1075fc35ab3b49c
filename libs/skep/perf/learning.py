"""Predict a learning curve: the final value of a trial of a search, from its values so far.

A power law, value = a - b * step ** -c, is fitted by least squares with higher weights for later
points. It is one of the families that Domhan et al. (IJCAI'15) combine, whose method Gandiva uses
(section 6.2). Curves of real trials break every law, so the law is not trusted further than this:

- it must rise, and never predicts less than the current value of the trial;
- it never predicts more than the trial has gained so far: a curve at most doubles its gain;
- with fewer than three points there is no prediction;
- while its first points are among its latest, the gain is as uncertain as it is large.

Values here are signed so that more is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

POINTS_MIN = 3
"""The points that make a curve: any law fits two."""

EXPONENTS = (0.25, 0.5, 1.0, 2.0)
"""Exponents to fit, which say how fast a curve flattens; each is twice the one before."""

DOUBT = 0.25
"""The part of the predicted gain beyond the current value that counts as one deviation."""


class Promise(NamedTuple):
    """The predicted value of a trial, and its deviation."""

    value: float
    spread: float

    def chance(self, target: float) -> float:
        """Return the probability of reaching `target`, under a normal distribution."""
        if self.spread <= 0.0:
            return 1.0 if self.value >= target else 0.0
        return 0.5 * (1.0 + math.erf((self.value - target) / (self.spread * math.sqrt(2.0))))


def promise(steps: Sequence[int], values: Sequence[float], horizon: int) -> Promise | None:
    """Return the predicted value at mini-batch `horizon`, or None if there are too few points.

    Args:
        steps: Mini-batches of the points, ascending and above 0.
        values: The values at these mini-batches; more is better.
        horizon: The mini-batch to predict for.

    Returns:
        A value between the current level and as much above it as the curve has risen.
    """
    if len(steps) < POINTS_MIN:
        return None
    now, began = _level(values[-POINTS_MIN:]), _level(values[:POINTS_MIN])
    last = steps[-1]
    if horizon <= last:
        return Promise(now, _deviation(values[-len(values) // 2 :]))
    best: tuple[float, float] | None = None
    for exponent in EXPONENTS:
        found = _fit(
            [(step / last) ** -exponent for step in steps], values, (horizon / last) ** -exponent
        )
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return Promise(now, _deviation(values[-len(values) // 2 :]))
    error, ahead = best
    gained = max(0.0, now - began)
    value = min(max(ahead, now), now + gained)
    spread = math.sqrt(max(0.0, error)) + DOUBT * (value - now)
    if len(values) < 2 * POINTS_MIN:
        # Both levels are medians of the same points: they hide the gain of a curve that rises fast.
        spread += max(0.0, values[-1] - values[0] - gained)
    return Promise(value, spread)


def _fit(
    powers: Sequence[float], values: Sequence[float], ahead: float
) -> tuple[float, float] | None:
    """Return the mean square error of value = a - b * power and its value ahead; None: b <= 0."""
    weights = range(1, len(values) + 1)
    total = sum(weights)
    x = sum(w * power for w, power in zip(weights, powers, strict=True)) / total
    y = sum(w * value for w, value in zip(weights, values, strict=True)) / total
    rows = list(zip(weights, powers, values, strict=True))
    across = sum(w * (power - x) ** 2 for w, power, _ in rows)
    both = sum(w * (power - x) * (value - y) for w, power, value in rows)
    if across <= 0.0 or not both < 0.0:
        return None
    slope = both / across
    error = sum(w * (value - y - slope * (power - x)) ** 2 for w, power, value in rows) / total
    found = y + slope * (ahead - x)
    return (error, found) if math.isfinite(found) and math.isfinite(error) else None


def _level(values: Sequence[float]) -> float:
    """Return the median: a single outlier does not change it."""
    return sorted(values)[len(values) // 2]


def _deviation(values: Sequence[float]) -> float:
    middle = _level(values)
    return _level([abs(value - middle) for value in values]) * 1.4826
