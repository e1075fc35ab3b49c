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
import time
from typing import Any

from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Restarted
from skep.units import Instant, after, seconds
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import Admitted
from skep.wire.node import Gpu, MemberExited, MemberStarted, NodeJoined, Outcome
from skep.wire.spec import JobSpec, OverQuota, Resources

T0 = Instant(1_700_000_000_000_000_000)
EVENTS = 200
SHAPES = 32


class Bench:
    """An allocator on a virtual clock whose two VCs own half of the nodes each."""

    def __init__(self, nodes: int, over_quota: OverQuota) -> None:
        """Let nodes of eight GPUs join."""
        self.machine, self.now, self.number = AllocatorMachine(), T0, 0
        self.over_quota = over_quota
        self.decide(Restarted(1))
        vc = VirtualCluster(gpus=4 * nodes, jobs_max=1_000_000)
        self.decide(SetVcs(vcs={"nlp": vc, "vision": vc}))
        for index in range(nodes):
            gpus = tuple(Gpu(index=each, type="v100") for each in range(8))
            name = f"n{index:04}"
            self.decide(
                NodeJoined(
                    node=name,
                    identity=name,
                    incarnation=1,
                    address="10.0.0.1",
                    ports=(20000, 29999),
                    cpus=256,
                    memory=2**38,
                    gpus=gpus,
                )
            )

    def decide(self, event: Any) -> float:
        """Let it decide; return what that took."""
        self.now = after(self.now, seconds(0.1))
        self.machine.soft.last_heard = dict.fromkeys(self.machine.state.nodes, self.now)
        began = time.thread_time()
        self.machine.decide(event, self.now)
        return (time.thread_time() - began) * 1e6

    def submit(self, vc: str, resources: Resources, **more: Any) -> tuple[str, float]:
        """Let a job arrive; return it and what that took."""
        self.number += 1
        job = f"j{self.number}"
        spec = JobSpec(
            name="x",
            vc=vc,
            script="train.py",
            resources=resources,
            over_quota=self.over_quota,
            **more,
        )
        fact = Admitted(job=job, spec=spec, submitted_at=self.now)
        return job, self.decide(Facts(service="admission", at=self.now, facts=(fact,)))

    def start(self, job: str) -> None:
        """Let what was bound run."""
        state = self.machine.state.jobs[job]
        for name in list(state.members):
            self.decide(
                MemberStarted(node=name, identity=name, job=job, attempt=state.attempt, at=self.now)
            )

    def end(self, job: str) -> float:
        """Let a job of one node end; return what that took."""
        state = self.machine.state.jobs[job]
        (name,) = state.members
        return self.decide(
            MemberExited(
                node=name,
                identity=name,
                job=job,
                attempt=state.attempt,
                outcome=Outcome.SUCCEEDED,
                at=self.now,
            )
        )


def measure(nodes: int, waiting: int, over_quota: OverQuota, case: str) -> dict[str, float]:
    """Return what an end and an arrival cost."""
    bench = Bench(nodes, over_quota)
    running = []
    # Every node has a job that stays, so that no job of 8 GPUs fits any; one of them is the VC's.
    own, _ = bench.submit("nlp", Resources(gpus=8))
    bench.start(own)
    size = 1 if case == "full" else 6
    for _ in range(nodes - 1):
        job, _ = bench.submit("vision", Resources(gpus=1, cpus=129))
        bench.start(job)
    while True:
        job, _ = bench.submit("vision", Resources(gpus=size), service_class="opportunistic")
        if not bench.machine.state.jobs[job].members:
            break
        bench.start(job)
        running.append(job)
    bench.submit("nlp", Resources(gpus=8, workers=nodes // 2))
    for number in range(waiting):
        shape = number % SHAPES
        bench.submit(
            "nlp",
            Resources(gpus=1, cpus=200 + shape)
            if case == "shapes"
            else Resources(gpus=8, cpus=1 + shape),
        )
    ends, arrivals = [], []
    for _ in range(EVENTS):
        ends.append(bench.end(running.pop(0)))
        job, spent = bench.submit("vision", Resources(gpus=size), service_class="opportunistic")
        arrivals.append(spent)
        for each in list(bench.machine.state.placed.values()):
            if not each.ran_at:
                bench.start(each.job)
                running.append(each.job)
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
