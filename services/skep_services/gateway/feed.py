"""`/v1/state` for many readers at once: tables kept while pages are open, encoded once for all.

    tick every TICK_S ──> a version ──> readers wake ──> one frame for all that see the same

A reader has nothing here but its cursor. A listing is made of parts, one for each table and class
of callers, compressed apart and joined, so that pages that load at once cost one compression.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import structlog

from skep.units import KIB, MIB
from skep.wire import codec
from skep_services.gateway.alerts import Alert, Code
from skep_services.gateway.callers import Only
from skep_services.gateway.columns import TABLES
from skep_services.gateway.estimates import Estimates
from skep_services.gateway.index import Indexer
from skep_services.gateway.limits import Limits
from skep_services.gateway.model import JobQuery
from skep_services.gateway.searches import SearchesView
from skep_services.gateway.tables import ENDED_MAX, Tables
from skep_services.gateway.versions import Changed
from skep_services.ports import Clock

log = structlog.get_logger(service="gateway")

TICK_S = 0.2
"""Changes are gathered for so long: a page is drawn no more often."""
TICK_S_MIN = 0.01
"""After a tick that was late requests are answered first."""
ASLEEP_AFTER_S = 60.0
"""How long the tables are kept up after the last reader left: a page that reloads finds them."""
ALIVE_EVERY_S = 15.0
"""How often a silent stream says something, so that proxies and clients know it lives."""
LISTED_FRESH_S = 1.0
LISTED_SMALL = 64 * KIB
"""A part of a listing is made anew for changed rows once a second at most; one that is smaller than
this costs a millisecond, and is made for every request."""
PARTS_MAX = 256
"""Parts of listings at hand, some 200 KB each of a large cluster: the oldest make room."""
FRAMES_MAX = 64
"""Frames of one tick that are kept: those of readers that keep up, by class and tables."""
FRAME_MAX = 512 * KIB
"""A larger event would hold up every request while it is compressed, some 25 ms for each MiB: its
reader is told to list the tables, which is done beside the requests, and once for many."""
LEVEL, LEVEL_LIVE = 6, 3
"""Of compression: frames are made five times a second, and a higher level saves little of them."""
LOOK_EVERY_S = 30.0
"""How often services and the disk are looked at."""
DISK_FREE_PERCENT = 10
MEMBER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The head of a gzip member (RFC 1952): deflate, no name, no time."""
LAST = b"\x03\x00"
"""An empty last block of deflate (RFC 1951)."""


class Part(NamedTuple):
    """A piece of a listing: as it is, compressed without an end, and the version that it has."""

    raw: bytes
    packed: bytes
    version: int
    fresh_until: float


class Frame:
    """An event for all readers that have the same version and see the same."""

    def __init__(self, raw: bytes) -> None:
        """Keep it as it is; nothing in it: there is nothing to tell."""
        self.raw = raw

    @cached_property
    def packed(self) -> bytes:
        """Return it compressed as a piece of any reader's stream (see `_packed`)."""
        return _packed(self.raw, LEVEL_LIVE)


class Cursor(NamedTuple):
    """Which version of which process's tables a client has."""

    epoch: str
    version: int

    def text(self) -> str:
        """Return it as clients have it."""
        return f"{self.epoch}-{self.version}"


