"""GENIE's evaluation (section 7): queues of tasks with deadlines on a small cluster of K80s.

The production allocator serves the queue (`traces.generators.genie`) under `genie` or one of the
baselines (`sized`). Tasks run as fast as the curves of `traces.generators.k80` say, each attempt
with some noise, or as fast as was measured where there are measurements (`Queue.measured`). What
the policies know of that is GENIE's own model, fitted to a profile of B + N + G short runs with
noise of their own (section 5.1.5), or the real rates themselves (`oracle`). Skep's own predictions
(`skep`) are fitted to the very same runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from skep.perf.model.fit import fit_genie
from skep.perf.model.genie import Genie, Split, cost, rate, splits
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool
from skep.perf.model.predict import step_ns as predicted_ns
from skep.policy.symmetric import MeasuredRow, ModelRow
from skep.units import NS_PER_SECOND, Duration, in_seconds, seconds
from skep_lab.experiments.gandiva import Played
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.simulator.build import of_types
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import AT_ONCE, Costs, Settings
from skep_lab.traces.generators import genie, k80
from skep_lab.traces.generators.draw import HOUR_S
from skep_lab.traces.generators.k80measured import Rows, measured
from skep_lab.workloads.k80 import K80

NODES, NODE_GPUS = 4, 4
GPUS_MAX = genie.DEFAULT.gpus_max
BATCHES = (1, 2, 4, 8, 16, 24, 32, 64, 96, 128)
"""The batch sizes that are profiled on one GPU: ten, as in section 5.1.5's example."""
PROFILED = 64
"""The batch size of the runs on several GPUs or nodes."""
PROFILE_RUN_S = 30.0
"""What a run of the profile takes (section 5.1.5)."""
NOISE = 0.02
"""The relative deviation of a run of the profile, and of an attempt."""
KINDS = tuple(k80.kind(*each) for each in product(genie.MODELS, genie.CALCULATIONS))
CURVE_POINTS = 60
STARVED_S, STARVED = 24 * HOUR_S, 20
"""A task that waits for more than a day, and so many times its latency on one GPU, is starved."""

Predictor = Literal["genie", "skep", "oracle"]


class Queue(NamedTuple):
    """One setting of an experiment, run for every seed."""

    label: str
    policy: tuple[str, dict[str, Any]]
    """Without what it knows of tasks."""
    options: genie.Options = genie.DEFAULT
    nodes: int = NODES
    predictor: Predictor = "genie"
    noise: float = NOISE
    at_once: bool = True
    """Whether the end of a task is one event, as to the paper's scheduler. In a real cluster, and
    else, its nodes come free one after the other, and what has its turn meanwhile gets the first of
    them."""
    measured: Rows = ()
    """What mini-batches take instead of what the curves say."""
    classes: bool = True
    """Whether a task's class is its priority, as `genie` and `sized` read it; else only its
    deadline says it."""

    @property
    def plain(self) -> bool:
        """Return False: the production machines run."""
        return False


class Check(NamedTuple):
    """A comparison of predicted with real rates on all placements (Figure 8)."""

    label: str
    models: tuple[str, ...]
    """They train."""
    batches: tuple[int, ...] = genie.BATCHES
    exhaustive: bool = False
    """Whether the profile has every batch size on every placement, and not B + N + G runs."""

    @property
    def plain(self) -> bool:
        """Return False: nothing is simulated, but the models are those of the scheduler."""
        return False


class Prices(NamedTuple):
    """The cost of every placement on the paper's cluster (Figure 10)."""

    label: str
    theta: float

    @property
    def plain(self) -> bool:
        """Return False: nothing is simulated, but the costs are those of the scheduler."""
        return False


class Profile(NamedTuple):
    """What GENIE's profiler finds of all types of tasks, and what that costs for each."""

    models: tuple[ModelRow, ...]
    gpu_s: float


