"""What a model may do: every job's candidates, whether they fit, and what they are like.

A job has CHOICES places for candidates. A waiting one may be started on as few nodes as it needs,
in each of its sizes, or spread, in the size that it asks for. A running one whose size can be
changed may get one of the next two sizes up and down.

    rows of jobs --> Options: changed with the job only
    Options, room of the cluster --> Placed
    Options, Placed, times --> features
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats
from skep.learn.features import (
    FLAG,
    LOG_SECONDS,
    LOG_SIZE,
    LOG_WORK,
    LONG,
    SHARE,
    SIGNED,
    Matrix,
    Times,
    nodes_needed,
    queued,
    times,
)

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
}
"""Features of a candidate with their ranges, in order."""
A = len(CANDIDATE_FEATURES)
_PLACE = {name: place for place, name in enumerate(CANDIDATE_FEATURES)}
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
    ON,  # nodes where it is
    FACTOR,  # its time at the size, over that now, both on as few nodes as possible
    WORK,  # GPUs at the size
    NEAR,  # slowdown on one node more than needed
    FAR,  # slowdown on many more
    REACH,  # on so many more than one
    PAUSE,  # seconds without progress
    KNOWN,  # its remaining time is known there
) = range(14)
"""Numbers of an option."""
OPTION = 14


class Options(NamedTuple):
    """Candidates as far as the rows of their jobs say."""

    numbers: Floats
    """`[.., n, CHOICES, OPTION]`."""
    features: Matrix
    """`[.., n, CHOICES, A]`: those that change with the job only; the others are 0."""


def options(raw: Floats, cluster: Floats) -> Options:
    """Return the candidates of jobs.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters; only their numbers of GPUs matter.
    """
    numbers = np.zeros((*raw.shape[:-1], CHOICES, OPTION))
    features = np.zeros((*raw.shape[:-1], CHOICES, A), dtype=np.float32)
    _choose(raw, numbers)
    job = raw[..., None, :]
    now, each = np.maximum(job[..., c.WORKERS], 1.0), job[..., c.EACH]
    workers, kind = numbers[..., WORKERS], numbers[..., KIND]
    size, resize = np.maximum(workers, 1.0), kind >= GROW
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)[..., None, None]
    numbers[..., EACH] = each
    more = np.where(resize, workers - now, workers)
    numbers[..., MORE] = np.maximum(more, 0.0)
    numbers[..., TAKES] = takes = more * each
    numbers[..., NEED] = need = nodes_needed(size, each, node_gpus)
    numbers[..., ON] = np.maximum(job[..., c.NODES], 1.0)
    rated, speed, gain, ahead = _speeds(job, size, now)
    before = np.where(resize, np.maximum(job[..., c.SLOW_NOW], 1.0), 1.0)
    numbers[..., FACTOR] = 1.0 / (speed * before)
    numbers[..., WORK] = size * each
    numbers[..., NEAR] = near = np.maximum(job[..., c.SLOW_NEAR], 1.0)
    numbers[..., FAR] = np.maximum(job[..., c.SLOW_FAR], near)
    numbers[..., REACH] = np.maximum(job[..., c.FAR_NODES] - need - 1.0, 1.0)
    numbers[..., PAUSE] = np.where(resize, job[..., c.PAUSE], 0.0)
    numbers[..., KNOWN] = known = (job[..., c.LEFT] >= 0) & ((size == now) | rated)

    def put(name: str, values: Floats | Flags) -> None:
        features[..., _PLACE[name]] = values

    put("local", kind == LOCAL)
    put("spread", kind == SPREAD)
    put("grows", kind == GROW)
    put("shrinks", kind == SHRINK)
    put("takes", np.abs(takes) / np.maximum(cluster[..., c.GPUS], 1.0)[..., None, None])
    put("size", np.log2(size / now) / LOG_SIZE)
    put("remaining_known", known)
    put("speed", np.log2(speed) / LOG_SIZE)
    put("gain", gain)
    put("ahead_gain", ahead)
    put("doubt", job[..., c.DOUBT])
    np.minimum(features, _HIGH, out=features)
    np.maximum(features, _LOW, out=features)
    return Options(numbers, features)


def _choose(raw: Floats, numbers: Floats) -> None:
    """Write the workers and the kinds of the candidates of jobs."""
    sizes, workers = raw[..., c.SIZE : c.SIZE + c.SIZES], raw[..., c.WORKERS]
    made, kind = numbers[..., WORKERS], numbers[..., KIND]
    waits = queued(raw)
    made[..., : c.SIZES] = sizes * waits[..., None]
    made[..., c.SIZES] = np.where(waits & (workers > 1), workers, 0.0)
    kind[..., c.SIZES] = SPREAD
    runs = (raw[..., c.PHASE] == c.RUNNING) & (raw[..., c.RESIZABLE] > 0)
    if not runs.any():
        return
    here = np.argmax(sizes == workers[..., None], axis=-1)
    for place, step in enumerate(STEPS):
        at = here + step
        inside = runs & (at >= 0) & (at < c.SIZES)
        size = np.take_along_axis(sizes, np.clip(at, 0, c.SIZES - 1)[..., None], -1)[..., 0]
        made[..., place] = np.where(inside, size, made[..., place])
        kind[..., place] = np.where(runs, GROW if step > 0 else SHRINK, kind[..., place])


def _speeds(job: Floats, size: Floats, now: Floats) -> tuple[Flags, Floats, Floats, Floats]:
    """Return whether the rate of candidates is known, over that now, and what they gain."""
    sizes = job[..., c.SIZE : c.SIZE + c.SIZES]
    rates = job[..., c.RATE : c.RATE + c.SIZES]
    if not rates.any():
        one, nothing = np.ones(size.shape), np.zeros(size.shape)
        return nothing > 0, one, nothing, nothing
    rate = (rates * (sizes == now[..., None])).max(-1)[..., None]
    speeds = rates / np.where(rate > 0, rate, np.inf)
    same = sizes == size[..., None]
    chosen = (speeds * same).max(-1)
    change = sizes / now[..., None] - 1.0
    some = (speeds > 0) & (change != 0)
    gains = (speeds - 1.0) * some / np.where(some, change, 1.0)
    gain = (gains * same).sum(-1)
    ahead = np.where(sizes >= size[..., None], gains, -np.inf).max(-1)
    rated = chosen > 0
    return (
        rated,
        np.where(rated, chosen, 1.0),
        np.where(rated, gain, 0.0),
        np.where(rated & np.isfinite(ahead), ahead, 0.0),
    )


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
        cluster: Rows of clusters, of the same leading axes as the demands, or with axes of length 1.
        wanted: Demands.
    """
    room = cluster[..., c.ROOM + c.NODE_MAX : c.ROOM : -1]
    slots = wanted.slots * room
    places = slots.cumsum(-1)
    fits = (places[..., -1] >= wanted.workers) & (wanted.gpus <= cluster[..., c.FREE])
    places -= slots
    left = wanted.workers[..., None] - places
    left *= wanted.nodes
    np.ceil(left, out=left)
    np.maximum(left, 0.0, out=left)
    nodes = np.minimum(left, room, out=left).sum(-1)
    return Fit(np.where(fits, nodes, np.inf), fits & (nodes <= wanted.need))


