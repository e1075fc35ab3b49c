"""The environment of Skep's own learner: place waiting jobs, and change the sizes of running ones.

One virtual cluster of equal nodes; fixed gangs and elastic jobs, which scale and bear being spread
as their models do. The learner sees the rows that `skep.learn` makes of a sight in production
(`skep.learn.columns`): what is stated of run times and speeds, with its errors. What happens goes
by the true ones. After every event, and every `rhythm`, it makes moves until it makes none; then
time goes on.

    rows      [B, J, RAW] unfinished jobs that have come: those with GPUs, then in order of arrival
    cluster   [B, CLUSTER]
    moves     [B, K, 3] row, workers, whether it may be on more nodes than it needs; row -1: none

A move that is not possible is left out. A job that is not spread goes where packing puts it, one
that is spread where the cells' rule does; further workers of a running job go to its own nodes if
these have room, as in production.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.net import Sizes, shapes
from skep_lab.fast_env import engine
from skep_lab.fast_env.arrays import (
    COST,
    JOB,
    NEVER,
    NODE,
    NUM,
    PHASE,
    Floats,
    Ints,
    JobArrays,
    NodeArrays,
    Shown,
    State,
    ints,
    new_state,
)
from skep_lab.fast_env.compiled import compiled, inner
from skep_lab.fast_env.engine import HANDS_OFF, Rule
from skep_lab.fast_env.places import place
from skep_lab.fast_env.scores import SPREAD, Net, Work, best, net_of, work_of
from skep_lab.fast_env.tape import Tape, keep_decision, keep_step, tape_of

RULE = Rule(order=HANDS_OFF)
SECOND = 1e9
HOUR_NS = 3_600_000_000_000
DECISIONS_MAX = 200
"""Decisions for each job: a network that changes sizes all the time is stopped."""
NODE_GPUS = 8
"""Of the protocol's nodes."""
NEVER_ENDS_S = 30 * 86_400.0
"""What the completion time of a job counts that has not ended when its environment is over."""


class Jobs(NamedTuple):
    """The jobs of one environment, in the order of submission; see `learn.protocol.Drawn`."""

    at: Ints
    run: Ints
    workers: Ints
    most: Ints
    least: Ints
    model: Ints
    told_run: Ints
    told_growth: Floats
    told_spread: Floats
    growth: Floats
    """[M, W + 1] true speeds by model and workers."""
    spread: Floats
    """[M, LEVELS] true speeds by model and nodes beyond the fewest."""
    doubt: float
    """How wrong what is stated may be."""


class _Seen(NamedTuple):
    """What is kept of a job from one decision to the next, by its place in `More.seen`."""

    phase: int = 0
    since: int = 1
    served: int = 2


SEEN = _Seen()


class More(NamedTuple):
    """What the environment has beside the engine's state."""

    told_growth: Floats
    """[B, J, W + 1]"""
    told_spread: Floats
    """[B, J, LEVELS]"""
    told_run: Floats
    """[B, J] seconds."""
    limits: Ints
    """[B, J, 2] fewest and most workers."""
    seen: Ints
    """[B, J, SEEN]"""
    active: Ints
    """[B, J] jobs that have come and not ended, in order of arrival."""
    rows: Ints
    """[B, J] the job of each row."""
    counts: Ints
    """[B, 4] active jobs, rows, decisions, and jobs that have come."""
    doubt: Floats
    """[B]"""


ACTIVE, ROWS, DECISIONS, CAME = range(4)


class By(NamedTuple):
    """What decides: given moves, or a network if there are none."""

    moves: Ints
    """[B, K, 3]; K 0: the network plays."""
    net: Net
    room: Work
    tape: Tape


