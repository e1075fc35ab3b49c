"""What the adapter suites share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.adapters.signed import SignedWorld
from tests.adapters.worlds import Inbox, MemoryWorld, NatsWorld, Proxy


@pytest_asyncio.fixture(
    params=[
        "memory",
        pytest.param("nats", marks=pytest.mark.adapters),
        pytest.param("signed", marks=[pytest.mark.adapters, pytest.mark.slow]),
    ]
)
async def world(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[MemoryWorld | NatsWorld]:
    if request.param == "memory":
        memory = MemoryWorld()
        yield memory
        await memory.close()
    else:
        made = SignedWorld if request.param == "signed" else NatsWorld
        nats = made(tmp_path / "nats")
        await nats.start()
        yield nats
        await nats.close()


@pytest_asyncio.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsWorld]:
    made = NatsWorld(tmp_path / "nats")
    await made.start()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def proxy(nats: NatsWorld) -> AsyncIterator[Proxy]:
    made = Proxy(nats.server.port)
    yield made
    await made.close()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()
