"""Pollux's workloads, against what its authors' simulator gave.

    python -m tests.system.crosscheck.pollux DATA [--workloads 1,2] [--policies tiresias] [--json]

DATA is the folder of public data that SKEP_SHARED_DATA names. The figures of the peer are the mean
JCTs in petuum/adaptdl, branch osdi21-artifact (commit de25dcc), simulator/results-jobload/*-1.0/
summary.json. What it does otherwise is from reading its simulator: it steps by 60 s, a job that is
placed anew stands for 30 s, a run at one batch size takes as many mini-batches as the gains of its
epochs add up to, and a job has the GPUs of the nodes with the most free ones first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from skep.policy.registry import POLICIES
from skep.units import Duration, in_seconds, seconds
from skep.wire.cluster import Quota, VirtualCluster
from skep_lab.measures.job import completion
from skep_lab.outcome import RunResult
from skep_lab.simulator import run as runs
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import AT_ONCE, FIRST_NODE, NO_REST, Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.elastic import elastic
from skep_lab.workloads.models import Models
from skep_lab.workloads.names import normalised
from skep_lab.workloads.pollux import Pollux
from skep_services import trace_files, workload_tables
from tests.system.crosscheck import pollux_jobs as jobs
from tests.system.crosscheck import pollux_rules as rules
from tests.system.crosscheck.pollux_jobs import NODE_GPUS, NODES, TICK_S

WORKLOADS = (1, 2, 3, 4, 5, 7, 8)
"""Those that were held out; the sixth is the one that its authors' testbed ran."""
THEIRS = {
    "tiresias": (2473.65, 5144.96, 3876.26, 3280.26, 3501.01, 3469.69, 5479.91, 5079.71),
    "optimus": (4087.06, 6913.88, 3944.01, 5967.75, 5656.25, 5301.88, 7290.86, 6293.79),
    "pollux": (2088.77, 3322.94, 2188.49, 2720.98, 2673.70, 2446.13, 3616.14, 2951.91),
}
"""Mean JCT in seconds of workloads 1 to 8."""
SHIFT = seconds(40)
"""A simulation begins 20 s after a full minute; the peer's ticks are full minutes of a trace."""
COSTS = Costs(start_s=30, resume_s=30, resize_s=30)


OURS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "tiresias": ("tiresias-l", {"thresholds": (57_600,)}, False),
    "optimus": ("optimus", {"every_s": TICK_S, "fewest": True}, False),
    "pollux": ("pollux", {"every_s": TICK_S}, True),
}
"""By row: policy, options, and whether jobs adapt their batch size."""
SWITCHED = {
    "tiresias": rules.Tiresias.name,
    "optimus": rules.Optimus.name,
    "pollux": rules.Oracle.name,
}


def inputs(data: Path, number: int, *, batch: bool) -> tuple[Trace, Models]:
    """Return a workload with elastic jobs, as long as the peer has them, and how fast they go."""
    (table,) = workload_tables.read(data, ("pollux",)).tables
    assert isinstance(table, Pollux)
    models = Models((table,), node_gpus=NODE_GPUS, types=("t4",), papers=False)
    path = data / "pollux" / "workloads" / f"workload-{number}.csv"
    trace = trace_files.load(str(path), measured=str(data))

    def as_theirs(job: TraceJob) -> TraceJob:
        training = table.training[normalised(job.model).model]
        length = training.steps(job.batch_size) * models.own_mini_batch_s(job)
        return msgspec.structs.replace(
            job, at=Duration(job.at + SHIFT), run_time=seconds(length), mini_batches=0
        )

    trace = msgspec.structs.replace(trace, jobs=tuple(map(as_theirs, trace.jobs)))
    limits = models.limits
    made = elastic(trace, limits, models.own_mini_batch_s, NODES * NODE_GPUS, batch=batch)
    return made, models


def ours(data: Path, row: str, number: int) -> RunResult:
    """Return a run of a workload under the registered policy."""
    policy, options, batch = OURS[row]
    trace, models = inputs(data, number, batch=batch)
    settings = Settings(
        policies={ALL: (policy, options)}, costs=COSTS, can=("checkpoint", "resize"), tick_s=TICK_S
    )
    return run(trace, uniform(NODES, NODE_GPUS, "t4"), settings, models)


