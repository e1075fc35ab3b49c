"""Schedulers without learning in DL²'s environment: baselines, and teachers of its warm-up.

A rule says, again and again in a slot, which job gets a worker, a server or both next, until it
stops. It sees all jobs, or those of the batch that is decided about (`within`), as a teacher does.
Where the paper does not say what a baseline does, it is what the public code of DL² does:

    drf          both, to the job with the smallest dominant share
    drf-best     the same, until workers and servers are as many as is best for the model
    fifo, srtf   both, to the first job, or the one with the smallest remaining part, up to `most`
    tetris       both, to the job that fits the free room best or has little left (Tetris, 4.2)
    optimus      a worker or a server, to the job whose completion gains the most by it for the part
                 of the cluster it takes, while there is a gain (Optimus, EuroSys 2018, 4.1)
    look-ahead   the same, but to the best of all larger numbers, beyond steps that gain nothing
    best-size    each model's fastest numbers, in order of arrival
    random       any possible action, or to stop

Optimus, look-ahead and best-size go by a table of speeds that they believe: `misestimated` makes
wrong ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from skep_lab.fast_env import draw
from skep_lab.fast_env.arrays import Floats, Ints
from skep_lab.fast_env.compiled import compiled, inner
from skep_lab.fast_env.dl2 import (
    JOB,
    SUM,
    WORK,
    Batch,
    Sight,
    State,
    add,
    can,
    end_slot,
    finish,
    gpus_of,
    room,
)

Name = Literal[
    "drf", "drf-best", "fifo", "srtf", "tetris", "optimus", "look-ahead", "best-size", "random"
]
NAMES: tuple[str, ...] = get_args(Name)
DRF, DRF_BEST, FIFO, SRTF, TETRIS, OPTIMUS, LOOK_AHEAD, BEST_SIZE, RANDOM = range(len(NAMES))
STOP = -1


class Rule(NamedTuple):
    """A rule, and what it believes, as arrays for kernels."""

    number: int
    speed: Floats
    """[M, most + 1, most + 1] believed epochs a slot by model, workers and servers."""
    best: Ints
    """[M, 3] workers and servers that are fastest; as many of both that are."""
    ahead: Floats
    """[M, most + 1, most + 1, 3] from a size, what each epoch gains at best in slots for a part of
    the cluster, and the workers and servers of that size."""


def rule_of(name: str, batch: Batch, speed: Floats | None = None) -> Rule:
    """Return a rule for an environment.

    Args:
        name: One of `NAMES`.
        batch: Whose nodes and demands count.
        speed: The speeds that it believes; None: the true ones.
    """
    state = batch.state
    believed = state.speed if speed is None else speed
    models, most = len(believed), believed.shape[1] - 1
    best = np.zeros((models, 3), np.int64)
    for model in range(models):
        best[model, :2] = np.unravel_index(int(np.argmax(believed[model])), believed[model].shape)
        best[model, 2] = int(np.argmax(np.diagonal(believed[model])))
    ahead = np.zeros((models, most + 1, most + 1, 3))
    if name == "look-ahead":
        ahead = _ahead(believed, _costs(state))
    return Rule(NAMES.index(name), believed, best, ahead)


def misestimated(speed: Floats, error: float, seed: int) -> Floats:
    """Return a table in which each speed is wrong by up to a part of it, uniformly."""
    wrong = np.random.default_rng(seed).uniform(-error, error, speed.shape)
    return np.asarray(speed * (1.0 + wrong))


def _costs(state: State) -> Floats:
    """Return the dominant share of a worker and of a server, by model: [M, 2]."""
    nodes = float(state.nodes.sum())
    gpus, cpus = (state.alike.shape[2] - 1) * nodes, (state.alike.shape[3] - 1) * nodes
    costs = np.zeros((len(state.speed), 2))
    costs[:, 0] = np.maximum(state.needs[3:] / max(gpus, 1.0), state.needs[1] / cpus)
    costs[:, 1] = state.needs[2] / cpus
    return costs


def _ahead(speed: Floats, costs: Floats) -> Floats:
    """Return `Rule.ahead`."""
    models, size = speed.shape[:2]
    found = np.zeros((models, size, size, 3))
    workers, servers = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    for model in range(models):
        took = 1.0 / np.maximum(speed[model], 1e-12)
        for w in range(1, size):
            for p in range(1, size):
                cost = (workers - w) * costs[model, 0] + (servers - p) * costs[model, 1]
                larger = (workers >= w) & (servers >= p) & (cost > 0)
                gain = np.where(larger, (took[w, p] - took) / np.where(larger, cost, 1.0), 0.0)
                at = np.unravel_index(int(np.argmax(gain)), gain.shape)
                found[model, w, p] = (gain[at], *at) if gain[at] > 0 else (0.0, w, p)
    return found


# --- how jobs are ranked -------------------------------------------------------------------------


@inner
def _share(s: State, b: int, j: int, workers: int, servers: int) -> float:
    """Return the dominant share of workers and servers of a job."""
    nodes = 0
    for kind in range(len(s.nodes)):
        nodes += s.nodes[kind]
    gpus = workers * gpus_of(s, b, j) / float(nodes * max(s.alike.shape[2] - 1, 1))
    cpus = (workers * s.needs[1] + servers * s.needs[2]) / float(nodes * (s.alike.shape[3] - 1))
    return float(max(gpus, cpus))


@inner
def _left(s: State, b: int, j: int) -> float:
    """Return the epochs that a job has left, as predicted; never nothing."""
    return max(float(s.work[b, j, WORK.told] - s.work[b, j, WORK.done]), 1e-3)


@inner
def _fit(s: State, b: int, j: int) -> float:
    """Return how well what a job needs matches what is free, as Tetris has it."""
    gpus, cpus, nodes = 0, 0, 0
    for kind in range(s.alike.shape[1]):
        nodes += s.nodes[kind]
        for g in range(s.alike.shape[2]):
            for c in range(s.alike.shape[3]):
                gpus += s.alike[b, kind, g, c] * g
                cpus += s.alike[b, kind, g, c] * c
    all_gpus, all_cpus = max(s.alike.shape[2] - 1, 1) * nodes, (s.alike.shape[3] - 1) * nodes
    need_gpus, need_cpus = gpus_of(s, b, j), s.needs[1] + s.needs[2]
    return float(need_gpus / all_gpus * gpus / all_gpus + need_cpus / all_cpus * cpus / all_cpus)


@inner
def _score(s: State, b: int, j: int, rule: Rule, scale: float) -> float:
    """Return how much a job is to have both next; the first of the highest has it."""
    if rule.number in (DRF, DRF_BEST):
        return -_share(s, b, j, s.jobs[b, j, JOB.workers], s.jobs[b, j, JOB.servers])
    if rule.number == SRTF:
        return -_left(s, b, j) / float(s.work[b, j, WORK.told])
    if rule.number == TETRIS:
        return _fit(s, b, j) - scale * _left(s, b, j)
    return 0.0


@inner
def _scale(s: State, b: int, first: int, last: int) -> float:
    """Return by what Tetris weighs remaining work: mean fit over mean remaining work."""
    fit, left = 0.0, 0.0
    for i in range(first, last):
        fit += _fit(s, b, s.active[b, i])
        left += _left(s, b, s.active[b, i])
    return fit / max(left, 1e-9)


# --- what a rule does next -----------------------------------------------------------------------


@inner
def _ranked(s: State, b: int, rule: Rule, first: int, last: int) -> int:
    """Return the next action of a rule that gives both to the job that ranks highest."""
    found, top = STOP, 0.0
    scale = _scale(s, b, first, last) if rule.number == TETRIS else 0.0
    for i in range(first, last):
        j = s.active[b, i]
        most = s.speed.shape[1] - 1
        if rule.number == DRF_BEST:
            most = rule.best[s.jobs[b, j, JOB.model], 2]
        if s.jobs[b, j, JOB.workers] < most and can(s, b, j, 2):
            score = _score(s, b, j, rule, scale)
            if found == STOP or score > top:
                found, top = 3 * (i - first) + 2, score
    return found


@inner
def _sized(s: State, b: int, rule: Rule, first: int, last: int) -> int:
    """Return the next action towards each model's fastest numbers, in order of arrival."""
    for i in range(first, last):
        j = s.active[b, i]
        model = s.jobs[b, j, JOB.model]
        worker = s.jobs[b, j, JOB.workers] < rule.best[model, 0]
        server = s.jobs[b, j, JOB.servers] < rule.best[model, 1]
        if worker or server:
            what = 2 if worker and server else (0 if worker else 1)
            if can(s, b, j, what):
                return 3 * (i - first) + what
    return STOP


