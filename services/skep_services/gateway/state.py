"""`/v1/state`, `/v1/state/changes` and `/v1/history`: what the page lists, watches and draws."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from aiohttp import web

from skep.ledger.history import GPU_STATES, POINTS_MAX, STEP, Told
from skep.units import seconds
from skep.wire import codec
from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, caller_of, number, raw_response, takes_gzip
from skep_services.gateway.callers import Only
from skep_services.gateway.columns import HISTORY, TABLES
from skep_services.gateway.feed import MEMBER, Cursor, Feed, Frame, Gzip, cursor_of
from skep_services.gateway.fold import Fold
from skep_services.gateway.limits import PAGES_MAX, Limits
from skep_services.gateway.scopes import tenants
from skep_services.gateway.streams import streaming, write
from skep_services.ports import Clock

READERS_MAX = 1_000
"""Open streams of changes: each costs a connection, and a write five times a second."""
LASTS_S = 900.0
"""A stream ends after this time, and its client goes on with another: a person that has lost its
role by then sees nothing more."""
HOURS = 24
HOUR = seconds(3600.0)
POINTS_AN_HOUR = HOUR // STEP
HOURS_MAX = POINTS_MAX // POINTS_AN_HOUR
HISTORY_FRESH_S = 10.0
"""How old a history may be that is answered: seven days of it take some 30 ms."""
HISTORIES_MAX = 64
"""Histories at hand, one for each class of callers, some 300 KB each."""


class StateViews:
    """The handlers."""

    def __init__(self, feed: Feed, limits: Limits, fold: Fold, clock: Clock) -> None:
        """Answer from these."""
        self._feed, self._limits, self._fold, self._clock = feed, limits, fold, clock
        self._histories: dict[Only, tuple[float, list[bytes]]] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/state", self.state, allow_head=False),
            web.get("/v1/state/changes", self.changes, allow_head=False),
            web.get("/v1/history", self.history, allow_head=False),
        ]

    async def state(self, request: web.Request) -> web.StreamResponse:
        """Answer tables, and the cursor from which on their changes are to be read.

        Raises:
            ApiError: A parameter is wrong (400), or names another tenant's VC (403).
        """
        only, tables = tenants(request), _tables(request)
        await self._feed.current()
        packed = takes_gzip(request)
        response = raw_response(await self._feed.listing(only, tables, packed=packed))
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
        response.headers["Cache-Control"] = "no-store"
        return response

    async def changes(self, request: web.Request) -> web.StreamResponse:
        """Answer changes of tables as they happen, from a cursor on; without one: from now on.

        Raises:
            ApiError: A parameter is wrong (400), names another tenant's VC (403), or too many
                streams are open (429: by this tenant; 503).
        """
        only, tables, since = tenants(request), _tables(request), _since(request)
        if self._feed.readers >= READERS_MAX:
            text = f"{READERS_MAX} streams of changes are open, as many as there may be"
            raise ApiError(503, "too-many-streams", text)
        with self._limits.one_of(caller_of(request), "streams of changes", PAGES_MAX):
            self._feed.readers += 1
            try:
                await self._feed.current()
                reader = Reader(request)
                # A page that was closed is no error.
                with contextlib.suppress(ConnectionResetError):
                    await reader.begin()
                    await self._watch(reader, only, tables, since)
            finally:
                self._feed.readers -= 1
        return reader.response

    async def _watch(
        self, reader: Reader, only: Only, tables: tuple[str, ...], since: Cursor | None
    ) -> None:
        feed, ends_at = self._feed, time.monotonic() + LASTS_S
        await reader.tell(Frame(b": changes follow\n\n"))
        cursor = since or feed.cursor
        while not feed.closed:
            event = None
            if cursor.epoch == feed.epoch:
                event = feed.frame(cursor.version, only, tables)
            here = feed.cursor
            if event is None:
                told = codec.encode({"cursor": here.text()})
                event = Frame(b"event: reset\nid: %b\ndata: %b\n\n" % (here.text().encode(), told))
            if event.raw:
                await reader.tell(event)
            if time.monotonic() > ends_at:
                break
            cursor = here
            if feed.cursor == here and not await feed.wait(here.version) and not feed.closed:
                await reader.tell(Frame(b": alive\nid: %b\n\n" % here.text().encode()))
        await reader.end()

    async def history(self, request: web.Request) -> web.StreamResponse:
        """Answer the cluster over the last `hours`, a row for each five minutes.

        Raises:
            ApiError: A parameter is wrong (400), or names another tenant's VC (403).
        """
        only, hours = tenants(request), number(request, "hours", HOURS)
        if not 1 <= hours <= HOURS_MAX:
            text = f"`hours` is a number from 1 to {HOURS_MAX}: older times are not kept"
            raise ApiError(400, Reason.BAD_VALUE, text)
        rows = self._history(only)[-hours * POINTS_AN_HOUR :]
        body = b'{"step_s":%d,"columns":%b,"rows":[%b]}' % (
            STEP // seconds(1.0),
            codec.encode(HISTORY),
            b",".join(rows),
        )
        return raw_response(body)

    def _history(self, only: Only) -> list[bytes]:
        """Return all rows of the history, as old as HISTORY_FRESH_S at most."""
        made_at, rows = self._histories.get(only, (0.0, []))
        if not made_at or time.monotonic() - made_at > HISTORY_FRESH_S:
            now, history = self._clock.now(), self._fold.history
            history.begin(self._fold.state)
            vcs = None if only == "" else (only,) if isinstance(only, str) else only
            told = history.shown(now - HOURS_MAX * HOUR, now, vcs)
            rows = [codec.encode(_history_row(each)) for each in told]
            self._histories.pop(only, None)
            self._histories[only] = time.monotonic(), rows
            while len(self._histories) > HISTORIES_MAX:
                del self._histories[next(iter(self._histories))]
        return rows


class Reader:
    """One client's stream of frames: compressed if the client reads that, each frame once for all.

    No piece refers to another, so that nothing is kept per client.
    """

    def __init__(self, request: web.Request) -> None:
        """Begin nothing yet."""
        self.response = streaming("text/event-stream")
        self._request = request
        self._gzip: Gzip | None = None
        if takes_gzip(request):
            self._gzip = Gzip()
            self.response.headers["Content-Encoding"] = "gzip"
        self.response.headers["Vary"] = "Accept-Encoding"

    async def begin(self) -> None:
        """Answer, with nothing in it yet."""
        await self.response.prepare(self._request)
        if self._gzip is not None:
            await write(self._request, self.response, MEMBER)

    async def tell(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            ConnectionResetError: The client is gone, or took nothing for a while.
        """
        data = frame.raw if self._gzip is None else self._gzip.add(frame)
        await write(self._request, self.response, data)

    async def end(self) -> None:
        """Send what ends a compressed stream."""
        if self._gzip is not None:
            await write(self._request, self.response, self._gzip.end())


