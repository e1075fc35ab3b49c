"""What is attacked: components by name, and what can be done to them.

`Target` is all that faults, workload and checker know. `Processes` is an embedded cluster in
namespaces of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from scripts.chaos.evidence import NS
from scripts.chaos.network import Network
from scripts.chaos.stores import Store, make_stores
from scripts.embedded import Embedded
from skep_services.ports import Delivery
from skep_services.supervisor import home as folder

NODES = ("node-1", "node-2")
GPUS = 4
VCS = {"red": 6, "blue": 4}
SERVICES = ("admission", "allocator", "introspector", "advisor", "gateway")
STORE_MIB = {"nats": 96, "node-1": 32, "node-2": 32}
RUNNER = b"/skep_services/agent/runner_process.py"
CLOCK_SOURCE = Path(__file__).with_name("clock.c")


class Target(Protocol):
    """A cluster under attack. Whatever is not running is left alone: methods then return False."""

    notes: Path
    """The folder that jobs write their notes to."""
    stores: dict[str, Store]
    """Disks that may be filled, frozen or cut, by component."""
    network: Network | None
    """None where single components cannot be cut off."""
    clock: bool
    """Whether the cluster's clock can be set."""

    def components(self) -> dict[str, str]:
        """Return every component and its role: service, agent, runner, bus, supervisor."""
        ...

    def pid(self, name: str) -> int:
        """Return the pid of a component, 0 if it does not run."""
        ...

    def kill(self, name: str) -> bool:
        """SIGKILL it."""
        ...

    def kill_everything(self, *, jobs: bool) -> None:
        """SIGKILL every component at once, and (`jobs`) everything they run."""
        ...

    def pause(self, name: str) -> bool:
        """SIGSTOP it."""
        ...

    def resume(self, name: str) -> None:
        """SIGCONT what `pause` stopped; harmless if it has died since."""
        ...

    def set_clock(self, offset_s: int) -> None:
        """Have the cluster's wall clock differ from the machine's by `offset_s`."""
        ...

    def restart(self) -> None:
        """Bring the cluster up again after `kill_everything`, or after the supervisor died."""
        ...

    def about(self) -> Any:
        """Return addresses and credentials, as `cluster.json` has them."""
        ...

    async def records(self, stream: str) -> list[Delivery]:
        """Return every message of a stream."""
        ...

    def states(self) -> dict[str, dict[str, Any]]:
        """Return what keeps the components up says of each: state, exit, detail, restarts."""
        ...


class Processes:
    """An embedded cluster of two nodes with four slots each, in `base`."""

    def __init__(self, base: Path, *, clock: bool) -> None:
        """Make stores, network and folders, and start the cluster."""
        self.base, self.home, self.notes = base, base / "home", base / "notes"
        self.notes.mkdir(parents=True)
        self.network: Network | None = Network()
        self.home.mkdir(mode=0o700)
        self.stores = make_stores(self.home, base / "stores", STORE_MIB)
        self._clock_file = base / "clock"
        self.set_clock(0)
        environment = self._clock_environment() if clock else {}
        self.clock = bool(environment)
        self.cluster = Embedded(self.home, environment)
        self._paused: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        nodes = ("--nodes", str(len(NODES)), "--gpus", str(GPUS))
        vcs = [word for vc, gpus in VCS.items() for word in ("--vc", f"{vc}={gpus}")]
        self.cluster.up(*nodes, *vcs, "--port", "0")

    def _clock_environment(self) -> dict[str, str]:
        """Return what gives the cluster's processes a wall clock of their own; empty without cc.

        The bus server is a static binary and keeps the machine's: two clocks that differ.
        """
        compiler = shutil.which("cc")
        if compiler is None:
            return {}
        library = self.base / "clock.so"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library),
                        str(CLOCK_SOURCE)], check=True)  # fmt: skip
        return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._clock_file)}

    def components(self) -> dict[str, str]:
        roles = dict.fromkeys(SERVICES, "service")
        roles |= dict.fromkeys(NODES, "agent") | {f"{node}/runner": "runner" for node in NODES}
        return {**roles, "nats": "bus", "supervisor": "supervisor"}

    def pid(self, name: str) -> int:
        entry = self._entry(name)
        return entry["pid"] if folder.is_alive(entry) else 0

    def kill(self, name: str) -> bool:
        return self._signal(self._entry(name), signal.SIGKILL)

    def kill_everything(self, *, jobs: bool) -> None:
        # The supervisor first, so that it starts nothing again.
        runners = [f"{node}/runner" for node in NODES] if jobs else []
        for name in ("supervisor", *NODES, *runners, *SERVICES, "nats"):
            self.kill(name)
        while jobs and (left := list(self._jobs())):
            for pid in left:
                self._signal({"pid": pid, "start_ticks": folder.start_ticks(pid)}, signal.SIGKILL)

    def pause(self, name: str) -> bool:
        entry = self._entry(name)
        with self._lock:
            if name in self._paused or not self._signal(entry, signal.SIGSTOP):
                return False
            self._paused[name] = entry
            return True

    def resume(self, name: str) -> None:
        with self._lock:
            entry = self._paused.pop(name, None)
        if entry is not None:
            self._signal(entry, signal.SIGCONT)

    def set_clock(self, offset_s: int) -> None:
        # In place and in one write: every process has the file mapped.
        file = os.open(self._clock_file, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(file, (offset_s * NS).to_bytes(8, sys.byteorder, signed=True), 0)
        os.close(file)

    def restart(self) -> None:
        self.cluster.up()

    def about(self) -> Any:
        return self.cluster.about

    async def records(self, stream: str) -> list[Delivery]:
        return await self.cluster.records(stream)

    def states(self) -> dict[str, dict[str, Any]]:
        return self.cluster.pids()

    def stop(self) -> list[str]:
        """Take the cluster down; return what is wrong with that."""
        try:
            self.cluster.down()
        except RuntimeError as error:
            return [str(error)]
        finally:
            if self.network is not None:
                self.network.close()
        return []

    def unmount(self) -> None:
        """Take the stores away, once nothing is to be read from them any more."""
        for store in self.stores.values():
            store.unmount()

    def job_processes(self) -> list[str]:
        """Return the living processes of jobs, as people read them."""
        return [f"pid {pid}: {text}" for pid, text in self._jobs().items()]

    def _jobs(self) -> dict[int, str]:
        """Return every living process of a job: it knows where to write its notes."""
        mark = b"NOTES=" + os.fsencode(self.notes)
        found = {}
        for pid in _pids():
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if mark in variables:
                token = next((each for each in variables if each.startswith(b"SKEP_TOKEN=")), b"")
                found[pid] = f"{token.decode()} {command.replace(bytes(1), b' ').decode()}"
        return found

    def _entry(self, name: str) -> dict[str, Any]:
        node, _, part = name.partition("/")
        if part != "runner":
            try:
                return self.cluster.entry(name)
            except (KeyError, ValueError):
                return {}
        state = os.fsencode(os.path.realpath(self.home / node))
        for pid in _pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(word.endswith(RUNNER) for word in words)
            if ours and state in words:
                return {"pid": pid, "start_ticks": folder.start_ticks(pid)}
        return {}

    @staticmethod
    def _signal(entry: dict[str, Any], number: signal.Signals) -> bool:
        if not folder.is_alive(entry):
            return False
        try:
            os.kill(entry["pid"], number)
        except ProcessLookupError:
            return False
        return True


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())
