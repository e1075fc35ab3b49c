"""Measure what lending idle GPUs costs each decision, behind a head that waits.

    python -m benchmarks lending
    python -m benchmarks lending --waiting 1000 --nodes 16

One VC has a gang at the head of its queue that waits for all of its GPUs, and many jobs behind it.
The same events (opportunistic jobs of another VC that end and arrive) are decided with
`over_quota: wait` and with `auto`. `full`: no GPU is idle. `idle`: GPUs are idle, too few on any
node. `shapes`: enough are idle, and CPUs are not, so that as many shapes are tried as may be.
Times are CPU time of the thread, microseconds for one event.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks._allocator import TimedAllocator
from skep.wire.cluster import VirtualCluster
from skep.wire.spec import JobSpec, OverQuota, Resources

EVENTS = 200
SHAPES = 32


def measure(nodes: int, waiting: int, over_quota: OverQuota, case: str) -> dict[str, float]:
    """Return what an end and an arrival cost."""
    vc = VirtualCluster(gpus=4 * nodes, jobs_max=1_000_000)
    bench = TimedAllocator({"nlp": vc, "vision": vc}, nodes, cpus=256)

    def submit(vc: str, resources: Resources, **more: Any) -> str:
        spec = JobSpec(
            name="x", vc=vc, script="train.py", resources=resources, over_quota=over_quota, **more
        )
        return bench.submit(spec)

    running = []
    # Every node has a job that stays, so that no job of 8 GPUs fits any; one of them is the VC's.
    own = submit("nlp", Resources(gpus=8))
    bench.start(own)
    size = 1 if case == "full" else 6
    for _ in range(nodes - 1):
        job = submit("vision", Resources(gpus=1, cpus=129))
        bench.start(job)
    while True:
        job = submit("vision", Resources(gpus=size), service_class="opportunistic")
        if not bench.machine.state.jobs[job].members:
            break
        bench.start(job)
        running.append(job)
    submit("nlp", Resources(gpus=8, workers=nodes // 2))
    for number in range(waiting):
        shape = number % SHAPES
        submit(
            "nlp",
            Resources(gpus=1, cpus=200 + shape)
            if case == "shapes"
            else Resources(gpus=8, cpus=1 + shape),
        )
    ends, arrivals = [], []
    for _ in range(EVENTS):
        bench.end(running.pop(0))
        ends.append(bench.spent[-1])
        submit("vision", Resources(gpus=size), service_class="opportunistic")
        arrivals.append(bench.spent[-1])
        running += bench.start_bound()
    return {
        "end_us": round(statistics.median(ends), 1),
        "arrival_us": round(statistics.median(arrivals), 1),
        "end_max_us": round(max(ends), 1),
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--waiting", type=int, default=10_000, help="jobs behind the head (10000)")
    parser.add_argument("--nodes", type=int, default=64, help="of eight GPUs (64)")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the cost of an end and of an arrival in each case, with lending and without."""
    found: dict[str, Any] = {}
    for case in ("full", "idle", "shapes"):
        told: dict[str, Any] = {}
        for word in ("wait", "auto"):
            told[word] = measure(given.nodes, given.waiting, word, case)
        for key in ("end_us", "arrival_us"):
            told[f"{key[:-3]}_ratio"] = round(told["auto"][key] / told["wait"][key], 2)
        found[case] = told
    return found
