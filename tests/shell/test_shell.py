"""The shell's contract: facts before words, positions with facts, recovery as the only start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.machines.base import Call, Effect, Record, Restarted, Send, Tick
from skep.units import Duration, Instant, after, seconds
from skep.wire import codec, subjects
from skep.wire.advice import ADVISED_MAX, JobAdvice, QueueAdvice
from skep.wire.codec import CancelRequest, Facts, Submission
from skep.wire.facts import End, EpochBegan, JobEnded, JobOver
from skep.wire.inputs import InputNotes, NotesReader
from skep.wire.reasons import Reason
from skep_services import shell
from skep_services.adapters.memory import (
    ManualClock,
    MemoryBroker,
    MemoryBus,
    MemoryFactLog,
    MemoryLogStore,
)
from skep_services.links import ForeignSeen
from skep_services.ports import (
    CorruptLogError,
    Delivery,
    Keeper,
    LogRecord,
    RefusedError,
    SupersededError,
    Turn,
)
from skep_services.shell import Follow, Shell
from skep_services.undecided import Undecided
from tests.kit import RecordWriter

DEADLINE_S = 120.0
ALARM = seconds(5)


def none_failed() -> Undecided:
    """Return the note that no message failed; what fails is not remembered by the next process."""
    return Undecided(Path("/nonexistent/undecided"))


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """A fact: this job was seen, padded to any size."""

    job: str
    pad: str = ""


class Counter:
    """A machine that notes every submission, echoes it, and calls for every cancellation."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.epochs: list[int] = []
        self.events: list[Any] = []
        self.alarm_at: Instant | None = None
        self.pad = ""

    def decide(self, event: Any, now: Instant) -> list[Effect]:
        self.events.append(event)
        match event:
            case Submission():
                fact = Noted(event.job, self.pad)
                self.apply(fact)
                return [Record(fact), Send("out.seen", {"job": event.job})]
            case CancelRequest():
                return [Call(event.vc)]
            case Restarted():
                self.alarm_at = after(now, ALARM)
            case Tick():
                self.alarm_at = None
            case _:
                pass
        return []

    def apply(self, fact: Any) -> None:
        if isinstance(fact, EpochBegan):
            self.epochs.append(fact.epoch)
        else:
            self.jobs.append(fact.job)

    def snapshot(self) -> list[Any]:
        return [Noted(job) for job in self.jobs]

    def wake_at(self) -> Instant | None:
        return self.alarm_at

    def check(self) -> None:
        assert len(self.jobs) == len(dict.fromkeys(self.jobs)), self.jobs


class Seen:
    """An observer that lets a test wait for what was decided."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.flushes = 0
        self.reports: list[str] = []
        self._news = asyncio.Condition()

    def decided(self, event: Any, effects: Sequence[Effect], began: int, ended: int) -> None:
        del effects
        assert began <= ended
        self.events.append(event)

    def report(self, what: str, **about: Any) -> None:
        self.reports.append(f"{what} {about}")

    async def flush(self) -> None:
        self.flushes += 1
        async with self._news:
            self._news.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(reached)


class Answers:
    """A Calls port that answers every command with an event at once."""

    def start(self, command: Any, answer: Callable[[Any], Awaitable[None]]) -> None:
        self.task = asyncio.ensure_future(answer(("answer", command)))


class Place:
    """A broker with SUBMIT and ALLOC, a log that outlives shells, and a clock moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock)
        for stream in (subjects.SUBMIT, subjects.ALLOC):
            self.broker.add_stream(stream, subjects.STREAMS[stream])
        self.store = MemoryLogStore()
        self.client = MemoryBus(self.broker, "client", _fail)
        self.sent: list[Delivery] = []

    def log(self) -> MemoryFactLog:
        return MemoryFactLog(self.store, Noted)

    def shell(
        self,
        machine: Counter,
        seen: Seen,
        log: Any = None,
        bus: MemoryBus | None = None,
        turn: Turn | None = None,
        keeper: Keeper | None = None,
        notes: InputNotes | None = None,
        failures: Undecided | None = None,
    ) -> Shell[Any, Any]:
        return Shell(
            machine,
            turn=turn,
            keeper=keeper,
            bus=bus or MemoryBus(self.broker, "service", _fail),
            clock=self.clock,
            observer=seen,
            owner="test",
            failures=failures or none_failed(),
            foreign=ForeignSeen(seen.report),
            facts=log or self.log(),
            calls=Answers(),
            follow=(Follow(subjects.SUBMIT), Follow(subjects.ALLOC)),
            listen=("heard.*",),
            notes=notes,
        )

    async def submit(self, number: int) -> int:
        return await self.client.publish(subjects.submit("nlp"), b"{}", f"k{number}", {})