@inner
def _gain(s: State, b: int, j: int, rule: Rule, what: int) -> float:
    """Return the slots that a job gains by a worker or a server, for each part of the cluster."""
    model, w, p = s.jobs[b, j, JOB.model], s.jobs[b, j, JOB.workers], s.jobs[b, j, JOB.servers]
    now = rule.speed[model, w, p]
    then = rule.speed[model, w + (what == 0), p + (what == 1)]
    cost = _share(s, b, j, int(what == 0), int(what == 1))
    return _left(s, b, j) * float(1.0 / now - 1.0 / then) / cost


@inner
def _ahead_of(s: State, b: int, j: int, rule: Rule) -> tuple[float, int]:
    """Return what the best larger size gains, and the action towards it."""
    model, w, p = s.jobs[b, j, JOB.model], s.jobs[b, j, JOB.workers], s.jobs[b, j, JOB.servers]
    gain = _left(s, b, j) * rule.ahead[model, w, p, 0]
    worker, server = rule.ahead[model, w, p, 1] > w, rule.ahead[model, w, p, 2] > p
    if worker and server and can(s, b, j, 2):
        return gain, 2
    return gain, 0 if worker and can(s, b, j, 0) else 1


@inner
def _gaining(s: State, b: int, rule: Rule, first: int, last: int) -> int:
    """Return the next action of a rule that goes by what it gains; jobs without come first."""
    found, top = STOP, 0.0
    for i in range(first, last):
        j = s.active[b, i]
        if s.jobs[b, j, JOB.workers] == 0 or s.jobs[b, j, JOB.servers] == 0:
            if can(s, b, j, 2):
                return 3 * (i - first) + 2
        elif rule.number == LOOK_AHEAD:
            gain, what = _ahead_of(s, b, j, rule)
            if gain > top and can(s, b, j, what):
                found, top = 3 * (i - first) + what, gain
        else:
            for what in range(2):
                if can(s, b, j, what):
                    gain = _gain(s, b, j, rule, what)
                    if gain > top:
                        found, top = 3 * (i - first) + what, gain
    return found


