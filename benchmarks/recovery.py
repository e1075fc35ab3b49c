"""How long the allocator takes to be ready again, by the length of its history.

    python -m benchmarks recovery [--facts 1000 10000 100000 1000000] [--running 16]

For each length a history is made by the real machine (jobs that are queued, bound, run and end),
written into a real, synced log with the snapshots the service itself would have kept, and then the
real service is started on it, with the snapshots and again without them. The advisor, which has no
log of its own, is started on it too, until it has read everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._sample import say
from skep.machines.allocator import AllocatorMachine, Kept
from skep.machines.base import Record, Send
from skep.units import Instant
from skep.wire import subjects
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.commands import BindJob
from skep.wire.facts import Admitted, AllocatorFact
from skep.wire.node import Gpu, MemberExited, MemberStarted, NodeJoined, Outcome
from skep.wire.spec import JobSpec, Resources
from skep_services.adapters.nats_access import (
    ADVISOR,
    ALLOCATOR,
    BOOTSTRAP,
    OPERATOR,
    accounts,
    new_passwords,
)
from skep_services.adapters.nats_api import StreamInfo, ask
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.adapters.nats_link import LinkOptions, Silence
from skep_services.adapters.nats_server import Server
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.shell import KEEP_EVERY, KEEP_SHARE

LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
RECORD_FACTS = 300
"""Facts of one record, as under load: about half of what a record may hold."""
NOW = Instant(1_800_000_000_000_000_000)
NODE = NodeJoined(
    node="n1",
    identity="i1",
    incarnation=1,
    address="127.0.0.1",
    cpus=512,
    ports=(20000, 29999),
    gpus=tuple(Gpu(index=i, type="cpu") for i in range(512)),
    memory=1 << 40,
)
SPEC = JobSpec(name="train", vc="ml", command=("/bin/true",), resources=Resources())


def history(machine: AllocatorMachine, running: int) -> Iterator[Any]:
    """Yield the facts of jobs that come and go without end, `running` of them at any time."""
    yield from _facts(machine, SetVcs(vcs={"ml": VirtualCluster(gpus=512)}))
    yield from _facts(machine, NODE)
    job = 0
    while True:
        job += 1
        admitted = Admitted(job=f"j{job}", spec=SPEC, submitted_at=NOW, trace=_trace(job))
        effects = machine.decide(Facts(service="admission", at=NOW, facts=(admitted,)), NOW)
        yield from (effect.fact for effect in effects if isinstance(effect, Record))
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        for bind in (each for each in sent if isinstance(each, BindJob)):
            yield from _facts(
                machine, MemberStarted(node="n1", identity="i1", job=bind.job, attempt=1, at=NOW)
            )
        if job > running:
            done = f"j{job - running}"
            ended = MemberExited(
                node="n1", identity="i1", job=done, attempt=1, at=NOW, outcome=Outcome.SUCCEEDED
            )
            yield from _facts(machine, ended)


def _facts(machine: AllocatorMachine, event: Any) -> Iterator[Any]:
    effects = machine.decide(event, NOW)
    return (effect.fact for effect in effects if isinstance(effect, Record))


def _trace(job: int) -> str:
    return f"00-{job:032x}-{job:016x}-01"


class Bench:
    """A server with Skep's streams and users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passwords = new_passwords((), ("ml",))
        self.server = Server(folder / "nats", accounts(self.passwords, (), ("ml",)))

    async def start(self) -> None:
        """Start it, and create the streams."""
        await self.server.start()
        await self.server.wait_healthy(BOOTSTRAP)
        bus = await self.bus(BOOTSTRAP)
        await bootstrap_streams(bus, self.folder / "streams.json")
        await bus.close()

    async def bus(self, identity: str) -> NatsBus:
        """Connect as somebody."""
        options = LinkOptions(
            servers=(self.server.url,), identity=identity, password=self.passwords[identity]
        )
        return await NatsBus.connect(options, _fail)

    async def write(self, facts: int, running: int) -> dict[str, Any]:
        """Write a history of this many facts, with snapshots when the service would keep one."""
        bus = await self.bus(ALLOCATOR)
        log = NatsFactLog(
            bus,
            stream=subjects.ALLOC,
            subject=subjects.ALLOC_FACTS,
            service=ALLOCATOR,
            facts=AllocatorFact,
            kept=Kept,
            end=self.server.folder / "log-end",
        )
        async for _ in log.replay():
            pass
        await log.begin_epoch("history", NOW)
        machine = AllocatorMachine()
        written = kept = entries = 0
        pending: list[Any] = []
        for fact in history(machine, running):
            pending.append(fact)
            if len(pending) < RECORD_FACTS and written + len(pending) < facts:
                continue
            await log.append(pending, {}, NOW)
            written, pending = written + len(pending), []
            if written - kept >= max(KEEP_EVERY, KEEP_SHARE * entries):
                snapshot = machine.snapshot()
                await log.keep(snapshot, {}, NOW, written)
                kept, entries = written, len(snapshot)
            if written >= facts:
                break
        await bus.close()
        return {
            "facts": written,
            "facts_behind_snapshot": written - kept,
            "jobs_ever": machine.state.last_queued,
            "jobs_now": len(machine.state.jobs),
        }

    async def ready_ms(self) -> float:
        """Start the service; return how long it took to recover, ms, interpreter included."""
        began = time.perf_counter()
        service = await self._start(ALLOCATOR)
        assert service.stderr is not None
        said = b""
        while b'"ready"' not in said:
            said = await service.stderr.readline()
            assert said, "the service ended before it was ready"
        took_ms = (time.perf_counter() - began) * 1000
        service.kill()
        await service.communicate()
        return round(took_ms, 1)

    async def advisor_ms(self) -> float:
        """Start the advisor, which reads the log from its beginning; return how long that took."""
        operator = await self.bus(OPERATOR)
        info = await ask(operator.link, f"STREAM.INFO.{subjects.ALLOC}", None, StreamInfo)
        began = time.perf_counter()
        service = await self._start(ADVISOR)
        reading = asyncio.ensure_future(service.communicate())
        position = 0
        while position < info.state.last_seq:
            assert not reading.done(), "the service ended before it had read all"
            told = await operator.link.call(subjects.health(ADVISOR), b"", {}, 1.0)
            if isinstance(told, Silence):
                await asyncio.sleep(0.01)  # Nobody listens before it is connected.
            else:
                position = json.loads(told.data)["positions"].get(subjects.ALLOC, 0)
        took_ms = (time.perf_counter() - began) * 1000
        service.kill()
        await reading
        await operator.close()
        return round(took_ms, 1)

    async def _start(self, identity: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "SKEP_STATE": str(self.folder / "state" / identity),
            "SKEP_NATS_URL": self.server.url,
            "SKEP_NATS_USER": identity,
            "SKEP_NATS_PASSWORD": self.passwords[identity],
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"skep_services.{identity}",
            env=environment,
            stderr=asyncio.subprocess.PIPE,
        )


