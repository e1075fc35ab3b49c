"""The socket of the jobs, both ways: who may speak for a rank, and what it hears."""

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.machines.agent import RankSaid, RankStats
from skep.units import Instant, seconds
from skep.wire import talk
from skep_services.adapters.memory import ManualClock
from skep_services.agent import jobs as module
from skep_services.agent import proc
from skep_services.agent.jobs import JobSocket
from skep_services.agent.rank_access import RankAccess
from skep_services.ports import RunStarted

DEADLINE_S = 60.0
WHO: dict[str, Any] = {"job": "j7", "attempt": 2, "rank": 1}
ACCESS = RankAccess(b"k" * 32)
ORDER = talk.SuspendRank(**WHO, order=9, step=5)


def frame(**message: Any) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def hello(**more: Any) -> bytes:
    return frame(**{"type": "hello", **WHO, "pid": 1, "token": ACCESS.secret("j7.2.1"), **more})


class Job:
    """One connection of a job."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, kind: str, **fields: Any) -> None:
        self.writer.write(frame(type=kind, **WHO, **fields))

    async def hears(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            told: dict[str, Any] = json.loads(await self.reader.readexactly(length))
        return told

    async def is_hung_up_on(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), DEADLINE_S) == b""

    async def is_refused(self) -> str:
        """Return why; raises unless the connection ends then."""
        told = await self.hears()
        assert told["type"] == "not-heard", told
        assert await self.is_hung_up_on()
        return str(told["why"])


class Node:
    """A socket, its jobs, and what came of them. This very process is the rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: asyncio.Queue[RankSaid | RankStats] = asyncio.Queue()
        self.access = RankAccess(b"k" * 32)
        ticks = proc.start_ticks(os.getpid())
        assert ticks is not None
        self.access.listed([RunStarted("j7.2.1", os.getpid(), ticks, Instant(0))])
        self.clock = ManualClock()
        self.socket = JobSocket(folder, self.clock, self.events.put, self.access)
        self.jobs: list[Job] = []

    async def job(self, first: bytes = b"") -> Job:
        path = str(self.folder / "jobs.sock")
        self.jobs.append(Job(*await asyncio.open_unix_connection(path)))
        self.jobs[-1].writer.write(first)
        return self.jobs[-1]

    async def said(self) -> Any:
        event = await asyncio.wait_for(self.events.get(), DEADLINE_S)
        return event.message if isinstance(event, RankSaid) else event.progress


@pytest_asyncio.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(module, "REFUSED_HELD_S", 0.0)
    one = Node(tmp_path)
    await one.socket.open()
    yield one
    for job in one.jobs:
        job.writer.close()
    await one.socket.close()


@pytest.mark.asyncio
async def test_a_rank_is_told_and_answers(node: Node) -> None:
    assert not node.socket.tell(ORDER), "nobody is there"
    job = await node.job(hello())
    assert await node.said() == talk.Hello(**WHO, pid=1), "the secret goes no further"
    assert node.socket.tell(ORDER)
    assert await job.hears() == {"type": "suspend", **WHO, "order": 9, "step": 5}
    job.say("suspended", order=9, step=5)
    assert await node.said() == talk.Suspended(**WHO, order=9, step=5)
    job.say("a word of a later version", order=9)
    job.say("released", order=9, moved=3, later=1)
    assert await node.said() == talk.Released(**WHO, order=9, moved=3)


@pytest.mark.asyncio
async def test_what_was_said_before_the_end_is_heard_before_it(node: Node) -> None:
    job = await node.job(hello())
    assert await node.said() == talk.Hello(**WHO, pid=1)
    assert node.socket.is_heard("j7.2.1")
    # All at once, as a process does that ends: the socket has read nothing of it yet.
    for step in (1, 2, 3):
        job.say("metrics", step=step, values={"loss": step / 4})
    job.say("bye", steps=3)
    job.writer.close()
    await node.socket.heard_out("j7.2.1")
    last = [await node.said() for _ in range(4)][-1]
    assert (last.steps, last.values, last.values_step) == (3, {"loss": 0.75}, 3)
    assert not node.socket.is_heard("j7.2.1")


@pytest.mark.asyncio
async def test_a_connection_that_stays_holds_the_end_for_a_while_only(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARD_OUT_S", 0.0)
    await node.job(hello())
    await node.said()
    await node.socket.heard_out("j7.2.1")
    assert node.socket.is_heard("j7.2.1")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "first, why",
    [
        (hello(token="j7.2.1"), "is not the secret of run j7.2.1"),
        (hello(token=""), "is not the secret"),
        (hello(rank=0), "is not the secret of run j7.2.0"),
        (hello(rank=0, token=ACCESS.secret("j7.2.0")), "does not live on this node"),
        (frame(type="can", **WHO, can=["suspend"]), "did not say hello first"),
    ],
)
async def test_a_rank_needs_its_secret(node: Node, first: bytes, why: str) -> None:
    job = await node.job(first)
    assert why in await job.is_refused()
    assert not node.socket.tell(ORDER)
    assert node.events.empty()


@pytest.mark.asyncio
async def test_a_connection_speaks_for_one_rank(node: Node) -> None:
    job = await node.job(hello())
    await node.said()
    job.writer.write(frame(type="suspended", **{**WHO, "rank": 0}, order=1))
    assert "spoke for rank 0 of j7" in await job.is_refused()
    assert node.events.empty()


