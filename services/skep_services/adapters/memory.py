"""The reference: a bus, a fact log and a clock in memory, with the contracts of the real ones.

Everything in one process and one loop; nothing is lost unless a test says so. Other adapters pass
the same tests.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from skep.units import MIB, Duration, Instant
from skep.wire.bearing import RULES
from skep.wire.facts import EpochBegan
from skep.wire.subjects import KEY_HEADER
from skep_services.adapters.records import Chain
from skep_services.ports import (
    Clock,
    CorruptLogError,
    Deliver,
    Delivery,
    LogRecord,
    MissingLogError,
    MissingStreamError,
    RefusedError,
    Subscription,
    SupersededError,
)

LISTEN_MESSAGES_MAX = 16_384
MESSAGE_BYTES_MAX = MIB
MANUAL_BEGIN = Instant(1_700_000_000_000_000_000)
"""Where manual time begins: a real date, so that a mixed-up unit shows."""


class ManualClock:
    """Time that stands still until a test moves it."""

    def __init__(self, now: Instant = MANUAL_BEGIN) -> None:
        self._now = now
        self._order = itertools.count()
        self._sleepers: list[tuple[Instant, int, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        return self._now

    async def sleep_until(self, instant: Instant) -> None:
        if instant <= self._now:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (instant, next(self._order), future))
        await future

    def advance(self, duration: Duration) -> None:
        """Move time on and wake, in order, those whose time has come."""
        assert duration >= 0, "time never runs backwards"
        self._now = Instant(self._now + duration)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    @property
    def next_wake(self) -> Instant | None:
        """When the next sleeper wants to wake, or None."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


class _Stream:
    """A kept sequence of messages; sequence n is at index n - 1."""

    def __init__(self, subjects: tuple[str, ...], message_max: int) -> None:
        self.subjects = subjects
        self.message_max = message_max
        self.messages: list[Delivery] = []
        self.keys: dict[str, int] = {}


