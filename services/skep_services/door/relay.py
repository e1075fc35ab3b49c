"""Connections through the door: taken apart into messages one way, passed on whole the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from skep.units import KIB
from skep_services.adapters.nats_access import password_behind_door, vc_of_identity
from skep_services.adapters.nats_jwt import TokenError, claims_of
from skep_services.adapters.nats_server import PAYLOAD_BYTES_MAX
from skep_services.door.turns import Turns

LINE_BYTES_MAX = 4 * KIB
"""A line of the bus's protocol: the server itself takes no longer one."""
MESSAGES_HELD_MAX = 64
"""Messages of one connection that wait here; what comes behind them waits with the sender."""
BYTES_HELD_MAX = 256 * KIB
"""The same in bytes; one message may be larger."""
WITH_PAYLOAD = (b"PUB", b"HPUB")
REFUSED_LOGIN = b"CONNECT {}\r\n"
TENANT = "vc-"
"""What the identities of tenants begin with."""
ACCEPTED = (b"PONG\r\n", b"+OK\r\n")
"""What the server says only once it has accepted a login. Clients say PING behind theirs."""


class ProtocolError(Exception):
    """Not what a client of the bus says."""


def message_end(data: bytearray, start: int) -> int:
    """Return where the message ends that begins at `start`.

    Args:
        data: What a client said; it may end within a message.
        start: Where the message begins in it.

    Returns:
        The place behind its last byte; 0: it is not whole yet.

    Raises:
        ProtocolError: A line or a payload is longer than the server takes, or a line has a line
            feed inside: for the server the line would end there.
    """
    line = data.find(b"\r\n", start, start + LINE_BYTES_MAX)
    if line < 0:
        if len(data) - start >= LINE_BYTES_MAX:
            text = "a line is too long"
            raise ProtocolError(text)
        return 0
    if data.find(b"\n", start, line) >= 0:
        text = "a line ends without a carriage return"
        raise ProtocolError(text)
    words = bytes(data[start:line]).split()
    if not words or words[0].upper() not in WITH_PAYLOAD:
        return line + 2
    count = words[-1]
    if not count.isdigit():
        return line + 2  # The server says what is wrong with it.
    if int(count) > PAYLOAD_BYTES_MAX:
        text = "a payload is too long"
        raise ProtocolError(text)
    end = line + 2 + int(count) + 2
    return end if end <= len(data) else 0


def has_payload(message: bytes) -> bool:
    """Return whether a message has more than its line."""
    verb = message.split(maxsplit=1)[:1]
    return bool(verb) and verb[0].upper() in WITH_PAYLOAD


