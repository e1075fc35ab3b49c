"""The rows of the cross-check: inputs, what the peer's simulator says, and which quirks it has."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from skep.units import Duration, seconds
from skep.wire.cluster import Cluster, Quota, VirtualCluster
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.settings import AT_ONCE, FIRST_NODE, NO_REST, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.traces.read import read
from skep_lab.workloads.situation import Speeds
from tests.system.crosscheck import gavel
from tests.system.crosscheck import reference as bare
from tests.system.crosscheck.helios import AGAIN_S, LATE_S, Srtf
from tests.system.crosscheck.quirks import START_UP_S, STEP_FACTOR, Stalled

Policy = tuple[str, dict[str, Any]]
EXACT = 1e-7
"""To the digit: sums of nanoseconds and of floats differ in the ninth."""


@dataclass(frozen=True)
class Row:
    """One comparison. `policy` and `switched` are names and options."""

    name: str
    theirs: dict[str, Any]
    trace: Callable[[Path], Trace]
    cluster: Callable[[Path], Cluster]
    policy: Policy
    switched: Policy
    why: str
    right: str
    """Which behaviour is."""
    switches: tuple[str, ...] = ()
    world: type[World] | None = None
    within: float = EXACT
    reference: Callable[[Path], dict[str, Any]] | None = None
    speeds: Callable[[Path], Speeds] | None = None
    compat: frozenset[str] = field(default_factory=frozenset)
    again_s: dict[int, float] = field(default_factory=dict)
    late_s: float = 0.0
    """By how much each job is longer with the switches."""


def inputs(row: Row, data: Path, *, switched: bool) -> tuple[Trace, Cluster, Settings]:
    """Return what a run of a row takes.

    Jobs can store their state and nothing else, so that one that was stopped may go on anywhere.
    """
    policy = row.switched if switched else row.policy
    cluster = row.cluster(data)
    settings = Settings(
        policies=dict.fromkeys([ALL] if ALL in cluster.vcs else cluster.vcs, policy),
        can=("checkpoint",),
        compat=row.compat if switched else frozenset(),
        again_s=row.again_s if switched else {},
    )
    trace = row.trace(data)
    if row.late_s and switched:
        late = seconds(row.late_s)
        trace = _jobs(
            trace, lambda job: msgspec.structs.replace(job, run_time=Duration(job.run_time + late))
        )
    if row.speeds is not None and not switched:
        trace = gavel.tied(trace, data)
    return trace, cluster, settings


# --- traces -------------------------------------------------------------------------------------


def philly(data: Path, *, spread: bool) -> Trace:
    """Return Philly's 1 to 14 October; `spread`: every worker has one GPU, wherever it is."""
    path = data / "anchors" / "philly_oct01_14.csv"
    with path.open(newline="") as lines:
        trace = read(lines, "philly 1 to 14 October", "tiresias")
    return _jobs(
        trace,
        lambda job: msgspec.structs.replace(
            job,
            vc="",
            workers=job.gpus if spread else 0,
            model="",
            mini_batches=0,
            within="node" if job.gpus <= 8 else "rack",
            hard=not spread,
        ),
    )


def helios(data: Path) -> Trace:
    """Return the same two weeks, each job in its VC."""
    with (data / "anchors" / "philly_oct01_14.csv").open(newline="") as lines:
        trace = read(lines, "philly 1 to 14 October", "tiresias")
    return _jobs(
        trace, lambda job: msgspec.structs.replace(job, workers=0, model="", mini_batches=0)
    )


def muri(data: Path) -> Trace:
    """Return Muri's third trace. A job runs its mini-batches, each as long as Muri's code says."""
    path = data / "muri" / "trace3.csv.gz"
    with gzip.open(path, "rt", newline="") as lines:
        trace = read(lines, "muri trace3", "muri")
    with gzip.open(path, "rt", newline="") as lines:
        steps = {row["job_id"]: _steps_s(row) for row in csv.DictReader(lines)}
    return _jobs(
        trace,
        lambda job: msgspec.structs.replace(
            job, workers=job.gpus, priority=0, mini_batches=0, run_time=seconds(steps[job.id])
        ),
    )


def _steps_s(row: dict[str, str]) -> float:
    return int(row["iterations"]) * (float(row["iteration_time"]) * STEP_FACTOR / 1000)


def _jobs(trace: Trace, change: Callable[[TraceJob], TraceJob]) -> Trace:
    return msgspec.structs.replace(trace, jobs=tuple(change(job) for job in trace.jobs))


# --- the bare loop ------------------------------------------------------------------------------


