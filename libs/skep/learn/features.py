"""What a model sees of a job and of a cluster: numbers without a scale, each with its range.

Every function takes rows of jobs `raw [.., n, RAW]`, rows of clusters `[.., CLUSTER]` and times
`[..]`, with any number of leading axes. A row of a job with 0 workers is empty: it is no job.
Times become logarithms of seconds, sizes become ratios and fractions of the cluster. What may be
unknown is 0 and has a flag. Nothing says which model a job trains, nor how many jobs or nodes there
are in all.

Arrays are made with the feature as the slowest axis in memory: each feature is written at once.
"""

from __future__ import annotations

from math import log1p, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats
from skep.learn.curves import Curves, curves_of

Matrix = NDArray[np.float32]
FLAG, SHARE, SIGNED, LONG = (0.0, 1.0), (0.0, 2.0), (-2.0, 2.0), (0.0, 2.5)
LOG_SECONDS = 10.0
"""A logarithm of seconds is divided by it: 1 is six hours."""
LOG_WORK = 14.0
"""The same for GPU-seconds: 1 is two weeks of one GPU."""
LOG_SIZE = 4.0
"""A binary logarithm of a ratio of sizes is divided by it: 1 is 16 times as many."""

JOB_FEATURES: dict[str, tuple[float, float]] = {
    # These change with time.
    "age": LONG,
    "ran": LONG,
    "in_phase": LONG,
    "remaining": LONG,
    "work": LONG,  # remaining GPU-seconds
    "waited_ratio": LONG,  # log: time waited over the time that it runs in all
    "waited_share": FLAG,  # of its age
    "progress": FLAG,
    # These change when something happens to it.
    "waits": FLAG,
    "away": FLAG,
    "runs": FLAG,
    "starts": FLAG,
    "leaves": FLAG,
    "gang": SHARE,  # log: GPUs of the gang
    "gang_nodes": SHARE,  # log: GPUs of the gang over those of a node
    "may_grow": SHARE,
    "may_shrink": SHARE,
    "slow_near": SHARE,  # log: on one node more
    "slow_far": SHARE,
    "slow_now": SHARE,
    "spread": SHARE,  # log: nodes it is on over those that it needs
    "best_speed": SIGNED,  # log: its highest rate over that now
    "best_size": SIGNED,  # log: the size with it over that now
    "resizable": FLAG,
    "borrows": FLAG,
    "doubt": FLAG,
    "doubt_known": FLAG,
    "pause_known": FLAG,
    "slowdown_known": FLAG,
    "pause": LONG,
    "remaining_known": FLAG,
    "elastic": FLAG,
    "worker": SHARE,  # GPUs of a worker, of a node
    "gang_share": FLAG,  # of the cluster
    "rates_known": FLAG,
    "next_gain": SIGNED,  # of the next larger size, per part of a worker more
    "ahead_gain": SIGNED,  # the best of all larger sizes
    "efficiency": SHARE,  # rate per worker over that at its fewest
}
"""Features of a job with their ranges, in order."""

CLUSTER_FEATURES: dict[str, tuple[float, float]] = {
    "queued_gpus": LONG,  # log: over those of the cluster
    "queued_work": LONG,  # log seconds that the whole cluster needs for it
    "held_work": LONG,
    "queued_age": LONG,  # log: mean
    "load": LONG,  # log: GPU-seconds that came in the last hour over those that the cluster has
    "free": FLAG,  # share of its GPUs
    "whole_nodes": FLAG,  # share of its nodes
    "queued_share": FLAG,  # of all jobs
    "queued_known": FLAG,  # share of waiting jobs with a prediction
    "held_known": FLAG,
    "largest": SHARE,  # free GPUs of the node with most, of a node
    "scattered": FLAG,  # share of the free GPUs that are on nodes in use
    "history": FLAG,  # arrivals of two hours are known
    "empty_queue": FLAG,
    "node": SHARE,  # log: GPUs of a node
    "burst": SIGNED,  # log: arrivals in the last hour over those in the hour before
}
"""Features of a cluster with their ranges, in order."""

F = len(JOB_FEATURES)
G = len(CLUSTER_FEATURES)
TIMED = 8
"""The first features of a job change with time alone."""
JOB_PLACES = {name: place for place, name in enumerate(JOB_FEATURES)}
WAITED_RATIO = JOB_PLACES["waited_ratio"]
SIZED = np.array(
    [
        JOB_PLACES[name]
        for name in (
            "gang",
            "gang_nodes",
            "gang_share",
            "may_grow",
            "may_shrink",
            "spread",
            "best_speed",
            "best_size",
            "rates_known",
            "next_gain",
            "ahead_gain",
            "efficiency",
        )
    ]
)
"""Features that are others when the job has another size, but for those that change with time."""
_JOB_HIGH = np.array([high for _, high in JOB_FEATURES.values()], dtype=np.float32)
_JOB_LOW = np.array([low for low, _ in JOB_FEATURES.values()], dtype=np.float32)
_CLUSTER_LOW, _CLUSTER_HIGH = np.array([*CLUSTER_FEATURES.values()], dtype=np.float32).T
_LOGS = 6
"""So many of the timed features are logarithms, divided by these."""
_LOG_SCALES = np.array(
    [LOG_SECONDS, LOG_SECONDS, LOG_SECONDS, LOG_SECONDS, LOG_WORK, 1.0], dtype=np.float32
)


