"""Three bus servers with signed identities: who joins, who is revoked, and a server that was away.

Times are those that a person waits, so they are measured by the wall clock here; what they have to
be below (REFUSED_WITHIN_S) is a promise, many times what it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep.wire import subjects
from skep_services.adapters.nats_access import (
    ADMISSION_SERVICE,
    ALLOCATOR,
    CLAIMS,
    GATEWAY,
    Account,
    node_account,
    person_account,
    vc_account,
)
from skep_services.adapters.nats_claims import Resolver
from skep_services.adapters.nats_jwt import EVERYBODY, claims_of, read_credentials
from skep_services.adapters.nats_link import Link
from skep_services.ports import RefusedError
from skep_services.service import EXIT_BUS
from tests.adapters.signed import SignedCluster
from tests.adapters.worlds import DEADLINE_S, Inbox

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters, pytest.mark.slow]

SERVERS = 3
NAMES = frozenset(f"s{number}" for number in range(SERVERS))
REFUSED_WITHIN_S = 10.0
ONE_DOWN_S = 3.0
"""What a push waits for a server that is away."""


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SignedCluster]:
    made = SignedCluster(tmp_path, servers=SERVERS)
    await made.start()
    yield made
    await made.close()


class Cut:
    """Connections of one user, one at each server, and when each was ended and why."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.ends: list[asyncio.Future[tuple[float, Exception]]] = []

    async def open(self, cluster: SignedCluster, identity: str) -> None:
        for server in range(SERVERS):
            end = asyncio.get_running_loop().create_future()
            self.ends.append(end)
            options = cluster.options(identity, server)
            self.links.append(await Link.connect(options, functools.partial(note, end)))

    async def close(self) -> None:
        for link in self.links:
            await link.close()


def note(end: asyncio.Future[tuple[float, Exception]], why: Exception) -> None:
    end.set_result((time.monotonic(), why))


async def join(cluster: SignedCluster, account: Account, server: int) -> Link:
    """Have an account join, and return a connection of its user at one of the servers."""
    cluster.issue(account)
    assert await cluster.resolver.push(account) == NAMES
    return await cluster.link(account.users[0].name, server)


async def test_a_node_joins_while_the_servers_run(cluster: SignedCluster) -> None:
    """What it says arrives from the first message on, and nobody else's connection is touched."""
    allocator, gateway = await cluster.bus(ALLOCATOR, 0), await cluster.bus(GATEWAY, 1)
    heartbeats, reports = Inbox(), Inbox()
    await allocator.listen(subjects.HEARTBEATS, heartbeats.deliver)
    await gateway.listen(subjects.REPORTS, reports.deliver)
    services = await cluster.resolver.token("SKEP")
    for number in range(SERVERS):
        name = f"new{number}"
        agent = await join(cluster, node_account(name), number)
        commands = Inbox()

        def take(message: object, into: Inbox = commands) -> None:
            into.got.append(message)  # type: ignore[arg-type]

        await agent.subscribe(subjects.command(name), take)
        await agent.send(subjects.heartbeat(name), b"alive", {})
        await agent.send(subjects.report(name), b"report", {})
        await heartbeats.wait(number + 1)
        await reports.wait(number + 1)
        stored = await agent.call(subjects.node_event(name, "joined"), b"{}", {}, DEADLINE_S)
        assert b'"stream":"NODE"' in stored.data  # type: ignore[union-attr]
    assert await cluster.resolver.token("SKEP") == services, "the services' account is as it was"
    assert allocator.stats.reconnects == gateway.stats.reconnects == 0
    assert not cluster.fatal


async def test_a_vc_and_a_person_join_while_the_servers_run(cluster: SignedCluster) -> None:
    admission = await cluster.bus(ADMISSION_SERVICE, 0)
    for account, subject, inbox in (
        (vc_account("late"), subjects.submit("late"), "_INBOX.vc-late."),
        (person_account("late", "eve"), subjects.submit("late", "eve"), "_INBOX.vc-late.eve."),
    ):
        link = await join(cluster, account, 2)
        stored = await link.call(subject, b"{}", {}, DEADLINE_S)
        assert b'"stream":"SUBMIT"' in stored.data  # type: ignore[union-attr]
        heard = asyncio.Event()

        def hear(_: object, heard: asyncio.Event = heard) -> None:
            heard.set()

        await link.subscribe(f"{inbox}x", hear)
        async with asyncio.timeout(DEADLINE_S):
            while not heard.is_set():  # Servers tell one another of who listens meanwhile.
                await admission.send(f"{inbox}x", b"admitted", {})
                assert await admission.link.echo(DEADLINE_S)
    assert not cluster.fatal


@pytest.mark.parametrize("user", ["key", EVERYBODY])
async def test_who_is_revoked_is_cut_and_refused_at_every_server(
    cluster: SignedCluster, user: str
) -> None:
    account, other = person_account("ml", "anna"), Cut()
    path = cluster.issue(account)
    key = claims_of(read_credentials(path.read_text()).token).sub
    await other.open(cluster, "vc-ml.bob")
    cut = Cut()
    await cut.open(cluster, "vc-ml.anna")
    began = time.monotonic()
    assert await cluster.resolver.revoke(account, key if user == "key" else user) == NAMES
    for end in cut.ends:
        at, why = await asyncio.wait_for(end, DEADLINE_S)
        assert at - began < REFUSED_WITHIN_S
        assert isinstance(why, RefusedError)
        assert str(why).endswith("vc-ml.anna.creds are revoked: renew them and start it again")
    for server in range(SERVERS):
        with pytest.raises(RefusedError, match=r"refuses the login of 'vc-ml\.anna'"):
            await cluster.link("vc-ml.anna", server)
    assert not any(end.done() for end in other.ends)
    # Whoever is let in again is given a token that was issued later.
    again_s = await cluster.resolver.issue_after_s(account.name, key)
    cluster.issue(account, issued_at_s=again_s)
    await cluster.link("vc-ml.anna", 2)
    # Pushing the account once more takes nobody's revocation back.
    await cluster.resolver.push(account)
    assert await cluster.resolver.revoked(account.name)
    await cut.close()
    await other.close()


