"""One workload of real jobs on a live embedded cluster, and in simulation: how far are they apart?

    python -m tests.system.live_vs_sim [--jobs 60] [--seed 1] [--every 4] [--out LOG.jsonl.gz]

Jobs on nodes of fake GPUs: processes that sleep, gangs of them, and PyTorch trainings, all of a
length and pace that the clock sets, because what a busy machine does to a process is no question of
scheduling. The simulation gets the moments of submission, the lengths that were asked for, and what
live starts and ends cost (medians over all jobs); it decides everything else. Prints JSON: mean
queueing delay and JCT, makespan, and the steady rates of trainings, live and simulated, with
`within` saying whether they keep to 7 % (rates: 1 %); and the machine's load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import msgspec

from skep.units import Duration, in_seconds, seconds
from skep.wire.facts import AllocatorFact, JobEnded
from skep_lab.live_log.live_run import Lived, lived, starts
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.workloads.situation import Steady
from skep_services.adapters import exported
from skep_services.adapters.nats_read import read_stream
from skep_services.adapters.records import Chain
from skep_services.ports import LogRecord
from tests.support.embedded import Embedded

OPTIONS = (
    "--nodes",
    "3",
    "--gpus",
    "4",
    "--device",
    "fake",
    "--port",
    "0",
    "--vc",
    "vision=8",
    "--vc",
    "nlp=4",
)
STEPPER = Path(__file__).parent / "live" / "stepper.py"
STEP_S = 0.1
IMPORT_S = 20.0
"""What PyTorch may take to be imported on a busy machine; trainings are as much longer."""
SIZES = ((1, 1, 50), (1, 2, 20), (2, 1, 12), (1, 4, 8), (2, 2, 10))
"""Workers, GPUs of each, and how often out of 100: none above a VC's cells."""
QUEUES_WITHIN, RATES_WITHIN = 0.07, 0.01


def workload(rng: Random, jobs: int, every_s: float) -> list[tuple[float, float, dict[str, Any]]]:
    """Return moment (s), length (s) and spec of every job."""
    found = []
    at_s = 0.0
    for number in range(1, jobs + 1):
        at_s += rng.expovariate(1 / every_s)
        length_s = round(6.0 * 8 ** rng.random(), 2)
        workers, gpus, _ = rng.choices(SIZES, [share for *_, share in SIZES])[0]
        spec: dict[str, Any] = {"name": f"w{number}", "vc": rng.choice(("vision", "vision", "nlp"))}
        if spec["vc"] == "nlp":
            workers, gpus = 1, min(gpus, 4)
        if workers == 1 and rng.random() < 0.3:
            length_s += IMPORT_S
            spec |= {"script": str(STEPPER), "args": [f"{length_s:.2f}", str(STEP_S)]}
        else:
            spec["command"] = ["sleep", f"{length_s:.2f}"]
        spec["resources"] = {"workers": workers, "gpus": gpus}
        found.append((at_s, length_s, spec))
    return found


def play(
    cluster: Embedded, jobs: Iterable[tuple[float, float, dict[str, Any]]]
) -> dict[str, float]:
    """Hand the jobs in at their moments and wait for all; return the length asked for by job."""
    began, lengths = time.monotonic(), {}
    for at_s, length_s, spec in jobs:
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        headers = {"Content-Type": "application/json"}
        reply = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode(), headers=headers)
        assert reply.status < 300, reply
        lengths[reply.body["job"]] = length_s
    for job in lengths:
        cluster.ended(job, 1800)
    return lengths


async def read(cluster: Embedded, out: Path | None) -> list[LogRecord]:
    """Return the allocator's records; write all streams to `out`."""
    bus = await cluster.bus("operator")
    try:
        streams = {name: await read_stream(bus, name) for name in exported.STREAMS}
    finally:
        await bus.close()
    if out is not None:
        exported.write(out, streams)
    chain = Chain("fact log ALLOC", AllocatorFact)
    return [chain.read(one.payload, str(one.sequence)) for one in streams["ALLOC"]]


def simulated(live: Lived, lengths: dict[str, float]) -> tuple[RunResult, dict[str, float]]:
    """Return the same jobs in simulation, and what was measured live for it (s)."""
    costs = {
        "start_s": live.costs.start_s,
        "end_s": median(in_seconds(job.run_time) - lengths[job.id] for job in live.trace.jobs),
    }
    jobs = tuple(
        msgspec.structs.replace(job, run_time=Duration(seconds(lengths[job.id] + costs["end_s"])))
        for job in live.trace.jobs
    )
    trace = msgspec.structs.replace(live.trace, jobs=jobs)
    settings = Settings(costs=Costs(start_s=costs["start_s"]))
    return run(trace, live.cluster, settings, Steady()), costs


def compared(live: RunResult, sim: RunResult) -> dict[str, dict[str, Any]]:
    """Return mean queueing delay, mean JCT and makespan of both, and how far they are apart."""
    rows = {}
    for name, of in (("queueing_s", _queueing_s), ("jct_s", _jct_s)):
        rows[name] = [fmean(map(of, run_.jobs)) for run_ in (live, sim)]
    rows["makespan_s"] = [
        max(in_seconds(Duration(job.ended or 0)) for job in run_.jobs) for run_ in (live, sim)
    ]
    return {name: _row(mine, theirs, QUEUES_WITHIN) for name, (mine, theirs) in rows.items()}


def _row(live: float, sim: float, within: float) -> dict[str, Any]:
    apart = (sim - live) / live if live else 0.0
    return {
        "live": round(live, 4),
        "simulated": round(sim, 4),
        "apart": round(apart, 4),
        "within": abs(apart) <= within,
    }


def _queueing_s(outcome: JobOutcome) -> float:
    return in_seconds(Duration((outcome.began or 0) - outcome.job.at))


def _jct_s(outcome: JobOutcome) -> float:
    return in_seconds(Duration((outcome.ended or 0) - outcome.job.at))


def rates(records: list[LogRecord], live: Lived) -> dict[str, Any]:
    """Return mini-batches per second of steady trainings, live, against the trace's pace."""
    ended = [
        fact
        for record in records
        for fact in record.facts
        if isinstance(fact, JobEnded) and fact.steps and fact.step_ns
    ]
    found = [1e9 / fact.step_ns for fact in ended]
    if not found:
        return {"jobs": 0, "within": False}
    row = _row(fmean(found), 1 / STEP_S, RATES_WITHIN)
    worst = max(abs(rate * STEP_S - 1) for rate in found)
    return {"jobs": len(found), **row, "worst_job_apart": round(worst, 4)}


def main() -> None:
    """Play both and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between jobs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    jobs = workload(Random(arguments.seed), arguments.jobs, arguments.every)
    with tempfile.TemporaryDirectory(prefix="skep-live-") as folder:
        cluster = Embedded(Path(folder))
        cluster.up(*OPTIONS)
        load = os.getloadavg()
        try:
            lengths = play(cluster, jobs)
            records = asyncio.run(read(cluster, arguments.out))
        finally:
            cluster.down()
    live = lived(records)
    sim, costs = simulated(live, lengths)
    apart = starts(live.result, sim, 1.0)
    print(
        json.dumps(
            {
                "seed": arguments.seed,
                "jobs": len(live.trace.jobs),
                "cluster": live.result.cluster,
                "measured": {name: round(cost, 4) for name, cost in costs.items()},
                **compared(live.result, sim),
                "rates_per_s": rates(records, live),
                "starts_more_than_1_s_apart": len(apart),
                "load_before": load,
                "load_after": os.getloadavg(),
            }
        )
    )


if __name__ == "__main__":
    main()
