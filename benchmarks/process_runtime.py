"""Measure the process runtime: how fast runs of /bin/true start and end.

    python -m benchmarks process_runtime [--runs 1000] [--live 0] [--parallel 16]
    python -m benchmarks process_runtime --launcher [--runs 200]        as root

`one_by_one`: each run is started, its end awaited and forgotten before the next one. `parallel`:
that many at a time, as an agent with as many slots does. `--live` keeps other runs alive beside.
Times are milliseconds as the agent sees them; CPU is that of agent and runner together with their
children, per run. With `--launcher`, runs are started in turns by a runner and by a launcher, one
by one: `apart` is an account, control groups, mounts and limits more. `idle_ms` pauses before each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._sample import percentiles
from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.adapters.process_runtime import INTERPRETER, ProcessRuntime
from skep_services.launcher import launcher_process
from skep_services.ports import RunExited, RunPlan, RunStarted

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", **{f"SKEP_{n}": "x" * 20 for n in range(20)}}
LOG_BYTES_MAX = 1 << 20


class Bench:
    """One agent with its runner, in a folder of its own."""

    def __init__(
        self, folder: Path, runtime: ProcessRuntime | None = None, logs: Path | None = None
    ) -> None:
        self.logs = logs or folder / "logs"
        self.runtime = runtime or ProcessRuntime(folder / "state")
        self.start_ms: list[float] = []
        self.end_ms: list[float] = []
        self._ends: dict[str, asyncio.Future[RunExited]] = {}
        self._runs = 0

    async def take(self, end: RunExited) -> None:
        """Take the end of a run."""
        self._ends[end.token].set_result(end)

    async def run(self, *argv: str) -> asyncio.Future[RunExited]:
        """Start one run; return its end to come."""
        self._runs += 1
        token = f"r{self._runs}"
        self._ends[token] = asyncio.get_running_loop().create_future()
        plan = RunPlan(
            token=token,
            argv=argv,
            env=ENVIRONMENT,
            workdir="/",
            log_path=str(self.logs / token),
            log_bytes_max=LOG_BYTES_MAX,
            job=token,
            owner="ada",
        )
        answer = await self.runtime.start(plan)
        assert isinstance(answer, RunStarted), answer
        return self._ends[token]

    async def measured(self) -> None:
        """Run /bin/true to its end, timed."""
        began = time.perf_counter()
        ending = await self.run("/bin/true")
        self.start_ms.append((time.perf_counter() - began) * 1000)
        end = await ending
        self.end_ms.append((time.perf_counter() - began) * 1000)
        await self.runtime.forget(end.token)
        del self._ends[end.token]

    async def series(self, runs: int, parallel: int) -> dict[str, Any]:
        """Do `runs` measured runs, `parallel` at a time."""
        self.start_ms, self.end_ms = [], []
        left = iter(range(runs))

        async def slot() -> None:
            for _ in left:
                await self.measured()

        pid = await self.runtime.ping()
        began, cpu = time.perf_counter(), _cpu_seconds(pid)
        await asyncio.gather(*(slot() for _ in range(parallel)))
        took = time.perf_counter() - began
        return {
            "parallel": parallel,
            "runs_per_second": round(runs / took),
            "cpu_ms_per_run": round((_cpu_seconds(pid) - cpu) * 1000 / runs, 2),
            "started_ms": percentiles(self.start_ms),
            "ended_ms": percentiles(self.end_ms),
        }


def _cpu_seconds(runner: int) -> float:
    """Return the CPU time of this process and of the runner with its children so far."""
    words = Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(int(word) for word in words[11:15])
    own = resource.getrusage(resource.RUSAGE_SELF)
    return ticks / os.sysconf("SC_CLK_TCK") + own.ru_utime + own.ru_stime


def _resident_mib(pid: int) -> float:
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return round(int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


async def bench(runs: int, live: int, parallel: int) -> dict[str, Any]:
    """Return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        one = Bench(Path(folder))
        began = time.perf_counter()
        await one.runtime.open(one.take)
        opened_ms = (time.perf_counter() - began) * 1000
        try:
            for _ in range(live):
                await one.run("/bin/sleep", "3600")
            pid = await one.runtime.ping()
            return {
                "open_ms": round(opened_ms, 1),
                "runner_rss_mib_before": _resident_mib(pid),
                "one_by_one": await one.series(runs, 1),
                "together": await one.series(runs, parallel),
                "runner_rss_mib_after": _resident_mib(pid),
            }
        finally:
            await one.runtime.shutdown(0.0)
            await one.runtime.close()