class Placed(NamedTuple):
    """Where candidates would go."""

    nodes: Floats
    """On how many nodes the job is then; as few as possible if it does not fit."""
    possible: Flags
    """The candidate exists and fits now."""

    def at(self, index: Any) -> Placed:
        """Return some of them, or with other axes."""
        return Placed(self.nodes[index], self.possible[index])


def able(found: Fit) -> tuple[Flags, ...]:
    """Return for each kind whether candidates fit, by how the workers that need room would go.

    A gang that fits on as few nodes as it needs is not spread. A smaller gang always fits.
    """
    fits = np.isfinite(found.nodes)
    return found.local, fits & ~found.local, fits, np.ones_like(fits)


def place(numbers: Floats, found: Fit) -> Placed:
    """Return where candidates would go, by how the workers that need room would go.

    Workers that are added go on the last of the job's nodes and on others. A smaller gang stays on
    its nodes.
    """
    kind = numbers[..., KIND]
    possible = np.choose(kind.astype(np.int64), able(found)) & (numbers[..., WORKERS] > 0)
    need, on = numbers[..., NEED], numbers[..., ON]
    there = np.where(possible, found.nodes, 0.0)
    nodes = np.where(kind == GROW, on + np.maximum(there - 1.0, 0.0), on)
    nodes = np.where(kind == SPREAD, there, nodes)
    local = (kind == LOCAL) | ~possible
    return Placed(np.where(local, need, np.maximum(nodes, need)), possible)


