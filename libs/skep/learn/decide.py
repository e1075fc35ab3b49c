"""Greedy decoding: the best move, then the best one after it, until nothing more is better.

The embeddings of jobs are made once. After a pick, the row of its job and the row of the cluster
are what they will be; the embedding of that job, the pools and the context follow, and the
candidates are looked at again: those among the RANKED best of before that still fit. The scores are
those of a network that sees the VC after every pick, unless more than RANKED candidates fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.candidates import LOCAL, SPREAD, Choices, Placed, candidate_features, choices, fits
from skep.learn.columns import Floats, Integers
from skep.learn.features import Matrix, cluster_features, holding, job_features, queued, times
from skep.learn.modelfile import Model
from skep.learn.net import pools
from skep.learn.scene import Scene
from skep.wire.learned import HOLDS_MAX, MOVES_MAX, AdvisedMove

RANKED = 64
"""Candidates that are looked at again after a pick: twice as many as there are picks."""
SLACK = 0.05
"""A feature may leave the range of the training by so much, and the advice is still reliable."""
MILLI_MAX = 2**53
"""A score is cut to so many thousandths: the network of a bad model may say any number."""


class Decision(NamedTuple):
    """What a model would do."""

    moves: tuple[AdvisedMove, ...]
    holds: tuple[str, ...]
    """Waiting jobs that fit now and had better wait."""
    reliable: bool
    """All features are in the ranges of the training."""


def decide(model: Model, scene: Scene, now: float) -> Decision:
    """Return what a model would do, best move first.

    Args:
        model: The model.
        scene: What it sees.
        now: The time, in seconds.
    """
    if not scene.names:
        return Decision((), (), reliable=True)
    search = _Search(model, scene, now)
    moves: list[AdvisedMove] = []
    while len(moves) < MOVES_MAX:
        move = search.pick()
        if move is None:
            break
        moves.append(move)
    return Decision(tuple(moves), search.held(), search.reliable)


class _Search:
    """A scene after the moves that were picked so far, and the candidates for the next one."""

    def __init__(self, model: Model, scene: Scene, now: float) -> None:
        self._net, self._ranges = model.net, model.header.ranges
        self._names, self._raw, self._now = scene.names, scene.raw.copy(), now
        self._cluster = scene.cluster(now).copy()
        self._waits, self._holds = queued(self._raw), holding(self._raw)
        self._left = self._waits.copy()
        """Waiting jobs without a move."""
        jobs = job_features(self._raw, self._cluster, now)
        self._embedded = self._net.embed(jobs)
        self._of_jobs = self._net.of_jobs(self._embedded)
        self._when = times(self._raw, now)
        chosen = choices(self._raw)
        rows, places = np.nonzero(chosen.workers > 0)
        self._all = rows, Choices(chosen.workers[rows, places], chosen.kind[rows, places])
        placed = fits(self._raw[rows], self._cluster, *self._all[1])
        able = np.flatnonzero(placed.possible)
        self._rows = rows[able]
        self._chosen = self._all[1].at(able)
        features = self._features(placed.at(able))
        self._look(features)
        self.reliable = (
            within(jobs, self._ranges.job)
            and within(cluster_features(self._cluster), self._ranges.cluster)
            and within(features, self._ranges.candidate)
            and bool(np.isfinite(self._scores).all())
            and np.isfinite(self._hold)
        )
        if len(self._rows) > RANKED:
            best = np.argpartition(-self._scores, RANKED)[:RANKED]
            self._keep(np.sort(best))

    def pick(self) -> AdvisedMove | None:
        """Return the next move and suppose that it is made; None: nothing more is better."""
        if not len(self._rows):
            return None
        first = int(np.argmax(self._scores))
        score = float(self._scores[first])
        if not score > self._hold:
            return None
        row = int(self._rows[first])
        others = self._scores[self._rows != row]
        second = max(float(others.max()) if len(others) else self._hold, self._hold)
        move = AdvisedMove(
            job=self._names[row],
            workers=int(self._chosen.workers[first]),
            spread=bool(self._chosen.kind[first] == SPREAD),
            score_milli=_milli(score - self._hold),
            margin_milli=_milli(score - second),
        )
        self._suppose(row, first)
        return move

    def held(self) -> tuple[str, ...]:
        """Return the waiting jobs that still fit on as few nodes as they need."""
        rows, chosen = self._all
        local = (chosen.kind == LOCAL) & self._left[rows]
        rows = rows[local]
        placed = fits(self._raw[rows], self._cluster, chosen.workers[local], chosen.kind[local])
        held = np.unique(rows[placed.possible])
        return tuple(self._names[row] for row in held[np.argsort(self._raw[held, c.SUBMITTED])])[
            :HOLDS_MAX
        ]

    def _suppose(self, row: int, first: int) -> None:
        """Change the rows of a job and of the cluster to what they are after its move."""
        raw, cluster = self._raw[row], self._cluster
        before, workers = raw[c.WORKERS], float(self._chosen.workers[first])
        kind, each = int(self._chosen.kind[first]), raw[c.EACH]
        take(cluster, workers if kind in {LOCAL, SPREAD} else workers - before, each)
        work = float(self._when.remaining[row])
        known = float(self._when.known[row])
        raw[c.WORKERS] = workers
        if kind in {LOCAL, SPREAD}:
            raw[c.PHASE], raw[c.SINCE] = c.STARTING, self._now
            cluster[c.QUEUED_JOBS] -= 1
            cluster[c.QUEUED_GPUS] -= before * each
            cluster[c.QUEUED_WORK] -= work * before * each
            cluster[c.QUEUED_KNOWN] -= known
            cluster[c.QUEUED_AGE] -= float(self._when.age[row])
            cluster[c.HELD_JOBS] += 1
            cluster[c.HELD_WORK] += work * workers * each
            cluster[c.HELD_KNOWN] += known
            self._waits[row], self._holds[row], self._left[row] = False, True, False
        else:
            cluster[c.HELD_WORK] += work * (workers - before) * each
        embedded = self._net.embed(job_features(raw[None], cluster, self._now))
        self._embedded[row] = embedded[0]
        self._of_jobs[row] = self._net.of_jobs(embedded)[0]
        self._keep(np.flatnonzero(self._rows != row))
        placed = fits(self._raw[self._rows], cluster, *self._chosen)
        able = np.flatnonzero(placed.possible)
        self._keep(able)
        self._look(self._features(placed.at(able)))

    def _features(self, placed: Placed) -> Matrix:
        rows = self._rows
        when = self._when.at(rows)
        return candidate_features(self._raw[rows], self._cluster, when, self._chosen, placed)

    def _look(self, features: Matrix) -> None:
        """Score the candidates, and doing nothing more."""
        shared = self._net.context(
            pools(self._embedded, self._waits, self._holds), cluster_features(self._cluster)
        )
        self._hold = float(self._net.hold(shared))
        self._scores = self._net.score(
            self._of_jobs[self._rows], self._net.of_context(shared), features
        )

    def _keep(self, chosen: Integers) -> None:
        self._rows = self._rows[chosen]
        self._chosen = self._chosen.at(chosen)
        self._scores = self._scores[chosen] if len(self._scores) > len(chosen) else self._scores


def take(cluster: Floats, workers: float, each: float) -> None:
    """Take workers from the nodes of a cluster, or give them back, as packing would.

    They go to the nodes with most room first, and the last ones to the node with the least room
    that has enough. What comes back comes back on nodes in use.
    """
    cluster[c.FREE] -= workers * each
    room = cluster[c.ROOM :]
    node = min(int(cluster[c.NODE_GPUS]), c.NODE_MAX)
    while workers > 0:
        free = np.flatnonzero(room)
        enough = free[free >= workers * each]
        at = int(enough[0] if len(enough) else free[-1])
        number = min(workers, at // each) if each else 0
        if number < 1:
            return
        _move(cluster, at, at - int(number * each), node)
        workers -= number
    while workers < 0:
        used = np.flatnonzero(room[: max(node + 1 - int(each), 0)])
        if not len(used):
            return
        _move(cluster, int(used[0]), int(used[0] + each), node)
        workers += 1


def _move(cluster: Floats, free: int, then: int, node: int) -> None:
    """Change how many GPUs one node has free."""
    cluster[c.ROOM + free] -= 1
    cluster[c.ROOM + then] += 1
    cluster[c.WHOLE] += (then == node) - (free == node)


def within(features: Matrix, ranges: tuple[tuple[float, float], ...]) -> bool:
    """Return whether features are in the ranges of the training; nothing is, of a NaN."""
    if not ranges:
        return bool(np.isfinite(features).all())
    low, high = np.array(ranges, dtype=np.float32).T
    return bool(((features >= low - SLACK) & (features <= high + SLACK)).all())


def _milli(score: float) -> int:
    return int(max(min(score * 1000, MILLI_MAX), -MILLI_MAX))