def _bare_philly(data: Path) -> list[bare.Job]:
    with (data / "anchors" / "philly_oct01_14.csv").open(newline="") as lines:
        return [
            bare.Job(int(row["num_gpu"]), int(row["submit_time"]), int(row["duration"]))
            for row in csv.DictReader(lines)
        ]


def _bare_muri(data: Path) -> list[bare.Job]:
    with gzip.open(data / "muri" / "trace3.csv.gz", "rt", newline="") as lines:
        return [
            bare.Job(
                int(row["num_gpu"]),
                int(row["submit_time"]) / 1000,
                _steps_s(row),
                START_UP_S[row["model_name"], int(row["num_gpu"])],
            )
            for row in csv.DictReader(lines)
        ]


def _sum(jobs: Sequence[bare.Job]) -> dict[str, float]:
    return {
        "jct_s": sum(job.end - job.submit for job in jobs) / len(jobs),
        "preemptions": sum(job.preempted for job in jobs),
    }


def _bare_fifo(data: Path) -> dict[str, float]:
    jobs = _bare_philly(data)
    bare.fifo(jobs, bare.Nodes(5, 16, 8))
    return _sum(jobs)


def _bare_las(data: Path) -> dict[str, float]:
    jobs = _bare_philly(data)
    bare.least_attained(jobs, 640, frozenset({"running-first", "late-demotion", "three-queues"}))
    return _sum(jobs)


def _bare_shortest(*, service: bool) -> Callable[[Path], dict[str, float]]:
    def play(data: Path) -> dict[str, float]:
        jobs = _bare_muri(data)
        every = frozenset({"nodes-afresh", "stall-at-events"})
        bare.shortest(jobs, lambda: bare.Nodes(1, 8, 8), every, service=service)
        return _sum(jobs)

    return play


def _bare_muri_las(data: Path) -> dict[str, float]:
    jobs = _bare_muri(data)
    bare.least_attained(jobs, 64, frozenset({"running-first", "three-queues", "stall-at-events"}))
    return _sum(jobs)


# --- the rows -----------------------------------------------------------------------------------


def _eighty(_: Path) -> Cluster:
    """Return 80 nodes in 5 switches, which the one VC owns whole."""
    cluster = uniform(80, 8, racks=5)
    owned = VirtualCluster(cells=(Quota(chain="v100", level="rack", count=5),))
    return msgspec.structs.replace(cluster, vcs={ALL: owned})


def _private(data: Path) -> Cluster:
    """Return the nodes of Philly's VCs, each with its own."""
    with (data / "philly" / "philly_vc_nodes.csv").open(newline="") as lines:
        vcs = {row["vc"]: int(row["node num"]) for row in csv.DictReader(lines)}
    return uniform(sum(vcs.values()), 8, vcs=vcs)


def _eight(_: Path) -> Cluster:
    return uniform(8, 8)


