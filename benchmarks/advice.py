"""What the advice of a learned model costs: following a sight, features, inference, decoding.

    python -m benchmarks advice [--jobs 40 200 1000] [--changed 1 10 all] [--moves 0] [--open 2]
                                [--times 300]

A VC of 64 nodes with 8 GPUs has so many jobs by chance, of which a third wait; `--open` nodes have
0, 1, 2 or 4 free GPUs, the others none. In each round so many jobs are others than in the sight
before. All times are CPU time of this process, with one thread of BLAS. `ms` is all that an advisor
does in a round once the sight is decoded: `Scene.follow`, then `decide`, which ends after `--moves`
moves (0: when the model ends). The model has the shipped sizes and random weights, so it fills what
is free. `follow_us` is the first part of `ms`. `features_us` and `embed_us` are parts of one more
run: the timed features of all jobs, and their embeddings.

`within_limit`: where not all jobs changed, the 99th percentile is at most 1 ms for 200 jobs and
3 ms for 1,000.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Read when numpy is loaded.

import argparse
import random
import time
from typing import Any

import msgspec
import numpy as np

from benchmarks._sample import percentiles, say
from skep.learn.decide import decide
from skep.learn.features import times, write_timed
from skep.learn.modelfile import Header, Model, dump, load
from skep.learn.net import random_weights
from skep.learn.scene import Scene
from skep.units import Duration, Instant
from skep.wire.learned import MOVES_MAX, JobSight, RoomSight, Sight

NOW_S = 1_760_000_000
NS = 10**9
LIMITS_MS = {200: 1.0, 1000: 3.0}
WARM = 30
"""Rounds before those that are counted."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--jobs", type=int, nargs="+", default=[40, 200, 1000])
    parser.add_argument("--changed", nargs="+", default=["1", "10", "all"])
    parser.add_argument("--moves", type=int, nargs="+", default=[0])
    parser.add_argument("--open", type=int, default=2)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure; return figures."""
    model = load(dump(random_weights(given.seed), Header()))
    figures: dict[str, Any] = {}
    limits = []
    for jobs in given.jobs:
        for changed in given.changed:
            for moves in given.moves:
                count = jobs if changed == "all" else min(int(changed), jobs)
                found = measured(
                    model, random.Random(given.seed), (jobs, count, moves, given.open), given.times
                )
                figures[f"{jobs} jobs, {changed} changed, {moves or 'all'} moves"] = found
                say(f"{jobs} jobs, {changed} changed, {moves} moves: {found['ms']}")
                limit = LIMITS_MS.get(jobs)
                if limit and changed != "all":
                    limits.append(found["ms"]["p99"] <= limit)
    return {**figures, "within_limit": all(limits)}


def measured(
    model: Model, rng: random.Random, case: tuple[int, int, int, int], rounds: int
) -> dict[str, Any]:
    """Return what rounds of advice take."""
    jobs, changed, moves, nodes = case
    known = [job(rng, number) for number in range(1, jobs + 1)]
    scene, now = Scene(), float(NOW_S)
    scene.follow(sight(rng, 0, known, nodes, whole=True))
    taken, follow, made = list[float](), list[float](), list[int]()
    for number in range(1, rounds + WARM + 1):
        now += 7
        news = [job(rng, at) for at in rng.sample(range(1, jobs + 1), changed)]
        seen = sight(rng, number, news, nodes, whole=False)
        began = time.process_time_ns()
        scene.follow(seen)
        between = time.process_time_ns()
        advice = decide(model, scene, now, moves or MOVES_MAX)
        ended = time.process_time_ns()
        if number > WARM:
            taken.append((ended - began) / 1e6)
            follow.append((between - began) / 1e3)
            made.append(len(advice.moves))
    return {
        "ms": {"min": round(min(taken), 3), **percentiles(taken, 3)},
        "follow_us": percentiles(follow, 1),
        "moves_mean": round(float(np.mean(made)), 2),
        "moves_max": max(made),
        **parts(model, scene, now),
    }


def parts(model: Model, scene: Scene, now: float) -> dict[str, Any]:
    """Return what making the timed features of all jobs, and their embeddings, take."""
    features, scores = list[float](), list[float]()
    for _ in range(50):
        began = time.process_time_ns()
        when = times(scene.raw, now)
        write_timed(scene.raw, when, now, scene.jobs)
        between = time.process_time_ns()
        model.net.embed(scene.jobs)
        ended = time.process_time_ns()
        features.append((between - began) / 1e3)
        scores.append((ended - between) / 1e3)
    return {"features_us": percentiles(features, 1), "embed_us": percentiles(scores, 1)}


def job(rng: random.Random, number: int) -> JobSight:
    """Return a job by chance, of which everything is known."""
    workers = rng.choice((1, 1, 1, 1, 2, 4, 8))
    elastic, runs = rng.random() < 0.3, rng.random() < 0.67
    submitted = NOW_S - rng.randrange(1, 40_000)
    blank = JobSight(
        job=f"j{number}",
        sequence=number,
        phase="running" if runs else "waiting",
        each=1,
        workers=workers,
        least=workers,
        most=workers,
        submitted_at=Instant(submitted * NS),
        since=Instant(rng.randrange(submitted, NOW_S) * NS if runs else 0),
        expected=Duration(int(rng.lognormvariate(8, 1.4)) * NS),
        slowdown=((1, 1000), (2, 1200), (4, 1700)),
        doubt=200,
        nodes=int(runs),
        pause=Duration(3 * NS),
    )
    if not elastic:
        return blank
    rates = tuple((size, int(1000 * size**0.8)) for size in range(1, 17))
    return msgspec.structs.replace(blank, least=1, most=16, rates=rates, resizable=runs)


def sight(
    rng: random.Random, number: int, jobs: list[JobSight], nodes: int, *, whole: bool
) -> Sight:
    """Return a sight of a VC where at most so many of its nodes have free GPUs."""
    free = [rng.choice((0, 0, 0, 0, 1, 2, 4)) if at < nodes else 0 for at in range(64)]
    return Sight(
        vc="a",
        number=number,
        whole=whole,
        at=Instant(NOW_S * NS + number * NS),
        gpus=512,
        free=sum(free),
        node_gpus=8,
        room=tuple(
            RoomSight(gpus=8, free=each, count=free.count(each)) for each in sorted({*free})
        ),
        jobs=tuple(jobs),
    )
