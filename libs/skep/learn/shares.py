"""How many workers each job would have if GPUs went to where they gain the most.

It is the rule `look-ahead` in arrays, with its power 0. Every waiting job first gets its fewest
workers, the shortest first; running ones that can change keep their fewest. Then a job that is left
with time T at a size counts -log T: steps of the concave envelope of each job's sizes are taken by
what they add per GPU, until the GPUs are used up. A model sees how far each candidate is from this
share, and what it adds over what the last GPU adds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.columns import Floats
from skep.learn.features import Times, queued

SOON = 60.0
"""Seconds that are added to what is left: a job that is about to end does not take everything."""


FIRST = 1e12
"""What the first workers of a waiting job count, over its remaining GPU-seconds: more than any step
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
    waits = queued(raw)
    changes = (raw[..., c.PHASE] == c.RUNNING) & (raw[..., c.RESIZABLE] > 0)
    takes_part = (waits | changes) & when.known
    sizes, each = raw[..., c.SIZE : c.SIZE + c.SIZES], np.maximum(raw[..., c.EACH], 1.0)
    worth = np.where(takes_part[..., None], _worths(raw, when.remaining), -np.inf)
    least = np.argmax(worth > -np.inf, axis=-1)[..., None]
    base = np.where(takes_part, np.take_along_axis(sizes, least, -1)[..., 0] * each, 0.0)
    have = np.where(takes_part, np.take_along_axis(worth, least, -1)[..., 0], 0.0)
    keeps = takes_part & changes
    given = np.where(keeps, raw[..., c.WORKERS] * each - base, 0.0).sum(-1)
    budget = cluster[..., c.FREE] + given
    begins = takes_part & waits & (base > 0)
    first = np.where(begins, FIRST / np.maximum(np.exp(-have) * base, 1.0), 0.0)
    slopes, takes = _steps(sizes * each[..., None], worth, base, have)
    slopes = np.concatenate([first[..., None], slopes], axis=-1)
    takes = np.concatenate([np.where(begins, base, 0.0)[..., None], takes], axis=-1)
    shape = (*slopes.shape[:-2], -1)
    flat, used = slopes.reshape(shape), takes.reshape(shape)
    order = np.argsort(-flat, axis=-1, kind="stable")
    filled = np.cumsum(np.take_along_axis(used, order, -1), axis=-1)
    ordered = np.take_along_axis(flat, order, -1)
    given_out = (filled <= budget[..., None]) & (ordered > 0)
    taken = np.zeros_like(given_out)
    np.put_along_axis(taken, order, given_out, -1)
    more = np.where(taken.reshape(takes.shape), takes, 0.0).sum(-1) / each
    last = np.where(given_out, ordered, np.inf).min(-1)
    scarce = ((ordered > 0) & ~given_out).any(-1) & np.isfinite(last)
    price = np.where(scarce, last, 0.0)[..., None]
    kept = np.where(keeps, base / each, 0.0)
    workers = np.where(takes_part, kept + more, raw[..., c.WORKERS])
    return Shares(workers, np.broadcast_to(price, workers.shape))


def _worths(raw: Floats, remaining: Floats) -> Floats:
    """Return what jobs count at each of their sizes, `[.., n, SIZES]`; -inf: not known."""
    sizes = raw[..., c.SIZE : c.SIZE + c.SIZES]
    rates = raw[..., c.RATE : c.RATE + c.SIZES]
    here = sizes == raw[..., c.WORKERS, None]
    rate = (rates * here).max(-1)[..., None]
    speeds = np.where(rate > 0, rates / np.where(rate > 0, rate, 1.0), here)
    left = remaining[..., None] / np.where(speeds > 0, speeds, 1.0) + SOON
    runs = raw[..., c.PHASE, None] == c.RUNNING
    left += np.where(here, 0.0, raw[..., c.PAUSE, None] * runs)
    made: Floats = np.where((sizes > 0) & (speeds > 0), -np.log(left), -np.inf)
    return made


def _steps(gpus: Floats, worth: Floats, base: Floats, have: Floats) -> tuple[Floats, Floats]:
    """Return the steps of the concave envelopes: what each adds per GPU, and the GPUs it takes."""
    slopes, takes = np.zeros(gpus.shape), np.zeros(gpus.shape)
    for step in range(gpus.shape[-1]):
        more = gpus - base[..., None]
        able = (more > 0) & (worth > have[..., None])
        if not able.any():
            break
        slope = np.where(able, worth - have[..., None], 0.0) / np.where(able, more, 1.0)
        best = np.argmax(slope, axis=-1)[..., None]
        slopes[..., step] = np.take_along_axis(slope, best, -1)[..., 0]
        gains = slopes[..., step] > 0
        takes[..., step] = np.where(gains, np.take_along_axis(more, best, -1)[..., 0], 0.0)
        base = np.where(gains, np.take_along_axis(gpus, best, -1)[..., 0], base)
        have = np.where(gains, np.take_along_axis(worth, best, -1)[..., 0], have)
    return slopes, takes
