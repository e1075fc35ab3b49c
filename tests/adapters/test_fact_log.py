"""One suite for every fact log, and what only a real stream can do to one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import KIB, Instant
from skep.wire.bearing import RULES
from skep.wire.facts import EpochBegan
from skep_services.adapters.journal import JournalFactLog
from skep_services.adapters.log_end import LogEnd
from skep_services.adapters.nats_api import PubAck, publish_once
from skep_services.adapters.nats_facts import EXPECTED_SEQUENCE
from skep_services.adapters.records import RECORD_BYTES_MAX, Chain
from skep_services.ports import (
    CorruptLogError,
    FactLog,
    LogRecord,
    MissingLogError,
    MissingStreamError,
    RefusedError,
    SupersededError,
)
from tests.adapters.worlds import (
    DEADLINE_S,
    FACT_SUBJECT,
    Alien,
    Freed,
    MemoryWorld,
    NatsWorld,
    Placed,
    Proxy,
    World,
    eventually,
)

pytestmark = pytest.mark.asyncio

AT = Instant(1_800_000_000_000_000_000)


class JournalWorld(MemoryWorld):
    """Fact logs in a file; a process that ends gives the file up."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._last: JournalFactLog | None = None

    async def fact_log(self, facts: Any = Placed | Freed) -> FactLog:
        await self.close()
        self._last = JournalFactLog(self._path, facts)
        return self._last

    async def close(self) -> None:
        if self._last is not None:
            self._last.close()


@pytest_asyncio.fixture(
    params=["memory", "journal", pytest.param("nats", marks=pytest.mark.adapters)]
)
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made: MemoryWorld | NatsWorld
    if request.param == "memory":
        made = MemoryWorld()
    elif request.param == "journal":
        made = JournalWorld(tmp_path / "journal")
    else:
        made = NatsWorld(tmp_path / "nats")
        await made.start()
    yield made
    await made.close()


async def replayed(log: FactLog) -> list[LogRecord]:
    return [record async for record in log.replay()]


async def opened(world: World, owner: str = "o1") -> FactLog:
    log = await world.fact_log()
    await replayed(log)
    await log.begin_epoch(owner, AT)
    return log


@pytest.mark.parametrize(
    "logs", ["memory", pytest.param("nats", marks=pytest.mark.adapters)], indirect=True
)
async def test_a_standby_reads_on_and_takes_over(logs: World) -> None:
    active = await opened(logs)
    standby = await logs.fact_log_of("b")
    assert [record.counter for record in await replayed(standby)] == [1]
    first = await active.append([Placed("a")], {"SUBMIT": 7}, AT)
    second = await active.append([Freed("a")], {}, AT)
    assert await replayed(standby) == [first, second]
    assert await replayed(standby) == []
    third = await active.append([Placed("b")], {}, AT)
    assert await replayed(standby) == [third]
    began = await standby.begin_epoch("o2", AT)
    assert (began.counter, began.epoch) == (5, 2)
    with pytest.raises(SupersededError, match="this one is o1"):
        await active.append([Freed("b")], {}, AT)


# --- what every log promises -------------------------------------------------------------------


async def test_a_log_gives_back_what_it_was_given(logs: World) -> None:
    log = await logs.fact_log()
    assert await replayed(log) == []
    began = await log.begin_epoch("o1", AT)
    assert began == LogRecord(1, 1, AT, {}, (EpochBegan(epoch=1, owner="o1", rules=RULES),))
    first = await log.append([Placed("a"), Freed("b")], {"SUBMIT": 7}, Instant(AT + 1))
    assert first == LogRecord(2, 1, Instant(AT + 1), {"SUBMIT": 7}, (Placed("a"), Freed("b")))
    second = await log.append([Placed("ü")], {"SUBMIT": 9, "NODE": 1}, Instant(AT + 2))

    again = await logs.fact_log()
    assert await replayed(again) == [began, first, second]
    assert await again.begin_epoch("o2", AT) == LogRecord(
        4, 2, AT, {}, (EpochBegan(epoch=2, owner="o2", rules=RULES),)
    )
    third = await again.append([Freed("a")], {}, AT)
    assert (third.counter, third.epoch) == (5, 2)