class Batch:
    """Environments that play one list of jobs each, to its end."""

    def __init__(
        self,
        jobs: Sequence[Jobs],
        nodes: Sequence[int],
        costs: Ints,
        rhythm_s: float = 600.0,
        node_gpus: int = NODE_GPUS,
    ) -> None:
        """Begin all of them.

        Args:
            jobs: By environment.
            nodes: Nodes by environment; where there are fewer than the most, the others are down.
            costs: Nanoseconds by kind (`arrays.COST`).
            rhythm_s: A decision is asked for after so many seconds without an event.
            node_gpus: GPUs of a node.
        """
        models = np.cumsum([0, *(len(each.growth) for each in jobs)])[:-1]
        made = [
            JobArrays(
                at=each.at,
                run=each.run,
                workers=each.workers,
                each=np.ones_like(each.at),
                model=each.model + first,
                kinds=np.full_like(each.at, -1),
                priority=np.zeros_like(each.at),
                told=each.told_run,
                told_at=np.zeros_like(each.at),
            )
            for each, first in zip(jobs, models, strict=True)
        ]
        floor = NodeArrays(ints([node_gpus] * max(nodes)), ints([0] * max(nodes)))
        speed = np.concatenate([each.spread for each in jobs])[:, None, :]
        growth = np.concatenate([each.growth for each in jobs])
        parts = min(growth.shape[1] - 1, max(nodes))
        self.state = new_state(made, floor, speed, growth, costs, parts)
        for b, count in enumerate(nodes):
            self.state.nodes[b, count:, NODE.up] = 0
            self.state.num[b, NUM.gpus_free] = node_gpus * count
        envs, most = self.state.jobs.shape[:2]

        def filled(rows: list[Floats]) -> Floats:
            whole = np.ones((envs, most, *rows[0].shape[1:]))
            for b, row in enumerate(rows):
                whole[b, : len(row)] = row
            return whole

        limits = np.ones((envs, most, 2), np.int64)
        for b, each in enumerate(jobs):
            limits[b, : len(each.at), 0], limits[b, : len(each.at), 1] = each.least, each.most
        self.more = More(
            told_growth=filled([each.told_growth for each in jobs]),
            told_spread=filled([each.told_spread for each in jobs]),
            told_run=filled([each.told_run / SECOND for each in jobs]),
            limits=limits,
            seen=np.zeros((envs, most, len(SEEN)), np.int64),
            active=np.zeros((envs, most), np.int64),
            rows=np.zeros((envs, most), np.int64),
            counts=np.zeros((envs, 4), np.int64),
            doubt=np.array([each.doubt for each in jobs]),
        )
        self.rhythm = int(rhythm_s * SECOND)
        self.shown = Shown(
            raw=np.zeros((envs, most, c.RAW)),
            cluster=np.zeros((envs, c.CLUSTER)),
            now=np.zeros(envs),
            counts=np.zeros(envs, np.int64),
            done=np.zeros(envs, np.bool_),
        )
        self._nodes = ints(nodes)
        self._net = net_of({name: np.zeros(each) for name, each in shapes(Sizes(1, 1)).items()})
        self._room, self._tape = work_of(0, self._net), tape_of(envs)
        self.step(np.full((envs, 1, 3), -1, np.int64))

    def step(self, moves: Ints) -> Shown:
        """Make moves; without a possible one, time goes on to the next decision.

        Args:
            moves: [B, K, 3] row, workers, spread.
        """
        self._run(By(moves, self._net, self._room, self._tape))
        return self.shown

    def _run(self, by: By) -> None:
        run_all(self.state, self.more, self._nodes, by, self.rhythm, self.shown)

    def play(
        self,
        net: Net,
        seen: Floats | None = None,
        *,
        noise: Floats | None = None,
        tape: Tape | None = None,
    ) -> None:
        """Play every environment to its end by a network.

        Args:
            net: The network.
            seen: [2, F + G + A] the range of every feature is widened to what was seen.
            noise: Is added to scores (`tape.noise_of`); None: the best is done.
            tape: Where decisions and what followed are kept.
        """
        rows = self.state.jobs.shape[1]
        room = work_of(rows, net, ranges=seen is not None, noise=noise)
        nothing = np.zeros((len(self._nodes), 0, 3), np.int64)
        self._run(By(nothing, net, room, tape or self._tape))
        if seen is not None:
            seen[0] = np.minimum(seen[0], room.seen[0])
            seen[1] = np.maximum(seen[1], room.seen[1])

    def jct_s(self) -> list[Floats]:
        """Return by environment the seconds from submission to end of all its jobs.

        Those that a network never places count NEVER_ENDS_S.
        """
        made = []
        for each in self.state.jobs:
            jobs = each[each[:, JOB.at] < NEVER]
            took = (jobs[:, JOB.ended] - jobs[:, JOB.at]) / SECOND
            made.append(np.where(jobs[:, JOB.ended] < NEVER, took, NEVER_ENDS_S))
        return made

    @property
    def unfinished(self) -> int:
        """Return how many jobs have come and not ended in all environments."""
        return int(self.more.counts[:, ACTIVE].sum())

    @property
    def decisions(self) -> int:
        """Return how many decisions were asked for in all environments."""
        return int(self.more.counts[:, DECISIONS].sum())


