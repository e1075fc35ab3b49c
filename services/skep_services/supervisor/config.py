"""What an embedded cluster consists of: from the command line and a file to `cluster.json`.

Everything here is checked before anything is started. Options that are not given keep what the
state folder says, so `skep up` resumes what was there.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from skep.cells.levels import devices_of, gpus_owned
from skep.ids import is_token
from skep.policy.check import parse_cluster, policy_problems
from skep.wire.admin import QUOTA_MAX, vcs_problems
from skep.wire.cluster import QUARANTINE, Chain, Pin, QuarantineRule, VirtualCluster
from skep.wire.cluster import Cluster as Cells
from skep.wire.volumes import Volume
from skep_services.pki.files import TlsFiles, named_files
from skep_services.supervisor.home import CLUSTER_VERSION

NODES_DEFAULT = 2
GPUS_DEFAULT = 4
GATEWAY_PORT_DEFAULT = 8470
HOST = "127.0.0.1"
VC_DEFAULT = "default"

NODES_MAX = 64
"""Each node is an agent process of some 50 MB; a larger cluster does not fit one machine."""

GPUS_MAX = 64
"""Slots of one node. The largest machines have 16 GPUs; CPU slots beyond the cores gain nothing."""

VCS_MAX = 1000
"""Each virtual cluster is a user of the bus; the whole list travels in one message."""

PORT_FIRST, PORT_LAST = 20_000, 31_999
"""Where gangs meet. Above are the ports the kernel gives to outgoing connections."""

PORTS_PER_NODE_MAX = 500
"""Gangs that may run on one node at once, several times over: a port is not used twice in a row."""

DAYS_MAX = 36_500
"""How long anything may be asked to be kept: a century."""

TOKEN_BYTES = 24
"""Long enough not to be guessed, short enough for a command line."""

assert (PORT_LAST + 1 - PORT_FIRST) // NODES_MAX >= 100


class ConfigError(Exception):
    """What was asked for cannot be; the text says what, where, and what would do."""


class NodeConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One agent. `gpus` counts its devices; `auto` takes what the driver reports."""

    name: str
    gpus: int | Literal["auto"] = GPUS_DEFAULT
    device: Literal["cpu", "fake", "cuda"] = "cpu"
    gpu_type: str = "cpu"
    ports: tuple[int, int] = (0, 0)


class Nats(msgspec.Struct, kw_only=True):
    """The bus: its address (of several servers, with commas), and the password of each identity.

    `tenants` is the address of the door, by which tenants reach it; empty where there is none.
    `ca`, `certificate` and `key` are files in PEM with which what is encrypted is reached from this
    folder; empty: nothing is encrypted.
    """

    url: str
    users: dict[str, str]
    tenants: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def tls(self) -> TlsFiles | None:
        """The files with which the bus is reached; None: it is not encrypted."""
        return named_files(self.ca, self.certificate, self.key)


class Gateway(msgspec.Struct, kw_only=True):
    """The gateway: its address, and the owner of each token (`operator`, `vc-<vc>`).

    `ca` is the file of the CA that it is believed by; empty: those of the system are.
    """

    url: str
    tokens: dict[str, str]
    ca: str = ""


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long things are kept where they are, in days; 0: for ever.

    After `archive_days` messages of the bus go to packed files, behind snapshots. After
    `job_log_days` the logs of jobs that have ended are removed from their nodes.
    """

    archive_days: int = 0
    job_log_days: int = 0

    def problem(self) -> str:
        """Return what is wrong with it, in words; empty if nothing is."""
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) <= DAYS_MAX:
                return f"retention.{name} must be 0 (for ever) to {DAYS_MAX} days"
        return ""


class Running(msgspec.Struct, kw_only=True):
    """The supervisor: `error` says why its state is failed.

    `state` is starting, running, stopping, stopped or failed.
    """

    pid: int = 0
    start_ticks: int = 0
    state: str = "starting"
    error: str = ""


class Cluster(msgspec.Struct, kw_only=True):
    """The content of `cluster.json`."""

    version: int = CLUSTER_VERSION
    nats: Nats
    gateway: Gateway
    nodes: list[NodeConfig]
    vcs: dict[str, VirtualCluster]
    chains: dict[str, Chain] = {}
    """What the cells are made of; without any the nodes make them up."""
    pins: dict[str, Pin] = {}
    quarantine: QuarantineRule = QUARANTINE
    volumes: dict[str, Volume] = {}
    tenants: list[str] = []
    """Virtual clusters made since (`skep vc apply`): they have credentials as those of `vcs`."""
    secrets: bool = False
    """Whether it keeps secrets: then the vault runs."""
    people: bool = False
    """Whether it has people: then the access service runs."""
    notify: str = ""
    """The operator's file of targets: with one the notifier runs."""
    retention: Retention = Retention()
    supervisor: Running = msgspec.field(default_factory=Running)

    @property
    def cells(self) -> Cells:
        """Return the cells and their owners, as a cluster file has them."""
        return Cells(
            chains=self.chains,
            pins=self.pins,
            vcs=self.vcs,
            quarantine=self.quarantine,
            volumes=self.volumes,
        )

    @property
    def vcs_with_credentials(self) -> list[str]:
        """Return every virtual cluster whose people have credentials."""
        return list(dict.fromkeys((*self.vcs, *self.tenants)))

    def gpus(self) -> int | None:
        """Return the GPUs of all nodes, or None where a driver has to be asked."""
        counts = [node.gpus for node in self.nodes]
        return None if "auto" in counts else sum(count for count in counts if count != "auto")


