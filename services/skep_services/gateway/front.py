"""Requests to services: passed on to replicas that are ready, counted, and told of every second.

    client --HTTP--> /v1/services/{service}/http/… --HTTP--> a replica's port on its node

Every gateway asks each replica for its health itself: what it can reach is what it sends to. Which
replicas are to go it reads from the facts, as soon as they are stored. It says what it finds to the
service of searches (`Served`), which decides. This module decides nothing but where a request goes:
to the ready replica with the fewest that are open. A request to a service whose replicas have ended
because nothing was asked waits here, within bounds, until one is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import msgspec
import structlog
from aiohttp import web
from yarl import URL

from skep.access.rights import Action
from skep.ledger.job_state import State
from skep.ledger.state import ClusterState
from skep.machines.searches.serving.state import Replica, Service
from skep.units import MIB
from skep.wire import codec, subjects
from skep.wire.reasons import Reason
from skep.wire.served import Health, ReplicaServed, Served, ServiceServed
from skep_services.gateway.api import CALLS, ApiError, caller_of, check, is_gone
from skep_services.gateway.searches import SearchesView
from skep_services.ports import Bus, Clock

log = structlog.get_logger(service="gateway")

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SAFE = ("GET",)
"""Methods that are tried once more at another replica, if one failed that may have read them."""
TRIES_MAX = 3
LOOK_S = 0.25
"""Until it is looked which replicas are to be asked."""
PROBE_S = 1.0
"""Between two questions for the health of a replica that is ready."""
PROBE_WITHIN_S = 2.0
FAILURES_MAX = 3
"""Questions on end that a ready replica does not answer until it gets no more requests."""
REPORT_S = 1.0
SOON_S = 0.02
"""Between two messages where something new is to be said."""
CONNECT_WITHIN_S = 5.0
SILENT_S = 600.0
"""How long a replica may say nothing amid an answer: large models think for minutes."""
OPEN_MAX = 1000
"""Requests of one service that a gateway has open: each takes two connections."""
WAITING_MAX = 100
"""Requests of one service that wait at a gateway for a replica: each holds a connection."""
WAITS_AGAIN_S = 5.0
"""Until a request that waited too long is to be repeated."""
GONE_S = 1.0
"""Until it is looked whether the client of a request has gone."""
BODY_BYTES_MAX = 64 * MIB
WINDOW_S = 30.0
LATENCIES_MAX = 4096
PIECE = 64 * 1024

HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",  # codespell:ignore
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
    )
)
"""Headers of one connection, which are not passed on (RFC 9110, section 7.6.1)."""
KEPT_BACK = HOP_BY_HOP | {"authorization", "cookie", "expect"}
"""Of a request: a replica is another's program, and must not learn its callers' tokens. `Expect` is
answered here: a replica that does not speak of it would have the body waited for without end."""
STATUS_MIN, STATUS_MAX = 200, 999
"""Of an answer. One below is about the connection to the replica, and that is no one else's."""
NOT_ANSWERED = HOP_BY_HOP | {
    "alt-svc",
    "clear-site-data",
    "content-security-policy",
    "nel",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "strict-transport-security",
}
"""Of an answer: it has no rights on the page of Skep, which has the same origin."""
SANDBOX = {"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff"}


class Answers(msgspec.Struct):
    """The latest answers of a replica, and how many of them were late."""

    taken: deque[tuple[float, bool]] = msgspec.field(default_factory=deque)
    late: int = 0

    def take(self, now: float, *, late: bool) -> None:
        """Note an answer."""
        self.taken.append((now, late))
        self.late += late
        self.lately(now)

    def lately(self, now: float) -> tuple[int, int]:
        """Return how many requests were answered in the window, and how many of them late."""
        while self.taken and (self.taken[0][0] < now - WINDOW_S or len(self.taken) > LATENCIES_MAX):
            self.late -= self.taken.popleft()[1]
        return len(self.taken), self.late


