"""Attackers before a bus server with signed identities: each login and each message is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.wire import subjects
from skep_services.adapters import nats_keys
from skep_services.adapters.nats_access import (
    ADMISSION_SERVICE,
    CLAIMS,
    DOOR,
    OPERATOR,
    SERVICES_ACCOUNT,
    SYSTEM_ACCOUNT,
    User,
    node_account,
    person_account,
    vc_account,
)
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_jwt import Kind, Pair, claims_of, sign
from skep_services.adapters.nats_link import Link
from skep_services.ports import RefusedError
from tests.adapters.signed import ISSUED_AT_S, SignedCluster
from tests.adapters.worlds import ANYTHING, DEADLINE_S, Inbox
from tests.support.ports import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

ANNA, NODE = "vc-ml.anna", "node-n1"
LOOPBACK, ELSEWHERE = "127.0.0.1", "127.0.0.9"


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SignedCluster]:
    made = SignedCluster(tmp_path / "own")
    await made.start()
    yield made
    await made.close()


class Caller:
    """A client that says what it wants, whatever the library would say."""

    def __init__(self, cluster: SignedCluster, port: int = 0, host: str = LOOPBACK) -> None:
        self._port, self._host = port or cluster.server.port, host

    async def open(self) -> str:
        """Connect from a host, and return the server's nonce."""
        self._reader, self._writer = await asyncio.open_connection(
            LOOPBACK, self._port, local_addr=(self._host, 0)
        )
        greeting = await self._reader.readline()
        return str(json.loads(greeting.removeprefix(b"INFO "))["nonce"])

    async def log_in(self, token: str, signature: bytes, **also: Any) -> str:
        """Return what the server answers: PONG if it believes the login."""
        said = {"jwt": token, "sig": base64.b64encode(signature).decode(), "verbose": False}
        self._writer.write(b"CONNECT " + json.dumps({**said, **also}).encode() + b"\r\nPING\r\n")
        async with asyncio.timeout(DEADLINE_S):
            answer = (await self._reader.readline()).decode().strip()
        self._writer.transport.abort()
        return answer


async def answer(
    cluster: SignedCluster, token: str, pair: Pair, port: int = 0, host: str = LOOPBACK
) -> str:
    """Return what the server says to a token and a right signature of its nonce."""
    caller = Caller(cluster, port, host)
    nonce = await caller.open()
    return await caller.log_in(token, pair.sign(nonce.encode()))


REFUSED = "-ERR 'Authorization Violation'"
BELIEVED = "PONG"


async def test_forged_tokens_are_refused(cluster: SignedCluster, tmp_path: Path) -> None:
    keys, pair = cluster.keys, nats_keys.new_pair(Kind.USER)
    anna = person_account("ml", "anna")
    everything = User(name=ANNA, password="", grants=ANYTHING)
    token = keys.user_token(anna.name, anna.users[0], pair.public, issued_at_s=ISSUED_AT_S)
    assert await answer(cluster, token, pair) == BELIEVED
    claims = claims_of(token)

    # Its rights are changed, its signature kept.
    header, _, signature = token.split(".")
    said = msgspec.json.encode(msgspec.structs.replace(claims, nats={"pub": {}, "sub": {}}))
    body = base64.urlsafe_b64encode(said).decode().rstrip("=")
    assert await answer(cluster, f"{header}.{body}.{signature}", pair) == REFUSED
    # It is signed by itself, or by nobody.
    assert await answer(cluster, sign(claims, pair), pair) == REFUSED
    unsigned = base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"none"}').decode().rstrip("=")
    assert await answer(cluster, f"{unsigned}.{token.split('.')[1]}.", pair) == REFUSED

    # Another cluster's operator, with accounts of the same names, signed it.
    other = nats_keys.create(tmp_path / "other")
    foreign = other.user_token(anna.name, everything, pair.public, issued_at_s=ISSUED_AT_S)
    assert await answer(cluster, foreign, pair) == REFUSED

    # An account that this server knows signed it for a user of another account.
    bob = keys.account("vc-ml.bob")
    as_anna = msgspec.structs.replace(claims, nats={**claims.nats, "issuer_account": claims.iss})
    assert await answer(cluster, sign(as_anna, bob), pair) == REFUSED
    for account in (SERVICES_ACCOUNT, SYSTEM_ACCOUNT):
        named = {**claims.nats, "issuer_account": keys.public(account)}
        lifted = msgspec.structs.replace(claims, nats=named)
        assert await answer(cluster, sign(lifted, keys.account("vc-ml.anna")), pair) == REFUSED

    # It needs no signature of a nonce, says an account that may not say so.
    bearer = msgspec.structs.replace(claims, nats={**claims.nats, "bearer_token": True})
    caller = Caller(cluster)
    await caller.open()
    assert await caller.log_in(sign(bearer, keys.account(anna.name)), b"") == REFUSED
    assert await answer(cluster, "", pair) == REFUSED
    assert await answer(cluster, keys.account_token(anna, ISSUED_AT_S), pair) == REFUSED


