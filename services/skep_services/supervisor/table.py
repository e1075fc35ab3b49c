"""Which processes make a cluster, and what each of them is told by its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from skep_services.supervisor import home as folder
from skep_services.supervisor.config import HOST, Cluster, NodeConfig

SERVICES = ("door", "admission", "allocator", "introspector", "advisor", "searches", "gateway")
VAULT = "vault"
"""The service that only a cluster with secrets has."""
ACCESS = "access"
"""The service that only a cluster with people has."""
NOTIFIER = "notifier"
"""The service that only a cluster with targets of notices has."""
NATS = "nats"
WARM_NODES_MAX = 4
"""Nodes of one machine that each have a warm process; of more, their memory would add up."""

NOT_PASSED_ON = (
    "SKEP_API",
    "SKEP_TOKEN",
    "SKEP_VC",
    "SKEP_LOCK_FD",
    "SKEP_PORT_FDS",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "SKEP_JOB",
    "SKEP_NAME",
    "SKEP_GEN",
    "SKEP_RUN",
    "SKEP_RANK",
    "SKEP_WORLD",
    "SKEP_SOCK",
    "SKEP_IMPORTS",
    "SKEP_DEVICES",
    "SKEP_NODE_STATE",
)
"""What belongs to the caller of `skep up`: the cluster it uses, or the job that it is itself."""


BUS_NICENESS = -10
"""All wait for the bus, which mostly waits for the disk: it never takes much, but on a busy
machine it would get its even share late. The same as the runners', which jobs must not hold up."""


class ChildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One process to keep up.

    It is ready once something listens on `port` of `host`, or, without a port, once its log has a
    JSON line whose `event` is `ready`. `state` is its own folder, made before it starts.
    `niceness` is what it runs at if that is permitted, None for the supervisor's own.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    state: str
    log_path: str
    host: str = HOST
    port: int = 0
    niceness: int | None = None


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Every process of a cluster. `bus` is up before the others start, and stops last."""

    bus: ChildPlan
    services: tuple[ChildPlan, ...]
    agents: tuple[ChildPlan, ...]

    def every(self) -> tuple[ChildPlan, ...]:
        """Return all of them, in the order in which they start."""
        return (self.bus, *self.services, *self.agents)


def nats_config_path(home: str) -> str:
    """Return where the bus server's configuration is written."""
    return os.path.join(home, NATS, "nats-server.conf")


def tokens_path(home: str) -> str:
    """Return where the gateway finds the owner of each token."""
    return os.path.join(home, "gateway", "tokens.json")


def port_of(url: str) -> int:
    """Return the port of an address, 0 if it has none."""
    _, _, port = url.rpartition(":")
    return int(port) if port.isdecimal() else 0


def cluster_plan(cluster: Cluster, home: str, nats_server: str) -> ClusterPlan:
    """Return the processes of a cluster.

    Args:
        cluster: The cluster.
        home: The state folder.
        nats_server: The path of the bus server's executable.
    """
    base = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    base["SKEP_HOME"] = home
    base.setdefault("SKEP_ARCHIVE", folder.archive_path(home))
    bus = ChildPlan(
        name=NATS,
        argv=(nats_server, "-c", nats_config_path(home)),
        env=base,
        state=os.path.join(home, NATS),
        log_path=folder.service_log_path(home, NATS),
        port=port_of(cluster.nats.url),
        niceness=BUS_NICENESS,
    )
    more = {
        "door": {"SKEP_LISTEN": f"{HOST}:{port_of(cluster.nats.tenants)}"},
        "gateway": {
            "SKEP_LISTEN": f"{HOST}:{port_of(cluster.gateway.url)}",
            "SKEP_TOKENS": tokens_path(home),
            "SKEP_PEOPLE": "on" if cluster.people else "off",
        },
        NOTIFIER: {"SKEP_NOTIFY": cluster.notify},
    }
    only_here = (
        *((VAULT,) if cluster.secrets else ()),
        *((ACCESS,) if cluster.people else ()),
        *((NOTIFIER,) if cluster.notify else ()),
    )
    return ClusterPlan(
        bus=bus,
        services=tuple(
            _python(name, name, name, {**base, **more.get(name, {})}, cluster, home)
            for name in (*SERVICES, *only_here)
        ),
        agents=tuple(_agent(node, base, cluster, home) for node in cluster.nodes),
    )


def _agent(node: NodeConfig, base: Mapping[str, str], cluster: Cluster, home: str) -> ChildPlan:
    first, last = node.ports
    # What one node kept for itself, an attempt that begins on another would not find. With a
    # launcher, jobs cannot enter the folder of the cluster.
    shared = {"SKEP_CHECKPOINTS_DIR": folder.checkpoints_path(home)}
    env = {
        **({} if base.get("SKEP_LAUNCHER") else shared),
        "SKEP_JOB_LOG_DAYS": str(cluster.retention.job_log_days),
        "SKEP_WARM_PROCESSES": "1" if len(cluster.nodes) <= WARM_NODES_MAX else "0",
        **base,
        "SKEP_NODE": node.name,
        "SKEP_GPUS": str(node.gpus),
        "SKEP_DEVICE": node.device,
        "SKEP_GPU_TYPE": node.gpu_type,
        "SKEP_ADDRESS": HOST,
        "SKEP_PORTS": f"{first}-{last}",
    }
    return _python(node.name, "agent", f"node-{node.name}", env, cluster, home)


def _python(
    name: str, module: str, identity: str, env: Mapping[str, str], cluster: Cluster, home: str
) -> ChildPlan:
    state = os.path.join(home, name)
    return ChildPlan(
        name=name,
        argv=(sys.executable, "-m", f"skep_services.{module}"),
        env={
            **env,
            "SKEP_NATS_URL": cluster.nats.url,
            "SKEP_NATS_USER": identity,
            "SKEP_NATS_PASSWORD": cluster.nats.users[identity],
            "SKEP_STATE": state,
        },
        state=state,
        log_path=folder.service_log_path(home, name),
        niceness=BUS_NICENESS if module == "door" else None,
    )