async def test_a_long_log_comes_back_whole(logs: World) -> None:
    log = await opened(logs)
    for number in range(600):
        await log.append([Placed(f"j{number}", "x" * 1000)], {"S": number}, AT)
    records = await replayed(await logs.fact_log())
    assert [record.counter for record in records] == list(range(1, 602))
    assert records[600].facts == (Placed("j599", "x" * 1000),)


async def test_records_up_to_the_limit_are_stored_and_larger_ones_are_a_bug(logs: World) -> None:
    log = await opened(logs)
    largest = "x" * (RECORD_BYTES_MAX - 300)
    for _ in range(3):
        await log.append([Placed("a", largest)], {}, AT)
    with pytest.raises(AssertionError, match="allowed"):
        await log.append([Placed("a", "x" * RECORD_BYTES_MAX)], {}, AT)
    records = await replayed(await logs.fact_log())
    assert [record.facts for record in records[1:]] == [(Placed("a", largest),)] * 3


async def test_a_log_of_other_facts_is_corrupt(logs: World) -> None:
    log = await opened(logs)
    await log.append([Placed("a")], {}, AT)
    with pytest.raises(CorruptLogError, match="placed"):
        await replayed(await logs.fact_log(Alien))


async def test_a_log_is_used_in_order(logs: World) -> None:
    log = await logs.fact_log()
    with pytest.raises(AssertionError):
        await log.begin_epoch("o1", AT)
    await replayed(log)
    with pytest.raises(AssertionError):
        await log.append([Placed("a")], {}, AT)
    await log.begin_epoch("o1", AT)
    with pytest.raises(AssertionError):
        await log.begin_epoch("o1", AT)


# --- the fence ---------------------------------------------------------------------------------


async def test_who_was_superseded_cannot_append(world: World) -> None:
    old, new = await opened(world, "old"), await world.fact_log()
    await old.append([Placed("a")], {}, AT)
    await replayed(new)
    await old.append([Placed("b")], {}, AT)
    with pytest.raises(SupersededError, match="another process"):
        await new.begin_epoch("late", AT)
    newer = await opened(world, "newer")
    with pytest.raises(SupersededError, match="old"):
        await old.append([Placed("c")], {}, AT)
    await newer.append([Placed("d")], {}, AT)
    facts = [fact for record in await replayed(await world.fact_log()) for fact in record.facts]
    assert facts == [
        EpochBegan(epoch=1, owner="old", rules=RULES),
        Placed("a"),
        Placed("b"),
        EpochBegan(epoch=2, owner="newer", rules=RULES),
        Placed("d"),
    ]


async def test_of_two_that_begin_at_once_one_wins(world: World) -> None:
    for number in range(1, 6):
        rivals = [await world.fact_log() for _ in range(2)]
        await asyncio.gather(*(replayed(rival) for rival in rivals))
        outcomes = await asyncio.gather(
            *(
                rival.begin_epoch(f"o{number}{name}", AT)
                for rival, name in zip(rivals, "xy", strict=True)
            ),
            return_exceptions=True,
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, LogRecord)]
        lost = [outcome for outcome in outcomes if isinstance(outcome, SupersededError)]
        assert (len(won), len(lost)) == (1, 1)
        assert won[0].epoch == number
        winner = rivals[outcomes.index(won[0])]
        await winner.append([Placed("a")], {}, AT)


# --- what somebody else wrote into the stream -------------------------------------------------

JETSTREAM_SAID = (
    b'{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"},'
    b'"stream":"FACTS","seq":0}'
)
NO_RECORDS = (b"", b"{}", b"null", b"\xff", b'{"v":1}', b"[" * 10_000, JETSTREAM_SAID)
FORGED = {"v": 1, "prev": "0" * 64, "epoch": 1, "at": 5, "pos": {}, "facts": []}


async def facts_in(world: World) -> list[Any]:
    return [fact for record in await replayed(await world.fact_log()) for fact in record.facts]


