"""What an administrator decided about the jobs of a node: /etc/skep/launcher.toml, root's own.

The launcher believes this file and nothing else: not its environment, and not the agent. It is read
once, when the launcher starts or is told to reload.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

CONFIG_PATH = "/etc/skep/launcher.toml"
FOLDER = "/var/lib/skep-launcher"
JOBS = "jobs"
SOCKET = "/run/skep-launcher/launcher.sock"

NAMES, DYNAMIC, VC = "names", "dynamic", "vc"
MODES = (NAMES, DYNAMIC, VC)

UID_MIN = 1000
"""Below it are a system's own accounts."""
UID_FLOOR = 500
"""No system gives people less; where an administrator says less, root's helpers would be open."""
UID_MAX = 2**31 - 1
DYNAMIC_FIRST, DYNAMIC_COUNT = 200_000, 10_000
"""Above the accounts of people, below the ranges that user namespaces usually get."""

PERSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

MEMORY, PIDS, CPU, IO, DEVICES, TMP, PROCESSES, PID_NAMESPACE = (
    "memory",
    "pids",
    "cpu",
    "io",
    "devices",
    "tmp",
    "processes",
    "pid-namespace",
)
FEATURES = {
    MEMORY: "no control group bounds the memory of a job",
    PIDS: "no control group bounds how many processes a job has",
    CPU: "no control group shares the processors between jobs",
    IO: "no control group shares the disks between jobs",
    DEVICES: "no control group bounds which devices a job opens",
    TMP: "no mount namespace gives a job its own /tmp and /dev/shm",
    PROCESSES: "no /proc of its own hides the processes of others from a job",
    PID_NAMESPACE: "no PID namespace hides a person's other jobs from a job",
}
"""What keeps jobs apart besides their accounts, and what a node says that lacks it."""
REQUIRED = (MEMORY, PIDS, DEVICES, TMP, PROCESSES)

READ, WRITE = "ro", "rw"
VOLUME_MODES = (READ, WRITE)
"""How a job may use a volume."""

DISK, RAM = "disk", "memory"
"""Where the /tmp of a job is; in memory, its bound is kept by the kernel."""

AUTO, REQUIRE, OFF = "auto", "require", "off"
WISHES = (AUTO, REQUIRE, OFF)
"""Where it can be had; nowhere else does a job start; not at all."""

ROOTLIKE = (
    "root",
    "docker",
    "podman",
    "lxd",
    "incus",
    "libvirt",
    "disk",
    "kmem",
    "shadow",
    "sudo",
    "wheel",
    "adm",
    "systemd-journal",
)
"""Groups whose members are root by another way, or read what is root's. No job is in them."""

GPU_NODES = (r"/dev/nvidia[0-9]+", r"/dev/nvidia-caps/nvidia-cap[0-9]+", r"/dev/dri/renderD[0-9]+")
GPU_COMMON = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/kfd",
)
HIDDEN = (
    "/var/lib/skep",
    "/var/lib/skep-node",
    "/etc/skep",
    "/run/docker.sock",
    "/run/containerd",
    "/run/podman",
    # A service manager of the person's own would start processes outside the job's groups.
    "/run/user",
)

WORKDIRS = ("/home",)
"""Where the workdir of a container may be: it is mounted by an engine that may read everything."""

REPLACED = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - a job sees its own there

SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)")
SHARE = re.compile(r"([0-9]{1,3})%")


class PolicyError(Exception):
    """The file is not to be used: the text says what, where, and what to do."""


class Limits(NamedTuple):
    """What one run may use. Sizes are bytes; 0: no bound."""

    memory: int
    memory_per_device: int
    memory_of_all: int
    pids: int
    pids_of_all: int
    cpu_weight: int
    open_files: int
    locked_memory: int
    core: int
    scratch: int
    scratch_files: int
    shared_memory: int
    copies: int
    disk_free_percent: int


class SharedVolume(NamedTuple):
    """A folder that jobs may ask for by its name; without `vcs` those of every VC may.

    With `mounted` it is used only while something is mounted there.
    """

    path: str
    mode: str
    vcs: Mapping[str, str]
    mounted: bool


class Policy(NamedTuple):
    """An administrator's decisions; see docs/how-to/job-isolation.md."""

    agent: str
    folder: str
    socket: str
    mode: str
    persons: Mapping[str, str]
    vcs: Mapping[str, str]
    uid_min: int
    dynamic_first: int
    dynamic_count: int
    groups_denied: tuple[str, ...]
    limits: Limits
    private_tmp: bool
    tmp_in: str
    hide_processes: bool
    pid_namespace: str
    hidden: tuple[str, ...]
    device_nodes: tuple[str, ...]
    device_common: tuple[str, ...]
    require: tuple[str, ...]
    umask: int
    workdirs: tuple[str, ...]
    volumes: Mapping[str, SharedVolume]

    @property
    def jobs(self) -> str:
        """Return the folder with what jobs and agent share: logs, checkpoints, the socket."""
        return os.path.join(self.folder, JOBS)

    @property
    def state(self) -> str:
        """Return the folder that is root's alone."""
        return os.path.join(self.folder, "state")


