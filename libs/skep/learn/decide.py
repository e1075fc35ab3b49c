"""Greedy decoding: the best move, then the best one after it, until nothing more is better.

The embeddings of jobs are made once. After a pick, the row of its job and the row of the cluster
are what they will be; the embedding of that job, the pools and the context follow, and the
candidates are looked at again: those among the RANKED best of before that still fit. The scores are
those of a network that sees the VC after every pick, unless more than RANKED candidates fit.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence
from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.candidates import (
    CHOICES,
    FITS,
    GROW,
    KIND,
    KINDS,
    LOCAL,
    SPREAD,
    WORKERS,
    Takes,
    place,
    takes,
    write_free,
    write_shares,
    write_there,
)
from skep.learn.columns import Floats, Integers
from skep.learn.features import (
    JOB_PLACES,
    LOG_WORK,
    LONG,
    SIZED,
    WAITED_RATIO,
    Matrix,
    features_of,
    times,
    write_timed,
)
from skep.learn.modelfile import Bounds, Model
from skep.learn.net import Pools
from skep.learn.scene import Scene
from skep.learn.shares import Shares, shares_of
from skep.wire.learned import CHOICES_MAX, HOLDS_MAX, MOVES_MAX, AdvisedMove

RANKED = 64
"""Candidates that are looked at again after a pick: twice as many as there are picks."""
WORK = JOB_PLACES["work"]
STARTED = np.array([JOB_PLACES[name] for name in ("in_phase", "waits", "away", "starts")])
"""Features that change when a job is started in the size that it asks for."""
STARTED_VALUES = np.array([0.0, 0.0, 0.0, 1.0], dtype=np.float32)
MILLI_MAX = 2**53
"""A score is cut to so many thousandths: the network of a bad model may say any number."""


class Decision(NamedTuple):
    """What a model would do."""

    moves: tuple[AdvisedMove, ...]
    holds: tuple[str, ...]
    """Waiting jobs that fit now and had better wait."""
    reliable: bool
    """All features are in the ranges of the training."""
    choices: tuple[AdvisedMove, ...] = ()
    """The first move and those that are nearly as good, if these were asked for."""


def decide(
    model: Model, scene: Scene, now: float, most: int = MOVES_MAX, *, margin_milli: int = 0
) -> Decision:
    """Return what a model would do, best move first.

    Args:
        model: The model.
        scene: What it sees.
        now: The time, in seconds.
        most: No more moves than these.
        margin_milli: How much worse than the first move others may be that are told too; 0: none.
    """
    search, moves = _Search(model, scene), list[AdvisedMove]()
    # Numbers of a damaged model may overflow; what comes of them is looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        if not search.begin(now):
            return Decision((), (), reliable=True)
        choices = _choices(search, scene, margin_milli / 1000) if margin_milli else ()
        while len(moves) < most:
            move = search.pick()
            if move is None:
                break
            moves.append(move)
    return Decision(tuple(moves), search.held(), search.reliable, choices)


def _choices(search: _Search, scene: Scene, margin: float) -> tuple[AdvisedMove, ...]:
    """Return the best first moves that are at most so much worse than the best, best first."""
    scores, hold, numbers = search._scores, search._hold, search._numbers
    best = np.argsort(-scores, kind="stable")[:CHOICES_MAX].tolist()
    return tuple(
        AdvisedMove(
            job=scene.names[int(search._rows[at])],
            workers=int(numbers[at, WORKERS]),
            spread=int(numbers[at, KIND]) == SPREAD,
            score_milli=_milli(float(scores[at]) - hold),
        )
        for at in best
        if scores[at] > hold and float(scores[best[0]] - scores[at]) <= margin
    )


class _Search:
    """A scene after the moves that were picked so far, and the candidates for the next one."""

    def __init__(self, model: Model, scene: Scene) -> None:
        self._net, self._bounds, self._scene = model.net, model.bounds, scene
        self._raw, self._jobs = scene.raw, scene.jobs
        self.reliable = True

    def begin(self, now: float) -> bool:
        """Look at all candidates; return False if none fits: then nothing else is of any use."""
        scene, net = self._scene, self._net
        self._fits = scene.fits(scene.room)
        codes = scene.codes.ravel()
        self._fitting = chosen = self._fits.later[codes].nonzero()[0]
        if not len(chosen):
            return False
        self._when = when = times(self._raw, now)
        cluster = scene.cluster(now, when)
        self._cluster: list[float] = cluster.tolist()
        write_timed(self._raw, when, now, self._jobs)
        embedded = net.embed(self._jobs)
        self._pools = Pools(embedded, when.waits, when.holds) if net.sees_pools else None
        self._numbers, self._features = scene.options_at(chosen)
        self._rows, self._codes = chosen // CHOICES, codes[chosen]
        self._alive = np.ones(len(chosen), dtype=bool)
        self._of_jobs = net.of_jobs(embedded).take(self._rows, axis=0)
        demand = self._codes // KINDS
        self._features[:, FITS] = possible = self._fits.now[self._codes]
        self._nodes = place(self._numbers, self._fits.nodes[demand], possible)
        left, waited = self._times(self._rows)
        write_there(self._numbers, self._nodes, left, waited, self._features)
        workers, price = shares_of(scene.ladders, when.remaining, self._cluster[c.FREE])
        shares = Shares(workers[self._rows], price)
        write_shares(self._numbers, shares, left, self._features)
        self._takes = takes(self._numbers, max(self._cluster[c.NODE_GPUS], 1.0))
        self._look()
        if len(chosen) > RANKED:
            self._keep(_ranked(self._scores))
        self._close()
        kinds = self._codes % KINDS
        self._moving = ((kinds == SPREAD) | (kinds == GROW)).nonzero()[0]
        self._there = self._fits.nodes[self._codes[self._moving] // KINDS]
        seen = self._jobs, self._seen[None], self._features
        self.reliable = all(map(Bounds.hold, self._bounds, seen))
        return True

    def pick(self) -> AdvisedMove | None:
        """Return the next move and suppose that it is made; None: nothing more is better."""
        if not self._alive.any():
            return None
        first = int(self._scores.argmax())
        score, hold = float(self._scores[first]), self._hold
        if not math.isfinite(hold) or not (math.isfinite(score) or score < 0):
            self.reliable = False
            return None
        if not score > hold:
            return None
        row = int(self._rows[first])
        mine = self._rows == row
        self._scores[mine] = -np.inf
        self._alive &= ~mine
        second = max(float(self._scores.max()), hold)
        workers, kind = int(self._numbers[first, WORKERS]), int(self._numbers[first, KIND])
        move = AdvisedMove(
            job=self._scene.names[row],
            workers=workers,
            spread=kind == SPREAD,
            score_milli=_milli(score - hold),
            margin_milli=_milli(score - second),
        )
        self._suppose(row, workers, starts=kind <= SPREAD)
        return move

    def held(self) -> tuple[str, ...]:
        """Return the waiting jobs that still fit on as few nodes as they need, oldest first."""
        codes = self._scene.codes.ravel()[self._fitting]
        fits = np.zeros(len(self._raw), dtype=bool)
        fits[self._fitting[self._fits.now[codes] & (codes % KINDS == LOCAL)] // CHOICES] = True
        held = (fits & self._when.waits).nonzero()[0]
        oldest = held[self._raw[held, c.SUBMITTED].argsort(kind="stable")[:HOLDS_MAX]]
        return tuple(self._scene.names[row] for row in oldest.tolist())

    def _times(self, rows: Integers) -> tuple[Floats, Matrix]:
        """Return what jobs have left, and how long they have waited."""
        return self._when.remaining[rows], self._jobs[rows, WAITED_RATIO]

    def _suppose(self, row: int, workers: int, *, starts: bool) -> None:
        """Change what is seen to what it is after a move of a job."""
        before, each = self._raw[row, c.WORKERS].item(), self._raw[row, c.EACH].item()
        if starts or workers > before:  # What a smaller gang gives back is not free at once.
            take(self._cluster, workers if starts else workers - before, each)
        self._when.waits[row] &= not starts
        self._add_up(row, workers, starts=starts)
        self._fits = self._scene.fits(self._cluster)
        self._alive &= self._fits.later[self._codes]
        if not self._alive.any():
            return
        if self._pools is not None:
            self._pools.change(row, self._embed_after(row, workers, starts=starts))
        self._move()
        self._look()
        self._close()

    def _add_up(self, row: int, workers: float, *, starts: bool) -> None:
        """Change the sums over jobs to what they are after a move."""
        cluster, when = self._cluster, self._when
        before, each = self._raw[row, c.WORKERS].item(), self._raw[row, c.EACH].item()
        work, known = when.remaining[row].item() * each, when.known[row].item()
        if not starts:
            cluster[c.HELD_WORK] += work * (workers - before)
            return
        cluster[c.QUEUED_JOBS] -= 1
        cluster[c.QUEUED_GPUS] -= before * each
        cluster[c.QUEUED_WORK] -= work * before
        cluster[c.QUEUED_KNOWN] -= known
        cluster[c.QUEUED_AGE] -= when.age[row].item()
        cluster[c.HELD_JOBS] += 1
        cluster[c.HELD_KNOWN] += known
        cluster[c.HELD_WORK] += work * workers

    def _close(self) -> None:
        """Let no candidate be picked that does not fit now."""
        self._scores[~(self._fits.now[self._codes] & self._alive)] = -np.inf

    def _embed_after(self, row: int, workers: int, *, starts: bool) -> Matrix:
        """Return the embedding of a job after a move."""
        raw, jobs = self._raw[row], self._jobs[row].copy()
        if workers != raw[c.WORKERS]:
            jobs[SIZED] = self._scene.sized(row, workers)
        work = math.log1p(float(self._when.remaining[row] * workers * raw[c.EACH])) / LOG_WORK
        jobs[WORK] = min(work, LONG[1])
        if starts:
            jobs[STARTED] = STARTED_VALUES
        made: Matrix = self._net.embed(jobs[None])[0]
        return made

    def _move(self) -> None:
        """Write the features of the candidates that would go on another number of nodes now."""
        if not len(self._moving):
            return
        before, self._there = self._there, self._fits.nodes[self._codes[self._moving] // KINDS]
        if (self._there == before).all():
            return
        codes, numbers = self._codes[self._moving], self._numbers[self._moving]
        possible = self._fits.now[codes]
        nodes = place(numbers, self._there, possible)
        moved = ((nodes != self._nodes[self._moving]) & self._alive[self._moving]).nonzero()[0]
        if not len(moved):
            return
        self._nodes[self._moving] = nodes
        chosen = self._moving[moved]
        features = self._features[chosen]
        left, waited = self._times(self._rows[chosen])
        features[:, FITS] = possible[moved]
        write_there(numbers[moved], nodes[moved], left, waited, features)
        self._features[chosen] = features

    def _look(self) -> None:
        """Score the candidates, and doing nothing more."""
        cluster = self._cluster
        free, node_gpus = cluster[c.FREE], max(cluster[c.NODE_GPUS], 1.0)
        in_use = free - cluster[c.WHOLE] * node_gpus
        write_free(self._takes, max(free, 1.0), in_use, self._features)
        self._seen = features_of(self._cluster)
        pools = None if self._pools is None else self._pools.read()
        of_context, hold = self._net.of_context(pools, self._net.encode(self._seen))
        self._hold = float(hold)
        self._scores = self._net.score(self._of_jobs, of_context, self._features)

    def _keep(self, chosen: Integers) -> None:
        self._rows, self._codes, self._alive = (
            each[chosen] for each in (self._rows, self._codes, self._alive)
        )
        self._nodes, self._scores = self._nodes[chosen], self._scores[chosen]
        self._of_jobs = self._of_jobs.take(chosen, axis=0)
        self._numbers = self._numbers.T.take(chosen, axis=1).T
        self._features = self._features.T.take(chosen, axis=1).T
        gpus, more, whole = self._takes
        self._takes = Takes(gpus[chosen], more[chosen], whole[chosen])


def take(cluster: MutableSequence[float] | Floats, workers: float, each: float) -> None:
    """Take room for workers from the nodes of a cluster, as packing would.

    They go to the node with the least room that has enough for all, else to those with most room.
    """
    cluster[c.FREE] -= workers * each
    node = min(int(cluster[c.NODE_GPUS]), c.NODE_MAX)
    while workers > 0:
        free = [at for at in range(1, c.NODE_MAX + 1) if cluster[c.ROOM + at] > 0]
        at = next((at for at in free if at >= workers * each), free[-1] if free else 0)
        number = min(workers, at // each)
        if number < 1:
            return
        then = at - int(number * each)
        cluster[c.ROOM + at] -= 1
        cluster[c.ROOM + then] += 1
        cluster[c.WHOLE] += (then == node) - (at == node)
        workers -= number


def _ranked(scores: Floats | Matrix) -> Integers:
    """Return the RANKED best candidates, in their order: of those as good the first ones."""
    least = -float(np.partition(-scores, RANKED - 1)[RANKED - 1])
    if not math.isfinite(least):
        return np.sort(np.argpartition(-scores, RANKED)[:RANKED])
    chosen = (scores >= least).nonzero()[0]
    better = scores[chosen] > least
    room = RANKED - np.count_nonzero(better)
    return np.sort(np.concatenate([chosen[better], chosen[~better][:room]]))


def _milli(score: float) -> int:
    return int(max(min(score * 1000, MILLI_MAX), -MILLI_MAX))
