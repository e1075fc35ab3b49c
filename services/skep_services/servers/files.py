"""What a server and a node keep on disk: `server.json`, `node.json`, and where all else is.

HOME/server.json      the cluster, this server, and the other servers
HOME/cluster.json     addresses and the operator's token, for the `skep` command
HOME/keys/            the authority, and what signs identities on the bus; secret
HOME/tls/             this machine's certificate, its key, and the authority's certificate
HOME/creds/NAME.creds the identity of one service on the bus
HOME/node.json        (of a node) its name, its devices, and the servers
"""

from __future__ import annotations

import os
import re
from typing import Literal, TypeVar

import msgspec

from skep.ids import is_token
from skep.wire.bounds import UNDECODABLE
from skep.wire.cluster import QUARANTINE, Chain, Pin, QuarantineRule, VirtualCluster
from skep.wire.volumes import Volume
from skep_services import durable
from skep_services.servers.address import hostport, is_host
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import Retention

SERVER_HOME = folder.SERVER_HOME
NODE_HOME = "/var/lib/skep-node"
EVERYWHERE = "*"
"""What a server listens on by default: every address of the machine, of IPv4 and IPv6."""

GANG_PORTS = (20_000, 20_499)
"""Where ranks of a gang meet on a node, if nothing else is said."""

FOLDER = re.compile(r"(/[A-Za-z0-9_.-]+)+")
"""A folder that a unit of systemd can name as it is."""

SIZES = (1, 3)
"""How many servers a cluster has: two cannot lose one either."""

Device = Literal["cpu", "fake", "cuda"]

FileT = TypeVar("FileT", "ServerFile", "NodeFile")


class FilesError(Exception):
    """A file of a server or a node is missing or wrong; the text is one line for a person."""


