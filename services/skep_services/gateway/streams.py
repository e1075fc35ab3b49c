"""Answers that go on: server-sent events and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from aiohttp import web

from skep.access.rights import Action
from skep.ids import job_sequence
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, caller_of, check, number, raw_response
from skep_services.gateway.callers import covers
from skep_services.gateway.hub import Hub
from skep_services.gateway.index import Indexer
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.limits import MOST, STREAMS_MAX, Limits
from skep_services.gateway.log_lines import LINES_MAX, TEXT_CHARS_MAX, Last, Lines
from skep_services.gateway.logs import Logs, Tail
from skep_services.gateway.model import EventQuery
from skep_services.gateway.scopes import tenants

PAGE = 1_000
"""Events of one read from the store, some 300 KB."""
EVENTS_MAX = 10_000
"""Events of one answer that does not go on."""
ALIVE_EVERY_S = 15.0
"""How often a silent stream says something, so that proxies and clients know it lives."""
STALL_S = 20.0
"""How long a client may take nothing before its connection is cut."""
READERS_MAX = 500
"""Open event streams; each costs a connection and a walk over every event."""
FOLLOWERS_MAX = 600
"""Logs followed at once; each asks an agent three times a second while something comes."""
SEARCHERS_MAX = 16
"""Logs searched at once; each reads a whole log, 256 KiB after another."""
AGO_S_MAX = 100 * 365 * 24 * 3600


class Wanted(NamedTuple):
    """Which part of an output: the last lines, of the last seconds, with a text; None: all."""

    tail: int | None
    ago_s: int | None
    text: str | None
    any_case: bool


class Streams:
    """The handlers."""

    def __init__(self, indexer: Indexer, hub: Hub, jobs: Jobs, logs: Logs, limits: Limits) -> None:
        self._indexer, self._hub, self._jobs, self._logs = indexer, hub, jobs, logs
        self._limits = limits
        self._followers = self._searchers = 0

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/events", self.events, allow_head=False),
            web.get("/v1/jobs/{job}/logs", self.logs, allow_head=False),
        ]

    # --- events --------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Answer stored events, or (`follow`) those and every further one as it happens."""
        vc, job = tenants(request), request.query.get("job", "")
        if job and job_sequence(job) is None:
            job = (await self._jobs.named(caller_of(request), job)).row.job
        since = _since(request)
        if flag(request, "follow"):
            with self._limits.one_of(caller_of(request), "event streams", STREAMS_MAX):
                return await self._follow(request, EventQuery(PAGE, since, job, vc))
        limit = number(request, "limit", PAGE, EVENTS_MAX)
        await self._indexer.settle()
        found = await self._indexer.events(EventQuery(limit, since, job, vc))
        docs = b",".join(doc for _, doc in found)
        return raw_response(b'{"events":[' + docs + b"]}")

    async def _follow(self, request: web.Request, query: EventQuery) -> web.StreamResponse:
        if self._hub.readers >= READERS_MAX:
            text = f"{READERS_MAX} event streams are open, as many as there may be"
            raise ApiError(503, "too-many-streams", text)
        response = streaming("text/event-stream")
        self._hub.readers += 1
        try:
            await response.prepare(request)
            await write(request, response, b": events follow\n\n")
            newest = self._hub.newest
            since = newest if query.since is None else query.since
            if since > newest:
                # The numbers are from a file that was rebuilt since: they mean nothing here.
                await write(request, response, b": the numbering began anew\n\n")
                since = newest
            await self._walk(request, response, query, since)
        finally:
            self._hub.readers -= 1
        return response

    async def _walk(
        self, request: web.Request, response: web.StreamResponse, query: EventQuery, since: int
    ) -> None:
        """Send stored events up to the ring, then walk along the ring until it overtakes."""
        seq = since
        while (ring := self._hub.after(seq)) is None:
            newest = self._hub.newest
            page = await self._indexer.events(query._replace(since=seq))
            # An empty page: nothing that matches was stored up to what was newest before.
            seq = page[-1][0] if page else newest
            if page:
                await write(request, response, _frames(page))
        while ring is not None and not self._hub.closed:
            seq = ring[-1].seq if ring else seq
            wanted = [
                (event.seq, event.doc)
                for event in ring
                if covers(query.vc, event.vc) and query.job in {"", event.job}
            ]
            if wanted:
                await write(request, response, _frames(wanted))
            if not await self._hub.wait(seq, ALIVE_EVERY_S):
                await write(request, response, b": alive\n\n")
            ring = self._hub.after(seq)
        if ring is None:
            self._hub.cut += 1
            await write(request, response, b": too slow; go on with Last-Event-ID\n\n")

    # --- logs ----------------------------------------------------------------------------------

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Answer a rank's output, or (`follow`) go on until its attempt (or job) is over.

        `tail` begins so many lines before the end, `since_s` at what was written in the last so
        many seconds; `grep` answers only lines in which a text occurs, as JSON lines.

        Raises:
            ApiError: There is no such job, attempt or rank (404), several jobs have this name
                (409), it is another's, whose logs the caller may not read (403), a query parameter
                is wrong (400), too many logs are followed or searched (429: by this tenant; 503),
                or the node does not answer (503).
        """
        job = await self._jobs.job(request)
        check(Action.READ_LOGS, caller_of(request), job.row.vc, job.row.owner)
        latest = request.query.get("attempt", "latest") == "latest"
        follow = flag(request, "follow")
        wanted = _wanted(request)
        tail = self._logs.open(
            job,
            attempt=None if latest else number(request, "attempt", 0),
            rank=number(request, "rank", 0),
            offset=number(request, "offset", 0),
            follow=follow,
        )
        if not follow and wanted.text is None:
            return await self._pass_on(request, tail, wanted)
        open_now, most, what = (
            (self._followers, FOLLOWERS_MAX, "followed logs")
            if follow
            else (self._searchers, SEARCHERS_MAX, "searched logs")
        )
        if open_now >= most:
            text = f"there are {most} {what}, as many as there may be: try again later"
            raise ApiError(503, "too-many-streams", text)
        with self._limits.one_of(caller_of(request), what, MOST[what]):
            self._count(1, follow=follow)
            try:
                passes = self._pass_on if wanted.text is None else self._search
                return await passes(request, tail, wanted)
            finally:
                self._count(-1, follow=follow)

    def _count(self, change: int, *, follow: bool) -> None:
        if follow:
            self._followers += change
        else:
            self._searchers += change

    async def _search(self, request: web.Request, tail: Tail, wanted: Wanted) -> web.StreamResponse:
        """Answer the lines that a text occurs in; of `tail` the last ones that there are now."""
        assert wanted.text is not None
        await tail.begin(None, wanted.ago_s)
        lines = Lines(wanted.text, tail.offset, any_case=wanted.any_case)
        last = None if wanted.tail is None else Last(wanted.tail)
        piece, attempt = await tail.first(), tail.attempt
        response = streaming("application/x-ndjson")
        response.headers["Skep-Attempt"] = str(attempt)
        await response.prepare(request)
        if piece:
            found = lines.feed(piece)
            if last is not None:
                last.take(found)
            elif told := lines.told(found):
                await write(request, response, told)
        async for piece in tail.rest():
            found = lines.end() if tail.attempt != attempt else []
            attempt = tail.attempt
            found += lines.feed(piece)
            if last is not None:
                last.take(found)
                if piece:
                    continue
                found, last = last.lines(), None
            if told := lines.told(found):
                await write(request, response, told)
            elif not piece and (request.transport is None or request.transport.is_closing()):
                return response
        found = lines.end()
        if last is not None:
            last.take(found)
            found = last.lines()
        if found:
            await write(request, response, lines.told(found))
        return response

    async def _pass_on(
        self, request: web.Request, tail: Tail, wanted: Wanted
    ) -> web.StreamResponse:
        await tail.begin(wanted.tail, wanted.ago_s)
        offset = tail.offset
        first = await tail.first()
        response = streaming("text/plain")
        response.charset = "utf-8"
        response.headers["Skep-Attempt"] = str(tail.attempt)
        response.headers["Skep-Offset"] = str(offset)
        await response.prepare(request)
        if first:
            await write(request, response, first)
        async for data in tail.rest():
            if data:
                await write(request, response, data)
            elif request.transport is None or request.transport.is_closing():
                break
        return response


def flag(request: web.Request, name: str) -> bool:
    """Return whether a query parameter is 1; without it: False.

    Raises:
        ApiError: It is neither 0 nor 1 (400).
    """
    text = request.query.get(name, "0")
    if text not in {"0", "1"}:
        raise ApiError(400, Reason.BAD_VALUE, f"`{name}` is 0 or 1")
    return text == "1"


def _wanted(request: web.Request) -> Wanted:
    """Return which part of an output a request asks for.

    Raises:
        ApiError: A parameter is wrong (400).
    """
    text = request.query.get("grep")
    if text is not None and not 0 < len(text) <= TEXT_CHARS_MAX:
        raise ApiError(
            400, Reason.BAD_VALUE, f"`grep` is a text of 1 to {TEXT_CHARS_MAX} characters"
        )
    if text is not None and "\n" in text:
        raise ApiError(400, Reason.BAD_VALUE, "`grep` is a text of one line")
    query = request.query
    return Wanted(
        number(request, "tail", 0, LINES_MAX) if "tail" in query else None,
        number(request, "since_s", 0, AGO_S_MAX) if "since_s" in query else None,
        text,
        flag(request, "any_case"),
    )


def _since(request: web.Request) -> int | None:
    """Return the event after which to go on; a reconnecting client says it in a header."""
    last = request.headers.get("Last-Event-ID", "")
    if last.isascii() and last.isdecimal() and len(last) < 16:
        return int(last)
    return number(request, "since", 0) if "since" in request.query else None


def streaming(content_type: str) -> web.StreamResponse:
    """Return an answer that goes on, which nothing on its way may gather."""
    response = web.StreamResponse()
    response.content_type = content_type
    # Proxies that gather an answer before passing it on would hold back every line.
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write, and cut the connection of a client that takes nothing.

    Raises:
        ConnectionResetError: The client is gone, or took nothing for STALL_S.
    """
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        text = f"nothing was taken for {STALL_S:.0f} s"
        raise ConnectionResetError(text) from None


def _frames(events: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(b"id: %d\ndata: %b\n\n" % event for event in events)
