"""Whether a change that was tried made jobs faster: a test that respects noise.

    before: mean, spread, samples --+
    after: samples since the change -+-> judge --> kept, undone, or not yet

A sample is the rate of a job over a stretch of its mini-batches; stretches follow one another. What
a trial comes to is one number, the sum over its jobs of rate / what the rate is compared with, and
it is a success if that is more than a bound:

    packing           sum of rate / rate alone > what turns on the same GPUs give (`slices_give`)
    migration, growth rate / rate before > what pays for its pause in the time left (`pays`)

The test is sequential with a bounded number of looks. The chance of a false verdict is spent over
the looks (O'Brien and Fleming, 1979: least in the first), so a job that is better by nothing is
called better, and one that is worse by nothing worse, in at most FALSE_MILLI thousandths of all
trials each. Mini-batches of one job are alike their neighbours: each look cuts its window into the
same few batches (batch means), which become longer and so less alike with every look, and what
likeness of neighbouring samples is left widens the interval. With a correlation that falls to 1/e
in 5 s the errors stay below twice the bound; with one that lasts for minutes they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt, sqrt
from typing import NamedTuple

from skep.units import Duration, seconds

SAMPLE = seconds(2.0)
"""The shortest stretch that is a sample: it evens out what a report's second cuts off."""

BATCHES = 8
"""Parts of a window whose means are taken as independent: seven degrees of freedom."""

LOOKS = ((4, 22.2), (8, 6.32), (16, 5.41), (32, 4.3), (64, 3.89), (128, 3.6))
"""After how many samples of each job a verdict is tried, and how many standard errors it takes.

The quantiles of Student's t for seven degrees of freedom (three at the first look) that 0.01, 0.02,
0.05, 0.18, 0.3 and 0.44 per cent lie beyond: 1 per cent in all.
"""

KEPT_FROM = 16
"""The samples that it takes to keep something. What hurts is undone sooner: it costs while it
lasts, and jobs of slow mini-batches take minutes for a look."""

FALSE_MILLI = 10
"""Thousandths of trials at the very bound that may be called a success, and as many a failure."""

LIKENESS_MAX = 0.95
"""Beyond it likeness cannot be told from a trend."""

SAMPLES_MAX = LOOKS[-1][0]
assert all(samples % min(samples, BATCHES) == 0 for samples, _ in LOOKS), "batches are alike"


class Baseline(NamedTuple):
    """What a job's rate is compared with: its mean, and how sure that is.

    `spread` is the standard deviation of `samples` samples. Of fewer than BATCHES it is not known
    enough: such a mean is taken to be as uncertain as what is compared with it.
    """

    mean: float
    spread: float = 0.0
    samples: int = 0


class Tried(NamedTuple):
    """One job of a trial: what it is compared with, and its samples since the change."""

    baseline: Baseline
    rates: Sequence[float]


class Judgement(NamedTuple):
    """What a look came to: the sum, its interval, and the verdict; None: not yet."""

    kept: bool | None
    sum: float
    low: float
    high: float


def judge(jobs: Sequence[Tried], needed: float) -> Judgement | None:
    """Return what a trial came to at its latest look; None before the first one.

    Every job's samples beyond the look are left out, so that it does not matter when it is asked.
    The verdict of the first look that has one is the trial's.
    """
    samples = min((len(job.rates) for job in jobs), default=0)
    found = None
    for length, errors in LOOKS:
        if length > samples:
            break
        found = _look(jobs, needed, length, errors)
        if found.kept and length < KEPT_FROM:
            found = found._replace(kept=None)
        if found.kept is not None:
            return found
    return found


def slices_give(switch: Duration, slice_ns: Duration) -> float:
    """Return the sum of rate / rate alone of jobs that take turns: 1 less what switching costs.

    `switch` is what one turn loses, `slice_ns` how long it lasts.
    """
    return max(0.0, 1.0 - switch / slice_ns) if slice_ns > 0 else 0.0


def pays(pause: Duration, remaining: Duration | None) -> float:
    """Return by what factor a job must be faster for a pause to pay in the time it has left.

    `remaining` is at its rate before. With w of work left and rates a and b, w/b + pause < w/a.
    Nothing pays for a pause as long as the rest of the job: infinity. Unknown: anything faster.
    """
    if remaining is None:
        return 1.0
    return remaining / (remaining - pause) if pause < remaining else float("inf")


def spread_milli(rates: Sequence[int]) -> int:
    """Return the standard deviation of rates, in their unit; 0 of fewer than two."""
    if len(rates) < 2:
        return 0
    count, total = len(rates), sum(rates)
    squares = count * sum(rate * rate for rate in rates) - total * total
    return isqrt(squares // (count * (count - 1)))


def _look(jobs: Sequence[Tried], needed: float, length: int, errors: float) -> Judgement:
    total = variance = 0.0
    for job in jobs:
        base = job.baseline
        if base.mean <= 0:
            return Judgement(None, 0.0, 0.0, float("inf"))  # Nothing to compare with.
        mean, own = _mean(job.rates[:length])
        ratio, own = mean / base.mean, own / base.mean**2
        if base.samples >= BATCHES:
            own += ratio**2 * (base.spread / base.mean) ** 2 / base.samples
        else:
            own *= 2.0
        total, variance = total + ratio, variance + own
    wide = errors * sqrt(variance)
    low, high = total - wide, total + wide
    kept = True if low > needed else False if high < needed else None
    return Judgement(kept, total, low, high)


def _mean(rates: Sequence[float]) -> tuple[float, float]:
    """Return the mean of samples that follow one another, and the variance of that mean."""
    count = len(rates)
    mean, batches = sum(rates) / count, min(count, BATCHES)
    each = count // batches
    means = [sum(rates[at : at + each]) / each for at in range(0, count, each)]
    between = sum((part - mean) ** 2 for part in means) / (batches - 1) / batches
    apart = [rate - mean for rate in rates]
    squares = sum(value * value for value in apart)
    if squares <= 0.0:
        return mean, between
    along = sum(first * second for first, second in pairwise(apart))
    alike = along / squares
    # The estimate from few samples is too low: Kendall (1954).
    alike = min(max(alike + (1.0 + 4.0 * alike) / count, 0.0), LIKENESS_MAX)
    within = squares / (count - 1) / count * (1.0 + alike) / (1.0 - alike)
    return mean, max(between, within)
