"""What a link does with connections of the library that are in an odd state."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from skep_services.adapters.nats_link import Link, LinkOptions


class ClosedTwice:
    """An encrypted transport of Python 3.11.2 that was closed twice."""

    def abort(self) -> None:
        protocol: object = None
        protocol._abort()  # type: ignore[attr-defined]


@pytest.mark.parametrize("turns", [1, 3])
async def test_a_socket_that_cannot_be_dropped_does_not_keep_from_the_next_server(
    turns: int,
) -> None:
    fatal: list[Exception] = []
    link = Link(LinkOptions(servers=("nats://a", "nats://b"), identity="x"), fatal.append)
    transport = SimpleNamespace(_io_writer=SimpleNamespace(transport=ClosedTwice()))
    link._client._transport = transport  # type: ignore[assignment]
    servers = [object(), object()]
    found = [link._next_server(servers, {}) for _ in range(turns)]  # type: ignore[arg-type]
    assert [server for server, _ in found] == [servers[turn % 2] for turn in range(turns)]
    assert all(pause_s > 0 for _, pause_s in found)
    assert not fatal
