"""One trace in both simulators: which jobs start and end at the same time.

The production simulator (`skep_lab.simulator`) is what is right. The suite plays random traces per
policy in both, and counts jobs whose first start is the same to the nanosecond.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from skep.units import Duration, seconds
from skep.wire.cluster import Cluster
from skep_lab.fast_env.arrays import LEVELS, NEVER
from skep_lab.fast_env.play import SpeedTable, play
from skep_lab.simulator.build import ALL, of_types, uniform
from skep_lab.simulator.run import run as simulate
from skep_lab.simulator.settings import AT_ONCE, Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

NODES, NODE_GPUS = 15, 8
"""SCHED²'s cluster (section IV-A)."""
SIZES, WEIGHTS = (1, 2, 4, 8, 12, 16, 24), (50, 12, 12, 12, 4, 6, 4)
"""GPUs of a job: some gangs need several nodes."""
TYPES = {"p100": 7, "v100": 8}
MODELS = ("quick", "spreads badly", "likes v100")
SPEEDS = np.array(
    [
        [[1.0] * LEVELS] * 2,
        [[1.0, 0.5, 0.25, 0.125]] * 2,
        [[0.5, 0.5, 0.25, 0.25], [1.0, 1.0, 0.5, 0.5]],
    ]
)
"""Powers of two: then work is a whole number of nanoseconds however often it is counted."""
MEAN_LOG_S, SIGMA = 7.0, 1.4
"""Run times are log-normal: half of them above 18 minutes."""
EVERY_S = 90.0
"""Mean time between arrivals: queues build up, and empty again."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the suite: a policy, and in what setting it is played."""

    name: str
    policy: str
    options: dict[str, Any] = {}
    split: bool = False
    """Half of the jobs have one GPU for each worker, so that they may spread."""
    types: bool = False
    """Two types of GPU, and a fifth of the jobs is tied to one."""
    speeds: bool = False
    """Speed depends on the model, the type and the number of nodes."""
    priorities: bool = False
    costs: Costs = Costs()
    hints: Literal["exact", "none", "noisy"] = "exact"
    at_once: bool = False


PLAIN: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fifo", "fifo", {}),
    ("backfill", "backfill", {}),
    ("packing", "packing", {}),
    ("packing skips", "packing", {"strict": False}),
    ("sif", "sif", {}),
    ("sif skips", "sif", {"strict": False}),
    ("spf", "spf", {}),
    ("spf skips", "spf", {"strict": False}),
    ("lrf skips", "lrf", {"strict": False}),
)
START_COSTS = Costs(start_s=30.0)
CASES: tuple[Case, ...] = (
    *(Case(name=name, policy=policy, options=options) for name, policy, options in PLAIN),
    *(
        Case(name=f"{name}, split", policy=policy, options=options, split=True)
        for name, policy, options in PLAIN
    ),
    Case(
        name="sif skips, costs of start", policy="sif", options={"strict": False}, costs=START_COSTS
    ),
    Case(name="sif skips, noisy hints", policy="sif", options={"strict": False}, hints="noisy"),
    Case(name="sif skips, no hints", policy="sif", options={"strict": False}, hints="none"),
    Case(name="backfill, priorities", policy="backfill", priorities=True),
    Case(name="backfill, speeds", policy="backfill", split=True, speeds=True),
    Case(name="fifo, two types", policy="fifo", types=True, split=True),
    Case(name="spf skips, two types", policy="spf", options={"strict": False}, types=True),
    Case(name="packing, two types", policy="packing", types=True, split=True),
    Case(name="backfill, types and speeds", policy="backfill", types=True, split=True, speeds=True),
    Case(name="fifo, instants at once", policy="fifo", at_once=True),
    Case(name="backfill, instants at once", policy="backfill", split=True, at_once=True),
)


