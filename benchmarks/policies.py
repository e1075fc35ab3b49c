"""Measure what a policy costs the allocator: jobs arriving and ending in one VC, and a deep queue.

    python -m benchmarks policies
    python -m benchmarks policies --policy tiresias-l --waiting 1000
    python -m benchmarks policies --policy genie --nodes 128 --waiting 2000

`fifo` takes the path without any policy. Times are CPU time of the thread, in microseconds: `event`
for each arrival or end where nobody waits, `deep` the same behind so many jobs that wait, `view`
for making the view alone there. Under `genie`, `genie-backfill`, `sized` and `deadline` the jobs
are GENIE's tasks, which have up to 64 GPUs each; they wait on all GPUs from the beginning.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks._allocator import TimedAllocator
from skep.machines.allocator.policies import policy_views
from skep.units import after, seconds
from skep.wire.cluster import VirtualCluster
from skep.wire.spec import Elastic, JobSpec, Resources, SizeHint
from skep_lab.experiments.genie import profile
from skep_lab.traces.generators import genie
from skep_services.collection import short_pauses


def job_of(gpus: int, run_time: float) -> JobSpec:
    """Return a job that says how long it runs, in seconds."""
    return JobSpec(
        name="x",
        vc="nlp",
        command=("true",),
        resources=Resources(gpus=gpus),
        size=SizeHint(run_time=run_time),
    )


def task_of(number: int) -> JobSpec:
    """Return one of GENIE's tasks; their types, sizes and classes are spread over the numbers."""
    kinds = [kind for kind, *_ in profile(0).models]
    return JobSpec(
        name="x",
        vc="nlp",
        command=("true",),
        resources=Resources(gpus=1),
        elastic=Elastic(min=1, max=64),
        priority=(0, 0, 1, 0, 1, 0, 0, 1, 0, 2)[number % 10],
        size=SizeHint(
            family=kinds[number * 7 % len(kinds)],
            batch_size=genie.BATCHES[number % len(genie.BATCHES)],
            mini_batches=1000 + number * 7919 % 40_000,
        ),
    )


BETWEEN = seconds(60)
"""From the end of a task to the next one."""
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "genie": ("genie", {}),
    "genie-backfill": ("genie", {"backfill": True, "late": "last"}),
    "sized": ("sized", {"size": "cost", "order": "shortest", "strict": False}),
    "deadline": ("deadline", {}),
}


def measure_tasks(name: str, nodes: int, waiting: int, events: int) -> dict[str, Any]:
    """Return what a policy of GENIE's tasks costs: each end, and the arrival after it."""
    policy, options = TASKS[name]
    known = {"models": profile(0).models, "start_s": 30.0, **options}
    vcs = {"nlp": VirtualCluster(gpus=8 * nodes, policy=policy, options=known)}
    bench = TimedAllocator(vcs, nodes, cpus=64)
    number = 0
    state = bench.machine.state
    while len(state.jobs) - len(state.placed) < waiting:
        bench.submit(task_of(number))
        bench.start_bound()
        number += 1
    with short_pauses():  # As the service has them, once it has read its log.
        spent = sorted(_ends_and_arrivals(bench, number, min(events, 300)))
    return {
        "deep_us": round(statistics.mean(spent), 1),
        "deep_p99_us": round(spent[len(spent) * 99 // 100], 1),
        "deep_max_us": round(spent[-1], 1),
        "decisions": len(spent),
        "waiting": len(state.jobs) - len(state.placed),
        "running": len(state.placed),
    }


def _ends_and_arrivals(bench: TimedAllocator, number: int, times: int) -> list[float]:
    """Let tasks end, and one arrive after each; return what each decision took."""
    spent: list[float] = []
    for _ in range(times):
        # Meanwhile some tasks can no longer be in time where they would go.
        bench.now = after(bench.now, BETWEEN)
        bench.spent.clear()
        bench.end(next(job for job, each in bench.machine.state.placed.items() if each.ran_at))
        spent += bench.spent
        bench.start_bound()
        bench.spent.clear()
        bench.submit(task_of(number))
        spent += bench.spent
        number += 1
    return spent


def measure(policy: str, nodes: int, waiting: int, events: int) -> dict[str, Any]:
    """Return what one policy costs."""
    if policy in TASKS:
        return measure_tasks(policy, nodes, waiting, events)
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