def switched(data: Path, row: str, number: int) -> RunResult:
    """Return a run of a workload with all quirks of the peer."""
    trace, _ = inputs(data, number, batch=row == "pollux")
    if row == "tiresias":
        trace = msgspec.structs.replace(trace, jobs=tuple(map(_rigid, trace.jobs)))
    result = carried_out(trace, SWITCHED[row], jobs.read(data))
    assert not rules.AtTicks.book.elsewhere or row == "pollux", "other GPUs than the peer's"
    return result


def carried_out(
    trace: Trace, policy: str, applications: Mapping[str, jobs.Application]
) -> RunResult:
    """Return a run of a trace under a policy of the peer.

    Args:
        trace: The jobs.
        policy: The name of a policy of `pollux_rules`.
        applications: The measurements of what the jobs train.
    """
    settings = Settings(
        policies={ALL: (policy, {})},
        costs=COSTS,
        can=("checkpoint",),
        tick_s=TICK_S,
        compat=frozenset({AT_ONCE, FIRST_NODE, NO_REST}),
    )
    cluster = uniform(NODES, NODE_GPUS, "t4", racks=1)
    owned = VirtualCluster(cells=(Quota(chain="t4", level="rack", count=1),))
    cluster = msgspec.structs.replace(cluster, vcs={ALL: owned})
    mine = rules.begin()
    POLICIES.update(mine)
    try:
        world = jobs.Minutes(trace, cluster, settings, jobs.ByEpochs(), applications)
        rules.AtTicks.book.works = world.agents.works
        world.run(None)
        result: Any = runs._result(world, cut=False)
    finally:
        for name in mine:
            del POLICIES[name]
    assert isinstance(result, RunResult)
    return result


def _rigid(job: TraceJob) -> TraceJob:
    return msgspec.structs.replace(job, workers_min=0, workers_max=0)


def play(data: Path, row: str, number: int, *, quirks: bool) -> dict[str, Any]:
    """Return the mean JCT of a workload under a row's policy, beside the peer's."""
    began = time.process_time()
    result = (switched if quirks else ours)(data, row, number)
    lengths = [completion(each) for each in result.jobs]
    ended = [in_seconds(each) for each in lengths if each is not None]
    mean = sum(ended) / len(ended)
    theirs = THEIRS[row][number - 1]
    return {
        "workload": number,
        "policy": row,
        "quirks": quirks,
        "ended": len(ended),
        "ours_s": round(mean, 2),
        "theirs_s": theirs,
        "difference_pct": round(100 * (mean / theirs - 1), 2),
        "cpu_s": round(time.process_time() - began, 1),
        "jobs": {
            each.job.id: round(in_seconds(length or 0), 3)
            for each, length in zip(result.jobs, lengths, strict=True)
        },
    }


def main() -> int:
    """Play, print a line for each, and return the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("data", type=Path)
    parser.add_argument("--workloads", default=",".join(map(str, WORKLOADS)))
    parser.add_argument("--policies", default="/".join(OURS), help="rows, with / between them")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-it-is", action="store_true", help="without the peer's quirks")
    chosen = parser.parse_args()
    unknown = [row for row in chosen.policies.split("/") if row not in OURS]
    if unknown:
        parser.error(f"--policies: no row is called {unknown[0]!r}; there are: {', '.join(OURS)}")
    for row in chosen.policies.split("/"):
        for number in map(int, chosen.workloads.split(",")):
            quirks = row in SWITCHED and not chosen.as_it_is
            found = play(chosen.data, row, number, quirks=quirks)
            if chosen.json:
                print(json.dumps(found), flush=True)
            else:
                print(
                    f"{row:9}{'with quirks' if quirks else 'as it is':12} workload {number}: "
                    f"{found['ours_s']:9,.2f} s, theirs "
                    f"{found['theirs_s']:9,.2f} s, {found['difference_pct']:+6.2f} %"
                    f"  ({found['ended']} jobs, {found['cpu_s']} CPU s)",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
