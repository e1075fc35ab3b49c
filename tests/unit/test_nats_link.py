"""What a link does with connections of the library that are in an odd state."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from skep_services.adapters.nats_link import Link, LinkOptions


class ClosedTwice:
    """An encrypted transport of Python 3.11.2 that was closed twice."""

    def abort(self) -> None:
        protocol: object = None
        protocol._abort()  # type: ignore[attr-defined]


def test_a_socket_that_cannot_be_dropped_does_not_keep_from_the_next_server() -> None:
    async def turns() -> None:
        link = Link(LinkOptions(servers=("nats://a", "nats://b"), identity="x"), fatal.append)
        transport = SimpleNamespace(_io_writer=SimpleNamespace(transport=ClosedTwice()))
        link._client._transport = transport  # type: ignore[assignment]
        found = [link._next_server(servers, {}) for _ in range(3)]  # type: ignore[arg-type]
        assert [server for server, _ in found] == [servers[0], servers[1], servers[0]]
        assert all(pause_s > 0 for _, pause_s in found)

    fatal: list[Exception] = []
    servers = [object(), object()]
    asyncio.run(turns())
    assert not fatal
