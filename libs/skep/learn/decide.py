"""Greedy decoding: the best move, then the best one after it, until nothing more is better.

The embeddings of jobs are made once. After a pick, the row of its job and the row of the cluster
are what they will be; the embedding of that job, the pools and the context follow, and the
candidates are looked at again: those among the RANKED best of before that still fit. The scores are
those of a network that sees the VC after every pick, unless more than RANKED candidates fit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from skep.learn import columns as c
from skep.learn.candidates import (
    CHOICES,
    GROW,
    KIND,
    KINDS,
    OPTION,
    SPREAD,
    WORKERS,
    A,
    Fit,
    Placed,
    able,
    fit,
    place,
    write_free,
    write_shares,
    write_there,
)
from skep.learn.columns import Floats, Integers
from skep.learn.curves import curves_of
from skep.learn.features import (
    JOB_PLACES,
    LOG_WORK,
    LONG,
    WAITED_RATIO,
    Matrix,
    cluster_features,
    holding,
    queued,
    times,
    write_steady,
    write_timed,
)
from skep.learn.modelfile import Model
from skep.learn.net import Pools
from skep.learn.scene import Scene
from skep.learn.shares import share_out
from skep.wire.learned import CHOICES_MAX, HOLDS_MAX, MOVES_MAX, AdvisedMove

RANKED = 64
"""Candidates that are looked at again after a pick: twice as many as there are picks."""
WORK = JOB_PLACES["work"]
STARTED = np.array([JOB_PLACES[name] for name in ("in_phase", "waits", "away", "starts")])
"""Features that change when a job is started in the size that it asks for."""
STARTED_VALUES = np.array([0.0, 0.0, 0.0, 1.0], dtype=np.float32)
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
    if not search.begin(scene, now):
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
        self._net, self._ranges, self._names = model.net, model.header.ranges, scene.names
        self._raw, self._jobs = scene.raw, scene.jobs
        self._demands, self._codes = scene.demands, scene.codes
        self._after: Matrix | None = None
        """Of each candidate the embedding of its job after the move; None: not needed yet."""
        self.reliable = True

    def begin(self, scene: Scene, now: float) -> bool:
        """Look at all candidates; return False if none fits: then nothing else is of any use."""
        self._cluster = scene.room
        self._set_fit()
        codes = self._codes.ravel()
        chosen = self._later[codes].nonzero()[0]
        if not len(chosen):
            return False
        self._now, self._when = now, times(self._raw, now)
        self._cluster = scene.cluster(now, self._when)
        write_timed(self._raw, self._when, now, self._jobs)
        embedded = self._net.embed(self._jobs)
        self._of_jobs = self._net.of_jobs(embedded)
        self._waits = queued(self._raw)
        self._pools = Pools(embedded, self._waits, holding(self._raw))
        numbers, features = scene.options
        self._numbers = np.asfortranarray(numbers.reshape(-1, OPTION).take(chosen, axis=0))
        self._features = np.asfortranarray(features.reshape(-1, A).take(chosen, axis=0))
        self._rows, self._codes_left = chosen // CHOICES, codes[chosen]
        placed = self._placed()
        self._nodes = placed.nodes
        left, waited = self._when.remaining[self._rows], self._jobs[self._rows, WAITED_RATIO]
        write_there(self._numbers, placed, left, waited, self._features)
        shares = share_out(self._raw, self._cluster, self._when)
        write_shares(self._numbers, shares.at(self._rows), left, self._features)
        self._look()
        if len(self._rows) > RANKED:
            self._keep(np.sort(np.argpartition(-self._scores, RANKED)[:RANKED]))
        self._close()
        self.reliable = (
            within(self._jobs, self._ranges.job)
            and within(self._seen[None], self._ranges.cluster)
            and within(self._features, self._ranges.candidate)
        )
        return True

    def pick(self) -> AdvisedMove | None:
        """Return the next move and suppose that it is made; None: nothing more is better."""
        if not len(self._rows):
            return None
        first = int(self._scores.argmax())
        score = float(self._scores[first])
        if not math.isfinite(self._hold) or not (math.isfinite(score) or score < 0):
            self.reliable = False
            return None
        if not score > self._hold:
            return None
        row = int(self._rows[first])
        others = self._scores[self._rows != row]
        second = max(float(others.max()) if len(others) else self._hold, self._hold)
        workers, kind = int(self._numbers[first, WORKERS]), int(self._numbers[first, KIND])
        move = AdvisedMove(
            job=self._names[row],
            workers=workers,
            spread=kind == SPREAD,
            score_milli=_milli(score - self._hold),
            margin_milli=_milli(score - second),
        )
        self._suppose(first)
        return move

    def held(self) -> tuple[str, ...]:
        """Return the waiting jobs that still fit on as few nodes as they need, oldest first."""
        fits = self._open[self._codes[:, : c.SIZES]]
        held = (fits.any(-1) & self._waits).nonzero()[0]
        if not len(held):
            return ()
        oldest = held[np.argsort(self._raw[held, c.SUBMITTED], kind="stable")][:HOLDS_MAX]
        return tuple(self._names[row] for row in oldest.tolist())

    def _set_fit(self) -> None:
        """Find how all demands would be placed now, and by their codes which candidates fit.

        The last of these is of no candidate. Later a gang may be spread that fits on as few nodes
        as it needs.
        """
        self._fit = fit(self._cluster, self._demands)
        kinds = able(self._fit)
        self._open = np.zeros(len(kinds[0]) * KINDS + 1, dtype=bool)
        for kind, fits in enumerate(kinds):
            self._open[kind:-1:KINDS] = fits
        self._later = self._open.copy()
        self._later[SPREAD:-1:KINDS] = kinds[GROW]

    def _placed(self) -> Placed:
        """Return where the candidates that are left would go."""
        demand = self._codes_left // KINDS
        return place(self._numbers, Fit(self._fit.nodes[demand], self._fit.local[demand]))

    def _suppose(self, first: int) -> None:
        """Change what is seen to what it is after the move of a candidate."""
        if self._after is None:
            self._after = self._embed_after()
        row, after = int(self._rows[first]), self._after[first]
        workers, starts = float(self._numbers[first, WORKERS]), self._numbers[first, KIND] <= SPREAD
        before, each = float(self._raw[row, c.WORKERS]), float(self._raw[row, c.EACH])
        if starts or workers > before:  # What a smaller gang gives back is not free at once.
            take(self._cluster, workers if starts else workers - before, each)
        self._waits[row] &= not starts
        self._set_fit()
        fits = self._later[self._codes_left]
        self._keep((fits & (self._rows != row)).nonzero()[0])
        if not len(self._rows):
            return
        self._add_up(row, workers, starts=starts)
        self._pools.change(row, after)
        self._move()
        self._look()
        self._close()

    def _add_up(self, row: int, workers: float, *, starts: bool) -> None:
        """Change the sums over jobs to what they are after a move."""
        cluster, raw, when = self._cluster, self._raw[row], self._when
        before, each = float(raw[c.WORKERS]), float(raw[c.EACH])
        work, known = float(when.remaining[row]) * each, float(when.known[row])
        if not starts:
            cluster[c.HELD_WORK] += work * (workers - before)
            return
        cluster[c.QUEUED_JOBS] -= 1
        cluster[c.QUEUED_GPUS] -= before * each
        cluster[c.QUEUED_WORK] -= work * before
        cluster[c.QUEUED_KNOWN] -= known
        cluster[c.QUEUED_AGE] -= float(when.age[row])
        cluster[c.HELD_JOBS] += 1
        cluster[c.HELD_KNOWN] += known
        cluster[c.HELD_WORK] += work * workers

    def _close(self) -> None:
        """Let no candidate be picked that does not fit now."""
        self._scores[~self._open[self._codes_left]] = -np.inf

    def _embed_after(self) -> Matrix:
        """Return for each candidate the embedding of its job after the move."""
        rows, workers, starts = (
            self._rows,
            self._numbers[:, WORKERS],
            self._codes_left % KINDS <= SPREAD,
        )
        raw = self._raw.take(rows, axis=0)
        raw[:, c.WORKERS] = workers
        jobs = self._jobs[rows]
        write_steady(raw, self._cluster, curves_of(raw), jobs)
        work = np.log1p(self._when.remaining[rows] * workers * raw[:, c.EACH]) / LOG_WORK
        jobs[:, WORK] = np.minimum(work, LONG[1])
        jobs[np.ix_(starts, STARTED)] = STARTED_VALUES
        return self._net.embed(jobs)

    def _move(self) -> None:
        """Write the features of the candidates that would go on another number of nodes now."""
        kinds = self._codes_left % KINDS
        if not ((kinds == SPREAD) | (kinds == GROW)).any():
            return
        placed = self._placed()
        moved = np.flatnonzero(placed.nodes != self._nodes)
        if not len(moved):
            return
        self._nodes = placed.nodes
        rows, features = self._rows[moved], self._features.take(moved, axis=0)
        left, waited = self._when.remaining[rows], self._jobs[rows, WAITED_RATIO]
        write_there(self._numbers.take(moved, axis=0), placed.at(moved), left, waited, features)
        self._features[moved] = features

    def _look(self) -> None:
        """Score the candidates, and doing nothing more."""
        write_free(self._numbers, self._cluster, self._features)
        self._seen = cluster_features(self._cluster)
        shared = self._net.context(self._pools.read(), self._seen)
        self._hold = float(self._net.hold(shared))
        self._scores = self._net.score(
            self._of_jobs[self._rows], self._net.of_context(shared), self._features
        )

    def _keep(self, chosen: Integers) -> None:
        self._rows, self._codes_left = self._rows[chosen], self._codes_left[chosen]
        self._nodes, self._scores = self._nodes[chosen], self._scores[chosen]
        self._numbers = self._numbers.take(chosen, axis=0)
        self._features = self._features.take(chosen, axis=0)
        if self._after is not None:
            self._after = self._after.take(chosen, axis=0)


def take(cluster: Floats, workers: float, each: float) -> None:
    """Take room for workers from the nodes of a cluster, as packing would.

    They go to the node with the least room that has enough for all, else to those with most room.
    """
    cluster[c.FREE] -= workers * each
    room = cluster[c.ROOM :]
    node = min(int(cluster[c.NODE_GPUS]), c.NODE_MAX)
    while workers > 0:
        free = np.flatnonzero(room)
        enough = free[free >= workers * each]
        at = int(enough[0] if len(enough) else free[-1])
        number = min(workers, at // each)
        if number < 1:
            return
        _move(cluster, at, at - int(number * each), node)
        workers -= number


def _move(cluster: Floats, free: int, then: int, node: int) -> None:
    """Change how many GPUs one node has free."""
    cluster[c.ROOM + free] -= 1
    cluster[c.ROOM + then] += 1
    cluster[c.WHOLE] += (then == node) - (free == node)


def within(features: Matrix, ranges: tuple[tuple[float, float], ...]) -> bool:
    """Return whether all features `[n, ..]` are in the ranges of the training, and none is a NaN.

    Args:
        features: Of jobs, of candidates, or of a cluster.
        ranges: The least and the most of each; empty: any number.
    """
    if not len(features):
        return True
    least, most = features.min(0), features.max(0)
    if not ranges:
        return bool(np.isfinite(least).all() and np.isfinite(most).all())
    low, high = np.array(ranges, dtype=np.float32).T
    return bool((least >= low - SLACK).all() and (most <= high + SLACK).all())


def _milli(score: float) -> int:
    return int(max(min(score * 1000, MILLI_MAX), -MILLI_MAX))
