"""What profiles cost, and what they buy: GENIE's B + N + G runs, stopped earlier, fewer, or none.

    runs of a type of task --> GPU-minutes
                           --> predictions of every other placement of 16 GPUs --> errors

GENIE's profiler makes B runs on one GPU, and N + G on several nodes and GPUs, of half a minute each
(section 5.1.5). Skep stops a run when it is known well enough (`skep.perf.stopping`), needs fewer
places, and times whatever runs anyway. Each is fitted by GENIE's equations and by Skep's blend, in
which the other models teach that were measured in the same way.

Mini-batches take what the curves of `traces.generators.k80` say, with deviations drawn for each.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Literal, NamedTuple

from skep.perf.model.fit import fit_genie
from skep.perf.model.genie import Split, rate, splits
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool
from skep.perf.model.predict import predict
from skep.perf.stopping import stops_at
from skep.units import Duration, in_seconds, seconds
from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.genie import (
    NODE_GPUS,
    NODES,
    PROFILE_RUN_S,
    PROFILED,
    Queue,
    played,
    runs,
)
from skep_lab.traces.generators import genie, k80

SPREAD = 0.09
"""The relative deviation of a mini-batch: the median of Alibaba's jobs (PAI, 100 of them)."""
FIRST = 5.0
"""How much longer the first mini-batch of a process takes: the median of 58 measurements
(Chronus)."""
START_S = 30.0
"""What a run takes to begin (`genie.Options.start_s`); a run that serves a tenant begins anyway."""
FEW = 4
"""Placements of a short passive profile."""

RESIZE_S = 10.0
"""What an elastic job loses at each change of its size; a probe has two."""

Which = Literal["b+n+g", "k4", "probes", "passive-few", "passive"]
Form = Literal["genie", "blend"]
Run = tuple[Split, int]
"""A placement, and the batch size of the gang."""


class ProfileCost(NamedTuple):
    """One way to profile all types of tasks."""

    label: str
    which: Which
    form: Form
    stops: bool = True
    """Whether a run ends when it is known well enough, and not after half a minute."""

    @property
    def plain(self) -> bool:
        """Return False: nothing is simulated but the queue of a passive profile."""
        return False


SETTINGS = (
    ProfileCost("GENIE, B+N+G of 30 s", "b+n+g", "genie", stops=False),
    ProfileCost("GENIE, B+N+G stopped", "b+n+g", "genie"),
    ProfileCost("Skep, B+N+G of 30 s", "b+n+g", "blend", stops=False),
    ProfileCost("Skep, B+N+G stopped", "b+n+g", "blend"),
    ProfileCost("Skep, 4 runs of 30 s", "k4", "blend", stops=False),
    ProfileCost("Skep, 4 runs stopped", "k4", "blend"),
    ProfileCost("Skep, probes of an elastic task", "probes", "blend"),
    ProfileCost("Skep, passive, 4 places", "passive-few", "blend"),
    ProfileCost("Skep, passive, a day", "passive", "blend"),
)


class Profiled(NamedTuple):
    """What the runs of one type of task found, and took."""

    points: tuple[Point, ...]
    gpu_s: float


