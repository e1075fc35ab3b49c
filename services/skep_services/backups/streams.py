"""Streams of a bus as they are, with their sequences, headers and times; and making them again.

JetStream's own snapshots are taken: what is restored is the same to the byte, so the hash chains of
fact logs, the ids of jobs (sequences) and idempotency keys (headers) hold. Streams are taken one
after the other, while services go on writing. Services read one another's logs, so of each log only
the records count whose inputs are in the backup too: `cut` says up to where.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from skep.units import MIB
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE
from skep_services.adapters.nats_api import (
    FIRST_EPOCH,
    STREAM_NOT_FOUND,
    Answer,
    ApiError,
    StoredMessage,
    StreamInfo,
    StreamState,
    ask,
    refused,
)
from skep_services.adapters.nats_client import Msg
from skep_services.adapters.nats_link import Link, Silence
from skep_services.ports import RefusedError

CHUNK_BYTES: Final = 128 * 1024
WAITING_MAX: Final = 8 * MIB
"""Chunks that wait to be written: the server stops sending at this many without an answer."""
CHUNK_WITHIN_S: Final = 60.0
"""A large stream is first packed by the server, which takes seconds a gigabyte."""
RESTORED_WITHIN_S: Final = 600.0
ACKS: Final = "$JS.SNAPSHOT.ACK.>"
UPLOADS: Final = "$JS.SNAPSHOT.RESTORE.>"
WALK_MAX: Final = 100_000
"""Records that are looked at from the end of a log: those of some seconds under load."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as it was taken. Of fact logs, records behind `cut` do not count."""

    stream: str
    config: dict[str, Any]
    state: dict[str, Any]
    cut: int = 0

    @property
    def first(self) -> int:
        """Return the sequence at which it begins."""
        return int(self.state.get("first_seq", 0))

    @property
    def last(self) -> int:
        """Return the sequence at which it ends."""
        return int(self.state.get("last_seq", 0))


class _Begun(msgspec.Struct, frozen=True):
    config: dict[str, Any] = {}
    state: dict[str, Any] = {}
    deliver_subject: str = ""
    error: ApiError | None = None


class _Positions(msgspec.Struct, frozen=True):
    """Of a record: how far its owner had read the other streams."""

    pos: dict[str, int]


_POSITIONS = msgspec.json.Decoder(_Positions)


def order() -> tuple[str, ...]:
    """Return the streams in the order in which they are taken.

    Snapshots of services first, as they stand for records that exist. Then the logs, and last what
    they read: no record that counts refers to a later message of these.
    """
    facts = [name for name in subjects.STREAMS if name in subjects.FACT_STREAMS]
    inputs = [name for name in subjects.STREAMS if name not in subjects.FACT_STREAMS]
    return (subjects.KEPT, *facts, *inputs, subjects.SECRETS, subjects.CODE)


class Snapshot:
    """One stream that is being read: `begin`, then the chunks."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream
        self._chunks: asyncio.Queue[Msg] = asyncio.Queue()

    async def begin(self) -> Taken | None:
        """Return what the stream is; None: there is none.

        Raises:
            refused: A RefusedError: the server does not give it.
        """
        inbox = self._link.new_inbox()
        self._raw = await self._link.subscribe(inbox, self._chunks.put_nowait)
        body = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES}
        begun = await _ask_begun(self._link, f"STREAM.SNAPSHOT.{self._stream}", body)
        if begun.error is not None:
            await self._link.unsubscribe(self._raw)
            if begun.error.err_code == STREAM_NOT_FOUND:
                return None
            raise refused(begun.error, f"taking {self._stream}")
        return Taken(stream=self._stream, config=begun.config, state=begun.state)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the snapshot piece by piece.

        Raises:
            RefusedError: The server gave it up.
            TimeoutError: Nothing came for a while.
        """
        try:
            while True:
                async with asyncio.timeout(CHUNK_WITHIN_S):
                    message = await self._chunks.get()
                if not message.data:
                    status = (message.headers or {}).get("Status", "")
                    if status not in ("", "204"):
                        why = (message.headers or {}).get("Description", "")
                        text = f"the bus gave up the snapshot of {self._stream}: {status} {why}"
                        raise RefusedError(text)
                    return
                yield message.data
                if message.reply:
                    await self._link.send(message.reply, b"", {})
        finally:
            await self._link.unsubscribe(self._raw)


async def cuts(link: Link, taken: Mapping[str, Taken]) -> dict[str, int]:
    """Return up to which sequence of each log all that its records refer to was taken.

    Args:
        link: The connection; the streams still have the records.
        taken: The streams that were taken, all of them.

    Raises:
        ValueError: A log refers to a message that was taken out before its stream was taken: it has
            to be done again.
    """
    cut = {name: taken[name].last for name in taken}
    logs = [name for name in taken if name in subjects.FACT_STREAMS]
    changed = True
    while changed:
        changed = False
        for name in logs:
            keep = await _cut_of(link, name, cut, taken[name].first)
            changed = changed or keep != cut[name]
            cut[name] = keep
    for name in logs:
        _, read = await _positions_at(link, name, cut[name], taken[name].first)
        for stream, position in read.items():
            if stream in taken and taken[stream].first > position + 1 and stream != subjects.SUBMIT:
                text = (
                    f"{stream} begins at {taken[stream].first}, and {name} has read to {position}"
                )
                raise ValueError(text)
    return {name: cut[name] for name in logs}


