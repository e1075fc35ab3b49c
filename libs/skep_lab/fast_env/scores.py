"""What `skep.learn` makes of rows, compiled: shares, features, the set network's scores, and moves.

It is the same arithmetic as `skep.learn.{shares,features,candidates,net,decide}`, for one
environment at a time and without arrays in between: a training needs it a million times. Tests
compare both.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep.learn import candidates as kinds
from skep.learn import columns as c
from skep.learn.candidates import CANDIDATE_FEATURES, CHOICES, A
from skep.learn.decide import RANKED
from skep.learn.features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    LOG_SECONDS,
    LOG_SIZE,
    LOG_WORK,
    F,
    G,
)
from skep.learn.shares import FIRST, SOON
from skep_lab.fast_env.arrays import Floats, Ints
from skep_lab.fast_env.compiled import compiled, inner

LOCAL, SPREAD, GROW, SHRINK = kinds.LOCAL, kinds.SPREAD, kinds.GROW, kinds.SHRINK
STEPS = np.array(kinds.STEPS)
SIZES, NODE_MAX, HOUR = c.SIZES, c.NODE_MAX, c.HOUR


def _places(names: Mapping[str, object]) -> Any:
    """Return the place of each feature by its name, as kernels can read it."""
    return namedtuple("Places", names)(*range(len(names)))


LOGS = np.log2(np.maximum(np.arange(257.0), 1.0)) / LOG_SIZE
"""Of workers and nodes: looked up in place of computed."""
JF, CF, KF = _places(JOB_FEATURES), _places(CLUSTER_FEATURES), _places(CANDIDATE_FEATURES)
_LOW, _HIGH = np.array([*CANDIDATE_FEATURES.values()], dtype=np.float64).T.copy()
_JOB_LOW, _JOB_HIGH = np.array([*JOB_FEATURES.values()], dtype=np.float64).T.copy()
_CLUSTER_LOW, _CLUSTER_HIGH = np.array([*CLUSTER_FEATURES.values()], dtype=np.float64).T.copy()


class Net(NamedTuple):
    """The weights of a set network, each layer as [inputs, outputs]; `skep.learn.net`."""

    job_0: Floats
    job_0_bias: Floats
    job_2: Floats
    job_2_bias: Floats
    cluster: Floats
    cluster_bias: Floats
    of_job: Floats
    of_context: Floats
    of_candidate: Floats
    head_bias: Floats
    score: Floats
    score_bias: Floats
    skip: Floats
    hold: Floats
    hold_bias: Floats
    hold_score: Floats
    hold_score_bias: Floats
    sees_jobs: Ints
    """[1] 0: the part of the jobs is 0 throughout, and is left out."""


def net_of(weights: Mapping[str, NDArray[Any]]) -> Net:
    """Return weights by the names of `skep.learn.net.shapes` as the kernels have them."""

    def turned(name: str) -> Floats:
        return np.ascontiguousarray(weights[name].T, dtype=np.float64)

    def bias(name: str) -> Floats:
        return np.ascontiguousarray(weights[name], dtype=np.float64)

    job = weights["job.0.weight"].shape[0]
    head = turned("head.0.weight")
    hold = turned("hold.0.weight")
    sees = np.any(head[: 5 * job] != 0) or np.any(hold[: 4 * job] != 0)
    return Net(
        turned("job.0.weight"),
        bias("job.0.bias"),
        turned("job.2.weight"),
        bias("job.2.bias"),
        turned("cluster.0.weight"),
        bias("cluster.0.bias"),
        np.ascontiguousarray(head[:job]),
        np.ascontiguousarray(head[job : 6 * job]),
        np.ascontiguousarray(head[6 * job :]),
        bias("head.0.bias"),
        bias("head.2.weight")[0].copy(),
        bias("head.2.bias"),
        bias("skip.weight")[0].copy(),
        hold,
        bias("hold.0.bias"),
        bias("hold.2.weight")[0].copy(),
        bias("hold.2.bias"),
        np.array([int(sees)]),
    )


class Work(NamedTuple):
    """Room for what is computed of one environment."""

    shares: Floats
    """[n] share of each row, and at the end the price."""
    worths: Floats
    """[SIZES] of one job."""
    slopes: Floats
    """[n (SIZES + 1)]"""
    takes: Floats
    owner: Ints
    """[n (SIZES + 1)] the row of each step."""
    job: Floats
    """[F]"""
    cluster: Floats
    """[G]"""
    candidate: Floats
    """[A]"""
    hidden: Floats
    """[4, H] of one job, for layers."""
    embedded: Floats
    """[n, job]"""
    context: Floats
    """[5 job]"""
    shared: Floats
    """[head]"""
    found: Floats
    """[4] the best candidate: its score, row, workers and kind; then that of doing nothing."""
    seen: Floats
    """[2, F + G + A] the least and the most of every feature; [2, 0]: they are not noted."""
    noise: Floats
    """Added to scores, one number after the other and from the beginning again; [0]: nothing."""
    drawn: Ints
    """[1] numbers of `noise` that were used."""


def work_of(rows: int, net: Net, *, ranges: bool = False, noise: Floats | None = None) -> Work:
    """Return room for up to so many rows.

    Args:
        rows: The most rows.
        net: The network.
        ranges: Those of features are noted.
        noise: Is added to scores, see `Work`.
    """
    job, head = net.job_0.shape[1], net.head_bias.shape[0]
    seen = np.zeros((2, F + G + A if ranges else 0))
    seen[0], seen[1] = np.inf, -np.inf
    return Work(
        np.zeros(rows + 1),
        np.zeros(SIZES),
        np.zeros(rows * (SIZES + 1)),
        np.zeros(rows * (SIZES + 1)),
        np.zeros(rows * (SIZES + 1), np.int64),
        np.zeros(F),
        np.zeros(G),
        np.zeros(A),
        np.zeros((4, max(job, head))),
        np.zeros((rows, job)),
        np.zeros(5 * job),
        np.zeros(head),
        np.zeros(5),
        seen,
        np.zeros(0) if noise is None else noise,
        np.zeros(1, np.int64),
    )


# --- times, sums, shares -------------------------------------------------------------------------


@inner
def _ran(row: Floats, now: float) -> float:
    went = max(now - row[c.SINCE], 0.0) if row[c.PHASE] == c.RUNNING else 0.0
    return float(row[c.SERVED] + went)


@inner
def _remaining(row: Floats, now: float) -> float:
    """Return seconds; below 0: not known."""
    if row[c.LEFT] < 0:
        return -1.0
    went = max(now - row[c.SINCE], 0.0) if row[c.PHASE] == c.RUNNING else 0.0
    return max(float(row[c.LEFT] - went), 0.0)


@inner
def is_queued(row: Floats) -> bool:
    """Return whether a job may be placed (`features.queued`)."""
    return bool(row[c.PHASE] == c.WAITING or row[c.PHASE] == c.AWAY)


@inner
def _sums(raw: Floats, n: int, cluster: Floats, now: float) -> None:
    """Write the sums over jobs (`features.sums`)."""
    for at in range(c.QUEUED_JOBS, c.JOBS + 1):
        cluster[at] = 0.0
    cluster[c.JOBS] = n
    for i in range(n):
        row = raw[i]
        remaining = _remaining(row, now)
        gpus = row[c.EACH] * row[c.WORKERS]
        known = 1.0 if remaining >= 0 else 0.0
        work = max(remaining, 0.0) * gpus
        if is_queued(row):
            cluster[c.QUEUED_JOBS] += 1
            cluster[c.QUEUED_GPUS] += gpus
            cluster[c.QUEUED_WORK] += work
            cluster[c.QUEUED_KNOWN] += known
            cluster[c.QUEUED_AGE] += max(now - row[c.SUBMITTED], 0.0)
        else:
            cluster[c.HELD_JOBS] += 1
            cluster[c.HELD_GPUS] += gpus
            cluster[c.HELD_AGE] += max(now - row[c.SUBMITTED], 0.0)
            cluster[c.HELD_WORK] += work
            cluster[c.HELD_KNOWN] += known


@inner
def _rate_now(row: Floats) -> float:
    for k in range(SIZES):
        if row[c.SIZE + k] == row[c.WORKERS] and row[c.RATE + k] > 0:
            return float(row[c.RATE + k])
    return 0.0


@inner
def _worth(row: Floats, k: int, rate: float, remaining: float) -> float:
    """Return what a job counts at a size; -inf: not known (`shares.worths`)."""
    here = row[c.SIZE + k] == row[c.WORKERS]
    speed = row[c.RATE + k] / rate if rate > 0 else (1.0 if here else 0.0)
    if row[c.SIZE + k] <= 0 or speed <= 0:
        return -np.inf
    left = remaining / speed
    if not here and row[c.PHASE] == c.RUNNING:
        left += row[c.PAUSE]
    return -math.log(left + SOON)


@inner
def _share_out(raw: Floats, n: int, cluster: Floats, now: float, w: Work) -> None:
    """Write share and price of every row (`shares.share_out`)."""
    budget, steps = cluster[c.FREE], 0
    price = w.shares.shape[0] - 1
    for i in range(n):
        row = raw[i]
        remaining = _remaining(row, now)
        waits = is_queued(row)
        changes = row[c.PHASE] == c.RUNNING and row[c.RESIZABLE] > 0
        if not (waits or changes) or remaining < 0:
            w.shares[i] = row[c.WORKERS]
            continue
        rate, each = _rate_now(row), max(row[c.EACH], 1.0)
        base, have = 0.0, 0.0
        for k in range(SIZES):
            w.worths[k] = _worth(row, k, rate, remaining)
        for k in range(SIZES - 1, -1, -1):
            if w.worths[k] > -np.inf:
                base, have = row[c.SIZE + k] * each, w.worths[k]
        w.shares[i] = 0.0 if waits else base / each
        if not waits:
            budget += row[c.WORKERS] * each - base
        elif base > 0:
            w.slopes[steps] = -FIRST / max(math.exp(-have) * base, 1.0)
            w.owner[steps], w.takes[steps] = i, base
            steps += 1
        for _ in range(SIZES):
            best, slope = -1, 0.0
            for k in range(SIZES):
                more = row[c.SIZE + k] * each - base
                gain = w.worths[k] - have
                if more > 0 and gain > 0 and gain / more > slope:
                    best, slope = k, gain / more
            if best < 0:
                break
            w.slopes[steps], w.owner[steps] = -slope, i
            w.takes[steps] = row[c.SIZE + best] * each - base
            base, have = row[c.SIZE + best] * each, w.worths[best]
            steps += 1
    order = np.argsort(w.slopes[:steps], kind="mergesort")
    filled, last, scarce = 0.0, 0.0, False
    for at in range(steps):
        step = order[at]
        filled += w.takes[step]
        if filled > budget:
            scarce = True
            break
        i = w.owner[step]
        w.shares[i] += w.takes[step] / max(raw[i, c.EACH], 1.0)
        last = -w.slopes[step]
    w.shares[price] = last if scarce else 0.0


# --- features ------------------------------------------------------------------------------------


@inner
def _clip(made: Floats, low: Floats, high: Floats, seen: Floats, at: int) -> None:
    for i in range(made.shape[0]):
        made[i] = min(max(made[i], low[i]), high[i])
    if seen.shape[1] > at:
        for i in range(made.shape[0]):
            seen[0, at + i] = min(seen[0, at + i], made[i])
            seen[1, at + i] = max(seen[1, at + i], made[i])


@inner
def _flag(true: bool) -> float:
    return 1.0 if true else 0.0


@inner
def _log_seconds(value: float) -> float:
    return math.log1p(value) / LOG_SECONDS


@inner
def _log_size(value: float) -> float:
    return math.log2(value) / LOG_SIZE


@inner
def _log_ratio(over: float, under: float) -> float:
    """Return `_log_size` of a ratio of whole numbers."""
    if over < LOGS.shape[0] and under < LOGS.shape[0]:
        return float(LOGS[int(over)] - LOGS[int(under)])
    return math.log2(over / under) / LOG_SIZE


@inner
def _need(workers: float, each: float, node: float) -> float:
    """Return on how many nodes a gang has to be at least (`features.nodes_needed`)."""
    return math.ceil(workers / max(node // max(each, 1.0), 1.0))


@inner
def _cluster_features(row: Floats, w: Work) -> None:
    """Write the features of a cluster (`features.cluster_features`)."""
    f = w.cluster
    gpus, node = max(row[c.GPUS], 1.0), max(row[c.NODE_GPUS], 1.0)
    free, waits = row[c.FREE], max(row[c.QUEUED_JOBS], 1.0)
    largest = 0
    for k in range(NODE_MAX + 1):
        if row[c.ROOM + k] > 0:
            largest = k
    known = _flag(row[c.HISTORY] >= 2 * HOUR)
    f[CF.queued_gpus] = math.log1p(row[c.QUEUED_GPUS] / gpus) / 2.0
    f[CF.queued_work] = _log_seconds(row[c.QUEUED_WORK] / gpus)
    f[CF.held_work] = _log_seconds(row[c.HELD_WORK] / gpus)
    f[CF.queued_age] = _log_seconds(row[c.QUEUED_AGE] / waits)
    f[CF.load] = math.log1p(max(row[c.ARRIVED_WORK], 0.0) / gpus * known / HOUR)
    f[CF.free] = free / gpus
    f[CF.whole_nodes] = row[c.WHOLE] / max(row[c.NODE_COUNT], 1.0)
    f[CF.queued_share] = row[c.QUEUED_JOBS] / max(row[c.JOBS], 1.0)
    f[CF.queued_known] = row[c.QUEUED_KNOWN] / waits
    f[CF.held_known] = row[c.HELD_KNOWN] / max(row[c.HELD_JOBS], 1.0)
    f[CF.largest] = largest / node
    f[CF.scattered] = (free - row[c.WHOLE] * node) / max(free, 1.0)
    f[CF.history] = known
    f[CF.empty_queue] = _flag(row[c.QUEUED_JOBS] == 0)
    f[CF.node] = _log_size(node)
    change = (row[c.ARRIVED] + 1.0) / (row[c.ARRIVED_BEFORE] + 1.0)
    f[CF.burst] = _log_size(change) * known
    _clip(f, _CLUSTER_LOW, _CLUSTER_HIGH, w.seen, F)


@inner
def job_of(row: Floats, cluster: Floats, now: float, w: Work) -> None:
    """Write the features of a job (`features.job_features`)."""
    f = w.job
    f[:] = 0.0
    phase, workers, each = row[c.PHASE], max(row[c.WORKERS], 1.0), max(row[c.EACH], 1.0)
    gpus, node = workers * each, max(cluster[c.NODE_GPUS], 1.0)
    age, ran, remaining = max(now - row[c.SUBMITTED], 0.0), _ran(row, now), _remaining(row, now)
    known, left = _flag(remaining >= 0), max(remaining, 0.0)
    total, waited = max(ran + left, 1.0), max(age - ran, 0.0)
    started = row[c.SINCE] if row[c.SINCE] > 0 else row[c.SUBMITTED]
    f[JF.age], f[JF.ran] = _log_seconds(age), _log_seconds(ran)
    f[JF.in_phase] = _log_seconds(max(now - started, 0.0))
    f[JF.remaining], f[JF.work] = _log_seconds(left), math.log1p(left * gpus) / LOG_WORK
    f[JF.waited_ratio] = math.log1p(waited / total * known)
    f[JF.waited_share], f[JF.progress] = waited / max(age, 1.0), ran / total * known
    f[JF.waits], f[JF.away] = _flag(phase == c.WAITING), _flag(phase == c.AWAY)
    f[JF.runs], f[JF.starts] = _flag(phase == c.RUNNING), _flag(phase in (c.RESERVED, c.STARTING))
    f[JF.leaves] = _flag(phase in (c.SUSPENDED, c.STOPPING))
    f[JF.gang], f[JF.gang_nodes] = _log_size(gpus), _log_size(max(gpus / node, 1.0))
    f[JF.may_grow] = _log_size(max(row[c.MOST] / workers, 1.0))
    f[JF.may_shrink] = _log_size(max(workers / max(row[c.LEAST], 1.0), 1.0))
    f[JF.slow_near] = _log_size(max(row[c.SLOW_NEAR], 1.0))
    f[JF.slow_far] = _log_size(max(row[c.SLOW_FAR], 1.0))
    f[JF.slow_now] = _log_size(max(row[c.SLOW_NOW], 1.0))
    f[JF.spread] = _log_size(max(row[c.NODES] / _need(workers, each, node), 1.0))
    f[JF.resizable], f[JF.borrows], f[JF.doubt] = row[c.RESIZABLE], row[c.BORROWS], row[c.DOUBT]
    f[JF.doubt_known], f[JF.pause_known] = _flag(row[c.DOUBT] > 0), _flag(row[c.PAUSE] > 0)
    f[JF.slowdown_known], f[JF.pause] = _flag(row[c.SLOW_NEAR] > 0), _log_seconds(row[c.PAUSE])
    f[JF.remaining_known], f[JF.elastic] = known, _flag(row[c.MOST] > row[c.LEAST])
    f[JF.worker], f[JF.gang_share] = each / node, gpus / max(cluster[c.GPUS], 1.0)
    _rate_features(row, workers, f)
    _clip(f, _JOB_LOW, _JOB_HIGH, w.seen, 0)


@inner
def _rate_features(row: Floats, workers: float, f: Floats) -> None:
    """Write what other sizes make of a job (`features.rate_gains`)."""
    f[JF.efficiency] = 1.0
    rate, there = _rate_now(row), 0
    for k in range(SIZES):
        there += row[c.RATE + k] > 0
    if rate <= 0 or there < 2:
        return
    f[JF.rates_known] = 1.0
    best, best_size, any_, fewest = 0.0, workers, False, 0.0
    for k in range(SIZES):
        size, speed = row[c.SIZE + k], row[c.RATE + k] / rate
        if speed <= 0:
            continue
        if fewest == 0.0:
            fewest = speed / size
        if speed >= best:
            best, best_size = speed, size
        if size > workers:
            gain = (speed - 1.0) / (size / workers - 1.0)
            if not any_:
                f[JF.next_gain] = f[JF.ahead_gain] = gain
            any_ = True
            f[JF.ahead_gain] = max(f[JF.ahead_gain], gain)
    f[JF.best_speed], f[JF.best_size] = _log_size(best), _log_size(best_size / workers)
    f[JF.efficiency] = 1.0 / (workers * fewest)


@inner
def _fit(cluster: Floats, workers: float, each: float) -> float:
    """Return on how many nodes a gang goes, the emptiest first; 0: it does not fit."""
    if workers * each > cluster[c.FREE]:
        return 0.0
    left, nodes = workers, 0.0
    for k in range(NODE_MAX, 0, -1):
        room = cluster[c.ROOM + k]
        slots = k // max(each, 1.0)
        if room <= 0 or slots < 1:
            continue
        if slots * room >= left:
            return nodes + math.ceil(left / slots)
        left -= slots * room
        nodes += room
    return 0.0


@inner
def _candidate(
    row: Floats, cluster: Floats, now: float, chosen: tuple[float, int, bool], f: Floats
) -> float:
    """Write the features of a candidate, but for those of shares.

    Args:
        row: Of its job.
        cluster: The row of the cluster.
        now: Seconds.
        chosen: Its workers and kind, and whether one counts too that further moves make possible: a
            gang is spread only where it does not fit on as few nodes as it needs.
        f: The features.

    Returns:
        Its remaining seconds on as few nodes as it needs; below 0: it is not possible.
    """
    workers, kind, later = chosen
    each, before = row[c.EACH], max(row[c.WORKERS], 1.0)
    node = max(cluster[c.NODE_GPUS], 1.0)
    need, nodes, fits = _need(workers, each, node), max(row[c.NODES], 1.0), True
    if kind != SHRINK:
        placed = _fit(cluster, workers - before if kind == GROW else workers, each)
        close = placed <= need
        fits = not (kind == SPREAD and close)
        if placed == 0 or (kind == LOCAL and not close) or not (fits or later):
            return -1.0
        if kind == LOCAL:
            nodes = need
        elif kind == SPREAD:
            nodes = placed
        else:
            nodes += placed - 1.0
    nodes = max(nodes, need)
    resize = kind >= GROW
    takes = ((workers - before) if resize else workers) * each
    free = cluster[c.FREE]
    rated, speed, gain, ahead = _speeds(row, workers, before)
    remaining, ran = _remaining(row, now), _ran(row, now)
    left = max(remaining, 0.0)
    known = remaining >= 0 and (workers == before or rated)
    held = max(row[c.SLOW_NOW], 1.0) if resize else 1.0
    slow, alone = _slowdown(row, nodes, need), left / (speed * held)
    there = alone * slow
    saved = left - there if resize else 0.0
    waited = max(max(now - row[c.SUBMITTED], 0.0) - ran, 0.0) / max(ran + left, 1.0)
    ratio = math.log1p(waited) if remaining >= 0 else 0.0
    f[:] = 0.0
    f[KF.takes_free] = takes / max(free, 1.0)
    f[KF.leaves_whole] = _flag(takes <= free - cluster[c.WHOLE] * node or takes % node == 0)
    f[KF.nodes], f[KF.slowdown] = _log_ratio(nodes, need), _log_size(slow) if slow > 1 else 0.0
    f[KF.remaining] = _log_seconds(there)
    f[KF.shortest] = -math.log1p(there * workers * each) / LOG_WORK
    gone = _log_seconds(abs(saved) / max(abs(takes), 1.0))
    f[KF.saved] = gone if saved > 0 else -gone
    f[KF.waited_ratio], f[KF.spread_waited] = ratio, ratio if kind == SPREAD else 0.0
    f[KF.pause] = row[c.PAUSE] / max(left, 1.0) if resize and known else 0.0
    f[KF.fits] = _flag(fits)
    f[KF.local], f[KF.spread] = _flag(kind == LOCAL), _flag(kind == SPREAD)
    f[KF.grows], f[KF.shrinks] = _flag(kind == GROW), _flag(kind == SHRINK)
    f[KF.takes] = abs(takes) / max(cluster[c.GPUS], 1.0)
    f[KF.size], f[KF.remaining_known] = _log_ratio(workers, before), _flag(known)
    f[KF.speed], f[KF.gain], f[KF.ahead_gain] = _log_size(speed), gain, ahead
    f[KF.doubt] = row[c.DOUBT]
    return alone


@inner
def _against_share(
    row: Floats, now: float, workers: float, alone: float, given: tuple[float, float], f: Floats
) -> None:
    """Write the features that compare a candidate with a share (`candidates.write_shares`)."""
    before, resize = max(row[c.WORKERS], 1.0), f[KF.grows] + f[KF.shrinks] > 0
    share, price = given
    off = _log_ratio(workers, share) if share > 0 else 0.0
    f[KF.no_share] = _flag(share <= 0)
    f[KF.over_share], f[KF.under_share] = off, -off
    if resize:
        f[KF.to_share] = (abs(_log_ratio(before, share)) if share > 0 else 0.0) - abs(off)
    left = max(_remaining(row, now), 0.0)
    takes = ((workers - before) if resize else workers) * row[c.EACH]
    adds = math.log((left + SOON) / (alone + SOON))
    if resize and price > 0 and adds > 0 and takes > 0 and f[KF.remaining_known] > 0:
        f[KF.worth] = _log_size(adds / (takes * price))


@inner
def _slowdown(row: Floats, nodes: float, need: float) -> float:
    over = nodes - need
    if over <= 0:
        return 1.0
    near, far = max(row[c.SLOW_NEAR], 1.0), max(row[c.SLOW_FAR], 1.0)
    reach = max(row[c.FAR_NODES] - need - 1, 1.0)
    part = min(max((over - 1) / reach, 0.0), 1.0)
    return float(near + (max(far, near) - near) * part)


@inner
def _speeds(row: Floats, size: float, now: float) -> tuple[bool, float, float, float]:
    """Return whether the rate is known, over that now, and what it gains (`candidates`)."""
    rate, chosen, gain, ahead, any_ = _rate_now(row), 0.0, 0.0, -np.inf, False
    for k in range(SIZES):
        other = row[c.SIZE + k]
        speed = row[c.RATE + k] / rate if rate > 0 else 0.0
        each = (speed - 1.0) / (other / now - 1.0) if speed > 0 and other != now else 0.0
        if other == size:
            chosen = max(chosen, speed)
            gain = each if not any_ else max(gain, each)
            any_ = True
        if other >= size:
            ahead = max(ahead, each)
    if chosen <= 0:
        return False, 1.0, 0.0, 0.0
    return True, chosen, gain, ahead


# --- the network ---------------------------------------------------------------------------------


@inner
def _layer(given: Floats, weights: Floats, bias: Floats, made: Floats) -> None:
    """Write relu(given @ weights + bias)."""
    outputs = bias.shape[0]
    made[:outputs] = bias
    for i in range(weights.shape[0]):
        value = given[i]
        if value != 0.0:
            for h in range(outputs):
                made[h] += value * weights[i, h]
    for h in range(outputs):
        made[h] = max(made[h], 0.0)


@inner
def _add(given: Floats, weights: Floats, made: Floats) -> None:
    """Add given @ weights."""
    for i in range(weights.shape[0]):
        value = given[i]
        if value != 0.0:
            for h in range(weights.shape[1]):
                made[h] += value * weights[i, h]


@inner
def _context(raw: Floats, n: int, cluster: Floats, now: float, net: Net, w: Work) -> float:
    """Write embeddings and what candidates share; return the score of doing nothing more."""
    size = net.job_0.shape[1]
    w.context[:] = 0.0
    if net.sees_jobs[0] == 1:
        counts = np.zeros(2)
        for i in range(n):
            job_of(raw[i], cluster, now, w)
            _layer(w.job, net.job_0, net.job_0_bias, w.hidden[0])
            _layer(w.hidden[0], net.job_2, net.job_2_bias, w.embedded[i])
            part = 0 if is_queued(raw[i]) else 1
            counts[part] += 1
            base = 2 * part * size
            for h in range(size):
                w.context[base + h] += w.embedded[i, h]
                w.context[base + size + h] = max(w.context[base + size + h], w.embedded[i, h])
        for part in range(2):
            for h in range(size):
                w.context[2 * part * size + h] /= max(counts[part], 1.0)
    _layer(w.cluster, net.cluster, net.cluster_bias, w.context[4 * size :])
    w.shared[:] = net.head_bias
    _add(w.context, net.of_context, w.shared)
    _layer(w.context, net.hold, net.hold_bias, w.hidden[1])
    held = net.hold_score_bias[0]
    for h in range(net.hold_bias.shape[0]):
        held += w.hidden[1, h] * net.hold_score[h]
    return float(held)


@inner
def _score(net: Net, w: Work, base: Floats) -> float:
    """Return the score of the candidate whose features are in `w.candidate`."""
    hidden, outputs = w.hidden[3], net.head_bias.shape[0]
    hidden[:outputs] = base[:outputs]
    _add(w.candidate, net.of_candidate, hidden)
    score = net.score_bias[0]
    for h in range(outputs):
        if hidden[h] > 0.0:
            score += hidden[h] * net.score[h]
    for i in range(A):
        score += w.candidate[i] * net.skip[i]
    return float(score)


@inner
def drawn(w: Work) -> float:
    """Return the next number of the noise; 0 if there is none."""
    if w.noise.shape[0] == 0:
        return 0.0
    w.drawn[0] += 1
    return float(w.noise[w.drawn[0] % w.noise.shape[0]])


@inner
def choice(row: Floats, place: int) -> tuple[float, int]:
    """Return the workers and the kind of a candidate of a job; 0 workers: there is none."""
    if is_queued(row):
        if place < SIZES:
            return float(row[c.SIZE + place]), LOCAL
        return float(row[c.WORKERS] if row[c.WORKERS] > 1 else 0.0), SPREAD
    if row[c.PHASE] != c.RUNNING or row[c.RESIZABLE] <= 0 or place >= STEPS.shape[0]:
        return 0.0, LOCAL
    here = 0
    for k in range(SIZES - 1, -1, -1):
        if row[c.SIZE + k] == row[c.WORKERS]:
            here = k
    at = here + STEPS[place]
    if at < 0 or at >= SIZES:
        return 0.0, LOCAL
    return float(row[c.SIZE + at]), (GROW if STEPS[place] > 0 else SHRINK)


@inner
def option_of(
    raw: Floats, i: int, cluster: Floats, now: float, chosen: tuple[float, int, bool], w: Work
) -> bool:
    """Write the features of a candidate of row i, which `_candidate` chooses alike.

    Returns:
        Whether it is possible.
    """
    row = raw[i]
    alone = _candidate(row, cluster, now, chosen, w.candidate)
    if alone < 0:
        return False
    given = w.shares[i], w.shares[w.shares.shape[0] - 1]
    _against_share(row, now, chosen[0], alone, given, w.candidate)
    _clip(w.candidate, _LOW, _HIGH, w.seen, F + G)
    return True


@inner
def best(raw: Floats, n: int, cluster: Floats, now: float, net: Net, w: Work) -> None:
    """Write the best possible candidate of all jobs into `w.found`.

    Args:
        raw: Rows of jobs.
        n: How many there are.
        cluster: The row of the cluster; sums are written.
        now: Seconds.
        net: The network.
        w: Room to compute in.
    """
    _sums(raw, n, cluster, now)
    _share_out(raw, n, cluster, now, w)
    _cluster_features(cluster, w)
    held = _context(raw, n, cluster, now, net, w) + drawn(w)
    w.found[0], w.found[1], w.found[4] = -np.inf, -1.0, held
    outputs = net.head_bias.shape[0]
    for i in range(n):
        row, ready = raw[i], False
        for place in range(CHOICES):
            workers, kind = choice(row, place)
            if workers <= 0 or not option_of(raw, i, cluster, now, (workers, kind, False), w):
                continue
            if not ready:
                w.hidden[2, :outputs] = w.shared
                if net.sees_jobs[0] == 1:
                    _add(w.embedded[i], net.of_job, w.hidden[2])
                ready = True
            score = _score(net, w, w.hidden[2]) + drawn(w)
            if score > w.found[0]:
                w.found[0], w.found[1] = score, float(i)
                w.found[2], w.found[3] = workers, float(kind)


# --- several moves at once -----------------------------------------------------------------------


@inner
def _take(cluster: Floats, workers: float, each: float) -> None:
    """Take room for workers from the nodes of a cluster, as packing would (`decide.take`)."""
    cluster[c.FREE] -= workers * each
    node = min(int(cluster[c.NODE_GPUS]), NODE_MAX)
    while workers > 0:
        at = -1
        for free in range(NODE_MAX + 1):
            if cluster[c.ROOM + free] != 0 and (at < workers * each):
                at = free
        number = min(workers, at // each)
        if number < 1:
            return
        then = at - int(number * each)
        cluster[c.ROOM + at] -= 1
        cluster[c.ROOM + then] += 1
        cluster[c.WHOLE] += (then == node) - (at == node)
        workers -= number


@inner
def _score_all(raw: Floats, cluster: Floats, now: float, net: Net, w: Work, left: Floats) -> None:
    """Write the scores of the candidates that are left.

    Args:
        raw: Rows of jobs.
        cluster: The row of the cluster.
        now: Seconds.
        net: The network; its context is written.
        w: Room to compute in.
        left: [n CHOICES, 2] score, and 1 if it is possible now, 0 if later, -1 if it is left out.
    """
    outputs = net.head_bias.shape[0]
    for at in range(left.shape[0]):
        i, place = at // CHOICES, at % CHOICES
        if left[at, 1] < 0:
            continue
        workers, kind = choice(raw[i], place)
        if workers <= 0 or not option_of(raw, i, cluster, now, (workers, kind, True), w):
            left[at, 1] = -1.0
            continue
        left[at, 1] = w.candidate[KF.fits]
        w.hidden[2, :outputs] = w.shared
        if net.sees_jobs[0] == 1:
            _add(w.embedded[i], net.of_job, w.hidden[2])
        left[at, 0] = _score(net, w, w.hidden[2])


@inner
def _keep_ranked(left: Floats) -> None:
    """Leave out all candidates but the RANKED best."""
    scores = -left[left[:, 1] >= 0, 0]
    if scores.shape[0] <= RANKED:
        return
    scores.sort()
    least, count = -scores[RANKED - 1], 0
    for at in range(left.shape[0]):
        count += left[at, 1] >= 0 and left[at, 0] > least
    for at in range(left.shape[0]):
        if left[at, 1] >= 0 and left[at, 0] <= least:
            count += left[at, 0] == least
            if left[at, 0] < least or count > RANKED:
                left[at, 1] = -1.0


@compiled
def decide(raw: Floats, cluster: Floats, now: float, by: tuple[Net, Work], moves: Floats) -> int:
    """Write what a network would do, best move first, as `skep.learn.decide` does.

    Args:
        raw: Rows of jobs; they are changed to what they are after the moves.
        cluster: The row of the cluster, likewise.
        now: Seconds.
        by: The network, and room to compute in for as many rows.
        moves: [K, 3] row, workers, and whether it is spread.

    Returns:
        How many moves there are.
    """
    n, (net, w) = raw.shape[0], by
    left = np.zeros((n * CHOICES, 2))
    for count in range(moves.shape[0]):
        _sums(raw, n, cluster, now)
        if count == 0:
            _share_out(raw, n, cluster, now, w)
        _cluster_features(cluster, w)
        held = _context(raw, n, cluster, now, net, w)
        _score_all(raw, cluster, now, net, w, left)
        if count == 0:
            _keep_ranked(left)
        best_at, best_score = -1, held
        for at in range(n * CHOICES):
            if left[at, 1] > 0 and left[at, 0] > best_score:
                best_at, best_score = at, left[at, 0]
        if best_at < 0:
            return count
        i = best_at // CHOICES
        workers, kind = choice(raw[i], best_at % CHOICES)
        moves[count, 0], moves[count, 1], moves[count, 2] = i, workers, _flag(kind == SPREAD)
        starts, before = kind <= SPREAD, raw[i, c.WORKERS]
        if starts or workers > before:
            _take(cluster, workers if starts else workers - before, raw[i, c.EACH])
        raw[i, c.WORKERS] = workers
        if starts:
            raw[i, c.PHASE], raw[i, c.SINCE] = c.STARTING, now
        left[i * CHOICES : (i + 1) * CHOICES, 1] = -1.0
    return int(moves.shape[0])
