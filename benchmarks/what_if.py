"""What a question costs the allocator that is asked, and how long its answer takes.

    python -m benchmarks what_if [--nodes 1000] [--waiting 2000] [--rounds 5]

A full cluster of nodes with 8 GPUs, half of it one VC's, with a queue. `held_ms` is for how long
the asking process stands still at a question (the fork); `behind_ms` how long a decision (a GPU
counts as bad, and as good again) takes while copies of the process think, `alone_ms` without.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import msgspec

from benchmarks._sample import percentiles
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.placement import job_cells
from skep.machines.base import Restarted
from skep.units import Duration, Instant
from skep.wire import codec
from skep.wire.admin import QuarantineGpu, SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.drafts import Answer, Question
from skep.wire.facts import Admitted
from skep.wire.node import Gpu, MemberStarted, NodeJoined
from skep.wire.spec import JobSpec, Resources
from skep_services.what_if import Drafter

GPUS = 8
BEGIN = Instant(1_700_000_000_000_000_000)


class Still:
    """A clock that stands."""

    def now(self) -> Instant:
        """Return the time."""
        return BEGIN

    async def sleep_until(self, instant: Instant) -> None:
        """Return at once."""


def spec(number: int, vc: str, gpus: int, workers: int = 1) -> JobSpec:
    """Return a job."""
    return JobSpec(
        name=f"job-{number}",
        vc=vc,
        command=("true",),
        resources=Resources(gpus=gpus, workers=workers),
    )


def full(nodes: int, waiting: int) -> AllocatorMachine:
    """Return an allocator whose cluster is full, with a queue."""
    machine = AllocatorMachine()
    machine.decide(Restarted(1), BEGIN)
    half = nodes * GPUS // 2
    machine.decide(
        SetVcs(vcs={"a": VirtualCluster(gpus=half), "b": VirtualCluster(gpus=half)}), BEGIN
    )
    for number in range(nodes):
        devices = tuple(Gpu(index=index, type="v100") for index in range(GPUS))
        machine.decide(
            NodeJoined(
                node=f"node-{number}",
                identity=f"id-node-{number}",
                incarnation=1,
                address="10.0.0.1",
                ports=(20000, 29999),
                gpus=devices,
                cpus=96,
                memory=1 << 40,
            ),
            BEGIN,
        )
    if machine.tx.soft.resolve_at is not None:
        job_cells.resolve(machine.tx, machine.state.asked)
    sizes = (1, 1, 2, 4, 8)
    left, number = nodes * GPUS, 0
    while left > 0 or waiting > 0:
        number += 1
        vc, gpus = "ab"[number % 2], sizes[number % len(sizes)]
        waiting -= left <= 0
        left -= gpus
        admitted = Admitted(job=f"j{number}", spec=spec(number, vc, gpus), submitted_at=BEGIN)
        machine.decide(Facts(service="admission", at=BEGIN, facts=(admitted,)), BEGIN)
    for job in list(machine.state.placed.values()):
        for node in job.members:
            machine.decide(
                MemberStarted(node=node, identity=f"id-{node}", job=job.job, attempt=1, at=BEGIN),
                BEGIN,
            )
    return machine


class Nowhere:
    """A bus to nobody."""

    async def send(self, *_: Any) -> None:
        """Forget it."""


async def measure(machine: AllocatorMachine, rounds: int) -> dict[str, Any]:
    """Ask, and look how the machine decides meanwhile."""
    drafter: Any = Drafter(machine, Nowhere(), Still())  # type: ignore[arg-type]
    queued = [name for name in machine.state.jobs if name not in machine.state.placed]
    left = {
        name: Duration((number + 1) * 1_000_000_000)
        for number, name in enumerate(machine.state.placed)
    }
    asks = {
        "plan": Question(spec=spec(0, "a", 8, 4), remaining=left),
        "what-if-head": Question(job=queued[0], others=True, remaining=left),
        "what-if-last": Question(job=queued[-1], others=True, remaining=left),
    }
    alone = [_timed(machine, bad=number % 2 == 0) for number in range(200)]
    found: dict[str, Any] = {"alone_ms": percentiles(alone, 3)}
    for name, question in asks.items():
        took, held, behind, tried = list[float](), list[float](), list[float](), 0
        for _ in range(rounds):
            began = time.perf_counter()
            task = asyncio.ensure_future(drafter.look(codec.encode(question)))
            while not task.done():
                await asyncio.sleep(0.001)
                behind.append(_timed(machine, bad=len(behind) % 2 == 0))
            if len(behind) % 2:
                _timed(machine, bad=False)
                behind.append(behind[-1])
            took.append((time.perf_counter() - began) * 1e3)
            held.append(drafter.held_ns / 1e6)
            answer = msgspec.json.decode(task.result(), type=Answer)
            assert not answer.problem, answer.problem
            tried = len(answer.options) + len(answer.in_vain)
        found[name] = {
            "answer_ms": percentiles(took, 3),
            "held_ms": percentiles(held, 3),
            "told": tried,
            "behind_ms": percentiles(behind, 3),
        }
    return found


def _timed(machine: AllocatorMachine, *, bad: bool) -> float:
    event = QuarantineGpu(node="node-0", device=0, quarantine=bad)
    began = time.perf_counter_ns()
    machine.decide(event, BEGIN)
    return (time.perf_counter_ns() - began) / 1e6


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return how long questions hold the allocator up, and how long answers take."""
    machine = full(given.nodes, given.waiting)
    found = asyncio.run(measure(machine, given.rounds))
    return {"jobs": len(machine.state.jobs), "placed": len(machine.state.placed), **found}
