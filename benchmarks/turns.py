"""Measure what a decision under `gandiva` costs in a large cluster that is over-subscribed.

    python -m benchmarks turns
    python -m benchmarks turns --sizes mixed --decisions 2000
    python -m benchmarks turns --introspect        (with rates, and trials of packs)

A simulated cluster under one VC is filled first come, first served, then the policy is changed,
and a quarter more of jobs comes than its GPUs hold. What is timed is the real allocator: a whole
decision for each event, from the view through the plan to what is recorded and sent. Times are CPU
time of the thread, in milliseconds; `plan` is the policy's part of decisions in which one was made,
`view` that of making the view. Garbage is not collected meanwhile, as in any simulation.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from benchmarks._sample import percentiles
from skep.machines.allocator.policies import policy_views
from skep.policy.schedulers.gandiva import Gandiva
from skep.units import seconds
from skep.wire.admin import SetVcs
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.settings import EVERYTHING, Costs, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.generators.gandiva import KINDS
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.figures import Figures
from skep_lab.workloads.models import Models
from skep_lab.workloads.situation import Speeds, Steady
from skep_services.collection import short_pauses

NODE_GPUS = 8
SIZES = {"one": ((1,), (1,)), "mixed": ((1, 2, 4, 8, 16), (70, 12, 9, 7, 2))}
FILL_S, COME_S = 120, 30
"""How long the first jobs take to come, and those that are too many."""
GO_ON_S = 600
RUN_S = 4 * 3600
COSTS = Costs(start_s=1, stop_s=1, suspend_s=0.5, resume_s=0.5, migrate_s=2, resize_s=1)
GPU, MEMORY = "p40", 24 * 2**30


class Small(Models):
    """Table 1's models, of which any two go onto a GPU."""

    def memory(self, job: TraceJob) -> int:
        """Return what stands in for a job's bytes."""
        return MEMORY // 4


class Timed:
    """What each call took, in milliseconds of the thread's CPU time."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """Time a function."""
        self._call, self.spent, self.last = call, list[float](), 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        began = time.thread_time()
        try:
            return self._call(*arguments)
        finally:
            self.last = (time.thread_time() - began) * 1e3
            self.spent.append(self.last)


def trace(nodes: int, more: float, sizes: str) -> Trace:
    """Return jobs that fill a cluster, and so many more: the same ones every time."""
    rng = random.Random(f"turns {nodes} {more} {sizes}")
    gpus, jobs, wanted = nodes * NODE_GPUS, list[TraceJob](), 0
    while wanted < gpus * (1 + more):
        size = rng.choices(*SIZES[sizes])[0]
        early = wanted + size <= gpus
        at = rng.uniform(0, FILL_S) if early else rng.uniform(FILL_S + 1, FILL_S + 1 + COME_S)
        wanted += size
        jobs.append(_job(rng, at, size))
    at = FILL_S + 1 + COME_S
    while at < FILL_S + COME_S + GO_ON_S:  # One comes for each that ends.
        size = rng.choices(*SIZES[sizes])[0]
        at += rng.expovariate(gpus / size / RUN_S)
        jobs.append(_job(rng, at, size))
    jobs.sort(key=lambda job: job.at)
    return Trace(name="turns", jobs=tuple(jobs))


def _job(rng: random.Random, at: float, gpus: int) -> TraceJob:
    lasts = rng.expovariate(1 / RUN_S) + 60
    kind = rng.choice([each for each in KINDS if each.gpus == (1,)])
    return TraceJob(
        id="",
        at=seconds(at),
        gpus=gpus,
        run_time=seconds(lasts),
        model=kind.model,
        mini_batches=round(lasts * kind.rate),
        gpu_type=GPU,
    )


def measure(told: argparse.Namespace) -> dict[str, Any]:
    """Return what a decision takes."""
    nodes, sizes, introspect = told.nodes, told.sizes, told.introspect
    jobs = trace(nodes, told.more, sizes)
    speeds: Speeds = Small([Figures()], node_gpus=NODE_GPUS) if introspect else Steady()
    settings = Settings(costs=COSTS, can=EVERYTHING, gpu_memory={GPU: MEMORY})
    world = World(jobs, uniform(nodes, NODE_GPUS, GPU), settings, speeds)
    machine, begun = world.allocator, world.now
    policy = Gandiva(introspect=introspect)
    decide, view, plan = Timed(machine.decide), Timed(policy_views.of_vc), Timed(policy.planner())
    machine.decide = decide  # type: ignore[method-assign, assignment]
    policy_views.of_vc = view  # type: ignore[assignment]
    ruled = False
    pauses = ExitStack()
    for now in world.steps():
        if not ruled and now - begun >= seconds(FILL_S + 10):
            ruled = True
            _rule(world, {"introspect": True} if introspect else {})
            pauses.enter_context(short_pauses())  # As the service does, once it has read its log.
            machine.tx.soft.planned[ALL].plan = plan
        if now - begun < seconds(FILL_S + 10 + told.warm):
            for each in (decide, view, plan):
                each.spent.clear()
        if len(decide.spent) >= told.decisions:
            break
    pauses.close()
    phases = Counter(
        each.phase.value
        for planned in machine.tx.soft.planned.values()
        for each in planned.views.values()
        if each is not None
    )
    return {
        "gpus": nodes * NODE_GPUS,
        "jobs": len(jobs.jobs),
        "simulated_s": round((world.now - begun) / 1e9, 1),
        "phases": dict(phases),
        "decision_ms": percentiles(decide.spent),
        "plan_ms": percentiles(plan.spent),
        "view_ms": percentiles(view.spent),
    }


def _rule(world: World, options: dict[str, Any]) -> None:
    """Change the policy of the only VC to gandiva."""
    cluster = world.cluster
    vcs = {ALL: replace(cluster.vcs[ALL], policy="gandiva", options=options)}
    told = SetVcs(vcs=vcs, chains=cluster.chains, pins=cluster.pins)
    world._admit(told)
    world._inbox.append(told)
    world._settle()


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--more", type=float, default=0.25, help="jobs beyond what the GPUs hold")
    parser.add_argument("--sizes", choices=SIZES, default="one")
    parser.add_argument("--introspect", action="store_true", help="with rates and trials")
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--warm", type=float, default=45, help="seconds under the policy before")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return what a decision, its plan and its view cost."""
    gc.disable()
    return measure(given)