def _fail(error: Exception) -> None:
    raise error


@asynccontextmanager
async def running(shell: Shell[Any, Any]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(shell.run())
    ready = asyncio.ensure_future(shell.ready.wait())
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield
    finally:
        ready.cancel()
        task.cancel()
        await asyncio.gather(task, ready, return_exceptions=True)


@pytest.mark.asyncio
async def test_start_is_recovery_and_every_submission_is_noted_once() -> None:
    place = Place()
    first, seen = Counter(), Seen()
    async with running(place.shell(first, seen)):
        await place.submit(1)
        await place.submit(2)
        await seen.until(lambda: len(first.jobs) == 2)
    await place.submit(3)
    second, seen = Counter(), Seen()
    async with running(place.shell(second, seen)):
        await seen.until(lambda: len(second.jobs) == 3)
        second.check()
    assert second.jobs == ["j1", "j2", "j3"]
    assert second.epochs == [1, 2]
    assert isinstance(second.events[0], Restarted)
    assert second.events[0].epoch == 2


class Waiting:
    """A Turn that comes when the test says so, and lets the test wait for a standby to look."""

    def __init__(self) -> None:
        self.mine = False
        self._looked = asyncio.Event()

    async def has_come(self) -> bool:
        await asyncio.sleep(0)
        self._looked.set()
        return self.mine

    async def looked(self) -> None:
        self._looked.clear()
        await asyncio.wait_for(self._looked.wait(), DEADLINE_S)


@pytest.mark.asyncio
async def test_a_standby_applies_decides_nothing_and_takes_over() -> None:
    place = Place()
    active, standby, seen = Counter(), Counter(), Seen()
    turn = Waiting()
    spare = place.shell(standby, Seen(), turn=turn)
    waiting = asyncio.ensure_future(spare.run())
    first = place.shell(active, seen)
    running_first = asyncio.ensure_future(first.run())
    await place.submit(1)
    await seen.until(lambda: len(active.jobs) == 1)
    # The first look may have begun before the submission was noted.
    await turn.looked()
    await turn.looked()
    assert (standby.jobs, standby.epochs, standby.events) == (["j1"], [1], [])
    assert (spare.active.is_set(), spare.active_since, spare.positions) == (
        False,
        0,
        {subjects.SUBMIT: 1},
    )
    turn.mine = True
    async with asyncio.timeout(DEADLINE_S):
        await spare.ready.wait()
    assert spare.epoch == 2
    assert spare.active_since == place.clock.now()
    await place.submit(2)
    # Both read the submission; the fence lets one of them note it.
    with pytest.raises(SupersededError):
        await asyncio.wait_for(running_first, DEADLINE_S)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    replayed = place.log()
    noted = [
        fact.job
        async for record in replayed.replay()
        for fact in record.facts
        if isinstance(fact, Noted)
    ]
    assert noted == ["j1", "j2"]


@pytest.mark.asyncio
async def test_nothing_is_said_before_the_facts_are_durable() -> None:
    place = Place()

    class Refusing(MemoryFactLog):
        """A log that another process takes over just before the first append."""

        async def append(
            self,
            facts: Sequence[Any],
            positions: Mapping[str, int],
            at: Instant,
            noted: bytes = b"",
        ) -> LogRecord:
            raise SupersededError("somebody else owns the log")

    said: list[Delivery] = []

    async def hear(delivery: Delivery) -> None:
        said.append(delivery)

    await place.client.listen("out.>", hear)
    shell = place.shell(Counter(), Seen(), Refusing(place.store, Noted))
    await place.submit(1)
    with pytest.raises(SupersededError):
        async with asyncio.timeout(DEADLINE_S):
            await shell.run()
    assert said == []


@pytest.mark.asyncio
async def test_a_superseded_shell_ends_at_its_next_fact() -> None:
    place = Place()
    old = place.shell(Counter(), Seen())
    task = asyncio.ensure_future(old.run())
    async with asyncio.timeout(DEADLINE_S):
        await old.ready.wait()
    seen = Seen()
    async with running(place.shell(Counter(), seen)):
        await place.submit(1)
        with pytest.raises(SupersededError):
            async with asyncio.timeout(DEADLINE_S):
                await task


@pytest.mark.asyncio
async def test_large_batches_are_split_into_records_on_event_boundaries() -> None:
    place = Place()
    machine, seen = Counter(), Seen()
    machine.pad = "x" * 120_000
    for number in range(10):
        await place.submit(number)
    async with running(place.shell(machine, seen)):
        await seen.until(lambda: len(machine.jobs) == 10)
    log = place.log()
    records = [record async for record in log.replay()]
    sizes = [len(record.facts) for record in records[1:]]
    assert sum(sizes) == 10
    assert max(sizes) <= 4
    consumed = [record.positions.get(subjects.SUBMIT, 0) for record in records[1:]]
    noted = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    assert consumed == noted, "a record's position covers exactly the events behind it"


@pytest.mark.asyncio
async def test_another_services_record_comes_fact_by_fact() -> None:
    place = Place()
    machine, seen = Counter(), Seen()
    record = RecordWriter().record([_ended("j1"), _ended("j2"), _ended("j3")])
    await place.client.publish(subjects.ALLOC_FACTS, record, "r1", {})
    shell = place.shell(machine, seen)
    async with running(shell):
        await seen.until(lambda: len(seen.events) == 4)
        assert shell.positions[subjects.ALLOC] == 1
    facts: list[Any] = [event.facts for event in machine.events if isinstance(event, Facts)]
    assert [len(group) for group in facts] == [1, 1, 1]
    assert [group[0].job for group in facts] == ["j1", "j2", "j3"]


@pytest.mark.asyncio
async def test_facts_nobody_asked_for_only_move_the_position() -> None:
    place = Place()
    machine, seen = Counter(), Seen()
    shell = Shell(
        machine,
        bus=MemoryBus(place.broker, "service", _fail),
        clock=place.clock,
        observer=seen,
        owner="test",
        failures=none_failed(),
        foreign=ForeignSeen(seen.report),
        facts=place.log(),
        follow=(Follow(subjects.ALLOC, facts=(JobOver,)),),
    )
    record = RecordWriter().record([_ended("j1"), _ended("j2")], Instant(5))
    await place.client.publish(subjects.ALLOC_FACTS, record, "r1", {})
    async with running(shell):
        await seen.until(lambda: len(seen.events) == 2)
        assert shell.positions[subjects.ALLOC] == 1
    assert machine.events[1] == Facts(service="allocator", at=Instant(5), facts=())


@pytest.mark.asyncio
async def test_a_stream_is_read_anew_at_every_start_if_that_is_asked_for() -> None:
    """What is made of it is not recorded, whatever else was in the meantime."""
    place, writer = Place(), RecordWriter()

    def shell(machine: Counter, seen: Seen) -> Shell[Any, Any]:
        follow = (Follow(subjects.SUBMIT), Follow(subjects.ALLOC, facts=(JobEnded,), anew=True))
        return Shell(
            machine,
            bus=MemoryBus(place.broker, "service", _fail),
            clock=place.clock,
            observer=seen,
            owner="test",
            failures=none_failed(),
            foreign=ForeignSeen(seen.report),
            facts=place.log(),
            follow=follow,
        )

    for number in range(1, 4):
        record = writer.record([_ended(f"j{number}")], Instant(5))
        await place.client.publish(subjects.ALLOC_FACTS, record, f"r{number}", {})
        await place.submit(number)
        machine, seen = Counter(), Seen()
        async with running(shell(machine, seen)):
            await seen.until(lambda: len(_of(machine, Facts)) == number)  # noqa: B023
            await seen.until(lambda: len(machine.jobs) == number)  # noqa: B023
        assert len(_of(machine, Submission)) == 1, "what is recorded is read once"


def _of(machine: Counter, kind: type[Any]) -> list[Any]:
    return [event for event in machine.events if isinstance(event, kind)]


def _ended(job: str) -> JobEnded:
    return JobEnded(job=job, end=End.SUCCEEDED, why=Reason.SUCCEEDED, attempts=1, at=Instant(1))


@pytest.mark.asyncio
async def test_calls_are_answered_by_events() -> None:
    place = Place()
    machine, seen = Counter(), Seen()
    async with running(place.shell(machine, seen)):
        await place.client.publish(subjects.cancel("nlp"), b"{}", "c1", {})
        await seen.until(lambda: ("answer", "nlp") in machine.events)


@pytest.mark.asyncio
async def test_the_timer_ticks_when_the_machine_asked_for_it() -> None:
    place = Place()
    machine, seen = Counter(), Seen()
    async with running(place.shell(machine, seen)):
        place.clock.advance(seconds(4.9))
        await place.submit(1)
        await seen.until(lambda: machine.jobs == ["j1"])
        assert not [event for event in machine.events if isinstance(event, Tick)]
        place.clock.advance(seconds(0.2))
        await seen.until(lambda: isinstance(machine.events[-1], Tick))


@pytest.mark.asyncio
async def test_messages_that_cannot_be_read_reach_the_machine_as_such() -> None:
    place = Place()
    machine, seen = Counter(), Seen()
    shell = place.shell(machine, seen)
    async with running(shell):
        await place.client.send("heard.garbage", b"\xff", {})
        await seen.until(lambda: len(seen.events) == 2)
        assert shell.waiting == 0
        assert shell.decide_us()["n"] == 2
    assert isinstance(machine.events[-1], codec.Unreadable)


@pytest.mark.asyncio
async def test_another_services_record_that_cannot_be_read_is_the_end() -> None:
    place, writer = Place(), RecordWriter()
    machine, seen = Counter(), Seen()
    broken = asyncio.get_running_loop().create_future()
    bus = MemoryBus(place.broker, "service", broken.set_result)
    shell = place.shell(machine, seen, bus=bus)

    async def publish(*facts: Any) -> None:
        payload = writer.record(facts)
        await place.client.publish(subjects.ALLOC_FACTS, payload, f"{payload!r}", {})

    async with running(shell):
        await publish()
        await seen.until(lambda: isinstance(machine.events[-1], Facts))
        await publish({"type": "from-the-future"})
        await publish()
        error = await asyncio.wait_for(broken, DEADLINE_S)
        assert isinstance(error, CorruptLogError)
        assert "stream ALLOC, message 2: not a record" in str(error)
        # A submission is anybody's: it is decided on whatever it says.
        await place.submit(1)
        await seen.until(lambda: machine.jobs == ["j1"])
    assert [type(event) for event in machine.events] == [Restarted, Facts, Submission]


@pytest.mark.asyncio
async def test_foreign_messages_in_a_fact_stream_are_passed_over_and_reported() -> None:
    place, writer = Place(), RecordWriter()
    machine, seen = Counter(), Seen()
    shell = place.shell(machine, seen)

    async def publish(payload: bytes) -> None:
        await place.client.publish(subjects.ALLOC_FACTS, payload, f"{payload!r}", {})

    async with running(shell):
        first = writer.record([_ended("j1")])
        for payload in (b'{"error":{"code":400}}', first, b"?", first + b" "):
            await publish(payload)
        await publish(writer.record([_ended("j2")]))
        await seen.until(lambda: len(seen.events) == 3)
        assert shell.positions[subjects.ALLOC] == 5
        assert shell.foreign.count == 3
        assert shell.foreign.latest == (
            "ALLOC 4: it says that it is record 1, which is already there"
        )
        assert len(seen.reports) == 3
        assert "sequence': 1, 'why': 'it is no record'" in seen.reports[0]
        await place.submit(1)  # Its fact stores the position.
        await seen.until(lambda: machine.jobs == ["j1"])

    again, seen = Counter(), Seen()
    shell = place.shell(again, seen)
    await publish(b"!")
    await publish(writer.record([_ended("j3")]))
    async with running(shell):
        await seen.until(lambda: len(seen.events) == 2)
        facts: list[Any] = [event.facts for event in again.events if isinstance(event, Facts)]
        assert [each.job for (each,) in facts] == ["j3"], "from where it was, in spite of them"
        assert shell.foreign.latest == "ALLOC 6: it is no record"


@pytest.mark.asyncio
async def test_a_follower_far_into_a_stream_knows_its_chain() -> None:
    place, writer = Place(), RecordWriter()
    store = place.store

    async def publish(payload: bytes) -> None:
        await place.client.publish(subjects.ALLOC_FACTS, payload, f"{payload!r}", {})

    for number in range(128):
        await publish(writer.record([_ended(f"j{number}")]))
        if number % 3 == 0:
            await publish(b"%d" % number)
    last = len(place.broker.stream(subjects.ALLOC).messages)
    log = MemoryFactLog(store, Noted)
    assert [record async for record in log.replay()] == []
    await log.begin_epoch("earlier", place.clock.now())
    await log.append((), {subjects.ALLOC: last}, place.clock.now())
    forged = {"v": 1, "n": 10**9, "prev": "0" * 64, "epoch": 1, "at": 1, "pos": {}, "facts": []}
    await publish(codec.encode(forged))
    await publish(writer.record([_ended("new")]))
    machine, seen = Counter(), Seen()
    async with running(place.shell(machine, seen)):
        await seen.until(lambda: len(seen.events) == 2)
    facts: list[Any] = [event.facts for event in machine.events if isinstance(event, Facts)]
    assert [each.job for (each,) in facts] == ["new"]
    assert any("is record 1000000000" in report for report in seen.reports)


@pytest.mark.asyncio
async def test_a_fact_stream_that_ends_before_the_position_is_the_end() -> None:
    place, writer = Place(), RecordWriter()
    log = place.log()
    assert [record async for record in log.replay()] == []
    await log.begin_epoch("earlier", place.clock.now())
    await log.append((), {subjects.ALLOC: 70}, place.clock.now())
    for number in range(69):
        await place.client.publish(
            subjects.ALLOC_FACTS, writer.record([_ended(f"j{number}")]), f"k{number}", {}
        )
    with pytest.raises(CorruptLogError, match="ends at 69, but 70 was delivered"):
        await place.shell(Counter(), Seen()).run()


def test_a_machine_without_calls_must_not_call() -> None:
    place = Place()
    shell = Shell(
        Counter(),
        bus=place.client,
        clock=place.clock,
        observer=Seen(),
        owner="t",
        failures=none_failed(),
        foreign=ForeignSeen(Seen().report),
    )
    assert shell.decide_us() == {}
    with pytest.raises(AssertionError, match="nothing carries out"):
        shell._calls.start("anything", _never)


async def _never(event: Any) -> None:
    raise AssertionError(event)


# --- snapshots ----------------------------------------------------------------------------------


class Kept:
    """A keeper that stores when it is let, or fails."""

    def __init__(self) -> None:
        self.kept: list[tuple[list[str], dict[str, int], int]] = []
        self.may_store = asyncio.Event()
        self.error: Exception | None = None
        self.ended: asyncio.Queue[None] = asyncio.Queue()

    def keep(
        self, entries: Sequence[Any], positions: Mapping[str, int], at: Instant, facts: int
    ) -> Awaitable[None]:
        del at
        self.kept.append(([entry.job for entry in entries], dict(positions), facts))
        return self._store()

    async def _store(self) -> None:
        await self.may_store.wait()
        self.ended.put_nowait(None)
        if self.error is not None:
            raise self.error


@pytest.mark.asyncio
async def test_a_snapshot_is_kept_when_enough_was_recorded_since_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "KEEP_EVERY", 3)
    monkeypatch.setattr(shell, "KEEP_SHARE", 1)
    place, machine, seen, keeper = Place(), Counter(), Seen(), Kept()

    def noted(jobs: int) -> bool:
        return len(machine.jobs) == jobs

    async with running(place.shell(machine, seen, keeper=keeper)):
        for number in range(1, 10):
            await place.submit(number)
            await seen.until(partial(noted, number))
            if number == 6:
                # Due again, but the first is still being stored.
                assert len(keeper.kept) == 1
                keeper.may_store.set()
                await keeper.ended.get()
        await keeper.ended.get()
    first, second = keeper.kept
    assert first == (["j1", "j2", "j3"], {"SUBMIT": 3}, 3)
    # The next is due with as many facts more as this one has entries: not in this test.
    assert second == ([f"j{number}" for number in range(1, 8)], {"SUBMIT": 7}, 7)


