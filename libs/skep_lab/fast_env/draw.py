"""Random numbers and random jobs inside an environment's arrays, with bursts and wrong predictions.

Equal seeds give equal jobs on every machine. Numbers come from L'Ecuyer's combined generator
("Efficient and portable combined random number generators", CACM 31(6), 1988): two multiplicative
congruential generators, period 2.3e18, in integers below 2^63, so that compiled and interpreted
kernels agree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from skep_lab.fast_env.arrays import JOB, NEVER, NODE, NUM, PHASE, WHAT, Floats, Ints, State
from skep_lab.fast_env.compiled import compiled, inner

SECOND = 1_000_000_000
A_MUL, A_MOD = 40014, 2147483563
B_MUL, B_MOD = 40692, 2147483399
WARM_UP = 8
"""Numbers that are thrown away after a seed: seeds beside one another begin alike."""


class Workload(NamedTuple):
    """The distribution of an environment's jobs, as arrays for kernels. Times are seconds."""

    scalars: Floats
    """See `SCALARS`."""
    sizes: Ints
    """GPUs of a job."""
    size_weights: Floats
    models: Floats
    """Weights of the models: rows of the table of speeds."""


class _Scalars(NamedTuple):
    interval: int = 0
    """Mean seconds between arrivals."""
    interval_sigma: int = 1
    """Deviation of the logarithm of an interval; 0: intervals are exponential."""
    median: int = 2
    """Median seconds of a job at speed 1; log-normal."""
    sigma: int = 3
    shortest: int = 4
    longest: int = 5
    burst: int = 6
    """How many times as fast jobs arrive in a burst; 1: there are none."""
    burst_part: int = 7
    """The part of the jobs that come in bursts."""
    burst_jobs: int = 8
    """Mean number of jobs of a burst."""
    told_sigma: int = 9
    """Error of predictions: deviation of the logarithm of predicted over real run time."""
    told_after: int = 10
    """Seconds after a job's submission at which its prediction comes."""
    fault_every: int = 11
    """Mean seconds between two faults, each of one job that trains; 0: there are none."""
    split: int = 12
    """1: every worker has one GPU, so that any job may spread; 0: as few workers as nodes allow."""


SCALARS = _Scalars()


def scalars_of(options: NamedTuple, **more: float) -> Floats:
    """Return the scalars of a workload.

    Args:
        options: Its fields `x` or `x_s` give the scalar `x`.
        more: Scalars that it has no field for; others are 0.
    """
    given, made = {**options._asdict(), **more}, np.zeros(len(SCALARS))
    for field, at in SCALARS._asdict().items():
        made[at] = given.get(field, given.get(f"{field}_s", 0.0))
    return made


@inner
def uniform(num: Ints, b: int) -> float:
    """Return the next random number of an environment, above 0 and below 1."""
    first = num[b, NUM.rng_a] * A_MUL % A_MOD
    second = num[b, NUM.rng_b] * B_MUL % B_MOD
    num[b, NUM.rng_a], num[b, NUM.rng_b] = first, second
    mixed = (first - second) % (A_MOD - 1)
    return float((mixed + (A_MOD - 1 if mixed == 0 else 0)) / A_MOD)


