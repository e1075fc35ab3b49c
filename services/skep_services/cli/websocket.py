"""The client's end of a WebSocket (RFC 6455), as far as a session needs it: whole binary messages.

The socket does not block: what cannot be sent yet waits here. As `cli.connection`, it exists so
that a command starts in the time that it takes to import nothing.
"""

from __future__ import annotations

import base64
import os
import socket
from typing import Any

from skep_services.cli.connection import LostError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FINAL, MASKED = 0x80, 0x80
MESSAGE_BYTES_MAX = 1024 * 1024
"""A frame of a session has at most 32 KiB."""
READ_BYTES = 256 * 1024
CUT = "the gateway ended the connection"


def asking() -> dict[str, str]:
    """Return the headers that ask for a WebSocket."""
    return {
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }


class WebSocket:
    """One WebSocket on a socket that was upgraded."""

    def __init__(self, link: socket.socket, behind: bytes = b"") -> None:
        """Take over the socket, and what was read of it already."""
        link.setblocking(False)
        self._link, self._inbox, self._outbox = link, bytearray(behind), bytearray()
        self._message = bytearray()
        self.closed = False
        """The gateway has said that it is over."""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._link.fileno()

    @property
    def waiting(self) -> int:
        """How many bytes have to be sent yet."""
        return len(self._outbox)

    @property
    def pending(self) -> bool:
        """Whether there is something to read that waiting for the descriptor does not show."""
        pending: Any = getattr(self._link, "pending", None)
        return bool(pending and pending())

    def send(self, data: bytes) -> None:
        """Send a message, or as much of it as the socket takes."""
        self._put(BINARY, data)

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it.

        Raises:
            LostError: The connection has ended.
        """
        while self._outbox:
            try:
                sent = self._link.send(self._outbox)
            except OSError as error:
                if not _would_block(error):
                    raise LostError(CUT) from None
                return
            del self._outbox[:sent]

    def receive(self) -> list[bytes]:
        """Return the messages that are there.

        Raises:
            LostError: The connection has ended without a word, or what came is no WebSocket's.
        """
        lost = False
        while len(self._inbox) < 2 * MESSAGE_BYTES_MAX:
            try:
                data = self._link.recv(READ_BYTES)
            except OSError as error:
                lost = not _would_block(error)
                break
            if not data:
                lost = True
                break
            self._inbox += data
            if not self.pending:
                break
        messages = []
        while (frame := self._frame()) is not None:
            message = self._take(*frame)
            if message is not None:
                messages.append(message)
        if lost and not messages and not self.closed:
            raise LostError(CUT)
        return messages

    def close(self) -> None:
        """Say that it is over, as far as the socket takes it, and drop the connection."""
        try:
            self._put(CLOSE, b"\x03\xe8")
        except LostError:
            pass  # It is over already.
        self._link.close()

    def _take(self, head: int, body: bytes) -> bytes | None:
        match head & 0x0F:
            case 0x8:
                self.closed = True
            case 0x9:
                self._put(PONG, body)
            case 0x0 | 0x1 | 0x2:
                self._message += body
                if len(self._message) > MESSAGE_BYTES_MAX:
                    raise LostError(TOO_LARGE)
                if head & FINAL:
                    message, self._message = bytes(self._message), bytearray()
                    return message
            case _:
                pass
        return None

    def _frame(self) -> tuple[int, bytes] | None:
        """Take the next frame out of what came; None: it is not whole yet.

        Raises:
            LostError: It is no frame of a gateway.
        """
        inbox = self._inbox
        if len(inbox) < 2:
            return None
        head, size, begin = inbox[0], inbox[1] & 0x7F, 2
        for marker, width in ((126, 2), (127, 8)):
            if inbox[1] & 0x7F == marker:
                if len(inbox) < 2 + width:
                    return None
                size, begin = int.from_bytes(inbox[2 : 2 + width], "big"), 2 + width
        if size > MESSAGE_BYTES_MAX or inbox[1] & MASKED:
            raise LostError(TOO_LARGE)
        if len(inbox) < begin + size:
            return None
        body = bytes(inbox[begin : begin + size])
        del inbox[: begin + size]
        return head, body

    def _put(self, kind: int, body: bytes) -> None:
        size = len(body)
        if size < 126:
            head = bytes((FINAL | kind, MASKED | size))
        elif size < 1 << 16:
            head = bytes((FINAL | kind, MASKED | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((FINAL | kind, MASKED | 127)) + size.to_bytes(8, "big")
        mask = os.urandom(4)
        self._outbox += head + mask + masked(body, mask)
        self.flush()


TOO_LARGE = "what came over the connection is no session"


def masked(body: bytes, mask: bytes) -> bytes:
    """Return a body as a client has to send it: each byte with one of the mask's."""
    if not body:
        return b""
    size = len(body)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(body, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")


def _would_block(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    return type(error).__name__ in {"SSLWantReadError", "SSLWantWriteError"}