COUNTED = {"places": False}
ROWS: tuple[Row, ...] = (
    Row(
        name="philly-fifo",
        theirs={"jct_s": 9152.33, "waited_s": 248.99, "makespan_s": 3072451},
        trace=helios,
        cluster=_private,
        policy=("fifo", {}),
        switched=("fifo", {}),
        switches=(AT_ONCE, FIRST_NODE),
        compat=frozenset({AT_ONCE, FIRST_NODE}),
        within=1e-6,
        why="Helios' simulator steps by seconds and takes the first of several nodes with equal"
        " room; which node that is decides what holes are left later.",
        right="neither: both are strict and place by best fit.",
    ),
    Row(
        name="philly-srtf",
        theirs={
            "jct_s": 9020.014295,
            "waited_s": 115.475,
            "makespan_s": 3072452,
            "preemptions": 347,
        },
        trace=helios,
        cluster=_private,
        policy=("srtf", {}),
        switched=(Srtf.name, {}),
        switches=("by-count", "preempted-by-size", "ends-late", AT_ONCE, FIRST_NODE, NO_REST),
        compat=frozenset({AT_ONCE, FIRST_NODE, NO_REST}),
        again_s=AGAIN_S,
        late_s=LATE_S,
        why="Helios' simulator counts GPUs and looks for places afterwards; a job without one keeps"
        " idle what was counted for it. A preempted job has more to do, and each ends a second"
        " late.",
        right="to preempt a job only for one that has a place then; costs are a matter of jobs.",
    ),
    Row(
        name="tiresias-fifo",
        theirs={"jct_s": 16600.262, "waited_s": 7696.92},
        trace=lambda data: philly(data, spread=False),
        cluster=_eighty,
        policy=("fifo", {}),
        switched=("first-fit", {}),
        switches=("first-fit", AT_ONCE),
        compat=frozenset({AT_ONCE}),
        reference=_bare_fifo,
        why="First fit breaks up nodes that a gang of eight then waits for, and behind a strict"
        " queue that adds up; their simulator knows all ends of a second before it places.",
        right="best fit, for gangs that must be on one node.",
    ),
    Row(
        name="tiresias-las",
        theirs={"jct_s": 9205.254, "waited_s": 301.91, "preemptions": 7133},
        trace=lambda data: philly(data, spread=True),
        cluster=_eighty,
        policy=("tiresias-l", COUNTED),
        switched=("queues-as-lists", {"thresholds": [3250, 7200], "late": True}),
        switches=("three-queues", "queues-as-lists", "late-demotion", AT_ONCE),
        compat=frozenset({AT_ONCE}),
        reference=_bare_las,
        why="Their simulator has three queues, not the two it is said to have; looks for a demotion"
        " too late on gangs; puts a demoted job behind all that wait in its new queue; and knows"
        " all ends of a second before it chooses who runs.",
        right="two queues, and the exact threshold; what order a queue has is a choice.",
    ),
    Row(
        name="muri-srtf",
        theirs={"jct_s": 193081.796024},
        trace=muri,
        cluster=_eight,
        policy=("srtf", COUNTED),
        switched=("srtf", COUNTED),
        switches=("stall-at-events", AT_ONCE),
        world=Stalled,
        compat=frozenset({AT_ONCE}),
        reference=_bare_shortest(service=False),
        why="Muri charges every running job its start-up time again at every event anywhere in the"
        " cluster.",
        right="to charge it when a job starts, and only then.",
    ),
    Row(
        name="muri-srsf",
        theirs={"jct_s": 185021.880164},
        trace=muri,
        cluster=_eight,
        policy=("srsf", COUNTED),
        switched=("srsf", COUNTED),
        switches=("stall-at-events", AT_ONCE),
        world=Stalled,
        compat=frozenset({AT_ONCE}),
        reference=_bare_shortest(service=True),
        why="As with SRTF.",
        right="as with SRTF.",
    ),
    Row(
        name="muri-las",
        theirs={"jct_s": 347213.248119},
        trace=muri,
        cluster=_eight,
        policy=("tiresias-l", COUNTED),
        switched=("queues-as-lists", {"thresholds": [3250, 7200]}),
        switches=("three-queues", "queues-as-lists", "stall-at-events", AT_ONCE),
        world=Stalled,
        compat=frozenset({AT_ONCE}),
        reference=_bare_muri_las,
        why="As with SRTF, and Tiresias' queues. The late demotion was repaired in Muri's copy.",
        right="as with SRTF, and two queues.",
    ),
)
ROWS += (
    Row(
        name="gavel-fifo",
        theirs={"jct_s": 113259.790, "makespan_s": 1662611.001},
        trace=gavel.trace,
        cluster=lambda _: gavel.cluster(),
        speeds=gavel.Rates.read,
        policy=("fifo", {}),
        switched=("gavel-rounds", {"shares": "fifo"}),
        switches=("rounds", "whole-steps", "shares-at-resets", "last-type-wins", AT_ONCE),
        world=gavel.Whole,
        compat=frozenset({AT_ONCE}),
        reference=lambda data: gavel.bare(data, fifo=True),
        why="Gavel means to draw a type of GPU for each job, and by a slip takes the last one that"
        " has anything free, whether it fits or not; shares change every 1,920 s at the soonest,"
        " and what comes free waits for that.",
        right="to place a job as soon as it fits.",
    ),
    Row(
        name="gavel-las",
        theirs={"jct_s": 82865.477, "makespan_s": 1061740.706},
        trace=gavel.trace,
        cluster=lambda _: gavel.cluster(),
        speeds=gavel.Rates.read,
        policy=("las", {}),
        switched=("gavel-rounds", {}),
        switches=("rounds", "whole-steps", "shares-at-resets", "solver-shares", AT_ONCE),
        world=gavel.Whole,
        compat=frozenset({AT_ONCE}),
        within=EXACT if gavel.solver() else 0.02,
        reference=lambda data: gavel.bare(data, fifo=False),
        why="Gavel moves everybody from type to type; Skep's las leaves a job where it is, and who"
        " began on a K80 stays there, up to ten times slower, while V100s come free. Of the many"
        " optimal shares theirs are those that a solver happens to return: with it installed"
        " (cvxpy, ecos) the result is the same to the digit, and with equal shares within 1 %."
        " Who comes between two resets is chosen for GPUs and left out, so they stay idle.",
        right="Gavel's moves, where types differ that much; its idle GPUs are wrong.",
    ),
)
assert all(len(list(rows)) == 1 for _, rows in groupby(sorted(row.name for row in ROWS)))
