"""Measure latency, throughput, recovery and memory of a cluster on this machine.

A cluster of 16 agents with 8 slots each runs jobs that are `/bin/true`. "Accepted" is JetStream's
acknowledgement, which follows a synced write; "started" is the exec of the job's process. Each
figure names what limits it.

    python -m benchmarks overview [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._sample import percentiles, say
from benchmarks.introspector import measure as measure_introspector
from benchmarks.simulator import measure as measure_simulation
from skep.wire import codec, subjects
from skep.wire.facts import EpochBegan, JobBound, JobEnded, JobQueued, JobRan
from skep_services.ports import Delivery
from tests.support.embedded import Embedded

NODES, GPUS = 16, 8
VC = "bench"
WINDOW = 256
"""Publishes in flight: the window at which a synced stream reaches its full rate."""
NEVER_S = 300.0
SLEEP = ("/bin/sleep", "3600")

Figures = dict[str, Any]


class Cluster:
    """An embedded cluster in a temporary home, and what its fact log said so far."""

    def __init__(self, home: Path) -> None:
        """Prepare a cluster in `home`."""
        # Installed software has its compiled files cached; a variable that forbids it must not
        # make every start-up figure a compiler's.
        self.embedded = Embedded(home, {"PYTHONDONTWRITEBYTECODE": ""})
        self.ended: dict[str, int] = {}
        self.ran: dict[str, int] = {}
        self.queued: dict[str, int] = {}
        self.bound_at: list[int] = []
        self.epochs: list[int] = []
        self.facts = 0
        self._news = asyncio.Event()
        self._number = 0

    async def up(self) -> None:
        """Start it and connect to its bus."""
        options = ("--nodes", str(NODES), "--gpus", str(GPUS), "--vc", f"{VC}={NODES * GPUS}")
        await asyncio.to_thread(self.embedded.up, *options)
        self.tenant = await self.embedded.bus(f"vc-{VC}")
        self.operator = await self.embedded.bus("operator")
        await self.operator.follow(subjects.ALLOC, 0, self._take)

    async def down(self) -> None:
        """Disconnect and stop it."""
        for bus in (self.tenant, self.operator):
            await bus.close()
        await asyncio.to_thread(self.embedded.down)

    async def submit(self, command: Sequence[str] = ("/bin/true",)) -> tuple[str, int, int]:
        """Publish one job; return its id, when it was sent and when it was acknowledged (ns)."""
        self._number += 1
        spec = {"name": "bench", "vc": VC, "command": list(command)}
        sent = time.time_ns()
        sequence = await self.tenant.publish(
            subjects.submit(VC), json.dumps(spec).encode(), f"bench-{self._number}", {}
        )
        return f"j{sequence}", sent, time.time_ns()

    async def cancel(self, job: str) -> None:
        """Ask for a job's end."""
        payload = json.dumps({"job": job}).encode()
        await self.tenant.publish(subjects.cancel(VC), payload, f"cancel-{job}", {})

    async def submit_many(self, count: int, command: Sequence[str] = ("/bin/true",)) -> float:
        """Publish `count` jobs with WINDOW in flight; return acknowledgements per second."""
        gate = asyncio.Semaphore(WINDOW)

        async def one() -> None:
            async with gate:
                await self.submit(command)

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(count)))
        return count / (time.perf_counter() - began)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is true of what the fact log said."""
        async with asyncio.timeout(NEVER_S):
            while not reached():
                self._news.clear()
                await self._news.wait()

    async def listed(self, jobs: int) -> None:
        """Wait until the gateway's view holds that many waiting jobs."""
        async with asyncio.timeout(NEVER_S):
            while await asyncio.to_thread(self._queued) < jobs:
                pass  # Each question takes the time of one listing.

    def _queued(self) -> int:
        """Return how many jobs `skep ps` shows as waiting."""
        total: int = json.loads(self.embedded.skep("vc", "ls", "--json"))["vcs"][0]["queued"]
        return total

    async def health(self, identity: str) -> Figures:
        """Return what a process says of itself."""
        answer = await self.operator.request(subjects.health(identity), b"", {}, 5.0)
        assert answer is not None, f"{identity} does not answer"
        decoded: Figures = json.loads(answer.payload)
        return decoded

    async def _take(self, delivery: Delivery) -> None:
        record = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        self.facts += len(record.facts)
        for fact in record.facts:
            match fact:
                case JobQueued():
                    self.queued[fact.job] = delivery.at
                case EpochBegan():
                    self.epochs.append(delivery.at)
                case JobRan():
                    self.ran[fact.job] = fact.at
                case JobEnded():
                    self.ended[fact.job] = fact.at
                case JobBound():
                    self.bound_at.append(delivery.at)
                case _:
                    pass
        self._news.set()