def play(
    setting: Queue | Check | Prices, seed: int, clock: Callable[[], float] | None = None
) -> Played:
    """Return the outcome of one setting and seed.

    Args:
        setting: The setting.
        seed: The seed of its tasks, of the profile's noise and of that of attempts.
        clock: Returns processor seconds; None: what decisions cost is not measured.

    Raises:
        ValueError: A task never ended.
    """
    if isinstance(setting, Check):
        return _checked(setting, seed)
    if isinstance(setting, Prices):
        return _priced(setting, seed)
    result = played(setting, seed, clock)
    jobs = [each for each in result.jobs if each.ended is not None]
    if len(jobs) < len(result.jobs):
        reason = f"{len(result.jobs) - len(jobs)} tasks never ended"
        raise ValueError(reason)
    makespan_s = in_seconds(Duration(max((each.ended or 0 for each in jobs), default=0)))
    normalised = [_normalised(each, setting) for each in jobs]
    return Played(
        seed=seed,
        figures={
            "tasks": float(len(jobs)),
            "makespan_h": makespan_s / HOUR_S,
            "latency": fmean(normalised),
            "latency_max": max(normalised),
            "waited_max_h": max(in_seconds(each.waited) for each in jobs) / HOUR_S,
            "starved": float(sum(_starved(each, setting) for each in jobs)),
            "gpus": fmean(each.spans[0].gpus for each in jobs),
            "cpu_s": result.cpu_s,
            "cpu_percent": 100 * result.cpu_s / max(makespan_s, 1.0),
            **_in_time(jobs),
            **_errors(jobs, setting, seed),
        },
        curves={
            "tasks ended": _points(in_seconds(Duration(each.ended or 0)) / 60 for each in jobs),
            "lateness": _points(_lateness(each) for each in jobs if each.job.priority < 2),
        },
    )


