"""How many job reports one core takes through the introspector.

    python -m benchmarks introspector [--jobs 8000] [--seconds 12] [--trials 0]

Each of `jobs / 8` nodes reports 8 one-GPU jobs once a (virtual) second. Measured is what the
service does with the bytes: decode each report, decide on it, and once a second decide on what to
say. Inputs are made before the clock starts; making and sending messages is the bus's part. So
many trials of two jobs each are open all along, and told every other second.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

from skep.machines.base import Tick
from skep.machines.introspector import IntrospectorMachine
from skep.units import NS_PER_SECOND, Instant
from skep.wire import codec, subjects
from skep.wire.reports import JobProgress, NodeReport, RankProgress
from skep.wire.trials import Before, Kind, OpenTrial, Trials

JOBS_PER_NODE = 8
STEPS_PER_SECOND = 37
BEGIN = Instant(1_700_000_000 * NS_PER_SECOND)
STEP_NS = NS_PER_SECOND // STEPS_PER_SECOND


def report(node: int, second: int) -> tuple[str, bytes]:
    """Return one node's report of one second: subject and payload."""
    name = f"node-{node}"
    at = BEGIN + second * NS_PER_SECOND + node * 1000
    jobs = tuple(
        JobProgress(
            job=f"j{node * JOBS_PER_NODE + slot + 1}",
            attempt=1,
            world=1,
            ranks=(
                RankProgress(
                    rank=0,
                    steps=(second + 1) * STEPS_PER_SECOND,
                    step_ns=STEP_NS,
                    last_step_at=Instant(at - 20_000_000 - slot),
                    utilisation=913,
                    memory=3 << 30,
                ),
            ),
            trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        for slot in range(JOBS_PER_NODE)
    )
    return subjects.report(name), codec.encode(NodeReport(node=name, at=Instant(at), jobs=jobs))


def opened(trials: int) -> Trials:
    """Return so many trials, of the first jobs; none comes to a verdict soon."""
    return Trials(
        at=BEGIN,
        open=tuple(
            OpenTrial(
                trial=number + 1,
                kind=Kind.PACK,
                since=BEGIN,
                needed_milli=2000,
                until=Instant(BEGIN + 3600 * NS_PER_SECOND),
                jobs=tuple(
                    Before(
                        job=f"j{2 * number + each}",
                        attempt=1,
                        gpus=1,
                        rate_milli=1000 * STEPS_PER_SECOND,
                        solo_milli=1000 * STEPS_PER_SECOND,
                    )
                    for each in (1, 2)
                ),
            )
            for number in range(trials)
        ),
    )


def measure(jobs: int, seconds: int, trials: int = 0) -> dict[str, Any]:
    """Return job reports per second of processor time and of wall time, and where it went."""
    told_open = codec.encode(opened(trials))
    nodes = max(jobs // JOBS_PER_NODE, 1)
    machine = IntrospectorMachine()
    per_second: list[float] = []
    tick_ms: list[float] = []
    sent = decode_s = 0.0
    wall_s = processor_s = 0.0
    for second in range(seconds):
        inputs = [report(node, second) for node in range(nodes)]
        now = Instant(BEGIN + second * NS_PER_SECOND + 500_000_000)
        gc.collect()
        wall, processor = time.perf_counter(), time.process_time()
        for subject, payload in inputs:
            machine.decide(codec.read(subject, payload, {}, 0, Instant(0)), now)
        if trials and second % 2 == 0:
            heard = codec.read(subjects.TRIALS_OPEN, told_open, {}, 0, Instant(0))
            machine.decide(heard, now)
        told = time.process_time()
        effects = machine.decide(Tick(), machine.wake_at() or now)
        spent = time.process_time() - processor
        tick_ms.append((time.process_time() - told) * 1000)
        wall_s += time.perf_counter() - wall
        processor_s += spent
        per_second.append(nodes * JOBS_PER_NODE / spent)
        sent += len(effects)
        started = time.process_time()
        for subject, payload in inputs:
            codec.read(subject, payload, {}, 0, Instant(0))
        decode_s += time.process_time() - started
    reports = nodes * JOBS_PER_NODE * seconds
    return {
        "nodes": nodes,
        "job_reports": reports,
        "job_reports_per_core_second": round(reports / processor_s),
        "job_reports_per_core_second_lowest": round(min(per_second)),
        "job_reports_per_core_second_highest": round(max(per_second)),
        "job_reports_per_wall_second": round(reports / wall_s),
        "us_per_job_report": round(processor_s / reports * 1e6, 2),
        "us_per_job_report_decoding": round(decode_s / reports * 1e6, 2),
        "tick_ms_median": round(statistics.median(tick_ms), 2),
        "tick_ms_highest": round(max(tick_ms), 2),
        "findings": round(sent),
        "limited_by": "interpreting Python, one core",
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--jobs", type=int, default=8000)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--trials", type=int, default=0)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of reports."""
    return measure(given.jobs, given.seconds, given.trials)
