"""Random draws that generators of traces share: lengths, arrivals, and the order of jobs."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from skep.units import Duration, seconds
from skep_lab.traces.job import RowProblem, Trace, TraceJob

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_DAYS = 7


class Lengths(NamedTuple):
    """A log-normal distribution of run times in seconds."""

    median_s: float
    sigma: float

    @property
    def mean_s(self) -> float:
        """Return the mean: median * exp(sigma^2 / 2)."""
        return self.median_s * math.exp(self.sigma**2 / 2)

    def draw(self, rng: random.Random) -> float:
        """Return one run time."""
        return self.median_s * rng.lognormvariate(0.0, self.sigma)


def by_mean(median_s: float, mean_s: float) -> Lengths:
    """Return the log-normal distribution with a median and a mean, in seconds.

    Args:
        median_s: The median.
        mean_s: The mean, which is larger.
    """
    return Lengths(median_s, math.sqrt(2 * math.log(mean_s / median_s)))


PHILLY = {
    1: by_mean(1117, 8301),
    2: Lengths(92, 3.27),
    4: by_mean(17388, 78762),
    8: by_mean(23683, 129775),
    16: by_mean(21137, 95326),
}
"""Run times in Microsoft's Philly trace by GPUs of a job (as published with AdaptDL: 82,247 jobs).

Median and mean are those of the trace, but for 2 GPUs: there two modes (three quarters end within
76 s, a tenth run for 20 h) give logarithms of mean 4.52 and deviation 3.27, which is what stands
here. 4 stands for 3 and 4 GPUs, 8 for 5 to 8, 16 for all beyond.
"""

PHILLY_HOURS = (
    1.37,
    1.01,
    1.19,
    1.12,
    0.53,
    1.15,
    1.84,
    2.19,
    1.12,
    0.95,
    0.88,
    0.75,
    0.65,
    0.64,
    0.49,
    0.59,
    0.95,
    0.69,
    0.83,
    0.68,
    1.12,
    0.95,
    1.24,
    1.09,
)
"""Submissions of Philly in each hour of the day, October and November 2017; 1 is the mean."""

PHILLY_WEEK = (0.58, 0.88, 1.05, 1.19, 1.33, 1.33, 0.64)
"""Submissions of Philly on each day of the week, the same months, Sunday first; 1 is the mean."""

PHILLY_DAY_SIGMA = 0.8
"""How much a tenant's days differ: the deviation of the logarithm of its submissions in a day.

The median of Philly's virtual clusters that submitted on all but two days or more of October and
November 2017; they range from 0.2 to 1.8.
"""


def size_class(gpus: int) -> int:
    """Return the key of PHILLY for a job of so many GPUs."""
    return next((size for size in (1, 2, 4, 8) if gpus <= size), 16)


class Calendar:
    """Arrival times of one tenant over some days: some days are busy, and nights are not.

    A day's weight is log-normal, times that of its day of the week; hours within it follow Philly.
    """

    def __init__(self, rng: random.Random, days: int, sigma: float = PHILLY_DAY_SIGMA) -> None:
        self._rng = rng
        weights = [
            rng.lognormvariate(0.0, sigma) * PHILLY_WEEK[day % WEEK_DAYS] for day in range(days)
        ]
        self._days = list(accumulate(weights))
        self._hours = list(accumulate(PHILLY_HOURS))

    def draw(self) -> float:
        """Return seconds since the beginning of the first day, below the end of the last."""
        day = self._pick(self._days)
        hour = self._pick(self._hours)
        return day * DAY_S + (hour + self._rng.random()) * HOUR_S

    def _pick(self, sums: list[float]) -> int:
        return min(bisect_right(sums, self._rng.random() * sums[-1]), len(sums) - 1)


def scaled_to(work: float, sizes: Sequence[int], lengths: Sequence[float], most: float) -> float:
    """Return the factor for the lengths of jobs so that they have so much work.

    It solves sum(size * min(factor * length, most)) = work. If even the longest jobs cannot reach
    that, the factor is the one at which all of them have the length `most`.

    Args:
        work: GPU-seconds.
        sizes: The GPUs of each job.
        lengths: The seconds of each job.
        most: The largest number of seconds of a job.
    """
    order = sorted(range(len(sizes)), key=lambda index: -lengths[index])
    capped, free = 0.0, math.fsum(sizes[i] * lengths[i] for i in order)
    for index in order:
        factor = (work - capped) / free if free > 0 else 0.0
        if factor * lengths[index] <= most:
            return factor
        capped += sizes[index] * most
        free -= sizes[index] * lengths[index]
    return most / lengths[order[-1]]


def in_order(name: str, jobs: list[TraceJob], prefix: str, notes: Sequence[str]) -> Trace:
    """Return a trace of jobs, named by their place in the order of submission.

    Jobs of the same instant keep the order in which they were drawn.

    Args:
        name: The name of the trace.
        jobs: The jobs; sorted by the call.
        prefix: The beginning of the jobs' names.
        notes: Notes of the trace.
    """
    jobs.sort(key=lambda job: job.at)
    named = tuple(
        msgspec.structs.replace(job, id=f"{prefix}{number}") for number, job in enumerate(jobs, 1)
    )
    return Trace(name=name, jobs=named, notes=tuple(RowProblem(0, text) for text in notes))


def whole_seconds(value: float) -> Duration:
    """Return a length rounded to seconds, at least one."""
    return seconds(max(1, round(value)))


def require(true: bool, text: str) -> None:
    """Check an option.

    Args:
        true: Whether it is valid.
        text: The message if it is not.

    Raises:
        ValueError: It is not valid.
    """
    if not true:
        raise ValueError(text)


Drawer = Callable[[int], float]
"""Returns the run time in seconds of a job with so many GPUs."""