def play(setting: ProfileCost, seed: int) -> Played:
    """Return the cost and the errors of one way to profile.

    Args:
        setting: The setting.
        seed: The seed of mini-batches, and of the queue of a passive profile.
    """
    kinds = [k80.kind(model, k80.TRAINING) for model in genie.MODELS]
    passive = setting.which.startswith("passive")
    todo = {kind: _runs(setting.which, kind, seed) for kind in kinds}
    found = {kind: _profile(kind, todo[kind], seed, stops=setting.stops) for kind in kinds}
    errors = sorted(
        error
        for kind in kinds
        for error in _errors(
            setting.form, kind, {name: each.points for name, each in found.items()}
        )
    )
    made = fmean(len(each) for each in todo.values())
    begins_s = {"probes": 2 * RESIZE_S}.get(setting.which, START_S)
    starts_s = 0.0 if passive else fmean(_gpus(each) for each in todo.values()) * begins_s
    measures_s = 0.0 if passive else fmean(each.gpu_s for each in found.values())
    cost_s = measures_s + starts_s
    return Played(
        seed=seed,
        figures={
            "runs": made,
            "gpu_min": measures_s / 60,
            "gpu_min_starts": cost_s / 60,
            "share": 100 * cost_s / _of_a_day_s(seed),
            "error": fmean(errors),
            "error_median": errors[len(errors) // 2],
            "error_p95": errors[min(len(errors) * 95 // 100, len(errors) - 1)],
        },
        curves={},
    )


def _gpus(todo: Iterable[Run]) -> int:
    return sum(split.gpus for split, _ in todo)


def _runs(which: Which, kind: str, seed: int) -> list[Run]:
    """Return the runs of a profile."""
    if which == "b+n+g":
        return list(runs(NODES))
    if which == "k4":
        one = Split(1, 1)
        return [(one, PROFILED), (Split(1, 2), PROFILED), (Split(2, 1), PROFILED), (one, 32)]
    if which == "probes":
        return [(Split(*place), PROFILED) for place in ((1, 1), (1, 2), (1, 4), (2, 4))]
    seen = _placements(seed).get(kind, [])
    return seen[:FEW] if which == "passive-few" else seen


@cache
def _placements(seed: int) -> dict[str, list[Run]]:
    """Return where tasks of each type ran on a day, each place once, in the order of begins."""
    found: dict[str, dict[Run, None]] = {}
    policy = ("genie", {"backfill": True, "late": "last"})
    result = played(Queue("a day", policy, predictor="oracle"), seed)
    for job in sorted(result.jobs, key=lambda each: each.spans[0].began):
        spread = job.spans[0].spread
        place = Split(len(spread), spread[0]), job.job.batch_size
        found.setdefault(job.job.model, {})[place] = None
    return {kind: list(places) for kind, places in found.items()}


@cache
def _of_a_day_s(seed: int) -> float:
    """Return the GPU-seconds that a type of task asks for in a day, on one GPU, on average."""
    jobs = genie.generate(seed, genie.DEFAULT).jobs
    kinds = len(genie.MODELS) * len(genie.CALCULATIONS)
    return sum(in_seconds(each.run_time) for each in jobs) / kinds


def _profile(kind: str, todo: Sequence[Run], seed: int, *, stops: bool) -> Profiled:
    points, gpu_s = [], 0.0
    for split, batch in todo:
        step_s = k80.step_s(kind, batch, (split.each,) * split.nodes)
        taken = _mini_batches(step_s, random.Random(f"{seed} {kind} {split} {batch}"), stops=stops)
        gpu_s += split.gpus * in_seconds(Duration(sum(taken)))
        mean = Duration(round(fmean(taken[1:])))
        place = Placement("k80", split.gpus, split.nodes, batch / split.gpus)
        points.append(Point(place, mean, samples=len(taken) - 1))
    return Profiled(tuple(points), gpu_s)


def _mini_batches(step_s: float, rng: random.Random, *, stops: bool) -> list[Duration]:
    """Return the mini-batches of a run: those until the rule stops it, or of half a minute."""
    taken = [seconds(FIRST * step_s)]
    while True:
        taken.append(seconds(step_s * max(0.2, rng.gauss(1.0, SPREAD))))
        if stops and stops_at(taken)[1] is not None:
            return taken
        if not stops and sum(taken) >= seconds(PROFILE_RUN_S) and len(taken) > 2:
            return taken


def _errors(form: Form, kind: str, found: dict[str, tuple[Point, ...]]) -> list[float]:
    """Return how far predicted mini-batches of one type are from real ones, in percent."""
    mine = found[kind]
    measured = {each.placement for each in mine}
    known = fit_genie(list(mine)) if form == "genie" else None
    blend = None
    if form == "blend":
        pool = Pool(found)
        blend = pool.fit_family(mine, kind)
    errors = []
    for split, batch in product(splits(NODES, NODE_GPUS), genie.BATCHES):
        place = Placement("k80", split.gpus, split.nodes, batch / split.gpus)
        if split.gpus > batch or place in measured:
            continue
        real_s = k80.step_s(kind, batch, (split.each,) * split.nodes)
        if blend is not None:
            told_s = in_seconds(predict(blend, place).p50)
        else:
            assert known is not None, kind
            told_s = batch / rate(known, batch, split.nodes, split.each)
        errors.append(100 * abs(told_s - real_s) / real_s)
    return errors