class Client(asyncio.Protocol):
    """A client's side: what it says, and the messages of it that wait for their turn.

    A client may claim to be any tenant. Until the server has accepted the login, its messages have
    no turn and take nothing of the tenant's bytes: its lines are passed on at once, and what comes
    behind the first payload waits.
    """

    def __init__(self, turns: Turns, secret: str, open_server: Callable[[Client], None]) -> None:
        self.tenant = ""
        self._turns, self._secret, self._open_server = turns, secret, open_server
        self._data = bytearray()
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._knows = False
        self._accepted = False
        self._answer = b""
        self._reading = True
        self._server_full = False
        self.transport: asyncio.Transport | None = None
        self.server: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # Nothing is read before there is a server to say it to.
        transport.pause_reading()
        self._open_server(self)

    def connected(self, server: asyncio.Transport | None) -> None:
        """Take the connection to the server; None if there is none."""
        assert self.transport is not None
        if server is None or self.transport.is_closing():
            self.transport.abort()
            if server is not None:
                server.abort()
            return
        self.server = server
        self.transport.resume_reading()
        if self._data:
            early = bytes(self._data)
            self._data.clear()
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.clear()
        if self.server is not None:
            self.server.close()

    def pause_writing(self) -> None:
        if self.server is not None:
            self.server.pause_reading()

    def resume_writing(self) -> None:
        if self.server is not None:
            self.server.resume_reading()

    def hear(self, data: bytes) -> None:
        """Pass on what the server says, and learn from it that the login was accepted."""
        if self.tenant and not self._accepted:
            self._answer = self._answer[-len(ACCEPTED[0]) :] + data
            self._accepted = any(each in self._answer for each in ACCEPTED)
            if self._accepted and self._held:
                self._turns.wait(self)
        if self.transport is not None:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if self.server is None:
            # What came with the end of the handshake that encrypts.
            self._data += data
            return
        if self._knows and not self.tenant:
            self.server.write(data)
            return
        self._data += data
        try:
            self._take()
        except ProtocolError:
            self.transport.abort()

    def _take(self) -> None:
        assert self.server is not None
        at, waited = 0, bool(self._held)
        while end := message_end(self._data, at):
            message = bytes(self._data[at:end])
            at = end
            if not self._knows:
                self._knows = True
                self.tenant, message = logged_in(message, self._secret)
            if not self.tenant:
                self.server.write(message + bytes(self._data[at:]))
                at = len(self._data)
                break
            if not (self._accepted or self._held or has_payload(message)):
                self.server.write(message)
                continue
            self._held.append(message)
            self._held_bytes += len(message)
        del self._data[:at]
        if self._held and self._accepted and not waited:
            self._turns.wait(self)
        self._bound()

    def hold(self, *, held: bool) -> None:
        """Read nothing while the server takes nothing."""
        self._server_full = held
        self._bound()

    def _bound(self) -> None:
        """Read on only while there is room."""
        full = (
            self._server_full
            or len(self._held) >= MESSAGES_HELD_MAX
            or self._held_bytes >= BYTES_HELD_MAX
        )
        if self.transport is None or full != self._reading:
            return
        self._reading = not full
        if full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def size(self) -> int:
        """Return the bytes of the message that is next, 0 if none waits."""
        return len(self._held[0]) if self._held else 0

    def send(self) -> None:
        """Let the next message through."""
        message = self._held.popleft()
        self._held_bytes -= len(message)
        if self.server is not None and not self.server.is_closing():
            self.server.write(message)
        self._bound()


class Server(asyncio.Protocol):
    """The server's side: what it says is passed on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._client.hear(data)

    def pause_writing(self) -> None:
        self._client.hold(held=True)

    def resume_writing(self) -> None:
        self._client.hold(held=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client.transport is not None:
            self._client.transport.close()


def logged_in(login: bytes, secret: str) -> tuple[str, bytes]:
    """Return the tenant of a CONNECT line, empty for all others, and the line for the server.

    A tenant's password becomes the one by which the server knows it. A signed identity is passed on
    as it is: the server believes a tenant's only from where doors run. Whose it is stands in its
    token, which the server checks before anything of it has a turn; people of a VC share its turns.
    What is no login that can succeed counts as one tenant's. A login that the server could read in
    another way than the door, and so as another's, becomes one that the server refuses: its reader
    takes names in any case, and texts that are no UTF-8.

    Args:
        login: The line, as the client said it.
        secret: The door's own password.
    """
    verb, _, text = login.partition(b" ")
    try:
        tree = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return TENANT, REFUSED_LOGIN
    if any(name != "jwt" and name.casefold() == "jwt" for name in tree):
        return TENANT, REFUSED_LOGIN
    if isinstance(token := tree.get("jwt"), str):
        return _signed(token), login
    user, password = tree.get("user"), tree.get("pass")
    if not isinstance(user, str) or not isinstance(password, str):
        return TENANT, login
    if not user.startswith(TENANT):
        return "", login
    tree["pass"] = password_behind_door(secret, user, password)
    return user, verb + b" " + msgspec.json.encode(tree) + b"\r\n"


def _signed(token: str) -> str:
    """Return the tenant that a token names, signed or not; empty if it names none."""
    try:
        return vc_of_identity(claims_of(token).name)
    except TokenError:
        return TENANT
