"""A bus server of one's own over a folder of streams: for clusters that do not run."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skep_services.adapters.nats_access import SERVICES_ACCOUNT, Account, Grants, User
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_server import Server

IDENTITY = "aside"


@asynccontextmanager
async def bus_aside(folder: Path, account: str = "") -> AsyncIterator[NatsBus]:
    """Run a server over `folder`/store on loopback, and yield a connection that may do everything.

    Nobody else knows its password. The server has ended on return.

    Args:
        folder: The folder of the server: configuration, log and store.
        account: The account of the streams, by which their folder is named; empty: the usual one.

    Raises:
        RuntimeError: The server does not start.
        TimeoutError: It was not healthy in time.
    """
    password = secrets.token_urlsafe(24)
    user = User(name=IDENTITY, password=password, grants=Grants((">",), (">",)))
    account = account or SERVICES_ACCOUNT
    server = Server(folder, (Account(name=account, users=(user,), jetstream=True),))
    await server.start()
    try:
        await server.wait_healthy(IDENTITY)
        options = LinkOptions(servers=(server.url,), identity=IDENTITY, password=password)
        bus = await NatsBus.connect(options, lambda _: None)
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        await server.stop()
