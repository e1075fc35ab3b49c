"""Credentials files of processes: renewed while they run, expired, and not of use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep_services.adapters import nats_link
from skep_services.adapters.nats_access import ALLOCATOR, SERVICES_ACCOUNT
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import Link
from skep_services.ports import RefusedError
from skep_services.service import ConfigurationError, settings
from tests.adapters.signed import SignedCluster
from tests.adapters.worlds import DEADLINE_S, eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SignedCluster]:
    made = SignedCluster(tmp_path)
    await made.start()
    yield made
    await made.close()


def issue(cluster: SignedCluster, expires_at_s: float) -> Path:
    account = next(one for one in cluster.accounts if one.name == SERVICES_ACCOUNT)
    user = next(one for one in account.users if one.name == ALLOCATOR)
    return cluster.issue(account, user, expires_at_s=int(expires_at_s))


async def test_expired_credentials_end_the_connection_and_then_the_next_login(
    cluster: SignedCluster,
) -> None:
    issue(cluster, time.time() + 3)
    ended = asyncio.get_running_loop().create_future()
    link = await Link.connect(cluster.options(ALLOCATOR), ended.set_result)
    why = await asyncio.wait_for(ended, DEADLINE_S)
    assert isinstance(why, RefusedError)
    for text in ("the bus ends the connection of 'allocator'", "allocator.creds expired", "renew"):
        assert text in str(why)
    await link.close()
    issue(cluster, time.time() - 1)
    with pytest.raises(RefusedError, match=r"login of 'allocator': .*allocator\.creds expired"):
        await cluster.link(ALLOCATOR)


async def test_renewed_credentials_are_taken_up_without_a_stop(
    cluster: SignedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "WATCH_EVERY_S", 0.01)
    issue(cluster, time.time() + 3600)
    bus = await NatsBus.connect(cluster.options(ALLOCATOR), cluster.fatal.append)
    issue(cluster, time.time() + 7200)
    await eventually(lambda: bus.stats.reconnects == 1)
    assert await bus.link.echo(DEADLINE_S)
    # While the file is being written by hand, and after that, nothing else happens.
    path = cluster.options(ALLOCATOR).credentials
    assert path is not None
    whole = path.read_text()
    path.write_text(whole[:100])
    assert await bus.link.echo(DEADLINE_S)
    path.write_text(whole)
    assert await bus.link.echo(DEADLINE_S)
    assert bus.stats.reconnects == 1
    assert not cluster.fatal
    await bus.close()


async def test_a_lost_file_does_not_end_a_connection(cluster: SignedCluster) -> None:
    """It is asked for at the next login, and that is tried until the file is there again."""
    path = issue(cluster, 0)
    bus = await cluster.bus(ALLOCATOR)
    text = path.read_text()
    path.unlink()
    await cluster.server.kill()
    await cluster.server.start()
    with pytest.raises(RefusedError, match=r"allocator\.creds cannot be used: No such file"):
        await cluster.link(ALLOCATOR)
    path.write_text(text)
    assert await bus.link.echo(DEADLINE_S)
    assert not cluster.fatal


async def test_a_process_is_told_what_is_wrong_before_it_starts(tmp_path: Path) -> None:
    environment = {
        "SKEP_STATE": str(tmp_path),
        "SKEP_NATS_USER": "allocator",
        "SKEP_NATS_URL": "nats://127.0.0.1:1",
        "SKEP_NATS_CREDS": str(tmp_path / "absent.creds"),
    }
    with pytest.raises(ConfigurationError, match=r"SKEP_NATS_CREDS: .*absent\.creds.*No such"):
        settings("allocator", environment)
    path = tmp_path / "absent.creds"
    path.write_text("-----BEGIN NATS USER JWT-----")
    with pytest.raises(ConfigurationError, match=r"SKEP_NATS_CREDS: .*is not there"):
        settings("allocator", environment)
