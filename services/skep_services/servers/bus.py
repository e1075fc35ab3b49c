"""The bus server's configuration on a server: TLS on both sides, signed identities, the others."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from skep_services.adapters import nats_access, nats_server
from skep_services.servers import files, plan, setup
from skep_services.servers.address import hostport
from skep_services.servers.files import ServerFile
from skep_services.servers.meeting import own_tls
from skep_services.supervisor import home as folder

ROUTE_USER = "route"
EVERY_ADDRESS = "::"
EVERY_ADDRESS_4 = "0.0.0.0"  # noqa: S104 - clients need a certificate


def write_config(home: str, file: ServerFile, shared: setup.Secrets) -> None:
    """Write the bus server's configuration.

    Args:
        home: The state folder.
        file: The server.
        shared: The secrets of the cluster.
    """
    path = plan.bus_config_path(home)
    os.makedirs(os.path.dirname(path), mode=folder.FOLDER_MODE, exist_ok=True)
    folder.write_text(path, config(home, file, shared))


def config(home: str, file: ServerFile, shared: setup.Secrets) -> str:
    """Return the bus server's configuration.

    A cluster of one has no routes and no quorum; it cannot become one of three later, because a
    server that stood alone gives its streams up when it is given others.

    Args:
        home: The state folder.
        file: The server.
        shared: The secrets of the cluster.
    """
    nats, ports = Path(home, "nats"), file.me.ports
    host = listen_host(file)
    operator = setup.bus_keys(home).operator_mode(
        file.cluster, nats / "accounts", first_accounts(file), shared.created_at_s
    )
    cluster = None
    if file.size > 1:
        cluster = nats_server.Membership(
            port=ports.routes,
            routes=tuple(hostport(one.hosts[0], one.ports.routes) for one in file.members),
            user=ROUTE_USER,
            password=route_password(shared),
            monitor_port=nats_server.ANY_PORT,
            host=host,
        )
    return nats_server.config_text(
        port=ports.bus,
        host=host,
        store_dir=nats / "store",
        accounts=(),
        server_name=file.name,
        cluster=cluster,
        tls=own_tls(home),
        operator=operator,
    )


def first_accounts(file: ServerFile) -> tuple[nats_access.Account, ...]:
    """Return the accounts with which a bus begins: the system's, and that of the services."""
    users = nats_access.service_users(file.size)
    return nats_access.system_account(), nats_access.services_account(users)


def listen_host(file: ServerFile) -> str:
    """Return what the bus server listens on, in its own words."""
    if file.listen != files.EVERYWHERE:
        return file.listen
    return EVERY_ADDRESS if has_ipv6() else EVERY_ADDRESS_4


def has_ipv6() -> bool:
    """Return whether this machine speaks IPv6 at all."""
    return os.path.exists("/proc/net/if_inet6")


def route_password(shared: setup.Secrets) -> str:
    """Return by which servers let one another in: nodes have certificates of the authority too."""
    key = shared.bus[min(shared.bus)].encode()
    return hmac.new(hashlib.sha256(key).digest(), b"skep routes 1", "sha256").hexdigest()
