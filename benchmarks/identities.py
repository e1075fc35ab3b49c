"""Measure what signed identities on the bus cost: submissions, joins and revocations.

    python -m benchmarks identities [--jobs 4000] [--runs 5] [--known 0] [--joins 20]

Submissions: one tenant publishes specs to SUBMIT with `--window` in flight, on one server that has
passwords and on one that has signed identities, in turn; of `--runs` each the middle one counts.
CPU time is that of the server for one submission.

Joins and revocations: on three servers, which know `--known` nodes already. A join is from the first
word to the servers until a heartbeat of the new node has arrived elsewhere; it has the push to all
servers and the login in it. A revocation is from the first word until all three connections of a
person are cut. All processes share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks._sample import percentiles, say
from skep.wire import subjects
from skep_services.adapters.nats_access import (
    ALLOCATOR,
    PERSON_CONNECTIONS_MAX,
    node_account,
    person_account,
)
from skep_services.adapters.nats_link import Link
from tests.adapters.signed import SignedCluster
from tests.adapters.worlds import Inbox, RealCluster

SERVERS = 3
PAYLOAD = b"x" * 600
"""As long as a usual spec."""
WITHIN_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
MODES = {"passwords": RealCluster, "signed": SignedCluster}

assert PERSON_CONNECTIONS_MAX >= SERVERS


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--known", type=int, default=0)
    parser.add_argument("--joins", type=int, default=20)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure all of it."""
    figures: dict[str, Any] = asyncio.run(submissions(given))
    figures.update(asyncio.run(changes(given)))
    return figures


async def submissions(given: argparse.Namespace) -> dict[str, Any]:
    """Return submissions per second with passwords and with signed identities, and their ratio."""
    rates: dict[str, list[float]] = {name: [] for name in MODES}
    spent: dict[str, list[float]] = {name: [] for name in MODES}
    for number in range(given.runs):
        for name in MODES if number % 2 else reversed(MODES):
            with tempfile.TemporaryDirectory(prefix="skep-bench-identities-") as folder:
                cluster = MODES[name](Path(folder))
                await cluster.start()
                try:
                    rate, cpu_us = await submit(cluster, given.jobs, given.window)
                finally:
                    await cluster.close()
            rates[name].append(rate)
            spent[name].append(cpu_us)
            say(f"{name}: {rate:.0f} submissions a second, {cpu_us:.1f} us of the server each")
    middle = {name: statistics.median(values) for name, values in rates.items()}
    cpu = {name: statistics.median(values) for name, values in spent.items()}
    return {
        "submissions_per_s": {name: round(value, 1) for name, value in middle.items()},
        "submissions_ratio": round(middle["signed"] / middle["passwords"], 3),
        "server_cpu_us": {name: round(value, 1) for name, value in cpu.items()},
        "server_cpu_us_min": {name: round(min(values), 1) for name, values in spent.items()},
    }


async def submit(cluster: Any, jobs: int, window: int) -> tuple[float, float]:
    """Publish so many specs; return how many a second, and CPU time of the server for one (us)."""
    tenant = await cluster.bus("vc-ml")
    left = deque(range(jobs))

    async def worker() -> None:
        while left:
            key = left.popleft()
            await tenant.publish(subjects.submit("ml"), PAYLOAD, f"k{key}", {})

    cpu, began = cpu_s(cluster.server.pid), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(window)))
    lasted = time.perf_counter() - began
    return jobs / lasted, 1e6 * (cpu_s(cluster.server.pid) - cpu) / jobs


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


async def changes(given: argparse.Namespace) -> dict[str, Any]:
    """Return what joins and revocations take on three servers."""
    with tempfile.TemporaryDirectory(prefix="skep-bench-identities-") as folder:
        cluster = SignedCluster(Path(folder), servers=SERVERS)
        await cluster.start()
        try:
            for number in range(given.known):
                await cluster.resolver.push(node_account(f"known{number}"))
            say(f"three servers know {given.known} nodes")
            allocator = await cluster.bus(ALLOCATOR, 0)
            heard = Inbox()
            await allocator.listen(subjects.HEARTBEATS, heard.deliver)
            joins = [await join(cluster, heard, number) for number in range(given.joins)]
            cuts = [await revoke(cluster, number) for number in range(given.joins)]
        finally:
            await cluster.close()
    return {
        "push_ms": percentiles([push for push, _ in joins]),
        "join_ms": percentiles([whole for _, whole in joins]),
        "revocation_ms": percentiles(cuts),
    }


async def join(cluster: SignedCluster, heard: Inbox, number: int) -> tuple[float, float]:
    """Have a node join; return the time of its push, and until it was heard elsewhere (ms)."""
    account = node_account(f"new{number}")
    cluster.issue(account)
    began = time.perf_counter()
    await cluster.resolver.push(account)
    pushed = time.perf_counter()
    agent = await cluster.link(f"node-new{number}", number % SERVERS)
    await agent.send(subjects.heartbeat(f"new{number}"), b"alive", {})
    await heard.wait(number + 1)
    whole = time.perf_counter()
    await agent.close()
    return 1e3 * (pushed - began), 1e3 * (whole - began)


async def revoke(cluster: SignedCluster, number: int) -> float:
    """Revoke a person with a connection at each server; return when the last was cut (ms)."""
    account = person_account("ml", f"p{number}")
    cluster.issue(account)
    await cluster.resolver.push(account)
    loop = asyncio.get_running_loop()
    ends = [loop.create_future() for _ in range(SERVERS)]
    links = [
        await Link.connect(cluster.options(f"vc-ml.p{number}", server), end.set_result)
        for server, end in enumerate(ends)
    ]
    cuts = []
    for end in ends:
        end.add_done_callback(lambda _: cuts.append(time.perf_counter()))
    began = time.perf_counter()
    await cluster.resolver.revoke(account)
    await asyncio.wait_for(asyncio.gather(*ends), WITHIN_S)
    await asyncio.sleep(0)
    for link in links:
        await link.close()
    return 1e3 * (max(cuts) - began)
