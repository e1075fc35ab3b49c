"""Run the door: `SKEP_LISTEN` is where it listens, `SKEP_NATS_URL` the bus servers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from skep.wire import subjects
from skep_services.adapters.nats_access import DOOR
from skep_services.adapters.nats_api import publish_once
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.door.relay import Client, Server
from skep_services.door.turns import ROUND_S, Turns
from skep_services.ports import RefusedError
from skep_services.service import ConfigurationError, Fatal, Settings, run

STORED_WITHIN_S = 1.0
"""What the door waits for a stream before the next round: far longer than a round takes."""
CONNECT_WITHIN_S = 1.0
"""To one server, of which there may be several to try."""
BACKLOG = 512


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled.

    Raises:
        ConfigurationError: SKEP_LISTEN or SKEP_NATS_URL is missing or wrong.
        ConnectionError: The door cannot listen there, or no bus server answers it.
    """
    host, _, port = chosen.environment.get("SKEP_LISTEN", "").rpartition(":")
    urls = tuple(chosen.nats_url.split(","))
    servers = deque((str(one.hostname or ""), one.port or 0) for one in map(urlsplit, urls))
    if not host or not port.isdecimal() or not all(map(all, servers)):
        text = "SKEP_LISTEN and SKEP_NATS_URL must be set, as 127.0.0.1:4222 and nats://HOST:PORT"
        raise ConfigurationError(text)
    fatal = Fatal()
    options = LinkOptions(servers=urls, identity=chosen.identity, password=chosen.password)
    link = await Link.connect(options, fatal)
    loop = asyncio.get_running_loop()
    turns = Turns(loop.time, lambda: stored(link))
    opening: set[asyncio.Task[None]] = set()

    def open_server(client: Client) -> None:
        # Each begins with another server: one that hangs still takes connections.
        servers.rotate(-1)
        task = loop.create_task(_open(client, tuple(servers)))
        opening.add(task)
        task.add_done_callback(opening.discard)

    try:
        server = await loop.create_server(
            lambda: Client(turns, chosen.password, open_server), host, int(port), backlog=BACKLOG
        )
    except OSError as error:
        text = f"SKEP_LISTEN: cannot listen on {host}:{port}: {error.strerror or error}"
        raise ConnectionError(text) from error
    log.info("ready", listen=f"{host}:{port}", pid=os.getpid())
    try:
        await fatal.guard(turns.run())
    finally:
        server.close()


async def _open(client: Client, servers: Sequence[tuple[str, int]]) -> None:
    """Connect a client to the first server that takes the connection."""
    loop = asyncio.get_running_loop()
    for host, port in servers:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                transport, _ = await loop.create_connection(lambda: Server(client), host, port)
        except (OSError, TimeoutError):
            continue
        client.connected(transport)
        return
    client.connected(None)


async def stored(link: Link) -> None:
    """Return once the stream of submissions has answered what it took before, or after a while.

    What is asked has to be refused: it waits in the stream's queue like a submission, and stores
    nothing.
    """
    if not link.connected:
        # Without the bus no messages are stored, and none should wait for this connection.
        await asyncio.sleep(ROUND_S)
        return
    headers = {"Nats-Expected-Stream": "NONE"}
    with contextlib.suppress(RefusedError, ConnectionError):
        await publish_once(link, subjects.submit(DOOR), b"", headers, STORED_WITHIN_S)


if __name__ == "__main__":
    run("door", main)
