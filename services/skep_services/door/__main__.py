"""Run the door: `SKEP_LISTEN` is where it listens, `SKEP_NATS_URL` the bus servers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from skep.wire import subjects
from skep_services.adapters.nats_access import DOOR
from skep_services.adapters.nats_api import publish_once
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.door.opening import Opening
from skep_services.door.relay import Client
from skep_services.door.turns import ROUND_S, Turns
from skep_services.pki.files import TlsError, fresh_client, host_port
from skep_services.ports import RefusedError
from skep_services.service import (
    ConfigurationError,
    Fatal,
    Settings,
    listen_at,
    run,
    server_context,
)

STORED_WITHIN_S = 1.0
"""What the door waits for a stream before the next round: far longer than a round takes."""
LISTEN_EXAMPLE = "127.0.0.1:4222"
BACKLOG = 512


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled.

    Raises:
        ConfigurationError: SKEP_LISTEN or SKEP_NATS_URL is missing or wrong.
        ConnectionError: The door cannot listen there, or no bus server answers it.
    """
    given = chosen.environment.get("SKEP_LISTEN", "")
    urls = tuple(chosen.nats_url.split(","))
    servers = deque((str(one.hostname or ""), one.port or 0) for one in map(urlsplit, urls))
    if not given or not all(map(all, servers)):
        text = "SKEP_LISTEN and SKEP_NATS_URL must be set, as 127.0.0.1:4222 and nats://HOST:PORT"
        raise ConfigurationError(text)
    host, port = listen_at(given, LISTEN_EXAMPLE)
    served = server_context(chosen, host, log.warning)
    try:
        fresh = fresh_client(chosen.tls, log.warning) if chosen.tls is not None else None
    except TlsError as error:
        raise ConfigurationError(str(error)) from error
    opening = Opening(served, fresh)
    fatal = Fatal()
    options = LinkOptions(
        servers=urls,
        identity=chosen.identity,
        password=chosen.password,
        credentials=chosen.credentials,
        tls=chosen.tls,
    )
    link = await Link.connect(options, fatal)
    loop = asyncio.get_running_loop()
    turns = Turns(loop.time, lambda: stored(link))
    tasks: set[asyncio.Task[None]] = set()

    def open_server(client: Client) -> None:
        # Each begins with another server: one that hangs still takes connections.
        servers.rotate(-1)
        task = loop.create_task(opening.open(client, tuple(servers)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    try:
        server = await loop.create_server(
            lambda: Client(turns, chosen.password, open_server), host, port, backlog=BACKLOG
        )
    except OSError as error:
        text = f"SKEP_LISTEN: cannot listen on {host_port(host, port)}: {error.strerror or error}"
        raise ConnectionError(text) from error
    log.info("ready", listen=host_port(host, port), tls=served is not None, pid=os.getpid())
    try:
        await fatal.guard(turns.run())
    finally:
        server.close()


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