async def latency(cluster: Cluster, count: int) -> Figures:
    """Measure one submission after the other on an idle cluster."""
    acknowledged, started = [], []
    for _ in range(count):
        job, sent, stored = await cluster.submit()
        await cluster.until(lambda job=job: job in cluster.ended)  # type: ignore[misc]
        acknowledged.append((stored - sent) / 1e6)
        started.append((cluster.ran[job] - sent) / 1e6)
    return {
        "submit_to_acknowledged": {
            "unit": "ms",
            **percentiles(acknowledged),
            "aim": "p99 <= 10 ms",
            "limited_by": "one synced write of the server",
        },
        "submit_to_started": {
            "unit": "ms",
            **percentiles(started),
            "aim": "p50 <= 20 ms, p99 <= 80 ms",
            "limited_by": "four synced writes in a row (submission, admission's record, "
            "allocator's record, agent's journal) and one exec",
        },
    }


async def throughput(cluster: Cluster, count: int) -> Figures:
    """Measure submissions accepted and trivial jobs completed per second, from an empty queue."""
    before = len(cluster.ended)
    began = time.perf_counter()
    rate = await cluster.submit_many(count)
    await cluster.until(lambda: len(cluster.ended) - before >= count)
    took = time.perf_counter() - began
    return {
        "accepted_per_second": {
            "value": round(rate),
            "n": count,
            "aim": ">= 2500",
            "limited_by": "CPU: every slot runs jobs, and what runs and ends writes too",
        },
        "completed_per_second": {
            "value": round(count / took, 1),
            "n": count,
            "aim": ">= 160",
            "limited_by": "CPU: agents, runners and services share the cores with the jobs",
        },
    }