class Wishes(msgspec.Struct, kw_only=True, frozen=True):
    """What the command line asks for; None for what it does not say.

    `chains`, `pins`, `quarantine` and `volumes` come with `vcs`, which are about them.
    """

    nodes: int | None = None
    gpus: int | Literal["auto"] | None = None
    device: Literal["cpu", "fake", "cuda"] | None = None
    gpu_type: str | None = None
    vcs: dict[str, VirtualCluster] | None = None
    chains: dict[str, Chain] = {}
    pins: dict[str, Pin] = {}
    quarantine: QuarantineRule = QUARANTINE
    volumes: dict[str, Volume] = {}
    port: int | None = None
    policy: str | None = None
    secrets: bool | None = None
    people: bool | None = None
    notify: str | None = None
    node_list: tuple[NodeConfig, ...] | None = None
    retention: Retention | None = None

    def given(self) -> bool:
        """Return whether anything was asked for."""
        return self != Wishes()


class ClusterFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `skep up --cluster FILE` reads beside what every cluster file has."""

    nodes: tuple[NodeConfig, ...] | None = None
    port: int | None = None
    retention: Retention | None = None


def read_file(tree: Any, source: str) -> Wishes:
    """Return the wishes in a cluster file: cells, and by `nodes`, `port`, `retention` what to run.

    Without `nodes` those of the chains are started, with CPU slots for their GPUs.

    Args:
        tree: The content of the file.
        source: What the file is called in errors.

    Raises:
        ConfigError: The file has mistakes, or does not say what a node is.
    """
    extra = dict.fromkeys(ClusterFile.__struct_fields__)
    own = isinstance(tree, dict) and {key: tree[key] for key in tree if key in extra}
    try:
        file = msgspec.convert(own or {}, ClusterFile)
    except msgspec.ValidationError as error:
        text = f"{source}: {error}"
        raise ConfigError(text) from None
    if file.retention is not None and (problem := file.retention.problem()):
        text = f"{source}: {problem}"
        raise ConfigError(text)
    if isinstance(tree, dict):
        tree = {key: tree[key] for key in tree if key not in extra}
    cells = parse_cluster(tree)
    if isinstance(cells, list):
        told = "; ".join(f"{one.path}: {one.text}" for one in cells)
        text = f"{source}: {told}"
        raise ConfigError(text)
    return Wishes(
        node_list=file.nodes or _nodes_of(cells, source),
        vcs=cells.vcs or None,
        chains=cells.chains,
        pins=cells.pins,
        quarantine=cells.quarantine,
        volumes=cells.volumes,
        port=file.port,
        retention=file.retention,
    )


def _nodes_of(cells: Cells, source: str) -> tuple[NodeConfig, ...] | None:
    """Return an agent for each node of the chains; None without chains.

    Raises:
        ConfigError: A node is in two chains.
    """
    found: dict[str, NodeConfig] = {}
    for chain in cells.chains.values():
        for at, cell in enumerate(chain.nodes):
            if cell.node in found:
                text = f"{source}: {cell.node} is in two chains: say by `nodes` what it is"
                raise ConfigError(text)
            gpus = max(devices_of(chain, at)) + 1
            found[cell.node] = NodeConfig(name=cell.node, gpus=gpus, gpu_type=chain.gpu)
    return tuple(found.values()) or None


def parse_vc(text: str) -> tuple[str, VirtualCluster]:
    """Return the name and the virtual cluster in `NAME=GPUS`.

    Raises:
        ConfigError: The text is not of that form.
    """
    name, mark, count = text.partition("=")
    if not mark or not (count.isascii() and count.isdecimal()):
        message = f"--vc {text}: write NAME=GPUS, as research=6"
        raise ConfigError(message)
    return name, VirtualCluster(gpus=int(count))


def parse_ports(text: str) -> tuple[int, int]:
    """Return the first and the last port of `FIRST-LAST`.

    Raises:
        ConfigError: The text is no range of ports from 1024 to 65535.
    """
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535:
        return int(first), int(last)
    message = f"SKEP_PORTS is {text!r}: it must be a range such as 20000-20499"
    raise ConfigError(message)


def settle(
    before: Cluster | None,
    wishes: Wishes,
    home: str,
    ports: tuple[int, int] = (PORT_FIRST, PORT_LAST),
) -> Cluster:
    """Return the cluster to run: what was before, changed by the wishes.

    Addresses are those of before; whatever starts the cluster sees to it that their ports are free.

    Args:
        before: The cluster as the state folder has it; None: there is none. Its nodes' ports, its
            gateway's address and its tokens are changed.
        wishes: What is asked for.
        home: The state folder, by which the nodes' ports are chosen.
        ports: The first and the last port on which gangs meet; every node gets its part.

    Raises:
        ConfigError: What is asked for cannot be.
    """
    nodes = _nodes(before, wishes)
    _check_nodes(nodes)
    _give_ports(nodes, home, ports)
    vcs = _vcs(before, wishes, nodes)
    if wishes.policy is not None:
        vcs = {name: replace(vc, policy=wishes.policy, options={}) for name, vc in vcs.items()}
    _check_vcs(vcs)
    cells: Wishes | Cluster | None = wishes if wishes.vcs is not None else before
    if wishes.port is not None and not 0 <= wishes.port <= 65535:
        text = f"--port {wishes.port}: a port is 1 to 65535 (0: any that is free)"
        raise ConfigError(text)
    port = GATEWAY_PORT_DEFAULT if wishes.port is None else wishes.port
    nats = before.nats if before else Nats(url="", users={})
    gateway = before.gateway if before else Gateway(url=f"http://{HOST}:{port}", tokens={})
    if wishes.port is not None:
        gateway.url = f"http://{HOST}:{port}"
    # Cells that are set here begin anew; those that were set meanwhile stay otherwise.
    tenants = before.tenants if before is not None and wishes.vcs is None else []
    owners = ["operator", *(f"vc-{vc}" for vc in dict.fromkeys((*vcs, *tenants)))]
    gateway.tokens = {name: gateway.tokens.get(name) or new_token() for name in owners}
    kept = before.secrets if before is not None else False
    peopled = before.people if before is not None else False
    return Cluster(
        secrets=kept if wishes.secrets is None else wishes.secrets,
        people=peopled if wishes.people is None else wishes.people,
        notify=(before.notify if before else "") if wishes.notify is None else wishes.notify,
        tenants=tenants,
        nats=nats,
        gateway=gateway,
        nodes=nodes,
        vcs=vcs,
        chains=cells.chains if cells is not None else {},
        pins=cells.pins if cells is not None else {},
        quarantine=cells.quarantine if cells is not None else QUARANTINE,
        volumes=wishes.volumes or (cells.volumes if cells is not None else {}),
        retention=wishes.retention or (before.retention if before else Retention()),
    )


def new_token() -> str:
    """Return a secret for one tenant."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def warnings(cluster: Cluster) -> list[str]:
    """Return what is allowed and yet probably not meant."""
    total = cluster.gpus()
    if total is None:
        return []
    owned = {vc: gpus_owned(cluster.cells, vc) for vc in cluster.vcs}
    promised = sum(owned.values())
    told = []
    if promised > total:
        told.append(
            f"the virtual clusters are promised {promised} GPUs and there are {total}: "
            "the larger promises are cut until there are more"
        )
    told += [
        f"virtual cluster {vc} has no GPUs: only its opportunistic jobs can run"
        for vc, gpus in owned.items()
        if gpus == 0
    ]
    return told


