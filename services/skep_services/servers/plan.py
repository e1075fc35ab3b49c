"""Which processes run on a server and on a node, and what each is told by its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from skep_services.adapters import nats_access
from skep_services.notifier import settings
from skep_services.servers import files, notify, setup, targets
from skep_services.servers.address import hostport
from skep_services.servers.files import NodeFile, ServerFile
from skep_services.supervisor import home as folder
from skep_services.supervisor.table import BUS_NICENESS, NATS, NOT_PASSED_ON, ChildPlan, ClusterPlan

LOCAL_FIRST = "127.0.0.1"
ANYWHERE = "*"


def server_plan(
    file: ServerFile, home: str, nats_server: str, *, notifier: bool = False
) -> ClusterPlan:
    """Return the processes of a server.

    Args:
        file: The server.
        home: The state folder.
        nats_server: The path of the bus server's executable.
        notifier: The notifier runs here: it has the targets of `targets.path`.
    """
    base = _base(home)
    mine = local_host(file)
    bus = ChildPlan(
        name=NATS,
        argv=(nats_server, "-c", bus_config_path(home)),
        env=base,
        state=os.path.join(home, NATS),
        log_path=folder.service_log_path(home, NATS),
        host=mine,
        port=file.me.ports.bus,
        niceness=BUS_NICENESS,
    )
    base = {**base, **_tls(home), **archive_env(file), "SKEP_NATS_URL": bus_urls(file)}
    listen = mine if file.listen != files.EVERYWHERE else ANYWHERE
    more = {
        nats_access.DOOR: {"SKEP_LISTEN": hostport(listen, file.me.ports.door)},
        nats_access.GATEWAY: {
            "SKEP_LISTEN": hostport(listen, file.me.ports.gateway),
            "SKEP_TOKENS": tokens_path(home),
            "SKEP_PEOPLE": "on",
            "SKEP_CLUSTER": file.cluster,
            "SKEP_GATEWAYS": ",".join(one.url("https", one.ports.gateway) for one in file.members),
        },
        nats_access.VAULT: {"SKEP_VAULT_KEY": setup.vault_key_path(home)},
        nats_access.ACCESS_SERVICE: {"SKEP_SIGNER": "skep_services.servers.signer:make"},
        nats_access.NOTIFIER: {settings.VARIABLE: targets.path(home)},
    }
    only_here = (nats_access.NOTIFIER,) if notifier else ()
    services = tuple(
        _service(file, service, {**base, **more.get(service, {})}, home)
        for service in (nats_access.DOOR, *nats_access.SERVICES, nats_access.VAULT, *only_here)
    )
    return ClusterPlan(bus=bus, services=services, agents=())


def archive_env(file: ServerFile) -> dict[str, str]:
    """Return what tells a process where the archive is, if it is not in the state folder."""
    return {"SKEP_ARCHIVE": file.archive} if file.archive else {}


def bus_urls(file: ServerFile) -> str:
    """Return where the services of a server find the bus: their own machine's first."""
    first, *others = file.mine_first
    own = f"tls://{hostport(local_host(file), first.ports.bus)}"
    return ",".join([own, *(one.url("tls", one.ports.bus) for one in others)])


def local_host(file: ServerFile) -> str:
    """Return where the processes of a server reach one another."""
    return LOCAL_FIRST if file.listen == files.EVERYWHERE else file.listen


def bus_config_path(home: str) -> str:
    """Return where the bus server's configuration is written."""
    return os.path.join(home, NATS, "nats-server.conf")


def tokens_path(home: str) -> str:
    """Return where the gateway finds the operator's own token."""
    return os.path.join(home, nats_access.GATEWAY, "tokens.json")


def node_plan(file: NodeFile, home: str) -> ChildPlan:
    """Return the agent of a node.

    Args:
        file: The node.
        home: The state folder.
    """
    identity = nats_access.node_identity(file.name)
    first, last = file.ports
    state = os.path.join(home, "agent")
    env = {
        **_base(home),
        **_tls(home),
        "SKEP_NATS_URL": file.bus,
        "SKEP_NATS_USER": identity,
        "SKEP_NATS_CREDS": files.creds_path(home, identity),
        "SKEP_STATE": state,
        "SKEP_NODE": file.name,
        "SKEP_ADDRESS": file.address,
        "SKEP_PORTS": f"{first}-{last}",
        "SKEP_DEVICE": file.device,
        "SKEP_GPUS": str(file.gpus),
        "SKEP_GPU_TYPE": file.gpu_type,
        "SKEP_JOB_LOG_DAYS": str(file.job_log_days),
    }
    if file.launcher:
        env["SKEP_LAUNCHER"] = file.launcher
    if file.checkpoints:
        env["SKEP_CHECKPOINTS_DIR"] = file.checkpoints
    return ChildPlan(
        name="agent",
        argv=(sys.executable, "-m", "skep_services.agent"),
        env=env,
        state=state,
        log_path=folder.service_log_path(home, "agent"),
    )


def _service(file: ServerFile, service: str, env: Mapping[str, str], home: str) -> ChildPlan:
    unnumbered = service in (nats_access.DOOR, nats_access.NOTIFIER)
    identity = service if unnumbered else setup.service_identity(file, service)
    state = os.path.join(home, service)
    peers: tuple[str, ...] = ()
    if service in nats_access.REPLICATED:
        every = nats_access.replica_identities(service, file.size)
        peers = tuple(one for one in every if one != identity)
    return ChildPlan(
        name=service,
        argv=(sys.executable, "-m", f"skep_services.{service}"),
        env={
            **env,
            "SKEP_NATS_USER": identity,
            "SKEP_NATS_CREDS": files.creds_path(home, identity),
            "SKEP_STATE": state,
            **({"SKEP_PEERS": ",".join(peers)} if peers else {}),
        },
        state=state,
        log_path=folder.service_log_path(home, service),
        niceness=BUS_NICENESS if service == nats_access.DOOR else None,
    )


def _base(home: str) -> dict[str, str]:
    without = (*NOT_PASSED_ON, *notify.OWN)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return {**kept, "SKEP_HOME": home}


def _tls(home: str) -> dict[str, str]:
    return {
        "SKEP_TLS_CA": files.tls_path(home, files.CA),
        "SKEP_TLS_CERT": files.tls_path(home, files.CERTIFICATE),
        "SKEP_TLS_KEY": files.tls_path(home, files.KEY),
    }
