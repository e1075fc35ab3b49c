"""Snapshots of code in the stream CODE: kept, handed out, and taken out once no job names them.

    skep.v1.snapshot.list.<vc>.<digest>     a snapshot: the list of its chunks (empty: dropped)
    skep.v1.snapshot.chunk.<vc>.<digest>    a chunk

Every gateway follows the lists, and counts a chunk as there only if a list that it knows names it,
or it took the chunk itself within the hour. So a chunk may be taken out by one gateway while
another takes a snapshot that has it: the list of what named it was dropped DOOMED_S before, the
others know since then that it is not to be counted on, and what is stored anew is another message.

A VC's snapshots, each chunk counted once, have at most VC_BYTES_MAX. To make room, those that no
unfinished job names go, the oldest first; so does, in time, what was handed in KEEP_S ago or more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from skep.units import MIB, NS_PER_SECOND, Instant
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.snapshot import VC_BYTES_MAX, Snapshot, decode, digest_of, encode
from skep_services.adapters.nats_api import StoredMessage
from skep_services.ports import Bus, Clock, Delivery

log = structlog.get_logger(service="gateway")

KEEP_S = 7 * 24 * 3600
"""How long a snapshot stays that no unfinished job names: handed in again, it need not be sent."""
FRESH_S = 3600
"""How long a client may take from its first chunk to the snapshot."""
DOOMED_S = FRESH_S + 600
"""From when a chunk is stored, and named no more, to when it is taken out."""
SETTLED_S = 300
"""How long the job may take to be known that a snapshot was handed in for."""
COLLECT_EVERY_S = 300.0
ASK_TIMEOUT_S = 5.0
PUBLISHED_AT_ONCE = 8
LIST, CHUNK = "list", "chunk"

Named = Callable[[str], set[str]]
"""Returns the snapshots that unfinished jobs of a VC name."""


class Kept(NamedTuple):
    """A snapshot, when it was handed in last, and the sequence of its list."""

    snapshot: Snapshot
    at: Instant
    sequence: int


class _Info(msgspec.Struct, frozen=True):
    class State(msgspec.Struct, frozen=True):
        subjects: dict[str, int] | None = None

    state: State = State()


class CodeFullError(Exception):
    """A VC has as much code as it may, named by jobs; the text says how much."""


class CodeStore:
    """The snapshots of all VCs."""

    def __init__(self, bus: Bus, clock: Clock, named: Named) -> None:
        self._bus, self._clock, self._named = bus, clock, named
        self._kept: dict[str, dict[str, Kept]] = {}
        self._chunks: dict[str, dict[str, tuple[int, int]]] = {}
        """By VC and digest: how many snapshots name a chunk, and its size."""
        self._fresh: dict[tuple[str, str], tuple[Instant, int]] = {}
        """Chunks that this gateway took: when, and their sizes."""
        self._lost: set[tuple[str, str]] = set()
        self._doomed: dict[str, Instant] = {}

    # --- what is known --------------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> None:
        """Take over a list that was stored, or dropped."""
        _, vc, digest = subjects.snapshot_parts(delivery.subject)
        found = decode(delivery.payload) if delivery.payload else ""
        if isinstance(found, str):
            if found or delivery.payload:
                log.error("a snapshot was passed over", vc=vc, code=digest, why=found)
            self._forget(vc, digest)
        elif digest_of(delivery.payload) != digest:
            log.error("a snapshot was passed over", vc=vc, code=digest, why="another's digest")
        else:
            self._take(vc, digest, Kept(found, delivery.at, delivery.sequence))

    def find(self, vc: str, digest: str) -> Snapshot | None:
        """Return a snapshot of a VC, None if there is none."""
        kept = self._kept.get(vc, {}).get(digest)
        return kept.snapshot if kept is not None else None

    def listed(self, vc: str) -> dict[str, Kept]:
        """Return the snapshots of a VC by digest."""
        return dict(self._kept.get(vc, {}))

    def bytes_of(self, vc: str) -> int:
        """Return how many bytes the snapshots of a VC have, each chunk counted once."""
        return sum(size for _, size in self._chunks.get(vc, {}).values())

    def missing(self, vc: str, snapshot: Snapshot) -> list[str]:
        """Return the chunks of a snapshot that are to be sent."""
        there = self._chunks.get(vc, {})
        fresh = self._unnamed(vc)
        return [
            digest
            for digest in dict.fromkeys(chunk.digest for chunk in snapshot.chunks)
            if (vc, digest) in self._lost or (digest not in there and digest not in fresh)
        ]

    def _unnamed(self, vc: str) -> dict[str, int]:
        """Return the sizes of the chunks of a VC that came within the hour and no list names."""
        since, there = self._clock.now() - FRESH_S * NS_PER_SECOND, self._chunks.get(vc, {})
        return {
            digest: size
            for (whose, digest), (at, size) in self._fresh.items()
            if whose == vc and at >= since and digest not in there
        }

    # --- changes --------------------------------------------------------------------------------

    async def put_chunks(self, vc: str, chunks: list[bytes]) -> None:
        """Keep chunks.

        Raises:
            CodeFullError: The VC sent too many that no snapshot names.
            FullError: The store has no room.
            RefusedError: The bus does not take one.
            MissingStreamError: There is no stream CODE.
        """
        waiting = sum(self._unnamed(vc).values())
        if waiting + sum(map(len, chunks)) > VC_BYTES_MAX:
            text = (
                f"VC {vc} sent {waiting // MIB} MiB of code that no snapshot names, as much as it "
                f"may within an hour: hand in the snapshots, or wait"
            )
            raise CodeFullError(text)
        for at in range(0, len(chunks), PUBLISHED_AT_ONCE):
            some = chunks[at : at + PUBLISHED_AT_ONCE]
            await asyncio.gather(*(self._put_chunk(vc, one) for one in some))

    async def _put_chunk(self, vc: str, data: bytes) -> None:
        digest = digest_of(data)
        await self._bus.publish(subjects.snapshot(CHUNK, vc, digest), data, "", {})
        self._fresh[vc, digest] = self._clock.now(), len(data)
        self._lost.discard((vc, digest))

    async def keep(self, vc: str, digest: str, snapshot: Snapshot) -> None:
        """Keep a snapshot, all of whose chunks are there.

        Raises:
            CodeFullError: The VC has as much as it may.
            FullError: The store has no room.
            RefusedError: The bus does not take it.
            MissingStreamError: There is no stream CODE.
        """
        await self._make_room(vc, digest, snapshot)
        subject = subjects.snapshot(LIST, vc, digest)
        sequence = await self._bus.publish(subject, encode(snapshot), "", {})
        self._take(vc, digest, Kept(snapshot, self._clock.now(), sequence))

    async def _make_room(self, vc: str, digest: str, snapshot: Snapshot) -> None:
        there = self._chunks.get(vc, {})
        new = {one.digest: one.size for one in snapshot.chunks if one.digest not in there}
        more = sum(new.values())
        named, settled = self._named(vc), self._clock.now() - SETTLED_S * NS_PER_SECOND
        idle = sorted(
            (kept.at, name)
            for name, kept in self._kept.get(vc, {}).items()
            if name != digest and name not in named and kept.at < settled
        )
        used = self.bytes_of(vc)
        for _, name in idle:
            if used + more <= VC_BYTES_MAX:
                return
            await self._drop(vc, name)
            used = self.bytes_of(vc)
            more = sum(
                one.size for one in snapshot.chunks if one.digest not in self._chunks.get(vc, {})
            )
        if used + more > VC_BYTES_MAX:
            text = (
                f"VC {vc} has {used // MIB} MiB of code that its unfinished jobs name, of "
                f"{VC_BYTES_MAX // MIB} MiB; this snapshot has {more // MIB} MiB more: wait until "
                "some have ended, or leave out what the job does not need (.skepignore)"
            )
            raise CodeFullError(text)

    async def _drop(self, vc: str, digest: str) -> None:
        await self._bus.publish(subjects.snapshot(LIST, vc, digest), b"", "", {})
        self._forget(vc, digest)
        log.info("a snapshot of code is dropped: no job names it", vc=vc, code=digest)

    # --- handing out ----------------------------------------------------------------------------

    async def chunk(self, vc: str, digest: str) -> bytes | None:
        """Return a chunk; None: it is not there, or is not what it should be.

        Then it is asked for again when the snapshot is handed in the next time.
        """
        stored = await self._stored(subjects.snapshot(CHUNK, vc, digest))
        data = stored.payload if stored is not None and stored.message is not None else b""
        if data and digest_of(data) == digest:
            return data
        if stored is not None:
            self._lost.add((vc, digest))
            log.error("a chunk of code is not there, or is corrupt", vc=vc, chunk=digest)
        return None

    async def _stored(self, subject: str) -> StoredMessage | None:
        asked = msgspec.json.encode({"last_by_subj": subject})
        answer = await self._bus.request(
            f"$JS.API.STREAM.MSG.GET.{subjects.CODE}", asked, {}, ASK_TIMEOUT_S
        )
        if answer is None:
            return None
        try:
            return msgspec.json.decode(answer.payload, type=StoredMessage)
        except (*UNDECODABLE, ValueError):
            return None

    # --- collection -----------------------------------------------------------------------------

    async def collect_for_ever(self) -> None:
        """Take out what no job names any more, now and then, until cancelled."""
        while True:
            await asyncio.sleep(COLLECT_EVERY_S)
            try:
                await self.collect()
            except Exception:
                log.exception("code that no job names was not taken out")

    async def collect(self) -> int:
        """Take out what no job names any more; return how many chunks went."""
        now = self._clock.now()
        fresh = now - FRESH_S * NS_PER_SECOND
        self._fresh = {key: one for key, one in self._fresh.items() if one[0] >= fresh}
        for vc, kept in list(self._kept.items()):
            named = self._named(vc)
            for digest, one in list(kept.items()):
                if digest not in named and now - one.at > KEEP_S * NS_PER_SECOND:
                    await self._drop(vc, digest)
        idle = [one for one in await self._subjects() if not self._is_wanted(one)]
        self._doomed = {one: self._doomed.get(one, now) for one in idle}
        gone = 0
        for subject, since in list(self._doomed.items()):
            if now - since >= DOOMED_S * NS_PER_SECOND and await self._delete(subject):
                del self._doomed[subject]
                gone += 1
        return gone

    def _is_wanted(self, subject: str) -> bool:
        kind, vc, digest = subjects.snapshot_parts(subject)
        if kind == LIST:
            return digest in self._kept.get(vc, {})
        return digest in self._chunks.get(vc, {}) or (vc, digest) in self._fresh

    async def _subjects(self) -> list[str]:
        """Return the subjects that have a message."""
        asked = msgspec.json.encode({"subjects_filter": subjects.CODE_SUBJECTS[0]})
        answer = await self._bus.request(
            f"$JS.API.STREAM.INFO.{subjects.CODE}", asked, {}, ASK_TIMEOUT_S
        )
        if answer is None:
            return []
        try:
            return sorted(msgspec.json.decode(answer.payload, type=_Info).state.subjects or ())
        except UNDECODABLE:
            return []

    async def _delete(self, subject: str) -> bool:
        """Take out what is on a subject, unless it is wanted again, or was stored not long ago."""
        stored = await self._stored(subject)
        if stored is None or stored.message is None or self._is_wanted(subject):
            return False
        if self._clock.now() - stored.at < DOOMED_S * NS_PER_SECOND:
            return False
        asked = msgspec.json.encode({"seq": stored.message.seq, "no_erase": True})
        verb = f"$JS.API.STREAM.MSG.DELETE.{subjects.CODE}"
        return await self._bus.request(verb, asked, {}, ASK_TIMEOUT_S) is not None

    # --- counts ---------------------------------------------------------------------------------

    def _take(self, vc: str, digest: str, kept: Kept) -> None:
        before = self._kept.setdefault(vc, {}).get(digest)
        self._kept[vc][digest] = kept
        if before is None:
            self._count(vc, kept.snapshot, 1)

    def _forget(self, vc: str, digest: str) -> None:
        kept = self._kept.get(vc, {}).pop(digest, None)
        if kept is not None:
            self._count(vc, kept.snapshot, -1)

    def _count(self, vc: str, snapshot: Snapshot, by: int) -> None:
        there = self._chunks.setdefault(vc, {})
        for digest, size in {one.digest: one.size for one in snapshot.chunks}.items():
            count = there.get(digest, (0, size))[0] + by
            if count > 0:
                there[digest] = (count, size)
            else:
                there.pop(digest, None)
