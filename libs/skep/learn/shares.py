"""How many workers each job would have if GPUs went to where they gain the most.

It is the rule `look-ahead` in arrays, with its power 0. Every waiting job first gets its fewest
workers, the shortest first; running ones that can change keep their fewest. Then a job that is left
with time T at a size counts -log T: steps of the concave envelope of each job's sizes are taken by
what they add per GPU, until the GPUs are used up; of equal ones, those of the job that came first.
A model sees how far each candidate is from this share, and what growing adds over what the last
GPU adds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats, Integers
from skep.learn.features import Times, queued

SOON = 60.0
"""Seconds that are added to what is left: a job that is about to end does not take everything."""
LONGEST = 1e18
"""Beyond the logarithm of any time, times any number of GPUs."""
ENOUGH = 256
"""It is no quicker to look for the best of fewer steps than to sort them."""
FIRST = 1e12
"""What the first workers of a waiting job add, over its remaining GPU-seconds: more than any step
of a job that has some."""


class Shares(NamedTuple):
    """Shares of jobs, `[.., n]`."""

    workers: Floats
    """0: it had better wait."""
    price: Floats
    """What the last GPU that is shared out adds, `[.., 1]`; 0: there are enough."""


(
    GPUS,  # that it has or asks for, at least one
    EACH,  # GPUs of a worker
    FIXED,  # its workers before any GPU is shared out
    GIVEN,  # GPUs that it then gives back
    SINGLE,  # FIRST if it waits, in its only size; else 0
    SEVERAL,  # it has several sizes: what follows is of such jobs alone
) = range(6)
HEADS = 6
"""So many numbers of a ladder are of the job; SIZES follow of each of its sizes:

