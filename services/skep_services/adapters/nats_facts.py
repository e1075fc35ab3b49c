"""A service's fact log as one JetStream stream: one message per record, one writer at a time.

The fence is the expected last sequence that every append carries: the server stores a record only
directly behind the last one this process knows. The first to append wins, and the other learns
it from the refusal. No read, clock or lease is trusted for that.

An append without an answer may be stored or not, so it is sent again, byte for byte and with the
same Nats-Msg-Id, until there is an answer. The server may then say "duplicate" or "wrong last
sequence", and both may mean our own first attempt: the message stored behind our last record
decides, because a stored message never changes.

What stands there and does not continue the chain is no record: it is passed over and reported, and
the append goes behind it (`links`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skep.units import MIB, Instant
from skep.wire.bearing import RULES
from skep.wire.commands import RESTORE_STEP
from skep.wire.facts import EpochBegan
from skep.wire.subjects import KEY_HEADER
from skep_services.adapters.log_end import LogEnd
from skep_services.adapters.nats_api import (
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    Pauses,
    PubAck,
    Stored,
    StoredMessage,
    StreamInfo,
    ask,
    first_epoch,
    missing,
    publish_once,
    refused,
    stream_info,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_follow import Batch, Follow
from skep_services.adapters.nats_kept import NatsSnapshots, Whole
from skep_services.adapters.nats_link import Link, Silence
from skep_services.adapters.records import Chain
from skep_services.links import Foreign, digest_of
from skep_services.ports import (
    CorruptLogError,
    Delivery,
    LogRecord,
    MissingLogError,
    MissingStreamError,
    SupersededError,
)

log = logging.getLogger(__name__)

APPEND_TIMEOUT_S = 2.0
"""How long one append waits for its acknowledgement before it is sent again; 0.5 ms is usual."""
STALE_S = 20.0
"""How long a replica that was cut off from the others may answer with a state of the past: it takes
the server 10 s to notice, and an election 4 to 9 s."""
STALE_LOOK_S = 0.5
REPLAY_BATCH = Batch(messages=2048, size=8 * MIB)
"""Large, because replay is recovery time, and the log is read by this process alone."""
REPLAY_WAITING_MAX = 4096
ARCHIVE_SLICE = 256
"""Archived records between two moments in which others may run."""
EXPECTED_SEQUENCE = "Nats-Expected-Last-Sequence"
EXPECTED_STREAM = "Nats-Expected-Stream"


class MissingFactStreamError(MissingStreamError, MissingLogError):
    """The stream of a fact log does not exist: an operator has to look."""


class _Reader:
    """The messages of a stream behind sequence `after`, one at a time, as they come."""

    def __init__(self, link: Link, stream: str, after: int) -> None:
        self._waiting: deque[Delivery] = deque()
        self._some, self._room = asyncio.Event(), asyncio.Event()
        self._follow = Follow(link, stream, after, self._take, batch=REPLAY_BATCH)

    async def start(self) -> None:
        await self._follow.start()

    async def _take(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._some.set()
        if len(self._waiting) >= REPLAY_WAITING_MAX:
            self._room.clear()
            await self._room.wait()

    async def next(self) -> Delivery:
        while not self._waiting:
            self._room.set()
            self._some.clear()
            await self._some.wait()
        return self._waiting.popleft()

    async def close(self) -> None:
        await self._follow.close()


def _unheard(stream: str, sequence: int, why: str) -> None:
    log.warning("%s %d is foreign: %s", stream, sequence, why)


class NatsFactLog:
    """The fact log of `service` in `stream`, written on `subject`.

    `facts` is the union of its fact classes; EpochBegan need not be in it. `kept` is that of what
    its machine's snapshots consist of; without it none is read or kept. `end` is the file in
    which this host's processes remember how far the log reaches. `foreign` is told of each message
    that is no record of this log. One process uses one instance: `replay` to its end,
    `begin_epoch`, then `append`, never two at once.
    """

    def __init__(
        self,
        bus: NatsBus,
        *,
        stream: str,
        subject: str,
        service: str,
        facts: Any,
        end: Path,
        kept: Any = None,
        foreign: Foreign = _unheard,
    ) -> None:
        self._archive = bus.archive
        self._snapshots = NatsSnapshots(bus, stream, kept) if kept is not None else None
        self._link = bus.link
        self._stream = stream
        self._subject = subject
        self._service = service
        self._chain = Chain(f"fact log {stream}", facts)
        self._end = LogEnd(end)
        self._sequence = 0
        """Where the stream is known to end. The last record may stand before it: see `links`."""
        self._foreign = foreign
        self._owner = ""
        self._reader: _Reader | None = None
        self._replayed = False
        self._appending = False
        self._first_epoch = 0

    async def replay(self) -> AsyncIterator[LogRecord]:
        """Yield every record in order that no earlier call yielded, counter and chain verified.

        The first call that finds any opens a reader, which stays open until the epoch begins.

        Raises:
            CorruptLogError: The log does not begin at 1, ends before what was stored, or has a
                record that does not continue the chain.
            MissingFactStreamError: The stream does not exist.
        """
        assert not self._owner, "what this process appends it has applied"
        info = await self._look()
        self._first_epoch = first_epoch(info.config)
        target = info.state.last_seq
        if target and not self._replayed:
            async for kept in self._kept(target):
                yield kept
        if not self._sequence and info.state.messages and info.state.first_seq > 1:
            async for old in self._archived(info.state.first_seq):
                yield old
        # What was taken out leaves gaps, also at the end: a reader must not wait for it.
        readable = await self._last_readable(info) if target > self._sequence else 0
        if readable > self._sequence and self._reader is None:
            self._reader = _Reader(self._link, self._stream, self._sequence)
            await self._reader.start()
        while self._sequence < readable:
            assert self._reader is not None
            delivery = await self._reader.next()
            record = self._chain.read_at(delivery.payload, delivery.sequence)
            self._sequence = delivery.sequence
            digest = digest_of(delivery.payload) if isinstance(record, str) else self._chain.hash
            self._refuse(self._end.contradicts(self._sequence, digest))
            if isinstance(record, str):
                self._foreign(self._stream, delivery.sequence, record)
            else:
                yield record
        self._sequence = max(self._sequence, target)
        self._refuse(self._end.missing(self._chain.links.sequence))
        self._end.note(self._chain.links.sequence, self._chain.hash)
        self._replayed = True

    async def _last_readable(self, info: StreamInfo) -> int:
        """Return the place of the last message that is in the stream; 0 if none is.

        A replica that was cut off knows fewer: it is believed only after a while.
        """
        asked = {"last_by_subj": self._subject}
        patience = STALE_S if info.config.get("num_replicas", 1) > 1 else 0.0
        deadline = time.monotonic() + patience
        while True:
            stored = await ask(self._link, f"STREAM.MSG.GET.{self._stream}", asked, StoredMessage)
            last = stored.message.seq if stored.message is not None else 0
            if last >= info.state.last_seq or time.monotonic() >= deadline:
                return last
            await asyncio.sleep(STALE_LOOK_S)

    async def _look(self) -> StreamInfo:
        """Return the stream's state.

        Raises:
            MissingFactStreamError: The stream does not exist.
            CorruptLogError: It ends before what was stored.
        """
        deadline = time.monotonic() + STALE_S
        while True:
            try:
                info = await stream_info(self._link, self._stream)
            except MissingStreamError as error:
                raise MissingFactStreamError(*error.args) from error
            missing = self._end.missing(info.state.last_seq)
            stale = info.config.get("num_replicas", 1) > 1 and time.monotonic() < deadline
            if not missing or not stale:
                self._refuse(missing)
                return info
            await asyncio.sleep(STALE_LOOK_S)

    def _refuse(self, wrong: str) -> None:
        """Refuse the log if anything is wrong with it.

        Args:
            wrong: What is wrong, in words; empty: nothing.

        Raises:
            CorruptLogError: Something is wrong.
        """
        if wrong:
            message = (
                f"{self._chain.name}: {wrong}: the bus lost acknowledged records. Restore it from "
                f"a backup; if that is older on purpose, remove {self._end.path} first"
            )
            raise CorruptLogError(message)

    async def _kept(self, target: int) -> AsyncIterator[LogRecord]:
        """Yield the latest snapshot that is of this log, if there is one; go on behind it."""
        if self._snapshots is None:
            return
        found = await self._snapshots.latest()
        if found is None or not await self._is_ours(found[0], target):
            # Of a log that was set back since, or damaged: the one before it may do.
            found = await self._snapshots.before(found[0].sequence if found else target + 1)
            if found is None or not await self._is_ours(found[0], target):
                return
        whole, entries = found
        self._chain.resume(whole.counter, whole.epoch, whole.hash)
        self._chain.links.took(whole.counter, whole.hash, whole.sequence)
        self._sequence = whole.sequence
        yield LogRecord(
            whole.counter,
            whole.epoch,
            whole.at,
            whole.positions,
            tuple(entries),
            stands_for=whole.facts,
        )

    async def _is_ours(self, whole: Whole, target: int) -> bool:
        """Return whether a snapshot stands for a record of this log."""
        if whole.sequence > target:
            return False
        asked = {"seq": whole.sequence}
        stored = await ask(self._link, f"STREAM.MSG.GET.{self._stream}", asked, StoredMessage)
        return digest_of(stored.payload) == whole.hash

    async def _archived(self, first: int) -> AsyncIterator[LogRecord]:
        """Yield the records before those that the stream still has, out of the archive.

        Args:
            first: Where the stream begins.

        Raises:
            CorruptLogError: There is no archive of them, or it is damaged.
        """
        if self._archive is None or self._archive.last(self._stream) < first - 1:
            where = f" in {self._archive.folder}" if self._archive is not None else ""
            message = (
                f"{self._chain.name} begins at sequence {first}, not at 1: there is neither a "
                f"snapshot that stands for what is before it nor an archive{where} (SKEP_ARCHIVE)"
            )
            raise CorruptLogError(message)
        for number, delivery in enumerate(self._archive.read(self._stream)):
            if delivery.sequence >= first:
                return
            record = self._chain.read_at(delivery.payload, delivery.sequence)
            self._sequence = delivery.sequence
            if not isinstance(record, str):
                yield record
            if number % ARCHIVE_SLICE == 0:
                await asyncio.sleep(0)

    def keep(
        self, entries: Sequence[Any], positions: Mapping[str, int], at: Instant, facts: int
    ) -> Awaitable[None]:
        """Encode a snapshot, and return what stores it; see the port."""
        assert self._snapshots is not None, "this log keeps no snapshots"
        assert self._owner, "a process that does not write the log keeps nothing"
        prepared = self._snapshots.prepare(
            entries,
            self._chain,
            self._chain.links.sequence,
            positions,
            at,
            facts=facts,
            owner=self._owner,
        )
        return self._snapshots.store(prepared)

    async def close(self) -> None:
        """Stop reading; the log can still be written."""
        if self._reader is not None:
            await self._reader.close()
            self._reader = None

    async def begin_epoch(self, owner: str, at: Instant) -> LogRecord:
        assert self._replayed, "an epoch begins behind the replayed log"
        assert owner, "the owner's name makes its records its own"
        assert not self._owner, "one process begins one epoch"
        self._chain.refuse_doubt()
        await self.close()
        self._owner = owner
        epoch = self._chain.epoch + 1
        if self._first_epoch > epoch:
            epoch = max(self._first_epoch, self._chain.epoch + RESTORE_STEP)
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
        assert not self._appending, "one append at a time: the next one builds on its hash"
        record, payload = self._chain.encode(facts, positions, at, epoch, noted)
        self._appending = True
        self._sequence = await self._store(
            payload, f"{self._service}-{epoch}-{record.counter}-{self._owner}"
        )
        self._chain.advance(record, payload)
        self._chain.links.took(record.counter, self._chain.hash, self._sequence)
        self._end.note(self._sequence, self._chain.hash)
        # Left set by an exception on purpose: what is in the log is unknown then, so this
        # process must not append again.
        self._appending = False
        return record

    async def _store(self, payload: bytes, key: str) -> int:
        """Store `payload` directly behind the last known record and return its sequence.

        Raises:
            refused: A RefusedError: the server's answer is one that no repetition changes.
            SupersededError: Another process continued the log.
            MissingStreamError: The stream is gone.
            CorruptLogError: The stream ends before the last known record.
        """
        pauses = Pauses()
        own = key
        while True:
            headers = {
                KEY_HEADER: own,
                EXPECTED_SEQUENCE: str(self._sequence),
                EXPECTED_STREAM: self._stream,
            }
            ack = await publish_once(self._link, self._subject, payload, headers, APPEND_TIMEOUT_S)
            if isinstance(ack, PubAck):
                if ack.error is None and not ack.duplicate:
                    return ack.seq
                if ack.error is None or ack.error.err_code == WRONG_LAST_SEQUENCE:
                    stood = self._sequence
                    if await self._find_own(own, payload):
                        return self._sequence + 1
                    # Behind what is foreign it is another attempt: the bus may know the key.
                    own = f"{key}-{self._sequence}"
                    assert self._sequence > stood, "else it would be tried for ever"
                    continue
                if not ack.error.is_transient:
                    raise refused(ack.error, f"{self._chain.name} ({len(payload)} bytes)")
            elif ack is Silence.NO_RESPONDERS:
                # Raises MissingStreamError for a stream that is gone, and not only leaderless.
                await stream_info(self._link, self._stream)
            if ack is not Silence.LOST:
                await pauses.wait()

    async def _find_own(self, key: str, payload: bytes) -> bool:
        """Return whether the message behind the known end is our own.

        If it is foreign or was taken out, the known end moves behind it.

        Raises:
            SupersededError: Another process continued the log.
            CorruptLogError: The stream ends before the known end.
        """
        sequence = self._sequence + 1
        stored = await self._stored_from(sequence)
        if stored is None or stored.seq > sequence:
            self._sequence = stored.seq - 1 if stored is not None else sequence
            return False
        message = StoredMessage(stored)
        if message.headers.get(KEY_HEADER) == key and message.payload == payload:
            return True
        why = self._chain.links.foreign(message.payload, sequence)
        if why:
            self._foreign(self._stream, sequence, why)
            self._sequence = sequence
            return False
        text = (
            f"{self._chain.name}: another process wrote at {sequence} "
            f"({message.headers.get(KEY_HEADER, 'without a key')}); this one is {self._owner}"
        )
        raise SupersededError(text)

    async def _stored_from(self, sequence: int) -> Stored | None:
        """Return the message at `sequence`, or the first one behind if it was taken out.

        None if it was taken out and is the last. Waits for a replica that lags behind.

        Raises:
            MissingFactStreamError: The stream is gone.
            refused: A RefusedError: the server does not tell.
            CorruptLogError: The stream ends before the last known record.
        """
        asked = {"seq": sequence, "next_by_subj": self._subject}
        deadline = time.monotonic() + STALE_S
        pauses = Pauses()
        while True:
            stored = await ask(self._link, f"STREAM.MSG.GET.{self._stream}", asked, StoredMessage)
            if stored.error is None:
                assert stored.message is not None
                return stored.message
            if stored.error.err_code == STREAM_NOT_FOUND:
                raise MissingFactStreamError(*missing(self._stream).args)
            if stored.error.err_code != MESSAGE_NOT_FOUND:
                raise refused(stored.error, f"{self._chain.name}, sequence {sequence}")
            info = await self._check_not_shorter()
            single = info.config.get("num_replicas", 1) == 1
            if info.state.last_seq >= sequence and (single or time.monotonic() > deadline):
                return None
            await pauses.wait()

    async def _check_not_shorter(self) -> StreamInfo:
        info = await stream_info(self._link, self._stream)
        if info.state.last_seq < self._sequence and info.config.get("num_replicas", 1) == 1:
            message = (
                f"{self._chain.name} ends at {info.state.last_seq}, but {self._sequence} was "
                f"stored: the bus lost acknowledged records"
            )
            raise CorruptLogError(message)
        return info
