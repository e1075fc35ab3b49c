"""Gavel's simulator: who runs on which type of GPU in each round, told from its published code.

All state is kept from one plan to the next, which a policy must not do: this serves the cross-check
alone. Time is in rounds of 360 s; an allocation says which part of the time a job should have on
each type, and who is furthest behind his comes first.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from skep.policies.policy import Policy
from skep.policies.preempt import QUEUED, STOPPABLE
from skep.sim.cluster.build import of_types
from skep.traces.job import Trace, TraceJob
from skep.traces.read import read
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.view.plan import Plan, Preempt, Turn
from skep.view.view import JobView, VcView
from skep.wire.cluster import Cluster
from skep.wire.reasons import Reason
from skep.workloads.situation import Situation, Steady

TYPES = ("v100", "p100", "k80")
GPUS = 36
"""Of each type, four to a node."""
ROUND_S = 360
RESET_S = 1920
"""The soonest that shares are reckoned anew, however many jobs have come or gone."""
SHUFFLE_SEED = 5

Kind = tuple[str, int]
"""Model and GPUs."""


class Rates(Steady):
    """Gavel's measured mini-batches per second, alone on a GPU."""

    def __init__(self, data: Path) -> None:
        """Read them."""
        with gzip.open(data / "gavel" / "simulation_throughputs.json.gz", "rt") as lines:
            raw = json.load(lines)
        self.of: dict[str, dict[Kind, float]] = {
            gpu: {ast.literal_eval(key): each["null"] for key, each in raw[gpu].items()}
            for gpu in TYPES
        }

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed relative to a V100's."""
        kind = job.model, job.gpus
        return self.of[where.gpu_type][kind] / self.of["v100"][kind]


def trace(data: Path) -> Trace:
    """Return the anchor: jobs as long as their steps take on V100s."""
    path = data / "anchors" / "gavel_gen_seed0_lam600_multigpu_400jobs.trace"
    rates = Rates(data).of["v100"]
    with path.open(newline="") as lines:
        whole = read(lines, "gavel seed 0", "gavel",
                     lengths=lambda job: job.mini_batches / rates[job.model, job.gpus])  # fmt: skip
    return msgspec.structs.replace(whole, jobs=tuple(
        msgspec.structs.replace(job, workers=job.gpus) for job in whole.jobs))  # fmt: skip


def tied(whole: Trace, data: Path) -> Trace:
    """Return the trace with jobs that do not run on every type tied to the fastest one."""
    rates = Rates(data).of
    return msgspec.structs.replace(whole, jobs=tuple(
        job if all(rates[gpu][job.model, job.gpus] > 0 for gpu in TYPES)
        else msgspec.structs.replace(job, gpu_type="v100", tied=True)
        for job in whole.jobs))  # fmt: skip