@pytest.mark.parametrize("payload", NO_RECORDS)
async def test_what_is_no_record_is_passed_over_by_everybody(world: World, payload: bytes) -> None:
    owner = await opened(world)
    await owner.append([Placed("a")], {}, AT)
    await world.intrude(payload)
    third = await owner.append([Placed("b")], {}, AT)
    assert third.counter == 3
    await world.intrude(payload + b" ")
    heir = await opened(world, "o2")
    await heir.append([Placed("c")], {}, AT)
    with pytest.raises(SupersededError, match="this one is o1"):
        await owner.append([Placed("d")], {}, AT)
    assert await facts_in(world) == [
        EpochBegan(epoch=1, owner="o1", rules=RULES),
        Placed("a"),
        Placed("b"),
        EpochBegan(epoch=2, owner="o2", rules=RULES),
        Placed("c"),
    ]


async def test_foreign_messages_before_the_first_record_are_passed_over(world: World) -> None:
    log = await world.fact_log()
    for number in range(3):
        await world.intrude(b"%d" % number)
    assert await replayed(log) == []
    began = await log.begin_epoch("o1", AT)
    assert began.counter == 1
    assert await replayed(await world.fact_log()) == [began]


async def test_many_foreign_messages_at_once(world: World) -> None:
    owner, standby = await opened(world), await world.fact_log()
    for number in range(50):
        await world.intrude(b"%d" % number)
    await owner.append([Placed("a")], {}, AT)
    records = await replayed(standby)
    assert [record.counter for record in records] == [1, 2]


async def test_a_copy_of_an_old_record_is_passed_over(world: World) -> None:
    owner = await opened(world)
    await owner.append([Placed("a")], {}, AT)
    for sequence in (1, 2, 1):
        await world.intrude(await world.stored(sequence) + b" " * sequence)
    await owner.append([Placed("b")], {}, AT)
    heir = await opened(world, "o2")
    await heir.append([Placed("c")], {}, AT)
    assert [fact for fact in await facts_in(world) if isinstance(fact, Placed)] == [
        Placed("a"),
        Placed("b"),
        Placed("c"),
    ]


async def test_a_guessed_number_far_ahead_is_passed_over(world: World) -> None:
    owner = await opened(world)
    await world.intrude(msgspec.json.encode({**FORGED, "n": 10**9}))
    heir = await opened(world, "o2")
    await heir.append([Placed("a")], {}, AT)
    with pytest.raises(SupersededError):
        await owner.append([Placed("b")], {}, AT)


async def test_a_guessed_hash_is_doubtful_until_the_owner_goes_on(world: World) -> None:
    owner = await opened(world)
    await world.intrude(msgspec.json.encode({**FORGED, "n": 2}))
    early = await world.fact_log_of("a")
    assert len(await replayed(early)) == 1, "a standby waits and sees"
    with pytest.raises(CorruptLogError, match="says that it is record 2 and does not continue"):
        await early.begin_epoch("o2", AT)
    await owner.append([Placed("a")], {}, AT)
    heir = await opened(world, "o2")
    await heir.append([Placed("b")], {}, AT)


async def test_a_chain_of_its_own_is_a_broken_log(world: World) -> None:
    await opened(world)
    first = msgspec.json.encode({**FORGED, "n": 2})
    await world.intrude(first)
    second = msgspec.json.encode({**FORGED, "n": 3, "prev": sha256(first).hexdigest()})
    await world.intrude(second)
    with pytest.raises(CorruptLogError, match="continue each other, but not record 1"):
        await replayed(await world.fact_log())


async def test_what_was_foreign_can_be_taken_out(world: World) -> None:
    owner, standby = await opened(world), await world.fact_log()
    await world.intrude(b"one")
    await world.intrude(b"two")
    await owner.append([Placed("a")], {}, AT)
    await world.take_out(2)
    await world.intrude(b"three")
    await world.take_out(5)  # The last one, which no process has seen.
    assert [record.counter for record in await replayed(standby)] == [1, 2]
    await owner.append([Placed("b")], {}, AT)
    await world.intrude(b"four")
    heir = await world.fact_log()
    await replayed(heir)
    await world.take_out(7)
    await heir.begin_epoch("o2", AT)
    await world.intrude(b"five")
    await world.take_out(9)
    last = await opened(world, "o3")
    await last.append([Placed("c")], {}, AT)
    assert [fact for fact in await facts_in(world) if isinstance(fact, Placed)] == [
        Placed("a"),
        Placed("b"),
        Placed("c"),
    ]