async def test_who_loses_one_vc_keeps_the_other(cluster: SignedCluster) -> None:
    taken, kept = Cut(), Cut()
    await taken.open(cluster, "vc-ml.anna")
    await kept.open(cluster, "vc-web.anna")
    await cluster.resolver.revoke(person_account("ml", "anna"))
    await asyncio.wait_for(asyncio.gather(*taken.ends), DEADLINE_S)
    for link in kept.links:
        assert await link.echo(DEADLINE_S)
    assert not any(end.done() for end in kept.ends)
    await taken.close()
    await kept.close()


async def test_a_server_that_was_away_has_what_it_missed(cluster: SignedCluster) -> None:
    gone, late = node_account("n1"), node_account("late")
    cluster.issue(late)
    away = cluster.servers[2]
    await away.kill()
    assert await cluster.resolver.revoke(gone, within_s=ONE_DOWN_S) == {"s0", "s1"}
    assert await cluster.resolver.push(late, within_s=ONE_DOWN_S) == {"s0", "s1"}
    began = time.monotonic()
    await away.start()
    refused = False
    async with asyncio.timeout(DEADLINE_S):
        while not refused:
            try:
                link = await cluster.link("node-n1", 2)
            except RefusedError:
                refused = True
            else:
                await link.close()
    assert time.monotonic() - began < REFUSED_WITHIN_S
    await cluster.link("node-late", 2)
    assert await cluster.resolver.push(late) == NAMES


async def test_deleted_accounts_are_gone_from_all_servers(cluster: SignedCluster) -> None:
    cut = Cut()
    await cut.open(cluster, "vc-ml.anna")
    assert await cluster.resolver.delete(("vc-ml.anna",)) == NAMES
    for end in cut.ends:
        await asyncio.wait_for(end, DEADLINE_S)
    assert cluster.keys.public("vc-ml.anna") not in await cluster.resolver.accounts()
    await cut.close()


async def test_a_clock_that_goes_back_takes_nothing_back(cluster: SignedCluster) -> None:
    """Servers keep the token that was issued later, so the next one is, whatever the clock says."""
    account = vc_account("ml")
    link, now_s = await cluster.link(CLAIMS), int(time.time())
    ahead = Resolver(link, cluster.keys, SERVERS, lambda: now_s + 3600)
    back = Resolver(link, cluster.keys, SERVERS, lambda: now_s - 3600)
    await ahead.push(account, {"UXYZ": 3})
    first = claims_of(await cluster.resolver.token("vc-ml")).iat
    assert first >= now_s + 3600
    assert await back.revoke(account, "UABC", up_to_s=5) == NAMES
    assert claims_of(await cluster.resolver.token("vc-ml")).iat == first + 1
    assert await cluster.resolver.revoked("vc-ml") == {"UABC": 5, "UXYZ": 3}
    present = await cluster.resolver.token("vc-ml")
    assert await cluster.resolver.push(account) == NAMES
    assert await cluster.resolver.token("vc-ml") == present, "there is nothing to change"


async def agent(cluster: SignedCluster, folder: Path, identity: str) -> asyncio.subprocess.Process:
    """Start a door: a process of a service that does nothing but stay connected."""
    environment = {
        **os.environ,
        "SKEP_NATS_URL": ",".join(server.url for server in cluster.servers),
        "SKEP_NATS_USER": identity,
        "SKEP_NATS_CREDS": str(cluster.options(identity).credentials),
        "SKEP_STATE": str(folder / "door"),
        "SKEP_LISTEN": "127.0.0.1:0",
    }
    environment.pop("SKEP_NATS_PASSWORD", None)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skep_services.door", env=environment, stderr=asyncio.subprocess.PIPE
    )


async def test_a_process_ends_with_one_line_when_its_credentials_count_no_more(
    cluster: SignedCluster, tmp_path: Path
) -> None:
    services = next(account for account in cluster.accounts if account.jetstream)
    path = cluster.options("door").credentials
    assert path is not None
    key = claims_of(read_credentials(path.read_text()).token).sub
    process = await agent(cluster, tmp_path, "door")
    assert process.stderr is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while b'"ready"' not in (line := await process.stderr.readline()):
                assert line, "it has ended"
            await cluster.resolver.revoke(services, key)
            said = await process.stderr.read()
            assert await process.wait() == EXIT_BUS
        assert said.count(b"door.creds are revoked: renew them and start it again") >= 1
        assert b"Traceback" not in said
        again = await agent(cluster, tmp_path, "door")
        async with asyncio.timeout(DEADLINE_S):
            _, said = await again.communicate()
        assert again.returncode == EXIT_BUS
        assert b"refuses the login of 'door'" in said
        assert b"Traceback" not in said
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