class Equality(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs start (end) at the same time in both; `first` is the earliest that does not."""

    case: str
    seed: int
    jobs: int
    starts: int
    ends: int
    first: str = ""


def random_trace(seed: int, jobs: int, case: Case) -> Trace:
    """Return random jobs on whole seconds, so that several events fall on one instant.

    With speeds by place, arrivals are not on whole seconds but on multiples of 8 ns, so that no two
    ends fall on one instant: production computes an end again when the neighbours of a job change,
    and by that reorders the ends of an instant, whether or not its speed depends on neighbours.

    Args:
        seed: Equal seeds give equal traces.
        jobs: How many.
        case: What kinds of jobs there are.
    """
    rng = random.Random(f"equality {seed}")
    at, made = 0.0, []
    for number in range(jobs):
        at += rng.expovariate(1 / EVERY_S)
        gpus = rng.choices(SIZES, WEIGHTS)[0]
        tied = case.types and rng.random() < 0.2
        made.append(
            TraceJob(
                id=f"e{number}",
                at=Duration(int(at * 1e9) // 8 * 8) if case.speeds else seconds(round(at)),
                run_time=seconds(max(1, round(rng.lognormvariate(MEAN_LOG_S, SIGMA)))),
                gpus=gpus,
                workers=gpus if case.split and rng.random() < 0.5 else 0,
                model=rng.choice(MODELS) if case.speeds else "",
                gpu_type=rng.choice(sorted(TYPES)) if tied else "",
                tied=tied,
                priority=rng.choice((0, 0, 10, 20)) if case.priorities else 0,
            )
        )
    return Trace(name=f"equality-{seed}", jobs=tuple(made))


def cluster_of(case: Case) -> Cluster:
    """Return the cluster on which a case is played."""
    return of_types(TYPES, NODE_GPUS) if case.types else uniform(NODES, NODE_GPUS)


def table_of(case: Case) -> SpeedTable | None:
    """Return the speeds of a case; None: 1 everywhere."""
    if not case.speeds:
        return None
    kinds = tuple(TYPES) if case.types else ("v100",)
    return SpeedTable(MODELS, kinds, NODE_GPUS, SPEEDS[:, -len(kinds) :])


def compare(case: Case, seed: int, jobs: int) -> Equality:
    """Play one random trace in both simulators.

    Args:
        case: The policy and the setting.
        seed: The seed of the trace, and of noisy hints.
        jobs: How many jobs it has.
    """
    trace, cluster, table = random_trace(seed, jobs, case), cluster_of(case), table_of(case)
    settings = Settings(
        seed=seed,
        costs=case.costs,
        hints=case.hints,
        policies={ALL: (case.policy, case.options)},
        compat=frozenset({AT_ONCE} if case.at_once else ()),
    )
    right = simulate(trace, cluster, settings, Steady() if table is None else table)
    fast = play(trace.jobs, cluster, settings, case.policy, case.options, table)
    first, starts, ends = (NEVER, ""), 0, 0
    for job, began, ended in zip(right.jobs, fast.first, fast.ended, strict=True):
        wanted = _time(job.began)
        starts += int(wanted == began)
        ends += int(_time(job.ended) == ended)
        if wanted != began and min(wanted, int(began)) < first[0]:
            text = f"{job.job.id}: {wanted / 1e9} s, here {int(began) / 1e9} s"
            first = min(wanted, int(began)), text
    return Equality(case=case.name, seed=seed, jobs=jobs, starts=starts, ends=ends, first=first[1])


def _time(value: int | None) -> int:
    return NEVER if value is None else value


def table(found: list[Equality]) -> dict[str, dict[str, Any]]:
    """Return by case the shares of equal starts and ends over all seeds, in percent."""
    rows: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(each.case for each in found):
        mine = [each for each in found if each.case == name]
        jobs = sum(each.jobs for each in mine)
        rows[name] = {
            "traces": len(mine),
            "jobs": jobs,
            "same_starts_percent": 100.0 * sum(each.starts for each in mine) / jobs,
            "same_ends_percent": 100.0 * sum(each.ends for each in mine) / jobs,
            "first_difference": next((each.first for each in mine if each.first), ""),
        }
    return rows


def cases(names: Mapping[str, Case] | None = None) -> dict[str, Case]:
    """Return the cases of the suite by name."""
    return dict(names) if names is not None else {case.name: case for case in CASES}