def read(path: str) -> Policy:
    """Return what the file says.

    Args:
        path: The file. It and the folders above are root's, and nobody else can write to them.

    Raises:
        PolicyError: It cannot be read, others can write to it, or it says what makes no sense.
    """
    try:
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise PolicyError(message) from error
    folder = os.path.dirname(os.path.abspath(path))
    while folder != "/":
        _check_owner(folder, os.stat(folder))
        folder = os.path.dirname(folder)
    try:
        return parsed(tomllib.loads(text), _memory_of_machine())
    except (tomllib.TOMLDecodeError, PolicyError) as error:
        message = f"{path}: {error}"
        raise PolicyError(message) from error


def _check_owner(path: str, found: os.stat_result) -> None:
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_uid != 0 or (found.st_mode & 0o022 and not sticky):
        message = f"{path} must be root's, and no one else may write to it: chown root, chmod go-w"
        raise PolicyError(message)


def parsed(given: Mapping[str, Any], memory: int) -> Policy:
    """Return the policy that a document stands for.

    Args:
        given: The document.
        memory: What the machine has (bytes), for shares of it.

    Raises:
        PolicyError: It says what makes no sense, or what is not known.
    """
    top = _Table("", given)
    accounts = _Table("accounts", top.take("accounts", dict, {}))
    dynamic = _Table("accounts.dynamic", accounts.take("dynamic", dict, {}))
    limits = _Table("limits", top.take("limits", dict, {}))
    view = _Table("view", top.take("view", dict, {}))
    devices = _Table("devices", top.take("devices", dict, {}))
    made = Policy(
        agent=top.take("agent", str, "skep"),
        folder=_path("folder", top.take("folder", str, FOLDER)),
        socket=_path("socket", top.take("socket", str, SOCKET)),
        mode=_one_of("accounts.mode", accounts.take("mode", str, NAMES), MODES),
        persons=accounts.names("persons"),
        vcs=accounts.names("vcs"),
        uid_min=accounts.number("uid_min", UID_MIN, UID_FLOOR, UID_MAX),
        dynamic_first=dynamic.number("first", DYNAMIC_FIRST, UID_MIN, UID_MAX),
        dynamic_count=dynamic.number("count", DYNAMIC_COUNT, 1, 1_000_000),
        groups_denied=accounts.texts("groups_denied", ROOTLIKE),
        limits=_limits(limits, memory),
        private_tmp=view.take("private_tmp", bool, True),
        tmp_in=_one_of("view.tmp_in", view.take("tmp_in", str, DISK), (DISK, RAM)),
        hide_processes=view.take("hide_processes", bool, True),
        pid_namespace=_one_of("view.pid_namespace", view.take("pid_namespace", str, AUTO), WISHES),
        hidden=tuple(_path("view.hidden", each) for each in view.texts("hidden", HIDDEN)),
        device_nodes=tuple(map(_pattern, devices.texts("nodes", GPU_NODES))),
        device_common=devices.texts("common", GPU_COMMON),
        require=tuple(
            _one_of("require", each, tuple(FEATURES)) for each in top.texts("require", REQUIRED)
        ),
        umask=view.number("umask", 0o077, 0, 0o777),
        workdirs=tuple(_path("view.workdirs", each) for each in view.texts("workdirs", WORKDIRS)),
        volumes=_volumes(top.take("volumes", dict, {})),
    )
    for table in (top, accounts, dynamic, limits, view, devices):
        table.check_all_taken()
    if made.pid_namespace == REQUIRE and PID_NAMESPACE not in made.require:
        made = made._replace(require=(*made.require, PID_NAMESPACE))
    if made.tmp_in == RAM and not made.limits.scratch:
        message = "view.tmp_in is 'memory': say how much in limits.scratch"
        raise PolicyError(message)
    if made.dynamic_first + made.dynamic_count > UID_MAX:
        message = "accounts.dynamic goes beyond the largest uid"
        raise PolicyError(message)
    for name, one in made.volumes.items():
        if made.private_tmp and f"{one.path}/".startswith(REPLACED):
            message = f"volumes.{name} is {one.path}: jobs have a folder of their own there"
            raise PolicyError(message)
        if f"{made.folder}/".startswith(f"{one.path}/"):
            message = f"volumes.{name} is {one.path}, which has the launcher's folder in it"
            raise PolicyError(message)
    if made.private_tmp and made.folder.startswith(REPLACED):
        message = f"folder is {made.folder}: jobs have a /tmp of their own and would not see it"
        raise PolicyError(message)
    return made


