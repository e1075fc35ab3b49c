"""Connections that ask nothing are hung up on; those that asked are not."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from skep_services.silence import Silence

pytestmark = pytest.mark.asyncio
WITHIN_S = 20.0


class One:
    """A connection, and whether it was hung up on."""

    def __init__(self) -> None:
        self.gone = False

    def force_close(self) -> None:
        self.gone = True


async def test_who_is_hung_up_on() -> None:
    at = [0.0]
    silence, (silent, asks, late) = Silence(20.0, lambda: at[0]), (One(), One(), One())
    silence.look([silent, asks])
    silence.heard(asks)
    at[0] = 19.0
    silence.look([silent, asks, late])
    assert not silent.gone
    at[0] = 21.0
    silence.look([silent, asks, late])
    assert (silent.gone, asks.gone, late.gone) == (True, False, False)
    silence.look([])
    silence.look([asks])
    at[0] = 99.0
    silence.look([asks])
    assert asks.gone, "another connection, as far as is known"


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here")

    silence = Silence(0.01)
    application = web.Application(middlewares=[silence.middleware()])
    application.add_routes([web.get("/", answer)])
    runner = web.AppRunner(application)
    await runner.setup()
    watching = asyncio.create_task(silence.watch(runner, 0.01))
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    watching.cancel()
    await runner.cleanup()


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\nHost: here\r\nX: "])
async def test_a_stranger_holds_no_connection(port: int, words: bytes) -> None:
    """Neither by silence nor by the half of a head."""
    asks, says = await asyncio.open_connection("127.0.0.1", port)
    says.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert (await asks.readuntil(b"here")).startswith(b"HTTP/1.1 200")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(words)
    async with asyncio.timeout(WITHIN_S):
        assert await reader.read() == b""
    says.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert (await asks.read()).endswith(b"here"), "it was not silent"
    for each in (says, writer):
        each.close()