def _nodes(before: Cluster | None, wishes: Wishes) -> list[NodeConfig]:
    if wishes.node_list is not None:
        return [msgspec.structs.replace(node) for node in wishes.node_list]
    changed = (wishes.nodes, wishes.gpus, wishes.device, wishes.gpu_type)
    if before and all(wish is None for wish in changed):
        return before.nodes
    model = before.nodes[0] if before and before.nodes else None
    count = wishes.nodes if wishes.nodes is not None else len(before.nodes) if before else None
    device = wishes.device or (model.device if model else "cpu")
    gpus = wishes.gpus if wishes.gpus is not None else (model.gpus if model else None)
    if gpus is None:
        gpus = "auto" if device == "cuda" else GPUS_DEFAULT
    if count is None:
        # The devices of this machine exist once: a second node could only claim them again.
        count = 1 if device == "cuda" else NODES_DEFAULT
    gpu_type = wishes.gpu_type or (model.gpu_type if model and model.device == device else device)
    return [
        NodeConfig(name=f"node-{number}", gpus=gpus, device=device, gpu_type=gpu_type)
        for number in range(1, min(count, NODES_MAX + 1) + 1)
    ]


def _check_nodes(nodes: Sequence[NodeConfig]) -> None:
    if not 1 <= len(nodes) <= NODES_MAX:
        many = f"more than {NODES_MAX}" if nodes else "0"
        text = f"{many} nodes: one machine runs 1 to {NODES_MAX}"
        raise ConfigError(text)
    seen: dict[str, bool] = {}
    for node in nodes:
        if not is_token(node.name):
            text = f"{node.name!r} is no name for a node (letters, digits, _, -; 63 at most)"
            raise ConfigError(text)
        if node.name in seen:
            text = f"two nodes are called {node.name}"
            raise ConfigError(text)
        if node.name in RESERVED_NAMES:
            text = f"a node cannot be called {node.name}: a service is"
            raise ConfigError(text)
        seen[node.name] = True
        if node.gpus == "auto":
            if node.device != "cuda":
                text = f"{node.name}: `auto` GPUs need --device cuda; CPU slots are counted out"
                raise ConfigError(text)
        elif not 1 <= node.gpus <= GPUS_MAX:
            text = f"{node.name}: {node.gpus} GPUs; a node has 1 to {GPUS_MAX}"
            raise ConfigError(text)
        if not 1 <= len(node.gpu_type) <= 64 or not node.gpu_type.isprintable():
            text = f"{node.name}: a GPU type is 1 to 64 printable characters"
            raise ConfigError(text)


