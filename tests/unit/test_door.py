"""The door: whose message goes next, where a message ends, and which login the server sees."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec
import pytest

from skep_services.adapters.nats_access import DOOR, behind_door
from skep_services.adapters.nats_jwt import KEY_BYTES, Claims, Kind, Pair, sign
from skep_services.door.relay import LINE_BYTES_MAX, Client, ProtocolError, logged_in, message_end
from skep_services.door.turns import (
    BYTES_BURST,
    BYTES_PER_S,
    ROUND_BYTES,
    ROUND_MESSAGES_FIRST,
    ROUND_S,
    Turns,
)


class Time:
    def __init__(self) -> None:
        self.s = 10.0

    def now(self) -> float:
        return self.s


class Sender:
    """A connection with so many messages of one size; `said` is told of each that goes through."""

    def __init__(self, tenant: str, count: int, said: list[str], size: int = 100) -> None:
        self.tenant = tenant
        self._left = deque([size] * count)
        self._said = said

    def size(self) -> int:
        return self._left[0] if self._left else 0

    def send(self) -> None:
        self._left.popleft()
        self._said.append(self.tenant)


async def at_once() -> None:
    """Stand for a stream that stores what it gets."""


async def several_rounds() -> None:
    """Let the loop go round so often that many rounds can begin and end."""
    for _ in range(200):
        await asyncio.sleep(0)


def turns(time: Time) -> Turns:
    return Turns(time.now, at_once)


def test_tenants_have_turns_however_many_connections_they_have() -> None:
    said: list[str] = []
    made = turns(Time())
    for _ in range(3):
        made.wait(Sender("a", 100, said))
    made.wait(Sender("b", 100, said))
    for _ in range(10):
        made.round()
    assert len(said) == 10 * ROUND_MESSAGES_FIRST
    assert said.count("a") == said.count("b")


def test_a_tenant_that_sends_little_is_in_the_next_round() -> None:
    said: list[str] = []
    made = turns(Time())
    for number in range(20):
        made.wait(Sender(f"flood-{number}", 1000, said))
    for _ in range(20):
        made.round()
    said.clear()
    made.wait(Sender("quiet", 1, said))
    made.round()
    assert said[0] == "quiet"
    assert made.round() == ROUND_MESSAGES_FIRST


def test_a_round_has_as_many_bytes_as_it_may() -> None:
    said: list[str] = []
    made = turns(Time())
    made.wait(Sender("a", 10, said, size=ROUND_BYTES // 2))
    assert made.round() == 2


def test_a_tenant_beyond_its_bytes_waits_and_the_others_do_not() -> None:
    said: list[str] = []
    time = Time()
    made = turns(time)
    size = ROUND_BYTES
    made.wait(Sender("a", 10_000, said, size=size))
    while made.round():
        pass
    assert len(said) == BYTES_BURST // size + 1
    said.clear()
    made.wait(Sender("b", 1, said))
    assert made.round() == 1
    assert said == ["b"]
    assert made.round() == 0
    time.s += 2 * size / BYTES_PER_S + 0.01
    assert made.round() == 1
    assert said == ["b", "a"]


@pytest.mark.asyncio
async def test_rounds_are_as_large_as_the_stream_is_fast() -> None:
    time, said = Time(), list[str]()
    takes_s = 0.0

    async def stored() -> None:
        time.s += takes_s
        await asyncio.sleep(0)

    made = Turns(time.now, stored)
    made.wait(Sender("a", 100_000, said))
    running = asyncio.create_task(made.run())
    try:
        await several_rounds()
        assert made.messages > 2 * ROUND_MESSAGES_FIRST
        takes_s = 10 * ROUND_S
        await several_rounds()
        assert made.messages == ROUND_MESSAGES_FIRST
    finally:
        running.cancel()


@pytest.mark.asyncio
async def test_rounds_that_are_not_full_do_not_make_the_next_ones_larger() -> None:
    said: list[str] = []
    made = turns(Time())
    running = asyncio.create_task(made.run())
    try:
        for _ in range(50):
            made.wait(Sender("a", 1, said))
            await several_rounds()
    finally:
        running.cancel()
    assert len(said) == 50
    assert made.messages == ROUND_MESSAGES_FIRST


@pytest.mark.asyncio
async def test_nothing_is_let_through_before_what_came_before_is_stored() -> None:
    said: list[str] = []
    stored = asyncio.Event()

    async def wait() -> None:
        await stored.wait()

    made = Turns(Time().now, wait)
    made.wait(Sender("a", 1000, said))
    running = asyncio.create_task(made.run())
    try:
        await several_rounds()
        assert len(said) == 2 * ROUND_MESSAGES_FIRST, "two rounds are under way"
        stored.set()
        await several_rounds()
        assert len(said) > 3 * ROUND_MESSAGES_FIRST
    finally:
        running.cancel()


@pytest.mark.parametrize(
    "data, end",
    [
        (b"PING\r\nPING\r\n", 6),
        (b"PUB a 3\r\nabc\r\nPING\r\n", 14),
        (b"pub a b 3\r\nabc\r\n", 16),
        (b"HPUB a 12 15\r\nNATS/1.0\r\n\r\nabc\r\n", 31),
        (b"PUB a 3\r\nab", 0),
        (b"PUB a 3", 0),
        (b"PUB a many\r\nabc\r\n", 12),
        (b"PUB a 000000003\r\nabc\r\n", 22),
        (b"\r\nPING\r\n", 2),
    ],
)
def test_a_message_ends_where_the_server_says_it_does(data: bytes, end: int) -> None:
    assert message_end(bytearray(data), 0) == end


@pytest.mark.parametrize("data", [b"x" * LINE_BYTES_MAX, b"PUB a 9999999\r\n"])
def test_what_the_server_would_refuse_as_too_long_is_not_gathered(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        message_end(bytearray(data), 0)


def test_a_line_that_the_server_would_end_earlier_is_refused() -> None:
    """The server takes a bare line feed for the end of a line: 9 bytes of payload follow here."""
    with pytest.raises(ProtocolError):
        message_end(bytearray(b"PUB a 9\nxx 100000\r\nPUB a 1\r\nx\r\n"), 0)


class Wire(asyncio.Transport):
    """One side of a connection; what is written to it is in `said`."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.said += bytes(data)

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False


