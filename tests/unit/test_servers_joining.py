"""How machines are named and invited: addresses, tokens, clocks, versions, servers' places."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from skep_services.attempts import ATTEMPTS
from skep_services.servers import files, meeting, setup, tokens
from skep_services.servers.address import (
    AddressError,
    Place,
    hostport,
    is_host,
    parse_invitation,
    parse_place,
)
from skep_services.servers.files import FilesError, Member, Ports, ServerFile
from skep_services.servers.joining import JoinError, check_clock, parse_token
from skep_services.servers.versions import VersionError, check_meeting

FINGERPRINT = "ab" * 32


@pytest.mark.parametrize(
    "text, place",
    [
        ("head", Place("head", 8470)),
        ("head.example.org:99", Place("head.example.org", 99)),
        ("10.0.0.1", Place("10.0.0.1", 8470)),
        ("10.0.0.1:7", Place("10.0.0.1", 7)),
        ("fd00::1", Place("fd00::1", 8470)),
        ("[fd00::1]", Place("fd00::1", 8470)),
        ("[fd00::1]:7", Place("fd00::1", 7)),
    ],
)
def test_a_place_has_a_name_or_an_address_of_either_kind(text: str, place: Place) -> None:
    assert parse_place(text, 8470) == place
    assert parse_place(hostport(*place), 1) == place


@pytest.mark.parametrize(
    "text",
    ["", "a b", "head:0", "head:70000", "head:x", "[fd00::1", "[fd00::1]7", "10.0.0.256", "-a"],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_place(text, 8470)


def test_an_invitation_is_a_token_and_a_place() -> None:
    token = f"abc123.se-c_ret.{FINGERPRINT}"
    assert parse_invitation(f"{token}@[::1]:9", 1) == (token, Place("::1", 9))
    for wrong in ("head", "@head", f"{token}@", "to ken@head", "a" * 600 + "@head"):
        with pytest.raises(AddressError):
            parse_invitation(wrong, 1)


def test_names_are_hosts_and_numbers_only_as_addresses() -> None:
    assert is_host("a_b-c.d")
    assert is_host("fe80::1")
    assert not is_host("1.2.3")
    assert not is_host("a..b")


@pytest.mark.parametrize("text", ["a.b", "a.b.c", f"a.b.{FINGERPRINT[:-1]}g", f"..{FINGERPRINT}"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(JoinError) as refused:
        parse_token(text)
    assert refused.value.reason == "bad-token"


def test_a_clock_that_is_off_is_told_with_its_way_and_size() -> None:
    check_clock(1000.0, 1059.0, "head")
    check_clock(None, 0.0, "head")
    with pytest.raises(JoinError, match="2 hours ahead of that of head") as refused:
        check_clock(0.0, 7300.0, "head")
    assert refused.value.reason == "clock-skew"
    with pytest.raises(JoinError, match="3 days behind that of head"):
        check_clock(3 * 86_400.0, 0.0, "head")


@pytest.mark.parametrize("theirs", ["0.2.0", "0.2.9", "0.3.0", "0.1.7", "0.3.0rc1"])
def test_releases_next_to_each_other_meet(theirs: str) -> None:
    check_meeting(theirs, "node a", own="0.2.0")


@pytest.mark.parametrize(
    "theirs, todo",
    [
        ("0.0.9", "install skep 0.2.0 there"),
        ("0.4.0", "upgrade the servers first"),
        ("1.2.0", "upgrade the servers first"),
        ("", "install skep 0.2.0 there"),
        ("nonsense", "install skep 0.2.0 there"),
    ],
)
def test_versions_that_cannot_meet_are_told_what_to_do(theirs: str, todo: str) -> None:
    with pytest.raises(VersionError, match=todo) as refused:
        check_meeting(theirs, "node a", own="0.2.0")
    assert "\n" not in str(refused.value)


def test_a_token_lets_one_machine_in_again_and_no_other(tmp_path: object) -> None:
    home = str(tmp_path)
    token = tokens.make(home, FINGERPRINT, now_s=0.0, valid_s=60.0)
    tokens.use(home, token.id, token.secret, "one", 10.0)
    tokens.use(home, token.id, token.secret, "one", 20.0)  # Its first answer got lost.
    for given, reason in (
        ((token.id, token.secret, "two", 30.0), "token-used"),
        ((token.id, "wrong", "one", 30.0), "unknown-token"),
        (("nobody", token.secret, "one", 30.0), "unknown-token"),
        ((token.id, token.secret, "one", 61.0), "token-expired"),
    ):
        with pytest.raises(tokens.TokenRefusedError) as refused:
            tokens.use(home, *given)
        assert refused.value.reason == reason


def test_what_is_kept_of_a_token_does_not_let_in(tmp_path: object) -> None:
    token = tokens.make(str(tmp_path), FINGERPRINT, now_s=0.0)
    with open(tokens.path_of(str(tmp_path)), encoding="ascii") as file:
        assert token.secret not in file.read()


async def answers(
    meets: meeting.Meeting, source: str, **changes: str
) -> tuple[int, dict[str, str]]:
    """Return status and error of a request for a place among the servers."""
    asked = msgspec.structs.replace(ask("h9"), **changes)
    body = msgspec.json.encode(asked)

    async def read() -> bytes:
        return body

    request: Any = SimpleNamespace(remote=source, read=read)
    answer = await meets._join(request)
    assert isinstance(answer.body, bytes)
    return answer.status, msgspec.json.decode(answer.body)["error"]


@pytest.mark.asyncio
async def test_a_machine_without_a_token_learns_nothing(tmp_path: Path) -> None:
    home, said = str(tmp_path), []
    files.write(files.server_path(home), cluster(3, "server-1", "server-2", "server-3"))
    token = tokens.make(home, FINGERPRINT, now_s=time.time())
    meets = meeting.Meeting(home, lambda _: None, lambda *_, **told: said.append(told))
    for changes in ({}, {"replaces": "server-1"}, {"version": "9.9.9"}, {"id": token.id}):
        status, error = await answers(meets, "192.0.2.9", **changes)
        assert (status, error["reason"]) == (403, "unknown-token")
        assert "server-2" not in error["text"]
    # Its guesses end, in the log too; whoever has the token is told as before, from there even.
    for _ in range(2 * ATTEMPTS):
        await answers(meets, "192.0.2.9")
    status, error = await answers(meets, "192.0.2.9")
    assert (status, error["reason"]) == (429, "too-many-attempts")
    assert len(said) == ATTEMPTS + 1
    right = {"id": token.id, "secret": token.secret}
    for source in ("192.0.2.9", "192.0.2.10"):
        status, error = await answers(meets, source, **right)
        assert (status, "--replace" in error["text"]) == (409, True)


# --- the places of servers ------------------------------------------------------------------------


def cluster(size: int, *names: str) -> ServerFile:
    members = [Member(name=name, hosts=(f"h{name[-1]}",)) for name in names]
    return ServerFile(cluster="lab", name="server-1", size=size, members=members)


def ask(host: str, replaces: str = "", ports: Ports | None = None) -> meeting.AskServer:
    return meeting.AskServer(
        id="",
        secret="",
        machine="m",
        hosts=(host,),
        ports=ports or Ports(),
        version="0.2.0",
        replaces=replaces,
    )


def test_servers_get_the_places_that_are_free() -> None:
    assert meeting.place_of(cluster(3, "server-1"), ask("h9")) == "server-2"
    assert meeting.place_of(cluster(3, "server-1", "server-3"), ask("h9")) == "server-2"
    # It asks again, as its answer got lost.
    assert meeting.place_of(cluster(3, "server-1", "server-2"), ask("h2")) == "server-2"


@pytest.mark.parametrize(
    "file, asked, text",
    [
        (cluster(1, "server-1"), ask("h9"), "cannot become one of three"),
        (cluster(3, "server-1", "server-2", "server-3"), ask("h9"), "use --replace NAME"),
        (cluster(3, "server-1"), ask("h9", "server-1"), "cannot be replaced"),
        (cluster(3, "server-1"), ask("h9", "server-7"), "cannot be replaced"),
    ],
)
def test_a_server_without_a_place_is_told_why(
    file: ServerFile, asked: meeting.AskServer, text: str
) -> None:
    with pytest.raises(FilesError, match=text) as refused:
        meeting.place_of(file, asked)
    assert "\n" not in str(refused.value)


def test_the_list_with_the_higher_revision_holds() -> None:
    one = cluster(3, "server-1")
    two = meeting.with_member(one, Member(name="server-2", hosts=("h2",)))
    assert [member.name for member in two.members] == ["server-1", "server-2"]
    assert two.revision == one.revision + 1
    assert meeting.with_member(two, two.members[1]) is two
    told = meeting.Servers(revision=two.revision, members=two.members)
    assert meeting.newer(one, told) == two
    assert meeting.newer(two, told) is two
    stranger = meeting.Servers(revision=9, members=[Member(name="server-9", hosts=("x",))])
    assert meeting.newer(two, stranger) is two


def test_a_server_that_takes_another_ones_place_has_its_own_hosts() -> None:
    three = cluster(3, "server-1", "server-2", "server-3")
    name = meeting.place_of(three, ask("new", "server-2"))
    joined = meeting.with_member(three, setup.new_member(name, ["new"], Ports()))
    assert {one.name: one.hosts for one in joined.members}["server-2"] == ("new",)
    assert joined.whole


def test_two_parts_of_a_server_need_two_ports() -> None:
    with pytest.raises(ValueError, match="cannot have one port"):
        Ports(bus=8470)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"bus": 8470}', type=Ports)