by how much slower it is there; seconds that are added to what is left; LONGEST if its rate is not
known, else 0; minus its GPUs; 1 if it is the smallest that it can have, else 0; minus FIRST there
if it waits, else 0; 0 if it is another one that it can have, else infinite."""
LADDER = HEADS + 7 * c.SIZES


class Ladders(NamedTuple):
    """What sharing out needs of `n` jobs and does not change with time."""

    heads: Floats
    """`[HEADS, n]`."""
    several: Integers
    """The jobs with several sizes, `[m]`."""
    sizes: Floats
    """The rest of their ladders, `[LADDER - HEADS, m]`."""

    @classmethod
    def of(cls, table: Floats, which: Integers) -> Ladders:
        """Return ladders of a table, `[LADDER, ..]`.

        Args:
            table: What `ladders` returns.
            which: Their places in it, `[n]`.
        """
        heads = table[:HEADS].take(which, axis=1)
        several = heads[SEVERAL].nonzero()[0]
        return cls(heads, several, table[HEADS:].take(which.take(several), axis=1))


def ladders(raw: Floats) -> Floats:
    """Return the ladders of jobs, `[LADDER, n]`.

    Args:
        raw: Rows of jobs, `[n, RAW]`.
    """
    columns = raw.T
    workers, each = columns[c.WORKERS], np.maximum(columns[c.EACH], 1.0)
    waits, known = queued(raw), columns[c.LEFT] >= 0
    runs = (columns[c.PHASE] == c.RUNNING) & (columns[c.RESIZABLE] > 0)
    several = known & (waits | runs) & (columns[c.SIZE + 1] > 0)
    waits &= known
    made = np.zeros((LADDER, len(raw)))
    made[GPUS], made[EACH] = np.maximum(workers * each, 1.0), each
    made[FIXED] = workers * ~waits
    made[SINGLE], made[SEVERAL] = (waits > several) * FIRST, several
    at = several.nonzero()[0]
    if len(at):
        made[HEADS:, at], least = _by_size(columns[:, at], waits[at])
        least -= workers[at]
        least *= ~waits[at]
        made[FIXED, at] += least
        made[GIVEN, at] = -least * each[at]
    return made


def _by_size(columns: Floats, waits: Flags) -> tuple[Floats, Floats]:
    """Return ladders from HEADS on, `[.., m]`, and the smallest sizes that jobs can have.

    Args:
        columns: Rows of the jobs, `[RAW, m]`.
        waits: Whether they wait.
    """
    sizes, rates = columns[c.SIZE : c.RATE], columns[c.RATE :]
    here = sizes == columns[c.WORKERS]
    rate = (rates * here).max(0)
    speeds = np.where(rate > 0, rates / np.where(rate > 0, rate, 1.0), here)
    able = (sizes > 0) & (speeds > 0)
    smallest = np.zeros_like(able)
    smallest[able.argmax(0), np.arange(len(waits))] = True
    made = np.empty((7, *sizes.shape))
    made[0] = np.where(able, speeds, 1.0)
    made[1] = columns[c.PAUSE] * (columns[c.PHASE] == c.RUNNING) * ~here + SOON
    made[2], made[3] = ~able * LONGEST, -sizes * np.maximum(columns[c.EACH], 1.0)
    made[4], made[5] = smallest, smallest * waits * -FIRST
    made[6] = np.where(able & ~smallest, 0.0, np.inf)
    return made.reshape(-1, len(waits)), (sizes * smallest).sum(0)


def share_out(raw: Floats, cluster: Floats, when: Times) -> Shares:
    """Return the shares of jobs.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters, `[.., CLUSTER]`.
        when: The times of the jobs.
    """
    made, n = raw[..., c.WORKERS], raw.shape[-2]
    if not made.size:
        return Shares(made, np.zeros((*made.shape[:-1], 1)))
    table = ladders(raw.reshape(-1, c.RAW))
    remaining, free = when.remaining.reshape(-1, n), cluster[..., c.FREE].ravel().tolist()
    found = [
        shares_of(Ladders.of(table, np.arange(at * n, (at + 1) * n)), remaining[at], free[at])
        for at in range(len(free))
    ]
    workers = np.array([each.workers for each in found]).reshape(made.shape)
    price = np.array([each.price for each in found]).reshape(*made.shape[:-1], 1)
    return Shares(workers, price)


def shares_of(given: Ladders, remaining: Floats, free: float) -> Shares:
    """Return the shares of jobs, `[n]`.

    Args:
        given: Their ladders.
        remaining: Seconds that they have left, 0 where that is unknown.
        free: GPUs that are free.
    """
    heads, several, sizes = given
    slopes, takes = np.zeros((2, len(remaining), c.SIZES))
    work = remaining + SOON
    work *= heads[GPUS]
    slopes[:, 0], takes[:, 0] = heads[SINGLE] / work, heads[GPUS]
    if len(several):
        slopes[several], takes[several] = _steps(sizes, remaining.take(several))
    chosen, price = _fill(slopes.ravel(), takes.ravel(), free + float(np.add.reduce(heads[GIVEN])))
    more = np.bincount(chosen // c.SIZES, takes.take(chosen), len(remaining))
    return Shares(heads[FIXED] + more / heads[EACH], np.array([price]))


def _fill(slopes: Floats, takes: Floats, budget: float) -> tuple[Integers, float]:
    """Return the steps that are taken, the best first, and what the last of them adds per GPU.

    That is 0 if all are taken, or none.
    """
    chosen = (slopes > 0).nonzero()[0]
    worths = slopes.take(chosen)
    most = int(max(budget, 0.0)) + 1  # Every step takes a GPU: more are not looked at.
    if len(chosen) > most + ENOUGH:
        kept = worths >= np.partition(worths, -most)[-most]
        chosen, worths = chosen[kept], worths[kept]
    order = (-worths).argsort(kind="stable")
    chosen = chosen.take(order)
    count = int(takes.take(chosen).cumsum().searchsorted(budget, side="right"))
    price = float(worths[order[count - 1]]) if 0 < count < len(chosen) else 0.0
    return chosen[:count], price


def _steps(sizes: Floats, remaining: Floats) -> tuple[Floats, Floats]:
    """Return the steps of the concave envelopes of jobs with several sizes.

    A size is on the envelope if the least that a step to it adds per GPU is no less than the most
    that a step from it adds. The step from the size before adds that least.

    Args:
        sizes: Of their ladders, `[.., m]`; it is written to.
        remaining: Seconds that they have left, `[m]`.

    Returns:
        What the step to each size adds per GPU and the GPUs that it takes, `[m, SIZES]`; the first
        is 0 where there is no step.
    """
    parts = sizes.reshape(-1, c.SIZES, len(remaining))
    slower, stands, unable, taken, smallest, begins, beyond = parts
    left = remaining / slower
    left += stands
    work = left * taken
    np.minimum(work, -1.0, out=work)
    begins = begins / work
    np.maximum(np.log(left, out=left), unable, out=unable)
    both = parts[2:4]  # Logarithms of the times that are left, and minus GPUs.
    change = both.take(_LOW, axis=1)
    change -= both.take(_HIGH, axis=1)
    slope, more = change
    slope /= np.maximum(more, 1.0, out=more)
    on = np.maximum.reduce(slope.take(_ON, axis=0))
    adds = np.zeros(left.shape)
    to = np.minimum.reduce(slope.take(_TO, axis=0), out=adds[1:])
    steps = adds > beyond
    steps[1:-1] &= to[:-1] >= on
    before = taken * (steps + smallest)
    for size in range(1, c.SIZES):
        np.minimum(before[size], before[size - 1], out=before[size])
    takes = -taken
    takes[1:] += before[:-1]
    return np.where(steps, adds, begins).T, takes.T


_PAIRS = [(low, high) for low in range(c.SIZES) for high in range(low + 1, c.SIZES)]
_LOW, _HIGH = np.array(_PAIRS).T.copy()
"""The sizes between which there is a step."""
_ON = np.array(
    [
        [_PAIRS.index((low, max(high, low + 1))) for low in range(1, c.SIZES - 1)]
        for high in range(2, c.SIZES)
    ]
)
"""The steps from each size but the first and last; some are repeated, so that there are as many."""
_TO = np.array(
    [
        [_PAIRS.index((min(low, high - 1), high)) for high in range(1, c.SIZES)]
        for low in range(c.SIZES - 1)
    ]
)
"""The steps to each size but the first, in the same way."""