def test_who_only_claims_to_be_a_tenant_takes_nothing_of_its_part() -> None:
    made = turns(Time())
    client, theirs, server = Client(made, "secret", lambda _: None), Wire(), Wire()
    client.connection_made(theirs)
    client.connected(server)
    client.hear(b"INFO {}\r\n")
    login = b'CONNECT {"user":"vc-b","pass":"x"}\r\n'
    client.data_received(login + b"PING\r\nPUB a 3\r\nabc\r\n")
    assert made.round() == 0
    assert server.said == logged_in(login, "secret")[1] + b"PING\r\n"
    client.hear(b"PO")
    assert made.round() == 0
    client.hear(b"NG\r\n")
    assert made.round() == 1
    assert server.said.endswith(b"PUB a 3\r\nabc\r\n")
    assert theirs.said == b"INFO {}\r\nPONG\r\n"


def test_a_tenants_password_is_another_one_behind_the_door() -> None:
    passwords = {DOOR: "secret", "vc-nlp": "open sesame"}
    inside = behind_door(passwords, ["nlp"])
    assert inside[DOOR] == "secret"
    assert inside["vc-nlp"] != "open sesame"
    said = b'CONNECT {"user":"vc-nlp","pass":"open sesame","headers":true}\r\n'
    tenant, line = logged_in(said, "secret")
    assert tenant == "vc-nlp"
    assert line.endswith(b"\r\n")
    assert msgspec.json.decode(line.removeprefix(b"CONNECT ")) == {
        "user": "vc-nlp",
        "pass": inside["vc-nlp"],
        "headers": True,
    }
    other = b'CONNECT {"user":"operator","pass":"x"}\r\n'
    assert logged_in(other, "secret") == ("", other)


@pytest.mark.parametrize("said", [b"CONNECT {}\r\n", b'CONNECT {"user":1,"pass":"x"}\r\n'])
def test_what_is_no_login_waits_like_a_tenant(said: bytes) -> None:
    assert logged_in(said, "secret") == ("vc-", said)


@pytest.mark.parametrize(
    "said",
    [
        b"PING\r\n",
        b"CONNECT {\r\n",
        b"CONNECT []\r\n",
        # The server would read each of these as a login of the token's person.
        b'CONNECT {"JWT":"a.b.c"}\r\n',
        b'CONNECT {"jwt":"x","Jwt":"a.b.c"}\r\n',
        b'CONNECT\t{"jwt":"a.b.c"}\r\n',
        b'CONNECT {"jwt":"a.b.c","name":"\xff"}\r\n',
    ],
)
def test_a_login_that_the_server_could_read_otherwise_is_refused(said: bytes) -> None:
    assert logged_in(said, "secret") == ("vc-", b"CONNECT {}\r\n")


def test_a_signed_identity_is_passed_on_and_its_people_share_the_turns_of_their_vc() -> None:
    pair = Pair(Kind.ACCOUNT, b"k" * KEY_BYTES)
    for name, tenant in (
        ("vc-ml", "vc-ml"),
        ("vc-ml.anna", "vc-ml"),
        ("vc-web.anna", "vc-web"),
        ("node-n1", ""),
        ("allocator", ""),
    ):
        login = {"jwt": sign(Claims(name=name), pair), "sig": "x", "user": "vc-other", "pass": "x"}
        line = b"CONNECT " + msgspec.json.encode(login) + b"\r\n"
        assert logged_in(line, "secret") == (tenant, line)
    for token in ("", "a.b.c", "x" * 3000):
        line = b"CONNECT " + msgspec.json.encode({"jwt": token}) + b"\r\n"
        assert logged_in(line, "secret") == ("vc-", line)
