"""Measure what observation takes of the processor: the same script with and without it, in pairs.

    python -m benchmarks observation [--pairs 20] [--seconds 4]

A script that knows nothing of Skep trains two models: mini-batches of a fraction of a millisecond
(`small`), and of some milliseconds (`convolutions`). In each pair one run is a job of a live
cluster and observed, the other is started directly with the same variables, except those of the
observation. Both train at the same time on one processor, which they have in turn for some
milliseconds: what else happens to it happens to both. Which begins first alternates.
`added_percent` is the CPU time of a mini-batch, observed, against its neighbour: the median, and
the interval in which it lies with 95 % probability (bootstrap, seed 0). `agent_percent` is the CPU
time of the node's agent from submission to end, against that of the job; without a job the agent
takes `agent_idle_percent` of one processor.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._sample import say
from tests.support.embedded import Embedded

SCRIPT = Path(__file__).parent / "jobs" / "plain_training.py"
MODELS = ("small", "convolutions")
SAMPLES = 2000
SAME = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""What an agent sets for every job."""
IDLE_S = 10.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure pairs on one cluster."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home", {"SKEP_WARM_PROCESSES": "0"})
        cluster.up("--nodes", "1", "--gpus", "1", "--vc", "lab=1")
        try:
            agent = int(cluster.entry("node-1")["pid"])
            before = cpu_s(agent)
            time.sleep(IDLE_S)
            idle = 100 * (cpu_s(agent) - before) / IDLE_S
            found = {model: _pairs(cluster, agent, Path(folder), model, given) for model in MODELS}
        finally:
            cluster.down()
    return {**found, "agent_idle_percent": round(idle, 3)}


def _pairs(
    cluster: Embedded, agent: int, folder: Path, model: str, given: argparse.Namespace
) -> dict[str, Any]:
    added, agents, batches = [], [], []
    processor = str(max(os.sched_getaffinity(0)))
    for pair in range(given.pairs):
        files = [str(folder / f"{model}-{pair}-{name}") for name in ("plain", "observed")]
        plain, observed = (
            [str(SCRIPT), model, str(given.seconds), files[at], processor, other]
            for at, other in enumerate(reversed(files))
        )
        before = cpu_s(agent)
        own = {key: value for key, value in os.environ.items() if "SKEP" not in key}
        begun = _submitted(cluster, observed) if pair % 2 else ""
        with subprocess.Popen([sys.executable, *plain], env={**own, **SAME}) as process:
            try:
                _wait(cluster, begun or _submitted(cluster, observed))
            except BaseException:
                process.terminate()
                raise
        figures = [json.loads(Path(file).read_text()) for file in files]
        alone, watched = (one["cpu_s"] / one["steps"] for one in figures)
        agents.append(100 * (cpu_s(agent) - before) / figures[1]["cpu_s"])
        added.append(100 * (watched / alone - 1))
        batches.append(alone)
        say(f"{model}, pair {pair + 1}: {added[-1]:+.2f} %")
    low, high = interval(added)
    return {
        "pairs": len(added),
        "batch_ms": round(1000 * statistics.median(batches), 3),
        "added_percent": round(statistics.median(added), 2),
        "added_low_percent": round(low, 2),
        "added_high_percent": round(high, 2),
        "agent_percent": round(statistics.median(agents), 2),
    }


def _submitted(cluster: Embedded, words: Sequence[str]) -> str:
    spec = {"name": "one", "vc": "lab", "script": words[0], "args": words[1:]}
    reply = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode())
    assert reply.status in {201, 202}, reply
    job: str = reply.body["job"]
    return job


def _wait(cluster: Embedded, job: str) -> None:
    ended = cluster.ended(job)
    assert ended["state"] == "succeeded", (ended, cluster.log(job))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process (s), with that of its children that have ended."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    fields = text.rpartition(")")[2].split()
    return sum(int(fields[at]) for at in (11, 12)) * TICK_S


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by the bootstrap with seed 0."""
    drawn = random.Random(0)
    medians = sorted(
        statistics.median(drawn.choices(values, k=len(values))) for _ in range(SAMPLES)
    )
    return medians[SAMPLES * 25 // 1000], medians[SAMPLES * 975 // 1000]