class Point(msgspec.Struct):
    """Where a replica answers, in one attempt of its job, and how it does."""

    service: str
    replica: int
    attempt: int
    node: str
    host: str
    port: int
    path: str
    health: Health = "unknown"
    failures: int = 0
    open: int = 0
    taken: int = 0
    """When it took its latest request: requests are numbered."""
    asked_at: float = 0.0
    asking: bool = False
    draining: bool = False
    bound_s: float = 0.0
    """What an answer may take, to its head; 0: nothing is said of it."""
    answers: Answers = msgspec.field(default_factory=Answers)


class Load(msgspec.Struct):
    """What was asked of a service."""

    new: int = 0
    """Requests since the latest message."""
    open: int = 0
    waiting: int = 0
    asked: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    """How many requests came in which second; none for those without."""
    latencies: deque[tuple[float, float]] = msgspec.field(
        default_factory=lambda: deque(maxlen=LATENCIES_MAX)
    )

    def ask(self, now: float) -> None:
        """Count a request."""
        self.new += 1
        same = self.asked and self.asked[-1][0] == int(now)
        count = self.asked.pop()[1] if same else 0
        self.asked.append((int(now), count + 1))
        self._forget(now)

    def p95_ms(self, now: float) -> int:
        """Return the 95th percentile of the latencies in the window; 0: there are none."""
        while self.latencies and self.latencies[0][0] < now - WINDOW_S:
            self.latencies.popleft()
        taken = sorted(length for _, length in self.latencies)
        return max(1, round(1000 * taken[len(taken) * 95 // 100])) if taken else 0

    def rate(self, now: float) -> float:
        """Return the requests of the window per second."""
        self._forget(now)
        return sum(count for _, count in self.asked) / WINDOW_S

    def _forget(self, now: float) -> None:
        while self.asked and self.asked[0][0] < now - WINDOW_S:
            self.asked.popleft()


class Front:
    """Passes requests on. `run` it as long as it is used."""

    def __init__(
        self,
        view: SearchesView,
        state: Callable[[], ClusterState],
        bus: Bus,
        clock: Clock,
        identity: str,
    ) -> None:
        """Take what is known of services and jobs, and where to say what is found."""
        self._view, self._state, self._bus, self._clock = view, state, bus, clock
        self._identity = identity
        self.points: dict[tuple[str, int], Point] = {}
        self.loads: dict[str, Load] = {}
        self._number = 0
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        """Set, and another one from then on, when a replica or a service has changed."""
        self._probes: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        route = CALLS.replace("{path}", "{path:(?s:.*)}")
        return [web.route(method, route, self.call) for method in METHODS]

    async def run(self) -> None:
        """Look after replicas and say how they are, until cancelled."""
        # Each request has a connection of its own: none is closed by a replica while it is sent.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_WITHIN_S, sock_read=SILENT_S
        )
        self._view.service_news = self._tell
        said_at = 0.0
        # A jar would hand the cookies of one replica to others on its host, whatever tenant's.
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as self._session:
            # aiohttp would repeat what a replica may have read: where to is decided here.
            self._session._retry_connection = False
            try:
                while True:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), LOOK_S)
                    if self._news.is_set():
                        await asyncio.sleep(max(0.0, said_at + SOON_S - time.monotonic()))
                    self._look()
                    now = time.monotonic()
                    if now - said_at >= (SOON_S if self._news.is_set() else REPORT_S):
                        self._news.clear()
                        said_at = now
                        await self._say(now)
            finally:
                for task in self._probes:
                    task.cancel()

    # --- health ------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take over which replicas there are, and ask those whose time it is."""
        found: dict[tuple[str, int], Point] = {}
        for service in self._view.services.values():
            for replica in service.replicas.values():
                point = self._point(service, replica)
                if point is not None:
                    bound_s = (service.spec.latency_ms or 0) / 1000
                    if bound_s != point.bound_s:
                        point.bound_s, point.answers = bound_s, Answers()
                    found[service.service, replica.number] = point
        self.points = found
        for name in [name for name in self.loads if name not in self._view.services]:
            del self.loads[name]
        now = time.monotonic()
        for point in found.values():
            every = PROBE_S if point.health == "ready" else LOOK_S
            if not point.asking and now - point.asked_at >= every:
                point.asking, point.asked_at = True, now
                task = asyncio.create_task(self._probe(point))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)

    def _point(self, service: Service, replica: Replica) -> Point | None:
        job = self._state().jobs.get(replica.job)
        if job is None or job.state not in (State.RUNNING, State.SUSPENDED):
            return None
        known = self.points.get((service.service, replica.number))
        if known is not None and known.attempt == job.attempt:
            known.draining = not replica.serving
            return known
        first = next((one for one in job.members.values() if one.first_rank == 0), None)
        node = self._state().nodes.get(first.node) if first is not None else None
        if first is None or node is None:
            return None
        return Point(
            service=service.service,
            replica=replica.number,
            attempt=job.attempt,
            node=first.node,
            host=node.joined.address,
            port=job.port,
            path=service.specs[replica.revision].health,
            draining=not replica.serving,
        )

    async def _probe(self, point: Point) -> None:
        try:
            well = await self._is_well(point)
        finally:
            point.asking = False
        point.failures = 0 if well else point.failures + 1
        before = point.health
        if well:
            point.health = "ready"
        elif before != "ready" or point.failures >= FAILURES_MAX:
            point.health = "unready"
        if point.health != before:
            self._tell()

    def _tell(self) -> None:
        """Have something new said soon, and looked at by requests that wait."""
        self._news.set()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _is_well(self, point: Point) -> bool:
        try:
            async with asyncio.timeout(PROBE_WITHIN_S):
                if not point.path:
                    _, writer = await asyncio.open_connection(point.host, point.port)
                    writer.close()
                    return True
                assert self._session is not None
                path, _, query = point.path.partition("?")
                url = _url(point, path, query)
                async with self._session.get(url, allow_redirects=False) as answer:
                    return answer.status < 400
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False

    async def _say(self, now: float) -> None:
        """Tell what was found, if there is a service."""
        services = []
        for name, service in self._view.services.items():
            load = self.loads.setdefault(name, Load())
            rows = tuple(
                ReplicaServed(
                    replica=point.replica,
                    attempt=point.attempt,
                    health=point.health,
                    draining=point.draining,
                    open=point.open,
                    answered=(lately := point.answers.lately(now))[0],
                    late=lately[1],
                )
                for point in map(self.points.get, ((name, one) for one in service.replicas))
                if point is not None
            )
            services.append(
                ServiceServed(
                    service=name,
                    requests=load.new,
                    p95_ms=load.p95_ms(now),
                    waiting=load.waiting,
                    replicas=rows,
                )
            )
            load.new = 0
        if services:
            at = self._clock.now()
            said = Served(gateway=self._identity, at=at, services=tuple(services))
            await self._bus.send(subjects.served(self._identity), codec.encode(said), {})

    # --- requests ----------------------------------------------------------------------------

    async def call(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on to a replica, and its answer back.

        Raises:
            ApiError: There is no such service, or the caller may not see it (404) or may not use it
                (403); the body is too large (413); no replica is ready (503), or the one that took
                the request failed (502); WebSockets (501).
            ConnectionError: The client has gone.
        """
        service = self._view.find_service(request.match_info["service"], caller_of(request).may)
        check(Action.SUBMIT, caller_of(request), service.spec.vc, caller_of(request).person)
        if "upgrade" in request.headers:
            text = "connections to services by WebSocket are not built yet: use skep port-forward"
            raise ApiError(501, Reason.NOT_BUILT, text)
        if (request.content_length or 0) > BODY_BYTES_MAX:
            text = f"a request to a service has at most {BODY_BYTES_MAX // MIB} MiB"
            raise ApiError(413, Reason.TOO_LARGE, text)
        load = self.loads.setdefault(service.service, Load())
        load.ask(time.monotonic())
        if load.open >= OPEN_MAX:
            text = f"{service.spec.name} has {OPEN_MAX} requests open at this gateway"
            raise ApiError(503, "too-many-open", text, retry_after_s=1.0)
        load.open += 1
        try:
            with _while_there(request):
                return await self._passed_on(request, service, load)
        finally:
            load.open -= 1

    async def _passed_on(
        self, request: web.Request, service: Service, load: Load
    ) -> web.StreamResponse:
        """Pass a request on to the first replica that takes it.

        Raises:
            ApiError: None is ready (503), or the ones that were failed (502).
        """
        if service.spec.replicas == 0 and self._pick(service, []) is None:
            await self._until_ready(request, service, load)
        tried: list[Point] = []
        body = Body(request)
        while len(tried) < TRIES_MAX:
            point = self._pick(service, tried)
            if point is None:
                break
            tried.append(point)
            with self._open(point):
                answer = await self._try(request, body, point, load)
            if answer is not None:
                return answer
        if tried:
            text = f"replica {tried[-1].replica} of {service.spec.name} failed to answer"
            raise ApiError(502, "replica-failed", text)
        text = (
            f"no replica of {service.spec.name} is ready: skep services {service.service} says why"
        )
        raise ApiError(503, Reason.NO_REPLICA_READY, text, retry_after_s=1.0)

    async def _until_ready(self, request: web.Request, service: Service, load: Load) -> None:
        """Wait until a replica of a service is ready that may have none; not once it ends.

        Raises:
            ApiError: Too many requests wait, or none was ready in time (503).
        """
        name, wait_s = service.spec.name, service.spec.seconds_of("wait")
        if load.waiting >= WAITING_MAX:
            text = f"{name} is starting, and {WAITING_MAX} requests wait for it at this gateway"
            raise ApiError(503, "too-many-waiting", text, retry_after_s=WAITS_AGAIN_S)
        deadline = time.monotonic() + wait_s
        load.waiting += 1
        self._news.set()
        try:
            while service.ending is None and self._pick(service, []) is None:
                left = deadline - time.monotonic()
                if service.service not in self._view.services or is_gone(request):
                    return
                if left <= 0:
                    text = (
                        f"no replica of {name} was ready within {wait_s} s: "
                        f"skep services {service.service} says why"
                    )
                    raise ApiError(503, Reason.NO_REPLICA_READY, text, retry_after_s=WAITS_AGAIN_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(left, GONE_S))
        finally:
            load.waiting -= 1

    def _pick(self, service: Service, tried: list[Point]) -> Point | None:
        """Return the ready replica with the fewest open requests that was not tried, or None."""
        found = [
            point
            for replica in service.replicas.values()
            if replica.serving
            and (point := self.points.get((service.service, replica.number))) is not None
            and point.health == "ready"
            and point not in tried
        ]
        # Of those with as few the one that was asked the least goes first: replicas take turns.
        return min(found, key=lambda point: (point.open, point.taken), default=None)

    @contextlib.contextmanager
    def _open(self, point: Point) -> Iterator[None]:
        self._number += 1
        point.open, point.taken = point.open + 1, self._number
        try:
            yield
        finally:
            point.open -= 1
            if point.draining and not point.open:
                self._news.set()

    async def _try(
        self, request: web.Request, body: Body, point: Point, load: Load
    ) -> web.StreamResponse | None:
        """Return the answer of one replica; None: another one may be asked.

        Raises:
            ApiError: The body is too large (413), or the replica failed amid it (502).
        """
        assert self._session is not None
        raw = request.rel_url.raw_path.split("/", 5)[5]
        url = _url(point, f"/{raw}", request.rel_url.raw_query_string)
        headers = [(name, value) for name, value in request.headers.items() if _passes(name)]
        headers.append(("X-Forwarded-Proto", request.scheme))
        began = time.monotonic()
        try:
            given = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=body.pieces() if request.can_read_body else None,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if body.too_large:
                text = f"a request to a service has at most {BODY_BYTES_MAX // MIB} MiB"
                raise ApiError(413, Reason.TOO_LARGE, text) from None
            log.info("replica failed", replica=point.replica, error=str(error)[:200])
            unseen = isinstance(error, aiohttp.ClientConnectorError)
            again = request.method in SAFE and not body.seen
            body.seen = body.seen or not unseen
            if not body.begun and (unseen or again):
                return None
            text = f"replica {point.replica} ended the request without an answer"
            raise ApiError(502, "replica-failed", text) from None
        now = time.monotonic()
        load.latencies.append((now, now - began))
        if point.bound_s:
            point.answers.take(now, late=now - began > point.bound_s)
        async with given:
            return await _answer(request, given, point.replica)


class Body:
    """The body of a request, piece by piece, once."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.begun = self.too_large = False
        self.seen = False
        """A replica may have read the request: one that ends replicas ends two of them at most."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body.

        Raises:
            ConnectionError: It is too large.
        """
        self.begun, size = True, 0
        async for piece in self._request.content.iter_chunked(PIECE):
            size += len(piece)
            if size > BODY_BYTES_MAX:
                self.too_large = True
                raise ConnectionError
            yield piece


async def _answer(
    request: web.Request, given: aiohttp.ClientResponse, replica: int
) -> web.StreamResponse:
    """Pass on an answer whose head is here.

    Raises:
        ApiError: The head is none that may be passed on (502).
    """
    try:
        response = await _head(request, given)
    except ValueError as error:
        text = f"replica {replica} answered what is no HTTP: {error}"
        raise ApiError(502, "replica-failed", text) from None
    try:
        async for piece in given.content.iter_any():
            await response.write(piece)
    except (aiohttp.ClientError, TimeoutError):
        # The head is sent: that the body is not whole shows by the end of the connection alone.
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


async def _head(request: web.Request, given: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass on the head of an answer.

    Raises:
        ValueError: It has another status than answers have, or control characters in a header.
    """
    if not STATUS_MIN <= given.status <= STATUS_MAX:
        text = f"status {given.status}"
        raise ValueError(text)
    response = web.StreamResponse(status=given.status, reason=given.reason)
    for name, value in given.headers.items():
        if name.lower() not in NOT_ANSWERED:
            response.headers.add(name, value)
    response.headers.update(SANDBOX)
    await response.prepare(request)
    return response


@contextlib.contextmanager
def _while_there(request: web.Request) -> Iterator[None]:
    """Give up what is within once the client of a request has gone.

    A replica then sees its connection end, and computes no answer that no one reads.

    Raises:
        ConnectionResetError: It has gone.
        asyncio.CancelledError: The task was cancelled for something else.
    """
    task, loop, gone = asyncio.current_task(), asyncio.get_running_loop(), False
    again: asyncio.TimerHandle | None = None
    assert task is not None

    def look() -> None:
        nonlocal again, gone
        gone = is_gone(request)
        if gone:
            task.cancel()
        else:
            again = loop.call_later(GONE_S, look)

    again = loop.call_later(GONE_S, look)
    try:
        yield
    except asyncio.CancelledError:
        if not gone or task.uncancel():
            raise
        text = "the client has gone"
        raise ConnectionResetError(text) from None
    finally:
        if again is not None:
            again.cancel()


def _passes(name: str) -> bool:
    return name.lower() not in KEPT_BACK


def _url(point: Point, path: str, query: str) -> URL:
    return URL.build(
        scheme="http", host=point.host, port=point.port, path=path, query_string=query, encoded=True
    )


def where(front: Front, service: Service, replica: Replica) -> dict[str, Any]:
    """Return where a replica is and how many requests it has open, as this gateway knows it."""
    point = front.points.get((service.service, replica.number))
    if point is None:
        return {"node": None, "open": 0}
    return {"node": point.node, "open": point.open}
