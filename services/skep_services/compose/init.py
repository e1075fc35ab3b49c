"""`python -m skep_services.compose.init FOLDER`: make the credentials of a cluster of containers.

    cluster.json        addresses from outside, passwords of all identities, tokens: for people
    nats-1.conf, ...    configuration of each bus server, with all passwords
    tokens.json         the owner of each of the gateway's tokens
    <identity>.password one identity's password, for its container only

What exists is kept: passwords are made once, and running it again only adds what is missing.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skep_services.adapters import nats_access, nats_server
from skep_services.supervisor import boot, tenants
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import HOST, Cluster, ConfigError, Wishes, parse_vc, settle

SERVERS = ("nats-1", "nats-2", "nats-3")
"""The bus servers of `compose.yaml`: three, so that one may be lost."""
REPLICAS = 2
"""Processes of each service that decides: one active, one standing by."""
PUBLISHED = len(SERVERS) + 1
"""Ports of the bus on this machine, one after the other: those of the servers, then the door's."""
CLIENT_PORT, ROUTE_PORT, MONITOR_PORT = 4222, 6222, 8222
"""Inside the containers' network."""
STORE = "/var/lib/skep/nats"
ROUTE = "route"
"""Whose password the bus servers use between themselves."""
READABLE = 0o644
"""A container's user has another number than the folder's owner, so the files are open to all. The
folder around them is not, and each container is given its own files only."""

RELOAD = """\
The bus servers learn of users when they read their configuration again:
  docker compose kill -s HUP nats-1 nats-2 nats-3
The gateway reads its tokens by itself.
"""

BEFORE_ACCOUNTS = """\
warning: the bus servers of this folder were configured before tenants had accounts of their own.
They stay so, because the streams of a cluster of servers cannot be moved to another account: a
tenant or a node can still have the server answer on subjects of others. With nothing to keep, make
the folder anew: `skep_services.compose.init --accounts`, and remove the volumes of the bus servers
and of bootstrap.
"""

BEFORE_DOOR = """\
warning: the bus servers of this folder were configured before there was a door. They stay so:
tenants connect to them as before, and no turns bound what one of them sends. With
`skep_services.compose.init --door` tenants come through the door, and only there.
"""

EXIT_BAD_OPTIONS = 64