# --- time ----------------------------------------------------------------------------------------


@compiled
def run_all(s: State, more: More, nodes: Ints, by: By, rhythm: int, shown: Shown) -> None:
    """Step every environment of a batch and show it, or play it to its end by a network.

    All is one function, because each one that Python calls is compiled with all that it calls.
    """
    plays, keeps = by.moves.shape[1] == 0, by.tape.clusters.shape[0] > 0
    for b in range(s.num.shape[0]):
        needed = need_s(s, more, b) if keeps else 0.0
        while not shown.done[b]:
            moved, before, count = False, shown.now[b], more.counts[b, ACTIVE]
            if plays:
                n, room = shown.counts[b], by.room
                best(shown.raw[b], n, shown.cluster[b], shown.now[b], by.net, room)
                if keeps:
                    keep_decision(by.tape, b, shown, room)
                if room.found[1] >= 0 and room.found[0] > room.found[4]:
                    j = more.rows[b, int(room.found[1])]
                    moved = move(s, b, j, int(room.found[2]), room.found[3] == SPREAD)
            for k in range(by.moves.shape[1]):
                row = by.moves[b, k, 0]
                if 0 <= row < more.counts[b, ROWS]:
                    j, workers, spread = more.rows[b, row], by.moves[b, k, 1], by.moves[b, k, 2]
                    moved = move(s, b, j, workers, spread != 0) or moved
            stands = not moved and not go_on(s, b, rhythm)
            if not moved:
                _follow(s, more, b)
            more.counts[b, DECISIONS] += 1
            many = more.counts[b, DECISIONS] > DECISIONS_MAX * s.jobs.shape[1]
            shown.done[b] = s.num[b, NUM.open] == 0 or stands or many
            show(s, more, b, nodes[b], shown)
            if keeps:
                jct, after = count * (shown.now[b] - before), need_s(s, more, b)
                keep_step(by.tape, b, before, jct, jct + after - needed)
                needed = after
            if not plays:
                break


@inner
def need_s(s: State, more: More, b: int) -> float:
    """Return the seconds of all jobs, come or not, if those without GPUs had theirs at once."""
    now, total = s.num[b, NUM.now], 0.0
    for i in range(more.counts[b, ACTIVE]):
        j = more.active[b, i]
        phase, left = s.jobs[b, j, JOB.phase], float(s.jobs[b, j, JOB.run] - s.jobs[b, j, JOB.done])
        if phase in (PHASE.starting, PHASE.running):
            if phase == PHASE.running:
                left -= (now - s.jobs[b, j, JOB.since]) * s.rate[b, j]
            left /= engine.speed_of(s, b, j)
        if phase < PHASE.ended:
            total += left
    for j in range(more.counts[b, CAME], s.jobs.shape[1]):
        if s.jobs[b, j, JOB.at] < NEVER:
            total += s.jobs[b, j, JOB.run]
    return total / SECOND


@inner
def go_on(s: State, b: int, rhythm: int) -> bool:
    """Have the next event happen, or let a rhythm pass; return whether there was either."""
    until = s.num[b, NUM.now] + rhythm
    at = engine.next_at(s, b)
    if s.num[b, NUM.next] > 0 and at > until and at < NEVER:
        s.num[b, NUM.now] = until
        return True
    return engine.step_one(s, b, RULE)


@inner
def _follow(s: State, more: More, b: int) -> None:
    """Take over which jobs have come and which have ended."""
    count = 0
    for i in range(more.counts[b, ACTIVE]):
        j = more.active[b, i]
        if s.jobs[b, j, JOB.phase] < PHASE.ended:
            more.active[b, count] = j
            count += 1
    for j in range(more.counts[b, CAME], s.num[b, NUM.next]):
        if s.jobs[b, j, JOB.phase] < PHASE.ended:
            more.active[b, count] = j
            count += 1
            more.seen[b, j, SEEN.since] = s.num[b, NUM.now]
    more.counts[b, ACTIVE], more.counts[b, CAME] = count, s.num[b, NUM.next]