class Feed:
    """The tables, and what is encoded of them."""

    def __init__(
        self,
        indexer: Indexer,
        searches: SearchesView,
        limits: Limits,
        estimates: Estimates,
        clock: Clock,
        *,
        path: Path,
        silent: Callable[[], Awaitable[list[str]]],
    ) -> None:
        """Take what the tables are made of.

        Args:
            indexer: The fold, and ended jobs.
            searches: The searches.
            limits: The limits that are near.
            estimates: When jobs start and end.
            clock: The time.
            path: The file of the read model: its disk is watched.
            silent: Returns the services that do not answer.
        """
        self.tables = Tables(indexer.fold, indexer.live, searches, limits.nearly)
        self.epoch = secrets.token_hex(4)
        self.readers = 0
        self.closed = False
        self._indexer, self._estimates, self._clock = indexer, estimates, clock
        self._path, self._silent = path, silent
        self._filled = False
        self._wanted = asyncio.Event()
        self._wanted_at = 0.0
        self._ticked_at = self._alive_at = self._looked_at = 0.0
        self._ticking = asyncio.Lock()
        self._more = asyncio.Event()
        self._frames: dict[tuple[int, Only, tuple[str, ...]], Frame | None] = {}
        self._parts: dict[tuple[str, Only], Part] = {}
        self._making: dict[tuple[str, Only], asyncio.Task[Part]] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> Cursor:
        """Return the cursor of what is there now."""
        return Cursor(self.epoch, self.tables.versions.version)

    async def run(self) -> None:
        """Build the tables, then keep them up while pages are open, until cancelled."""
        self._wanted_at = time.monotonic()
        self._wanted.set()
        while True:
            await self._wanted.wait()
            began, worked = time.monotonic(), time.thread_time()
            if not self.readers and began - self._wanted_at > ASLEEP_AFTER_S:
                self._wanted.clear()
                continue
            try:
                await self._tick()
            except Exception:
                log.exception("the tables of the page were not brought up to date")
            self._look(began)
            # At most half of the processor is spent on this, whatever happens.
            took_s, worked_s = time.monotonic() - began, time.thread_time() - worked
            await asyncio.sleep(max(TICK_S - took_s, worked_s, TICK_S_MIN))

    def close(self) -> None:
        """Let every reader go."""
        self.closed = True
        self._wake()
        if self._looking is not None:
            self._looking.cancel()

    async def current(self) -> None:
        """Return once the tables are there, and have what the fold had at the call."""
        self._wanted_at = time.monotonic()
        self._wanted.set()
        if not self._filled or self._indexer.fold.news:
            await self._tick(whole=False)

    async def wait(self, version: int) -> bool:
        """Return True once there is another version than this, False if it is time to say so."""
        if self.cursor.version == version and not self.closed:
            await self._more.wait()
        return self.cursor.version != version

    def frame(self, version: int, only: Only, tables: tuple[str, ...]) -> Frame | None:
        """Return the event that leads from a version to the one that is there now.

        Args:
            version: What the reader has.
            only: The VCs that it sees.
            tables: The tables that it wants.

        Returns:
            The event, empty if nothing of it changed; None: that is not known any more, or so much
            changed that a listing is cheaper.
        """
        key = (version, only, tables)
        if key in self._frames:
            return self._frames[key]
        changed = self.tables.versions.since(version, only, tables)
        found = None if changed is None else Frame(self._event(changed))
        if found is not None and len(found.raw) > FRAME_MAX:
            found = None
        if len(self._frames) < FRAMES_MAX:
            self._frames[key] = found
        return found

    async def listing(self, only: Only, tables: Sequence[str], *, packed: bool) -> bytes:
        """Return the tables as JSON, or (`packed`) compressed by gzip.

        The cursor is the oldest one of a part: what a newer part has comes once more.
        """
        parts = [await self._part(name, only) for name in tables]
        version = min((part.version for part in parts), default=self.cursor.version)
        told = {"cursor": Cursor(self.epoch, version).text(), "at": self._clock.now()}
        head = codec.encode(told)[:-1] + b',"tables":{'
        pieces = [(head, b"")]
        for number, part in enumerate(parts):
            if number:
                pieces.append((b",", b""))
            pieces.append((part.raw, part.packed))
        pieces.append((b"}}", b""))
        if not packed:
            return b"".join(raw for raw, _ in pieces)
        return _gzip(pieces)

    # --- ticks -----------------------------------------------------------------------------------

    async def _tick(self, *, whole: bool = True) -> None:
        """Bring the tables up to date; not the `whole` of them: only what facts touched."""
        async with self._ticking:
            now = self._clock.now()
            if not self._filled:
                wanted = [("task = ''", ())]
                ended = await self._indexer.ended(JobQuery(ENDED_MAX, wanted))
                await self.tables.fill([sequence for sequence, _ in ended.lines], now)
                self._filled = True
            if whole:
                self._estimates.refresh()
            changed = await self.tables.tick(now, whole=whole)
            self._ticked_at = time.monotonic()
            if changed:
                self._frames.clear()
            if changed or self._ticked_at - self._alive_at >= ALIVE_EVERY_S:
                self._wake()

    def _wake(self) -> None:
        self._alive_at = time.monotonic()
        self._more.set()
        self._more = asyncio.Event()

    def _look(self, now: float) -> None:
        """Look at services and the disk, now and then, beside everything else."""
        if now - self._looked_at < LOOK_EVERY_S or (self._looking and not self._looking.done()):
            return
        self._looked_at = now
        self._looking = asyncio.create_task(self._look_around())

    async def _look_around(self) -> None:
        found = [
            Alert(
                Code.SERVICE_SILENT,
                "service",
                name,
                f"the service {name} does not answer",
                "`skep doctor` says what to do; what runs goes on",
                None,
                (),
            )
            for name in await self._silent()
        ]
        with contextlib.suppress(OSError):
            disk = await asyncio.to_thread(shutil.disk_usage, self._path.parent)
            if disk.free * 100 < disk.total * DISK_FREE_PERCENT:
                text = f"the disk of the gateway has {disk.free // MIB} of {disk.total // MIB} MiB"
                todo = f"make room on the disk of {self._path.parent}: full, the gateway ends"
                disk_alert = Alert(
                    Code.DISK_NEAR, "limit", "gateway", f"{text} left", todo, None, ()
                )
                found.append(disk_alert)
        self.tables.more_alerts = found

    # --- encoding --------------------------------------------------------------------------------

    def _event(self, changed: Sequence[Changed]) -> bytes:
        if not changed:
            return b""
        tables = []
        for each in changed:
            name, gone = codec.encode(each.table), codec.encode(each.gone)
            rows = b",".join(each.rows)
            tables.append(b'%b:{"rows":[%b],"gone":%b}' % (name, rows, gone))
        return b'id: %b\ndata: {"at":%d,"tables":{%b}}\n\n' % (
            self.cursor.text().encode(),
            self._clock.now(),
            b",".join(tables),
        )

    async def _part(self, table: str, only: Only) -> Part:
        """Return a table as some callers see it: one that is at hand, or one that is being made."""
        key, versions = (table, only), self.tables.versions
        known = self._parts.get(key)
        if known is not None:
            if versions.changed_at(table) <= known.version:
                return known._replace(version=versions.version)
            if time.monotonic() < known.fresh_until:
                return known
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.create_task(self._make(table, only))
            making.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(making)

    async def _make(self, table: str, only: Only) -> Part:
        version, rows = self.tables.versions.version, self.tables.versions.listed(table, only)
        columns = codec.encode(TABLES[table])
        raw = b'%b:{"columns":%b,"rows":[%b]}' % (codec.encode(table), columns, b",".join(rows))
        packed = await asyncio.to_thread(_packed, raw)
        fresh_s = LISTED_FRESH_S if len(raw) > LISTED_SMALL else 0.0
        part = Part(raw, packed, version, time.monotonic() + fresh_s)
        self._parts.pop((table, only), None)
        self._parts[table, only] = part
        while len(self._parts) > PARTS_MAX:
            del self._parts[next(iter(self._parts))]
        return part