def _volumes(given: Mapping[str, Any]) -> Mapping[str, SharedVolume]:
    """Return the volumes that jobs may have, by name.

    Raises:
        PolicyError: One is none, or is in another.
    """
    found: dict[str, SharedVolume] = {}
    for name, entry in given.items():
        if not PERSON.fullmatch(name) or not isinstance(entry, dict):
            message = f"volumes has {name!r} = {entry!r}: a name, and a table with its `path`"
            raise PolicyError(message)
        table = _Table(f"volumes.{name}", entry)
        path = _path(f"volumes.{name}.path", table.take("path", str, ""))
        mode = _one_of(f"volumes.{name}.mode", table.take("mode", str, READ), VOLUME_MODES)
        vcs = table.take("vcs", (list, dict), {})
        if isinstance(vcs, list):
            vcs = dict.fromkeys(table.checked_texts("vcs", vcs), mode)
        for vc, each in vcs.items():
            _one_of(f"volumes.{name}.vcs.{vc}", each, VOLUME_MODES)
        found[name] = SharedVolume(path, mode, vcs, table.take("mounted", bool, False))
        table.check_all_taken()
    ordered = sorted(found, key=lambda name: found[name].path + "/")
    for above, below in itertools.pairwise(ordered):
        if f"{found[below].path}/".startswith(f"{found[above].path}/"):
            message = f"volumes.{below} is in volumes.{above}: rights could not be told apart"
            raise PolicyError(message)
    return found


def _limits(table: _Table, memory: int) -> Limits:
    def size(name: str, default: str) -> int:
        return bytes_of(f"limits.{name}", table.take(name, (str, int), default), memory)

    return Limits(
        memory=size("memory", "90%"),
        memory_per_device=size("memory_per_device", "0"),
        memory_of_all=size("memory_of_all", "95%"),
        pids=table.number("pids", 4096, 8, 4_000_000),
        pids_of_all=table.number("pids_of_all", 0, 0, 4_000_000),
        cpu_weight=table.number("cpu_weight", 100, 1, 10_000),
        open_files=table.number("open_files", 65_536, 64, 1_048_576),
        locked_memory=size("locked_memory", "100%"),
        core=size("core", "0"),
        scratch=size("scratch", "0"),
        scratch_files=table.number("scratch_files", 0, 0, 10_000_000),
        shared_memory=size("shared_memory", "50%"),
        copies=size("copies", "25%"),
        disk_free_percent=table.number("disk_free_percent", 5, 0, 90),
    )


def bytes_of(name: str, text: str | int, memory: int) -> int:
    """Return the bytes that "512M", "90%" (of the machine's memory) or a number stands for.

    Raises:
        PolicyError: It stands for none.
    """
    share = SHARE.fullmatch(str(text))
    if share:
        return memory * int(share[1]) // 100
    match = SIZE.fullmatch(str(text))
    if match is None:
        message = f'{name} is {text!r}: it must be bytes ("512M", "8G") or a share ("90%")'
        raise PolicyError(message)
    return int(match[1]) * SIZES[match[2]]


class _Table:
    """One table of the document, from which each key is taken once."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        self._name, self._left = name, dict(given)

    def take(self, key: str, kind: Any, default: Any) -> Any:
        found = self._left.pop(key, default)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            message = f"{self._dotted(key)} is {found!r}: it is of the wrong kind"
            raise PolicyError(message)
        return found

    def number(self, key: str, default: int, least: int, most: int) -> int:
        found: int = self.take(key, int, default)
        if not least <= found <= most:
            message = f"{self._dotted(key)} is {found}: it must be from {least} to {most}"
            raise PolicyError(message)
        return found

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        return self.checked_texts(key, self.take(key, (list, tuple), default))

    def checked_texts(self, key: str, found: Sequence[Any]) -> tuple[str, ...]:
        if not all(isinstance(each, str) for each in found):
            message = f"{self._dotted(key)} must be a list of texts"
            raise PolicyError(message)
        return tuple(found)

    def names(self, key: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.take(key, dict, {})
        for name, account in found.items():
            if not PERSON.fullmatch(name) or not isinstance(account, str):
                message = f"{self._dotted(key)} has {name!r} = {account!r}: a name and an account"
                raise PolicyError(message)
        return found

    def check_all_taken(self) -> None:
        if self._left:
            known = ", ".join(map(self._dotted, sorted(self._left)))
            message = f"{known}: not known; is it misspelt?"
            raise PolicyError(message)

    def _dotted(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def _one_of(name: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        message = f"{name} is {text!r}: it must be one of {', '.join(known)}"
        raise PolicyError(message)
    return text


def _path(name: str, text: str) -> str:
    if not os.path.isabs(text) or os.path.normpath(text) != text or text == "/":
        message = f"{name} is {text!r}: it must be a full path"
        raise PolicyError(message)
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        message = f"devices.nodes has {text!r}: {error}"
        raise PolicyError(message) from error
    if not text.startswith("/dev/"):
        message = f"devices.nodes has {text!r}: it must begin with /dev/"
        raise PolicyError(message)
    return text


def _memory_of_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