def write_free(numbers: Floats, cluster: Floats, features: Matrix) -> None:
    """Write the features of candidates that change with what is free.

    Args:
        numbers: Of the candidates, `[.., OPTION]`.
        cluster: Rows of their clusters; axes of length 1 are broadcast.
        features: `[.., A]`.
    """
    takes, free = numbers[..., TAKES], cluster[..., c.FREE]
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)
    share = takes / np.maximum(free, 1.0)
    features[..., 0] = np.minimum(np.maximum(share, 0.0), 1.0)
    in_use = free - cluster[..., c.WHOLE] * node_gpus
    features[..., 1] = (takes <= in_use) | (np.remainder(takes, node_gpus) == 0)


def write_there(numbers: Floats, placed: Placed, when: Times, features: Matrix) -> None:
    """Write the features of candidates that change with time and with where they would go.

    Args:
        numbers: Of the candidates, `[.., OPTION]`.
        placed: Where they would go, `[..]`.
        when: The times of their jobs, `[..]`; axes of length 1 are broadcast.
        features: `[.., A]`.
    """
    need, kind, near = numbers[..., NEED], numbers[..., KIND], numbers[..., NEAR]
    over = placed.nodes - need
    far = np.minimum((over - 1.0) / numbers[..., REACH], 1.0)
    slow = np.where(over > 0, near + (numbers[..., FAR] - near) * far, 1.0)
    remaining = when.remaining * numbers[..., FACTOR] * slow
    saved = (when.remaining - remaining) * (kind >= GROW)
    total = np.maximum(when.ran + when.remaining, 1.0)
    waited = np.maximum(when.age - when.ran, 0.0) / total * when.known
    features[..., 2], features[..., 3] = placed.nodes / need, slow
    ratios = features[..., 2:4]
    np.log2(ratios, out=ratios)
    ratios /= LOG_SIZE
    features[..., 4], features[..., 5] = remaining, remaining * numbers[..., WORK]
    features[..., 6] = np.abs(saved) / np.maximum(np.abs(numbers[..., TAKES]), 1.0)
    features[..., 7], features[..., 8] = waited, waited * (kind == SPREAD)
    logs = features[..., 4:9]
    np.log1p(logs, out=logs)
    logs *= _SCALES
    features[..., 6] *= np.sign(saved)
    pause = numbers[..., PAUSE] / np.maximum(when.remaining, 1.0)
    features[..., 9], features[..., 10] = pause * numbers[..., KNOWN], placed.possible
    now = features[..., 2:NOW]
    np.minimum(now, _HIGH[2:NOW], out=now)
    np.maximum(now, _LOW[2:NOW], out=now)


NOW = 11
"""The first features of a candidate change with time and with what is free."""
_SCALES = np.array([1 / LOG_SECONDS, -1 / LOG_WORK, 1 / LOG_SECONDS, 1.0, 1.0], dtype=np.float32)


class Candidates(NamedTuple):
    """Candidates of jobs at a time."""

    features: Matrix
    """`[.., n, CHOICES, A]`."""
    workers: Floats
    """`[.., n, CHOICES]`."""
    kind: Floats
    possible: Flags
    """It exists and fits now."""


def candidates(raw: Floats, cluster: Floats, now: ArrayLike) -> Candidates:
    """Return all candidates of jobs with their features.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters, `[.., CLUSTER]`.
        now: Times, `[..]`.
    """
    numbers, features = options(raw, cluster)
    here = cluster[..., None, None, :]
    wanted = demands(numbers[..., MORE], numbers[..., EACH], here[..., c.NODE_GPUS])
    placed = place(numbers, fit(here, wanted))
    write_free(numbers, here, features)
    write_there(numbers, placed, times(raw, now).at((..., None)), features)
    return Candidates(features, numbers[..., WORKERS], numbers[..., KIND], placed.possible)
