"""Snapshots beside a fact log: what stands for a long history, so that recovery need not read it.

A snapshot is a run of messages on `skep.v1.kept.<stream>.piece` and one on `….whole` that names
them, their hash, and the record of the log up to which they stand. It counts only if that record
is in the log with that very hash. The log itself stays whole: whatever is wrong with a snapshot,
it is passed over, and history is read instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from skep.units import KIB, Instant
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE, LogDecoder
from skep_services.adapters.nats_api import Answer, StoredMessage, ask
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.records import Chain

KEPT_AT_LEAST = 2
"""Snapshots whose pieces are there: the latest, and the one before it."""
PIECE_BYTES = 192 * KIB
"""What one message holds: one entry of a machine's snapshot more must not exceed the stream's
limit on messages."""
VERSION = 1


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A complete snapshot.

    `sequence`, `counter`, `epoch` and `hash` are those of the log's record it stands up to, `facts`
    how many facts it stands for, `first` where its messages begin.
    """

    v: int
    name: str
    sequence: int
    counter: int
    epoch: int
    hash: str
    at: Instant
    positions: dict[str, int]
    facts: int
    first: int
    pieces: int
    digest: str


class _Piece(msgspec.Struct, frozen=True):
    of: str
    index: int
    entries: msgspec.Raw


class Prepared(msgspec.Struct, frozen=True):
    """A snapshot as bytes; `whole` lacks `first`."""

    whole: Whole
    pieces: tuple[bytes, ...]


class NatsSnapshots:
    """The snapshots beside the log in `stream`; `entries` is the union of what they consist of."""

    def __init__(self, bus: NatsBus, stream: str, entries: Any) -> None:
        self._bus, self._stream = bus, stream
        self._piece = subjects.kept(stream, "piece")
        self._whole = subjects.kept(stream, "whole")
        self._encoder = msgspec.json.Encoder()
        self._entries: LogDecoder[list[Any]] = LogDecoder(list[entries])
        self._pieces = msgspec.json.Decoder(_Piece)
        self._stored_first = 0

    def prepare(
        self,
        entries: Sequence[Any],
        chain: Chain,
        sequence: int,
        positions: Mapping[str, int],
        at: Instant,
        *,
        facts: int,
        owner: str,
    ) -> Prepared:
        """Return the bytes of a snapshot that stands up to the record where `chain` is.

        Args:
            entries: The machine's state.
            chain: The log's chain, which is read only.
            sequence: The place of its last record in the stream.
            positions: The input positions consumed by then, by stream.
            at: When it is taken (wall-clock ns).
            facts: How many facts it stands for.
            owner: The process that writes the log.
        """
        name = f"{owner}-{chain.counter}"
        pieces = tuple(
            self._encoder.encode(_Piece(name, index, msgspec.Raw(body)))
            for index, body in enumerate(self._bodies(entries))
        )
        whole = Whole(
            v=VERSION,
            name=name,
            sequence=sequence,
            counter=chain.counter,
            epoch=chain.epoch,
            hash=chain.hash,
            at=at,
            positions=dict(positions),
            facts=facts,
            first=0,
            pieces=len(pieces),
            digest=_digest(pieces),
        )
        return Prepared(whole, pieces)

    def _bodies(self, entries: Sequence[Any]) -> Iterator[bytes]:
        """Yield the entries as JSON lists of about PIECE_BYTES."""
        waiting: list[bytes] = []
        size = 0
        for entry in entries:
            encoded = self._encoder.encode(entry)
            if waiting and size + len(encoded) > PIECE_BYTES:
                yield b"[" + b",".join(waiting) + b"]"
                waiting, size = [], 0
            waiting.append(encoded)
            size += len(encoded)
        yield b"[" + b",".join(waiting) + b"]"

    async def store(self, prepared: Prepared) -> None:
        """Store a snapshot durably, then drop all but it and the one stored before it.

        Raises:
            RefusedError: The stream is full.
            MissingStreamError: The stream does not exist.
        """
        whole = prepared.whole
        first = 0
        for index, piece in enumerate(prepared.pieces):
            sequence = await self._bus.publish(self._piece, piece, f"{whole.name}-{index}", {})
            first = first or sequence
        whole = msgspec.structs.replace(whole, first=first)
        await self._bus.publish(self._whole, self._encoder.encode(whole), f"{whole.name}-whole", {})
        if self._stored_first:
            old = {"filter": self._piece, "seq": self._stored_first}
            await ask(self._bus.link, f"STREAM.PURGE.{subjects.KEPT}", old, Answer)
        self._stored_first = first

    async def latest(self) -> tuple[Whole, list[Any]] | None:
        """Return the latest complete snapshot and its entries, or None if none can be read."""
        stored = await self._get({"last_by_subj": self._whole})
        return await self._decoded(stored) if stored is not None else None

    async def before(self, sequence: int) -> tuple[Whole, list[Any]] | None:
        """Return the latest readable snapshot of a record before a sequence, or None."""
        earlier = [one for one in await wholes(self._bus, self._stream) if one.sequence < sequence]
        for whole in reversed(earlier[-KEPT_AT_LEAST:]):
            found = await self._decoded(self._encoder.encode(whole))
            if found is not None:
                return found
        return None

    async def _decoded(self, stored: bytes) -> tuple[Whole, list[Any]] | None:
        try:
            whole = msgspec.json.decode(stored, type=Whole)
            if whole.v != VERSION:
                return None
            pieces = await self._read(whole)
            if len(pieces) != whole.pieces or _digest(pieces) != whole.digest:
                return None
            entries: list[Any] = []
            for piece in pieces:
                entries += self._entries.decode(self._pieces.decode(piece).entries)
        except UNDECODABLE:
            return None  # Another version's.
        self._stored_first = whole.first
        return whole, entries

    async def _read(self, whole: Whole) -> list[bytes]:
        """Return the snapshot's messages; others' that were stored between them are passed over."""
        found: list[bytes] = []
        sequence = whole.first
        while len(found) < whole.pieces:
            asked = {"seq": sequence, "next_by_subj": self._piece}
            message = await self._message(asked)
            if message is None:
                break
            sequence, payload = message
            piece = self._pieces.decode(payload)
            if piece.of == whole.name and piece.index == len(found):
                found.append(payload)
            sequence += 1
        return found

    async def _get(self, asked: Mapping[str, Any]) -> bytes | None:
        message = await self._message(asked)
        return message[1] if message is not None else None

    async def _message(self, asked: Mapping[str, Any]) -> tuple[int, bytes] | None:
        """Return a message's sequence and payload, or None if there is none."""
        verb = f"STREAM.MSG.GET.{subjects.KEPT}"
        stored = await ask(self._bus.link, verb, asked, StoredMessage)
        if stored.message is None:
            return None
        return stored.message.seq, stored.payload


async def wholes(bus: NatsBus, stream: str) -> list[Whole]:
    """Return the snapshots of a log in order; of those but the last two the pieces are gone."""
    found: list[Whole] = []
    sequence, subject = 1, subjects.kept(stream, "whole")
    while True:
        asked = {"seq": sequence, "next_by_subj": subject}
        stored = await ask(bus.link, f"STREAM.MSG.GET.{subjects.KEPT}", asked, StoredMessage)
        if stored.message is None:
            return found
        sequence = stored.message.seq + 1
        try:
            whole = msgspec.json.decode(stored.payload, type=Whole)
        except UNDECODABLE:
            continue  # Another version's.
        if whole.v == VERSION:
            found.append(whole)


def _digest(pieces: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
