"""Gandiva's large-scale evaluation (sections 6.2 to 6.4), by the production machines.

*mix*: the thousand small jobs of section 6.3; *days*: the nine days of section 6.4; *search*: a
multi-job (`multijob`). The baseline is the same allocator, first come, first served: it packs jobs
onto as few servers as hold them, and never over-subscribes.

The speed of a model on a type of GPU, and the slow-down of models that share one, are in
`workloads`. The paper prints no GPU memory of jobs: `MEMORY` is a substitute.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

import msgspec

from skep.units import NS_PER_SECOND, Duration, in_seconds
from skep.wire.cluster import Cluster
from skep.wire.trials import TrialBegun, TrialOver, Verdict
from skep_lab.experiments import multijob
from skep_lab.experiments.multijob import Study
from skep_lab.experiments.quota import Rules
from skep_lab.experiments.quotagandiva import GandivaRun
from skep_lab.outcome import JobOutcome, RunResult, Sample
from skep_lab.simulator.build import of_types
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.truth import Truth
from skep_lab.simulator.world import World
from skep_lab.traces.generators import gandiva, gandivadays
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.figures import Figures
from skep_lab.workloads.models import Models, Part
from skep_lab.workloads.situation import Situation

NODE_GPUS = 4
GIB = 2**30
GPU_MEMORY = {"p40": 24 * GIB, "p100": 16 * GIB}
MEMORY = ((0.2, 2 * GIB), (0.8, 5 * GIB), (1.0, 9 * GIB))
"""Bytes on a GPU by utilisation, at most: so two jobs fit on any GPU, except two of the last kind
on a P100."""
COSTS = Costs(suspend_s=0.5, resume_s=0.5, migrate_s=3.5)
"""Suspending and resuming takes less than a second, a move 3.5 s for the largest (Figure 13)."""
STEADY_MIN = (20, 200)
"""The stable regime of section 6.3, minutes."""
COMING_MIN = (20, 120)
"""The part of it in which jobs come: later one arm may have finished what the other still has to
do."""
SAMPLE_S = 60.0
QUOTA_SLICE_S = 60.0
POINTS = 240
MIX = 1000, 45
"""Jobs and servers of section 6.3."""


TENANTS = {"busy": 0.5, "usual": 0.3, "calm": 0.2}
"""The part of the jobs that each submits: they own as many GPUs."""


class Scene(NamedTuple):
    """One setting of an experiment, run for every seed."""

    label: str
    kind: Literal["mix", "days", "search"]
    policy: tuple[str, dict[str, Any]] = ("fifo", {})
    part: float = 1.0
    """Of the cluster and of its jobs."""
    load: float = 0.0
    """The load of the days; 0: the generator's own."""
    local: bool = True
    """Whether it matters on how many nodes a gang is."""
    cells: str = ""
    """The jobs are those of TENANTS: `own`, each has cells in the cluster, and borrows; `wait`, and
    does not; `alone`, each has a cluster of its own; `quota`, each has a number of GPUs
    (`quotagandiva`, whatever the policy), and `quota alone`, the same scheduler alone; empty, there
    are no tenants."""
    study: Study | None = None
    ours: bool = True

    @property
    def plain(self) -> bool:
        """Return False: the production machines run."""
        return False


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of one setting: its figures, and curves by picture and name."""

    seed: int
    figures: dict[str, float]
    curves: dict[str, list[tuple[float, float]]] = {}


class Sized(Models):
    """Models with a substitute for their memory; `local`: whether nodes matter."""

    local = True

    def memory(self, job: TraceJob) -> int:
        """Return the substitute for a job's bytes."""
        used = self.utilisation(job, Situation(job.gpu_type, (1,), 1))
        return next(size for most, size in MEMORY if used <= most)

    def parts(self, job: TraceJob, where: Situation) -> tuple[Part, ...]:
        """Return the factors of its speed, without that of its nodes if they do not matter."""
        return tuple(
            each
            for each in super().parts(job, where)
            if self.local or each.what not in ("locality", "network")
        )


def play(scene: Scene, seed: int) -> Played:
    """Return the outcome of one setting and seed.

    Args:
        scene: The setting.
        seed: The seed of its workload.
    """
    if scene.study is not None:
        return _search(scene, scene.study, seed)
    if scene.cells:
        return _tenants(scene, seed)
    if scene.kind == "mix":
        jobs, nodes = (max(1, round(each * scene.part)) for each in MIX)
        trace = gandiva.generate(seed, gandiva.Options(jobs=jobs))
    else:
        gpus = round(100 * scene.part)
        nodes = gpus // NODE_GPUS
        load = scene.load or gandivadays.DEFAULT.load
        trace = gandivadays.generate(seed, gandivadays.Options(gpus=gpus, load=load))
    return _cluster(scene, trace, nodes, seed)


