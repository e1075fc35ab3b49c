"""Measure how long the allocator decides on an event while jobs that name one another resolve.

    python -m benchmarks dependencies
    python -m benchmarks dependencies --jobs 1000 --nodes 8

Four shapes of as many jobs. `line`: each waits for the one before it. `layers`: each waits for
two of the layer before it, of 20 jobs a layer. `fan`: all but the first wait for it, and it
succeeds. `broken`: the same, and it fails, so that all are cancelled. The last job of each shape
waits for several. Every event is measured, from the first submission to the last end, also those
that only start or end a job. The bound is 5 ms an event. An event that gives GPUs to more than one
job costs what placing them does, and is counted apart (`burst`, by job). Times are CPU time of the
thread, in milliseconds.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

from benchmarks._allocator import TimedAllocator
from benchmarks._sample import percentiles, say
from skep.wire.cluster import VirtualCluster
from skep.wire.node import MemberExited, Outcome
from skep.wire.spec import AFTER_MAX, After, JobSpec

LAYER = 20
LIMIT_MS = 5.0


def after(shape: str, number: int, jobs: int) -> After | None:
    """Return for what the job of a number (from 1) waits; None: for nothing."""
    if number == 1:
        return None
    if number == jobs:
        first = max(1, jobs - AFTER_MAX)
        return After(any=tuple(f"j{each}" for each in range(first, jobs)))
    match shape:
        case "line":
            return After(ok=(f"j{number - 1}",))
        case "layers":
            layer, place = divmod(number - 1, LAYER)
            before = (layer - 1) * LAYER + 1
            named = sorted({before + place, before + (place + 1) % LAYER})
            return After(ok=tuple(f"j{each}" for each in named)) if layer else None
        case _:
            return After(ok=("j1",))


def measure(shape: str, jobs: int, nodes: int) -> dict[str, Any]:
    """Return what the events of one shape cost."""
    vc = VirtualCluster(gpus=8 * nodes, jobs_max=1_000_000)
    bench = TimedAllocator({"nlp": vc}, nodes, cpus=256)
    gc.collect()
    gc.freeze()
    bench.spent.clear()
    for number in range(1, jobs + 1):
        bench.submit(
            JobSpec(name=f"n{number}", vc="nlp", command="x", after=after(shape, number, jobs))
        )
    arrivals = list(bench.spent)
    bench.spent.clear()
    machine, ended = bench.machine, 0
    bursts: list[float] = []
    while machine.state.jobs:
        bench.start_bound()
        for job in list(machine.state.placed.values()):
            fails = shape == "broken" and job.job == "j1"
            ended += 1
            before = len(machine.state.placed)
            for name in list(job.members):
                bench.decide(
                    MemberExited(
                        node=name,
                        identity=name,
                        job=job.job,
                        attempt=job.attempt,
                        outcome=Outcome.EXITED if fails else Outcome.SUCCEEDED,
                        at=bench.now,
                    )
                )
            more = len(machine.state.placed) - before + 1
            if more > 1:
                bursts.append(bench.spent.pop() / 1000 / more)
        if not machine.state.placed and machine.state.jobs:
            bench.tick()
    events = [each / 1000 for each in bench.spent]
    say(f"{shape}: {ended} jobs ran, {len(events)} events")
    worst = max(*events, *(each / 1000 for each in arrivals))
    return {
        "arrival_ms": percentiles([each / 1000 for each in arrivals], 3),
        "event_ms": percentiles(events, 3),
        "burst_ms": percentiles(bursts, 3),
        "ran_jobs": ended,
        "within_limit": worst <= LIMIT_MS,
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--jobs", type=int, default=1000, help="of each shape (1000)")
    parser.add_argument("--nodes", type=int, default=8, help="of eight GPUs (8)")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the cost of events for each shape."""
    shapes = ("line", "layers", "fan", "broken")
    return {shape: measure(shape, given.jobs, given.nodes) for shape in shapes}
