"""Cutting single processes off the bus, inside a network namespace of our own.

The whole cluster runs in the namespace, so its packet filter is nobody else's. A process is put
into a net_cls control group, whose class its present and future sockets carry; rules match that.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

CLASS_FIRST = 0x10001
LOSS = "0.3"
"""Of the packets on a lossy link: each loss costs 200 ms and more, so delays spread widely."""

MARK = "CHAOS_NAMESPACE"


def in_namespace() -> bool:
    """Return whether this process has the namespaces that `enter` makes."""
    return os.environ.get(MARK) == "1"


def enter(command: list[str]) -> None:
    """Become `command` in fresh network and mount namespaces; return only if that cannot be."""
    probe = subprocess.run(["unshare", "--net", "--mount", "true"], check=False,
                           capture_output=True)  # fmt: skip
    if os.geteuid() != 0 or probe.returncode:
        return
    os.environ[MARK] = "1"
    words = ["unshare", "--net", "--mount", "--propagation", "private", *command]
    os.execvp("unshare", words)  # noqa: S606 - the namespaces are to be those of this process


class Network:
    """The namespace's loopback, over which everything talks."""

    def __init__(self) -> None:
        """Bring it up; `cuts` says whether single processes can be cut off."""
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self._root = Path(tempfile.mkdtemp(prefix="skep-chaos-net-"))
        self._groups: dict[str, Path] = {}
        self._rules: dict[str, list[list[str]]] = {}
        mounted = subprocess.run(
            ["mount", "-t", "cgroup", "-o", "net_cls", "none", str(self._root)],
            check=False, capture_output=True,
        )  # fmt: skip
        works = subprocess.run(["iptables", "-S"], check=False, capture_output=True)
        self.cuts = mounted.returncode == 0 and works.returncode == 0

    def cut(self, name: str, pid: int, how: str) -> None:
        """Cut a process off: `mute` says nothing, `deaf` hears nothing, `lossy` loses packets."""
        number = CLASS_FIRST + len(self._groups)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._root / f"skep-chaos-{os.getpid()}-{name}"
            group.mkdir()
            (group / "net_cls.classid").write_text(str(number))
        number = int((group / "net_cls.classid").read_text())
        self.move(name, pid)
        if name in self._rules:
            return
        chance = ["-m", "statistic", "--mode", "random", "--probability", LOSS]
        group_of = ["-m", "cgroup", "--cgroup", hex(number)]
        rules = [["OUTPUT", *group_of, *(chance if how == "lossy" else []), "-j", "DROP"]]
        if how == "deaf":
            # A packet carries the class of its sender: the connections of a process are marked as
            # it speaks, and what comes back on them is dropped.
            rules = [["OUTPUT", *group_of, "-j", "CONNMARK", "--set-mark", str(number)],
                     ["INPUT", "-m", "connmark", "--mark", str(number), "-m", "conntrack",
                      "--ctdir", "REPLY", "-j", "DROP"]]  # fmt: skip
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True, capture_output=True)
        self._rules[name] = rules

    def move(self, name: str, pid: int) -> None:
        """Put a process (one that was started again, too) behind the cut."""
        try:
            (self._groups[name] / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            pass  # It has just died: whoever takes its place is moved next.

    def heal(self, name: str) -> None:
        """Let it speak and hear again; harmless if it does."""
        for rule in self._rules.pop(name, []):
            subprocess.run(["iptables", "-w", "-D", *rule], check=True, capture_output=True)

    def close(self) -> None:
        """Leave no control group behind."""
        for name, group in self._groups.items():
            self.heal(name)
            for pid in (group / "cgroup.procs").read_text().split():
                try:
                    (self._root / "cgroup.procs").write_text(pid)
                except ProcessLookupError:
                    pass  # Gone already.
            group.rmdir()
        if self.cuts:
            subprocess.run(["umount", str(self._root)], check=False, capture_output=True)
        self._root.rmdir()