@pytest.mark.asyncio
async def test_who_returns_is_spoken_to_anew(node: Node) -> None:
    first = await node.job(hello())
    await node.said()
    second = await node.job(hello())
    await node.said()
    assert node.socket.tell(ORDER)
    assert (await second.hears())["order"] == 9
    first.say("suspended", order=9)
    second.say("past", order=9, step=7)
    assert isinstance(await node.said(), talk.Past), "the lost connection is not heard"


@pytest.mark.asyncio
async def test_another_process_of_the_run_waits_its_turn(node: Node) -> None:
    first = await node.job(hello())
    await node.said()
    second = await node.job(hello(pid=2))
    second.say("can", tier="observed", can=["suspend"])
    second.say("suspended", order=1)
    first.say("can", tier="observed", can=[])
    assert (await node.said()).can == ()
    first.writer.close()
    assert (await node.said()).pid == 2
    assert (await node.said()).can == ("suspend",)
    assert node.socket.tell(ORDER)
    assert (await second.hears())["order"] == 9


@pytest.mark.asyncio
async def test_what_would_be_given_back_by_one_of_two_is_not_offered(node: Node) -> None:
    first = await node.job(hello())
    await node.said()
    first.say("can", can=["suspend", "release"])
    assert (await node.said()).can == ("suspend", "release")
    second = await node.job(hello(pid=2))
    assert (await node.said()).can == ("suspend",)
    second.writer.close()
    assert (await node.said()).can == ("suspend", "release")


@pytest.mark.asyncio
async def test_processes_that_train_together_are_all_told_and_heard(node: Node) -> None:
    jobs = [await node.job(hello(pid=7, parts=2)), await node.job(hello(pid=8, parts=2, part=1))]
    assert {(await node.said()).part for _ in jobs} == {0, 1}
    assert node.socket.tell(ORDER)
    for job in jobs:
        assert (await job.hears())["order"] == 9
    jobs[0].say(
        "stats", steps=9, step_ns=2, monotonic_ns=1, last_step_monotonic_ns=1, memory_bytes=10
    )
    assert (await node.said()).steps == 9
    jobs[1].say(
        "stats",
        part=1,
        steps=8,
        step_ns=3,
        monotonic_ns=1,
        last_step_monotonic_ns=1,
        memory_bytes=20,
    )
    told = await node.said()
    assert (told.steps, told.step_ns, told.memory) == (8, 3, 30)
    jobs[1].say("suspended", part=1, order=9, step=5)
    assert await node.said() == talk.Suspended(**WHO, part=1, order=9, step=5)
    jobs[1].say("suspended", order=9, step=5)
    assert "spoke for" in await jobs[1].is_refused(), "it speaks for one process"
    assert node.socket.tell(ORDER)
    assert (await jobs[0].hears())["order"] == 9


@pytest.mark.asyncio
async def test_what_does_not_read_is_hung_up_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 4096)
    await node.job(hello())
    await node.said()
    told = 0
    while node.socket.tell(talk.CheckpointRank(**WHO, order=told, path="x" * 1000)):
        told += 1
        assert told < 100_000
    assert told > 0


@pytest.mark.asyncio
async def test_so_many_connections_and_no_more(node: Node) -> None:
    for pid in range(module.CONNECTIONS_PER_RANK_MAX):
        await node.job(hello(pid=pid))
    await node.said()
    one_more = await node.job(hello(pid=99))
    assert (await one_more.hears())["why"] == "run j7.2.1 has 64 connections already"


@pytest.mark.asyncio
async def test_nothing_is_kept_of_ranks_that_hung_up(node: Node) -> None:
    """A rank hangs up before the runtime says that its run is gone."""
    ticks = proc.start_ticks(os.getpid())
    assert ticks is not None
    for attempt in range(2, 5):
        name = f"j7.{attempt}.1"
        node.access.began(RunStarted(name, os.getpid(), ticks, Instant(0)))
        job = await node.job(hello(attempt=attempt, token=ACCESS.secret(name)))
        job.writer.write(frame(type="released", **{**WHO, "attempt": attempt}, order=1, moved=0))
        assert isinstance(await node.said(), talk.Hello)
        assert isinstance(await node.said(), talk.Released)
        job.writer.write_eof()
        assert await job.is_hung_up_on()
        node.access.gone(name)
        node.clock.advance(seconds(module.BURST_S + 1))
    assert len(node.socket._heard_until) == 1


FINGERPRINT: dict[str, Any] = {
    "parameters": 49,
    "gradient_bytes": 196,
    "shapes": "deedfa87242d1f87",
    "dtypes": ["float32"],
    "sizes": [1, 0, 0, 2, 0, 1],
    "torch": "2.5.1+cpu",
    "batch": [20, 4],
}
TIMING = {
    "samples": 19,
    "mean_ns": 99,
    "deviation_ns": 15,
    "p10_ns": 79,
    "p50_ns": 96,
    "p90_ns": 123,
}
COUNTED = {"steps": 20, "step_ns": 96, "monotonic_ns": 1, "last_step_monotonic_ns": 1}


@pytest.mark.asyncio
async def test_a_fingerprint_and_a_timing_go_with_what_is_told_later(node: Node) -> None:
    job = await node.job(hello())
    await node.said()
    job.say("fingerprint", fingerprint=FINGERPRINT)
    told = await node.said()
    assert (told.steps, told.fingerprint.batch, told.timing) == (0, (20, 4), None)
    job.say("stats", **COUNTED, timing=TIMING)
    told = await node.said()
    assert (told.steps, told.fingerprint.parameters, told.timing.p90_ns) == (20, 49, 123)
    job.say("stats", **COUNTED)
    assert (await node.said()).timing.samples == 19, "what was said holds"