def main(arguments: Sequence[str]) -> int:
    """Write the files.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit code: 0, or 64 for bad options or a folder that cannot be written.
    """
    parser = argparse.ArgumentParser(description="Make the credentials of a cluster of containers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, help="of each of the two nodes")
    parser.add_argument("--vc", action="append", default=[], help="NAME=GPUS, as research=6")
    parser.add_argument("--nats-port", type=int, default=CLIENT_PORT, help="the first of four")
    parser.add_argument("--port", type=int, help="of the gateway")
    parser.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="VC",
        help="credentials for a virtual cluster that `skep vc apply` made",
    )
    parser.add_argument(
        "--accounts",
        action="store_true",
        help="give tenants and nodes accounts also where there were none; the streams begin anew",
    )
    parser.add_argument(
        "--door",
        action="store_true",
        help="have tenants come through the door also where they connected to the bus servers",
    )
    given = parser.parse_args(arguments)
    try:
        wishes = Wishes(
            nodes=2,
            gpus=given.gpus,
            vcs=dict(map(parse_vc, given.vc)) if given.vc else None,
            port=given.port,
        )
        earlier = has_no_accounts(given.folder) and not given.accounts
        direct = has_no_door(given.folder) and not given.door
        write(
            given.folder,
            wishes,
            given.nats_port,
            given.tenant,
            accounts=not earlier,
            door=not direct,
        )
    except (ConfigError, ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_BAD_OPTIONS
    if earlier:
        sys.stdout.write(BEFORE_ACCOUNTS)
    if direct:
        sys.stdout.write(BEFORE_DOOR)
    if given.tenant or given.door:
        sys.stdout.write(RELOAD)
    return 0


def has_no_accounts(target: Path) -> bool:
    """Return whether the bus servers of a folder were configured before there were accounts."""
    try:
        text = (target / f"{SERVERS[0]}.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return "\naccounts: " not in text


def has_no_door(target: Path) -> bool:
    """Return whether the bus servers of a folder were configured before there was a door."""
    cluster = boot.read_cluster(str(target))
    configured = (target / f"{SERVERS[0]}.conf").exists()
    return configured and cluster is not None and not cluster.nats.tenants


def write(
    target: Path,
    wishes: Wishes,
    nats_port: int,
    more: Sequence[str] = (),
    *,
    accounts: bool = True,
    door: bool = True,
) -> Cluster:
    """Write all files; return the cluster.

    Args:
        target: The folder.
        wishes: What the cluster is to have.
        nats_port: The first of four ports of the bus on this machine, one after the other.
        more: Virtual clusters whose people get credentials, although they are set elsewhere.
        accounts: Tenants and nodes have accounts of their own. Without it all are in one account,
            as streams that cannot be moved need it.
        door: Tenants come through the door. Without it they connect to the bus servers themselves.

    Raises:
        ConfigError: The wishes cannot be met, or `nats_port` is no such port.
        OSError: A file cannot be written.
    """
    if not 0 < nats_port <= 65536 - PUBLISHED:
        text = f"--nats-port {nats_port}: four ports from --nats-port on are 1 to 65535"
        raise ConfigError(text)
    target.mkdir(mode=folder.FOLDER_MODE, parents=True, exist_ok=True)
    cluster = settle(boot.read_cluster(str(target)), wishes, str(target))
    *urls, tenants_url = (f"nats://{HOST}:{nats_port + index}" for index in range(PUBLISHED))
    cluster.nats.url, cluster.nats.tenants = ",".join(urls), tenants_url if door else ""
    tenants.admit(cluster, more)
    nodes, vcs = [node.name for node in cluster.nodes], cluster.vcs_with_credentials
    fresh = {
        **nats_access.new_passwords(nodes, vcs, REPLICAS),
        ROUTE: secrets.token_urlsafe(nats_access.PASSWORD_BYTES),
    }
    known = cluster.nats.users
    cluster.nats.users = {name: known.get(name, password) for name, password in fresh.items()}
    folder.write_json(folder.cluster_path(str(target)), msgspec.to_builtins(cluster))
    os.chmod(folder.cluster_path(str(target)), READABLE)
    contained = (
        nats_access.DOOR,
        *(nats_access.node_identity(node) for node in nodes),
        *(
            one
            for service in nats_access.SERVICES
            for one in nats_access.replica_identities(service, REPLICAS)
        ),
    )
    users = nats_access.behind_door(cluster.nats.users, vcs) if door else cluster.nats.users
    every = nats_access.accounts(users, nodes, vcs, REPLICAS)
    if not accounts:
        every = nats_access.in_one_account(every)
    for server in SERVERS:
        _write(target / f"{server}.conf", _server_text(server, every, cluster.nats.users[ROUTE]))
    for name in contained:
        _write(target / f"{name}.password", cluster.nats.users[name])
    tokens = {token: name for name, token in cluster.gateway.tokens.items()}
    _write(target / "tokens.json", msgspec.json.encode(tokens).decode())
    return cluster


def _server_text(server: str, accounts: Sequence[nats_access.Account], password: str) -> str:
    return nats_server.config_text(
        port=CLIENT_PORT,
        host="0.0.0.0",  # noqa: S104 - the containers' own network; compose publishes to loopback
        store_dir=Path(STORE),
        accounts=accounts,
        server_name=server,
        cluster=nats_server.Membership(
            port=ROUTE_PORT,
            routes=SERVERS,
            user=ROUTE,
            password=password,
            monitor_port=MONITOR_PORT,
        ),
    )


def _write(path: Path, text: str) -> None:
    """Replace a file in place: a container that has it mounted sees the new content."""
    path.write_text(text, encoding="utf-8")
    path.chmod(READABLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
