"""What a model may do: every job's candidates, whether they fit, and what they are like.

A job has CHOICES places for candidates. A waiting one may be started on as few nodes as it needs,
in each of its sizes, or spread, in the size that it asks for. A running one whose size can be
changed may get one of the next two sizes up and down.

    rows of jobs --> Options: changed with the job only
    Options, room of the cluster --> Placed
    Options, Placed, times --> features
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats
from skep.learn.curves import EDGE, GAIN, SIZE, SPEED, Curves, curves_of
from skep.learn.features import (
    FLAG,
    LOG_SECONDS,
    LOG_SIZE,
    LOG_WORK,
    LONG,
    SHARE,
    SIGNED,
    WAITED_RATIO,
    F,
    Matrix,
    Times,
    cluster_features,
    empty,
    holding,
    job_features,
    nodes_needed,
    queued,
    times,
    write_steady,
    write_sums,
    write_timed,
)
from skep.learn.shares import SOON, Shares, share_out

LOCAL, SPREAD, GROW, SHRINK = range(4)
KINDS = 4
"""Kinds of candidates."""
CHOICES = c.SIZES + 1
"""Of a waiting job: its sizes, and spread. Of a running one: the sizes next below and above."""
STEPS = (-1, 1, -2, 2)
"""Sizes of a running job, by place: so many sizes up."""

CANDIDATE_FEATURES: dict[str, tuple[float, float]] = {
    # These change with time and with what is free.
    "takes_free": FLAG,  # share of the free GPUs
    "leaves_whole": FLAG,  # it takes whole nodes, or GPUs of nodes in use only
    "nodes": SHARE,  # log: over those that it needs
    "slowdown": SHARE,  # log: there, over that on as few nodes as possible
    "remaining": LONG,  # log seconds, there
    "shortest": (-2.5, 0.0),  # minus log of remaining GPU-seconds there: the rule `spf`
    "saved": SIGNED,  # log seconds that it ends earlier per GPU more, or later per GPU less
    "waited_ratio": LONG,  # log: waited over its time in all: the rule `hold` relaxes by it
    "spread_waited": LONG,  # the same if it is spread
    "pause": FLAG,  # share of what remains
    "fits": FLAG,
    # These change when something happens to the job.
    "local": FLAG,
    "spread": FLAG,
    "grows": FLAG,
    "shrinks": FLAG,
    "takes": FLAG,  # share of the cluster's GPUs
    "size": SIGNED,  # log: workers over those that it has or asks for
    "remaining_known": FLAG,
    "speed": SIGNED,  # log: its rate there over that now
    "gain": SIGNED,  # rate added per size added, as parts of now
    "ahead_gain": SIGNED,  # the most of that for this size and all beyond
    "doubt": FLAG,
    # These compare it with what the job would have if GPUs went to where they gain the most.
    "no_share": FLAG,  # others gain more from its GPUs
    "over_share": SHARE,  # log: its size over its share
    "under_share": SHARE,  # log: its share over its size
    "to_share": SIGNED,  # log: by how much a change brings it nearer to its share
    "worth": SIGNED,  # log: what growing adds per GPU, over what the last GPU shared out adds
}
"""Features of a candidate with their ranges, in order."""
A = len(CANDIDATE_FEATURES)
FITS, SPREADS = 10, 12
SHARES = A - 5
"""The last features of a candidate compare it with the share of its job."""
NOW = 11
"""The first features of a candidate change with time and with what is free."""
_LOW, _HIGH = np.array([*CANDIDATE_FEATURES.values()], dtype=np.float32).T
_ROOMS = np.arange(c.NODE_MAX, 0.0, -1.0)
"""Free GPUs of nodes, most first."""

(
    WORKERS,  # 0: there is no such candidate
    KIND,
    EACH,
    MORE,  # workers that need room
    TAKES,  # GPUs more than now; negative: fewer
    NEED,  # nodes that it needs at least
    ON,  # nodes where it stays
    FACTOR,  # its time at the size, over that now, both on as few nodes as possible
    WORK,  # GPUs at the size
    NEAR,  # slowdown on one node more than needed
    FAR,  # what is added to it on many more
    REACH,  # on so many more than one
    PAUSE,  # seconds without progress
    KNOWN,  # its remaining time is known there
    SIZED,  # workers, at least one
    PRESENT,  # workers that it has, or would begin with
    RESIZES,  # it gets another size
    CHANGE,  # GPUs more or fewer, at least one
    PAYS,  # GPUs more, if it grows and its remaining time is known there; else infinite
) = range(19)
"""Numbers of an option."""
OPTION = 19


class Options(NamedTuple):
    """Candidates as far as the rows of their jobs say."""

    numbers: Floats
    """`[.., n, CHOICES, OPTION]`."""
    features: Matrix
    """`[.., n, CHOICES, A]`: those that change with the job only; the others are 0."""


def may_change(raw: Floats) -> Flags:
    """Return which jobs have candidates: those that may be placed, or get another size."""
    resize: Flags = (raw[..., c.PHASE] == c.RUNNING) & (raw[..., c.RESIZABLE] > 0)
    return queued(raw) | resize


def options(raw: Floats, cluster: Floats, curves: Curves) -> Options:
    """Return the candidates of jobs.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters; only their numbers of GPUs matter.
        curves: What the jobs make of other sizes.
    """
    numbers = np.zeros((*raw.shape[:-1], CHOICES, OPTION))
    features = np.zeros((*raw.shape[:-1], CHOICES, A), dtype=np.float32)
    now, each = np.maximum(raw[..., c.WORKERS], 1.0), raw[..., c.EACH]
    waits = queued(raw)
    runs = (raw[..., c.PHASE] == c.RUNNING) & (raw[..., c.RESIZABLE] > 0)
    state = np.where(waits, np.where(now > 1, 1, 2), runs * 3)
    found = curves.at(
        _FIRST.take(state, axis=0) + _STEP.take(state, axis=0) * curves.here[..., None]
    )
    kinds = _KINDS.take(runs.astype(np.int64), axis=0)
    workers, speeds = found[..., SIZE], found[..., SPEED]
    now, each, resize = now[..., None], each[..., None], runs[..., None]
    size, rated = np.maximum(workers, 1.0), speeds > 0
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)[..., None, None]
    near = np.maximum(raw[..., c.SLOW_NEAR], 1.0)
    more = workers - now * resize
    need = nodes_needed(size, each, node_gpus)
    before = np.where(runs, np.maximum(raw[..., c.SLOW_NOW], 1.0), 1.0)[..., None]
    numbers[..., WORKERS], numbers[..., KIND], numbers[..., EACH] = workers, kinds, each
    numbers[..., MORE] = np.maximum(more, 0.0)
    numbers[..., TAKES] = takes = more * each
    numbers[..., NEED] = need
    numbers[..., ON] = np.maximum(raw[..., c.NODES], 1.0)[..., None] * resize
    numbers[..., FACTOR] = 1.0 / (np.where(rated, speeds, 1.0) * before)
    numbers[..., WORK], numbers[..., SIZED] = size * each, size
    numbers[..., PRESENT], numbers[..., RESIZES] = size - more * resize, resize
    numbers[..., CHANGE] = np.maximum(np.abs(takes), 1.0)
    numbers[..., NEAR] = near[..., None]
    numbers[..., FAR] = (np.maximum(raw[..., c.SLOW_FAR], near) - near)[..., None]
    numbers[..., REACH] = np.maximum(raw[..., c.FAR_NODES][..., None] - need - 1.0, 1.0)
    numbers[..., PAUSE] = raw[..., c.PAUSE][..., None] * resize
    numbers[..., KNOWN] = known = (raw[..., c.LEFT] >= 0)[..., None] & ((size == now) | rated)
    numbers[..., PAYS] = np.where(resize & known & (takes > 0), takes, np.inf)

    features[..., 11:15] = _KIND_FLAGS.take(kinds, axis=0)
    features[..., 15] = np.abs(takes) / np.maximum(cluster[..., c.GPUS], 1.0)[..., None, None]
    features[..., 16], features[..., 17] = size / now, np.where(rated, speeds, 1.0)
    logs = features[..., 16:18]
    np.log2(logs, out=logs)
    logs /= LOG_SIZE
    features[..., 18] = features[..., 17]
    features[..., 17], features[..., 21] = known, raw[..., c.DOUBT][..., None]
    features[..., 19:21] = found[..., GAIN:]
    steady = features[..., NOW:SHARES]
    np.minimum(steady, _HIGH[NOW:SHARES], out=steady)
    np.maximum(steady, _LOW[NOW:SHARES], out=steady)
    return Options(numbers, features)


_FIRST = np.array(
    [
        [0] * CHOICES,
        [*range(EDGE, EDGE + c.SIZES), 0],
        [*range(EDGE, EDGE + c.SIZES), 0],
        [*STEPS, 0, 0, 0],
    ]
)
"""Where in the table of a job its candidates are, if it has none; if it waits, with several workers
or one; if it runs: a place, plus that of its present size where _STEP is 1."""
_STEP = np.array([[0] * CHOICES, [0] * c.SIZES + [1], [0] * CHOICES, [1] * len(STEPS) + [0, 0, 0]])
_KINDS = np.array(
    [
        [LOCAL] * c.SIZES + [SPREAD],
        [*(GROW if step > 0 else SHRINK for step in STEPS), LOCAL, LOCAL, LOCAL],
    ]
)
"""Kinds of the candidates of a job that waits, or runs."""
_KIND_FLAGS = np.eye(KINDS, dtype=np.float32)


class Fit(NamedTuple):
    """How gangs would be placed now."""

    nodes: Floats
    """On how many nodes, if those with most room are taken; infinite: they do not fit."""
    local: Flags
    """They fit on as few nodes as they need at best."""


class Demands(NamedTuple):
    """Workers that want room, and what of nodes is of use to them."""

    workers: Floats
    """`[..]`."""
    gpus: Floats
    need: Floats
    """Nodes at best."""
    slots: Floats
    """Workers that fit on a node with NODE_MAX, ... 1 free GPUs, `[.., NODE_MAX]`."""
    nodes: Floats
    """One over that, and 0 if none fits."""


def demands(workers: Floats, each: Floats, node_gpus: Floats) -> Demands:
    """Return what workers want.

    Args:
        workers: How many workers, `[..]`.
        each: GPUs of each of them.
        node_gpus: GPUs of a whole node; axes of length 1 are broadcast.
    """
    slots = _ROOMS // np.maximum(each, 1.0)[..., None]
    need = nodes_needed(workers, each, np.maximum(node_gpus, 1.0))
    return Demands(workers, workers * each, need, slots, (slots > 0) / np.maximum(slots, 1.0))


def fit(cluster: Floats, wanted: Demands) -> Fit:
    """Return how gangs would be placed on nodes by their room, the emptiest nodes first.

    Args:
        cluster: Rows of clusters, of the leading axes of the demands, or with axes of length 1.
        wanted: Demands.
    """
    room = cluster[..., c.ROOM + c.NODE_MAX : c.ROOM : -1]
    slots = wanted.slots * room
    places = slots.cumsum(-1)
    fits = places[..., -1] >= wanted.workers
    fits &= wanted.gpus <= cluster[..., c.FREE]
    slots -= places
    slots += wanted.workers[..., None]  # Workers that are left for such nodes.
    slots *= wanted.nodes
    np.ceil(slots, out=slots)
    np.maximum(slots, _NOTHING, out=slots)
    nodes = np.minimum(slots, room, out=slots).sum(-1)
    return Fit(np.where(fits, nodes, np.inf), fits & (nodes <= wanted.need))


_NOTHING, _ONE = np.zeros(()), np.ones(())
"""Quicker than numbers of Python."""


def able(found: Fit) -> tuple[Flags, ...]:
    """Return for each kind whether candidates fit, by how the workers that need room would go.

    A gang that fits on as few nodes as it needs is not spread. A smaller gang always fits.
    """
    fits = found.nodes < np.inf
    return found.local, fits ^ found.local, fits, np.ones_like(fits)


def place(numbers: Floats, nodes: Floats, possible: Flags) -> Floats:
    """Return on how many nodes jobs are then; as few as they need if it is not possible.

    Workers that are added go on the last of the job's nodes and on others. A smaller gang stays on
    its nodes.

    Args:
        numbers: Of the candidates, `[.., OPTION]`.
        nodes: On how many nodes the workers that need room would go.
        possible: The candidates exist and fit now.
    """
    made: Floats = np.where(possible, nodes, 0.0)
    made -= numbers[..., KIND] == GROW
    np.maximum(made, _NOTHING, out=made)
    made += numbers[..., ON] * possible
    return np.maximum(made, numbers[..., NEED], out=made)


class Takes(NamedTuple):
    """GPUs that candidates take."""

    gpus: Floats
    """`[..]`; negative: it gives some back."""
    more: Floats
    """The same; 0: none, or it gives some back."""
    whole: Flags
    """They are those of whole nodes."""


def takes(numbers: Floats, node_gpus: Floats | float) -> Takes:
    """Return the GPUs that candidates take.

    Args:
        numbers: Of the candidates, `[.., OPTION]`.
        node_gpus: GPUs of a whole node, at least one; axes of length 1 are broadcast.
    """
    gpus = numbers[..., TAKES]
    whole = np.remainder(gpus, node_gpus) == 0
    return Takes(gpus, np.maximum(gpus, 0.0), whole)


def write_free(
    taken: Takes, free: Floats | float, in_use: Floats | float, features: Matrix
) -> None:
    """Write the features of candidates that change with what is free.

    Args:
        taken: Of the candidates.
        free: Free GPUs, at least one; axes of length 1 are broadcast.
        in_use: Those of them that are on nodes in use.
        features: `[.., A]`.
    """
    share = taken.more / free
    features[..., 0] = np.minimum(share, 1.0, out=share)
    features[..., 1] = (taken.gpus <= in_use) | taken.whole


def write_there(
    numbers: Floats, nodes: Floats, left: Floats, waited: Matrix, features: Matrix
) -> None:
    """Write the features of candidates that change with time and with where they would go.

    Args:
        numbers: Of the candidates, `[.., OPTION]`.
        nodes: On how many nodes their jobs are then, `[..]`.
        left: Remaining seconds of their jobs, `[..]`; axes of length 1 are broadcast.
        waited: The feature `waited_ratio` of their jobs.
        features: `[.., A]`.
    """
    need = numbers[..., NEED]
    over = nodes - need
    slow = np.minimum((over - 1.0) / numbers[..., REACH], 1.0)
    slow *= numbers[..., FAR]
    slow += numbers[..., NEAR]
    slow = np.where(over > 0, slow, 1.0)
    remaining = left * numbers[..., FACTOR]
    remaining *= slow
    saved = (left - remaining) * numbers[..., RESIZES]
    features[..., 2], features[..., 3] = nodes / need, slow
    ratios = features[..., 2:4]
    np.log2(ratios, out=ratios)
    ratios /= LOG_SIZE
    features[..., 4], features[..., 5] = remaining, remaining * numbers[..., WORK]
    features[..., 6] = np.abs(saved) / numbers[..., CHANGE]
    logs = features[..., 4:7]
    np.log1p(logs, out=logs)
    logs *= _SCALES
    features[..., 6] = np.copysign(features[..., 6], saved)
    features[..., 7], features[..., 8] = waited, waited * features[..., SPREADS]
    pause = numbers[..., PAUSE] / np.maximum(left, _ONE)
    features[..., 9] = pause * numbers[..., KNOWN]
    now = features[..., 2:NOW]
    np.minimum(now, _HIGH[2:NOW], out=now)
    np.maximum(now, _LOW[2:NOW], out=now)


def write_shares(numbers: Floats, shares: Shares, left: Floats, features: Matrix) -> None:
    """Write the features of candidates that compare them with the shares of their jobs.

    Args:
        numbers: Of the candidates, `[.., OPTION]`.
        shares: Of their jobs, `[..]`; axes of length 1 are broadcast.
        left: Remaining seconds of their jobs.
        features: `[.., A]`.
    """
    share = shares.workers
    has = share > 0
    logs = np.log2(numbers[..., SIZED : PRESENT + 1] / np.maximum(share, _ONE)[..., None])
    logs *= (has / LOG_SIZE)[..., None]
    off, far = logs[..., 0], np.abs(logs)
    adds = (left + SOON) / (left * numbers[..., FACTOR] + SOON)
    np.log(adds, out=adds)
    adds /= numbers[..., PAYS] * np.where(shares.price > 0, shares.price, np.inf)
    made = features[..., SHARES:]
    made[..., 0], made[..., 1], made[..., 2] = ~has, off, -off
    made[..., 3] = (far[..., 1] - far[..., 0]) * numbers[..., RESIZES]
    made[..., 4] = np.log2(np.where(adds > 0, adds, 1.0))
    made[..., 4] /= LOG_SIZE
    np.minimum(made, _HIGH[SHARES:], out=made)
    np.maximum(made, _LOW[SHARES:], out=made)


_SCALES = np.array([1 / LOG_SECONDS, -1 / LOG_WORK, 1 / LOG_SECONDS], dtype=np.float32)


class Candidates(NamedTuple):
    """Candidates of jobs at a time."""

    features: Matrix
    """`[.., n, CHOICES, A]`."""
    workers: Floats
    """`[.., n, CHOICES]`."""
    kind: Floats
    possible: Flags
    """It exists and fits now."""


def candidates(
    raw: Floats, cluster: Floats, now: ArrayLike, shares: Shares | None = None
) -> Candidates:
    """Return all candidates of jobs with their features.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters, `[.., CLUSTER]`.
        now: Times, `[..]`.
        shares: Of the jobs; None: they are found now.
    """
    when, jobs = times(raw, now), job_features(raw, cluster, now)
    return candidates_of(
        raw, cluster, (when, curves_of(raw), shares or share_out(raw, cluster, when)), jobs
    )


def candidates_of(
    raw: Floats, cluster: Floats, known: tuple[Times, Curves, Shares], jobs: Matrix
) -> Candidates:
    """Do what `candidates` does, where the rest is known already."""
    when, curves, shares = known
    numbers, features = options(raw, cluster, curves)
    here = cluster[..., None, None, :]
    found = fit(here, demands(numbers[..., MORE], numbers[..., EACH], here[..., c.NODE_GPUS]))
    kind, workers = numbers[..., KIND], numbers[..., WORKERS]
    features[..., FITS] = possible = np.choose(kind.astype(np.int64), able(found)) & (workers > 0)
    free, node_gpus = here[..., c.FREE], np.maximum(here[..., c.NODE_GPUS], 1.0)
    in_use = free - here[..., c.WHOLE] * node_gpus
    write_free(takes(numbers, node_gpus), np.maximum(free, 1.0), in_use, features)
    waited, left = jobs[..., WAITED_RATIO, None], when.remaining[..., None]
    write_there(numbers, place(numbers, found.nodes, possible), left, waited, features)
    shares = Shares(shares.workers[..., None], shares.price[..., None])
    write_shares(numbers, shares, left, features)
    return Candidates(features, workers, kind, possible)


class Seen(NamedTuple):
    """All that a network takes of jobs, clusters and candidates."""

    jobs: Matrix
    """`[.., n, F]`."""
    cluster: Matrix
    """`[.., G]`."""
    candidates: Candidates
    waits: Flags
    """Which jobs may be placed, `[.., n]`."""
    holds: Flags
    """Which jobs have GPUs."""


def look(raw: Floats, cluster: Floats, now: ArrayLike) -> Seen:
    """Return all features at once, which costs less than one after the other.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters, `[.., CLUSTER]`; their sums over jobs are written.
        now: Times, `[..]`.
    """
    when, curves = times(raw, now), curves_of(raw)
    write_sums(raw, when, cluster)
    jobs = empty(raw.shape[:-1], F)
    write_steady(raw, cluster, curves, jobs)
    write_timed(raw, when, now, jobs)
    shares = share_out(raw, cluster, when)
    found = candidates_of(raw, cluster, (when, curves, shares), jobs)
    return Seen(jobs, cluster_features(cluster), found, queued(raw), holding(raw))