def _search(scene: Scene, study: Study, seed: int) -> Played:
    found = multijob.play(study, seed, ours=scene.ours)
    explored = len(found.explored)
    return Played(
        seed=seed,
        curves={"explored": found.explored},
        figures={
            "minutes": found.minutes,
            "explored": float(explored),
            "suspended": float(found.suspended),
        },
    )


def _cluster(scene: Scene, trace: Trace, nodes: int, seed: int) -> Played:
    cluster = of_types({"p100": nodes - nodes // 2, "p40": nodes // 2}, NODE_GPUS)
    result, ledger = _run(scene, trace, cluster, seed)
    return Played(
        seed=seed,
        figures=_figures(result) | ledger.figures(),
        curves=_curves(result) | {"packs kept": ledger.kept_over_time()},
    )


def _run(scene: Scene, trace: Trace, cluster: Cluster, seed: int) -> tuple[RunResult, Ledger]:
    speeds = Sized([Figures()], node_gpus=NODE_GPUS)
    speeds.local = scene.local
    shared = scene.cells == "own"
    settings = Settings(
        seed=seed,
        costs=COSTS,
        policies=dict.fromkeys(cluster.vcs, scene.policy),
        sample_every_s=SAMPLE_S,
        gpu_memory=GPU_MEMORY,
        over_quota="opportunistic" if shared else "wait",
    )
    ledger = Ledger(speeds)
    return run(trace, cluster, settings, speeds, judge=ledger.note), ledger


def _divided(scene: Scene, seed: int) -> Trace:
    """Return the mix divided among tenants."""
    jobs = max(1, round(MIX[0] * scene.part))
    drawn = gandiva.generate(seed, gandiva.Options(jobs=jobs))
    rng = random.Random(f"tenants {seed}")
    names = rng.choices(list(TENANTS), list(TENANTS.values()), k=len(drawn.jobs))
    return msgspec.structs.replace(
        drawn,
        jobs=tuple(
            msgspec.structs.replace(job, vc=name)
            for job, name in zip(drawn.jobs, names, strict=True)
        ),
    )


def _tenants(scene: Scene, seed: int) -> Played:
    """Return the mix divided among tenants: means of each, and of all."""
    nodes, trace = max(1, round(MIX[1] * scene.part)), _divided(scene, seed)
    each = max(1, nodes // (2 * len(TENANTS)))
    if scene.cells.startswith("quota"):
        return _quotas(trace, 2 * each, seed, alone=scene.cells != "quota")
    own = {"p100": each, "p40": each}
    if scene.cells != "alone":
        whole = {kind: count * len(TENANTS) for kind, count in own.items()}
        cluster = of_types(whole, NODE_GPUS, vcs=dict.fromkeys(TENANTS, own))
        runs = [(trace, cluster)]
    else:
        runs = [
            (
                msgspec.structs.replace(
                    trace, jobs=tuple(job for job in trace.jobs if job.vc == name)
                ),
                of_types(own, NODE_GPUS, vcs={name: own}),
            )
            for name in TENANTS
        ]
    figures, curves = dict[str, float](), dict[str, list[tuple[float, float]]]()
    played = [_run(scene, some, cluster, seed) for some, cluster in runs]
    for name in TENANTS:
        outcomes = tuple(
            outcome for result, _ in played for outcome in result.jobs if outcome.job.vc == name
        )
        told = _figures(msgspec.structs.replace(played[0][0], jobs=outcomes))
        for figure in ("hundred_s", "jct_min", "unfinished"):
            figures[f"{name}: {figure}"] = told[figure]
        figures[f"{name}: queue_s"] = _mean([in_seconds(each.waited) for each in outcomes])
        curves[f"{name}: done"] = _done(outcomes, 2 * each * NODE_GPUS)
    return Played(seed=seed, figures=figures, curves=curves)


def _quotas(trace: Trace, nodes: int, seed: int, *, alone: bool) -> Played:
    """Return what tenants of so many nodes' GPUs each have of Gandiva with quotas."""
    rules = Rules(beyond=not alone, node_gpus=NODE_GPUS, slice_s=QUOTA_SLICE_S)
    clusters = [(name,) for name in TENANTS] if alone else [tuple(TENANTS)]
    figures = dict[str, float]()
    for names in clusters:
        jobs = [job for job in trace.jobs if job.vc in names]
        gpus = dict.fromkeys(names, nodes * NODE_GPUS)
        played = GandivaRun(jobs, gpus, nodes * len(names), Duration(0), rules)
        played.run()
        for name in names:
            mine = [number for number, job in enumerate(jobs) if job.vc == name]
            ends = [(jobs[number], played.ended[number]) for number in mine]
            took = [in_seconds(Duration(end - job.at)) / 60 for job, end in ends if end is not None]
            figures |= {
                f"{name}: jct_min": _mean(took),
                f"{name}: unfinished": float(len(mine) - len(took)),
                f"{name}: queue_s": _mean(
                    [in_seconds(Duration(played.waited[number])) for number in mine]
                ),
            }
    return Played(seed=seed, figures=figures)


def _done(outcomes: Sequence[JobOutcome], gpus: int) -> list[tuple[float, float]]:
    """Return minute by minute what a tenant's jobs have done: minutes of all its own GPUs."""
    rates = defaultdict[int, float](float)
    for span in (span for outcome in outcomes for span in outcome.spans):
        if span.ended > span.began:
            useful = span.ended - span.began if span.useful is None else span.useful
            rate = span.gpus * useful / (span.ended - span.began) / gpus
            rates[span.began] += rate
            rates[span.ended] -= rate
    found, done, rate, last, minute = list[tuple[float, float]](), 0.0, 0.0, 0, 60 * NS_PER_SECOND
    for at in sorted({*rates, *range(0, max(rates, default=0) + minute, minute)}):
        done, last = done + rate * (at - last) / minute, at
        rate += rates[at]
        if at % minute == 0:
            found.append((at / minute, done))
    return found


def _figures(result: RunResult) -> dict[str, float]:
    ended = [each for each in result.jobs if each.ended is not None]
    hundred = [
        in_seconds(Duration(each.hundred - each.job.at))
        for each in ended
        if each.hundred is not None
    ]
    steady, coming = _between(result, STEADY_MIN), _between(result, COMING_MIN)
    return {
        "jobs": float(len(result.jobs)),
        "unfinished": float(len(result.jobs) - len(ended)),
        "hundred_s": _mean(hundred),
        "jct_min": _mean(
            [in_seconds(Duration((each.ended or 0) - each.job.at)) / 60 for each in ended]
        ),
        "makespan_min": max((in_seconds(each.ended or Duration(0)) for each in ended), default=0.0)
        / 60,
        "busy": _mean([each.busy / result.gpus for each in steady]),
        "busy_coming": _mean([each.busy / result.gpus for each in coming]),
        "useful": _mean([each.useful / result.gpus for each in steady]),
        "suspended": float(sum(each.suspended for each in ended)),
        "migrated": float(sum(each.migrated for each in ended)),
        "scattered": _mean(
            [
                float(any(len(span.spread) > -(-each.job.gpus // NODE_GPUS) for span in each.spans))
                for each in ended
                if each.job.gpus > 1
            ]
        ),
    }


def _between(result: RunResult, minutes: tuple[int, int]) -> list[Sample]:
    low, high = (60 * each for each in minutes)
    return [each for each in result.samples if low <= in_seconds(each.at) <= high]


def _curves(result: RunResult) -> dict[str, list[tuple[float, float]]]:
    every = max(1, len(result.samples) // POINTS)
    ended = sorted(
        in_seconds(Duration(each.ended - each.job.at)) / 60
        for each in result.jobs
        if each.ended is not None
    )
    thinned = ended[:: max(1, len(ended) // POINTS)]
    return {
        "busy": [
            (in_seconds(each.at) / 60, each.busy / result.gpus) for each in result.samples[::every]
        ],
        "completion": [
            (minutes, number / len(thinned)) for number, minutes in enumerate(thinned, 1)
        ],
    }


class Ledger:
    """The trials of a run, and their verdicts compared with the simulator's own speeds."""

    def __init__(self, speeds: Models) -> None:
        """Begin without trials."""
        self._truth = Truth(speeds)
        self._open: dict[int, TrialBegun] = {}
        self._counts: Counter[str] = Counter()
        self._gains: list[float] = []
        self._kept: list[tuple[int, int]] = []
        """When trials were kept, each with a count of 1."""

    def note(self, world: World, facts: Sequence[Any]) -> None:
        """Record the facts of one decision.

        Args:
            world: The run, before the decision is carried out.
            facts: The facts.
        """
        self._truth.note(world.agents.works, facts)
        for fact in facts:
            if isinstance(fact, TrialBegun):
                self._open[fact.trial] = fact
                self._counts[f"{fact.kind}: trials"] += 1
            elif isinstance(fact, TrialOver):
                self._over(self._open.pop(fact.trial), fact)

    def _over(self, begun: TrialBegun, over: TrialOver) -> None:
        self._counts[f"{begun.kind}: {over.verdict}"] += 1
        if over.verdict is Verdict.VOID:
            return
        if over.verdict is Verdict.KEPT:
            self._gains.append(over.gain_milli / 1000)
            self._kept.append((over.at, 1))

    def figures(self) -> dict[str, float]:
        """Return the counts, and the mean gain of kept trials."""
        truth = self._truth.counts
        counts = self._counts | truth | {"judged": 0, "wrong": 0}
        for name, count in truth.items():
            counts[name.split()[-1]] += count
        found = {name: float(count) for name, count in sorted(counts.items())}
        return found | ({"gain": _mean(self._gains)} if self._gains else {})

    def kept_over_time(self) -> list[tuple[float, float]]:
        """Return minutes, and how many trials had been kept by then (Figure 15, right axis)."""
        if not self._kept:
            return []
        began = self._kept[0][0]
        return [
            (in_seconds(Duration(at - began)) / 60, float(number))
            for number, (at, _) in enumerate(self._kept, 1)
        ]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
