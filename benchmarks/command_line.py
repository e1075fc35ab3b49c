"""What people at terminals cost: lists of many jobs, completion, and followed logs.

    python -m benchmarks command_line [--jobs 10000] [--logs 500] [--seconds 20]

A cluster on this machine: one node, jobs that write a line a second, and many that wait. Measured:
how long commands take, start-up included; and the processor time of the gateway and the agent while
logs are followed, each over a connection of its own. `within_limit`: `ps` takes at most 250 ms,
completion 150 ms, and the gateway one core, each as the median or the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._sample import extremes, say
from skep.wire import subjects
from tests.support.embedded import SKEP, Embedded, until

VC = "bench"
GPUS = 20
WINDOW = 256
"""Publishes in flight."""
TALK = "i=0; while :; do i=$((i+1)); echo line $i of a job that tells how it goes; sleep 1; done"
TIMES = 9
"""Runs of each command."""
PS_MS_MAX, COMPLETION_MS_MAX, CORES_MAX = 250.0, 150.0, 1.0
COMMANDS = {
    "ps": ("ps",),
    "ps_label": ("ps", "--label", "team=t7"),
    "ps_sorted": ("ps", "--sort", "name", "--limit", "50"),
    "complete_id": ("__complete", "logs", "j77"),
    "complete_name": ("__complete", "cancel", "waits-77"),
    "complete_option": ("__complete", "ps", "--st"),
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs that wait")
    parser.add_argument("--logs", type=int, default=500, help="logs that are followed at once")
    parser.add_argument("--seconds", type=int, default=20, help="how long they are followed")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return how long commands took, and what followed logs cost."""
    with tempfile.TemporaryDirectory(prefix="skep-bench-", ignore_cleanup_errors=True) as home:
        # Installed software has its compiled files cached.
        cluster = Embedded(Path(home), {"PYTHONDONTWRITEBYTECODE": ""})
        say(f"starting a node with {GPUS} slots")
        cluster.up("--nodes", "1", "--gpus", str(GPUS), "--vc", f"{VC}={GPUS}")
        try:
            say(f"{GPUS} jobs that write, {given.jobs} that wait")
            asyncio.run(_fill(cluster, given.jobs))
            say(f"following {given.logs} logs for {given.seconds} s")
            followed = asyncio.run(_follow(cluster, given.logs, given.seconds))
            commands = {name: _timed(cluster, words) for name, words in COMMANDS.items()}
        finally:
            cluster.down()
    within = (
        commands["ps"]["median"] <= PS_MS_MAX
        and all(
            one["median"] <= COMPLETION_MS_MAX for name, one in commands.items() if "com" in name
        )
        and followed["gateway_cores"] <= CORES_MAX
    )
    return {"command_ms": commands, "followed_logs": followed, "within_limit": within}


async def _fill(cluster: Embedded, jobs: int) -> None:
    """Have jobs that write run, and others wait."""
    bus = await cluster.bus(f"vc-{VC}")
    gate = asyncio.Semaphore(WINDOW)

    async def submit(number: int) -> None:
        waits = number >= GPUS
        spec = {
            "name": f"waits-{number}" if waits else f"writes-{number}",
            "vc": VC,
            "command": ["/bin/true"] if waits else TALK,
            "labels": {"team": f"t{number % 100}"},
        }
        async with gate:
            payload = json.dumps(spec).encode()
            await bus.publish(subjects.submit(VC), payload, f"bench-{number}", {})

    for number in range(GPUS):
        await submit(number)
    await asyncio.gather(*(submit(number) for number in range(GPUS, GPUS + jobs)))
    await bus.close()

    def there() -> bool:
        counts = {one["vc"]: one for one in cluster.get("/v1/vcs")["vcs"]}[VC]
        return bool(counts["queued"] >= jobs and counts["running"] >= GPUS)

    await asyncio.to_thread(until, there, "every job is in the view", 300.0)


def _timed(cluster: Embedded, words: tuple[str, ...]) -> dict[str, Any]:
    """Return how long a command takes (ms), and how much of that is its own processor time."""
    took = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run(
            [*SKEP, *words],
            env=cluster.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        took.append(1000 * (time.perf_counter() - began))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**extremes(took), "cpu": round(1000 * spent_s / TIMES, 1)}


async def _follow(cluster: Embedded, logs: int, seconds: int) -> dict[str, Any]:
    """Follow logs, and return what that cost and what came."""
    gateway = cluster.about["gateway"]
    host, _, port = gateway["url"].rpartition("/")[2].partition(":")
    running = cluster.get("/v1/jobs?state=running&limit=100")["jobs"]
    jobs = [row["job"] for row in running]
    lines = [0] * logs

    async def follow(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        path = f"/v1/jobs/{jobs[number % len(jobs)]}/logs?follow=1&tail=1"
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n"
        writer.write(
            f"{head}Authorization: Bearer {gateway['tokens']['operator']}\r\n\r\n".encode()
        )
        try:
            status = await reader.readline()
            assert b" 200 " in status, status
            while data := await reader.read(65536):
                lines[number] += data.count(b"of a job")
        finally:
            writer.close()

    followers = [asyncio.create_task(follow(number)) for number in range(logs)]
    while min(lines) < 1:
        failed = [one for one in followers if one.done()]
        if failed:
            await failed[0]
        await asyncio.sleep(0.1)
    pids = {name: int(cluster.entry(name)["pid"]) for name in ("gateway", "node-1", "nats")}
    before, began, told = {n: _cpu_s(p) for n, p in pids.items()}, time.perf_counter(), sum(lines)
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    cores = {name: round((_cpu_s(pid) - before[name]) / took, 3) for name, pid in pids.items()}
    came = (sum(lines) - told) / took
    for one in followers:
        one.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    return {
        "logs": logs,
        "jobs": len(jobs),
        "lines_per_second": round(came, 1),
        "gateway_cores": cores["gateway"],
        "agent_cores": cores["node-1"],
        "bus_cores": cores["nats"],
        "least_lines": min(lines),
        "median_lines": statistics.median(lines),
    }


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process (seconds)."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
