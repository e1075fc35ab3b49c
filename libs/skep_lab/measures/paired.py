"""Paired differences between two schedulers that had the same workloads, and how sure they are.

Seeds differ more from one another than schedulers do: a workload that is hard for one is hard for
the other. So the difference is taken seed by seed, and only its spread counts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import msgspec

from skep_lab.measures.stat import quantile

PAIRS_MIN = 5
"""With fewer pairs an interval would be much too narrow: none is told."""
RESAMPLES = 2000
DRAWS_MAX = 400_000
"""Of all resamples together; beyond 200 pairs there are fewer of them, each of more draws."""
CONFIDENCE = 0.95


class Paired(msgspec.Struct, frozen=True):
    """The mean of paired differences, and its bootstrap interval; None: too few pairs for one."""

    mean: float
    low: float | None
    high: float | None
    pairs: int
    base: float
    """The mean of what is compared with, over the same pairs."""

    @property
    def sure(self) -> bool:
        """Return whether the interval is on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Paired:
    """Return how much more the second values are than the first ones, pair by pair.

    The interval is the percentile bootstrap of the mean (Efron and Tibshirani, An Introduction to
    the Bootstrap, 1993, section 13.3), at 95 %. Equal arguments give equal results.

    Args:
        before: What is compared with, by seed; one at least.
        after: The others, for the same seeds.
        seed: Of the resamples.
    """
    differences = [late - early for early, late in zip(before, after, strict=True)]
    count = len(differences)
    mean, base = sum(differences) / count, sum(before) / count
    if count < PAIRS_MIN:
        return Paired(mean, None, None, count, base)
    means = sorted(
        sum(differences[place] for place in chosen) / count for chosen in _resamples(count, seed)
    )
    rest = (1 - CONFIDENCE) / 2
    return Paired(mean, quantile(means, rest), quantile(means, 1 - rest), count, base)


@cache
def _resamples(count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return the places of each resample: the same ones for every measure of a comparison."""
    rng = random.Random(f"bootstrap {seed} {count}")
    each = range(count)
    resamples = min(RESAMPLES, DRAWS_MAX // count)
    return tuple(tuple(rng.choices(each, k=count)) for _ in range(resamples))