def _fail(error: Exception) -> None:
    raise error


async def measure(facts: int, running: int) -> dict[str, Any]:
    """Return how long recovery takes behind this many facts."""
    with tempfile.TemporaryDirectory(prefix="skep-recovery-") as folder:
        bench = Bench(Path(folder))
        await bench.start()
        try:
            row = await bench.write(facts, running)
            row["advisor_caught_up_ms"] = [await bench.advisor_ms() for _ in range(3)]
            row["ready_ms"] = [await bench.ready_ms() for _ in range(3)]
            bus = await bench.bus(ALLOCATOR)
            await bus.link.call(f"$JS.API.STREAM.PURGE.{subjects.KEPT}", b"", {}, 5.0)
            await bus.close()
            row["ready_without_snapshots_ms"] = await bench.ready_ms()
        finally:
            await bench.server.stop()
    return row


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--facts", type=int, nargs="+", default=LENGTHS, help="history lengths")
    parser.add_argument("--running", type=int, default=16, help="jobs that run at any time")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return how long starting takes behind each length of history."""
    rows = []
    for facts in given.facts:
        say(f"recovery behind {facts:,} facts")
        rows.append(asyncio.run(measure(facts, given.running)))
    return {
        "recovery": rows,
        "aim": "flat: <= 3 s without a standby",
        "limited_by": "interpreter start; then the facts behind the snapshot",
    }