async def test_a_token_alone_and_a_replayed_signature_are_refused(cluster: SignedCluster) -> None:
    pair, thief = nats_keys.new_pair(Kind.USER), nats_keys.new_pair(Kind.USER)
    anna = person_account("ml", "anna")
    token = cluster.keys.user_token(anna.name, anna.users[0], pair.public, issued_at_s=ISSUED_AT_S)
    first = Caller(cluster)
    signature = pair.sign((await first.open()).encode())
    assert await first.log_in(token, signature) == BELIEVED
    again = Caller(cluster)
    await again.open()
    assert await again.log_in(token, signature) == REFUSED, "it is of another nonce"
    assert await answer(cluster, token, thief) == REFUSED
    # Who names no token has no rights either, whatever it calls itself.
    for also in ({"user": OPERATOR, "pass": ""}, {"nkey": pair.public}, {"auth_token": token}):
        bare = Caller(cluster)
        await bare.open()
        assert await bare.log_in("", b"", **also) == REFUSED


async def test_what_counts_no_more_is_refused(cluster: SignedCluster) -> None:
    pair, anna = nats_keys.new_pair(Kind.USER), person_account("ml", "anna")
    now_s = int(time.time())

    def token(**fields: Any) -> str:
        return cluster.keys.user_token(
            anna.name, anna.users[0], pair.public, **{"issued_at_s": now_s, **fields}
        )

    assert await answer(cluster, token(expires_at_s=now_s - 1), pair) == REFUSED
    assert await answer(cluster, token(sources=("10.0.0.0/8",)), pair) == REFUSED
    assert await answer(cluster, token(sources=("127.0.0.0/8",)), pair) == BELIEVED
    assert await cluster.resolver.revoke(anna, pair.public) == {"skep"}
    assert await answer(cluster, token(), pair) == REFUSED
    # A server whose clock is ahead issued it, before it knew.
    assert await answer(cluster, token(issued_at_s=now_s + 60), pair) == REFUSED
    later_s = await cluster.resolver.issue_after_s(anna.name, pair.public)
    assert await answer(cluster, token(issued_at_s=later_s), pair) == BELIEVED
    other = nats_keys.new_pair(Kind.USER)
    mine = cluster.keys.user_token(anna.name, anna.users[0], other.public, issued_at_s=now_s)
    assert await answer(cluster, mine, other) == BELIEVED, "her other device"


async def test_nobody_but_the_keeper_of_claims_changes_accounts(cluster: SignedCluster) -> None:
    """The servers take what the operator signed, and hear of it in their own account only."""
    anna = person_account("ml", "anna")
    wide = msgspec.structs.replace(anna, connections_max=None)
    token = cluster.keys.account_token(wide, int(time.time()) + 100).encode()
    orders = ("$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.LIST")
    before = await cluster.resolver.token(anna.name)
    for identity in (ANNA, NODE, "vc-ml", OPERATOR, "gateway", "bootstrap"):
        bus = await cluster.bus(identity)
        for subject in orders:
            await bus.link.send(subject, token, {}, f"_INBOX.{identity}.x")
        assert await bus.link.echo(DEADLINE_S)
        assert bus.stats.violations == len(orders)
    assert await cluster.resolver.token(anna.name) == before

    # Who is in the servers' own account, and has no operator's key, makes no account.
    carl, pair = person_account("ml", "carl"), nats_keys.new_pair(Kind.USER)
    forged = sign(
        claims_of(cluster.keys.account_token(carl, ISSUED_AT_S)),
        cluster.keys.account(SYSTEM_ACCOUNT),
    )
    keeper = await cluster.link(CLAIMS)
    await keeper.call(orders[0], forged.encode(), {}, DEADLINE_S)
    mine = cluster.keys.user_token(carl.name, carl.users[0], pair.public, issued_at_s=ISSUED_AT_S)
    assert await answer(cluster, mine, pair) == REFUSED
    await cluster.resolver.push(carl)
    assert await answer(cluster, mine, pair) == BELIEVED


