"""Moves old messages of streams into an archive: which may go, and moving them.

A message goes only once no service needs it to come to its state again:

- a record of a fact log stands before the second latest snapshot of its owner, so that one snapshot
  may be unreadable;
- the service that decides on the stream's messages has stored what follows from them;
- it is older than so many days.

What is archived is complete and was read back before the stream gives it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from skep.units import Duration, Instant
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE
from skep_services.adapters.archive import Archive
from skep_services.adapters.nats_access import ARCHIVED
from skep_services.adapters.nats_api import Answer, ask, refused, stream_info
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_kept import wholes
from skep_services.adapters.nats_read import read_each
from skep_services.ports import Delivery

SEGMENT_MESSAGES: Final = 50_000
SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""What a segment holds at most: it is in memory while it is made."""
ANSWER_WITHIN_S: Final = 2.0
OWNERS: Final[Mapping[str, str]] = {
    subjects.ADMISSION: "admission",
    subjects.ALLOC: "allocator",
    subjects.SEARCH: "searches",
    subjects.PROFILES: "advisor",
}
READERS: Final[Mapping[str, tuple[str, ...]]] = {
    subjects.ADMISSION: ("allocator",),
    subjects.ALLOC: ("admission",),
    subjects.SEARCH: (),
    subjects.PROFILES: (),
    subjects.NODE: ("allocator",),
    subjects.ADMIN: ("admission", "allocator"),
}
"""Services that go on in a stream from a position that they store with every decision. The others
(searches, advisor, gateway, trainer) store one rarely or never: they read the archive first."""

assert set(READERS) == set(ARCHIVED)
assert set(OWNERS) <= set(READERS)


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """From where on a stream keeps its messages, and why not less."""

    stream: str
    keep_from: int
    why: str


class Moved(msgspec.Struct, kw_only=True):
    """What went to the archive."""

    stream: str
    why: str
    messages: int = 0
    bytes: int = 0
    """Of the messages in the stream."""
    packed: int = 0
    """Of the segments."""
    keep_from: int = 0


class _Stored(msgspec.Struct, frozen=True):
    stored: Mapping[str, int] = {}


class AwayError(Exception):
    """A service does not say how far it has read."""


Progress = Callable[[str, int], None]


async def bound_of(stream: str, keeper: NatsBus, asker: NatsBus) -> Bound:
    """Return from where on a stream keeps its messages, whatever their age.

    Args:
        stream: The stream.
        keeper: The connection, as `bootstrap`.
        asker: As `operator`, which services answer.

    Raises:
        AwayError: A service that reads the stream does not answer.
    """
    keep_from, why = 2**63 - 1, ""
    if stream in OWNERS:
        kept = await wholes(keeper, stream)
        if len(kept) < 2:
            text = "its owner has not taken two snapshots yet"
            return Bound(stream=stream, keep_from=0, why=text)
        keep_from, why = kept[-2].sequence, "the latest but one snapshot of its owner"
    for service in READERS[stream]:
        position = await _position(asker, service, stream)
        if position < keep_from:
            # The message at the position is read once more (`links.Followed`).
            keep_from, why = position, f"{service} has read so far"
    return Bound(stream=stream, keep_from=keep_from, why=why)


async def _position(bus: NatsBus, service: str, stream: str) -> int:
    answer = await bus.request(subjects.health(service), b"", {}, ANSWER_WITHIN_S)
    try:
        found = msgspec.json.decode(answer.payload if answer is not None else b"", type=_Stored)
    except UNDECODABLE:
        text = f"{service} does not say how far it has read {stream}: see `skep doctor`"
        raise AwayError(text) from None
    return found.stored.get(stream, 0)


async def move(
    bound: Bound,
    keeper: NatsBus,
    archive: Archive,
    older: Duration,
    now: Instant,
    told: Progress = lambda _stream, _messages: None,
) -> Moved:
    """Archive what a stream has before a bound and is old, and take it out of the stream.

    Args:
        bound: From where on it keeps its messages.
        keeper: The connection, as `bootstrap`.
        archive: Where they go.
        older: How old a message is that goes.
        now: The time (wall-clock ns).
        told: Is told how many messages went, now and then.

    Raises:
        ArchiveError: The archive is damaged.
        refused: A RefusedError: the bus does not take them out.
        OSError: There is no room.
    """
    stream = bound.stream
    moved = Moved(stream=stream, why=bound.why)
    info = await stream_info(keeper.link, stream)
    moved.keep_from = info.state.first_seq
    archived = archive.last(stream)
    waiting = _Waiting(archive, stream, moved)

    def take(delivery: Delivery) -> None:
        if delivery.sequence >= bound.keep_from or delivery.at > now - older:
            # What was taken out of the stream before it belongs to the last segment.
            waiting.write(delivery.sequence - 1)
            raise _Enough
        waiting.take(delivery)
        if moved.messages % 1000 == 0:
            told(stream, moved.messages)

    try:
        await read_each(keeper, stream, max(archived, info.state.first_seq - 1), take)
    except _Enough:
        pass
    waiting.write()  # Nothing is left unless all of them went.
    last = archive.last(stream)
    if last >= info.state.first_seq:
        # The server keeps the message at `seq`.
        body = {"seq": last + 1}
        answer = await ask(keeper.link, f"STREAM.PURGE.{stream}", body, Answer)
        if answer.error is not None:
            raise refused(answer.error, f"taking out what is archived of {stream}")
        moved.keep_from = last + 1
    return moved


class _Enough(Exception):  # noqa: N818 - it is no error
    """What follows stays."""


class _Waiting:
    """Messages that are not in a segment yet."""

    def __init__(self, archive: Archive, stream: str, moved: Moved) -> None:
        self._archive, self._stream, self._moved = archive, stream, moved
        self._messages: list[Delivery] = []
        self._bytes = 0

    def take(self, delivery: Delivery) -> None:
        self._messages.append(delivery)
        size = len(delivery.payload)
        self._bytes += size
        self._moved.messages += 1
        self._moved.bytes += size
        if len(self._messages) >= SEGMENT_MESSAGES or self._bytes >= SEGMENT_BYTES:
            self.write()

    def write(self, last: int = 0) -> None:
        """Make a segment of them that speaks up to `last`; 0: up to the last of them."""
        if self._messages:
            last = last or self._messages[-1].sequence
            self._moved.packed += self._archive.add(self._stream, self._messages, last).size
            self._messages, self._bytes = [], 0


def folder_of(environment: Mapping[str, str], home: str) -> Path:
    """Return the archive's folder: SKEP_ARCHIVE, or the one in the state folder."""
    return Path(environment.get("SKEP_ARCHIVE") or Path(home, "archive"))