@inner
def seed_with(num: Ints, b: int, seed: int) -> None:
    """Begin the random numbers of an environment anew."""
    num[b, NUM.rng_a] = seed % (A_MOD - 1) + 1
    num[b, NUM.rng_b] = (seed // (A_MOD - 1) * 7919 + seed * 104729) % (B_MOD - 1) + 1
    for _ in range(WARM_UP):
        uniform(num, b)


@inner
def normal(num: Ints, b: int) -> float:
    """Return a normal random number (Box and Muller, 1958)."""
    radius = math.sqrt(-2.0 * math.log(uniform(num, b)))
    return radius * math.cos(2.0 * math.pi * uniform(num, b))


@inner
def choose(num: Ints, b: int, weights: Floats) -> int:
    """Return a random index by weight."""
    total = 0.0
    for weight in weights:
        total += weight
    left = uniform(num, b) * total
    for i in range(len(weights)):
        left -= weights[i]
        if left < 0.0:
            return i
    return len(weights) - 1


@inner
def next_fault(num: Ints, b: int) -> int:
    """Return after how many nanoseconds the next fault comes."""
    return int(-math.log(uniform(num, b)) * num[b, NUM.fault_every]) + 1


@inner
def _interval(num: Ints, b: int, w: Workload) -> float:
    """Return seconds to the next arrival, but for bursts; the mean is `interval`."""
    mean, sigma = w.scalars[SCALARS.interval], w.scalars[SCALARS.interval_sigma]
    if sigma == 0.0:
        return float(-math.log(uniform(num, b)) * mean)
    return float(mean * math.exp(sigma * normal(num, b) - sigma * sigma / 2.0))


@inner
def gap(num: Ints, b: int, w: Workload, inside: bool) -> float:
    """Return seconds to the next arrival, in a burst (`inside`) or between two.

    In a burst jobs come `burst` times as fast; the other intervals are longer, so that the mean
    stays the same.
    """
    burst, part = w.scalars[SCALARS.burst], w.scalars[SCALARS.burst_part]
    factor = 1.0 / burst if inside else (1.0 - part / burst) / (1.0 - part)
    return float(_interval(num, b, w) * factor)


@inner
def goes_on(num: Ints, b: int, w: Workload, inside: bool) -> bool:
    """Return whether the next job comes in a burst.

    A burst begins with the probability that makes `burst_part` of the jobs come in bursts of
    `burst_jobs` on average.
    """
    part, ends = w.scalars[SCALARS.burst_part], 1.0 / max(w.scalars[SCALARS.burst_jobs], 1.0)
    if inside:
        return bool(uniform(num, b) >= ends)
    return bool(uniform(num, b) < ends * part / (1.0 - part))


@inner
def run_time(num: Ints, b: int, w: Workload) -> float:
    """Return the seconds of a job at speed 1."""
    run = w.scalars[SCALARS.median] * math.exp(w.scalars[SCALARS.sigma] * normal(num, b))
    return float(min(max(run, w.scalars[SCALARS.shortest]), w.scalars[SCALARS.longest]))


@inner
def _clear(s: State, b: int) -> None:
    """Have nothing happen yet in an environment, with every node free."""
    for n in range(s.nodes.shape[1]):
        s.nodes[b, n, NODE.free] = s.nodes[b, n, NODE.size]
        s.nodes[b, n, NODE.stamp], s.nodes[b, n, NODE.number] = n, -1
        for i in range(s.until.shape[2]):
            s.until[b, n, i] = 0
    gpus = 0
    for n in range(s.nodes.shape[1]):
        gpus += s.nodes[b, n, NODE.size]
    for i in range(s.num.shape[1]):
        if i not in (NUM.rng_a, NUM.rng_b):
            s.num[b, i] = 0
    s.num[b, NUM.stamp], s.num[b, NUM.gpus_free] = s.nodes.shape[1], gpus
    s.num[b, NUM.open] = s.jobs.shape[1]


@inner
def draw_jobs(s: State, b: int, w: Workload) -> None:
    """Fill an environment with random jobs; its first fault is drawn too."""
    _clear(s, b)
    largest = 0
    for n in range(s.nodes.shape[1]):
        largest = max(largest, s.nodes[b, n, NODE.size])
    at, inside = 0.0, False
    for j in range(s.jobs.shape[1]):
        for i in range(s.jobs.shape[2]):
            s.jobs[b, j, i] = 0
        s.rate[b, j] = 0.0
        run = run_time(s.num, b, w)
        gpus = w.sizes[choose(s.num, b, w.size_weights)]
        each = 1
        if w.scalars[SCALARS.split] == 0.0:
            each = min(gpus, largest)
            while gpus % each:
                each -= 1
        error = math.exp(w.scalars[SCALARS.told_sigma] * normal(s.num, b))
        s.jobs[b, j, JOB.at] = int(at) * SECOND
        s.jobs[b, j, JOB.run] = int(run) * SECOND
        s.jobs[b, j, JOB.told] = max(int(run * error), 1) * SECOND
        s.jobs[b, j, JOB.told_at] = int(w.scalars[SCALARS.told_after]) * SECOND
        s.jobs[b, j, JOB.workers] = s.jobs[b, j, JOB.size_now] = gpus // each
        s.jobs[b, j, JOB.each] = each
        s.jobs[b, j, JOB.model] = choose(s.num, b, w.models)
        s.jobs[b, j, JOB.kinds] = -1
        s.jobs[b, j, JOB.first] = s.jobs[b, j, JOB.ended] = NEVER
        s.jobs[b, j, JOB.phase] = PHASE.to_come
        inside = goes_on(s.num, b, w, inside)
        at += gap(s.num, b, w, inside)
    s.num[b, NUM.fault_every] = int(w.scalars[SCALARS.fault_every] * SECOND)
    if s.num[b, NUM.fault_every] > 0:
        s.num[b, NUM.events] = 1
        s.heap[b, 0] = np.array([next_fault(s.num, b), 0, WHAT.fault, -1, 0])


@compiled
def draw(s: State, w: Workload, seeds: Ints) -> None:
    """Fill every environment of a batch with random jobs of its seed."""
    for b in range(s.num.shape[0]):
        seed_with(s.num, b, seeds[b])
        draw_jobs(s, b, w)
