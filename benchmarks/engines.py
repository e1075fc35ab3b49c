"""A sweep on one and on two workers: processes, a Ray cluster of two nodes, jobs of a Skep cluster.

Every engine runs the same sweep on one worker and on two, alternating, and comes to the same bytes
(else `within_limit` is false). Ray's nodes have one processor each and are started once, on
loopback; so are Skep's two nodes, with one GPU each. `sweep` is the wall time of the whole command,
which other work on the machine stretches: `load_average` has the load before each round. `waiting`
is the wall time of tasks that only wait, so it shows what the engine itself allows on a machine
that is busy; `floor_s` is the time that they wait. `speed_up_ratio` compares the best rounds.
Without Ray (extra `ray`) its part is left out.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._sample import extremes, say
from skep_services.cli.client import Client, Target
from skep_services.cli.on import GatewayJobs
from skep_services.engines.deal import Ear, Engine
from skep_services.engines.processes import Processes
from skep_services.engines.ray_actors import OnRay
from skep_services.engines.skep_jobs import OnSkep
from skep_services.engines.stop import Stop
from skep_services.engines.task import Task, Watch
from tests.support import ports
from tests.support.embedded import Embedded
from tests.support.ray_cluster import RayCluster

WAITS = 12
WAIT_S = 1.0
Taken = dict[int, list[float]]
"""Seconds of each round by the number of workers."""
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
    tasks = [Task(f"wait {n}", f"{__name__}:wait", (b"%d" % n,)) for n in range(WAITS)]
    os.environ["PYTHONPATH"] = PATH  # Jobs get it from this process.
    with _engines() as engines:
        sweeps: dict[str, Taken] = {name: {1: [], 2: []} for name in engines}
        waits: dict[str, Taken] = {name: {1: [], 2: []} for name in engines}
        found, loads = [], []
        for number in range(given.rounds):
            loads.append(round(os.getloadavg()[0], 2))
            for name, one in engines.items():
                for workers in (1, 2):
                    began = time.monotonic()
                    told = _sweep([*words, *one.words(workers)], one.environment)
                    sweeps[name][workers].append(time.monotonic() - began)
                    found.append(hashlib.sha256(told).hexdigest())
                    waits[name][workers].append(_wait(one.engine(workers), tasks))
                    took = f"{sweeps[name][workers][-1]:.1f} and {waits[name][workers][-1]:.1f} s"
                    say(f"round {number + 1}: {name}, {workers}: {took}")
    return {
        "runs": 2 * given.seeds,
        "load_average": loads,
        "distinct_results_count": len(set(found)),
        "waiting": {
            "tasks_count": WAITS,
            "floor_s": {"one": WAITS * WAIT_S, "two": WAITS * WAIT_S / 2},
            **{name: _figures(each) for name, each in waits.items()},
        },
        "sweep": {name: _figures(each) for name, each in sweeps.items()},
        "within_limit": len(set(found)) == 1,
    }


def _figures(taken: Taken) -> dict[str, Any]:
    return {
        "one_worker_s": extremes(taken[1], 2),
        "two_workers_s": extremes(taken[2], 2),
        "speed_up_ratio": round(min(taken[1]) / min(taken[2]), 2),
    }


def _sweep(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    command = [sys.executable, "-m", "skep_services", *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True)
    return done.stdout


def wait(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """Wait, and return the input: a task of an engine."""
    time.sleep(WAIT_S)
    return inputs[0]


def _wait(engine: Engine, tasks: Sequence[Task]) -> float:
    """Return how long the tasks take on an engine, with its start and end (seconds)."""
    found: dict[int, bytes] = {}
    ear = Ear(lambda place, data: found.update({place: data}), lambda _: None, lambda _: None)
    began = time.monotonic()
    engine.run(tasks, ear, Stop())
    taken = time.monotonic() - began
    assert found == {place: task.inputs[0] for place, task in enumerate(tasks)}
    return taken


class _Engine(NamedTuple):
    environment: Mapping[str, str]
    words: Callable[[int], list[str]]
    engine: Callable[[int], Engine]


@contextmanager
def _engines() -> Iterator[dict[str, _Engine]]:
    """Return by name what a command gets for a number of workers, and the engine itself."""
    here = dict(os.environ)
    found = {"processes": _Engine(here, lambda n: ["--processes", str(n)], Processes)}
    ray = RayCluster(ports.free_port()) if importlib.util.find_spec("ray") else None
    with tempfile.TemporaryDirectory() as folder:
        skep = Embedded(Path(folder))
        try:
            skep.up("--nodes", "2", "--gpus", "1", "--vc", "sim=2", "--port", "0")
            if ray is not None:
                address, outside = ray.address, ray.client
                found["ray"] = _Engine(
                    ray.environment,
                    lambda n: ["--on", address, "--workers", str(n)],
                    lambda n: OnRay(outside, n),
                )
            gateway = skep.about["gateway"]
            client = Client(Target(gateway["url"], gateway["tokens"]["operator"], folder))
            found["skep"] = _Engine(
                {**skep.environment, "PYTHONPATH": PATH},
                lambda n: ["--on", "skep", "--workers", str(n)],
                lambda n: OnSkep(GatewayJobs(client, "sim"), "127.0.0.1", workers=n),
            )
            yield found
        finally:
            skep.down()
            if ray is not None:
                ray.down()