async def test_a_record_that_was_taken_out_is_missed(world: World) -> None:
    owner = await opened(world)
    for number in range(3):
        await owner.append([Placed(f"j{number}")], {}, AT)
    await world.take_out(2)
    with pytest.raises(CorruptLogError, match="counter or hash chain is broken"):
        await replayed(await world.fact_log())


async def test_a_last_record_whose_predecessor_is_missing_is_doubtful(world: World) -> None:
    owner = await opened(world)
    await owner.append([Placed("a")], {}, AT)
    await owner.append([Placed("b")], {}, AT)
    await world.take_out(2)
    heir = await world.fact_log()
    await replayed(heir)
    with pytest.raises(CorruptLogError, match="says that it is record 3"):
        await heir.begin_epoch("o2", AT)


@pytest.mark.adapters
async def test_foreign_messages_are_reported(nats: NatsWorld) -> None:
    seen: list[tuple[str, int, str]] = []
    owner = await nats.fact_log_on(await nats.bus(), foreign=lambda *told: seen.append(told))
    await replayed(owner)
    await owner.begin_epoch("o1", AT)
    await nats.intrude(b"one")
    await owner.append([Placed("a")], {}, AT)
    await nats.intrude(b"two")
    await nats.fact_log_on(await nats.bus(), foreign=lambda *told: seen.append(told))
    heir = await nats.fact_log_on(await nats.bus(), foreign=lambda *told: seen.append(told))
    await replayed(heir)
    why = "it is no record"
    assert seen == [("FACTS", 2, why), ("FACTS", 2, why), ("FACTS", 4, why)]


@pytest.mark.adapters
async def test_a_guessed_key_swallows_no_record(nats: NatsWorld) -> None:
    """The bus would take the owner's record for a repetition of what has its key."""
    owner = await opened(nats)
    await nats.intrude(b"mine", key="tester-1-2-o1")
    await asyncio.wait_for(owner.append([Placed("a")], {}, AT), DEADLINE_S)
    assert await facts_in(nats) == [EpochBegan(epoch=1, owner="o1", rules=RULES), Placed("a")]


@pytest.mark.adapters
async def test_a_known_last_record_that_was_taken_out_is_missed(
    nats: NatsWorld, tmp_path: Path
) -> None:
    log = await nats.fact_log_on(await nats.bus("a"), end=tmp_path / "end")
    await replayed(log)
    await log.begin_epoch("o1", AT)
    await log.append([Placed("a")], {}, AT)
    await nats.take_out(2)
    with pytest.raises(CorruptLogError, match="ends at sequence 1, and 2 was stored"):
        await replayed(await nats.fact_log_on(await nats.bus("b"), end=tmp_path / "end"))


# --- a log that is gone or damaged -------------------------------------------------------------


@pytest.mark.adapters
async def test_a_missing_log_is_an_error(nats: NatsWorld) -> None:
    log = await opened(nats)
    await nats.drop_stream("FACTS")
    with pytest.raises(MissingStreamError):
        await log.append([Placed("a")], {}, AT)
    again = await nats.fact_log()
    with pytest.raises(MissingLogError, match="FACTS"):
        await replayed(again)


async def test_a_missing_memory_log_is_an_error() -> None:
    world = MemoryWorld()
    world.store.exists = False
    with pytest.raises(MissingLogError):
        await replayed(await world.fact_log())


@pytest.mark.adapters
async def test_a_log_without_its_beginning_is_corrupt(nats: NatsWorld) -> None:
    log = await opened(nats)
    await log.append([Placed("a")], {}, AT)
    await nats.api("STREAM.PURGE.FACTS", {"seq": 2})
    with pytest.raises(CorruptLogError, match="begins at"):
        await replayed(await nats.fact_log())


