"""What is archived is gone from the stream and from nothing else: states come out the same."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.ledger.snapshot import Kept
from skep.machines.allocator import AllocatorMachine
from skep.units import KIB, Duration, Instant
from skep.wire import subjects
from skep.wire.facts import AllocatorFact, EpochBegan
from skep_services import archiving
from skep_services.adapters.archive import Archive, ArchiveError
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.adapters.nats_follow import _takes
from skep_services.adapters.nats_read import read_each, read_stream
from skep_services.ports import CorruptLogError, Delivery
from tests.adapters.worlds import Inbox, NatsWorld
from tests.replay_kit import _records, history

SEED = 3
AT = Instant(1_800_000_000_000_000_000)
LATER = Instant(2**62)
"""So late that every message is old."""


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[NatsWorld]:
    made = NatsWorld(tmp_path / "nats")
    await made.start()
    for name in (subjects.ALLOC, subjects.NODE):
        await made.add_stream(name, subjects.STREAMS[name], 600 * KIB)
    await made.add_stream(subjects.KEPT, subjects.KEPT_SUBJECTS, 600 * KIB)
    yield made
    await made.close()


async def with_archive(world: NatsWorld, archive: Archive | None) -> NatsBus:
    bus = await world.reader()
    bus.archive = archive
    return bus


def log_on(bus: NatsBus, world: NatsWorld) -> NatsFactLog:
    return NatsFactLog(
        bus,
        stream=subjects.ALLOC,
        subject=subjects.ALLOC_FACTS,
        service="allocator",
        facts=AllocatorFact,
        kept=Kept,
        end=world.server.folder / uuid.uuid4().hex,
    )


def digest(machine: AllocatorMachine) -> bytes:
    return msgspec.json.encode(machine.snapshot())


async def lived(world: NatsWorld, snapshots: int) -> AllocatorMachine:
    """Return a machine whose log is in ALLOC, with so many snapshots beside it."""
    records = [
        facts
        for one in _records(history(SEED), "allocator")
        if (facts := tuple(each for each in one.facts if not isinstance(each, EpochBegan)))
    ]
    machine, log = AllocatorMachine(), log_on(await with_archive(world, None), world)
    assert [record async for record in log.replay()] == []
    for fact in (await log.begin_epoch("o1", AT)).facts:
        machine.apply(fact)
    every, applied = len(records) // (snapshots + 1), 0
    for number, facts in enumerate(records, 1):
        await log.append(facts, {}, Instant(AT + number))
        for fact in facts:
            machine.apply(fact)
        applied += len(facts)
        if number % every == 0 and number // every <= snapshots:
            await log.keep(machine.snapshot(), {}, Instant(AT + number), applied)
    assert applied > 200
    return machine


async def started(world: NatsWorld, archive: Archive | None) -> tuple[AllocatorMachine, bool]:
    """Return a machine that starts now, and whether a snapshot was used."""
    machine, log = AllocatorMachine(), log_on(await with_archive(world, archive), world)
    snapshot = False
    async for record in log.replay():
        snapshot = snapshot or record.stands_for > 0
        for fact in record.facts:
            machine.apply(fact)
    await log.close()
    return machine, snapshot


async def archived(
    world: NatsWorld, archive: Archive, stream: str = subjects.ALLOC, keep_from: int = 0
) -> archiving.Moved:
    keeper = await world.bus("keeper")
    bound = archiving.Bound(stream=stream, keep_from=keep_from, why="")
    if not keep_from:
        asker = await world.bus("asker")
        for service in archiving.READERS[stream]:

            async def answer(asked: Delivery) -> None:
                stored = msgspec.json.encode({"stored": {stream: 2**40}})
                await asker.send(asked.reply, stored, {})

            await asker.listen(subjects.health(service), answer)
        bound = await archiving.bound_of(stream, keeper, await world.bus("b"))
    return await archiving.move(bound, keeper, archive, Duration(0), LATER)


@pytest.mark.asyncio
@pytest.mark.adapters
async def test_a_machine_comes_to_the_same_state(world: NatsWorld, tmp_path: Path) -> None:
    machine, archive = await lived(world, snapshots=3), Archive(tmp_path / "archive")
    before = await read_stream(await world.bus("a"), subjects.ALLOC)
    moved = await archived(world, archive)
    # All goes that is before the latest but one of three snapshots.
    assert 0.4 * len(before) < moved.messages < 0.6 * len(before)
    assert moved.packed < moved.bytes / 2
    left: list[Delivery] = []
    alone = await with_archive(world, None)
    await read_each(alone, subjects.ALLOC, moved.keep_from - 1, left.append)
    assert left == before[moved.messages :]
    for bus_archive in (None, archive):
        again, by_snapshot = await started(world, bus_archive)
        assert by_snapshot
        assert digest(again) == digest(machine)
    # One that reads all of the stream reads the archive first.
    whole = await read_stream(await with_archive(world, archive), subjects.ALLOC)
    assert whole == before
    # Doing it again moves nothing.
    assert (await archived(world, archive)).messages == 0


@pytest.mark.asyncio
@pytest.mark.adapters
async def test_without_snapshots_the_archive_is_read(world: NatsWorld, tmp_path: Path) -> None:
    machine, archive = await lived(world, snapshots=2), Archive(tmp_path / "archive")
    await archived(world, archive)
    await world.api("STREAM.PURGE.KEPT")
    again, by_snapshot = await started(world, archive)
    assert not by_snapshot
    assert digest(again) == digest(machine)
    with pytest.raises(CorruptLogError, match="SKEP_ARCHIVE"):
        await started(world, None)
    follower = await with_archive(world, None)
    with pytest.raises(CorruptLogError, match="SKEP_ARCHIVE"):
        await follower.follow(subjects.ALLOC, 0, Inbox().deliver)


@pytest.mark.asyncio
@pytest.mark.adapters
async def test_one_snapshot_may_be_unreadable(world: NatsWorld, tmp_path: Path) -> None:
    machine, archive = await lived(world, snapshots=3), Archive(tmp_path / "archive")
    await archived(world, archive)
    bus = await world.bus("b")
    await bus.publish(subjects.kept(subjects.ALLOC, "whole"), b"{", "k", {})
    again, by_snapshot = await started(world, None)
    assert by_snapshot
    assert digest(again) == digest(machine)


@pytest.mark.asyncio
@pytest.mark.adapters
async def test_with_one_snapshot_nothing_goes(world: NatsWorld, tmp_path: Path) -> None:
    await lived(world, snapshots=1)
    moved = await archived(world, Archive(tmp_path / "archive"))
    assert (moved.messages, moved.keep_from) == (0, 1)
    assert "two snapshots" in moved.why


@pytest.mark.asyncio
@pytest.mark.adapters
async def test_followers_go_on_from_the_archive_into_the_stream(
    world: NatsWorld, tmp_path: Path
) -> None:
    archive, writer = Archive(tmp_path / "archive"), await world.bus("b")
    for number in range(1, 21):
        subject = subjects.node_event("gone" if number == 11 else f"n{number % 2}", "up")
        await writer.publish(subject, str(number).encode(), f"k{number}", {"H": "v"})
    before = await read_stream(await world.bus("a"), subjects.NODE)
    await archived(world, archive, subjects.NODE, 6)
    # What is taken out at the seam leaves no hole that is taken for a loss.
    gone = {"filter": subjects.node_event("gone", "up")}
    await world.api(f"STREAM.PURGE.{subjects.NODE}", gone)
    assert (await archived(world, archive, subjects.NODE, 11)).keep_from == 12
    for after in (0, 4, 9, 14):
        inbox, follower = Inbox(), await with_archive(world, archive)
        await follower.follow(subjects.NODE, after, inbox.deliver)
        there = [each for each in before[after:] if each.sequence != 11]
        assert await inbox.wait(len(there)) == there, after
    inbox = Inbox()
    one = (subjects.node_event("n1", "*"),)
    await (await with_archive(world, archive)).follow(subjects.NODE, 0, inbox.deliver, one)
    await writer.publish(subjects.node_event("n1", "up"), b"21", "k21", {})
    wanted = [str(each).encode() for each in range(1, 22, 2) if each != 11]
    assert [each.payload for each in await inbox.wait(len(wanted))] == wanted


@pytest.mark.asyncio
@pytest.mark.adapters
async def test_a_service_that_is_away_holds_its_stream_back(world: NatsWorld) -> None:
    keeper = await world.bus("keeper")
    with pytest.raises(archiving.AwayError, match="allocator"):
        await archiving.bound_of(subjects.NODE, keeper, await world.bus("b"))


# --- the files ------------------------------------------------------------------------------------


def deliveries(first: int, last: int) -> list[Delivery]:
    return [
        Delivery("skep.v1.node.n1.up", b"%d" % number, {"k": "v"}, "NODE", number, Instant(number))
        for number in range(first, last + 1)
    ]


def test_segments_are_bound_to_one_another(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    assert archive.segments("NODE") == ()
    archive.add("NODE", deliveries(2, 5), 6)
    archive.add("NODE", deliveries(9, 10), 10)
    assert [(one.first, one.last, one.messages) for one in archive.segments("NODE")] == [
        (1, 6, 4),
        (7, 10, 2),
    ]
    assert list(archive.read("NODE")) == [*deliveries(2, 5), *deliveries(9, 10)]
    assert list(archive.read("NODE", 4)) == [*deliveries(5, 5), *deliveries(9, 10)]
    assert list(archive.read("NODE", 10)) == []


@pytest.mark.parametrize("trouble", ["damaged", "gone", "reordered", "no-json", "later"])
def test_an_archive_that_is_not_whole_is_refused(tmp_path: Path, trouble: str) -> None:
    archive = Archive(tmp_path)
    one = archive.add("NODE", deliveries(1, 5), 5)
    archive.add("NODE", deliveries(6, 9), 9)
    path, index = tmp_path / "NODE" / one.file, tmp_path / "NODE" / "segments.json"
    tree: Any = msgspec.json.decode(index.read_bytes())
    match trouble:
        case "damaged":
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        case "gone":
            path.unlink()
        case "reordered":
            tree["segments"].reverse()
            index.write_bytes(msgspec.json.encode(tree))
        case "no-json":
            index.write_bytes(b"{")
        case _:
            index.write_bytes(msgspec.json.encode({**tree, "v": 2}))
    with pytest.raises(ArchiveError, match=str(tmp_path)):
        list(archive.read("NODE"))


@pytest.mark.parametrize(
    "pattern, subject, taken",
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.b", "a.b", True),
    ],
)
def test_patterns_of_subjects(pattern: str, subject: str, taken: bool) -> None:
    assert _takes(pattern, subject) is taken
