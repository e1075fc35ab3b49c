"""Streams and fact logs as the bus keeps them: what is stored stays, in order.

A fact log is fenced: an append names the sequence it expects to follow, and is refused if another
process appended meanwhile. With the fence off (a test switch) every append is taken, which is how
the simulator shows that it would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from skep.machines import admission, allocator
from skep.units import Instant
from skep.wire.bounds import LogDecoder
from skep.wire.facts import AdmissionFact, AgentFact, AllocatorFact

ENCODER = msgspec.json.Encoder()


class Stored(NamedTuple):
    """A message of a stream."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    sequence: int
    at: Instant


class Stream:
    """A kept sequence of messages; sequence n is at index n - 1.

    `keys` remembers idempotency keys for a while: once they are forgotten (`forget_keys`), a
    repeated publish makes a second message, as a real bus does after its window.
    """

    def __init__(self, name: str) -> None:
        """Start empty."""
        self.name = name
        self.messages: list[Stored] = []
        self.keys: dict[str, int] = {}
        self.wakes: dict[int, Callable[[], None]] = {}
        """Who wants to know of new messages, by a number of its own."""

    def store(
        self, subject: str, payload: bytes, headers: Mapping[str, str], key: str, at: Instant
    ) -> int:
        """Keep a message, unless its key is remembered.

        Args:
            subject: Where it is published.
            payload: What is published.
            headers: Its headers.
            key: Its idempotency key; empty: none.
            at: When it is stored.

        Returns:
            Its sequence, or that of the message that had the key before.
        """
        if key and key in self.keys:
            return self.keys[key]
        sequence = len(self.messages) + 1
        self.messages.append(Stored(subject, payload, headers, sequence, at))
        if key:
            self.keys[key] = sequence
        for wake in list(self.wakes.values()):
            wake()
        return sequence

    def forget_keys(self) -> None:
        """Let the window in which repeated keys are noticed pass."""
        self.keys.clear()


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One append: counter, epoch, time, input positions consumed, facts, and what it notes."""

    n: int
    epoch: int
    at: Instant
    pos: dict[str, int]
    facts: tuple[Any, ...]
    noted: bytes = b""


class _AdmissionRecord(LogRecord, frozen=True):
    facts: tuple[AdmissionFact, ...]


class _AllocatorRecord(LogRecord, frozen=True):
    facts: tuple[AllocatorFact, ...]


class _AgentRecord(LogRecord, frozen=True):
    facts: tuple[AgentFact, ...]


_DECODERS: dict[str, LogDecoder[Any]] = {
    "admission": LogDecoder(_AdmissionRecord),
    "allocator": LogDecoder(_AllocatorRecord),
    "agent": LogDecoder(_AgentRecord),
}


_KEPT: dict[str, LogDecoder[Any]] = {
    "admission": LogDecoder(tuple[admission.Kept, ...]),
    "allocator": LogDecoder(tuple[allocator.Kept, ...]),
}


class Kept(NamedTuple):
    """A snapshot: how many records it stands for, the last one's counter and epoch, and entries."""

    records: int
    n: int
    epoch: int
    pos: dict[str, int]
    entries: bytes


class Watcher(Protocol):
    """Something that sees every record that is taken."""

    def record(self, record: LogRecord) -> None:
        """Take a record.

        Raises:
            ViolationError: The record must not be.
        """
        ...

    def compacted(self, counter: int) -> None:
        """Note that the log was rewritten and goes on behind `counter`.

        Args:
            counter: The counter of the last record that is left.
        """
        ...


class FactLog:
    """The append-only truth of one service, in JSON. `watch` sees every record that is taken."""

    def __init__(self, service: str, watch: Watcher, *, fenced: bool) -> None:
        """Start empty."""
        self.service = service
        self.fenced = fenced
        self.payloads: list[bytes] = []
        self.refused = 0
        self.kept: Kept | None = None
        self._decoder = _DECODERS[service]
        self._watch = watch

    def append(self, payload: bytes, expected: int) -> bool:
        """Take a record if nothing was appended behind the writer's back.

        Args:
            payload: The record in JSON.
            expected: How many records the writer knows of.

        Returns:
            Whether it was taken.
        """
        if self.fenced and expected != len(self.payloads):
            self.refused += 1
            return False
        self.payloads.append(payload)
        self._watch.record(self._decoder.decode(payload))
        return True

    def replay(self) -> list[LogRecord]:
        """Return every record, read from its bytes."""
        return self.tail(0)

    def keep(
        self, entries: Sequence[Any], records: int, n: int, epoch: int, pos: dict[str, int]
    ) -> None:
        """Keep a snapshot of a process that wrote so many records, and was perhaps deposed since.

        Args:
            entries: The pieces of the snapshot.
            records: How many records it stands for.
            n: The counter of the last of them.
            epoch: The epoch of the last of them.
            pos: By stream, the position up to which they were read.
        """
        if self.fenced:
            self.kept = Kept(records, n, epoch, pos, ENCODER.encode(list(entries)))

    def entries(self, kept: Kept) -> tuple[Any, ...]:
        """Return a snapshot's entries, read from its bytes."""
        entries: tuple[Any, ...] = _KEPT[self.service].decode(kept.entries)
        return entries

    def tail(self, records: int) -> list[LogRecord]:
        """Return every record behind the first `records`, read from its bytes.

        Args:
            records: How many records to leave out.
        """
        return [self._decoder.decode(payload) for payload in self.payloads[records:]]

    def compact(self, facts: Sequence[Any], epoch: int, at: Instant) -> None:
        """Replace all records by one that holds `facts`.

        Args:
            facts: What rebuilds the machine.
            epoch: The epoch of the record.
            at: The time of the record.
        """
        record = LogRecord(1, epoch, at, {}, tuple(facts))
        self.payloads = [ENCODER.encode(record)]
        self._watch.compacted(1)
