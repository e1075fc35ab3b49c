"""Snapshots beside a fact log: replay begins behind them, and never depends on them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import KIB, Instant
from skep.wire import subjects
from skep_services.adapters import nats_kept
from skep_services.adapters.nats_api import StreamInfo, ask
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.ports import LogRecord
from tests.adapters.worlds import FACT_SUBJECT, Alien, Freed, NatsWorld, Placed

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

AT = Instant(1_800_000_000_000_000_000)


class Holds(msgspec.Struct, frozen=True, tag="holds"):
    """An entry of a snapshot."""

    job: str


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[NatsWorld]:
    made = NatsWorld(tmp_path / "nats")
    await made.start()
    await made.add_stream("FACTS", [FACT_SUBJECT], 600 * KIB)
    await made.add_stream(subjects.KEPT, subjects.KEPT_SUBJECTS, 600 * KIB)
    yield made
    await made.close()


async def log(world: NatsWorld, kept: Any = Holds) -> NatsFactLog:
    return NatsFactLog(
        await world.reader(),
        stream="FACTS",
        subject=FACT_SUBJECT,
        service="tester",
        facts=Placed | Freed,
        kept=kept,
        end=world.server.folder / uuid.uuid4().hex,
    )


async def replayed(world: NatsWorld, kept: Any = Holds) -> list[LogRecord]:
    return [record async for record in (await log(world, kept)).replay()]


async def opened(world: NatsWorld, owner: str = "o1") -> NatsFactLog:
    made = await log(world)
    async for _ in made.replay():
        pass
    await made.begin_epoch(owner, AT)
    return made


async def filled(world: NatsWorld, records: int = 3) -> NatsFactLog:
    """Return a log of this many records behind its epoch's, with a snapshot of all of them."""
    made = await opened(world)
    for number in range(records):
        await made.append([Placed(f"j{number}")], {"SUBMIT": number + 1}, AT)
    entries = [Holds(f"j{number}") for number in range(records)]
    await made.keep(entries, {"SUBMIT": 9, "NODE": 4}, AT, records + 1)
    return made


async def test_replay_begins_with_the_snapshot_and_goes_on_behind_it(world: NatsWorld) -> None:
    writer = await filled(world)
    tail = await writer.append([Freed("j1")], {"SUBMIT": 10}, AT)
    snapshot, *rest = await replayed(world)
    assert snapshot == LogRecord(
        4, 1, AT, {"SUBMIT": 9, "NODE": 4}, (Holds("j0"), Holds("j1"), Holds("j2")), stands_for=4
    )
    assert rest == [tail]


async def test_who_recovered_from_a_snapshot_writes_on(world: NatsWorld) -> None:
    await filled(world)
    second = await log(world)
    assert [record.stands_for async for record in second.replay()] == [4]
    began = await second.begin_epoch("o2", AT)
    assert (began.counter, began.epoch) == (5, 2)
    await second.append([Freed("j0")], {}, AT)
    whole = await replayed(world, kept=None)
    assert [record.counter for record in whole] == [1, 2, 3, 4, 5, 6]


async def test_a_large_snapshot_comes_back_whole(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_kept, "PIECE_BYTES", 100)
    writer = await opened(world)
    entries = [Holds(f"job-{number}") for number in range(200)]
    await writer.keep(entries, {}, AT, 1)
    (snapshot,) = await replayed(world)
    assert snapshot.facts == tuple(entries)
    info = await ask((await world.bus()).link, f"STREAM.INFO.{subjects.KEPT}", None, StreamInfo)
    assert info.state.messages > 20


async def test_an_empty_state_can_be_kept(world: NatsWorld) -> None:
    writer = await opened(world)
    await writer.keep([], {}, AT, 1)
    (snapshot,) = await replayed(world)
    assert (snapshot.facts, snapshot.stands_for) == ((), 1)


async def test_what_is_kept_is_the_state_when_it_was_asked_for(world: NatsWorld) -> None:
    writer = await opened(world)
    storing = writer.keep([Holds("j0")], {}, AT, 1)
    tail = await writer.append([Placed("j1")], {}, AT)
    await storing
    snapshot, *rest = await replayed(world)
    assert (snapshot.counter, rest) == (1, [tail])


async def test_the_latest_two_are_there_and_older_ones_make_room(world: NatsWorld) -> None:
    writer = await filled(world)
    for _ in range(4):
        await writer.append([Placed("x")], {}, AT)
        await writer.keep([Holds("x")], {}, AT, 9)
    info = await ask((await world.bus()).link, f"STREAM.INFO.{subjects.KEPT}", None, StreamInfo)
    assert info.state.messages == 2 + 5  # Pieces of two snapshots; that there were five is small.
    (snapshot,) = await replayed(world)
    assert snapshot.counter == 8


@pytest.mark.parametrize("what", ["piece", "whole"])
async def test_without_a_whole_snapshot_history_is_read(world: NatsWorld, what: str) -> None:
    await filled(world)
    await world.api(f"STREAM.PURGE.{subjects.KEPT}", {"filter": subjects.kept("FACTS", what)})
    assert [record.counter for record in await replayed(world)] == [1, 2, 3, 4]


async def test_a_snapshot_of_another_version_is_passed_over(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_kept, "VERSION", nats_kept.VERSION + 1)
    await filled(world)
    monkeypatch.undo()
    assert [record.counter for record in await replayed(world)] == [1, 2, 3, 4]


async def test_a_snapshot_of_other_entries_is_passed_over(world: NatsWorld) -> None:
    await filled(world)
    assert [record.counter for record in await replayed(world, kept=Alien)] == [1, 2, 3, 4]


async def test_of_a_snapshot_that_is_no_snapshot_the_one_before_counts(world: NatsWorld) -> None:
    await filled(world)
    bus = await world.bus("b")
    good = [record.stands_for for record in await replayed(world)]
    await bus.publish(subjects.kept("FACTS", "whole"), b"{", "k", {})
    assert [record.stands_for for record in await replayed(world)] == good
    assert any(good)


async def test_a_snapshot_of_another_log_is_passed_over(world: NatsWorld) -> None:
    """As after the log alone was restored from a backup, and written on since."""
    await filled(world, records=2)
    await world.drop_stream("FACTS")
    await world.add_stream("FACTS", [FACT_SUBJECT], 600 * KIB)
    assert await replayed(world) == []
    plain = await log(world, kept=None)
    assert [record async for record in plain.replay()] == []
    await plain.begin_epoch("o9", AT)
    for number in range(4):
        await plain.append([Placed(f"other{number}")], {}, AT)
    assert [record.counter for record in await replayed(world)] == [1, 2, 3, 4, 5]


async def test_pieces_stored_in_between_by_a_deposed_writer_do_no_harm(
    world: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    deposed = await filled(world)
    late = deposed.keep([Holds("late")], {}, AT, 4)
    monkeypatch.setattr(nats_kept, "PIECE_BYTES", 1)
    second = await log(world)
    assert [record.stands_for async for record in second.replay()] == [4]
    await second.begin_epoch("o2", AT)
    await late
    await second.keep([Holds("a"), Holds("b")], {}, AT, 5)
    (snapshot,) = await replayed(world)
    assert snapshot.facts == (Holds("a"), Holds("b"))
