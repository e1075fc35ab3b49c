"""The command's HTTP client against a server that sends exactly the bytes it is told to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence

import pytest

from skep_services.cli import connection
from skep_services.cli.connection import Address, Connection, LostError, parse_url

DEADLINE_S = 120.0


@contextlib.contextmanager
def server(*conversations: Sequence[bytes]) -> Iterator[tuple[Address, list[bytes]]]:
    """Serve one connection after the other: each answers request after request, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(DEADLINE_S)
    heard: list[bytes] = []

    def serve() -> None:
        for conversation in conversations:
            link, _ = listener.accept()
            with link:
                link.settimeout(DEADLINE_S)
                for answer in conversation:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += link.recv(65536)
                    heard.append(request)
                    link.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Address(False, "127.0.0.1", listener.getsockname()[1], ""), heard
    finally:
        thread.join(DEADLINE_S)
        listener.close()


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    "url, address",
    [
        ("http://127.0.0.1:8470", Address(False, "127.0.0.1", 8470, "")),
        ("http://host", Address(False, "host", 80, "")),
        ("https://host/skep/", Address(True, "host", 443, "/skep")),
        ("http://[::1]:8470/x", Address(False, "::1", 8470, "/x")),
        ("http://[::1]", Address(False, "::1", 80, "")),
        ("127.0.0.1:8470", None),
        ("ftp://host", None),
        ("http://", None),
        ("http://user@host", None),
        ("http://host:port", None),
        ("http://host:0", None),
        ("http://host:99999", None),
    ],
)
def test_addresses(url: str, address: Address | None) -> None:
    assert parse_url(url) == address


def test_one_connection_serves_several_requests() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"
    )
    early = b"HTTP/1.1 100 Continue\r\n\r\n"
    nothing = b"HTTP/1.1 204 No Content\r\n\r\n"
    with server([ok(b"{}", "X-Y: z "), early + chunked, nothing]) as (address, heard):
        link = Connection(address, "secret")
        first = link.request("GET", "/a", DEADLINE_S, headers={"traceparent": "00"})
        assert (first.status, first.headers["x-y"], first.read()) == (200, "z", b"{}")
        assert first.read() == b""
        assert link.request("POST", "/b", DEADLINE_S, b"[1]").read() == b"abcde"
        assert link.request("DELETE", "/c", DEADLINE_S).read() == b""
        link.close()
    assert heard[0].startswith(b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer secret\r\ntraceparent: 00\r\n" in heard[0]
    assert b"\r\nContent-Length: 3\r\n" in heard[1]
    assert heard[1].endswith(b"\r\n\r\n[1]")


def test_idle_connection_that_the_server_closed_is_opened_again() -> None:
    with server([ok(b"1")], [ok(b"2")]) as (address, heard):
        link = Connection(address, "")
        assert link.request("GET", "/a", DEADLINE_S).read() == b"1"
        assert link.request("GET", "/b", DEADLINE_S).read() == b"2"
        link.close()
    assert len(heard) == 2
    assert b"Authorization" not in heard[0]


def test_answer_without_length_ends_with_the_connection() -> None:
    headless = b"HTTP/1.0 200 OK\r\n\r\nall of it"
    with server([headless], [ok(b"2", "Connection: close")], [ok(b"3")]) as (address, _):
        link = Connection(address, "")
        assert link.request("GET", "/a", DEADLINE_S).read() == b"all of it"
        assert link.request("GET", "/b", DEADLINE_S).read() == b"2"
        assert link.request("GET", "/c", DEADLINE_S).read() == b"3"
        link.close()


def test_answer_that_was_not_read_costs_its_connection() -> None:
    with server([ok(b"abc")], [ok(b"2")]) as (address, _):
        link = Connection(address, "")
        link.request("GET", "/a", DEADLINE_S)
        assert link.request("GET", "/b", DEADLINE_S).read() == b"2"
        link.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (connection.HEADERS_MAX + 1) + b"\r\n",
        b"x" * (connection.LINE_BYTES_MAX + 1),
    ],
    ids=["closed", "ssh", "status", "short", "chunk", "cut", "cut-between", "headers", "line"],
)
def test_what_is_no_whole_answer_is_a_lost_connection(answer: bytes) -> None:
    with server([answer]) as (address, _):
        link = Connection(address, "")
        with pytest.raises((LostError, ConnectionError)):
            link.request("GET", "/a", DEADLINE_S).read()
        link.close()


def test_giant_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 4)
    monkeypatch.setattr(connection, "PIECE_BYTES", 3)
    with server([ok(b"abcdefgh")]) as (address, _):
        link = Connection(address, "")
        with pytest.raises(LostError, match="more than 4 bytes"):
            link.request("GET", "/a", DEADLINE_S).read()
        link.close()


def test_nobody_listens_and_nobody_answers(free_port: int) -> None:
    link = Connection(Address(False, "127.0.0.1", free_port, ""), "")
    with pytest.raises(ConnectionRefusedError):
        link.request("GET", "/", DEADLINE_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = Connection(Address(False, "127.0.0.1", silent.getsockname()[1], ""), "")
        with pytest.raises(TimeoutError):
            link.request("GET", "/", 0.01)


def test_https_speaks_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        hello: list[bytes] = []

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                hello.append(link.recv(1))

        thread = threading.Thread(target=serve)
        thread.start()
        link = Connection(Address(True, "127.0.0.1", listener.getsockname()[1], ""), "")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            link.request("GET", "/", DEADLINE_S)
        thread.join(DEADLINE_S)
    handshake = b"\x16"
    assert hello == [handshake]
