"""Quirks of published simulators, each under a name, for runs that are to give their numbers.

They are no policies to choose: some keep lists between plans, which a policy must not, so they are
registered for the length of a run only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec

from skep.policy.api import Policy
from skep.policy.plan import Plan, Preempt, Turn
from skep.policy.registry import POLICIES
from skep.policy.view import QUEUED, STOPPABLE, JobView, NodeView, Phase, VcView
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.cluster import Cluster
from skep.wire.reasons import Reason
from skep_lab.outcome import RunResult
from skep_lab.simulator import run as runs
from skep_lab.simulator.settings import COMPAT, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace
from skep_lab.workloads.situation import Speeds
from tests.system.crosscheck import gavel, helios

QUIRKS = {
    "first-fit": "nodes are tried in their order, switch by switch, and the first that holds a job"
    " takes it; ours is the fullest one",
    "three-queues": "a third queue begins at 7,200 GPU-seconds",
    "queues-as-lists": "queues are lists: after every event who runs is moved to the front; who is"
    " demoted comes last, behind all that wait there",
    "late-demotion": "the next look at the threshold is (limit - time) / GPUs away, which for gangs"
    " is too late: it is limit / GPUs - time",
    "rounds": "who runs is decided every 360 s; what comes free in between stays idle",
    "whole-steps": "a mini-batch that the end of a round cuts short is lost",
    "shares-at-resets": "who is to have which part of the time is reckoned anew every 1,920 s; who"
    " came since then is chosen all the same, and what he is chosen for stays idle",
    "last-type-wins": "a job has one type of GPU for good: the last, by its name, of which anything"
    " is free, whether it fits or not, and not the one that was drawn",
    "solver-shares": "everybody is to have the same GPU time, on the types of GPU that a solver's"
    " interior-point method happens to end with",
    "by-count": "each second GPUs are counted to choose jobs; a job that then finds no place waits,"
    " and what was counted for it stays idle",
    "preempted-by-size": "a preempted job has 7, 30 or 60 s more to do, with one GPU, up to eight,"
    " and more",
    "ends-late": "a job ends a second after its work is done",
    "stall-at-events": "at every event (a job comes or ends, or changes its queue) every running"
    " job loses its start-up time again",
}

QUIRKS |= COMPAT
STEP_FACTOR = 1.015
"""Muri lengthens every mini-batch by what its own measuring of resources costs."""

_START_UP = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
START_UP_S = {
    (model, 2**power): float(cost)
    for model, costs in _START_UP.items()
    for power, cost in enumerate(costs)
}
"""Muri's measured start-up times: seconds by model and GPUs."""