async def test_nobody_speaks_as_another(cluster: SignedCluster) -> None:
    """As another person, as the VC, as another node: with credentials that are good themselves."""
    heard = Inbox()
    await (await cluster.bus(OPERATOR)).listen("skep.v1.>", heard.deliver)
    attempts = {
        ANNA: (
            subjects.submit("ml", "bob"),
            subjects.cancel("ml", "bob"),
            subjects.ask("ml", "bob"),
            subjects.search("ml", "bob"),
            subjects.submit("ml"),
            subjects.submit("web", "anna"),
            "_INBOX.vc-ml.bob.x",
            subjects.reply("ml", "x", "bob"),
        ),
        NODE: (
            subjects.node_event("n2", "joined"),
            subjects.heartbeat("n2"),
            subjects.report("n2"),
            subjects.command("n2"),
            "_INBOX.gateway.answers.n2.x.1",
        ),
    }
    for identity, subjects_of_others in attempts.items():
        bus = await cluster.bus(identity)
        for subject in subjects_of_others:
            await bus.link.send(subject, b"{}", {}, "")
            await bus.link.send(subject, b"{}", {}, f"_INBOX.{identity}.x")
        assert await bus.link.echo(DEADLINE_S)
        assert bus.stats.violations == 2 * len(subjects_of_others)
    honest = await cluster.bus(ANNA)
    await honest.publish(subjects.submit("ml", "anna"), b"{}", "honest", {})
    await heard.wait(1)
    assert [one.subject for one in heard.got] == [subjects.submit("ml", "anna")]
    assert not cluster.fatal


async def test_a_name_in_the_login_is_no_identity(cluster: SignedCluster) -> None:
    """The inboxes and the name that a client claims give it nothing: its token does."""
    options = cluster.options(ANNA)
    claimed = msgspec.structs.replace(options, identity="vc-ml.bob")
    link = await Link.connect(claimed, cluster.fatal.append)
    with pytest.raises(RefusedError, match="may not listen"):
        await link.subscribe("_INBOX.vc-ml.bob.x", lambda _: None)
    assert link.violations.count >= 1
    await link.close()


async def test_accounts_that_are_unknown_are_refused(cluster: SignedCluster) -> None:
    """Keys of all names can be derived; only accounts that were pushed exist."""
    for account in (vc_account("new"), node_account("new"), person_account("ml", "carl")):
        pair = nats_keys.new_pair(Kind.USER)
        token = cluster.keys.user_token(
            account.name, account.users[0], pair.public, issued_at_s=ISSUED_AT_S
        )
        assert await answer(cluster, token, pair) == REFUSED
        await cluster.resolver.push(account)
        assert await answer(cluster, token, pair) == BELIEVED
    known = await cluster.resolver.accounts()
    assert {cluster.keys.public(name) for name in ("node-new", SERVICES_ACCOUNT)} <= known


async def test_tenants_come_through_the_door_only(cluster: SignedCluster, tmp_path: Path) -> None:
    """Their tokens are good from where doors run, and from nowhere else."""
    pair, anna = nats_keys.new_pair(Kind.USER), person_account("ml", "anna")
    token = cluster.keys.user_token(
        anna.name, anna.users[0], pair.public, issued_at_s=ISSUED_AT_S, sources=(f"{LOOPBACK}/32",)
    )
    port = free_port()
    process = await open_door(cluster, tmp_path, port)
    try:
        assert await answer(cluster, token, pair, host=ELSEWHERE) == REFUSED
        assert await answer(cluster, token, pair, port, ELSEWHERE) == BELIEVED
        header, body, _ = token.split(".")
        forged = f"{header}.{body}.{'A' * 86}"
        assert await answer(cluster, forged, pair, port, ELSEWHERE) == REFUSED
        options = cluster.options(ANNA)
        through = msgspec.structs.replace(options, servers=(f"nats://{LOOPBACK}:{port}",))
        bus = await NatsBus.connect(through, cluster.fatal.append)
        heard = Inbox()
        await bus.listen(subjects.reply("ml", ">", "anna"), heard.deliver)
        assert await bus.publish(subjects.submit("ml", "anna"), b"{}", "k", {}) == 1
        admission = await cluster.bus(ADMISSION_SERVICE)
        await admission.send(subjects.reply("ml", "x", "anna"), b"admitted", {})
        await heard.wait(1)
        await bus.close()
    finally:
        process.terminate()
        await process.communicate()
    assert not cluster.fatal


async def open_door(cluster: SignedCluster, folder: Path, port: int) -> asyncio.subprocess.Process:
    """Return a door that listens."""
    environment = {
        **os.environ,
        "SKEP_NATS_URL": cluster.server.url,
        "SKEP_NATS_USER": DOOR,
        "SKEP_NATS_CREDS": str(cluster.options(DOOR).credentials),
        "SKEP_STATE": str(folder / "door"),
        "SKEP_LISTEN": f"{LOOPBACK}:{port}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skep_services.door", env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        while b'"ready"' not in (line := await process.stderr.readline()):
            assert line, "it has ended"
    return process