class Ports(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TCP ports of a server. `monitor` is on loopback only."""

    gateway: int = 8470
    servers: int = 8471
    bus: int = 4222
    door: int = 4223
    routes: int = 6222

    def __post_init__(self) -> None:
        numbers = [getattr(self, name) for name in self.__struct_fields__]
        if not all(1 <= number <= 65535 for number in numbers):
            text = "a port is 1 to 65535"
            raise ValueError(text)
        if len(dict.fromkeys(numbers)) < len(numbers):
            text = "two parts of a server cannot have one port"
            raise ValueError(text)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `hosts` are its names and addresses; the first is the one that others use."""

    name: str
    hosts: tuple[str, ...]
    ports: Ports = Ports()

    def url(self, scheme: str, port: int) -> str:
        """Return the address of one of its ports."""
        return f"{scheme}://{hostport(self.hosts[0], port)}"


class ServerFile(msgspec.Struct, kw_only=True):
    """The content of `server.json`. `size` is how many servers the cluster has when it is whole.

    `revision` counts changes of `members`.

    `vcs`, `chains`, `pins`, `quarantine` and `volumes` are what the first server publishes once, at
    the first start of the cluster; after that `skep vc apply` says what holds.

    `retention` is carried out by server-1. `archive` is the folder of what was archived; empty: it
    is in the state folder. Servers of a cluster of three share it.
    """

    version: int = 1
    cluster: str
    name: str
    size: int = 1
    revision: int = 1
    members: list[Member]
    listen: str = EVERYWHERE
    vcs: dict[str, VirtualCluster] = {}
    chains: dict[str, Chain] = {}
    pins: dict[str, Pin] = {}
    quarantine: QuarantineRule = QUARANTINE
    volumes: dict[str, Volume] = {}
    retention: Retention = Retention()
    archive: str = ""
    awaits_streams: bool = False
    """A backup was restored into the cluster's first folder, and its streams are yet to come."""

    @property
    def me(self) -> Member:
        """Return this server."""
        return next(one for one in self.members if one.name == self.name)

    @property
    def number(self) -> int:
        """Return this server's place among the servers, from 1."""
        return int(self.name.rpartition("-")[2])

    @property
    def whole(self) -> bool:
        """Return whether all servers have joined."""
        return len(self.members) == self.size

    @property
    def mine_first(self) -> list[Member]:
        """Return all servers, this one first."""
        return sorted(self.members, key=lambda one: (one.name != self.name, one.name))


class NodeFile(msgspec.Struct, kw_only=True):
    """The content of `node.json`. `gpus` counts its devices; `auto` takes what the driver reports.

    `bus` and `gateways` are addresses of the servers, with commas. `address` is where ranks of
    other nodes reach this one.
    """

    version: int = 1
    cluster: str
    name: str
    address: str
    bus: str
    gateways: str
    device: Device = "cpu"
    gpus: int | Literal["auto"] = 1
    gpu_type: str = "cpu"
    ports: tuple[int, int] = GANG_PORTS
    checkpoints: str = ""
    launcher: str = ""
    """The socket of the launcher; empty: jobs run as the agent's own account."""
    job_log_days: int = 0
    """After how many days logs of jobs that have ended are removed; 0: never."""


def server_path(home: str) -> str:
    """Return where a server's own description is."""
    return os.path.join(home, "server.json")


def node_path(home: str) -> str:
    """Return where a node's own description is."""
    return os.path.join(home, "node.json")


def keys_path(home: str) -> str:
    """Return the folder of the authority and of what signs identities."""
    return os.path.join(home, "keys")


def tls_path(home: str, name: str = "") -> str:
    """Return the folder of this machine's certificate, or a file in it."""
    return os.path.join(home, "tls", name) if name else os.path.join(home, "tls")


CA, CERTIFICATE, KEY = "ca.pem", "own.pem", "own.key"
"""Files of the folder `tls`."""


def creds_path(home: str, identity: str) -> str:
    """Return the file with an identity on the bus."""
    return os.path.join(home, "creds", f"{identity}.creds")


def read_server(home: str) -> ServerFile:
    """Return what `server.json` says.

    Raises:
        FilesError: There is no such file, or it cannot be used.
    """
    found = _read(server_path(home), ServerFile)
    if found is None:
        text = f"no server in {home}: `skep server init`, or `skep server join TOKEN@HOST`"
        raise FilesError(text)
    check_retention(found, server_path(home))
    return found


def check_retention(file: ServerFile, source: str) -> None:
    """Refuse what cannot be archived.

    Args:
        file: The server.
        source: What its file is called in errors.

    Raises:
        FilesError: A number is out of range, or several servers would have an archive each.
    """
    if problem := file.retention.problem():
        text = f"{source}: {problem}"
        raise FilesError(text)
    if file.archive and not FOLDER.fullmatch(file.archive):
        text = f"{source}: archive {file.archive!r}: write a whole path of letters, digits, ., _, -"
        raise FilesError(text)
    if file.retention.archive_days and file.size > 1 and not file.archive:
        text = (
            f"{source}: retention.archive_days of {file.size} servers needs `archive`: a folder "
            "that all of them share, for each reads what any of them archived"
        )
        raise FilesError(text)


def has_server(home: str) -> bool:
    """Return whether a server was made in a folder."""
    return os.path.exists(server_path(home))


def has_node(home: str) -> bool:
    """Return whether a node joined from a folder."""
    return os.path.exists(node_path(home))


def read_node(home: str) -> NodeFile:
    """Return what `node.json` says.

    Raises:
        FilesError: There is no such file, or it cannot be used.
    """
    found = _read(node_path(home), NodeFile)
    if found is None:
        text = f"no node in {home}: `skep node join TOKEN@HOST`"
        raise FilesError(text)
    if problem := Retention(job_log_days=found.job_log_days).problem():
        text = f"{node_path(home)}: {problem.removeprefix('retention.')}"
        raise FilesError(text)
    return found


def write(path: str, value: msgspec.Struct) -> None:
    """Replace `server.json` or `node.json`, durably and readable by its owner only."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    durable.write(path, text, folder.FILE_MODE)


def make_folders(home: str, *names: str) -> None:
    """Make the state folder and folders in it, private to their owner.

    Raises:
        FilesError: They cannot be made or written.
    """
    try:
        for path in (home, *(os.path.join(home, name) for name in names)):
            os.makedirs(path, mode=folder.FOLDER_MODE, exist_ok=True)
            os.chmod(path, folder.FOLDER_MODE)
    except OSError as error:
        text = f"{error.filename} cannot be made ({error.strerror}): use --home DIR, or be root"
        raise FilesError(text) from None


def _read(path: str, kind: type[FileT]) -> FileT | None:
    try:
        with open(path, "rb") as file:
            found = msgspec.json.decode(file.read(), type=kind)
    except FileNotFoundError:
        return None
    except PermissionError:
        text = f"{path} may not be read: run this as root or as the account that owns it"
        raise FilesError(text) from None
    except (OSError, *UNDECODABLE) as error:
        text = f"{path} cannot be used: {error}"
        raise FilesError(text) from None
    if found.version != 1:
        text = f"{path} is of another version of Skep ({found.version}): install that one"
        raise FilesError(text)
    return found


def check_name(name: str, what: str) -> str:
    """Return a name.

    Args:
        name: The name.
        what: What it names, for the error.

    Raises:
        FilesError: It is no name.
    """
    if not is_token(name):
        text = f"{name!r} is no name for a {what} (letters, digits, _, -; 63 at most): use --name"
        raise FilesError(text)
    return name


def check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return names and addresses of a machine.

    Raises:
        FilesError: One of them is neither a name nor an address.
    """
    for host in hosts:
        if not is_host(host):
            text = f"--host {host}: neither a host name nor an address of IPv4 or IPv6"
            raise FilesError(text)
    return tuple(dict.fromkeys(hosts))
