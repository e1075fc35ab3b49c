"""Connections on which nothing is asked: they are hung up on, so that they keep no one out.

aiohttp bounds how long a connection is quiet between two requests, and not before the first one.
Strangers open connections at no cost, and a process has as many as it may open files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from aiohttp import web

SILENCE_S = 20.0
"""How long a connection may be without a whole head of a request: a slow link needs some seconds."""
LOOK_EVERY_S = 5.0
KEEP_ALIVE_S = 75.0
"""How long a connection stays that has nothing more to ask."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connection(Protocol):
    """One connection of a server."""

    def force_close(self) -> None:
        """Hang up."""


class Silence:
    """Knows since when connections are there, and on which something was asked.

    Args:
        silence_s: How long one may be silent (seconds).
        now: Returns seconds that never go back.
    """

    def __init__(
        self, silence_s: float = SILENCE_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._silence_s, self._now = silence_s, now
        self._since: dict[Connection, float] = {}
        self._heard: dict[Connection, bool] = {}

    def middleware(self) -> Any:
        """Return what notes that something is asked; the first of an application."""

        @web.middleware
        async def through(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.heard(request.protocol)
            return await handler(request)

        return through

    def heard(self, connection: Connection) -> None:
        """Note that something is asked on a connection."""
        self._heard[connection] = True

    def look(self, connections: Iterable[Connection]) -> None:
        """Hang up on those that were silent for too long.

        Args:
            connections: All that there are.
        """
        now = self._now()
        self._since = {one: self._since.get(one, now) for one in connections}
        self._heard = {one: True for one in self._heard if one in self._since}
        for one, since in self._since.items():
            if one not in self._heard and now - since >= self._silence_s:
                one.force_close()

    async def watch(self, runner: web.AppRunner, every_s: float = LOOK_EVERY_S) -> None:
        """Look at the connections of a server, again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            if runner.server is not None:
                self.look(runner.server.connections)
