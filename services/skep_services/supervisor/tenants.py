"""Credentials for virtual clusters that were made while the cluster runs.

`skep vc apply` tells the services which virtual clusters there are; their people also need a user
on the bus and a token for the gateway. So the latest of what operators asked for is looked up on
the bus each second, and each new one gets both: in `cluster.json`, in the bus server's
configuration (which it is told to read again), and in the gateway's tokens (which it reads again
by itself). None are taken away here: a tenant that is gone is refused by admission.

A bus server that reads its configuration again lets the users of a new account in at once, but
connects the account with the others only the next time it reads it (nats-server 2.15.1). So each
new tenant is tried out, and the server is told to read again until what the tenant says arrives.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable

import msgspec

from skep.ids import is_token
from skep.policy.check import cluster_problems
from skep.wire import subjects
from skep.wire.admin import SetVcs
from skep.wire.bounds import UNDECODABLE
from skep_services.adapters import nats_access
from skep_services.adapters.nats_api import PubAck, latest, publish_once
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.ports import RefusedError
from skep_services.supervisor import boot
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import VCS_MAX, Cluster, ConfigError, new_token
from skep_services.supervisor.run import say

TRY_WITHIN_S = 1.0
"""A bus server answers in milliseconds; one that does not is tried again."""

TRY_EVERY_S = 0.2
"""Between two attempts: the server needs some milliseconds to read its configuration."""

LOOK_EVERY_S = 1.0
"""A look costs the bus a millisecond, and a person who was just given a virtual cluster waits."""


async def watch(home: str, cluster: Cluster, reload: Callable[[], None]) -> None:
    """Make credentials for new tenants, until cancelled.

    Args:
        home: The state folder.
        cluster: The cluster; it gets the credentials.
        reload: Has the bus read its configuration again.
    """
    while True:
        try:
            await _look(home, cluster, reload)
        except (ConnectionError, RefusedError, TimeoutError, OSError) as error:
            say("new virtual clusters not looked for", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(LOOK_EVERY_S)


async def _look(home: str, cluster: Cluster, reload: Callable[[], None]) -> None:
    name = nats_access.BOOTSTRAP
    options = LinkOptions(
        servers=tuple(cluster.nats.url.split(",")),
        identity=name,
        password=cluster.nats.users[name],
        tls=cluster.nats.tls,
    )
    link = await Link.connect(options, on_fatal=_lost)
    seen = b""
    untried: list[str] = []
    try:
        while True:
            asked = await latest(link, subjects.ADMIN, subjects.admin("vcs"))
            if asked != seen:
                seen = asked
                untried += await _take(home, cluster, asked)
            if untried:
                untried = [vc for vc in untried if not await is_connected(cluster, vc)]
            if untried:
                reload()
            await asyncio.sleep(TRY_EVERY_S if untried else LOOK_EVERY_S)
    finally:
        await link.close()


async def _take(home: str, cluster: Cluster, asked: bytes) -> list[str]:
    """Make the credentials that `cluster` and its files lack; return the tenants that got some."""
    before = cluster.vcs_with_credentials
    try:
        if not admit(cluster, asked_for(asked)):
            return []
    except ConfigError as error:
        say("credentials not made", error=str(error))
        return []
    await asyncio.to_thread(_write, home, cluster)
    say("credentials made", vcs=cluster.tenants)
    return [vc for vc in cluster.vcs_with_credentials if vc not in before]


async def is_connected(cluster: Cluster, vc: str) -> bool:
    """Return whether what a tenant says reaches the stream of submissions. Nothing is stored."""
    identity = nats_access.vc_identity(vc)
    url = cluster.nats.tenants or cluster.nats.url
    options = LinkOptions(
        servers=tuple(url.split(",")),
        identity=identity,
        password=cluster.nats.users[identity],
        connect_within_s=TRY_WITHIN_S,
        tls=cluster.nats.tls,
    )
    try:
        link = await Link.connect(options, on_fatal=_lost)
    except (ConnectionError, RefusedError):
        return False
    try:
        headers = {"Nats-Expected-Stream": "NONE"}
        answer = await publish_once(link, subjects.submit(vc), b"", headers, TRY_WITHIN_S)
        return isinstance(answer, PubAck)
    finally:
        await link.close()


def asked_for(payload: bytes) -> list[str]:
    """Return the virtual clusters in an operator's message; none if it is not one, or is wrong."""
    try:
        asked = msgspec.json.decode(payload, type=SetVcs)
    except UNDECODABLE:
        return []  # The services refuse it too.
    return [] if cluster_problems(asked.cluster) else list(asked.vcs)


def admit(cluster: Cluster, vcs: Iterable[str]) -> bool:
    """Add a user and a token for each virtual cluster that has none.

    Args:
        cluster: The cluster; it gets the credentials.
        vcs: The virtual clusters.

    Returns:
        Whether any had none.

    Raises:
        ConfigError: There would be too many virtual clusters, or what is given is no name.
    """
    fresh = [vc for vc in vcs if vc not in cluster.vcs_with_credentials]
    for vc in fresh:
        if not is_token(vc):
            text = f"{vc!r} is no name for a virtual cluster (letters, digits, _, -; 63 at most)"
            raise ConfigError(text)
    if len(cluster.vcs_with_credentials) + len(fresh) > VCS_MAX:
        count = len(cluster.vcs_with_credentials) + len(fresh)
        text = f"{count} virtual clusters; there are 1 to {VCS_MAX}"
        raise ConfigError(text)
    for vc in fresh:
        name = nats_access.vc_identity(vc)
        cluster.tenants.append(vc)
        password = secrets.token_urlsafe(nats_access.PASSWORD_BYTES)
        cluster.nats.users.setdefault(name, password)
        cluster.gateway.tokens.setdefault(name, new_token())
    return bool(fresh)


def _write(home: str, cluster: Cluster) -> None:
    """Write credentials down before they can be used: they outlive this process."""
    known = boot.read_cluster(home)
    assert known is not None, home
    known.tenants, known.nats.users = cluster.tenants, cluster.nats.users
    known.gateway.tokens = cluster.gateway.tokens
    folder.write_json(folder.cluster_path(home), msgspec.to_builtins(known))
    boot.write_files(home, known)


def _lost(error: Exception) -> None:
    say("the bus connection is lost", error=str(error))