@pytest.mark.asyncio
async def test_that_a_snapshot_cannot_be_stored_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "KEEP_EVERY", 1)
    monkeypatch.setattr(shell, "KEEP_SHARE", 0)
    place, machine, seen, keeper = Place(), Counter(), Seen(), Kept()
    keeper.error = RefusedError("maximum bytes exceeded")
    keeper.may_store.set()
    made = place.shell(machine, seen, keeper=keeper)
    async with running(made):
        await place.submit(1)
        await keeper.ended.get()
        await place.submit(2)
        await seen.until(lambda: len(machine.jobs) == 2)
    assert made.keep_failed == "maximum bytes exceeded"


@pytest.mark.asyncio
async def test_recovery_from_a_snapshot_counts_what_it_stands_for() -> None:
    place, machine = Place(), Counter()

    class FromSnapshot(MemoryFactLog):
        async def replay(self) -> AsyncIterator[LogRecord]:
            async for _ in super().replay():
                pass
            yield LogRecord(0, 0, Instant(0), {"SUBMIT": 2}, (Noted("j1"),), stands_for=70)

    made = place.shell(machine, Seen(), log=FromSnapshot(place.store, Noted))
    await place.submit(1)
    await place.submit(2)
    async with running(made):
        assert (machine.jobs, made.positions, made.facts_applied) == (["j1"], {"SUBMIT": 2}, 70)


