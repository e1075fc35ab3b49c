"""What a model sees of a job and of a cluster: numbers without a scale, each with its range.

Every function takes rows of jobs `raw [.., n, RAW]`, rows of clusters `[.., CLUSTER]` and times
`[..]`, with any number of leading axes. A row of a job with 0 workers is empty: it is no job.
Times become logarithms of seconds, sizes become ratios and fractions of the cluster. What may be
unknown is 0 and has a flag. Nothing says which model a job trains, nor how many jobs or nodes there
are in all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats

SCHEMA = 1
"""Counts the meanings of features, of candidates, and of what a network makes of them."""

Matrix = NDArray[np.float32]
FLAG, SHARE, SIGNED, LONG = (0.0, 1.0), (0.0, 2.0), (-2.0, 2.0), (0.0, 2.5)
LOG_SECONDS = 10.0
"""A logarithm of seconds is divided by it: 1 is six hours."""
LOG_WORK = 14.0
"""The same for GPU-seconds: 1 is two weeks of one GPU."""
LOG_SIZE = 4.0
"""A binary logarithm of a ratio of sizes is divided by it: 1 is 16 times as many."""

JOB_FEATURES: dict[str, tuple[float, float]] = {
    "waits": FLAG,
    "away": FLAG,
    "runs": FLAG,
    "starts": FLAG,
    "leaves": FLAG,
    "worker": SHARE,  # GPUs of a worker, of a node
    "gang": SHARE,  # log: GPUs of the gang
    "gang_share": FLAG,  # of the cluster
    "gang_nodes": SHARE,  # log: GPUs of the gang over those of a node
    "elastic": FLAG,
    "may_grow": SHARE,
    "may_shrink": SHARE,
    "age": LONG,
    "ran": LONG,
    "in_phase": LONG,
    "waited_share": FLAG,  # of its age
    "remaining_known": FLAG,
    "remaining": LONG,
    "work": LONG,  # remaining GPU-seconds
    "progress": FLAG,
    "waited_ratio": LONG,  # log: time waited over the time that it runs in all
    "doubt_known": FLAG,
    "doubt": FLAG,
    "rates_known": FLAG,
    "best_speed": SIGNED,  # log: its highest rate over that now
    "best_size": SIGNED,  # log: the size with it over that now
    "next_gain": SIGNED,  # of the next larger size, per part of a worker more
    "ahead_gain": SIGNED,  # the best of all larger sizes
    "efficiency": SHARE,  # rate per worker over that at its fewest
    "slowdown_known": FLAG,
    "slow_near": SHARE,  # log: on one node more
    "slow_far": SHARE,
    "slow_now": SHARE,
    "spread": SHARE,  # log: nodes it is on over those that it needs
    "resizable": FLAG,
    "borrows": FLAG,
    "pause_known": FLAG,
    "pause": LONG,
}
"""Features of a job with their ranges, in order."""

CLUSTER_FEATURES: dict[str, tuple[float, float]] = {
    "free": FLAG,  # share of its GPUs
    "whole_nodes": FLAG,  # share of its nodes
    "largest": SHARE,  # free GPUs of the node with most, of a node
    "scattered": FLAG,  # share of the free GPUs that are on nodes in use
    "queued_gpus": LONG,  # log: over those of the cluster
    "queued_work": LONG,  # log seconds that the whole cluster needs for it
    "held_work": LONG,
    "queued_age": LONG,  # log: mean
    "queued_share": FLAG,  # of all jobs
    "queued_known": FLAG,  # share of waiting jobs with a prediction
    "held_known": FLAG,
    "history": FLAG,  # arrivals of two hours are known
    "burst": SIGNED,  # log: arrivals in the last hour over those in the hour before
    "load": LONG,  # log: GPU-seconds that came in the last hour over those that the cluster has
    "empty_queue": FLAG,
    "node": SHARE,  # log: GPUs of a node
}
"""Features of a cluster with their ranges, in order."""

F = len(JOB_FEATURES)
G = len(CLUSTER_FEATURES)
_JOB = {name: place for place, name in enumerate(JOB_FEATURES)}
_CLUSTER = {name: place for place, name in enumerate(CLUSTER_FEATURES)}
_JOB_LOW, _JOB_HIGH = np.array([*JOB_FEATURES.values()], dtype=np.float32).T
_CLUSTER_LOW, _CLUSTER_HIGH = np.array([*CLUSTER_FEATURES.values()], dtype=np.float32).T


class Times(NamedTuple):
    """What jobs have run, waited and have left at a time, in seconds `[.., n]`."""

    age: Floats
    ran: Floats
    remaining: Floats
    """0 where it is unknown."""
    known: Flags

    def at(self, index: Any) -> Times:
        """Return the times of some jobs, or with other axes."""
        return Times(self.age[index], self.ran[index], self.remaining[index], self.known[index])


def times(raw: Floats, now: ArrayLike) -> Times:
    """Return the times of jobs, as `JobView.ran` and `JobView.remaining` have them."""
    at = np.asarray(now, dtype=np.float64)[..., None]
    went = np.where(raw[..., c.PHASE] == c.RUNNING, np.maximum(at - raw[..., c.SINCE], 0.0), 0.0)
    ran = raw[..., c.SERVED] + went
    left, expected = raw[..., c.LEFT], raw[..., c.EXPECTED]
    known = (left >= 0) | (expected >= 0)
    remaining = np.where(left >= 0, left - went, expected - ran)
    remaining = np.where(known, np.maximum(remaining, 0.0), 0.0)
    return Times(np.maximum(at - raw[..., c.SUBMITTED], 0.0), ran, remaining, known)


def queued(raw: Floats) -> Flags:
    """Return which jobs may be placed."""
    phase = raw[..., c.PHASE]
    made: Flags = ((phase == c.WAITING) | (phase == c.AWAY)) & (raw[..., c.WORKERS] > 0)
    return made


def holding(raw: Floats) -> Flags:
    """Return which jobs have GPUs, or are about to."""
    phase = raw[..., c.PHASE]
    made: Flags = (phase != c.WAITING) & (phase != c.AWAY) & (raw[..., c.WORKERS] > 0)
    return made


def sums(raw: Floats, cluster: Floats, now: ArrayLike) -> Floats:
    """Write the sums over jobs into the rows of clusters; return these."""
    when = times(raw, now)
    gpus = raw[..., c.EACH] * raw[..., c.WORKERS]
    work = when.remaining * gpus
    waits, holds = queued(raw), holding(raw)
    cluster[..., c.QUEUED_JOBS] = waits.sum(-1)
    cluster[..., c.QUEUED_GPUS] = (gpus * waits).sum(-1)
    cluster[..., c.QUEUED_WORK] = (work * waits).sum(-1)
    cluster[..., c.QUEUED_KNOWN] = (when.known & waits).sum(-1)
    cluster[..., c.QUEUED_AGE] = (when.age * waits).sum(-1)
    cluster[..., c.HELD_JOBS] = holds.sum(-1)
    cluster[..., c.HELD_WORK] = (work * holds).sum(-1)
    cluster[..., c.HELD_KNOWN] = (when.known & holds).sum(-1)
    return cluster


def log_seconds(seconds: Floats) -> Floats:
    """Return times as features."""
    made: Floats = np.log1p(seconds) / LOG_SECONDS
    return made


def log_size(ratio: Floats) -> Floats:
    """Return ratios of sizes as features."""
    made: Floats = np.log2(ratio) / LOG_SIZE
    return made


def job_features(raw: Floats, cluster: Floats, now: ArrayLike) -> Matrix:
    """Return the features of jobs, `[.., n, F]`; those of an empty row mean nothing.

    Args:
        raw: Rows of jobs.
        cluster: Rows of their clusters; only their numbers of GPUs matter.
        now: Times.
    """
    made = np.zeros((*raw.shape[:-1], F), dtype=np.float32)

    def put(name: str, values: Floats | Flags) -> None:
        made[..., _JOB[name]] = values

    phase, workers, each = raw[..., c.PHASE], np.maximum(raw[..., c.WORKERS], 1.0), raw[..., c.EACH]
    gpus = np.maximum(workers * each, 1.0)
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)[..., None]
    put("waits", phase == c.WAITING)
    put("away", phase == c.AWAY)
    put("runs", phase == c.RUNNING)
    put("starts", (phase == c.RESERVED) | (phase == c.STARTING))
    put("leaves", (phase == c.SUSPENDED) | (phase == c.STOPPING))
    put("worker", each / node_gpus)
    put("gang", log_size(gpus))
    put("gang_share", gpus / np.maximum(cluster[..., c.GPUS], 1.0)[..., None])
    put("gang_nodes", log_size(np.maximum(gpus / node_gpus, 1.0)))
    least, most = np.maximum(raw[..., c.LEAST], 1.0), np.maximum(raw[..., c.MOST], 1.0)
    put("elastic", most > least)
    put("may_grow", log_size(np.maximum(most / workers, 1.0)))
    put("may_shrink", log_size(np.maximum(workers / least, 1.0)))

    when = times(raw, now)
    total = when.ran + when.remaining
    waited = np.maximum(when.age - when.ran, 0.0)
    put("age", log_seconds(when.age))
    put("ran", log_seconds(when.ran))
    at = np.asarray(now, dtype=np.float64)[..., None]
    started = np.where(raw[..., c.SINCE] > 0, raw[..., c.SINCE], raw[..., c.SUBMITTED])
    put("in_phase", log_seconds(np.maximum(at - started, 0.0)))
    put("waited_share", waited / np.maximum(when.age, 1.0))
    put("remaining_known", when.known)
    put("remaining", log_seconds(when.remaining))
    put("work", np.log1p(when.remaining * gpus) / LOG_WORK)
    put("progress", np.where(when.known, when.ran / np.maximum(total, 1.0), 0.0))
    put("waited_ratio", np.where(when.known, np.log1p(waited / np.maximum(total, 1.0)), 0.0))
    put("doubt_known", raw[..., c.DOUBT] > 0)
    put("doubt", raw[..., c.DOUBT])
    put("resizable", raw[..., c.RESIZABLE])
    put("borrows", raw[..., c.BORROWS])
    put("pause_known", raw[..., c.PAUSE] > 0)
    put("pause", log_seconds(raw[..., c.PAUSE]))

    known = raw[..., c.SLOW_NEAR] > 0
    put("slowdown_known", known)
    for name, column in (
        ("slow_near", c.SLOW_NEAR),
        ("slow_far", c.SLOW_FAR),
        ("slow_now", c.SLOW_NOW),
    ):
        put(name, np.where(known, log_size(np.maximum(raw[..., column], 1.0)), 0.0))
    need = nodes_needed(workers, each, node_gpus)
    put("spread", log_size(np.maximum(raw[..., c.NODES] / need, 1.0)))
    gains = rate_gains(raw)
    put("rates_known", gains.known)
    put("best_speed", log_size(gains.best_speed))
    put("best_size", log_size(gains.best_size))
    put("next_gain", gains.next)
    put("ahead_gain", gains.ahead)
    put("efficiency", gains.efficiency)
    return np.clip(made, _JOB_LOW, _JOB_HIGH, out=made)


class Gains(NamedTuple):
    """What other sizes make of jobs, by their rates `[.., n]`; neutral where they are unknown."""

    known: Flags
    """Its rate now and another one are known."""
    best_speed: Floats
    """The highest rate over that now."""
    best_size: Floats
    """The size with it over that now."""
    next: Floats
    """What the next larger size adds to its rate, per size that it adds; both as parts of now."""
    ahead: Floats
    """The most of that over all larger sizes: one that does not pay may be followed by one that
    does."""
    efficiency: Floats
    """Its rate per worker, over that at the fewest workers with a known rate."""


def rate_gains(raw: Floats) -> Gains:
    """Return what other sizes make of jobs."""
    sizes = raw[..., c.SIZE : c.SIZE + c.SIZES]
    rates = raw[..., c.RATE : c.RATE + c.SIZES]
    workers = np.maximum(raw[..., c.WORKERS], 1.0)
    here = sizes == workers[..., None]
    there = rates > 0
    rate = np.max(np.where(here, rates, 0.0), axis=-1)
    known = (rate > 0) & (there.sum(-1) > 1)
    base = np.where(known, rate, 1.0)[..., None]
    speeds = np.where(there & known[..., None], rates / base, 0.0)
    best = np.argmax(speeds, axis=-1)[..., None]
    best_speed = np.where(known, np.take_along_axis(speeds, best, -1)[..., 0], 1.0)
    best_size = np.where(known, np.take_along_axis(sizes, best, -1)[..., 0] / workers, 1.0)
    larger = (sizes > workers[..., None]) & (speeds > 0)
    more = np.where(larger, sizes / workers[..., None] - 1.0, 1.0)
    gains = np.where(larger, (speeds - 1.0) / more, -np.inf)
    first = np.argmax(larger, axis=-1)[..., None]
    any_larger = larger.any(-1)
    following = np.where(any_larger, np.take_along_axis(gains, first, -1)[..., 0], 0.0)
    ahead = np.where(any_larger, gains.max(-1), 0.0)
    fewest = np.argmax(there, axis=-1)[..., None]
    per_worker = np.take_along_axis(speeds, fewest, -1)[..., 0] / np.maximum(
        np.take_along_axis(sizes, fewest, -1)[..., 0], 1.0
    )
    efficiency = np.where(known, 1.0 / workers / np.where(known, per_worker, 1.0), 1.0)
    return Gains(known, best_speed, best_size, following, ahead, efficiency)


def nodes_needed(workers: Floats, each: Floats, node_gpus: Floats) -> Floats:
    """Return on how many nodes gangs have to be at least."""
    on_node = np.maximum(node_gpus // np.maximum(each, 1.0), 1.0)
    made: Floats = np.ceil(workers / on_node)
    return made


def cluster_features(cluster: Floats) -> Matrix:
    """Return the features of clusters, `[.., G]`, from rows with their sums."""
    made = np.zeros((*cluster.shape[:-1], G), dtype=np.float32)

    def put(name: str, values: Floats | Flags) -> None:
        made[..., _CLUSTER[name]] = values

    gpus = np.maximum(cluster[..., c.GPUS], 1.0)
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)
    free = cluster[..., c.FREE]
    room = cluster[..., c.ROOM :]
    waits, holds = cluster[..., c.QUEUED_JOBS], cluster[..., c.HELD_JOBS]
    put("free", free / gpus)
    put("whole_nodes", cluster[..., c.WHOLE] / np.maximum(cluster[..., c.NODE_COUNT], 1.0))
    largest = np.max(np.where(room > 0, np.arange(c.NODE_MAX + 1.0), 0.0), axis=-1)
    put("largest", largest / node_gpus)
    scattered = np.maximum(free - cluster[..., c.WHOLE] * node_gpus, 0.0)
    put("scattered", scattered / np.maximum(free, 1.0))
    put("queued_gpus", np.log1p(cluster[..., c.QUEUED_GPUS] / gpus) / 2.0)
    put("queued_work", log_seconds(cluster[..., c.QUEUED_WORK] / gpus))
    put("held_work", log_seconds(cluster[..., c.HELD_WORK] / gpus))
    put("queued_age", log_seconds(cluster[..., c.QUEUED_AGE] / np.maximum(waits, 1.0)))
    put("queued_share", waits / np.maximum(waits + holds, 1.0))
    put("queued_known", cluster[..., c.QUEUED_KNOWN] / np.maximum(waits, 1.0))
    put("held_known", cluster[..., c.HELD_KNOWN] / np.maximum(holds, 1.0))
    known = cluster[..., c.HISTORY] >= 2 * c.HOUR
    put("history", known)
    change = log_size((cluster[..., c.ARRIVED] + 1.0) / (cluster[..., c.ARRIVED_BEFORE] + 1.0))
    put("burst", np.where(known, change, 0.0))
    put("load", np.where(known, np.log1p(cluster[..., c.ARRIVED_WORK] / (gpus * c.HOUR)), 0.0))
    put("empty_queue", waits == 0)
    put("node", log_size(node_gpus))
    return np.clip(made, _CLUSTER_LOW, _CLUSTER_HIGH, out=made)