class FirstFit(Policy, frozen=True):
    """In order of arrival, strictly; the first switch, and in it the first nodes, that hold a job.

    More GPUs than a node has are whole nodes.
    """

    name: ClassVar[str] = "first-fit"
    source: ClassVar[str] = "Tiresias' simulator, placement `yarn`"
    per_switch: int = 16

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return turns up to the first that does not fit."""
        nodes = sorted(view.nodes, key=_number)
        free = {node.node: node.free for node in nodes}
        turns = []
        for job in view.jobs:
            if job.phase not in QUEUED:
                continue
            place = self._place(job, nodes, free)
            if not place:
                break
            for node in place:
                free[node] -= min(job.gpus, view.node_gpus)
            turns.append(Turn(job.job, Reason.ARRIVAL, place))
        return Plan(turns=tuple(turns), strict=True)

    def _place(self, job: JobView, nodes: list[NodeView], free: dict[str, int]) -> tuple[str, ...]:
        for first in range(0, len(nodes), self.per_switch):
            there = nodes[first : first + self.per_switch]
            wanted = -(-job.gpus // there[0].gpus)
            each = min(job.gpus, there[0].gpus)
            fits = [node.node for node in there if free[node.node] >= each][:wanted]
            if len(fits) == wanted:
                return tuple(fits)
        return ()


def _number(node: NodeView) -> int:
    return int(re.sub(r"\D*(\d+)$", r"\1", node.node.rpartition("-")[2]))


class Lists(Policy, frozen=True):
    """Discretised LAS whose queues are lists that are kept from one plan to the next."""

    name: ClassVar[str] = "queues-as-lists"
    source: ClassVar[str] = "Tiresias' and Muri's simulators, schedule `dlas-gpu`"
    thresholds: tuple[float, ...] = (3250, 7200)
    late: bool = False
    kept: ClassVar[list[list[str]]] = []
    """The queues. A policy must not do this: it is pure, and may be asked again after a crash."""

    def plan(self, view: VcView) -> Plan:
        """Return who runs."""
        jobs = {job.job: job for job in view.jobs}
        self._bring_up(jobs, view.now)
        left, runs = view.gpus, dict[str, None]()
        for number, queue in enumerate(self.kept):
            for name in queue:
                if jobs[name].gpus <= left:
                    left -= jobs[name].gpus
                    runs[name] = None
            self.kept[number] = [n for n in queue if n in runs] + [
                n for n in queue if n not in runs
            ]
        stopped = [j.job for j in view.jobs if j.phase in STOPPABLE and j.job not in runs]
        return Plan(
            turns=tuple(Turn(n, Reason.LEAST_ATTAINED) for n in runs if jobs[n].phase in QUEUED),
            strict=False,
            actions=tuple(Preempt(name, Reason.OUTRANKED) for name in stopped),
            look_at=self._look_at(jobs, runs, view.now),
        )

    def _bring_up(self, jobs: dict[str, JobView], now: Instant) -> None:
        kept = self.kept
        while len(kept) <= len(self.thresholds):
            kept.append([])
        known = dict[str, int]()
        for number, queue in enumerate(kept):
            queue[:] = [name for name in queue if name in jobs]
            known |= dict.fromkeys(queue, number)
        kept[0] += [name for name in jobs if name not in known]
        for name, job in jobs.items():
            number = known.get(name, 0)
            if job.phase is not Phase.RUNNING or number == len(self.thresholds):
                continue
            if job.attained(now) >= self.thresholds[number] * NS_PER_SECOND:
                kept[number].remove(name)
                kept[number + 1].append(name)

    def _look_at(
        self, jobs: dict[str, JobView], running: dict[str, None], now: Instant
    ) -> Instant | None:
        looks = []
        for number, limit in enumerate(self.thresholds):
            for name in self.kept[number]:
                if name in running:
                    ran = jobs[name].ran(now) / NS_PER_SECOND
                    gpus = jobs[name].gpus
                    if self.late:
                        away = float(math.ceil((limit - ran) / gpus))
                    else:
                        away = math.ceil(limit / gpus) - ran
                    looks.append(Instant(now + seconds(away)))
        return min(looks, default=None)


@contextmanager
def registered(rates: gavel.Rates) -> Iterator[None]:
    """Let the quirks be policies that a run may name, with nothing kept from another run.

    `rates`: those of Gavel's jobs, if there are any.
    """
    mine: dict[str, type[Policy]] = {each.name: each for each in (FirstFit, Lists)}
    mine |= gavel.begin(rates) | helios.begin()
    Lists.kept.clear()
    POLICIES.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del POLICIES[name]


class Stalled(World):
    """A world in which every running job loses its start-up time again at every event."""

    _before: Instant | None = None

    def _happens(self, at: Instant) -> None:
        due = [p for p in self.allocator.tx.soft.planned.values() if p.look_at is not None]
        looks = any(planned.look_at is not None and planned.look_at <= at for planned in due)
        before = self._next, self.ledger.open
        super()._happens(at)
        if looks or before != (self._next, self.ledger.open):
            self._stall(at)
            self._before = at

    def _stall(self, at: Instant) -> None:
        span = at - (self._before if self._before is not None else at)
        agents, soft = self.agents, self.allocator.tx.soft
        for run in agents._runs.values():
            if not run.trains:
                continue
            work = agents.works[run.name]
            work.advance(at, 0)
            model = START_UP_S.get((run.job.model, run.job.gpus), 10.0)
            work.done -= min(seconds(model), span)
            agents._reckon(run, work, work.rate, 1.0, at)
            job = self.allocator.state.jobs[run.name]
            soft.left[run.name] = Duration(work.left() + at - job.since), job.served
            soft.touched[run.name] = None


def run_in(
    kind: type[World],
    trace: Trace,
    cluster: Cluster,
    settings: Settings,
    speeds: Speeds,
    *,
    clock: Callable[[], float],
) -> RunResult:
    """Return what comes of a run in an odd world."""
    began = clock()
    world = kind(trace, cluster, settings, speeds)
    world.run(None)
    result: Any = runs._result(world, cut=False)
    assert isinstance(result, RunResult)
    return msgspec.structs.replace(result, cpu_s=clock() - began)
