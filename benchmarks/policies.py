"""Measure what a policy costs the allocator: jobs arriving and ending in one VC, and a deep queue.

    python -m benchmarks policies
    python -m benchmarks policies --policy tiresias-l --waiting 1000

`fifo` takes the path without any policy. Times are CPU time of the thread, in microseconds: `event`
for each arrival or end where nobody waits, `deep` the same behind so many jobs that wait, `view`
for making the view alone there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks._allocator import TimedAllocator
from skep.machines.allocator.policies import policy_views
from skep.wire.cluster import VirtualCluster
from skep.wire.spec import JobSpec, Resources, SizeHint


def job_of(gpus: int, run_time: float) -> JobSpec:
    """Return a job that says how long it runs, in seconds."""
    return JobSpec(
        name="x",
        vc="nlp",
        command=("true",),
        resources=Resources(gpus=gpus),
        size=SizeHint(run_time=run_time),
    )


def measure(policy: str, nodes: int, waiting: int, events: int) -> dict[str, Any]:
    """Return what one policy costs."""
    vcs = {"nlp": VirtualCluster(gpus=8 * nodes, policy=policy)}
    bench = TimedAllocator(vcs, nodes, cpus=64)
    running: list[str] = []
    bench.spent.clear()
    for number in range(events):
        job = bench.submit(job_of(1 + number % 4, 100 + number % 7))
        bench.start(job)
        running.append(job)
        if len(running) > nodes:
            bench.end(running.pop(0))
    shallow = statistics.mean(bench.spent)
    while bench.machine.state.jobs[job := bench.submit(job_of(8, 50_000))].members:
        bench.start(job)
        running.append(job)
    for number in range(waiting):
        bench.submit(job_of(1 + number % 8, 100_000 + number))
    bench.spent.clear()
    for _ in range(min(events, 200)):
        job = next(name for name, each in bench.machine.state.placed.items() if each.ran_at)
        bench.end(job)
        bench.start_bound()
        bench.submit(job_of(2, 100_000))
    told: dict[str, Any] = {
        "event_us": round(shallow, 1),
        "deep_us": round(statistics.mean(bench.spent), 1),
        "deep_max_us": round(max(bench.spent), 1),
        "waiting": len(bench.machine.state.jobs) - len(bench.machine.state.placed),
    }
    planned = getattr(bench.machine.tx.soft, "planned", {}).get("nlp")
    if planned is not None:
        began = time.thread_time()
        for _ in range(100):
            policy_views.of_vc(bench.machine.tx, planned, bench.now)
        told["view_us"] = round((time.thread_time() - began) * 1e4, 1)
    return told


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--policy", action="append")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--events", type=int, default=1000)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return what each policy costs."""
    names = given.policy or ("fifo", "backfill", "srtf", "tiresias-l")
    return {name: measure(name, given.nodes, given.waiting, given.events) for name in names}
