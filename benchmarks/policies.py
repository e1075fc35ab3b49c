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

from skep.machines.allocator import AllocatorMachine, views
from skep.machines.base import Restarted
from skep.units import Instant, after, seconds
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import Admitted
from skep.wire.node import Gpu, MemberExited, MemberStarted, NodeJoined, Outcome
from skep.wire.spec import JobSpec, Resources, SizeHint

T0 = Instant(1_700_000_000_000_000_000)


class Bench:
    """An allocator on a virtual clock, and how long it took for each event."""

    def __init__(self, nodes: int, policy: str) -> None:
        """Let nodes of eight GPUs join that one VC owns."""
        self.machine, self.now, self.number = AllocatorMachine(), T0, 0
        self.spent: list[float] = []
        self.decide(Restarted(1))
        vc = VirtualCluster(gpus=8 * nodes, policy=policy)
        self.decide(SetVcs(vcs={"nlp": vc}))
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
                    cpus=64,
                    memory=2**38,
                    gpus=gpus,
                )
            )

    def decide(self, event: Any) -> list[Any]:
        """Let it decide, and note what that took."""
        self.now = after(self.now, seconds(0.1))
        for name in self.machine.state.nodes:
            self.machine.soft.last_heard[name] = self.now
        began = time.thread_time()
        effects = self.machine.decide(event, self.now)
        self.spent.append((time.thread_time() - began) * 1e6)
        return effects

    def submit(self, gpus: int, run_time: float) -> str:
        """Let a job arrive."""
        self.number += 1
        job = f"j{self.number}"
        size = SizeHint(run_time=run_time)
        spec = JobSpec(
            name="x", vc="nlp", command=("true",), resources=Resources(gpus=gpus), size=size
        )
        fact = Admitted(job=job, spec=spec, submitted_at=self.now)
        self.decide(Facts(service="admission", at=self.now, facts=(fact,)))
        return job

    def start(self, job: str) -> None:
        """Let whatever was bound run."""
        state = self.machine.state.jobs.get(job)
        if state is None:
            return
        for name in list(state.members):
            self.decide(
                MemberStarted(node=name, identity=name, job=job, attempt=state.attempt, at=self.now)
            )

    def end(self, job: str) -> None:
        """Let a job end."""
        state = self.machine.state.jobs[job]
        for name in list(state.members):
            self.decide(
                MemberExited(
                    node=name,
                    identity=name,
                    job=job,
                    attempt=state.attempt,
                    outcome=Outcome.SUCCEEDED,
                    at=self.now,
                )
            )


def measure(policy: str, nodes: int, waiting: int, events: int) -> dict[str, Any]:
    """Return what one policy costs."""
    bench = Bench(nodes, policy)
    running: list[str] = []
    bench.spent.clear()
    for number in range(events):
        job = bench.submit(1 + number % 4, 100 + number % 7)
        bench.start(job)
        running.append(job)
        if len(running) > nodes:
            bench.end(running.pop(0))
    shallow = statistics.mean(bench.spent)
    while bench.machine.state.jobs[job := bench.submit(8, 50_000)].members:
        bench.start(job)
        running.append(job)
    for number in range(waiting):
        bench.submit(1 + number % 8, 100_000 + number)
    bench.spent.clear()
    for _ in range(min(events, 200)):
        job = next(name for name, each in bench.machine.state.placed.items() if each.ran_at)
        bench.end(job)
        for name, each in list(bench.machine.state.placed.items()):
            if not each.ran_at:
                bench.start(name)
        bench.submit(2, 100_000)
    told: dict[str, Any] = {
        "event_us": round(shallow, 1),
        "deep_us": round(statistics.mean(bench.spent), 1),
        "deep_max_us": round(max(bench.spent), 1),
        "waiting": len(bench.machine.state.jobs) - len(bench.machine.state.placed),
    }
    planned = getattr(bench.machine.soft, "planned", {}).get("nlp")
    if planned is not None:
        began = time.thread_time()
        for _ in range(100):
            views.of_vc(bench.machine, planned, bench.now)
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