def cluster() -> Cluster:
    """Return nine nodes of each type."""
    return of_types(dict.fromkeys(TYPES, GPUS // 4), gpus_per_node=4)


class State:
    """What Gavel's scheduler keeps."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.began = Instant(0)
        self.reset_at: float | None = None
        self.stale = True
        self.runs: dict[str, str] = {}
        self.share: dict[str, dict[str, float]] = {}
        self.had: dict[str, dict[str, float]] = {}
        self.behind: dict[str, dict[str, float]] = {}
        self.all: dict[str, float] = dict.fromkeys(TYPES, 0.0)
        self.types: dict[str, str] = {}
        self.fifo_random = random.Random(0)
        self.shuffler = random.Random(SHUFFLE_SEED)


class Rounds(Policy, frozen=True):
    """Gavel's rounds; `shares` says by which policy of Gavel's."""

    name: ClassVar[str] = "gavel-rounds"
    source: ClassVar[str] = "Gavel's simulator, scheduler.py and policies/fifo.py"
    shares: str = "las"
    state: ClassVar[State] = State()
    rates: ClassVar[dict[str, dict[Kind, float]]] = {}

    @property
    def sees_nodes(self) -> bool:
        """Return True: types are on nodes."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return who runs where in this round; nothing changes before the next one."""
        state, jobs = self.state, {job.job: job for job in view.jobs}
        for name in [name for name in state.had if name not in jobs]:
            self._ended(name, view.now)
        round_ns = seconds(ROUND_S)
        if view.now - state.began >= round_ns or not state.runs:
            for name, gpu in state.runs.items():
                self._count(name, gpu, view.now)
            state.began = view.now
            self._next_round(jobs, view.now)
        types = {node.node: node.gpu_type for node in view.nodes}
        nodes = {gpu: tuple(n.node for n in view.nodes if n.gpu_type == gpu) for gpu in TYPES}
        stopped = [
            job.job
            for job in view.jobs
            if job.phase in STOPPABLE and types[job.nodes[0][0]] != state.runs.get(job.job)
        ]
        turns = sorted(
            (name for name in state.runs if name in jobs and jobs[name].phase in QUEUED),
            key=lambda name: -jobs[name].gpus,
        )
        return Plan(
            turns=tuple(Turn(n, Reason.LEAST_TIME, nodes[state.runs[n]]) for n in turns),
            strict=False,
            actions=tuple(Preempt(name, Reason.SLICE_OVER) for name in stopped),
            look_at=Instant(state.began + round_ns) if jobs else None,
        )

    def _count(self, name: str, gpu: str, now: Instant) -> None:
        span = (now - self.state.began) / NS_PER_SECOND
        self.state.had[name][gpu] += span
        self.state.all[gpu] += span

    def _ended(self, name: str, now: Instant) -> None:
        state = self.state
        gpu = state.runs.get(name)
        if gpu is not None:
            self._count(name, gpu, now)
            del state.runs[name]
        del state.had[name], state.behind[name]
        state.stale = True

    def _next_round(self, jobs: dict[str, JobView], now: Instant) -> None:
        state = self.state
        for name in jobs:
            if name not in state.had:
                state.had[name] = dict.fromkeys(TYPES, ROUND_S / 2)
                state.behind[name] = dict.fromkeys(TYPES, 0.0)
                state.stale = True
        at_s = now / NS_PER_SECOND
        if not state.runs:
            state.reset_at, state.stale = None, True
        if state.stale and (state.reset_at is None or at_s - state.reset_at >= RESET_S):
            self._reset(jobs, at_s)
        types = list(TYPES)
        state.shuffler.shuffle(types)
        left = dict.fromkeys(TYPES, GPUS)
        state.runs = {}
        for gpu in types:
            for _, _, _, name in self._queue(jobs, gpu):
                job = jobs[name]
                able = self.rates[gpu].get(_kind(job), 0.0) > 0
                if able and name not in state.runs and job.gpus <= left[gpu]:
                    left[gpu] -= job.gpus
                    state.runs[name] = gpu

    def _queue(self, jobs: dict[str, JobView], gpu: str) -> list[tuple[float, float, float, str]]:
        state = self.state
        queue = []
        for name in jobs:
            share = state.share.get(name, {}).get(gpu, 0.0)
            part = state.had[name][gpu] / state.all[gpu] if state.all[gpu] else 0.0
            priority = share / part if part and share else share * 1e9
            if priority > 0 or self.shares != "fifo":
                queue.append((priority, state.behind[name][gpu], share, name))
        queue.sort(key=lambda each: each[:3], reverse=True)
        return queue

    def _reset(self, jobs: dict[str, JobView], at_s: float) -> None:
        state = self.state
        span = at_s - (state.reset_at if state.reset_at is not None else at_s)
        for gpu in TYPES:
            for name, had in state.had.items():
                due = state.share.get(name, {}).get(gpu, 0.0) * span
                state.behind[name][gpu] += due - (had[gpu] - ROUND_S / 2)
                had[gpu] = ROUND_S / 2
            state.all[gpu] = len(state.had) * ROUND_S / 2
        state.reset_at, state.stale = at_s, False
        state.share = self._fifo(jobs) if self.shares == "fifo" else _las(jobs)

    def _fifo(self, jobs: dict[str, JobView]) -> dict[str, dict[str, float]]:
        """Give each job a type for good: with its mistake, by which the last type wins."""
        types, left = self.state.types, dict.fromkeys(TYPES, GPUS)
        queue = [name for name in jobs if name not in types]
        for name in sorted(types, key=lambda name: int(name[1:])):
            gpu = types[name]
            if name in jobs:
                left[gpu] -= jobs[name].gpus
                continue
            if queue and jobs[queue[0]].gpus <= left[gpu] and self._able(jobs[queue[0]], gpu):
                left[gpu] -= jobs[queue[0]].gpus
                types[queue.pop(0)] = gpu
            del types[name]
        free = sorted(gpu for gpu in TYPES if left[gpu] > 0)
        while queue and free:
            job = jobs[queue.pop(0)]
            fitting = [at for at, gpu in enumerate(free) if left[gpu] >= job.gpus]
            if not fitting:
                break
            drawn = self.state.fifo_random.randrange(len(fitting))
            gpu = free[-1]
            if self._able(job, gpu):
                types[job.job] = gpu
                left[gpu] -= job.gpus
                if left[gpu] == 0:
                    free.pop(fitting[drawn])
        return {name: {gpu: float(types.get(name) == gpu) for gpu in TYPES} for name in jobs}

    def _able(self, job: JobView, gpu: str) -> bool:
        return self.rates[gpu].get(_kind(job), 0.0) > 0


def _las(jobs: dict[str, JobView]) -> dict[str, dict[str, float]]:
    """Return equal GPU time for all, evenly from each type.

    Gavel has a solver maximise the least GPU time that anybody has. Where the cluster holds all
    jobs that leaves open what larger ones have beyond it; here they have nothing.
    """
    least = min(1.0, GPUS * len(TYPES) / max(len(jobs), 1))
    return {name: dict.fromkeys(TYPES, least / job.gpus / len(TYPES)) for name, job in jobs.items()}


def _kind(job: JobView) -> Kind:
    return job.spec.size.family or "", job.gpus


def begin(data: Path) -> dict[str, Any]:
    """Forget everything that is kept, and return the policies of this file."""
    Rounds.state = State()
    Rounds.rates = Rates(data).of
    return {Rounds.name: Rounds}
