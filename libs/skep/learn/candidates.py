"""What a model may do: every job's candidates, whether they fit, and what they are like.

A job has CHOICES places for candidates. A waiting one may be started on as few nodes as it needs,
in each of its sizes, or spread, in the size that it asks for. A running one whose size can be
changed may get one of the next two sizes up and down.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skep.learn import columns as c
from skep.learn.columns import Flags, Floats, Integers
from skep.learn.features import (
    FLAG,
    LOG_WORK,
    LONG,
    SHARE,
    SIGNED,
    Matrix,
    Times,
    log_seconds,
    log_size,
    nodes_needed,
    queued,
    times,
)

LOCAL, SPREAD, GROW, SHRINK = range(4)
"""Kinds of candidates."""
CHOICES = c.SIZES + 1
"""Of a waiting job: its sizes, and spread. Of a running one: the sizes next below and above."""
STEPS = (-1, 1, -2, 2)
"""Sizes of a running job, by place: so many sizes up."""

CANDIDATE_FEATURES: dict[str, tuple[float, float]] = {
    "local": FLAG,
    "spread": FLAG,
    "grows": FLAG,
    "shrinks": FLAG,
    "fits": FLAG,
    "size": SIGNED,  # log: workers over those that it has or asks for
    "takes_free": FLAG,  # share of the free GPUs
    "takes": FLAG,  # share of the cluster's GPUs
    "nodes": SHARE,  # log: over those that it needs
    "slowdown": SHARE,  # log: there, over that on as few nodes as possible
    "remaining_known": FLAG,
    "remaining": LONG,  # log seconds, there
    "speed": SIGNED,  # log: its rate there over that now
    "gain": SIGNED,  # rate added per size added, as parts of now
    "ahead_gain": SIGNED,  # the most of that for this size and all beyond
    "saved": SIGNED,  # log seconds that it ends earlier per GPU more, or later per GPU less
    "pause": FLAG,  # share of what remains
    "shortest": (-2.5, 0.0),  # minus log of remaining GPU-seconds there: the rule `spf`
    "waited_ratio": LONG,  # log: waited over its time in all: the rule `hold` relaxes by it
    "spread_waited": LONG,  # the same if it is spread
    "doubt": FLAG,
    "leaves_whole": FLAG,  # it takes whole nodes, or GPUs of nodes in use only
}
"""Features of a candidate with their ranges, in order."""
A = len(CANDIDATE_FEATURES)
_PLACE = {name: place for place, name in enumerate(CANDIDATE_FEATURES)}
_LOW, _HIGH = np.array([*CANDIDATE_FEATURES.values()], dtype=np.float32).T
_ROOMS = np.arange(c.NODE_MAX, 0, -1)
"""Free GPUs of nodes, most first."""


class Choices(NamedTuple):
    """Candidates of jobs, `[.., n, CHOICES]`, by their rows alone."""

    workers: Floats
    """0: there is no such candidate."""
    kind: Integers

    def at(self, index: Any) -> Choices:
        """Return some of them, or with other axes."""
        return Choices(self.workers[index], self.kind[index])


def choices(raw: Floats) -> Choices:
    """Return the candidates of jobs."""
    sizes = raw[..., c.SIZE : c.SIZE + c.SIZES]
    workers, each = raw[..., c.WORKERS], raw[..., c.EACH]
    made = np.zeros((*raw.shape[:-1], CHOICES))
    kind = np.zeros(made.shape, dtype=np.int64)
    waits = queued(raw)
    made[..., : c.SIZES] = np.where(waits[..., None], sizes, 0.0)
    made[..., c.SIZES] = np.where(waits & (workers > 1) & (each > 0), workers, 0.0)
    kind[..., c.SIZES] = SPREAD
    runs = (raw[..., c.PHASE] == c.RUNNING) & (raw[..., c.RESIZABLE] > 0)
    here = np.argmax(sizes == workers[..., None], axis=-1)
    for place, step in enumerate(STEPS):
        at = here + step
        inside = runs & (at >= 0) & (at < c.SIZES)
        size = np.take_along_axis(sizes, np.clip(at, 0, c.SIZES - 1)[..., None], -1)[..., 0]
        made[..., place] = np.where(inside, size, made[..., place])
        kind[..., place] = np.where(runs, GROW if step > 0 else SHRINK, kind[..., place])
    return Choices(made, kind)


class Fit(NamedTuple):
    """How gangs would be placed now."""

    nodes: Floats
    """On how many nodes, if those with most room are taken; infinite: they do not fit."""
    local: Flags
    """They fit on as few nodes as they need at best."""


def fit(cluster: Floats, workers: Floats, each: Floats) -> Fit:
    """Return how gangs would be placed on nodes by their room, the emptiest nodes first.

    Args:
        cluster: Rows of clusters, of the same leading axes as the others, or with axes of length 1.
        workers: Workers of the gangs, `[..]`.
        each: GPUs of a worker.
    """
    room = cluster[..., c.ROOM + c.NODE_MAX : c.ROOM : -1]
    slots = _ROOMS // np.maximum(each, 1.0)[..., None]
    places = np.cumsum(slots * room, axis=-1)
    nodes = np.cumsum(np.where(slots > 0, room, 0.0), axis=-1)
    enough = places >= workers[..., None]
    fits = enough[..., -1] & (workers * each <= cluster[..., c.FREE])
    last = np.argmax(enough, axis=-1)[..., None]
    slots_there = np.take_along_axis(slots, last, -1)[..., 0]
    room_there = np.take_along_axis(np.broadcast_to(room, places.shape), last, -1)[..., 0]
    over = np.take_along_axis(places, last, -1)[..., 0] - workers
    spare = np.floor(over / np.maximum(slots_there, 1.0))
    used = np.take_along_axis(nodes, last, -1)[..., 0] - np.minimum(spare, room_there)
    used = np.where(fits, used, np.inf)
    need = nodes_needed(workers, each, np.maximum(cluster[..., c.NODE_GPUS], 1.0))
    return Fit(used, used <= need)


class Candidates(NamedTuple):
    """Candidates of jobs at a time."""

    features: Matrix
    """`[.., n, CHOICES, A]`."""
    workers: Floats
    """`[.., n, CHOICES]`."""
    kind: Integers
    possible: Flags
    """It exists and fits now."""


def candidates(raw: Floats, cluster: Floats, now: ArrayLike) -> Candidates:
    """Return all candidates of jobs with their features.

    Args:
        raw: Rows of jobs, `[.., n, RAW]`.
        cluster: Rows of their clusters, `[.., CLUSTER]`.
        now: Times, `[..]`.
    """
    chosen = choices(raw)
    jobs = raw[..., None, :]
    place = cluster[..., None, None, :]
    when = times(raw, now).at((..., None))
    placed = fits(jobs, place, chosen.workers, chosen.kind)
    made = candidate_features(jobs, place, when, chosen, placed)
    return Candidates(made, chosen.workers, chosen.kind, placed.possible)


class Placed(NamedTuple):
    """Where candidates would go."""

    nodes: Floats
    """On how many nodes the job is then."""
    need: Floats
    """On how many it has to be at least."""
    possible: Flags

    def at(self, index: Any) -> Placed:
        """Return some of them, or with other axes."""
        return Placed(self.nodes[index], self.need[index], self.possible[index])


def fits(raw: Floats, cluster: Floats, workers: Floats, kind: Integers) -> Placed:
    """Return where candidates would go.

    Args:
        raw: The row of each candidate's job, `[.., RAW]`; axes of length 1 are broadcast.
        cluster: The row of its cluster.
        workers: Of the candidate, `[..]`.
        kind: Of the candidate.
    """
    each = raw[..., c.EACH]
    more = np.where(kind == GROW, workers - raw[..., c.WORKERS], workers)
    placed = fit(cluster, more, np.broadcast_to(each, more.shape))
    need = nodes_needed(workers, each, np.maximum(cluster[..., c.NODE_GPUS], 1.0))
    now = np.broadcast_to(raw[..., c.NODES], workers.shape)
    grown = np.maximum(now - 1 + placed.nodes, need)
    nodes = np.select(
        [kind == LOCAL, kind == SPREAD, kind == GROW], [need, placed.nodes, grown], now
    )
    able = np.select(
        [kind == LOCAL, kind == SPREAD, kind == GROW],
        [placed.local, np.isfinite(placed.nodes) & ~placed.local, np.isfinite(placed.nodes)],
        True,
    )
    possible = able & (workers > 0)
    return Placed(np.where(possible, nodes, need), need, possible)


def candidate_features(
    raw: Floats, cluster: Floats, when: Times, chosen: Choices, placed: Placed
) -> Matrix:
    """Return the features of candidates, `[.., A]`.

    Args:
        raw: The row of each candidate's job, `[.., RAW]`; axes of length 1 are broadcast.
        cluster: The row of its cluster.
        when: The times of its job.
        chosen: The candidates, `[..]`.
        placed: Where they would go.
    """
    workers, kind = chosen
    made = np.zeros((*workers.shape, A), dtype=np.float32)

    def put(name: str, values: Floats | Flags) -> None:
        made[..., _PLACE[name]] = values

    each, now = raw[..., c.EACH], np.maximum(raw[..., c.WORKERS], 1.0)
    spread, resize = kind == SPREAD, kind >= GROW
    put("local", kind == LOCAL)
    put("spread", spread)
    put("grows", kind == GROW)
    put("shrinks", kind == SHRINK)
    put("fits", placed.possible)
    size = np.maximum(workers, 1.0)
    put("size", log_size(size / now))
    takes = np.where(resize, workers - now, workers) * each
    free = cluster[..., c.FREE]
    put("takes_free", takes / np.maximum(free, 1.0))
    put("takes", takes / np.maximum(cluster[..., c.GPUS], 1.0))
    put("nodes", log_size(np.maximum(placed.nodes / np.maximum(placed.need, 1.0), 1.0)))

    slow = slowdown(raw, placed)
    put("slowdown", log_size(slow))
    rated, speed, ahead, gain = _speeds(raw, size, now)
    before = np.where(resize, np.maximum(raw[..., c.SLOW_NOW], 1.0), 1.0)
    remaining = when.remaining * slow / before / speed
    known = when.known & ((size == now) | rated)
    put("remaining_known", known)
    put("remaining", log_seconds(remaining))
    put("speed", log_size(speed))
    put("gain", gain)
    put("ahead_gain", ahead)
    saved = np.where(resize, when.remaining - remaining, 0.0)
    put("saved", np.sign(saved) * log_seconds(np.abs(saved) / np.maximum(np.abs(takes), 1.0)))
    pause = np.where(resize, raw[..., c.PAUSE] / np.maximum(when.remaining, 1.0), 0.0)
    put("pause", np.where(known, pause, 0.0))
    put("shortest", -np.log1p(remaining * size * each) / LOG_WORK)
    total = np.maximum(when.ran + when.remaining, 1.0)
    waited = np.log1p(np.maximum(when.age - when.ran, 0.0) / total)
    ratio = np.where(known, waited, 0.0)
    put("waited_ratio", ratio)
    put("spread_waited", np.where(spread, ratio, 0.0))
    put("doubt", raw[..., c.DOUBT])
    node_gpus = np.maximum(cluster[..., c.NODE_GPUS], 1.0)
    whole = cluster[..., c.WHOLE] * node_gpus
    put("leaves_whole", (takes % node_gpus == 0) | (takes <= free - whole))
    return np.clip(made, _LOW, _HIGH, out=made)


def slowdown(raw: Floats, placed: Placed) -> Floats:
    """Return the predicted time there over that on as few nodes as possible; 1 if unknown."""
    over = placed.nodes - placed.need
    near, far = np.maximum(raw[..., c.SLOW_NEAR], 1.0), np.maximum(raw[..., c.SLOW_FAR], 1.0)
    reach = np.maximum(raw[..., c.FAR_NODES] - placed.need - 1, 1.0)
    part = np.clip((over - 1) / reach, 0.0, 1.0)
    made: Floats = np.where(over <= 0, 1.0, near + (np.maximum(far, near) - near) * part)
    return made


def _speeds(raw: Floats, size: Floats, now: Floats) -> tuple[Flags, Floats, Floats, Floats]:
    """Return whether the rate of candidates is known, over that now, and what they gain."""
    sizes = raw[..., c.SIZE : c.SIZE + c.SIZES]
    rates = raw[..., c.RATE : c.RATE + c.SIZES]
    rate = np.max(np.where(sizes == now[..., None], rates, 0.0), axis=-1)
    speeds = rates / np.where(rate > 0, rate, 1.0)[..., None] * (rate > 0)[..., None]
    chosen = np.max(np.where(sizes == size[..., None], speeds, 0.0), axis=-1)
    speed = np.where(chosen > 0, chosen, 1.0)
    change = sizes / now[..., None] - 1.0
    each = np.where(
        (speeds > 0) & (change != 0), (speeds - 1.0) / np.where(change != 0, change, 1.0), 0.0
    )
    gain = np.max(np.where(sizes == size[..., None], each, -np.inf), axis=-1)
    ahead = np.max(np.where(sizes >= size[..., None], each, -np.inf), axis=-1)
    return (
        chosen > 0,
        speed,
        np.where(np.isfinite(ahead), ahead, 0.0),
        np.where(np.isfinite(gain), gain, 0.0),
    )