class MemoryBroker:
    """What the processes of one test share: topics and streams.

    It outlives the buses, as a server outlives its clients. `clock` stamps what is stored.
    """

    def __init__(self, clock: Clock) -> None:
        self.pumps: dict[int, _Pump] = {}
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._inboxes = itertools.count(1)

    def add_stream(
        self, name: str, subjects: Sequence[str], message_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        """Create a stream that keeps what is published on `subjects`."""
        assert name not in self._streams, name
        self._streams[name] = _Stream(tuple(subjects), message_max)

    def drop_stream(self, name: str) -> None:
        """Lose a stream and everything in it; its followers learn it."""
        del self._streams[name]
        self._wake(name)

    def stream(self, name: str) -> _Stream:
        """Return a stream.

        Raises:
            _missing: A MissingStreamError: there is no such stream.
        """
        found = self._streams.get(name)
        if found is None:
            raise _missing(name)
        return found

    def new_inbox(self, identity: str) -> str:
        """Return a subject with no other user."""
        return f"_INBOX.{identity}.{next(self._inboxes)}"

    def send(self, message: Delivery) -> bool:
        """Hand a core message to every listener and return whether there was one."""
        heard = False
        for pump in list(self.pumps.values()):
            if isinstance(pump, _Listen) and matches(pump.subject, message.subject):
                pump.take(message)
                heard = True
        return heard

    def store(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> int:
        """Append to the stream of `subject`, once per key, and return the sequence.

        Args:
            subject: A subject that a stream keeps.
            headers: Its headers, among them KEY_HEADER.

        Raises:
            RefusedError: The payload is larger than the stream takes.
            MissingStreamError: No stream keeps `subject`.
        """
        name, stream = self._stream_of(subject)
        if len(payload) > stream.message_max:
            message = f"{subject} ({len(payload)} bytes): {name} takes {stream.message_max}"
            raise RefusedError(message)
        key = headers[KEY_HEADER]
        if key not in stream.keys:
            delivery = Delivery(
                subject=subject,
                payload=payload,
                headers=dict(headers),
                stream=name,
                sequence=len(stream.messages) + 1,
                at=self._clock.now(),
            )
            stream.messages.append(delivery)
            stream.keys[key] = delivery.sequence
            self._wake(name)
        return stream.keys[key]

    def _stream_of(self, subject: str) -> tuple[str, _Stream]:
        for name, stream in self._streams.items():
            if any(matches(pattern, subject) for pattern in stream.subjects):
                return name, stream
        message = f"no stream keeps {subject}"
        raise MissingStreamError(message)

    def _wake(self, stream: str) -> None:
        for pump in list(self.pumps.values()):
            if isinstance(pump, _Follow) and pump.stream == stream:
                pump.wake()


class MemoryBus:
    """One process's connection to a MemoryBroker."""

    def __init__(
        self, broker: MemoryBroker, identity: str, on_fatal: Callable[[Exception], None]
    ) -> None:
        self.identity = identity
        self.listens_dropped = 0
        self._broker = broker
        self._on_fatal = on_fatal
        self._running: dict[int, _Pump] = {}

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        _check_subject(subject)
        if len(payload) > MESSAGE_BYTES_MAX:
            message = f"{subject}: {len(payload)} bytes, the bus takes {MESSAGE_BYTES_MAX}"
            raise RefusedError(message)
        self._broker.send(Delivery(subject=subject, payload=payload, headers=dict(headers)))
        # As on a real bus, the receivers have their turn before the sender goes on for long.
        await asyncio.sleep(0)

    async def publish(
        self, subject: str, payload: bytes, key: str, headers: Mapping[str, str]
    ) -> int:
        """Publish into a stream; see the port. An empty `key` stands for one of its own."""
        _check_subject(subject)
        await asyncio.sleep(0)
        key = key or self._broker.new_inbox(self.identity)
        return self._broker.store(subject, payload, {**headers, KEY_HEADER: key})

    async def follow(
        self,
        stream: str,
        after: int,
        deliver: Deliver,
        subjects: Sequence[str] = (),
        known: int = 0,
    ) -> Subscription:
        kept = self._broker.stream(stream)
        known = max(known, after)
        if known > len(kept.messages):
            message = (
                f"stream {stream} ends at {len(kept.messages)}, but {known} was delivered from it"
            )
            raise CorruptLogError(message)
        follow = _Follow(self._broker, stream, after, deliver, tuple(subjects), self._on_fatal)
        return self._start(follow)

    async def listen(self, subject: str, deliver: Deliver) -> Subscription:
        return self._start(_Listen(self._broker, subject, deliver, self._on_fatal))

    def _start(self, pump: _Pump) -> Subscription:
        self._running[id(pump)] = pump
        pump.start(lambda: self._forget(pump))
        return pump

    def _forget(self, pump: _Pump) -> None:
        if self._running.pop(id(pump), None) is not None and isinstance(pump, _Listen):
            self.listens_dropped += pump.dropped

    async def request(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Delivery | None:
        _check_subject(subject)
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        async def take(delivery: Delivery) -> None:
            if not answer.done():
                answer.set_result(delivery)

        inbox = self._broker.new_inbox(self.identity)
        subscription = await self.listen(inbox, take)
        try:
            heard = self._broker.send(
                Delivery(subject=subject, payload=payload, headers=dict(headers), reply=inbox)
            )
            async with asyncio.timeout(timeout_s):
                return await answer if heard else None
        except TimeoutError:
            return None
        finally:
            await subscription.close()

    async def close(self) -> None:
        """End every subscription."""
        for pump in list(self._running.values()):
            await pump.close()


class _Pump:
    """A task that hands deliveries to `deliver`, one after the other."""

    def __init__(
        self, broker: MemoryBroker, deliver: Deliver, on_fatal: Callable[[Exception], None]
    ) -> None:
        self._broker = broker
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._on_close: Callable[[], None] = lambda: None

    def start(self, on_close: Callable[[], None]) -> None:
        self._on_close = on_close
        self._broker.pumps[id(self)] = self
        self._some.set()
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        self._some.set()

    def next(self) -> Delivery | None:
        """Return what to deliver next, or None if nothing waits."""
        raise NotImplementedError

    async def _run(self) -> None:
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                while (delivery := self.next()) is not None:
                    await self._deliver(delivery)
        except Exception as error:
            self._on_fatal(error)

    async def close(self) -> None:
        self._broker.pumps.pop(id(self), None)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._on_close()


class _Listen(_Pump):
    def __init__(
        self,
        broker: MemoryBroker,
        subject: str,
        deliver: Deliver,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        super().__init__(broker, deliver, on_fatal)
        self.subject = subject
        self.dropped = 0
        self._waiting: deque[Delivery] = deque()

    def take(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        if len(self._waiting) > LISTEN_MESSAGES_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self.wake()

    def next(self) -> Delivery | None:
        return self._waiting.popleft() if self._waiting else None


class _Follow(_Pump):
    def __init__(
        self,
        broker: MemoryBroker,
        stream: str,
        after: int,
        deliver: Deliver,
        subjects: tuple[str, ...],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        super().__init__(broker, deliver, on_fatal)
        self.stream = stream
        self._after = after
        self._subjects = subjects

    def next(self) -> Delivery | None:
        """Return what to deliver next, or None if nothing waits.

        Raises:
            MissingStreamError: The stream is gone; that ends the follow.
        """
        messages = self._broker.stream(self.stream).messages
        while self._after < len(messages):
            delivery = messages[self._after]
            self._after += 1
            if not self._subjects or any(matches(one, delivery.subject) for one in self._subjects):
                return delivery
        return None


def matches(pattern: str, subject: str) -> bool:
    """Return whether `subject` falls under `pattern` (`*`: one token, `>`: one or more)."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(given) > index
        if index >= len(given) or part not in {"*", given[index]}:
            return False
    return len(wanted) == len(given)


def _check_subject(subject: str) -> None:
    if not subject or any(mark in subject for mark in " \t\r\n"):
        message = f"{subject!r} is no subject"
        raise RefusedError(message)


def _missing(stream: str) -> MissingStreamError:
    return MissingStreamError(f"stream {stream} does not exist")


class MemoryLogStore:
    """What a fact log leaves behind when its process dies: the records' bytes.

    Several MemoryFactLog over one store are processes that compete for it. Sequence n is at index
    n - 1; what was taken out is None.
    """

    def __init__(self) -> None:
        self.records: list[bytes | None] = []
        self.exists = True


class MemoryFactLog:
    """A fact log in memory. `facts` is the union of its fact classes.

    `foreign` lists the sequences of messages that are no records, and why.
    """

    def __init__(self, store: MemoryLogStore, facts: Any, name: str = "memory") -> None:
        self.foreign: list[tuple[int, str]] = []
        self._store = store
        self._chain = Chain(f"fact log {name}", facts)
        self._name = name
        self._sequence = 0
        self._replayed = False
        self._owner = ""

    async def replay(self) -> AsyncIterator[LogRecord]:
        assert not self._owner, "what this process appends it has applied"
        if not self._store.exists:
            message = f"fact log {self._name} is gone"
            raise MissingLogError(message)
        while self._sequence < len(self._store.records):
            payload = self._store.records[self._sequence]
            self._sequence += 1
            if payload is not None:
                record = self._chain.read_at(payload, self._sequence)
                if isinstance(record, str):
                    self.foreign.append((self._sequence, record))
                else:
                    yield record
        self._replayed = True

    async def begin_epoch(self, owner: str, at: Instant) -> LogRecord:
        assert self._replayed, "an epoch begins behind the replayed log"
        assert owner, "the owner's name makes its records its own"
        assert not self._owner, "one process begins one epoch"
        self._chain.refuse_doubt()
        self._owner = owner
        epoch = self._chain.epoch + 1
        return await self._append(
            (EpochBegan(epoch=epoch, owner=owner, rules=RULES),), {}, at, epoch
        )

    async def append(
        self, facts: Sequence[Any], positions: Mapping[str, int], at: Instant, noted: bytes = b""
    ) -> LogRecord:
        assert self._owner, "append follows begin_epoch"
        return await self._append(facts, positions, at, self._chain.epoch, noted)

    async def _append(
        self,
        facts: Sequence[Any],
        positions: Mapping[str, int],
        at: Instant,
        epoch: int,
        noted: bytes = b"",
    ) -> LogRecord:
        record, payload = self._chain.encode(facts, positions, at, epoch, noted)
        await asyncio.sleep(0)
        for stored in self._store.records[self._sequence :]:
            self._sequence += 1
            why = self._chain.links.foreign(stored, self._sequence) if stored is not None else ""
            if why:
                self.foreign.append((self._sequence, why))
            elif stored is not None:
                message = (
                    f"fact log {self._name}: another process wrote record {record.counter}; "
                    f"this one is {self._owner}"
                )
                raise SupersededError(message)
        self._store.records.append(payload)
        self._sequence += 1
        self._chain.advance(record, payload)
        self._chain.links.took(record.counter, self._chain.hash, self._sequence)
        return record
