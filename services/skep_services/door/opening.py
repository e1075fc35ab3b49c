"""How a connection through the door begins: to a bus server, and encrypted on both sides.

A bus server greets first, in plain text, and says in its greeting whether the rest is encrypted. So
does the door: it encrypts its connection to the server, changes the greeting to what the door
itself wants of the client, and encrypts its connection to the client. The client proves itself by
its login; the door proves itself to the server by its own certificate.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Any

import msgspec

from skep.units import KIB
from skep_services.door.relay import Client, Server
from skep_services.pki.failures import explain
from skep_services.pki.files import Fresh, host_port

log = logging.getLogger(__name__)

CONNECT_WITHIN_S = 1.0
"""To one server, of which there may be several to try."""
HANDSHAKE_WITHIN_S = 5.0
"""What a client may take to encrypt: a client far away needs two exchanges."""
GREETING_BYTES_MAX = 32 * KIB
"""What a server says of itself; it has 500 bytes."""
INFO = b"INFO "
ABOUT_TLS = ("tls_required", "tls_verify", "tls_available")


class NoGreetingError(ConnectionError):
    """What answers at a bus server's address is none."""


class Opening:
    """Connects clients to servers.

    Args:
        served: What is encrypted with towards clients; None: nothing is.
        fresh: What is encrypted with towards servers; None: nothing is.
    """

    def __init__(self, served: ssl.SSLContext | None, fresh: Fresh | None) -> None:
        self._served, self._fresh = served, fresh
        self._said = ""

    async def open(self, client: Client, servers: Sequence[tuple[str, int]]) -> None:
        """Connect a client to the first server that takes the connection.

        Args:
            client: The client; nothing of it has been read.
            servers: Hosts and ports of the servers, in the order in which they are tried.
        """
        for host, port in servers:
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    server, greeting = await self._server(client, host, port)
            except (OSError, TimeoutError) as error:
                self._say(explain(error, host_port(host, port)))
                continue
            if greeting:
                await self._greet(client, server, greeting)
            else:
                client.connected(server)
            return
        client.connected(None)

    async def _server(
        self, client: Client, host: str, port: int
    ) -> tuple[asyncio.Transport, bytes]:
        """Return a connection to a server, and how to greet the client unless the server does."""
        loop = asyncio.get_running_loop()
        relay = Server(client)
        if self._served is None and self._fresh is None:
            plain, _ = await loop.create_connection(lambda: relay, host, port)
            return plain, b""
        heard = Greeting()
        transport, _ = await loop.create_connection(lambda: heard, host, port)
        try:
            greeting = own_greeting(await heard.whole, encrypts=self._served is not None)
            if self._fresh is None:
                transport.set_protocol(relay)
                relay.connection_made(transport)
                return transport, greeting
            encrypted = await loop.start_tls(
                transport, relay, self._fresh.context(), server_hostname=host
            )
        except BaseException:
            transport.abort()
            raise
        assert encrypted is not None
        encrypted.pause_reading()
        relay.connection_made(encrypted)
        return encrypted, greeting

    async def _greet(self, client: Client, server: asyncio.Transport, greeting: bytes) -> None:
        """Greet a client, and encrypt what follows."""
        plain = client.transport
        assert plain is not None
        plain.write(greeting)
        if self._served is not None:
            try:
                client.transport = await asyncio.get_running_loop().start_tls(
                    plain,
                    client,
                    self._served,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_WITHIN_S,
                )
            except (OSError, TimeoutError):
                plain.abort()
                server.abort()
                return
        client.connected(server)
        server.resume_reading()

    def _say(self, line: str) -> None:
        """Log why a server is not reached, once each time it changes."""
        if line and line != self._said:
            log.error("%s", line)
        self._said = line or self._said


class Greeting(asyncio.Protocol):
    """Takes in a server's first line, and nothing behind it: the server waits for an answer."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._data += data
        if self._data.endswith(b"\r\n"):
            self._transport.pause_reading()
            self._end(None if self._data.startswith(INFO) else "it does not greet")
        elif len(self._data) > GREETING_BYTES_MAX:
            self._transport.abort()
            self._end("its greeting is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("it said nothing")

    def _end(self, trouble: str | None) -> None:
        if self.whole.done():
            return
        if trouble is None:
            self.whole.set_result(self._data)
        else:
            self.whole.set_exception(NoGreetingError(f"no bus server: {trouble}"))


def own_greeting(greeting: bytes, *, encrypts: bool) -> bytes:
    """Return a server's greeting with what the door wants of its clients.

    Args:
        greeting: The line, as the server said it.
        encrypts: Whether the door encrypts what follows.

    Raises:
        NoGreetingError: It is no greeting.
    """
    try:
        tree = msgspec.json.decode(greeting[len(INFO) :], type=dict[str, Any])
    except msgspec.MsgspecError as error:
        text = "no bus server: its greeting is no JSON"
        raise NoGreetingError(text) from error
    told = {name: value for name, value in tree.items() if name not in ABOUT_TLS}
    if encrypts:
        told["tls_required"] = True
    return INFO + msgspec.json.encode(told) + b"\r\n"
