"""`skep report` over a simulated month: time and memory of a report from a log of many jobs.

The first jobs of HiveD's workload (Table 1) run on its cluster of 279 nodes in the simulator, and
the allocator's decisions are written as a log. Persons and projects are made up: some of each
tenant. A first call with `--keep FILE` leaves the log, a later one with `--log FILE` uses it again.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._sample import extremes, say
from skep.ledger.blame.fold import apply
from skep.ledger.blame.kept import keep
from skep.ledger.blame.state import Blame
from skep.ledger.report import By, days_of, report
from skep.units import NS_PER_SECOND, Duration, seconds
from skep.wire import subjects
from skep.wire.admin import QuarantineGpu
from skep_lab.simulator.run import run as simulate
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.traces.generators import hived
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
from skep_services import replaying
from skep_services.adapters import exported
from skep_services.simulations.logged import LoggedRun

DAY_NS = 86_400 * NS_PER_SECOND
OPPORTUNISTIC = 0.15
"""The part of the jobs that run on idle GPUs, and are suspended when these are wanted back."""
TROUBLES_A_DAY = 5
CAN = ("suspend", "release", "migrate", "rebind")
"""What jobs can. No checkpoint is among it: what is stopped, and not suspended, is lost."""
PEOPLE = 3
"""Persons of the smallest tenant; the others have more by their jobs."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--jobs", type=int, default=100_000, help="at most so many")
    parser.add_argument("--days", type=int, default=60, help="of the trace's 60")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave the log here")
    parser.add_argument("--log", type=Path, help="a log that was kept")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.log or arguments.keep or Path(folder) / "month.jsonl.gz"
        made = {} if arguments.log else _make(arguments, path)
        return {**made, "log_bytes": path.stat().st_size, **_measure(path, arguments.runs)}


def _make(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Simulate, and leave the log."""
    rng = random.Random(arguments.seed)
    whole = hived.generate(arguments.seed, hived.Options())
    jobs = [job for job in whole.jobs if job.at < arguments.days * DAY_NS][: arguments.jobs]
    trace = Trace(name="month", jobs=tuple(_owned(job, rng) for job in jobs))
    say(f"{len(jobs)} jobs")
    costs = Costs(start_s=30, stop_s=5)
    settings = Settings(seed=arguments.seed, costs=costs, can=CAN)
    logged = LoggedRun(path)
    began, told = time.process_time(), 0

    def watch(over: int, of: int) -> bool:
        nonlocal told
        if over * 20 // max(of, 1) > told:
            told = over * 20 // max(of, 1)
            say(f"{over} of {of} jobs over, {time.process_time() - began:.0f} s")
        return True

    until = seconds(arguments.days * 86_400)
    settings = msgspec.structs.replace(settings, until=until)
    result = simulate(
        trace,
        hived.cluster_of(hived.DEFAULT),
        settings,
        Steady(),
        news=_troubles(arguments.days, rng),
        judge=logged,
        watch=watch,
    )
    logged.close()
    return {
        "jobs": len(jobs),
        "ended": sum(job.ended is not None for job in result.jobs),
        "simulated_cpu_s": round(time.process_time() - began, 1),
        "records": logged.records,
    }


def _troubles(days: int, rng: random.Random) -> list[tuple[Duration, QuarantineGpu]]:
    """Return GPUs that break, some each day, and are mended a day later."""
    found = []
    for day in range(days):
        for _ in range(TROUBLES_A_DAY):
            at = seconds(day * 86_400 + rng.uniform(0, 86_400))
            node = f"n{rng.randrange(1, hived.NODES + 1)}"
            broken = QuarantineGpu(node=node, device=rng.randrange(hived.NODE_GPUS))
            mended = msgspec.structs.replace(broken, quarantine=False)
            found += [(at, broken), (Duration(at + DAY_NS), mended)]
    return sorted(found, key=lambda each: each[0])


def _owned(job: TraceJob, rng: random.Random) -> TraceJob:
    """Return a job with a person and a project of its tenant: a few have most of the jobs."""
    people = PEOPLE + int(sum(hived.TENANTS[job.vc].jobs) ** 0.5) // 20
    person = min(int(rng.expovariate(3 / people)), people - 1)
    user, project = f"{job.vc}-{person + 1}", f"project-{(person * 7) % 3 + 1}"
    return msgspec.structs.replace(
        job, user=user, project=project, opportunistic=rng.random() < OPPORTUNISTIC
    )


def _measure(path: Path, runs: int) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fold_s, table_ms = list[float](), list[float]()
    blame, facts, told = Blame(), 0, (0, 0)
    for _ in range(runs):
        began = time.process_time()
        blame, facts = Blame(), 0
        messages = exported.each(path, subjects.ALLOC)
        for record in replaying.each_record(messages, "allocator"):
            for fact in record.facts:
                apply(blame, fact, record.at)
                facts += 1
        fold_s.append(time.process_time() - began)
        told = days_of((blame.usage,)) or (0, 0)
        began = time.process_time()
        for by in By:
            report((blame.usage,), by, *told)
        table_ms.append((time.process_time() - began) * 1000 / len(By))
        say(f"{fold_s[-1]:.1f} s")
    kept = [msgspec.json.encode(piece) for piece in keep(blame)]
    return {
        "facts": facts,
        "days": told[1] - told[0] + 1,
        "sums": sum(map(len, blame.usage.values())),
        "sums_kept_bytes": sum(len(each) for each in kept if b"usage-kept" in each[:24]),
        "read_and_fold_cpu_s": extremes(fold_s),
        "table_cpu_ms": extremes(table_ms),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_before_mb": before // 1024,
    }