_NOTHING, _ONE = np.zeros(()), np.ones(())
"""Quicker than numbers of Python."""


class Times(NamedTuple):
    """What jobs are at a time, `[.., n]`; seconds."""

    age: Floats
    ran: Floats
    remaining: Floats
    """0 where it is unknown."""
    known: Flags
    waits: Flags
    """It may be placed."""
    holds: Flags
    """It has GPUs, or is about to."""
    gpus: Floats
    """That it has, or asks for."""
    work: Floats
    """Remaining GPU-seconds."""


def times(raw: Floats, now: ArrayLike) -> Times:
    """Return the times of jobs, as `JobView.ran` and `JobView.remaining` have them."""
    at = now if isinstance(now, float) else np.asarray(now, dtype=np.float64)[..., None]
    phase, left = raw[..., c.PHASE], raw[..., c.LEFT]
    went = at - raw[..., c.SINCE]
    np.maximum(went, _NOTHING, out=went)
    went *= phase == c.RUNNING
    known = left >= 0
    remaining = left - went
    np.maximum(remaining, _NOTHING, out=remaining)
    remaining *= known
    age = at - raw[..., c.SUBMITTED]
    waits = (phase == c.WAITING) | (phase == c.AWAY)
    gpus = raw[..., c.EACH] * raw[..., c.WORKERS]
    some = gpus > 0
    return Times(
        np.maximum(age, _NOTHING, out=age),
        raw[..., c.SERVED] + went,
        remaining,
        known,
        waits & some,
        some > waits,
        gpus,
        remaining * gpus,
    )


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
    return write_sums(raw, times(raw, now), cluster)


def write_sums(raw: Floats, when: Times, cluster: Floats) -> Floats:
    """Do what `sums` does, where the times are known already."""
    values = np.ones((*raw.shape[:-2], 5, raw.shape[-2]))
    values[..., 1, :], values[..., 2, :] = when.gpus, when.work
    values[..., 3, :], values[..., 4, :] = when.known, when.age
    chosen = np.empty((*raw.shape[:-1], 2))
    chosen[..., 0], chosen[..., 1] = when.waits, when.holds
    found = values @ chosen
    cluster[..., c.QUEUED_JOBS : c.QUEUED_JOBS + 5] = found[..., 0]
    cluster[..., c.HELD_JOBS : c.HELD_JOBS + 5] = found[..., 1]
    cluster[..., c.JOBS] = found[..., 0, :].sum(-1)
    return cluster


def empty(shape: tuple[int, ...], width: int) -> Matrix:
    """Return room for features, `[*shape, width]`."""
    made = np.zeros((width, *shape), dtype=np.float32)
    return made.transpose(*range(1, made.ndim), 0)


def job_features(raw: Floats, cluster: Floats, now: ArrayLike) -> Matrix:
    """Return the features of jobs, `[.., n, F]`; those of an empty row mean nothing.

    Args:
        raw: Rows of jobs.
        cluster: Rows of their clusters; only their numbers of GPUs matter.
        now: Times.
    """
    made = empty(raw.shape[:-1], F)
    write_steady(raw, cluster, curves_of(raw), made)
    write_timed(raw, times(raw, now), now, made)
    return made


def write_timed(raw: Floats, when: Times, now: ArrayLike, out: Matrix) -> None:
    """Write the first TIMED features of jobs."""
    at = now if isinstance(now, float) else np.asarray(now, dtype=np.float64)[..., None]
    total = when.ran + when.remaining
    np.maximum(total, _ONE, out=total)
    waited = when.age - when.ran
    np.maximum(waited, _NOTHING, out=waited)
    since = raw[..., c.SINCE]
    out[..., 0], out[..., 1] = when.age, when.ran
    out[..., 2] = np.maximum(at - np.where(since > 0, since, raw[..., c.SUBMITTED]), 0.0)
    out[..., 3] = when.remaining
    out[..., 4] = when.work
    out[..., 5] = waited / total * when.known
    logs = out[..., :_LOGS]
    np.log1p(logs, out=logs)
    logs /= _LOG_SCALES
    out[..., 6] = waited / np.maximum(when.age, _ONE)
    out[..., 7] = when.ran / total * when.known
    timed = out[..., :TIMED]
    np.minimum(timed, _JOB_HIGH[:TIMED], out=timed)