async def takeover(cluster: Cluster, known: int) -> Figures:
    """SIGKILL the allocator while one slot works through a queue; measure until it binds again."""
    await cluster.submit_many(known)
    await cluster.until(lambda: len(cluster.queued) - len(cluster.ended) >= known // 2)
    waiting = len(cluster.queued) - len(cluster.ended)
    killed = time.time_ns()
    os.kill(cluster.embedded.entry("allocator")["pid"], signal.SIGKILL)
    # What the killed process had under way may still be stored, before the next epoch.
    await cluster.until(lambda: cluster.bound_at[-1] > cluster.epochs[-1] > killed)
    first = next(at for at in cluster.bound_at if at > cluster.epochs[-1])
    return {
        "allocator_killed_to_scheduling": {
            "value_ms": round((first - killed) / 1e6, 1),
            "jobs_known": waiting,
            "facts_replayed": cluster.facts,
            "aim": "<= 1500 ms with 5,000 jobs known",
            "limited_by": "starting a Python process and replaying its log",
        }
    }


async def with_backlog(cluster: Cluster, pending: int, count: int) -> Figures:
    """Measure completion, `skep ps` and decisions while `pending` jobs wait."""
    before = cpu_seconds(cluster)
    rate = await cluster.submit_many(pending + count)
    await cluster.listed(pending + count)
    spent = {name: cpu - before[name] for name, cpu in cpu_seconds(cluster).items()}
    listing = [await asyncio.to_thread(_timed, cluster, "ps") for _ in range(9)]
    memory = resident(cluster)
    return {
        "accepted_per_second_busy": {
            "value": round(rate),
            "n": pending + count,
            "aim": ">= 2500",
            "limited_by": "the server's synced writes, one after the other",
            "cpu_us_each": {
                name: round(cpu * 1e6 / (pending + count)) for name, cpu in spent.items()
            },
        },
        "ps_ms": {
            "p50_ms": round(statistics.median(listing), 1),
            "max_ms": round(max(listing), 1),
            "rows": pending + count,
            "aim": "<= 250 with 10,000 pending, start-up included",
            "limited_by": "interpreter start, and rendering the rows",
        },
        "resident_mib_backlog": memory,
    }


async def drain(cluster: Cluster, blockers: Sequence[str], pending: int, count: int) -> Figures:
    """Free every slot and measure completions while at least `pending` jobs wait."""
    before = len(cluster.ended)
    for job in blockers:
        await cluster.cancel(job)
    await cluster.until(lambda: len(cluster.ended) - before >= len(blockers))
    began, before = time.perf_counter(), len(cluster.ended)
    await cluster.until(lambda: len(cluster.ended) - before >= count)
    took = time.perf_counter() - began
    decisions = (await cluster.health("allocator"))["decide_us"]
    return {
        "completed_per_second_backlog": {
            "value": round(count / took, 1),
            "n": count,
            "pending": len(cluster.queued) - len(cluster.ended),
            "aim": f">= 120 with {pending} pending",
            "limited_by": "CPU, as without backlog: the queue's head is at hand",
        },
        "allocator_decision": {
            **decisions,
            "unit": "us per event",
            "aim": "p99 <= 20 ms",
            "limited_by": "one placement search over the nodes",
        },
    }


def _timed(cluster: Cluster, *words: str) -> float:
    began = time.perf_counter()
    cluster.embedded.skep(*words)
    return (time.perf_counter() - began) * 1000


def cpu_seconds(cluster: Cluster) -> dict[str, float]:
    """Return the CPU time of each process so far, in seconds; the agents' and the client's too.

    Unlike a rate, CPU time per submission hardly depends on what else the machine does.
    """
    own = os.times()
    found = {"client": own.user + own.system}
    for name, known in cluster.embedded.pids().items():
        pid = known["pid"]
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        label = "agents" if name.startswith("node-") else name
        ticks = int(words[11]) + int(words[12])
        found[label] = found.get(label, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def resident(cluster: Cluster) -> Figures:
    """Return each process's resident memory in MiB; of the agents, the largest."""
    found: Figures = {}
    for name, known in cluster.embedded.pids().items():
        pid = known["pid"]
        text = Path(f"/proc/{pid}/status").read_text()
        mib = int(text.split("VmRSS:")[1].split()[0]) / 1024
        label = "agent" if name.startswith("node-") else name
        found[label] = round(max(mib, found.get(label, 0.0)), 1)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs")


def run(given: argparse.Namespace) -> Figures:
    """Return every figure, and what limits it."""
    return asyncio.run(measure(given.quick))


async def measure(quick: bool) -> Figures:
    """Run every measurement."""
    scale = 10 if quick else 1
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="skep-bench-", ignore_cleanup_errors=True) as home:
        cluster = Cluster(Path(home))
        say(f"starting {NODES} agents with {GPUS} slots each")
        await cluster.up()
        try:
            figures["resident_mib_idle"] = resident(cluster)
            say("latency on an idle cluster")
            figures |= await latency(cluster, 300 // scale)
            say("throughput")
            figures |= await throughput(cluster, 3000 // scale)
            say("every slot but one held; killing the allocator with 5,000 jobs known")
            blockers = [(await cluster.submit(SLEEP))[0] for _ in range(NODES * GPUS - 1)]
            await cluster.until(lambda: all(job in cluster.ran for job in blockers))
            figures |= await takeover(cluster, 5_000 // scale)
            say("filling the queue to more than 10,000")
            last, _, _ = await cluster.submit(SLEEP)
            await cluster.until(lambda: last in cluster.ran)
            figures |= await with_backlog(cluster, 10_000 // scale, 2_000 // scale)
            say("freeing every slot")
            figures |= await drain(cluster, [*blockers, last], 10_000 // scale, 2_000 // scale)
        finally:
            await cluster.down()
    say("introspector")
    figures["introspector"] = {
        **measure_introspector(8_000, 12),
        "aim": ">= 20000 reports/s and core",
    }
    say("simulation")
    figures["simulation"] = {
        **measure_simulation(quick=True),
        "aim": ">= 10000 events/s of processor time; 65,536 GPUs within 3 times of 512",
    }
    return figures
