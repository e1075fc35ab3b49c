"""Open pages: what 200 of them cost the gateway, and how soon each sees a change.

    python -m benchmarks pages [--jobs 10000] [--nodes 1000] [--pages 200] [--facts 100]
                               [--seconds 20]

A gateway runs in a process of its own, on a bus in its memory; it is given the records of a real
allocator, and once a second the rates of all running jobs and the heartbeats of all nodes. `facts`
a second come of jobs that are submitted, start and end. Every page reads `/v1/state/changes`; one
of them notes when it has the row of a fact. `cores` is the processor time of the gateway for a
second: with and without pages.
`frame_ms` is from the instant of a record until its row has come. `first_bytes` is the compressed
answer of `/v1/state`, and `first_ms` how long it took when nothing was ready, and again at once.
`within_limit`: all of it half a core at most, and 99 of 100 rows within 500 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import struct
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import aiohttp

from benchmarks._sample import percentiles, say
from benchmarks.cells import RACKS, SEED, Bench, Tenants, all_levels, cluster
from skep.machines.base import Effect, Record
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.bearing import RULES
from skep.wire.facts import Admitted, EpochBegan, JobBound, JobEnded, JobQueued, JobRan
from skep.wire.findings import JobRate, Rates
from skep.wire.node import MemberStarted
from skep.wire.reports import Heartbeat
from skep.wire.spec import JobSpec, Resources, SizeHint
from skep_services.adapters.clock import SystemClock
from skep_services.adapters.memory import MemoryBroker, MemoryBus
from skep_services.adapters.records import Chain
from skep_services.gateway.api import Tokens
from skep_services.gateway.server import Gateway

OPERATOR = "operator-of-the-benchmark"
CORES_MAX = 0.5
FRAME_MS_MAX = 500.0
WAITING = 4
"""One of so many jobs waits, the others run."""
FACTS_OF_A_TURN = 6
"""Facts when one job is submitted, another starts, and another ends."""
TURN_S_MIN = 0.005
HEAD = struct.Struct("<BHI")
STORE, SEND = 0, 1
TABLES = "totals,alerts,vcs,searches"
"""What a page needs to show an overview."""
STATES: dict[Any, str] = {
    JobQueued: "queued",
    JobBound: "bound",
    JobRan: "running",
    JobEnded: "succeeded",
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--facts", type=int, default=100, help="a second")
    parser.add_argument("--seconds", type=float, default=20.0)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    return asyncio.run(_measured(given))


class Feed(Bench):
    """An allocator by the clock, whose records go to a gateway."""

    def __init__(self, nodes: int, tenants: Callable[[int], Tenants] = all_levels) -> None:
        """Begin with all nodes there, of tenants by the nodes of a rack."""
        self.records: list[tuple[int, str, bytes]] = []
        self.sent_at: dict[tuple[str, str], int] = {}
        self.bound_jobs: deque[JobBound] = deque()
        self.running: deque[JobBound] = deque()
        self.facts = 0
        self.rng = random.Random(SEED)
        self._chain = Chain("records", EpochBegan)
        self._write([EpochBegan(epoch=1, owner="bench", rules=RULES)])
        per_rack = max(1, nodes // RACKS)
        super().__init__(cluster(per_rack, tenants(per_rack)))

    def clock(self) -> Instant:
        """Return the time."""
        return Instant(time.time_ns())

    def decide(self, event: Any) -> list[Effect]:
        """Decide an event now; its facts are one record."""
        self.now = self.clock()
        effects = self.machine.decide(event, self.now)
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        if facts:
            self._write(facts)
        for fact in facts:
            if isinstance(fact, JobBound):
                self.bound_jobs.append(fact)
            if (state := STATES.get(type(fact))) is not None:
                self.sent_at[fact.job, state] = time.perf_counter_ns()
        return effects

    def _write(self, facts: list[Any]) -> None:
        record, payload = self._chain.encode(facts, {}, getattr(self, "now", Instant(1)), 1)
        self._chain.advance(record, payload)
        self.records.append((STORE, subjects.ALLOC_FACTS, payload))
        self.facts += len(facts)

    def spec(self) -> tuple[JobSpec, str]:
        """Return the next job, of one GPU, and its owner."""
        spec = JobSpec(
            name=f"{self.rng.choice(('train', 'tune', 'eval'))}-{self.rng.randrange(10_000)}",
            vc=f"vc{self.rng.randrange(4)}",
            command=("true",),
            resources=Resources(gpus=1),
            labels={"project": f"p{self.rng.randrange(40)}"},
            size=SizeHint(mini_batches=1_000 * self.rng.randrange(10, 1_000)),
        )
        return spec, f"person{self.rng.randrange(100)}"

    def submit(self) -> None:
        """A person submits a job."""
        self.jobs += 1
        spec, owner = self.spec()
        fact = Admitted(job=f"j{self.jobs}", spec=spec, submitted_at=self.clock(), owner=owner)
        self.decide(codec.Facts(service="admission", at=fact.submitted_at, facts=(fact,)))

    def start(self) -> None:
        """The job that was bound first is running."""
        if self.bound_jobs:
            fact = self.bound_jobs.popleft()
            for member in fact.members:
                now = self.clock()
                self.decide(
                    MemberStarted(
                        node=member.node,
                        identity=member.identity,
                        job=fact.job,
                        attempt=fact.attempt,
                        at=now,
                    )
                )
            self.running.append(fact)

    def end(self) -> None:
        """The job that has run for the longest ends."""
        if self.running:
            for word in self.exits(self.running.popleft()):
                self.decide(word)

    def rates(self) -> None:
        """The introspector tells how fast all of them run."""
        told = tuple(
            JobRate(
                job=fact.job,
                attempt=fact.attempt,
                steps=int(time.monotonic() * 10),
                rate_milli=9_000 + self.rng.randrange(2_000),
                utilisation=900 + self.rng.randrange(100),
            )
            for fact in self.running
        )
        message = Rates(at=Instant(time.time_ns()), jobs=told)
        self.records.append((SEND, subjects.finding("rates"), codec.encode(message)))

    def heartbeats(self) -> None:
        """Every node lives."""
        now = Instant(time.time_ns())
        for node in self.machine.state.nodes:
            message = Heartbeat(node=node, identity=f"id-{node}", at=now, incarnation=1)
            self.records.append((SEND, subjects.heartbeat(node), codec.encode(message)))

    def taken(self) -> Iterator[bytes]:
        """Yield what is to be sent to the gateway."""
        records, self.records = self.records, []
        for kind, subject, payload in records:
            name = subject.encode()
            yield HEAD.pack(kind, len(name), len(payload)) + name + payload


class Page:
    """One reader of the stream; `notes`: it looks into the frames."""

    def __init__(self, feed: Feed, *, notes: bool) -> None:
        """Read nothing yet."""
        self._feed, self._notes = feed, notes
        self.bytes = self.frames = 0
        self.frame_ms: list[float] = []

    async def read(self, port: int) -> None:
        """Read until cancelled, compressed as browsers do."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(
            b"GET /v1/state/changes HTTP/1.1\r\nHost: bench\r\nAccept-Encoding: gzip\r\n"
            b"Authorization: Bearer %b\r\n\r\n" % OPERATOR.encode()
        )
        if self._notes:
            await self._look(reader)
        while data := await reader.read(2**16):
            self.bytes += len(data)

    async def _look(self, reader: asyncio.StreamReader) -> None:
        """Look into every frame, chunk by chunk."""
        head = await reader.readuntil(b"\r\n\r\n")
        packed, rest = b"Content-Encoding: gzip" in head, b""
        plain = zlib.decompressobj(wbits=31)
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size)
            await reader.readexactly(2)
            self.bytes += size
            *lines, rest = (rest + (plain.decompress(data) if packed else data)).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    self._note(json.loads(line[6:]))

    def _note(self, data: Any) -> None:
        now, sent_at = time.perf_counter_ns(), self._feed.sent_at
        self.frames += 1
        for row in data["tables"].get("jobs", {"rows": []})["rows"]:
            at = sent_at.pop((row[0], row[4]), None)
            if at is not None:
                self.frame_ms.append((now - at) / 1e6)