def write_steady(raw: Floats, cluster: Floats, curves: Curves, out: Matrix) -> None:
    """Write the features of jobs that do not change with time."""
    workers, each = np.maximum(raw[..., c.WORKERS], 1.0), np.maximum(raw[..., c.EACH], 1.0)
    gpus = workers * each
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)[..., None]
    least, most = raw[..., c.LEAST], raw[..., c.MOST]
    out[..., 8:13] = _PHASE_FLAGS.take(raw[..., c.PHASE].astype(np.int64), axis=0)
    out[..., 13], out[..., 14] = gpus, gpus / node_gpus
    out[..., 15], out[..., 16] = most / workers, workers / np.maximum(least, 1.0)
    out[..., 17:20] = raw[..., c.SLOW_NEAR : c.SLOW_NOW + 1].take(_SLOW, axis=-1)
    out[..., 20] = raw[..., c.NODES] / nodes_needed(workers, each, node_gpus)
    np.maximum(out[..., 13:21], 1.0, out=out[..., 13:21])
    out[..., 21], out[..., 22] = curves.best_speed, curves.best_size
    logs = out[..., 13:23]
    np.log2(logs, out=logs)
    logs /= LOG_SIZE
    out[..., 23:26] = raw.take(_COPIED, axis=-1)
    out[..., 26:29] = raw.take(_POSITIVE, axis=-1) > 0
    out[..., 29] = np.log1p(raw[..., c.PAUSE]) / LOG_SECONDS
    out[..., 30], out[..., 31] = raw[..., c.LEFT] >= 0, most > least
    out[..., 32] = each / node_gpus
    out[..., 33] = gpus / np.maximum(cluster[..., c.GPUS], 1.0)[..., None]
    out[..., 34], out[..., 35] = curves.known, curves.next_gain
    out[..., 36], out[..., 37] = curves.ahead_gain, curves.efficiency
    steady = out[..., TIMED:]
    np.minimum(steady, _JOB_HIGH[TIMED:], out=steady)
    np.maximum(steady, _JOB_LOW[TIMED:], out=steady)


_SLOW = np.array([0, 1, 3])
_COPIED = np.array([c.RESIZABLE, c.BORROWS, c.DOUBT])
_POSITIVE = np.array([c.DOUBT, c.PAUSE, c.SLOW_NEAR])
_PHASE_FLAGS = np.zeros((len(c.PHASES), 5), dtype=np.float32)
"""By phase: waits, away, runs, starts, leaves."""
for _phase, _flag in (
    (c.WAITING, 0),
    (c.AWAY, 1),
    (c.RUNNING, 2),
    (c.RESERVED, 3),
    (c.STARTING, 3),
    (c.SUSPENDED, 4),
    (c.STOPPING, 4),
):
    _PHASE_FLAGS[_phase, _flag] = 1.0


def nodes_needed(workers: Floats, each: Floats, node_gpus: Floats) -> Floats:
    """Return on how many nodes gangs have to be at least."""
    on_node = np.maximum(node_gpus // np.maximum(each, 1.0), 1.0)
    made: Floats = np.ceil(workers / on_node)
    return made


def cluster_features(cluster: Floats) -> Matrix:
    """Return the features of clusters, `[.., G]`, from rows with their sums."""
    rows = cluster.reshape(-1, c.CLUSTER).tolist()
    made = np.array([features_of(row) for row in rows], dtype=np.float32)
    return made.reshape(*cluster.shape[:-1], G)


def features_of(row: list[float]) -> Matrix:
    """Return the features of one cluster, `[G]`."""
    made = np.array(_cluster_row(row), dtype=np.float32)
    np.minimum(made, _CLUSTER_HIGH, out=made)
    np.maximum(made, _CLUSTER_LOW, out=made)
    return made


def _cluster_row(row: list[float]) -> tuple[float, ...]:
    """Return the features of one cluster: so few numbers are quicker one by one."""
    gpus, nodes, node_gpus = (max(row[each], 1.0) for each in (c.GPUS, c.NODE_COUNT, c.NODE_GPUS))
    free, whole, waits, holds = row[c.FREE], row[c.WHOLE], row[c.QUEUED_JOBS], row[c.HELD_JOBS]
    some_wait = max(waits, 1.0)
    known = row[c.HISTORY] >= 2 * c.HOUR
    room = row[c.ROOM :]
    largest = next((at for at in range(c.NODE_MAX, 0, -1) if room[at] > 0), 0)
    return (
        log1p(max(row[c.QUEUED_GPUS], 0.0) / gpus) / 2.0,
        log1p(max(row[c.QUEUED_WORK], 0.0) / gpus) / LOG_SECONDS,
        log1p(max(row[c.HELD_WORK], 0.0) / gpus) / LOG_SECONDS,
        log1p(max(row[c.QUEUED_AGE], 0.0) / some_wait) / LOG_SECONDS,
        log1p(row[c.ARRIVED_WORK] / (gpus * c.HOUR)) if known else 0.0,
        free / gpus,
        whole / nodes,
        waits / max(waits + holds, 1.0),
        row[c.QUEUED_KNOWN] / some_wait,
        row[c.HELD_KNOWN] / max(holds, 1.0),
        largest / node_gpus,
        (free - whole * node_gpus) / max(free, 1.0),
        float(known),
        float(waits == 0),
        log2(node_gpus) / LOG_SIZE,
        log2((row[c.ARRIVED] + 1) / (row[c.ARRIVED_BEFORE] + 1)) / LOG_SIZE if known else 0.0,
    )