# --- beside a launcher ----------------------------------------------------------------------------

POLICY = """
agent = "nobody"
folder = "{folder}/launcher"
socket = "{folder}/run/launcher.sock"
[accounts]
mode = "dynamic"
"""
PLACE = "/var/lib"
"""Not below /tmp, of which jobs have one of their own."""


@contextlib.contextmanager
def launched() -> Iterator[Path]:
    """Yield the folder of a launcher that serves."""
    folder = Path(tempfile.mkdtemp(prefix="skep-bench-", dir=PLACE))
    folder.chmod(0o755)
    config = folder / "launcher.toml"
    config.write_text(POLICY.format(folder=folder))
    config.chmod(0o644)
    command = [*INTERPRETER, launcher_process.__file__, "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while not (folder / "run" / "launcher.sock").exists():
                time.sleep(0.01)
            yield folder
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(folder)
            for group in Path("/sys/fs/cgroup").glob("**/skep-jobs-*"):
                with contextlib.suppress(OSError):
                    group.rmdir()


async def compare(runs: int, idle_ms: float) -> dict[str, Any]:
    """Return what a launcher adds to a start and to an end, from runs started in turns."""
    with tempfile.TemporaryDirectory() as folder, launched() as place:
        socket = place / "run" / "launcher.sock"
        ways = {
            "runner": Bench(Path(folder)),
            "launcher": Bench(
                place, LauncherRuntime(place, socket), place / "launcher" / "jobs" / "logs"
            ),
        }
        for one in ways.values():
            await one.runtime.open(one.take)
        cpu = dict.fromkeys(ways, 0.0)
        try:
            for _ in range(runs):
                for name, one in ways.items():
                    await asyncio.sleep(idle_ms / 1000)
                    pid = await one.runtime.ping()
                    before = _cpu_seconds(pid)
                    await one.measured()
                    cpu[name] += _cpu_seconds(pid) - before
        finally:
            for one in ways.values():
                await one.runtime.shutdown(0.0)
                await one.runtime.close()
        found: dict[str, Any] = {
            name: {
                "started_ms": percentiles(one.start_ms),
                "ended_ms": percentiles(one.end_ms),
                "cpu_ms_per_run": round(cpu[name] * 1000 / runs, 2),
            }
            for name, one in ways.items()
        }
        more = [
            statistics.median(ways["launcher"].start_ms)
            - statistics.median(ways["runner"].start_ms),
            statistics.median(ways["launcher"].end_ms) - statistics.median(ways["runner"].end_ms),
        ]
        return {**found, "apart_ms_p50": [round(each, 2) for each in more]}


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--runs", type=int, default=1000, help="runs per series")
    parser.add_argument("--live", type=int, default=0, help="runs that live on beside")
    parser.add_argument("--parallel", type=int, default=16, help="runs at a time")
    parser.add_argument("--launcher", action="store_true", help="compare with a launcher (root)")
    parser.add_argument("--idle-ms", type=float, default=0.0, help="pause before each (launcher)")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return how fast runs start and end."""
    if given.launcher:
        return asyncio.run(compare(given.runs, given.idle_ms))
    return asyncio.run(bench(given.runs, given.live, given.parallel))