async def _cut_of(link: Link, log: str, cut: Mapping[str, int], first: int) -> int:
    """Return the last record of a log that refers to nothing behind the cuts.

    Raises:
        ValueError: There is none near its end.
    """
    keep = cut[log]
    for _ in range(WALK_MAX):
        at, read = await _positions_at(link, log, keep, first)
        if all(position <= cut.get(stream, position) for stream, position in read.items()):
            return keep
        keep = at - 1
    text = f"{log}: its last {WALK_MAX} records refer to what was not taken"
    raise ValueError(text)


async def _positions_at(
    link: Link, log: str, sequence: int, first: int
) -> tuple[int, dict[str, int]]:
    """Return how far the owner of a log had read other streams at a record, and where it says so.

    The record of an epoch says nothing; then the one before it does.
    """
    at = sequence
    while at >= max(first, 1):
        answer = await ask(link, f"STREAM.MSG.GET.{log}", {"seq": at}, StoredMessage)
        if answer.message is not None:
            try:
                read = _POSITIONS.decode(answer.payload).pos
            except UNDECODABLE:
                read = {}
            if read:
                return at, read
        at -= 1
    return sequence, {}


# --- making them again ----------------------------------------------------------------------------


async def restore(
    link: Link,
    taken: Taken,
    chunks: AsyncIterator[bytes],
    replicas: int = 1,
    told: Callable[[int], Awaitable[None]] | None = None,
) -> StreamState:
    """Make a stream as it was taken, without the records that do not count.

    Args:
        link: The connection, of an identity that may do this.
        taken: The stream.
        chunks: Its snapshot.
        replicas: How many servers keep it.
        told: Is told the bytes that were sent, now and then.

    Raises:
        refused: A RefusedError: the server does not take it; it may have a stream of the name.
        RefusedError: It is there and not as it was.
    """
    log = taken.stream in subjects.FACT_STREAMS
    config = {**taken.config, "num_replicas": replicas}
    if log:
        config["deny_delete"] = False  # What does not count is taken out; `skep log repair` too.
        # Agents that took orders of this log after the backup see that it was set back.
        told_before = taken.config.get("metadata") or {}
        config["metadata"] = {**told_before, FIRST_EPOCH: str(time.time_ns() // 1000)}
    body = {"config": config, "state": taken.state}
    begun = await _ask_begun(link, f"STREAM.RESTORE.{taken.stream}", body)
    if begun.error is not None:
        raise refused(begun.error, f"restoring {taken.stream}")
    sent = 0
    async for chunk in chunks:
        answer = await link.call(begun.deliver_subject, chunk, {}, CHUNK_WITHIN_S)
        _check_chunk(answer, taken.stream)
        sent += len(chunk)
        if told is not None:
            await told(sent)
    answer = await link.call(begun.deliver_subject, b"", {}, RESTORED_WITHIN_S)
    if isinstance(answer, Silence):
        text = f"restoring {taken.stream}: the bus does not answer"
        raise RefusedError(text)
    made = msgspec.json.decode(answer.data, type=StreamInfo)
    if made.error is not None:
        raise refused(made.error, f"restoring {taken.stream}")
    if log:
        await _take_out_behind(link, taken)
    found = await ask(link, f"STREAM.INFO.{taken.stream}", None, StreamInfo)
    first = found.state.first_seq if found.state.messages else taken.first
    if (first, found.state.last_seq) != (taken.first, taken.last):
        text = (
            f"{taken.stream} came out as {found.state.first_seq} to {found.state.last_seq}, and "
            f"was {taken.first} to {taken.last}"
        )
        raise RefusedError(text)
    return found.state


async def _take_out_behind(link: Link, taken: Taken) -> None:
    """Take out the records that do not count. Sequences are never used again.

    Raises:
        refused: A RefusedError: the bus does not take one out.
    """
    for sequence in range(taken.last, taken.cut, -1):
        body = {"seq": sequence, "no_erase": True}
        answer = await ask(link, f"STREAM.MSG.DELETE.{taken.stream}", body, Answer)
        if answer.error is not None and "not found" not in answer.error.description:
            raise refused(answer.error, f"taking out {taken.stream} {sequence}")


def _check_chunk(answer: Msg | Silence, stream: str) -> None:
    if isinstance(answer, Silence):
        text = f"restoring {stream}: the bus does not answer"
        raise RefusedError(text)
    if answer.data:
        told = msgspec.json.decode(answer.data, type=Answer)
        if told.error is not None:
            raise refused(told.error, f"restoring {stream}")


async def _ask_begun(link: Link, verb: str, body: Mapping[str, Any]) -> _Begun:
    answer = await link.call(f"$JS.API.{verb}", msgspec.json.encode(body), {}, CHUNK_WITHIN_S)
    if isinstance(answer, Silence):
        text = f"{verb}: the bus does not answer"
        raise RefusedError(text)
    return msgspec.json.decode(answer.data, type=_Begun)


async def existing(link: Link, names: Sequence[str]) -> list[str]:
    """Return which of these streams there are."""
    found = []
    for name in names:
        info = await ask(link, f"STREAM.INFO.{name}", None, StreamInfo)
        if info.error is None:
            found.append(name)
    return found