@inner
def _random(s: State, b: int, first: int, last: int) -> int:
    """Return a possible action, or to stop."""
    chosen = int(draw.uniform(s.num, b) * (3 * (last - first) + 1))
    if chosen < 3 * (last - first) and can(s, b, s.active[b, first + chosen // 3], chosen % 3):
        return chosen
    return STOP


@inner
def _next(s: State, b: int, rule: Rule, first: int, last: int) -> int:
    """Return the next action for jobs `first` to before `last` of those active; `STOP`: none."""
    if rule.number == RANDOM:
        return _random(s, b, first, last)
    if rule.number == BEST_SIZE:
        return _sized(s, b, rule, first, last)
    if rule.number in (OPTIMUS, LOOK_AHEAD):
        return _gaining(s, b, rule, first, last)
    return _ranked(s, b, rule, first, last)


@compiled
def actions(s: State, rule: Rule, window: int, out: Ints) -> None:
    """Write the next action of a rule in each environment, for the batch that is decided about.

    Args:
        s: The environments.
        rule: What decides.
        window: J; `3 * window` is to stop.
        out: [B] the actions.
    """
    for b in range(s.sums.shape[0]):
        first = s.sums[b, SUM.base]
        last = min(first + window, s.sums[b, SUM.active])
        out[b] = _next(s, b, rule, first, last)
        if out[b] == STOP:
            out[b] = 3 * window


@compiled
def _play(s: State, rule: Rule, view: Sight) -> None:
    """Play one episode of each environment, all jobs in one batch."""
    for b in range(s.sums.shape[0]):
        while s.sums[b, SUM.open] > 0:
            action = _next(s, b, rule, 0, s.sums[b, SUM.active])
            if action != STOP:
                add(s, b, s.active[b, action // 3], action % 3 != 1, action % 3 != 0)
                s.sums[b, SUM.room] = room(s, b)
            if action == STOP or s.sums[b, SUM.room] == 0:
                end_slot(s, b, view)
        finish(s, b, view)


def play(batch: Batch, rule: Rule, seeds: Ints) -> Floats:
    """Return `Sight.finished` of an episode for each seed: one for each environment."""
    batch.reset(seeds)
    _play(batch.state, rule, batch.sight)
    return batch.sight.finished.copy()