def _points(values: Iterable[float]) -> list[tuple[float, float]]:
    """Return which part of some values is at most so large, at CURVE_POINTS of them or so."""
    found = sorted(values)
    step, last = max(1, len(found) // CURVE_POINTS), len(found) - 1
    return [
        (value, (number + 1) / len(found))
        for number, value in enumerate(found)
        if number % step == 0 or number == last
    ]


def _lateness(each: JobOutcome) -> float:
    """Return the time from submission to end over the expected one (Figure 9)."""
    job = each.job
    assert each.ended is not None
    assert job.deadline is not None
    return (each.ended - job.at) / max(job.deadline - job.at, 1)


def _checked(check: Check, seed: int) -> Played:
    """Return how far predicted rates are from real ones, in percent."""
    found: dict[str, list[float]] = {}
    drawn: dict[str, list[tuple[float, float]]] = {}
    for model in check.models:
        kind = k80.kind(model, k80.TRAINING)
        todo = _every_run() if check.exhaustive else runs(NODES)
        model_row = _fitted(kind, _profiled(kind, todo, NOISE, seed, k80.step_s))
        for number, split in enumerate(splits(NODES, NODE_GPUS)):
            for batch in check.batches:
                if split.gpus > batch:
                    continue
                real = batch / k80.step_s(kind, batch, (split.each,) * split.nodes)
                told = rate(Genie(*model_row[1:6]), batch, split.nodes, split.each)
                error = 100 * abs(told - real) / real
                found.setdefault("error", []).append(error)
                found.setdefault(f"error at batch size {batch}", []).append(error)
                if model == check.models[0] and batch == PROFILED:
                    drawn.setdefault("predicted", []).append((number + 1, told))
                    drawn.setdefault("measured", []).append((number + 1, real))
    errors = sorted(found["error"])
    figures = {name: fmean(each) for name, each in found.items()}
    figures["error_p95"] = errors[min(len(errors) * 95 // 100, len(errors) - 1)]
    return Played(seed=seed, figures=figures, curves=drawn)


def _priced(prices: Prices, seed: int) -> Played:
    """Return what placements cost (equation 10)."""
    costs = {
        split: cost(split, NODES, NODE_GPUS, prices.theta) for split in splits(NODES, NODE_GPUS)
    }
    return Played(
        seed=seed,
        figures={f"{split.nodes}N{split.each}G": each for split, each in costs.items()},
        curves={
            f"{nodes} nodes": [
                (split.gpus, each) for split, each in costs.items() if split.nodes == nodes
            ]
            for nodes in range(1, NODES + 1)
        },
    )


def _every_run() -> list[tuple[Split, int]]:
    """Return the runs of an exhaustive profile: B x N x G."""
    return [
        (split, batch)
        for split, batch in product(splits(NODES, NODE_GPUS), BATCHES)
        if split.gpus <= batch
    ]


def played(queue: Queue, seed: int, clock: Callable[[], float] | None = None) -> RunResult:
    """Return the simulated run of a queue.

    Args:
        queue: The setting.
        seed: The seed of its tasks and of their noise.
        clock: Returns processor seconds.
    """
    step_s = measured(queue.measured).step_s
    trace = genie.generate(seed, queue.options, step_s)
    cluster = of_types({"k80": queue.nodes}, NODE_GPUS)
    name, options = queue.policy
    known = {**options, "start_s": queue.options.start_s, **knowledge(queue, seed)}
    settings = Settings(
        seed=seed,
        costs=Costs(start_s=queue.options.start_s),
        policies=dict.fromkeys(cluster.vcs, (name, known)),
        noise=queue.noise,
        can=(),
        compat=frozenset({AT_ONCE} if queue.at_once else ()),
    )
    if queue.classes:
        return run(trace, cluster, settings, K80(step_s), clock=clock)
    jobs = {each.id: each for each in trace.jobs}
    plain = tuple(replace(each, priority=0) for each in trace.jobs)
    result = run(replace(trace, jobs=plain), cluster, settings, K80(step_s), clock=clock)
    return replace(result, jobs=tuple(replace(each, job=jobs[each.job.id]) for each in result.jobs))


def knowledge(queue: Queue, seed: int) -> Mapping[str, Any]:
    """Return what the policies of a setting know of tasks, as options.

    Args:
        queue: The setting.
        seed: The seed of the profile's noise.
    """
    if queue.predictor == "oracle":
        return {"measured": curves(queue.nodes, queue.measured)}
    if queue.predictor == "skep":
        return {"measured": predicted(seed, queue.nodes, queue.noise, queue.measured)}
    return {"models": profile(seed, queue.nodes, queue.noise, queue.measured).models}


@cache
def profile(seed: int, nodes: int = NODES, noise: float = NOISE, rows: Rows = ()) -> Profile:
    """Return GENIE's models of all types of tasks (section 5.1.5: B + N + G runs of each).

    Args:
        seed: The seed of the runs' noise.
        nodes: Nodes of the platform, each with NODE_GPUS.
        noise: The relative deviation of a run.
        rows: What mini-batches take instead of what the curves say.
    """
    todo, step_s = [*runs(nodes)], measured(rows).step_s
    models = tuple(_fitted(kind, _profiled(kind, todo, noise, seed, step_s)) for kind in KINDS)
    return Profile(models, sum(split.gpus for split, _ in todo) * PROFILE_RUN_S)


@cache
def predicted(
    seed: int, nodes: int = NODES, noise: float = NOISE, rows: Rows = ()
) -> tuple[MeasuredRow, ...]:
    """Return samples per second as Skep's prediction core has them, of the runs of `profile`.

    Args:
        seed: The seed of the runs' noise.
        nodes: Nodes of the platform, each with NODE_GPUS.
        noise: The relative deviation of a run.
        rows: What mini-batches take instead of what the curves say.
    """
    todo, step_s = [*runs(nodes)], measured(rows).step_s
    points = {kind: _profiled(kind, todo, noise, seed, step_s) for kind in KINDS}
    pool, found = Pool(points), list[MeasuredRow]()
    for kind in KINDS:
        parameters = pool.fit_family(points[kind], kind)
        for batch, split in product(genie.BATCHES, splits(nodes, NODE_GPUS)):
            if split.gpus <= min(batch, GPUS_MAX):
                place = Placement("k80", split.gpus, split.nodes, batch / split.gpus)
                there = batch * NS_PER_SECOND / predicted_ns(parameters, place)
                found.append((kind, batch, split.nodes, split.each, there))
    return tuple(found)


def _fitted(kind: str, points: Sequence[Point]) -> ModelRow:
    """Return GENIE's model of a type of task."""
    found = fit_genie(points)
    assert found is not None, kind
    inference = kind.endswith(k80.INFERENCE)  # "Comm is equal to 0" (section 5.1.4).
    gamma, balance = (0.0, 0.0) if inference else (found.gamma, found.lambda_)
    return kind, found.k0, found.k1, found.k2, gamma, balance


def runs(nodes: int) -> Iterator[tuple[Split, int]]:
    """Yield the runs of GENIE's profile: placement, and batch size of the gang.

    Args:
        nodes: Nodes of the platform, each with NODE_GPUS.
    """
    for batch in BATCHES:
        yield Split(1, 1), batch
    for each in range(2, NODE_GPUS + 1):
        yield Split(1, each), PROFILED
    for count in range(2, nodes + 1):
        yield Split(count, 1), PROFILED


def _profiled(
    kind: str, runs: Iterable[tuple[Split, int]], noise: float, seed: int, step_s: k80.StepS
) -> list[Point]:
    """Return what runs of a profile find, with their noise."""
    found = []
    for split, batch in runs:
        rng = random.Random(f"profile {seed} {kind} {split.nodes} {split.each} {batch}")
        real_s = step_s(kind, batch, (split.each,) * split.nodes)
        place = Placement("k80", split.gpus, split.nodes, batch / split.gpus)
        there = seconds(real_s * max(0.5, rng.gauss(1.0, noise)))
        found.append(Point(place, there, samples=100))
    return found


@cache
def curves(nodes: int, rows: Rows = ()) -> tuple[MeasuredRow, ...]:
    """Return the real samples per second of every type, batch size and placement.

    Args:
        nodes: Nodes of the platform.
        rows: What mini-batches take instead of what the curves say.
    """
    step_s = measured(rows).step_s
    return tuple(
        (
            kind,
            batch,
            split.nodes,
            split.each,
            batch / step_s(kind, batch, (split.each,) * split.nodes),
        )
        for kind, batch in product(KINDS, genie.BATCHES)
        for split in splits(nodes, NODE_GPUS)
        if split.gpus <= min(batch, GPUS_MAX)
    )


def _in_time(jobs: list[JobOutcome]) -> dict[str, float]:
    """Return the percentage of the tasks that ended in time, of all and of each class."""
    names = {2: "urgent", 1: "prior", 0: "normal"}
    found = {"qos": [_timely(each) for each in jobs]}
    for priority, name in names.items():
        found[name] = [_timely(each) for each in jobs if each.job.priority == priority]
    return {name: 100 * fmean(each) if each else 0.0 for name, each in found.items()}


def _timely(each: JobOutcome) -> bool:
    return each.ended is not None and each.ended <= (each.job.deadline or 0)


def _normalised(each: JobOutcome, queue: Queue) -> float:
    """Return the time from submission to end over the latency on one GPU (equation 16)."""
    assert each.ended is not None
    alone_s = in_seconds(each.job.run_time) + queue.options.start_s
    return in_seconds(Duration(each.ended - each.job.at)) / alone_s


def _starved(each: JobOutcome, queue: Queue) -> bool:
    """Return whether a task waited more than STARVED_S, and STARVED times its latency alone."""
    alone_s = in_seconds(each.job.run_time) + queue.options.start_s
    return in_seconds(each.waited) > max(STARVED_S, STARVED * alone_s)


def _errors(jobs: list[JobOutcome], queue: Queue, seed: int) -> dict[str, float]:
    """Return how far predicted latencies were from real ones, in percent: mean and 95th."""
    known = profile(seed, queue.nodes, queue.noise, queue.measured).models
    models = {row[0]: Genie(*row[1:6]) for row in known}
    ours: dict[tuple[str, int, int, int], float] = {}
    if queue.predictor == "skep":
        rows = predicted(seed, queue.nodes, queue.noise, queue.measured)
        ours = {row[:4]: row[4] for row in rows}
    found = []
    for each in jobs:
        span, job = each.spans[0], each.job
        real_s = in_seconds(Duration(span.ended - span.began))
        split = Split(len(span.spread), span.spread[0])
        samples = job.batch_size * job.mini_batches
        there = ours.get((job.model, job.batch_size, split.nodes, split.each)) or rate(
            models[job.model], job.batch_size, split.nodes, split.each
        )
        found.append(abs(samples / there + queue.options.start_s - real_s) / real_s * 100)
    found.sort()
    return {"error": fmean(found), "error_p95": found[min(len(found) * 95 // 100, len(found) - 1)]}
