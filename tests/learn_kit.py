"""Sights by chance, and a decoder that looks at everything again after each move."""

from __future__ import annotations

import random

import numpy as np

from skep.learn import columns as c
from skep.learn.candidates import SPREAD, candidates
from skep.learn.columns import Floats
from skep.learn.decide import take
from skep.learn.features import cluster_features, holding, job_features, queued, sums, times
from skep.learn.modelfile import Header, Model, dump, load
from skep.learn.net import Sizes, random_weights
from skep.learn.scene import Scene
from skep.learn.shares import share_out
from skep.units import Duration, Instant
from skep.wire.learned import MOVES_MAX, JobSight, PhaseName, RoomSight, Sight

NOW = 1_760_000_000
NS = 10**9
HELD: tuple[PhaseName, ...] = ("running", "running", "running", "starting", "suspended", "stopping")
QUEUED: tuple[PhaseName, ...] = ("waiting", "waiting", "waiting", "away")


def model(seed: int = 0, **header: object) -> Model:
    """Return a model that nobody has trained."""
    weights = random_weights(seed, Sizes(16, 16))
    return load(dump(weights, Header(job=16, head=16, **header)))  # type: ignore[arg-type]


def job_sight(rng: random.Random, number: int, *, node_gpus: int = 8) -> JobSight:
    """Return a job by chance: of any phase and size, with what is known of it or without."""
    each = rng.choice((1, 1, 1, 2, 4))
    workers = rng.choice((1, 1, 2, 3, 4, 8))
    elastic = rng.random() < 0.4
    least, most = (1, rng.choice((8, 12, 16))) if elastic else (workers, workers)
    phase = rng.choice(HELD) if rng.random() < 0.5 else rng.choice(QUEUED)
    submitted = NOW - rng.randrange(1, 40_000)
    nodes = -(-workers * each // node_gpus) + rng.choice((0, 0, 1, 2))
    known = rng.random() < 0.8
    return JobSight(
        job=f"j{number}",
        sequence=number,
        phase=phase,
        each=each,
        workers=workers,
        least=least,
        most=most,
        submitted_at=Instant(submitted * NS),
        since=Instant(rng.randrange(submitted, NOW) * NS if phase in HELD else 0),
        served=Duration(rng.randrange(5000) * NS),
        expected=Duration(int(rng.lognormvariate(8, 1) * NS)) if known else None,
        left=Duration(int(rng.lognormvariate(7, 1) * NS)) if rng.random() < 0.4 else None,
        rates=tuple(
            (size, int(1000 * size ** rng.uniform(0.4, 1))) for size in range(least, most + 1)
        )
        if rng.random() < 0.7
        else (),
        slowdown=((1, 1000), (2, rng.randrange(1000, 1600)), (4, rng.randrange(1600, 3000)))
        if rng.random() < 0.6
        else (),
        doubt=rng.choice((0, 0, 100, 300)),
        nodes=nodes if phase in HELD else 0,
        resizable=elastic and phase == "running",
        borrows=rng.random() < 0.1,
        pause=Duration(rng.choice((0, 2, 40)) * NS),
    )


def sight(rng: random.Random, jobs: int, *, number: int = 0, first: int = 1) -> Sight:
    """Return a whole sight of a VC of nodes of 8 GPUs."""
    free = [rng.choice((0, 0, 0, 1, 2, 3, 5, 8)) for _ in range(rng.randrange(1, 12))]
    return Sight(
        vc="a",
        number=number,
        whole=True,
        at=Instant(NOW * NS),
        gpus=8 * len(free),
        free=max(sum(free) - rng.choice((0, 0, 1)), 0),
        node_gpus=8,
        room=tuple(
            RoomSight(gpus=8, free=each, count=free.count(each)) for each in sorted({*free})
        ),
        jobs=tuple(job_sight(rng, first + place) for place in range(jobs)),
    )


def followed(*sights: Sight) -> Scene:
    """Return a scene that has followed sights."""
    scene = Scene()
    for each in sights:
        assert scene.follow(each)
    return scene


Move = tuple[int, int, bool, float, float]
"""Row, workers, whether it is spread, score over holding, and over the next best."""


def decided_slowly(model: Model, raw: Floats, cluster: Floats, now: float) -> list[Move]:
    """Return the moves of a model that sees the whole VC again after each of them.

    Args:
        model: The model.
        raw: Rows of jobs.
        cluster: The row of the cluster, without sums.
        now: The time.
    """
    raw, cluster, moves = raw.copy(), cluster.copy(), list[Move]()
    shares = share_out(raw, cluster, times(raw, now))
    free = np.ones(len(raw), dtype=bool)
    while len(moves) < MOVES_MAX:
        sums(raw, cluster, now)
        found = candidates(raw, cluster, now, shares)
        scores, hold = model.net.forward(
            job_features(raw, cluster, now),
            cluster_features(cluster),
            found.features,
            queued(raw),
            holding(raw),
        )
        scores = np.where(found.possible & free[:, None], scores, -np.inf)
        row, at = np.unravel_index(np.argmax(scores), scores.shape)
        if not scores[row, at] > hold:
            break
        others = np.delete(scores, row, axis=0).max(initial=-np.inf)
        workers, kind = found.workers[row, at], found.kind[row, at]
        best = float(scores[row, at])
        second = max(float(others), float(hold))
        moves.append(
            (int(row), int(workers), bool(kind == SPREAD), best - float(hold), best - second)
        )
        starts = kind <= SPREAD
        more = workers if starts else workers - raw[row, c.WORKERS]
        take(cluster, max(float(more), 0.0), float(raw[row, c.EACH]))
        raw[row, c.WORKERS] = workers
        if starts:
            raw[row, c.PHASE], raw[row, c.SINCE] = c.STARTING, now
        free[row] = False
    return moves