def cursor_of(text: str) -> Cursor | None:
    """Return the cursor that a client sent; None: it is none."""
    epoch, dash, version = text.partition("-")
    sound = epoch.isascii() and epoch.isalnum() and len(epoch) <= 16
    number = version.isascii() and version.isdecimal() and len(version) < 16
    return Cursor(epoch, int(version)) if dash and sound and number else None


def _packed(raw: bytes, level: int = LEVEL) -> bytes:
    """Return bytes as blocks of deflate that refer to nothing before them, without an end."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(raw) + packer.flush(zlib.Z_FULL_FLUSH)


class Gzip:
    """One gzip member that goes on: of pieces that were compressed apart, each for many members."""

    def __init__(self) -> None:
        """Begin; `MEMBER` comes first."""
        self._check = self._length = 0

    def add(self, frame: Frame) -> bytes:
        """Return the piece of a frame."""
        self._check = zlib.crc32(frame.raw, self._check)
        self._length += len(frame.raw)
        return frame.packed

    def end(self) -> bytes:
        """Return the end of the member."""
        return LAST + struct.pack("<II", self._check, self._length & 0xFFFFFFFF)


def _gzip(pieces: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return pieces, each with its blocks (empty: they are made here), as one gzip member."""
    check = length = 0
    found = [MEMBER]
    for raw, packed in pieces:
        check, length = zlib.crc32(raw, check), length + len(raw)
        found.append(packed or _packed(raw))
    return b"".join((*found, LAST, struct.pack("<II", check, length & 0xFFFFFFFF)))
