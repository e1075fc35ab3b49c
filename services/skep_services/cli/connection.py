"""HTTP/1.1 over one kept-alive socket, and only what the gateway's API needs of it.

`http.client` imports the whole of `email` and `ssl`, which costs more time than most commands take;
that is the one reason for this module. TLS is imported when the address begins with `https`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from io import BufferedReader
from typing import NamedTuple

LINE_BYTES_MAX = 64 * 1024
"""A status or header line longer than this is not from a gateway."""

HEADERS_MAX = 100
"""A gateway sends about ten."""

BODY_BYTES_MAX = 512 * 1024 * 1024
"""20,000 job rows are 8 MB; a body beyond this would only exhaust this process."""

PIECE_BYTES = 64 * 1024
SWITCHED = 101
CUT_SHORT = "the connection ended in the middle of an answer"
NOT_HTTP = "what answers there does not speak HTTP"
CONNECT_TIMEOUT_S = 5.0
CONNECT_NEXT_S = 1.0
"""Where there is another gateway to turn to: one whose machine is off answers nothing at all."""


class LostError(OSError):
    """The connection ended, or what came over it is not HTTP."""


class UnbelievedError(LostError):
    """What answers there is not believed, or does not encrypt: trying again changes nothing."""


class Address(NamedTuple):
    """Where a gateway listens."""

    tls: bool
    host: str
    port: int
    prefix: str


def parse_url(url: str) -> Address | None:
    """Return the parts of `http[s]://host[:port][/prefix]`, or None if it is not that."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("http", "https"):
        return None
    authority, _, path = rest.partition("/")
    bracketed = authority.startswith("[")
    host, _, port = authority[1:].partition("]") if bracketed else authority.partition(":")
    port = port.removeprefix(":") if bracketed else port
    if not host or "@" in host or (port and not (port.isascii() and port.isdecimal())):
        return None
    number = int(port) if port else (443 if scheme == "https" else 80)
    if not 0 < number < 65536:
        return None
    return Address(scheme == "https", host, number, f"/{path}".rstrip("/"))