async def _measured(given: argparse.Namespace) -> dict[str, Any]:
    say("filling ...")
    feed = Feed(given.nodes)
    for _ in range(given.jobs):
        feed.submit()
    gpus = sum(len(node.joined.gpus) for node in feed.machine.state.nodes.values())
    while len(feed.running) < min(gpus, given.jobs * (WAITING - 1) // WAITING):
        if not feed.bound_jobs:
            break
        feed.start()
    say(f"{len(feed.machine.state.jobs)} jobs, {len(feed.running)} of them run")
    with tempfile.TemporaryDirectory(prefix="skep-pages-") as folder:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from benchmarks.pages import gateway; gateway()",
            folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        try:
            return await _with_gateway(child, feed, given)
        finally:
            child.kill()
            await child.wait()


async def _with_gateway(
    child: asyncio.subprocess.Process, feed: Feed, given: argparse.Namespace
) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    count = sum(kind == STORE for kind, _, _ in feed.records)
    child.stdin.write(b"".join(feed.taken()))
    await child.stdin.drain()
    port = int(await child.stdout.readline())
    while int(await child.stdout.readline()) < count:
        pass
    first = await _first(port)
    feeding = asyncio.create_task(go_on(child.stdin, feed, given.facts))
    say("without pages ...")
    await asyncio.sleep(2.0)
    without = await _cores(child.pid, given.seconds / 2)
    say(f"{given.pages} pages ...")
    pages = [Page(feed, notes=number == 0) for number in range(given.pages)]
    readers = [asyncio.create_task(page.read(port)) for page in pages]
    await asyncio.sleep(3.0)
    feed.sent_at.clear()
    pages[0].frame_ms.clear()
    facts, had, began = feed.facts, sum(page.bytes for page in pages), time.monotonic()
    cores = await _cores(child.pid, given.seconds)
    took_s = time.monotonic() - began
    sent = sum(page.bytes for page in pages) - had
    told = percentiles(pages[0].frame_ms, 1)
    for task in (feeding, *readers):
        task.cancel()
    await asyncio.gather(feeding, *readers, return_exceptions=True)
    return {
        "jobs": len(feed.machine.state.jobs),
        "nodes": len(feed.machine.state.nodes),
        "pages_count": given.pages,
        "facts_per_second": round((feed.facts - facts) / took_s, 1),
        "cores": {"all": round(cores, 3), "without_pages": round(without, 3)},
        "frame_ms": told,
        "page_bytes_per_second": round(sent / took_s / given.pages),
        **first,
        "gateway_mb": round(_memory(child.pid) / 1e6, 1),
        "within_limit": cores <= CORES_MAX and told["p99"] <= FRAME_MS_MAX,
    }


async def _first(port: int) -> dict[str, Any]:
    """Return what first answers weigh, and how long they take."""
    headers = {"Authorization": f"Bearer {OPERATOR}", "Accept-Encoding": "gzip"}
    sizes: dict[str, int] = {}
    times: dict[str, float] = {}
    async with aiohttp.ClientSession(headers=headers, auto_decompress=False) as session:
        for name, wanted in (("cold", ""), ("again", ""), ("jobs", "jobs"), ("overview", TABLES)):
            began = time.perf_counter()
            path = f"http://127.0.0.1:{port}/v1/state?tables={wanted}"
            async with session.get(path) as answer:
                assert answer.status == 200, await answer.text()
                body = await answer.read()
            times[name] = round((time.perf_counter() - began) * 1000, 1)
            sizes[name] = len(body)
    del sizes["again"]
    sizes["all"] = sizes.pop("cold")
    return {"first_bytes": sizes, "first_ms": times}


async def go_on(pipe: asyncio.StreamWriter, feed: Feed, facts: int) -> None:
    """Have so many facts a second happen, and rates once a second."""
    turn_s = FACTS_OF_A_TURN / facts
    at = rates_at = time.monotonic()
    while True:
        feed.submit()
        feed.start()
        feed.end()
        if time.monotonic() >= rates_at:
            rates_at = max(rates_at + 1.0, time.monotonic())
            feed.rates()
            feed.heartbeats()
        pipe.write(b"".join(feed.taken()))
        await pipe.drain()
        # What cannot be kept up with is left out: a browser that is driven here needs its turns.
        at = max(at + turn_s, time.monotonic())
        await asyncio.sleep(max(TURN_S_MIN, at - time.monotonic()))


async def _cores(pid: int, seconds: float) -> float:
    """Return how many cores a process uses over a time."""
    before, began = _cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- the gateway's process -----------------------------------------------------------------------


class Untraced:
    """A tracer that keeps nothing."""

    def root(self, *_: Any) -> None:
        """Keep no root."""

    def span(self, *_: Any) -> None:
        """Keep no span."""

    async def flush(self) -> None:
        """Have nothing to send."""


def gateway() -> None:
    """Serve a gateway that is told everything on standard input."""
    asyncio.run(_gateway(Path(sys.argv[1])))


async def _gateway(folder: Path) -> None:
    clock = SystemClock()
    lost: list[Exception] = []
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What is logged is no figure.
    broker = MemoryBroker(clock)
    for stream, patterns in subjects.STREAMS.items():
        broker.add_stream(stream, patterns)
    broker.add_stream(subjects.SECRETS, subjects.SECRET_SUBJECTS)
    broker.add_stream(subjects.CODE, subjects.CODE_SUBJECTS)
    bus, other = (MemoryBus(broker, name, lost.append) for name in ("gateway", "others"))
    served = Gateway(
        bus, clock, Untraced(), Tokens({OPERATOR: "operator"}), folder / "view.sqlite", "gateway"
    )
    port = await served.open("127.0.0.1", 0)
    serving = asyncio.create_task(served.serve())
    print(port, file=said, flush=True)
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    counting, number = asyncio.create_task(_count(served, said)), 0
    while not lost:
        try:
            kind, name, length = HEAD.unpack(await reader.readexactly(HEAD.size))
        except asyncio.IncompleteReadError:
            break
        subject = (await reader.readexactly(name)).decode()
        payload = await reader.readexactly(length)
        number += 1
        if kind == STORE:
            broker.store(subject, payload, {subjects.KEY_HEADER: f"k{number}"})
        else:
            await other.send(subject, payload, {})
        if number % 50 == 0:
            await asyncio.sleep(0)
    counting.cancel()
    serving.cancel()


async def _count(served: Gateway, said: TextIO) -> None:
    """Say how many records are taken over, again and again."""
    while True:
        print(served.indexer.positions[subjects.ALLOC], file=said, flush=True)
        await asyncio.sleep(0.5)
