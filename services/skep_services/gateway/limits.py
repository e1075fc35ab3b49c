"""A tenant's part of the gateway: how many requests a second, how many answers that go on.

An operator has no limit of its own; what there may be of all callers together bounds it too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from aiohttp import web

from skep.units import MIB
from skep.wire import subjects
from skep_services.gateway.api import ApiError, caller_of, json_response
from skep_services.gateway.callers import Caller
from skep_services.ports import Bus

REQUESTS_PER_S = 200
"""Of one tenant, lasting: a fifth of what a gateway answers on one core."""
REQUESTS_BURST = 1_000
"""What a tenant may ask at once after a quiet time: a sweep of a thousand jobs."""
STREAMS_MAX = 16
"""Event streams of one tenant: 31 tenants fit into what there may be of all together."""
SESSIONS_MAX = 64
"""Sessions in jobs that one tenant has at once: terminals, and a browser's connections through
`skep port-forward`."""
FOLLOWED_MAX = 64
"""Logs that one tenant follows at once: every rank that `skep logs --rank all` shows."""
SEARCHED_MAX = 4
"""Logs that one tenant searches at once."""

PAGES_MAX = 16
"""Streams of changes of one tenant or person: as many pages that it has open."""

ANSWER_WITHIN_S = 1.0
MOST = {
    "event streams": STREAMS_MAX,
    "streams of changes": PAGES_MAX,
    "followed logs": FOLLOWED_MAX,
    "searched logs": SEARCHED_MAX,
    "sessions": SESSIONS_MAX,
}


class Nearly(NamedTuple):
    """A limit that is near: whose (as it is counted), of what, and a sentence."""

    counted: str
    what: str
    text: str


class Kept(msgspec.Struct, frozen=True):
    """How much a stream holds, of what the bus says of it."""

    bytes: int = 0


class Bounds(msgspec.Struct, frozen=True):
    """How much a stream may hold."""

    max_bytes: int = 0


class StreamFill(msgspec.Struct, frozen=True):
    """What the bus says of a stream, as far as it matters here."""

    config: Bounds = Bounds()
    state: Kept = Kept()


async def submissions_near(bus: Bus) -> list[str]:
    """Return a sentence if the stream of submissions is filled to four fifths or more."""
    answer = await bus.request(f"$JS.API.STREAM.INFO.{subjects.SUBMIT}", b"", {}, ANSWER_WITHIN_S)
    if answer is None:
        return []
    try:
        found = msgspec.json.decode(answer.payload, type=StreamFill)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    used, most = found.state.bytes, found.config.max_bytes
    if most <= 0 or 5 * used < 4 * most:
        return []
    return [
        f"the stream of submissions holds {used // MIB} of {most // MIB} MiB: when it is full, "
        "no submission is taken; back it up, and see which tenant fills it"
    ]


class Limits:
    """What each tenant has used up. `now` returns seconds that never go back."""

    def __init__(self, now: Callable[[], float], bus: Bus) -> None:
        self._now, self._bus = now, bus
        self._buckets: dict[str, tuple[float, float]] = {}
        """Of each tenant: requests it may still make at once, and when that was so."""
        self._open: dict[tuple[str, str], int] = {}
        self.refused: dict[str, int] = {}
        """How often each tenant was beyond a limit."""

    def request(self, caller: Caller) -> None:
        """Count a request.

        Raises:
            ApiError: The tenant makes more requests than it may (429).
        """
        if not caller.counted:
            return
        now = self._now()
        left, at = self._buckets.get(caller.counted, (float(REQUESTS_BURST), now))
        left = min(float(REQUESTS_BURST), left + (now - at) * REQUESTS_PER_S)
        if left >= 1.0 - 1e-6:  # The sum of many pieces of time is not exact.
            self._buckets[caller.counted] = (left - 1.0, now)
            return
        self._buckets[caller.counted] = (left, now)
        wait_s = math.ceil((1.0 - left) / REQUESTS_PER_S * 1000) / 1000
        text = (
            f"{caller.counted} makes more than {REQUESTS_PER_S} requests a second "
            f"(and {REQUESTS_BURST} at once): repeat it after {wait_s} s"
        )
        raise self._refusal(caller, "too-many-requests", text, wait_s)

    @contextlib.contextmanager
    def one_of(self, caller: Caller, what: str, most: int) -> Iterator[None]:
        """Count an answer that goes on while it does.

        Args:
            caller: The caller. There is no limit for an operator.
            what: The kind of answer, as in `MOST`.
            most: How many of them one tenant may have open.

        Yields:
            Nothing; the answer goes on within the context.

        Raises:
            ApiError: The tenant has `most` of them open (429).
        """
        key = (caller.counted, what)
        if caller.counted and self._open.get(key, 0) >= most:
            text = (
                f"{caller.counted} has {most} {what} open, as many as it may have: "
                "close one of them"
            )
            raise self._refusal(caller, "too-many-streams", text, 1.0)
        self._open[key] = self._open.get(key, 0) + 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def routes(self) -> list[web.RouteDef]:
        """Return where the handler belongs."""
        return [web.get("/v1/limits", self.answer)]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer which limits are near: an operator learns of all tenants, a tenant of itself."""
        caller = caller_of(request)
        # How full the stream of submissions is concerns those that can do something about it.
        full = [] if not caller.operator else await submissions_near(self._bus)
        return json_response({"near": [*full, *self.near(caller.counted)]})

    def near(self, only: str = "") -> list[str]:
        """Return a sentence for each limit of which a tenant uses four fifths or more.

        Args:
            only: A caller, as it is counted; empty: all.
        """
        return [each.text for each in self.nearly() if only in {"", each.counted}]

    def nearly(self) -> list[Nearly]:
        """Return the limits of which a caller uses four fifths or more, or that it met."""
        told = []
        for (counted, what), count in sorted(self._open.items()):
            most = MOST[what]
            if counted and 5 * count >= 4 * most:
                text = f"{counted} has {count} of {most} {what} open"
                told.append(Nearly(counted, what, text))
        told += [
            Nearly(
                counted,
                "requests",
                f"{counted} met its limits at the gateway {count} times since its start",
            )
            for counted, count in sorted(self.refused.items())
        ]
        return told

    def _refusal(self, caller: Caller, reason: str, text: str, wait_s: float) -> ApiError:
        self.refused[caller.counted] = self.refused.get(caller.counted, 0) + 1
        return ApiError(429, reason, text, retry_after_s=wait_s)