RESERVED_NAMES = (
    "admission",
    "advisor",
    "allocator",
    "door",
    "gateway",
    "introspector",
    "searches",
    "vault",
    "nats",
    "notifier",
    "lock",
)
"""Folders and files of the state folder that a node's own folder must not be."""


def _give_ports(nodes: Sequence[NodeConfig], home: str, ports: tuple[int, int]) -> None:
    """Give each node its own range: another for each state folder, so that clusters seldom meet.

    Raises:
        ConfigError: There are fewer ports than nodes.
    """
    begins, ends = ports
    every = ends + 1 - begins
    if every < len(nodes):
        text = f"{every} ports for gangs are too few for {len(nodes)} nodes: widen SKEP_PORTS"
        raise ConfigError(text)
    width = min(PORTS_PER_NODE_MAX, every // len(nodes))
    places = every // width
    begin = zlib.crc32(home.encode()) % places
    for index, node in enumerate(nodes):
        first = begins + (begin + index) % places * width
        node.ports = (first, first + width - 1)


def _vcs(
    before: Cluster | None, wishes: Wishes, nodes: Sequence[NodeConfig]
) -> dict[str, VirtualCluster]:
    if wishes.vcs is not None:
        return wishes.vcs
    counts = [node.gpus for node in nodes]
    # What a driver reports is not known yet; the quota then bounds nothing.
    total = QUOTA_MAX if "auto" in counts else sum(count for count in counts if count != "auto")
    if before is None:
        return {VC_DEFAULT: VirtualCluster(gpus=total)}
    known, was = before.vcs.get(VC_DEFAULT), before.gpus()
    if known is None or len(before.vcs) > 1:
        return before.vcs
    gpus = QUOTA_MAX if was is None else was
    plain = VirtualCluster(gpus=gpus, policy=known.policy, options=known.options)
    return {VC_DEFAULT: replace(known, gpus=total)} if known == plain else before.vcs


def _check_vcs(vcs: dict[str, VirtualCluster]) -> None:
    if not 1 <= len(vcs) <= VCS_MAX:
        text = f"{len(vcs)} virtual clusters; there are 1 to {VCS_MAX}"
        raise ConfigError(text)
    for problem in (*vcs_problems(vcs), *policy_problems(Cells(vcs=vcs))):
        text = f"{problem.path.removeprefix('$.')}: {problem.text}"
        text = f"{text}; {problem.suggestion}" if problem.suggestion else text
        raise ConfigError(text)
