"""Machines for tests of deployments: network namespaces with their own names, on one bridge.

    namespace NET: bridge  <-- veth -->  namespace of each machine: eth0, lo, /etc/hosts, a name

Nothing of it is in the network of the machine that runs the tests, and all of it is gone when the
namespaces are. Making them needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
NAMES = Path("/etc/netns")
COMMAND_WITHIN_S = 400.0
STOP_WITHIN_S = 40.0
UNTIL_S = 300.0
LOOK_EVERY_S = 0.5


def until(holds: Callable[[], bool], what: str, within_s: float = UNTIL_S) -> None:
    """Wait until something holds of processes, which tell no event.

    Args:
        holds: Says whether it does.
        what: What it is, for the error.
        within_s: How long is waited (seconds).

    Raises:
        AssertionError: It does not hold in time.
    """
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_EVERY_S)


class Done(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    error: str
    seconds: float


def missing() -> str:
    """Return why machines cannot be made here; an empty text if they can."""
    if os.geteuid() != 0:
        return "machines are network namespaces: they need root"
    if shutil.which("ip") is None:
        return "ip is not installed"
    probe = f"sk{os.getpid()}p"
    done = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True)
    if done.returncode:
        return "network namespaces may not be made here"
    linked = subprocess.run(
        ["ip", "-n", probe, "link", "add", "probe", "type", "bridge"],
        check=False,
        capture_output=True,
    )
    subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return "" if linked.returncode == 0 else "bridges may not be made here"


class Machine:
    """One machine. Its files are in `folder`; `address` and `address6` are on the bridge.

    Args:
        bed: The bed that it stands in.
        name: Its host name.
        number: Its place in the network.
    """

    def __init__(self, bed: Bed, name: str, number: int) -> None:
        self.name, self.folder = name, bed.folder / name
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number:x}"
        self.space = f"{bed.prefix}{name}"
        self._bed = bed
        self.code: Path | None = None
        """The tree whose `skep` runs here; None: this one."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return what runs words on this machine."""
        return [
            "ip",
            "netns",
            "exec",
            self.space,
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$0" && exec "$@"',
            self.name,
            *words,
        ]

    def environment(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        """Return the environment of what runs here."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
        if self.code is not None:
            kept["PYTHONPATH"] = f"{self.code}/libs:{self.code}/services"
        return {**kept, "SKEP_HOME": str(self.folder / "home"), **more}

    def do(self, *words: str, env: Mapping[str, str] = {}, text: str = "") -> Done:
        """Return what a command comes to that runs on this machine.

        Args:
            words: The command; `skep` is the one of this tree.
            env: Variables beside the usual ones.
            text: What it reads from its standard input.
        """
        began = time.monotonic()
        done = subprocess.run(
            self.command(_skep(words)),
            env=self.environment(env),
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def start(self, name: str, *words: str, env: Mapping[str, str] = {}) -> None:
        """Start a command that goes on, as a unit of systemd would; its log is `NAME.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.command(_skep(words)),
                env=self.environment(env),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """End what was started, in good order; by force what takes too long."""
        process = self.running.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def power_off(self) -> None:
        """Kill everything that runs in this machine's network, at once."""
        while pids := self.pids():  # What was just starting another process may have done so.
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # It has just ended.
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def pids(self) -> list[int]:
        """Return the processes of this machine, but for this one, which may stand in its place."""
        try:
            wanted = os.stat(f"/run/netns/{self.space}").st_ino
        except FileNotFoundError:
            return []
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdecimal() and os.stat(f"/proc/{name}/ns/net").st_ino == wanted:
                    found.append(int(name))
            except OSError:
                pass  # It has just ended.
        return [pid for pid in found if pid != os.getpid()]

    def cut(self, *, off: bool) -> None:
        """Pull this machine's cable, or put it back."""
        state = "down" if off else "up"
        _ip("-n", self.space, "link", "set", "eth0", state)
        if not off:
            # An address of IPv6 goes with the link.
            _ip(
                "-n",
                self.space,
                "-6",
                "addr",
                "replace",
                f"{self.address6}/64",
                "dev",
                "eth0",
                "nodad",
            )

    def shape(self, *words: str) -> None:
        """Have what this machine sends be late or lost, by the words of `tc ... netem`."""
        subprocess.run(
            [
                "ip",
                "netns",
                "exec",
                self.space,
                "tc",
                "qdisc",
                "replace",
                "dev",
                "eth0",
                "root",
                "netem",
                *words,
            ],
            check=True,
            capture_output=True,
        )


class Bed:
    """All machines. `close` it after use.

    Args:
        folder: Where the machines' files are.
        names: The host names of the machines.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.prefix = f"sk{os.getpid()}-"
        self._net = f"{self.prefix}net"
        self.machines = {
            name: Machine(self, name, number) for number, name in enumerate(names, start=1)
        }

    def open(self) -> None:
        """Make the namespaces and the network between them."""
        _ip("netns", "add", self._net)
        _ip("-n", self._net, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._net, "link", "set", "bridge0", "up")
        hosts = "".join(
            f"{one.address} {one.name}\n{one.address6} {one.name}\n"
            for one in self.machines.values()
        )
        local = "127.0.0.1 localhost\n::1 localhost\n"
        for number, machine in enumerate(self.machines.values()):
            there = NAMES / machine.space
            there.mkdir(parents=True, exist_ok=True)
            (there / "hosts").write_text(local + hosts, encoding="ascii")
            (there / "resolv.conf").write_text("", encoding="ascii")
            _ip("netns", "add", machine.space)
            _ip(
                "-n",
                self._net,
                "link",
                "add",
                f"v{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                machine.space,
            )
            _ip("-n", self._net, "link", "set", f"v{number}", "master", "bridge0", "up")
            _ip("-n", machine.space, "link", "set", "lo", "up")
            _ip("-n", machine.space, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            _ip(
                "-n",
                machine.space,
                "-6",
                "addr",
                "add",
                f"{machine.address6}/64",
                "dev",
                "eth0",
                "nodad",
            )
            _ip("-n", machine.space, "link", "set", "eth0", "up")

    def close(self) -> None:
        """End all processes of the machines, and take the network away."""
        for machine in self.machines.values():
            machine.power_off()
            subprocess.run(["ip", "netns", "del", machine.space], check=False, capture_output=True)
            shutil.rmtree(NAMES / machine.space, ignore_errors=True)
        subprocess.run(["ip", "netns", "del", self._net], check=False, capture_output=True)

    def __enter__(self) -> Bed:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _skep(words: Sequence[str]) -> list[str]:
    if words and words[0] == "skep":
        return [sys.executable, "-m", "skep_services", *words[1:]]
    return list(words)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"ip {' '.join(words)}: {done.stderr.strip()}"
        raise OSError(message)
