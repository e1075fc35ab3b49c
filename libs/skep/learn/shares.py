"""How many workers each job would have if GPUs went to where they gain the most.

It is the rule `look-ahead` in arrays, with its power 0. Every waiting job first gets its fewest
workers, the shortest first; running ones that can change keep their fewest. Then a job that is left
with time T at a size counts -log T: steps of the concave envelope of each job's sizes are taken by
what they add per GPU, until the GPUs are used up. A model sees how far each candidate is from this
share, and what growing adds over what the last GPU adds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats, Integers
from skep.learn.features import Times, queued

SOON = 60.0
"""Seconds that are added to what is left: a job that is about to end does not take everything."""
LONGEST = 100.0
"""Beyond the logarithm of any time."""
FIRST = 1e12
"""What the first workers of a waiting job add, over its remaining GPU-seconds: more than any step
of a job that has some."""


class Shares(NamedTuple):
    """Shares of jobs, `[.., n]`."""

    workers: Floats
    """0: it had better wait."""
    price: Floats
    """What the last GPU that is shared out adds; 0: there are enough."""

    def at(self, index: Any) -> Shares:
        """Return some of them, or with other axes."""
        return Shares(self.workers[index], self.price[index])


def share_out(raw: Floats, cluster: Floats, when: Times) -> Shares:
    """Return the shares of jobs.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters, `[.., CLUSTER]`.
        when: The times of the jobs.
    """
    waits, workers = queued(raw), raw[..., c.WORKERS]
    if not workers.size:
        return Shares(workers, workers)
    each = np.maximum(raw[..., c.EACH], 1.0)
    gpus = workers * each
    part = when.known & (waits | ((raw[..., c.PHASE] == c.RUNNING) & (raw[..., c.RESIZABLE] > 0)))
    several = part & (raw[..., c.SIZE + 1] > 0)
    single = part & waits & ~several
    slopes, takes = np.zeros((2, *part.shape, c.SIZES))
    takes[..., 0] = gpus * single
    slopes[..., 0] = single * FIRST / ((when.remaining + SOON) * np.maximum(gpus, 1.0))
    base = np.where(part & ~waits, workers, 0.0)
    at = np.nonzero(several)
    if len(at[0]):
        slopes[at], takes[at], base[at] = _steps(raw[at], when.remaining[at], waits[at])
    given = ((workers - base) * each * (part & ~waits)).sum(-1)
    budget = np.reshape(cluster[..., c.FREE] + given, -1).tolist()
    made = np.ascontiguousarray(np.where(part, base, workers))
    price = np.zeros((*part.shape[:-1], 1))
    n = part.shape[-1]
    every = (slopes.reshape(-1, n * c.SIZES), takes.reshape(-1, n * c.SIZES))
    for place, (slope, take) in enumerate(zip(*every, strict=True)):
        chosen, price.reshape(-1)[place] = _fill(slope, take, budget[place])
        more = np.bincount(chosen // c.SIZES, take[chosen], n)
        made.reshape(-1, n)[place] += more / each.reshape(-1, n)[place]
    return Shares(made, np.broadcast_to(price, made.shape))


def _fill(slopes: Floats, takes: Floats, budget: float) -> tuple[Integers, float]:
    """Return the steps that are taken, the best first, and what the last of them adds per GPU.

    That is 0 if all are taken, or none.
    """
    chosen = np.flatnonzero(slopes > 0)
    most = int(max(budget, 0.0)) + 1  # Every step takes a GPU: more are not looked at.
    if len(chosen) > most:
        worths = slopes[chosen]
        chosen = chosen[worths >= np.partition(worths, -most)[-most]]
    chosen = chosen[np.argsort(-slopes[chosen], kind="stable")]
    count = int(np.searchsorted(takes[chosen].cumsum(), budget, side="right"))
    price = float(slopes[chosen[count - 1]]) if 0 < count < len(chosen) else 0.0
    return chosen[:count], price


def _steps(raw: Floats, remaining: Floats, waits: Flags) -> tuple[Floats, Floats, Floats]:
    """Return the steps of the concave envelopes of jobs with several sizes, and where they begin.

    Args:
        raw: Rows of jobs, `[m, RAW]`.
        remaining: Seconds that they have left.
        waits: Whether they wait: then they begin with nothing, else with their smallest size.

    Returns:
        What each step adds per GPU and the GPUs that it takes, `[m, SIZES]`, 0 beyond the last; and
        the workers that a job has before.
    """
    sizes, rates = np.ascontiguousarray(raw[:, c.SIZE :].T).reshape(2, c.SIZES, -1)
    each, pause = np.maximum(raw[:, c.EACH], 1.0), raw[:, c.PAUSE] * (raw[:, c.PHASE] == c.RUNNING)
    here = sizes == raw[:, c.WORKERS]
    rate = (rates * here).max(0)
    speeds = np.where(rate > 0, rates / np.where(rate > 0, rate, 1.0), here)
    able = (sizes > 0) & (speeds > 0)
    left = remaining / np.where(able, speeds, 1.0)
    left += SOON
    left += pause * ~here
    gpus, worth = np.zeros((2, RUNGS, len(raw)))  # The first is to have nothing.
    gpus[1:], worth[1:] = sizes * each, np.where(able, -np.log(left), -LONGEST)
    worth[0] = LONGEST  # No step leads from nothing, but the one that is made below.
    more = gpus - gpus[:, None]
    slope = worth - worth[:, None]
    slope /= np.where(more > 0, more, np.inf)
    # From each size the step that adds most per GPU leads to the next one on the envelope.
    best = slope.max(1)
    following = RUNGS - ((slope == best[:, None]) * _EARLIER).max(1).astype(np.int64)
    jobs = np.arange(len(raw))
    following[0] = least = able.argmax(0) + 1
    work = left[least - 1, jobs] * gpus[least, jobs]
    best[0] = able.any(0) * FIRST / np.maximum(work, 1.0)
    then = (following * len(raw) + jobs).ravel()
    at = np.where(waits, 0, least) * len(raw) + jobs
    base = gpus.take(at) / each
    slopes, takes = np.zeros((2, c.SIZES, len(raw)))
    for step in range(c.SIZES):
        slopes[step] = found = best.take(at)
        gains = found > 0
        if not gains.any():
            break
        after = np.where(gains, then.take(at), at)
        takes[step] = gpus.take(after) - gpus.take(at)
        at = after
    return slopes.T, takes.T, base


RUNGS = c.SIZES + 1
_EARLIER = np.arange(RUNGS, 0, -1, dtype=np.int8)[:, None]
"""The more, the smaller a size is."""
