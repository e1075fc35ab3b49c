"""What predictions of mini-batches cost: one placement, all placements of a job, and a fit.

    python -m benchmarks predict [--nodes 1000] [--gpus 64] [--points 32] [--families 8]

The families are made up: their speeds follow Pollux' form with terms drawn from a seed, and noise.
All times are CPU time of this process.

`predict_us` is one call of `predict`, with all forms that a fit blends. `all_ms` is every number of
nodes that a job can be spread over on the cluster, for a job of `--gpus` GPUs and an elastic one
of up to as many (in powers of two). `all_even_ms` is every even placement on all nodes at once,
8,000 of them on 1,000 nodes, in numpy. `fit_ms` is the fit of a family given what others teach;
`taught_ms` is what a pool learns once, of its families; `played_ms` what it learns once of a case
(the placements that a family was measured at), and `played_first_ms` of the first case, for which
each family is left out once. `piece_ms` is what the advisor does of all that between two rests.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks._sample import percentiles
from skep.perf.fitting import POOL_POINTS
from skep.perf.model import theta
from skep.perf.model.many import predict_many
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool, wanted_of
from skep.perf.model.predict import predict, predict_all
from skep.perf.model.similar import thin
from skep.perf.model.theta import Theta
from skep.units import Duration

KIND = "v100"
NODE_GPUS = 8
PREDICT_US, ALL_MS, FIT_MS = 50.0, 5.0, 50.0
"""The limits."""


def family(rng: random.Random, points: int) -> list[Point]:
    """Return a made-up family's points, of up to 64 GPUs on up to 8 nodes."""
    scale, sync = math.exp(rng.gauss(0, 1)), math.exp(rng.gauss(0, 0.5))
    form = Theta(
        scale * 1e7,
        scale * 1e6,
        scale * sync * 5e6,
        scale * sync * 1e5,
        scale * sync * 2e7,
        scale * sync * 5e5,
        scale * sync * 1e6,
        2.0,
        16,
    )
    places = [
        Placement(KIND, gpus, nodes, batch)
        for gpus in (1, 2, 4, 8, 16, 32, 64)
        for nodes in (1, 2, 4, 8)
        for batch in (8.0, 16.0, 32.0)
        if nodes <= gpus <= NODE_GPUS * nodes
    ]
    rest = rng.sample(places[1:], min(points, len(places)) - 1)
    return [
        Point(
            each,
            Duration(
                round(
                    theta.step_ns(form, each.gpus, each.nodes, each.batch)
                    * math.exp(rng.gauss(0, 0.05))
                )
            ),
        )
        for each in [places[0], *rest]
    ]


def placements(gpus: int, nodes: int) -> list[Placement]:
    """Return a job's GPUs on as few nodes as hold them, and on every number more."""
    fewest = -(-gpus // NODE_GPUS)
    return [Placement(KIND, gpus, each, 16) for each in range(fewest, min(gpus, nodes) + 1)]


def _timed(call: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        began = time.process_time_ns()
        call()
        found.append((time.process_time_ns() - began) / 1e6)
    return found


def _spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    return {"min": round(min(values), digits), **percentiles(values, digits)}


def pieces(families: dict[str, list[Point]], points: list[Point]) -> list[float]:
    """Return what each piece of the advisor's work takes, from a new pool to the first fit."""
    pool = Pool({name: thin(each, POOL_POINTS) for name, each in families.items()})
    work, found = pool.prepare(points), list[float]()
    done = object()
    while True:
        began = time.process_time_ns()
        last = next(work, done) is done
        if last:
            pool.fit_family(points)
        found.append((time.process_time_ns() - began) / 1e6)
        if last:
            return found


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--points", type=int, default=32)
    parser.add_argument("--families", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return what predictions and fits take."""
    rng = random.Random(given.seed)
    families = {f"m{at}": family(rng, given.points) for at in range(given.families)}
    points = family(rng, given.points)
    pool = Pool(families)
    taught = _timed(lambda: Pool(families).taught(), 3)
    first = _timed(lambda: pool.plays(wanted_of(points[:1])), 1)
    cases = [points[:count] for count in range(2, 8)]
    played = []
    for few in cases:
        case = wanted_of(few)
        played += _timed(lambda case=case: pool.plays(case), 1)  # type: ignore[misc]
    fitted = pool.fit_family(points)
    fits = {}
    for count in (1, 4, 8, 16, given.points):
        few = points[:count]
        pool.fit_family(few)  # Its case is played once, and kept.
        fits[f"{count}_points"] = _spread(
            _timed(lambda few=few: pool.fit_family(few), given.rounds)  # type: ignore[misc]
        )
    job = placements(given.gpus, given.nodes)
    sizes = [1 << power for power in range(given.gpus.bit_length())]
    elastic = [each for gpus in sizes for each in placements(gpus, given.nodes)]
    place = Placement(KIND, 16, 2, 16)
    one = [
        each * 1000 / 200
        for each in _timed(lambda: [predict(fitted, place) for _ in range(200)], given.rounds)
    ]
    rigid_ms = _spread(_timed(lambda: predict_all(fitted, job), given.rounds))
    elastic_ms = _spread(_timed(lambda: predict_all(fitted, elastic), given.rounds))
    nodes = np.repeat(np.arange(1, given.nodes + 1), NODE_GPUS)
    even = nodes * np.tile(np.arange(1, NODE_GPUS + 1), given.nodes)
    even_ms = _spread(_timed(lambda: predict_many(fitted, even, nodes, 16), given.rounds))
    slowest = max(each["p50"] for each in fits.values())
    return {
        "predict_us": _spread(one),
        "all_ms": {"placements_n": len(job), **rigid_ms},
        "all_elastic_ms": {"placements_n": len(elastic), **elastic_ms},
        "all_even_ms": {"placements_n": len(even), **even_ms},
        "fit_ms": fits,
        "taught_ms": _spread(taught),
        "played_first_ms": _spread(first),
        "piece_ms": _spread(pieces(families, points)),
        "played_ms": _spread(played),
        "predict": {"within_limit": percentiles(one)["p50"] <= PREDICT_US},
        "all": {"within_limit": max(rigid_ms["p50"], elastic_ms["p50"], even_ms["p50"]) <= ALL_MS},
        "fit": {"within_limit": slowest <= FIT_MS},
    }