# --- moves ---------------------------------------------------------------------------------------


@inner
def move(s: State, b: int, j: int, workers: int, spread: bool) -> bool:
    """Place a waiting job, or resize a running one; return whether that was possible."""
    if workers < 1:
        return False
    if s.jobs[b, j, JOB.phase] == PHASE.running:
        return engine.resize(s, b, j, workers)
    if s.jobs[b, j, JOB.phase] != PHASE.waiting or workers > s.num[b, NUM.gpus_free]:
        return False
    at = 0
    while s.queue[b, at] != j:
        at += 1
    before = s.jobs[b, j, JOB.size_now]
    s.jobs[b, j, JOB.size_now] = workers
    parts = place(s, b, j, False) if spread else engine.find_packed(s, b, j)
    size = s.nodes[b, 0, NODE.size]
    if parts == 0 or (not spread and parts > (workers + size - 1) // size):
        s.jobs[b, j, JOB.size_now] = before
        return False
    s.jobs[b, j, JOB.size_now] = before
    engine.dequeue(s, b, at)
    s.jobs[b, j, JOB.size_now] = workers
    engine.begin(s, b, j, parts)
    return True


# --- rows ----------------------------------------------------------------------------------------


@inner
def told_rate(more: More, s: State, b: int, j: int, workers: int, parts: int) -> float:
    """Return the stated speed of a job with so many workers on so many nodes."""
    size = s.nodes[b, 0, NODE.size]
    beyond = max(parts - (workers + size - 1) // size, 0)
    level = min(beyond, more.told_spread.shape[2] - 1)
    then = s.jobs[b, j, JOB.workers]
    growth = more.told_growth[b, j, workers] / more.told_growth[b, j, then]
    return float(growth * more.told_spread[b, j, level])


@inner
def _phase_shown(s: State, more: More, b: int, j: int) -> int:
    """Return the phase of a job as a view has it: one that is being resized runs."""
    phase = s.jobs[b, j, JOB.phase]
    if phase == PHASE.waiting:
        return c.WAITING
    if phase == PHASE.running or more.seen[b, j, SEEN.phase] == c.RUNNING:
        return c.RUNNING
    return c.STARTING


@inner
def show(s: State, more: More, b: int, nodes: int, shown: Shown) -> None:
    """Write the rows of an environment: jobs with GPUs first, then those that wait."""
    now, count = s.num[b, NUM.now], 0
    for waiting in range(2):
        for i in range(more.counts[b, ACTIVE]):
            j = more.active[b, i]
            if (s.jobs[b, j, JOB.phase] == PHASE.waiting) != (waiting == 1):
                continue
            if s.jobs[b, j, JOB.phase] >= PHASE.ended:
                continue
            more.rows[b, count] = j
            _show_job(s, more, b, j, shown.raw[b, count])
            count += 1
    for i in range(count, shown.counts[b]):
        shown.raw[b, i, :] = 0.0
    more.counts[b, ROWS] = shown.counts[b] = count
    shown.now[b] = now / SECOND
    _show_cluster(s, more, b, nodes, shown)


@inner
def _show_job(s: State, more: More, b: int, j: int, row: Floats) -> None:
    """Write the row of a job (`skep.learn.scene.row_of`)."""
    now, phase = s.num[b, NUM.now], _phase_shown(s, more, b, j)
    workers, trains = s.jobs[b, j, JOB.size_now], s.jobs[b, j, JOB.phase] == PHASE.running
    since = s.jobs[b, j, JOB.since] if trains else more.seen[b, j, SEEN.since]
    if phase != more.seen[b, j, SEEN.phase] or (trains and since != more.seen[b, j, SEEN.since]):
        if more.seen[b, j, SEEN.phase] == c.RUNNING:
            more.seen[b, j, SEEN.served] += now - more.seen[b, j, SEEN.since]
        more.seen[b, j, SEEN.phase] = phase
        more.seen[b, j, SEEN.since] = since if trains else now
    row[:] = 0.0
    least, most = more.limits[b, j, 0], more.limits[b, j, 1]
    row[c.PHASE], row[c.EACH], row[c.WORKERS] = phase, 1.0, workers
    row[c.LEAST], row[c.MOST] = least, most
    row[c.SUBMITTED] = s.jobs[b, j, JOB.at] / SECOND
    row[c.SINCE] = more.seen[b, j, SEEN.since] / SECOND
    row[c.SERVED] = more.seen[b, j, SEEN.served] / SECOND
    row[c.DOUBT], row[c.PAUSE] = more.doubt[b], s.costs[COST.resize] / SECOND
    parts = s.jobs[b, j, JOB.parts] if phase != c.WAITING else 0
    row[c.NODES] = parts
    row[c.RESIZABLE] = 1.0 if most > least and trains else 0.0
    left = more.told_run[b, j] * (1.0 - s.jobs[b, j, JOB.done] / s.jobs[b, j, JOB.run])
    row[c.LEFT] = left / told_rate(more, s, b, j, workers, parts) if parts > 0 else left
    size = s.nodes[b, 0, NODE.size]
    fewest = (workers + size - 1) // size
    far = min(fewest + more.told_spread.shape[2] - 1, most)
    row[c.SLOW_NEAR] = row[c.SLOW_FAR] = row[c.SLOW_NOW] = 1.0
    row[c.FAR_NODES] = max(far, fewest)
    if far > fewest:
        row[c.SLOW_NEAR] = 1.0 / more.told_spread[b, j, 1]
        row[c.SLOW_FAR] = 1.0 / more.told_spread[b, j, far - fewest]
        if parts > fewest:
            row[c.SLOW_NOW] = 1.0 / more.told_spread[b, j, min(parts - fewest, far - fewest)]
    _show_sizes(s, more, b, j, row)


@inner
def _show_sizes(s: State, more: More, b: int, j: int, row: Floats) -> None:
    """Write the sizes that a job may have, and the stated rates (`columns.sizes_of`)."""
    workers = s.jobs[b, j, JOB.size_now]
    least, most = more.limits[b, j, 0], more.limits[b, j, 1]
    if least >= most:
        row[c.SIZE], row[c.RATE] = workers, more.told_growth[b, j, workers]
        return
    # All sizes that are wanted, as bits; then those farthest from the present one are dropped.
    wanted = (1 << workers) | (1 << least) | (1 << most)
    power = 1
    while power < most:
        if power > least:
            wanted |= 1 << power
        power *= 2
    count = 0
    for size in range(least, most + 1):
        count += (wanted >> size) & 1
    while count > c.SIZES:
        worst, gap = -1, -1.0
        for size in range(least, most + 1):
            if (wanted >> size) & 1:
                here = abs(np.log2(size / workers))
                if here >= gap:
                    worst, gap = size, here
        wanted &= ~(1 << worst)
        count -= 1
    place = 0
    for size in range(least, most + 1):
        if (wanted >> size) & 1:
            row[c.SIZE + place] = size
            row[c.RATE + place] = more.told_growth[b, j, size]
            place += 1


@inner
def _show_cluster(s: State, more: More, b: int, nodes: int, shown: Shown) -> None:
    """Write the row of the cluster (`skep.learn.scene.Scene.cluster`)."""
    now = s.num[b, NUM.now]
    row = shown.cluster[b]
    row[:] = 0.0
    size = s.nodes[b, 0, NODE.size]
    row[c.GPUS], row[c.FREE] = nodes * size, s.num[b, NUM.gpus_free]
    row[c.NODE_GPUS], row[c.NODE_COUNT] = size, nodes
    for n in range(nodes):
        free = s.nodes[b, n, NODE.free]
        row[c.WHOLE] += free == size
        row[c.ROOM + min(free, c.NODE_MAX)] += 1.0
    row[c.HISTORY] = now / SECOND
    j = s.num[b, NUM.next] - 1
    while j >= 0 and s.jobs[b, j, JOB.at] >= now - 2 * HOUR_NS:
        if s.jobs[b, j, JOB.at] >= now - HOUR_NS:
            row[c.ARRIVED] += 1.0
            row[c.ARRIVED_WORK] += more.told_run[b, j] * s.jobs[b, j, JOB.workers]
        else:
            row[c.ARRIVED_BEFORE] += 1.0
        j -= 1


def costs_of(start_s: float, resize_s: float, stop_s: float) -> Ints:
    """Return costs as the engine has them."""
    made = np.zeros(len(COST), np.int64)
    made[COST.start], made[COST.resize] = int(start_s * SECOND), int(resize_s * SECOND)
    made[COST.stop] = int(stop_s * SECOND)
    return made