@pytest.mark.adapters
async def test_a_log_that_lost_its_end_is_corrupt(nats: NatsWorld) -> None:
    log = await opened(nats)
    await log.append([Placed("a")], {}, AT)
    await nats.drop_stream("FACTS")
    await nats.add_stream("FACTS", [FACT_SUBJECT], 600 * KIB)
    with pytest.raises(CorruptLogError, match="ends at 0"):
        await log.append([Placed("b")], {}, AT)


async def cut_short(nats: NatsWorld, end: Path, *, written_on: bool) -> None:
    """Store three records with `end` kept, and have the bus lose the last one, or all of them."""
    log = await nats.fact_log_on(await nats.bus("a"), end=end)
    await replayed(log)
    await log.begin_epoch("o1", AT)
    await log.append([Placed("a")], {}, AT)
    await log.append([Placed("b")], {}, AT)
    await nats.drop_stream("FACTS")
    await nats.add_stream("FACTS", [FACT_SUBJECT], 600 * KIB)
    other = await nats.fact_log()
    await replayed(other)
    await other.begin_epoch("o1", AT)
    await other.append([Placed("a")], {}, AT)
    if written_on:
        await other.append([Placed("c")], {}, AT)
        await other.append([Placed("d")], {}, AT)


@pytest.mark.adapters
async def test_a_log_cut_short_is_told_from_one_that_never_was_longer(
    nats: NatsWorld, tmp_path: Path
) -> None:
    await cut_short(nats, tmp_path / "end", written_on=False)
    assert len(await replayed(await nats.fact_log())) == 2
    with pytest.raises(CorruptLogError, match=r"ends at sequence 2, and 3 was stored.*remove"):
        await replayed(await nats.fact_log_on(await nats.bus("b"), end=tmp_path / "end"))


@pytest.mark.adapters
async def test_a_log_cut_short_and_written_on_is_told_by_its_hash(
    nats: NatsWorld, tmp_path: Path
) -> None:
    await cut_short(nats, tmp_path / "end", written_on=True)
    with pytest.raises(CorruptLogError, match="record 3 is another"):
        await replayed(await nats.fact_log_on(await nats.bus("b"), end=tmp_path / "end"))


@pytest.mark.parametrize("text", [b"", b"12", b"x" * 86, b"1 2\n"])
async def test_a_torn_note_of_a_logs_end_says_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "end").write_bytes(text)
    assert LogEnd(tmp_path / "end").missing(0) == ""


async def test_a_note_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    end = LogEnd(tmp_path / "nowhere" / "end")
    end.note(7, "0" * 64)
    assert end.missing(0) == ""


@pytest.mark.adapters
async def test_an_append_the_stream_never_takes_is_refused(nats: NatsWorld) -> None:
    log = await opened(nats)
    await nats.drop_stream("FACTS")
    await nats.add_stream("FACTS", [FACT_SUBJECT], KIB)
    with pytest.raises(RefusedError, match="message size"):
        await log.append([Placed("a", "x" * 2 * KIB)], {}, AT)
    # What the log holds is unknown from here on.
    with pytest.raises(AssertionError):
        await log.append([Placed("a")], {}, AT)


def damaged(records: Sequence[bytes | None], change: Any) -> list[bytes | None]:
    changed = [msgspec.json.decode(record or b"") for record in records]
    change(changed)
    return [msgspec.json.encode(record) for record in changed]


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda records: records.pop(1), "records 3 and 4 .* continue each other"),
        (lambda records: records[1].update(at=5), "hash chain is broken"),
        (lambda records: records[1].update(v=2), "version 2"),
        (lambda records: records[1].update(epoch=3), "epoch 3 follows 1"),
        (lambda records: records[0].update(n="1"), "records 2 and 3 .* continue each other"),
    ],
)
async def test_damage_is_found(change: Any, complaint: str) -> None:
    world = MemoryWorld()
    log = await opened(world)
    for _ in range(3):
        await log.append([Placed("a")], {}, AT)
    world.store.records = damaged(world.store.records, change)
    with pytest.raises(CorruptLogError, match=complaint):
        await replayed(await world.fact_log())