@pytest.mark.asyncio
async def test_what_was_decided_on_is_noted_with_the_facts() -> None:
    place, seen = Place(), Seen()
    async with running(place.shell(Counter(), seen, notes=InputNotes())):
        await place.submit(1)
        await seen.until(lambda: len(seen.events) > 1)
        await place.client.publish(subjects.cancel("nlp"), b"{}", "c", {})
        await seen.until(lambda: len(seen.events) > 3)
        place.clock.advance(ALARM)
        await seen.until(lambda: Tick() in seen.events)
        await place.submit(2)
        await seen.until(lambda: len(seen.events) > 5)
    reader = NotesReader()
    records = [record async for record in place.log().replay()]
    noted = [
        one for record in records for one in (reader.read(record.noted) if record.noted else ())
    ]
    assert [(one.restarted, one.stream, one.sequence, one.led) for one in noted] == [
        (True, "", 0, True),
        (False, subjects.SUBMIT, 1, True),
        (False, subjects.SUBMIT, 2, False),
        (False, "", 0, False),
        (False, subjects.SUBMIT, 3, True),
    ]
    assert sum(bool(record.noted) for record in records) == 2


@pytest.mark.asyncio
async def test_a_batch_of_long_advice_is_noted_in_several_records() -> None:
    """A process that was stopped for minutes finds an advice for every half second of them."""
    place, seen, rounds = Place(), Seen(), 64
    reader = NotesReader()
    told = [
        QueueAdvice(
            at=Instant(1),
            expires_at=Instant(2),
            jobs=tuple(
                JobAdvice(
                    job=f"j{10**15 + job}",
                    why=Reason.PREDICTED_SHORTEST,
                    remaining=Duration(10**15 + number),
                )
                for job in range(ADVISED_MAX)
            ),
        )
        for number in range(rounds)
    ]
    made = place.shell(Counter(), seen, notes=InputNotes())
    async with running(made):
        for advice in told:
            await made.put(advice)
        await seen.until(lambda: len(seen.events) > rounds)
        await place.submit(1)
        await seen.until(lambda: len(seen.events) > rounds + 1)
    records = [record async for record in place.log().replay()]
    assert len(records) > 3
    noted = [one for record in records if record.noted for one in reader.read(record.noted)]
    assert [one.message for one in noted[1:-1]] == told


@pytest.mark.asyncio
async def test_notes_of_an_idle_time_are_stored_without_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "NOTES_BYTES", 30)
    place, seen = Place(), Seen()
    async with running(place.shell(Counter(), seen, notes=InputNotes())):
        await place.client.publish(subjects.cancel("nlp"), b"{}", "c", {})
        await seen.until(lambda: len(seen.events) > 2)
    records = [record async for record in place.log().replay()]
    assert [(record.facts[1:], bool(record.noted)) for record in records] == [
        ((), False),
        ((), True),
    ]
    assert records[-1].positions == {subjects.SUBMIT: 1}
