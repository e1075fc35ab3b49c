"""A sweep on one and on two workers: processes, a Ray cluster of two nodes, jobs of a Skep cluster.

Every engine runs the same sweep on one worker and on two, alternating, and comes to the same bytes
(else `within_limit` is false). Ray's nodes have one processor each and are started once, on
loopback; so are Skep's two nodes. Figures are wall time, which other work on the machine stretches:
`load` has its load average before each round, and `cpu` how much of both processors was free for
the runs. `speed_up` compares the best rounds; `start_s` is what an engine's own start costs a
command. Without Ray (extra `ray`) its part is left out.

    python -m benchmarks engines [--rounds N] [--jobs N] [--seeds N]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._sample import extremes, say
from tests.support import ports
from tests.support.embedded import Embedded
from tests.support.ray_cluster import RayCluster

ROOT = Path(__file__).parents[1]
PATH = os.pathsep.join(map(str, (ROOT / "libs", ROOT / "services", ROOT)))


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--rounds", type=int, default=3, help="of each engine; default 3")
    parser.add_argument("--jobs", type=int, default=1500, help="of a trace; default 1500")
    parser.add_argument(
        "--seeds", type=int, default=4, help="of the sweep, two runs each; default 4"
    )


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    words = ["sim", "sweep", "--trace", f"sched2:jobs={given.jobs}", "--cluster", "2x8"]
    words += ["--seeds", str(given.seeds), "--policy", "fifo", "--policy", "sif", "--json"]
    with _engines() as engines:
        taken: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in engines}
        found, loads = [], []
        for number in range(given.rounds):
            loads.append(round(os.getloadavg()[0], 2))
            for name, (environment, on) in engines.items():
                for workers in (1, 2):
                    began = time.monotonic()
                    told = _sweep([*words, *on(workers)], environment)
                    taken[name][workers].append(time.monotonic() - began)
                    found.append(hashlib.sha256(told).hexdigest())
                    say(f"round {number + 1}: {name}, {workers}: {taken[name][workers][-1]:.1f} s")
    return {
        "runs": 2 * given.seeds,
        "load_average": loads,
        "distinct_results_count": len(set(found)),
        "engines": {
            name: {
                "one_worker_s": extremes(each[1], 2),
                "two_workers_s": extremes(each[2], 2),
                "speed_up_ratio": round(min(each[1]) / min(each[2]), 2),
            }
            for name, each in taken.items()
        },
        "within_limit": len(set(found)) == 1,
    }


def _sweep(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    command = [sys.executable, "-m", "skep_services", *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True)
    return done.stdout


@contextmanager
def _engines() -> Iterator[dict[str, Any]]:
    """Return by name the environment of a command, and its words for a number of workers."""
    here = {**os.environ, "PYTHONPATH": PATH}
    found: dict[str, Any] = {"processes": (here, lambda count: ["--processes", str(count)])}
    ray = RayCluster(ports.free_port()) if importlib.util.find_spec("ray") else None
    with tempfile.TemporaryDirectory() as folder:
        skep = Embedded(Path(folder))
        try:
            skep.up("--nodes", "2", "--gpus", "1", "--vc", "sim=2", "--port", "0")
            if ray is not None:
                on = ["--on", ray.address, "--workers"]
                found["ray"] = (ray.environment, lambda count: [*on, str(count)])
            there = {**skep.environment, "PYTHONPATH": PATH}
            found["skep"] = (there, lambda count: ["--on", "skep", "--workers", str(count)])
            yield found
        finally:
            skep.down()
            if ray is not None:
                ray.down()