class Answer:
    """A response: status, headers (names in lower case), and its body as it arrives."""

    def __init__(
        self, status: int, headers: dict[str, str], file: BufferedReader, *, empty: bool
    ) -> None:
        self.status = status
        self.headers = headers
        self._file = file
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._left: int | None = None
        if empty:
            self._left, self._chunked = 0, False
        elif length is not None and not self._chunked:
            self._left = int(length) if length.isdecimal() else 0
        self.keeps_alive = headers.get("connection", "").lower() != "close" and (
            self._chunked or self._left is not None
        )
        self.done = self._left == 0

    def read(self) -> bytes:
        """Return the whole body.

        Raises:
            LostError: The body is cut short, or far too large.
        """
        parts: list[bytes] = []
        size = 0
        for piece in self.pieces():
            size += len(piece)
            if size > BODY_BYTES_MAX:
                text = f"the answer has more than {BODY_BYTES_MAX} bytes"
                raise LostError(text)
            parts.append(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            LostError: The connection ends before the body does.
        """
        if self.done:
            return
        if self._chunked:
            yield from self._chunks()
        elif self._left is not None:
            # One read into one buffer: a large table costs no copies.
            while self._left:
                want = self._left if self._left <= BODY_BYTES_MAX else PIECE_BYTES
                piece = self._file.read(want)
                if not piece:
                    raise LostError(CUT_SHORT)
                self._left -= len(piece)
                yield piece
        else:
            while piece := self._file.read1(PIECE_BYTES):
                yield piece
        self.done = True

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = _line(self._file)
            digits = line.partition(b";")[0].strip()
            try:
                size = int(digits, 16)
            except ValueError:
                raise LostError(NOT_HTTP) from None
            if size == 0:
                while _line(self._file):
                    pass
                return
            while size:
                # `read1` returns what is there: a followed log appears line by line.
                piece = self._file.read1(min(size, PIECE_BYTES))
                if not piece:
                    raise LostError(CUT_SHORT)
                size -= len(piece)
                yield piece
            _line(self._file)


class Connection:
    """One connection to a gateway, opened when first used and again after it broke.

    Args:
        address: Where the gateway is.
        token: What it is told to know the caller by; empty: nothing.
        ca: The file of the CA that it is believed by; empty: those of the system.
        connect_within_s: How long it may take to connect (seconds).
    """

    def __init__(
        self,
        address: Address,
        token: str,
        ca: str = "",
        connect_within_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._connect_within_s = connect_within_s
        self._token = token
        self._ca = ca
        self._socket: socket.socket | None = None
        self._file: BufferedReader | None = None
        self._last: Answer | None = None

    def request(
        self,
        method: str,
        path: str,
        timeout_s: float | None,
        body: bytes = b"",
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """Send a request and return the answer's beginning; read its body before the next request.

        Args:
            method: The method of HTTP.
            path: The path with its query, without the prefix of the address.
            timeout_s: The bound of each wait for the network (seconds), not of the whole exchange;
                None: no bound.
            body: What is sent; empty: nothing.
            headers: Headers beside those of every request.

        Raises:
            OSError: The gateway cannot be reached; a LostError or a TimeoutError is one, too.
        """
        if self._last is not None and not (self._last.done and self._last.keeps_alive):
            self.close()
        if body or method == "POST":
            headers = {"Content-Length": str(len(body)), **headers}
        head = self._head_of(method, path, headers)
        try:
            return self._exchange(head + body, timeout_s)
        except BaseException:
            self.close()
            raise

    def upgrade(
        self, path: str, timeout_s: float, headers: Mapping[str, str]
    ) -> tuple[socket.socket, bytes] | Answer:
        """Ask for another protocol; return the socket and what came by it already, or a refusal.

        The socket is the caller's from then on.

        Args:
            path: The path with its query.
            timeout_s: The bound of each wait for the network (seconds).
            headers: Headers beside those of every request.

        Raises:
            OSError: The gateway cannot be reached.
        """
        self.close()
        self._open()
        assert self._socket is not None
        assert self._file is not None
        self._socket.settimeout(timeout_s)
        self._socket.sendall(self._head_of("GET", path, {"Connection": "Upgrade", **headers}))
        answer = self._head(self._file)
        if answer.status != SWITCHED:
            self._last = answer
            return answer
        behind = b""
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # TLS says that there is nothing by an error.
            behind = self._file.peek()
        link, self._socket, self._file = self._socket, None, None
        return link, behind

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        for part in (self._file, self._socket):
            if part is not None:
                part.close()
        self._file = self._socket = self._last = None

    def __del__(self) -> None:
        self.close()

    def ends_at(self) -> float | None:
        """Return when the gateway's certificate ends (seconds since the epoch); None without."""
        if self._socket is None or not self.address.tls:
            return None
        import ssl

        assert isinstance(self._socket, ssl.SSLSocket)
        shown = self._socket.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(shown["notAfter"]))) if shown else None

    def _head_of(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        lines = [
            f"{method} {self.address.prefix}{path} HTTP/1.1",
            f"Host: {self.address.host}:{self.address.port}",
        ]
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        assert not any("\r" in line or "\n" in line for line in lines), lines
        return "\r\n".join([*lines, "\r\n"]).encode()

    def _exchange(self, data: bytes, timeout_s: float | None) -> Answer:
        kept = self._socket is not None
        try:
            answer = self._send(data, timeout_s)
        except (LostError, ConnectionError):
            # A server may close an idle connection at any time: that says nothing about it.
            if not kept:
                raise
            self.close()
            answer = self._send(data, timeout_s)
        self._last = answer
        return answer

    def _send(self, data: bytes, timeout_s: float | None) -> Answer:
        if self._socket is None:
            self._open()
        assert self._socket is not None
        assert self._file is not None
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)
        while True:
            answer = self._head(self._file)
            if answer.status >= 200:
                return answer

    def _open(self) -> None:
        host, port = self.address.host, self.address.port
        try:
            link = socket.create_connection((host, port), self._connect_within_s)
        except TimeoutError:
            # Not a TimeoutError: no request was sent, so it may be repeated.
            text = f"no connection to {host}:{port} within {self._connect_within_s:g} s"
            raise ConnectionError(text) from None
        if self.address.tls:
            link = self._encrypted(link)
        else:
            # On loopback a port may be connected to itself while its server is away.
            if link.getsockname() == link.getpeername():
                link.close()
                raise ConnectionRefusedError(111, "Connection refused")
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = link
        self._file = link.makefile("rb")

    def _encrypted(self, link: socket.socket) -> socket.socket:
        """Return the socket, encrypted.

        Raises:
            UnbelievedError: The gateway is not believed, or does not encrypt.
            ConnectionError: It does not answer in time.
            OSError: The connection ended.
        """
        from pathlib import Path

        from skep_services.pki.failures import explain
        from skep_services.pki.files import TlsError, TlsFiles, client_context, host_port

        host, port, _ = self.address[1:]
        ca = Path(self._ca) if self._ca else None
        try:
            return client_context(ca, source="SKEP_CA").wrap_socket(link, server_hostname=host)
        except TlsError as error:
            link.close()
            raise UnbelievedError(str(error)) from None
        except TimeoutError:
            where = host_port(host, port)
            text = f"{where} took the connection and does not encrypt it: is it a gateway?"
            raise ConnectionError(text) from None
        except OSError as error:
            told = explain(error, host_port(host, port), TlsFiles(ca=ca))
            if told:
                raise UnbelievedError(told) from None
            raise

    @staticmethod
    def _head(file: BufferedReader) -> Answer:
        parts = _line(file).split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise LostError(NOT_HTTP)
        headers: dict[str, str] = {}
        for _ in range(HEADERS_MAX):
            line = _line(file)
            if not line:
                status = int(parts[1])
                return Answer(status, headers, file, empty=status in (204, 304) or status < 200)
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        raise LostError(NOT_HTTP)


def _line(file: BufferedReader) -> bytes:
    line = file.readline(LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        raise LostError(CUT_SHORT)
    return line.rstrip(b"\r\n")
