"""Judge whether a trial made jobs faster: a statistical test that allows for noise.

    before: mean, spread, samples --+
    after: samples since the change -+-> judge --> kept, undone, or not yet

A sample is the rate of a job over a stretch of its mini-batches; stretches are adjacent. The result
of a trial is one number, the sum over its jobs of rate / reference rate. The trial is a success if
that is more than a bound:

    packing           sum of rate / rate alone > what turns on the same GPUs give (`slices_give`)
    migration, growth rate / rate before > what pays for its pause in the time left (`pays`)

The test is sequential with a bounded number of looks. The probability of a false verdict is spent
over the looks (O'Brien and Fleming, 1979: least in the first). So a job that is not better is
called better, and one that is not worse is called worse, in at most FALSE_MILLI thousandths of all
trials each. Neighbouring mini-batches of one job are correlated: each look cuts its window into the
same few batches (batch means), which become longer and so less correlated with every look, and the
remaining correlation of neighbouring samples widens the interval. With a correlation that falls to
1/e in 5 s the errors stay below twice the bound; with one that lasts for minutes they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt, sqrt
from typing import NamedTuple

from skep.units import Duration, seconds

SAMPLE = seconds(2.0)
"""The shortest stretch that is a sample: it evens out that reports cut off at whole seconds."""

BATCHES = 8
"""Parts of a window whose means are taken as independent: seven degrees of freedom."""

LOOKS = ((4, 22.2), (8, 6.32), (16, 5.41), (32, 4.3), (64, 3.89), (128, 3.6))
"""After how many samples of each job a verdict is tried, and how many standard errors it needs.

These are the quantiles of Student's t for seven degrees of freedom (three at the first look) beyond
which 0.01, 0.02, 0.05, 0.18, 0.3 and 0.44 per cent lie: 1 per cent in all."""

KEPT_FROM = 16
"""The samples that are needed to keep a change. A harmful change is undone sooner: it costs while
it lasts, and jobs with slow mini-batches take minutes for a look."""

FALSE_MILLI = 10
"""Thousandths of trials exactly at the bound that may be called a success, and as many a
failure."""

LIKENESS_MAX = 0.95
"""Beyond this correlation samples cannot be distinguished from a trend."""

SAMPLES_MAX = LOOKS[-1][0]
assert all(samples % min(samples, BATCHES) == 0 for samples, _ in LOOKS), "batches are alike"


class Baseline(NamedTuple):
    """The reference of a job's rate: its mean, and how certain that is.

    `spread` is the standard deviation of `samples` samples. With fewer than BATCHES samples it is
    not known well enough: such a mean is assumed to be as uncertain as the rates after the change.
    """

    mean: float
    spread: float = 0.0
    samples: int = 0


class Tried(NamedTuple):
    """One job of a trial: its reference, and its samples since the change."""

    baseline: Baseline
    rates: Sequence[float]


class Judgement(NamedTuple):
    """The result of a look: the sum, its interval, and the verdict (None: not yet)."""

    kept: bool | None
    sum: float
    low: float
    high: float


def judge(jobs: Sequence[Tried], needed: float) -> Judgement | None:
    """Return the result of a trial at its latest look; None before the first one.

    Samples beyond the look are left out, so the result does not depend on when it is asked for. The
    first look with a verdict decides the trial.

    Args:
        jobs: The jobs of the trial; their samples are in the unit of their references.
        needed: The bound that the sum of rate / reference has to exceed.
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
    """Return the sum of rate / rate alone of jobs that take turns: 1 less the cost of switching.

    Args:
        switch: The time that one turn loses.
        slice_ns: How long a turn lasts.
    """
    return max(0.0, 1.0 - switch / slice_ns) if slice_ns > 0 else 0.0


def pays(pause: Duration, remaining: Duration | None) -> float:
    """Return by what factor a job must be faster for a pause to pay in the time it has left.

    With work w left and rates a and b, the condition is w/b + pause < w/a.

    Args:
        pause: How long the change stops the job.
        remaining: The time left at the rate before; None: unknown.

    Returns:
        The factor; 1.0 if the time left is unknown, and infinity if the pause is at least as
        long as it.
    """
    if remaining is None:
        return 1.0
    return remaining / (remaining - pause) if pause < remaining else float("inf")


def spread_milli(rates: Sequence[int]) -> int:
    """Return the standard deviation of rates, in their unit; 0 for fewer than two."""
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
        mean, own_variance = _mean(job.rates[:length])
        ratio, own_variance = mean / base.mean, own_variance / base.mean**2
        if base.samples >= BATCHES:
            own_variance += ratio**2 * (base.spread / base.mean) ** 2 / base.samples
        else:
            own_variance *= 2.0
        total, variance = total + ratio, variance + own_variance
    margin = errors * sqrt(variance)
    low, high = total - margin, total + margin
    kept = True if low > needed else False if high < needed else None
    return Judgement(kept, total, low, high)


def _mean(rates: Sequence[float]) -> tuple[float, float]:
    """Return the mean of adjacent samples, and the variance of that mean."""
    count = len(rates)
    mean, batches = sum(rates) / count, min(count, BATCHES)
    each = count // batches
    means = [sum(rates[at : at + each]) / each for at in range(0, count, each)]
    between = sum((part - mean) ** 2 for part in means) / (batches - 1) / batches
    deviations = [rate - mean for rate in rates]
    squares = sum(value * value for value in deviations)
    if squares <= 0.0:
        return mean, between
    products = sum(first * second for first, second in pairwise(deviations))
    correlation = products / squares
    # The estimate of a correlation from few samples is too low: Kendall (1954).
    correlation = min(max(correlation + (1.0 + 4.0 * correlation) / count, 0.0), LIKENESS_MAX)
    within = squares / (count - 1) / count * (1.0 + correlation) / (1.0 - correlation)
    return mean, max(between, within)
