"""The bytes of a fact log: one JSON document per record, each bound to the one before it.

Every fact log (JetStream, journal, memory) stores the same bytes, so a log can be copied from one
to another and checked by the same rules:

    {"v":1,"n":7,"prev":"<sha256 of record 6, hex>","epoch":2,"at":1700000000000000000,
     "pos":{"SUBMIT":12},"facts":[{"type":"job-queued", ...}],"in":[[1700000000000000000,0,12]]}

`in` (see `wire.inputs`) is there where the service notes what it decides on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skep.units import KIB, Instant
from skep.wire.bearing import RULES
from skep.wire.bounds import UNDECODABLE, LogDecoder
from skep.wire.commands import is_restored
from skep.wire.facts import EpochBegan
from skep_services.links import NO_RECORD, Links
from skep_services.ports import CorruptLogError, LogRecord

RECORD_BYTES_MAX = 512 * KIB
"""What one record may weigh: far below the bus's 1 MiB, so a follower's batch stays small."""

RECORD_VERSION = 1


class _Envelope(msgspec.Struct, frozen=True):
    """A record as stored. `facts` stays raw, because their union differs from log to log."""

    v: int
    n: int
    prev: str
    epoch: int
    at: Instant
    pos: dict[str, int]
    facts: msgspec.Raw
    noted: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="in", default=msgspec.UNSET)


class Chain:
    """Where a log stands: the counter, epoch and hash that the next record builds on.

    `facts` is the union of fact classes of this log; EpochBegan is always part of it. `name` is
    how errors call the log.
    """

    def __init__(self, name: str, facts: Any) -> None:
        self.name = name
        self.counter = 0
        self.epoch = 0
        self.hash = NO_RECORD
        self.links = Links(name)
        """Tells foreign messages of a stream from records."""
        self._envelopes = msgspec.json.Decoder(_Envelope)
        self._facts: LogDecoder[tuple[Any, ...]] = LogDecoder(tuple[facts | EpochBegan, ...])
        self._encoder = msgspec.json.Encoder()

    def encode(
        self,
        facts: Sequence[Any],
        positions: Mapping[str, int],
        at: Instant,
        epoch: int,
        noted: bytes = b"",
    ) -> tuple[LogRecord, bytes]:
        """Return the next record and its bytes; the chain moves on only with `advance`.

        A record above RECORD_BYTES_MAX is the caller's bug: the shell splits batches.

        Args:
            facts: The record's facts.
            positions: The input positions consumed by then, by stream.
            at: When it is written (wall-clock ns).
            epoch: The epoch that it is written in.
            noted: What was decided on, as JSON (`wire.inputs`); empty: the service does not note
                that.
        """
        counter = self.counter + 1
        record = LogRecord(counter, epoch, at, dict(positions), tuple(facts), noted=noted)
        body = self._encoder.encode(record.facts)
        envelope = _Envelope(
            v=RECORD_VERSION,
            n=counter,
            prev=self.hash,
            epoch=epoch,
            at=at,
            pos=dict(positions),
            facts=msgspec.Raw(body),
            noted=msgspec.Raw(noted) if noted else msgspec.UNSET,
        )
        payload = self._encoder.encode(envelope)
        assert len(payload) <= RECORD_BYTES_MAX, (
            f"{self.name}: record {counter} has {len(payload)} bytes, {RECORD_BYTES_MAX} allowed"
        )
        return record, payload

    def advance(self, record: LogRecord, payload: bytes) -> None:
        """Move past `record`, which is durable as `payload`."""
        self.counter = record.counter
        self.epoch = record.epoch
        self.hash = hashlib.sha256(payload).hexdigest()

    def resume(self, counter: int, epoch: int, digest: str) -> None:
        """Stand behind record `counter`, whose SHA-256 is `digest`, without having read it."""
        self.counter, self.epoch, self.hash = counter, epoch, digest

    def read(self, payload: bytes, where: str) -> LogRecord:
        """Return the record in `payload`, having verified that it continues the chain.

        Args:
            payload: The record's bytes.
            where: Which bytes are meant, for the error.

        Raises:
            CorruptLogError: It is no record of this log, or does not continue the chain.
        """
        try:
            envelope = self._envelopes.decode(payload)
            if envelope.v != RECORD_VERSION:
                raise self._corrupt(
                    where, f"record version {envelope.v}, this program reads {RECORD_VERSION}"
                )
            facts = self._facts.decode(envelope.facts)
        except UNDECODABLE as error:
            raise self._corrupt(where, f"not a record of this log: {error}") from error
        if envelope.n != self.counter + 1:
            raise self._corrupt(where, f"counter {envelope.n} follows {self.counter}")
        if envelope.prev != self.hash:
            raise self._corrupt(where, f"record {envelope.n} does not continue the hash chain")
        self._check_epoch(envelope.epoch, facts, where)
        noted = b"" if envelope.noted is msgspec.UNSET else bytes(envelope.noted)
        record = LogRecord(
            envelope.n, envelope.epoch, envelope.at, envelope.pos, facts, noted=noted
        )
        self.advance(record, payload)
        return record

    def read_at(self, payload: bytes, sequence: int) -> LogRecord | str:
        """Return the record in a stream's message, or why the message is not the owner's.

        The next call tells of the message behind it.

        Raises:
            CorruptLogError: The message is the next record and cannot be read, or the log is
                damaged.
        """
        try:
            record = self.read(payload, f"sequence {sequence}")
        except CorruptLogError:
            why = self.links.foreign(payload, sequence)
            if why:
                return why
            raise
        self.links.took(self.counter, self.hash, sequence)
        return record

    def refuse_doubt(self) -> None:
        """Return if nothing behind the last record may be a damaged log's.

        Raises:
            CorruptLogError: What stands there may be a damaged log's.
        """
        doubt = self.links.doubt()
        if doubt:
            message = f"{self.name}, {doubt}"
            raise CorruptLogError(message)

    def _check_epoch(self, epoch: int, facts: tuple[Any, ...], where: str) -> None:
        """Refuse an epoch that no EpochBegan announced; a compacted log may begin at any epoch.

        Raises:
            CorruptLogError: The epoch was begun by a later version of Skep.
            _corrupt: A CorruptLogError: it does not follow.
        """
        first = facts[0] if facts else None
        if isinstance(first, EpochBegan) and first.rules > RULES:
            message = (
                f"{self.name}, {where}: epoch {first.epoch} was begun by a later version of Skep "
                f"(rules {first.rules}, this program knows {RULES}): start that version, or "
                f"restore a backup that was made before the upgrade"
            )
            raise CorruptLogError(message)
        begins = isinstance(first, EpochBegan) and first.epoch == epoch
        next_one = epoch == self.epoch + 1 or is_restored(epoch, self.epoch)
        continues = epoch == self.epoch or (next_one and begins)
        if epoch < 1 or not (continues or self.counter == 0):
            raise self._corrupt(where, f"epoch {epoch} follows {self.epoch}")

    def _corrupt(self, where: str, what: str) -> CorruptLogError:
        return CorruptLogError(
            f"{self.name}, {where}: {what}. The log was damaged or written by something else; "
            f"restore it from a backup, do not delete it."
        )
