"""The control groups of jobs: of version 2 where it has the controllers, of version 1 elsewhere.

Each run has a group of its own, named by its number, below one group for all jobs of this launcher.
A machine may have version 1 for its controllers and version 2 beside it without any (systemd calls
that hybrid); then a run has groups in both: limits by the first, freezing, killing and the list of
its processes by the second.

The groups are below the root of each hierarchy and not below the launcher's own group: the jobs
outlive it, and a service manager ends what is left in a service's group. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skep_services.launcher import policy
from skep_services.launcher.device_filter import attach, legacy_rules
from skep_services.launcher.policy import Limits

V2_CONTROLLERS = {policy.MEMORY: "memory", policy.PIDS: "pids", policy.CPU: "cpu", policy.IO: "io"}
V1_CONTROLLERS = {
    policy.MEMORY: "memory",
    policy.PIDS: "pids",
    policy.CPU: "cpu",
    policy.IO: "blkio",
    policy.DEVICES: "devices",
}
IO_FILES = ("io.weight", "blkio.weight")
SHARES_PER_WEIGHT = 1024 / 100
"""What version 1 calls 1024 is 100 in version 2."""


class Mounted(NamedTuple):
    """Where the hierarchies are: version 2 (empty: nowhere), and version 1 by controller."""

    unified: str
    legacy: Mapping[str, str]


def mounted(mountinfo: str) -> Mounted:
    """Return where the hierarchies of control groups are.

    Args:
        mountinfo: The text of /proc/self/mountinfo.
    """
    unified, legacy = "", {}
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields:
            continue
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup2":
            unified = unified or fields[4]
        elif kind == "cgroup":
            legacy.update(dict.fromkeys(options, fields[4]))
    return Mounted(unified, legacy)


class Groups:
    """The groups of one launcher's jobs, below those named `name`."""

    def __init__(self, found: Mounted, name: str, limits: Limits) -> None:
        """Make the groups that hold those of the jobs; what cannot be made is not there."""
        self._limits, self._name = limits, name
        self.unified = _folder(os.path.join(found.unified, name)) if found.unified else ""
        self._legacy: dict[str, str] = {}
        self.features: dict[str, bool] = dict.fromkeys(policy.FEATURES, False)
        for feature, controller in V2_CONTROLLERS.items():
            if self.unified and self._enable(found.unified, controller):
                self.features[feature] = True
        for feature, controller in V1_CONTROLLERS.items():
            if not self.features[feature] and controller in found.legacy:
                path = _folder(os.path.join(found.legacy[controller], name))
                if path:
                    self._legacy[feature] = path
                    self.features[feature] = True
        folder = self._legacy.get(policy.IO, self.unified)
        name = IO_FILES[policy.IO in self._legacy]
        if not os.access(os.path.join(folder, name), os.W_OK):
            self.features[policy.IO] = False  # Not every scheduler of disks shares by weight.
            self._legacy.pop(policy.IO, None)
        if not self.features[policy.DEVICES] and self.unified:
            self.features[policy.DEVICES] = self._filters_devices()
        self._bound_all()

    def _enable(self, root: str, controller: str) -> bool:
        """Return whether groups of jobs have this controller of version 2."""
        for folder in (root, self.unified):
            try:
                if controller not in _read(folder, "cgroup.controllers").split():
                    return False
                if controller not in _read(folder, "cgroup.subtree_control").split():
                    _write(folder, "cgroup.subtree_control", f"+{controller}")
            except OSError:
                return False  # As in a container, whose root group has processes in it.
        return True

    def _filters_devices(self) -> bool:
        path = _folder(os.path.join(self.unified, "probe"))
        try:
            return bool(path) and not attach(path, [])
        finally:
            if path:
                os.rmdir(path)

    def _bound_all(self) -> None:
        """Bound what all jobs together use, so that the node's own services go on."""
        most = self._limits.memory_of_all
        for feature, value in ((policy.MEMORY, most), (policy.PIDS, self._limits.pids_of_all)):
            folder = self._legacy.get(feature, self.unified if self.features[feature] else "")
            if folder and value:
                name = _limit_file(feature, legacy=feature in self._legacy)
                _try_write(folder, name, str(value))

    # --- the group of one run -----------------------------------------------------------------

    def path(self, mark: int) -> str:
        """Return the group of version 2 of a run; empty where there is none."""
        return os.path.join(self.unified, f"{mark:x}") if self.unified else ""

    def make(self, mark: int) -> list[str]:
        """Make the groups of a run; return the files that a process joins them by.

        Raises:
            OSError: One cannot be made.
        """
        joins = []
        for folder in self._by_folder(mark):
            os.makedirs(folder, exist_ok=True)
            joins.append(os.path.join(folder, "cgroup.procs"))
        return joins

    def bound(self, mark: int, devices: int, nodes: Sequence[tuple[int, int]]) -> None:
        """Set the bounds of a run's groups.

        Args:
            mark: The run's number.
            devices: How many devices of the node it has.
            nodes: The numbers of the device nodes that it may open.

        Raises:
            OSError: One cannot be set.
        """
        for folder, features in self._by_folder(mark).items():
            for feature in features:
                legacy = feature in self._legacy
                self._bound(folder, feature, legacy=legacy, devices=devices, nodes=nodes)

    def remove_unknown(self, marks: Mapping[int, object]) -> None:
        """Remove the groups of runs that are none of these, if nothing is in them."""
        above = {self.unified: True, **dict.fromkeys(self._legacy.values(), True)}
        for folder in filter(None, above):
            known = {f"{mark:x}": True for mark in marks}
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False) and entry.name not in known:
                    try:
                        os.rmdir(entry.path)
                    except OSError:
                        continue  # Something of a run that nobody knows any more is in it.

    def _by_folder(self, mark: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if self.unified:
            found[self.path(mark)] = [
                each for each, has in self.features.items() if has and each not in self._legacy
            ]
        for feature, above in self._legacy.items():
            found.setdefault(os.path.join(above, f"{mark:x}"), []).append(feature)
        return found

    def _bound(
        self,
        folder: str,
        feature: str,
        *,
        legacy: bool,
        devices: int,
        nodes: Sequence[tuple[int, int]],
    ) -> None:
        limits = self._limits
        match feature:
            case policy.MEMORY:
                most = limits.memory
                if limits.memory_per_device and devices:
                    share = limits.memory_per_device * devices
                    most = min(most or share, share)
                if most:
                    _write(folder, _limit_file(feature, legacy=legacy), str(most))
                if not legacy:
                    # A job that loses one process is of no use, and swap would only hide the bound.
                    _try_write(folder, "memory.oom.group", "1")
                    _try_write(folder, "memory.swap.max", "0")
                elif most:
                    _try_write(folder, "memory.memsw.limit_in_bytes", str(most))
            case policy.PIDS:
                _write(folder, "pids.max", str(limits.pids))
            case policy.CPU if legacy:
                shares = round(limits.cpu_weight * SHARES_PER_WEIGHT)
                _write(folder, "cpu.shares", str(max(shares, 2)))
            case policy.CPU:
                _write(folder, "cpu.weight", str(limits.cpu_weight))
            case policy.IO:
                _write(folder, IO_FILES[legacy], "100")
            case policy.DEVICES if legacy:
                _write(folder, "devices.deny", "a")
                for rule in legacy_rules(nodes):
                    _write(folder, "devices.allow", rule)
            case policy.DEVICES:
                trouble = attach(folder, nodes)
                if trouble:
                    raise OSError(trouble, os.strerror(trouble), folder)
            case _:
                pass  # Of a process's own, and not of its groups.

    @property
    def lists(self) -> bool:
        """Return whether a group tells which processes a run has."""
        return bool(self.unified) or policy.PIDS in self._legacy

    @property
    def tell(self) -> bool:
        """Return whether a group says of which run a process is."""
        return bool(self.unified or self._legacy)

    def run_in(self, cgroup: str) -> int | None:
        """Return the number of the run whose group a process is in; None: it is in none's.

        Args:
            cgroup: The text of the process's /proc/PID/cgroup.
        """
        for line in cgroup.splitlines():
            above, name = os.path.split(line.rpartition(":")[2].strip())
            if os.path.basename(above) == self._name:
                try:
                    return int(name, 16)
                except ValueError:
                    return None
        return None

    def inside(self, mark: int) -> list[int] | None:
        """Return the processes of a run; None where no group tells."""
        folder = self.path(mark)
        if not folder and policy.PIDS in self._legacy:
            folder = os.path.join(self._legacy[policy.PIDS], f"{mark:x}")
        if not folder:
            return None
        try:
            return [int(pid) for pid in _read(folder, "cgroup.procs").split()]
        except FileNotFoundError:
            return []
        except OSError:
            return None

    def kill(self, mark: int) -> bool:
        """Kill every process of a run at once; return whether the kernel does that."""
        return bool(self.unified) and _try_write(self.path(mark), "cgroup.kill", "1")

    def remove(self, mark: int) -> bool:
        """Remove the groups of a run that has ended; return whether all are gone."""
        gone = True
        for folder in self._by_folder(mark):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                gone = False  # Its last process has ended, and is not quite gone.
        return gone

    def close(self) -> None:
        """Remove the groups above those of runs, unless runs go on."""
        above = {self.unified: True, **dict.fromkeys(self._legacy.values(), True)}
        for folder in filter(None, above):
            try:
                os.rmdir(folder)
            except OSError:
                continue  # Runs are in it, and the next launcher finds them there.

    def killed_for_memory(self, mark: int) -> bool:
        """Return whether a process of a run was killed as the run outgrew its memory."""
        legacy = self._legacy.get(policy.MEMORY)
        folder = os.path.join(legacy, f"{mark:x}") if legacy else self.path(mark)
        name = "memory.oom_control" if legacy else "memory.events"
        try:
            words = _read(folder, name).split()
        except OSError:
            return False
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return counts.get("oom_kill", "0") != "0"


def _limit_file(feature: str, *, legacy: bool) -> str:
    if feature == policy.PIDS:
        return "pids.max"
    return "memory.limit_in_bytes" if legacy else "memory.max"


def _folder(path: str) -> str:
    """Return a path once a folder is there, an empty text where it cannot be made."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return ""
    return path if os.access(os.path.join(path, "cgroup.procs"), os.W_OK) else ""


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()


def _write(folder: str, name: str, text: str) -> None:
    file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _try_write(folder: str, name: str, text: str) -> bool:
    try:
        _write(folder, name, text)
    except OSError:
        return False
    return True