def _history_row(told: Told) -> list[Any]:
    return [
        told.at,
        *(told.gpus[state] for state in GPU_STATES),
        told.training,
        told.useful,
        told.waiting,
        told.started,
        told.waited_p50_s,
        told.waited_p90_s,
        told.succeeded,
        told.failed,
        told.cancelled,
        told.used,
    ]


def _tables(request: web.Request) -> tuple[str, ...]:
    """Return the tables that a request wants, in the order of TABLES; without a word: all.

    Raises:
        ApiError: There is no such table (400).
    """
    text = request.query.get("tables", "")
    if not text:
        return tuple(TABLES)
    words = text.split(",", len(TABLES))
    for word in words:
        if word not in TABLES:
            hint = nearest(word[:40], list(TABLES)) or f"there are {', '.join(TABLES)}"
            raise ApiError(400, Reason.BAD_VALUE, f"no such table: {word[:40]}; {hint}")
    return tuple(name for name in TABLES if name in words)


def _since(request: web.Request) -> Cursor | None:
    """Return the cursor from which a request goes on; None: it begins now.

    A client that reconnects says it in a header, which counts more.

    Raises:
        ApiError: It is no cursor (400).
    """
    text = request.headers.get("Last-Event-ID", "") or request.query.get("since", "")
    if not text:
        return None
    cursor = cursor_of(text)
    if cursor is None:
        text = f"`since` is a cursor of /v1/state, such as 5f3a-17, not {text[:40]!r}"
        raise ApiError(400, Reason.BAD_VALUE, text)
    return cursor
