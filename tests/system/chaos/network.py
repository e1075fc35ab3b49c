"""Cutting components off, and the loopback of a network namespace over which processes talk.

The whole cluster runs in the namespace, so its packet filter is nobody else's. A process is put
into a net_cls control group, whose class its present and future sockets carry; rules match that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.system.chaos.delay import Delay

CLASS_FIRST = 0x10001
LOSS = "0.3"
"""Of the packets on a lossy link: each loss costs 200 ms and more, so delays spread widely."""

MARK = "CHAOS_NAMESPACE"

KINDS = ("mute", "deaf", "lossy", "delay", "partition")
"""The faults that a network can do."""


class Cut(NamedTuple):
    """How a component is cut off, and from whom (from everybody if `others` is empty).

    `how` is mute (it says nothing), deaf (it hears nothing), apart (both), lossy (some of what it
    says is lost) or delay (what it says is late and in another order, by `seed`).
    """

    how: str
    others: tuple[str, ...] = ()
    seed: int = 0


class Network(Protocol):
    """What can be done to the links of components. Every cut has a key of its own."""

    def cut(self, key: str, name: str, pid: int, cut: Cut) -> None:
        """Cut a component off, whose process is `pid`."""
        ...

    def move(self, key: str, pid: int) -> bool:
        """Put the process that took its place behind the cut too; False if it is gone again."""
        ...

    def heal(self, key: str) -> None:
        """Undo a cut; harmless if it is undone."""
        ...

    def heal_all(self) -> None:
        """Undo every cut."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


def in_namespace() -> bool:
    """Return whether this process has the namespaces that `enter` makes."""
    return os.environ.get(MARK) == "1"


def enter(command: list[str]) -> None:
    """Become `command` in fresh network and mount namespaces; return only if that cannot be."""
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "true"], check=False, capture_output=True
    )
    if os.geteuid() != 0 or probe.returncode:
        return
    os.environ[MARK] = "1"
    words = ["unshare", "--net", "--mount", "--propagation", "private", *command]
    os.execvp("unshare", words)


class Loopback:
    """The namespace's loopback, over which everything talks to the one bus server."""

    def __init__(self) -> None:
        """Bring it up; `works` says whether single processes can be cut off."""
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self._root = Path(tempfile.mkdtemp(prefix="skep-chaos-net-"))
        self._groups: dict[str, Path] = {}
        self._cuts: dict[str, tuple[str, list[list[str]], Delay | None]] = {}
        mounted = subprocess.run(
            ["mount", "-t", "cgroup", "-o", "net_cls", "none", str(self._root)],
            check=False,
            capture_output=True,
        )
        self._mounted = mounted.returncode == 0
        self.works = self._mounted and _filters()

    def cut(self, key: str, name: str, pid: int, cut: Cut) -> None:
        # There is nobody but the bus to talk to: `others` are it.
        number = self._class_of(name)
        delay = Delay(cut.seed) if cut.how == "delay" else None
        rules = _rules(number, cut.how, delay)
        self._cuts[key] = name, rules, delay
        self.move(key, pid)
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True, capture_output=True)

    def _class_of(self, name: str) -> int:
        group = self._groups.get(name)
        if group is None:
            number = CLASS_FIRST + len(self._groups)
            group = self._groups[name] = self._root / f"skep-chaos-{os.getpid()}-{name}"
            group.mkdir()
            (group / "net_cls.classid").write_text(str(number))
        return int((group / "net_cls.classid").read_text())

    def move(self, key: str, pid: int) -> bool:
        name, _, _ = self._cuts[key]
        try:
            (self._groups[name] / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return False
        return True

    def heal(self, key: str) -> None:
        _, rules, delay = self._cuts.pop(key, ("", [], None))
        for rule in rules:
            subprocess.run(["iptables", "-w", "-D", *rule], check=True, capture_output=True)
        if delay is not None:
            delay.stop()

    def heal_all(self) -> None:
        for key in list(self._cuts):
            self.heal(key)

    def close(self) -> None:
        self.heal_all()
        for group in self._groups.values():
            for pid in (group / "cgroup.procs").read_text().split():
                try:
                    (self._root / "cgroup.procs").write_text(pid)
                except ProcessLookupError:
                    pass  # Gone already.
            group.rmdir()
        if self._mounted:
            subprocess.run(["umount", str(self._root)], check=False, capture_output=True)
        self._root.rmdir()


def _filters() -> bool:
    """Return whether there is a packet filter to use."""
    if shutil.which("iptables") is None:
        return False
    return subprocess.run(["iptables", "-S"], check=False, capture_output=True).returncode == 0


def _rules(number: int, how: str, delay: Delay | None) -> list[list[str]]:
    """Return the rules for the sockets of a class; each is inserted before those before it."""
    group_of = ["-m", "cgroup", "--cgroup", hex(number)]
    said = ["OUTPUT", *group_of]
    # A packet carries the class of its sender: the connections of a process are marked as it
    # speaks, and what comes back on them is dropped.
    heard = [
        [*said, "-j", "CONNMARK", "--set-mark", str(number)],
        [
            "INPUT",
            "-m",
            "connmark",
            "--mark",
            str(number),
            "-m",
            "conntrack",
            "--ctdir",
            "REPLY",
            "-j",
            "DROP",
        ],
    ]
    match how:
        case "mute":
            return [[*said, "-j", "DROP"]]
        case "deaf":
            return heard
        case "apart":
            return [[*said, "-j", "DROP"], *heard]
        case _:
            return [[*said, *late_or_lost(delay)]]


def late_or_lost(delay: Delay | None) -> Sequence[str]:
    """Return what a rule does to the packets of a slow link, or (without `delay`) a lossy one."""
    if delay is not None:
        return delay.verdict
    return ["-m", "statistic", "--mode", "random", "--probability", LOSS, "-j", "DROP"]