async def test_an_epoch_must_be_announced() -> None:
    writer, reader = Chain("w", Placed), Chain("r", Placed)
    for facts, epoch in [((EpochBegan(epoch=1, owner="o", rules=RULES),), 1), ((Placed("a"),), 2)]:
        record, payload = writer.encode(facts, {}, AT, epoch)
        writer.advance(record, payload)
        if epoch == 1:
            reader.read(payload, "first")
        else:
            with pytest.raises(CorruptLogError, match="epoch 2 follows 1"):
                reader.read(payload, "second")


# --- a real server that dies, and answers that are lost -----------------------------------------


@pytest.mark.adapters
async def test_killed_server_neither_loses_nor_doubles_a_record(nats: NatsWorld) -> None:
    log = await opened(nats)
    appended: list[LogRecord] = []
    stop = False

    async def append() -> None:
        while not stop:
            number = len(appended)
            appended.append(await log.append([Placed(f"j{number}")], {"S": number}, AT))

    appending = asyncio.create_task(append())
    for _ in range(5):
        enough = len(appended) + 200
        await eventually(lambda enough=enough: len(appended) >= enough)  # type: ignore[misc]
        await nats.restart()
    enough = len(appended) + 50
    await eventually(lambda: len(appended) >= enough)
    stop = True
    await asyncio.wait_for(appending, DEADLINE_S)
    records = await replayed(await nats.fact_log())
    assert records[1:] == appended


@pytest.mark.adapters
async def test_lost_answer_to_an_append_is_resolved(nats: NatsWorld, proxy: Proxy) -> None:
    bus = await nats.bus_at(await proxy.start())
    log = await nats.fact_log_on(bus)
    await replayed(log)
    for lost in (True, False, True):
        if lost:
            proxy.swallow()
        task = asyncio.create_task(
            log.append([Placed("a")], {}, AT) if log._owner else log.begin_epoch("o1", AT)
        )
        if lost:
            await asyncio.wait_for(proxy.swallowed.wait(), DEADLINE_S)
            proxy.cut()
        await asyncio.wait_for(task, DEADLINE_S)
    records = await replayed(await nats.fact_log())
    assert [record.counter for record in records] == [1, 2, 3]


@pytest.mark.adapters
async def test_answer_lost_and_then_superseded(nats: NatsWorld, proxy: Proxy) -> None:
    """The record is in the log, and another process took over behind it: it was stored, once."""
    log = await nats.fact_log_on(await nats.bus_at(await proxy.start()))
    await replayed(log)
    await log.begin_epoch("old", AT)
    proxy.swallow()
    appending = asyncio.create_task(log.append([Placed("a")], {}, AT))
    await asyncio.wait_for(proxy.swallowed.wait(), DEADLINE_S)
    rival = await nats.fact_log_on(await nats.bus("b"))
    assert len(await replayed(rival)) == 2
    await rival.begin_epoch("new", AT)
    proxy.cut()
    assert (await asyncio.wait_for(appending, DEADLINE_S)).counter == 2
    with pytest.raises(SupersededError):
        await log.append([Placed("b")], {}, AT)


@pytest.mark.adapters
async def test_duplicate_answer_is_resolved_like_a_wrong_sequence(nats: NatsWorld) -> None:
    """A replicated stream answers a repetition with "duplicate" instead of a wrong sequence."""
    log = await nats.fact_log()
    await replayed(log)
    await log.begin_epoch("o1", AT)
    # What an earlier attempt of the next append would have stored, without its fence.
    record, payload = log._chain.encode([Placed("a")], {}, AT, 1)
    bus = await nats.bus("b")
    await bus.publish(FACT_SUBJECT, payload, "tester-1-2-o1", {})
    ack = await publish_once(
        bus.link, FACT_SUBJECT, payload, {"Nats-Msg-Id": "tester-1-2-o1"}, DEADLINE_S
    )
    assert isinstance(ack, PubAck)
    assert ack.duplicate
    ack = await publish_once(bus.link, FACT_SUBJECT, payload, {EXPECTED_SEQUENCE: "1"}, DEADLINE_S)
    assert isinstance(ack, PubAck)
    assert ack.error is not None
    assert ack.error.err_code == 10071
    assert await log.append([Placed("a")], {}, AT) == record
