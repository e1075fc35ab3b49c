"""Frames, the handshake and deadlines of parameter-server jobs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from skep_ps import wire
from skep_ps.errors import Broken, ParameterServerError, Refused
from skep_ps.wire import AwakeClock, Channel, Late, Patience, Secret, admit, dial, settings

SECRET = Secret("a token of the job", "j1.1")


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    channels = _tcp_like(left), _tcp_like(right)
    yield channels
    for channel in channels:
        channel.close()


def _tcp_like(connection: socket.socket) -> Channel:
    # A Unix socket has none of TCP's options; what is tested here is above them.
    channel = Channel.__new__(Channel)
    connection.settimeout(wire.SLICE_S)
    channel._socket, channel._sending = connection, threading.Lock()
    channel._scratch, channel.unread = bytearray(), 0
    return channel


def test_a_payload_goes_from_pieces_into_pieces(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    content = bytes(range(256)) * 40_000
    out = memoryview(content)
    parts = [out[at : at + 997] for at in range(0, len(out), 997)]
    assert len(parts) > 2 * wire.VECTORS_MAX
    sender = threading.Thread(target=left.send, args=({"type": "push"}, parts))
    sender.start()
    patience = Patience(30.0, "a frame")
    assert right.receive(patience) == {"type": "push", "bytes": len(content)}
    taken = bytearray(len(content))
    into = memoryview(taken)
    right.read_into([into[:5], into[5:5], into[5:70_000], into[70_000:]], patience)
    sender.join(30.0)
    assert taken == content
    assert right.unread == 0


def test_what_is_left_of_a_payload_can_be_skipped(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    left.send({"type": "first"}, [memoryview(b"12345678")])
    left.send({"type": "second"})
    patience = Patience(30.0, "a frame")
    right.receive(patience)
    right.read_into([memoryview(bytearray(3))], patience)
    right.skip(patience)
    assert right.receive(patience)["type"] == "second"


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01{", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x02{}"],
)
def test_garbage_breaks_the_connection(pair: tuple[Channel, Channel], data: bytes) -> None:
    left, right = pair
    left._socket.sendall(data)
    with pytest.raises(Broken):
        right.receive(Patience(30.0, "a frame"))


def served(secret: Secret) -> tuple[int, list[Channel | None], threading.Thread]:
    listener = socket.create_server(("127.0.0.1", 0))
    admitted: list[Channel | None] = []

    def serve() -> None:
        with listener:
            admitted.append(admit(listener.accept()[0], secret))

    thread = threading.Thread(target=serve)
    thread.start()
    return listener.getsockname()[1], admitted, thread


def test_both_sides_prove_that_they_have_the_token() -> None:
    port, admitted, thread = served(SECRET)
    channel = dial("127.0.0.1", port, SECRET)
    thread.join(30.0)
    assert admitted[0] is not None
    admitted[0].close()
    channel.close()


@pytest.mark.parametrize(
    "other", [SECRET._replace(token="a token of another"), SECRET._replace(run="j1.2")]
)
def test_another_token_or_attempt_is_refused(other: Secret) -> None:
    port, admitted, thread = served(SECRET)
    with pytest.raises(Refused, match="the token is wrong"):
        dial("127.0.0.1", port, other)
    thread.join(30.0)
    assert admitted == [None]


def test_a_listener_that_does_not_know_the_token_is_not_believed() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        with listener:
            channel = Channel(listener.accept()[0])
            channel.send({"type": "challenge", "nonce": "n"})
            channel.receive(Patience(30.0, "proof"))
            channel.send({"type": "welcome", "proof": "anything"})
            channel.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(Refused, match="does not know the job's token"):
        dial("127.0.0.1", listener.getsockname()[1], SECRET)
    thread.join(30.0)


def test_nobody_there_is_told_with_the_address(free_port: int) -> None:
    with pytest.raises(Broken, match=f"127.0.0.1:{free_port}"):
        dial("127.0.0.1", free_port, SECRET)


def test_a_frozen_process_does_not_use_up_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("skep_ps.wire.time.monotonic", lambda: now[0])
    patience = Patience(10.0, "an answer")
    now[0] += 3600.0  # Suspended for an hour.
    assert patience.slice_s() == wire.SLICE_S
    for _ in range(7):
        now[0] += 1.0
        patience.slice_s()
    now[0] += 1.5
    with pytest.raises(Late, match="an answer: not within 10 s"):
        patience.slice_s()


def test_the_coordinators_clock_stands_while_it_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5_000]
    monkeypatch.setattr("skep_ps.wire.time.monotonic_ns", lambda: now[0])
    clock = AwakeClock()
    now[0] += 500_000_000
    assert clock.now() == 500_000_000
    now[0] += 3600 * 10**9
    assert clock.now() == 2_500_000_000


GOOD = {"SKEP_PS": "127.0.0.1:7", "SKEP_PS_TOKEN": "0123456789abcdef", "SKEP_JOB": "j3"}


def test_settings_name_the_attempt() -> None:
    found = settings({**GOOD, "SKEP_GEN": "4", "SKEP_PS_LOST_S": "2.5"})
    assert (found.host, found.port, found.secret.run) == ("127.0.0.1", 7, "j3.4")
    assert (found.lost_s, found.wait_s) == (2.5, wire.WAIT_S)


@pytest.mark.parametrize(
    "change, told",
    [
        ({"SKEP_PS": ""}, "HOST:PORT"),
        ({"SKEP_PS": "here"}, "HOST:PORT"),
        ({"SKEP_PS_TOKEN": "short"}, "at least 16 characters"),
        ({"SKEP_PS_WAIT_S": "soon"}, "SKEP_PS_WAIT_S is 'soon'"),
        ({"SKEP_PS_LOST_S": "-1"}, "above 0"),
        ({"SKEP_PS_LOST_S": "nan"}, "above 0"),
    ],
)
def test_settings_that_are_wrong_are_named(change: dict[str, str], told: str) -> None:
    with pytest.raises(ParameterServerError, match=told):
        settings({**GOOD, **change})
