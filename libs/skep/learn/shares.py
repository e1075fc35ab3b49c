"""How many workers each job would have if GPUs went to where they gain the most.

It is the rule `look-ahead` in arrays: a job that is left with time T at a size counts 1 / T; steps
of the concave envelope of each job's sizes are taken by what they add per GPU, until the GPUs are
used up. Waiting jobs may have none; running ones that cannot change take no part. A model sees how
far each candidate is from this share, and what it adds over what the last GPU adds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.columns import Floats
from skep.learn.features import Times, queued

SOON = 60.0
"""Seconds that are added to what is left: a job that is about to end does not take everything."""


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
    worth = np.where(takes_part[..., None], _worths(raw, when.remaining), 0.0)
    # A running job keeps its smallest size; a waiting one begins with none.
    least = np.argmax(worth > 0, axis=-1)[..., None]
    keeps = takes_part & changes
    base = np.where(keeps, np.take_along_axis(sizes, least, -1)[..., 0], 0.0)
    have = np.where(keeps, np.take_along_axis(worth, least, -1)[..., 0], 0.0)
    given = np.where(keeps, (raw[..., c.WORKERS] - base) * each, 0.0).sum(-1)
    budget = cluster[..., c.FREE] + given
    slopes, takes = _steps(sizes * each[..., None], worth, base * each, have)
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
    workers = np.where(takes_part, base + more, raw[..., c.WORKERS])
    return Shares(workers, np.broadcast_to(price, workers.shape))


def _worths(raw: Floats, remaining: Floats) -> Floats:
    """Return what jobs count at each of their sizes, `[.., n, SIZES]`; 0: not known."""
    sizes = raw[..., c.SIZE : c.SIZE + c.SIZES]
    rates = raw[..., c.RATE : c.RATE + c.SIZES]
    here = sizes == raw[..., c.WORKERS, None]
    rate = (rates * here).max(-1)[..., None]
    speeds = np.where(rate > 0, rates / np.where(rate > 0, rate, 1.0), here)
    left = remaining[..., None] / np.where(speeds > 0, speeds, 1.0) + SOON
    runs = raw[..., c.PHASE, None] == c.RUNNING
    left += np.where(here, 0.0, raw[..., c.PAUSE, None] * runs)
    made: Floats = ((sizes > 0) & (speeds > 0)) / left
    return made


def _steps(gpus: Floats, worth: Floats, base: Floats, have: Floats) -> tuple[Floats, Floats]:
    """Return the steps of the concave envelopes: what each adds per GPU, and the GPUs it takes."""
    slopes, takes = np.zeros(gpus.shape), np.zeros(gpus.shape)
    for step in range(gpus.shape[-1]):
        more = gpus - base[..., None]
        able = (more > 0) & (worth > have[..., None])
        if not able.any():
            break
        slope = (worth - have[..., None]) * able / np.where(able, more, 1.0)
        best = np.argmax(slope, axis=-1)[..., None]
        slopes[..., step] = np.take_along_axis(slope, best, -1)[..., 0]
        gains = slopes[..., step] > 0
        takes[..., step] = np.where(gains, np.take_along_axis(more, best, -1)[..., 0], 0.0)
        base = np.where(gains, np.take_along_axis(gpus, best, -1)[..., 0], base)
        have = np.where(gains, np.take_along_axis(worth, best, -1)[..., 0], have)
    return slopes, takes
