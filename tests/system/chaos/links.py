"""Connections of plain NATS clients that come back by themselves, wherever the bus is by then."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tests.support.bare_client import address

Hear = Callable[[Msg], Awaitable[None]]
ACK_WITHIN_S = 1.0
"""Many times a synced write: a publish that waits longer is repeated with the same key."""
CONNECT_WITHIN_S = 2.0
PAUSE_S = 0.1
MISSES_MAX = 3
"""Publishes in a row without an answer, after which a connection is not trusted any more: the
client library may believe itself connected long after it has stopped to read."""


class Links:
    """One connection for each user. `about` returns the cluster's addresses as they are now."""

    def __init__(self, about: Callable[[], Any]) -> None:
        """Connect at first use."""
        self._about = about
        self._clients: dict[str, tuple[str, Client]] = {}
        self._heard: dict[str, tuple[str, Hear]] = {}
        self._misses: dict[str, int] = {}
        self._closing: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()

    def users(self) -> Any:
        """Return the passwords of everybody, by name."""
        return self._about()["nats"]["users"]

    def url(self, user: str) -> str:
        """Return where a user finds the bus now, several addresses with commas between them."""
        found: str = address(self._about()["nats"], user)
        return found

    def login(self, user: str) -> dict[str, Any]:
        """Return by what a user proves itself, as arguments of the client library."""
        return {"user": user, "password": self.users()[user]}

    def listen(self, user: str, subject: str, hear: Hear) -> None:
        """Have every connection of `user` hear a subject."""
        self._heard[user] = subject, hear

    async def client(self, user: str) -> Client:
        """Return a connection of `user`; raises while there is none to be had."""
        async with self._lock:
            url = self.url(user)
            known = self._clients.get(user)
            if known is not None and known[0] == url and not known[1].is_closed:
                return known[1]
            self._drop(user)
            client = await nats.connect(
                url.split(","),
                **self.login(user),
                inbox_prefix=f"_INBOX.{user}".encode(),
                error_cb=_ignore,
                reconnect_time_wait=0.1,
                max_reconnect_attempts=-1,
                connect_timeout=CONNECT_WITHIN_S,
                ping_interval=2,
                max_outstanding_pings=2,
                allow_reconnect=True,
            )
            if user in self._heard:
                subject, hear = self._heard[user]
                await client.subscribe(subject, cb=hear)
            self._clients[user] = url, client
            return client

    async def publish(
        self, user: str, subject: str, payload: bytes, headers: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Publish to a stream once; return its acknowledgement, None if none came."""
        try:
            async with asyncio.timeout(ACK_WITHIN_S + CONNECT_WITHIN_S):
                client = await self.client(user)
                answer = await client.request(subject, payload, ACK_WITHIN_S, headers=dict(headers))
        except (NatsError, OSError, TimeoutError, KeyError, ValueError):
            self._misses[user] = self._misses.get(user, 0) + 1
            if self._misses[user] % MISSES_MAX == 0:
                self._drop(user)
            return None
        self._misses[user] = 0
        acknowledged: dict[str, Any] = json.loads(answer.data)
        return None if "error" in acknowledged else acknowledged

    async def say(
        self, user: str, subject: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> bool:
        """Publish a core message; return whether it was handed over."""
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                client = await self.client(user)
                await client.publish(subject, payload, headers=dict(headers or {}) or None)
        except (NatsError, OSError, TimeoutError, KeyError, ValueError):
            return False
        return True

    def _drop(self, user: str) -> None:
        """Let a connection go, without waiting for it."""
        known = self._clients.pop(user, None)
        if known is not None:
            self._closing.append(asyncio.create_task(_close(known[1])))

    async def close(self) -> None:
        """Close every connection."""
        for user in list(self._clients):
            self._drop(user)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CONNECT_WITHIN_S)


def fresh_key() -> str:
    """Return a key that nobody has used."""
    return uuid.uuid4().hex


async def _close(client: Client) -> None:
    try:
        await client.close()
    except (NatsError, OSError, AttributeError):
        pass  # It was broken: that is why it is closed. Encrypted, it may lack its transport.


async def _ignore(error: Exception) -> None:
    """Take what the client library reports of a bus under attack: the callers see it too."""
