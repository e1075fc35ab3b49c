"""What is attacked: components by name, and what can be done to them.

`Target` is all that faults, workload and checker know. `processes.Processes` is an embedded cluster
in namespaces of its own, `containers.Containers` a deployment with compose.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from skep_services.ports import Delivery
from skep_services.supervisor import home as folder
from tests.system.chaos.network import Network
from tests.system.chaos.stores import Store

NODES = ("node-1", "node-2")
GPUS = 4
VCS = {"red": 4, "blue": 4}
WORK = Path(__file__).parent / "jobs" / "work.py"
RUNNER = b"/skep_services/agent/runner_process.py"
STORE_MIB = {"bus": 96, "agent": 32}


class Jobs(NamedTuple):
    """How jobs are run: Python, their program and the folder of their notes, as nodes see them.

    `trains` says whether PyTorch is there.
    """

    python: str
    work: str
    notes: str
    trains: bool


class Target(Protocol):
    """A cluster under attack. Whatever is not running is left alone: methods then return False."""

    notes: Path
    """The folder that jobs write their notes to."""
    jobs: Jobs
    stores: dict[str, Store]
    """Disks that may be filled, frozen or cut, by component."""
    network: Network
    cannot: dict[str, str]
    """Kinds of faults that cannot be done to it, and why."""

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
        """SIGKILL every component at once; with `jobs` everything they run, and for good."""
        ...

    def pause(self, name: str) -> bool:
        """SIGSTOP it."""
        ...

    def resume(self, name: str) -> None:
        """SIGCONT what `pause` stopped; harmless if it has died since."""
        ...

    def freeze(self, name: str) -> bool:
        """Stop it and everything it has started, jobs too, as a machine that stands still."""
        ...

    def unfreeze(self, name: str) -> None:
        """Undo `freeze`; harmless if it has died since."""
        ...

    def set_clock(self, offset_s: int) -> None:
        """Have the cluster's wall clock differ from the machine's by `offset_s`."""
        ...

    def is_kept_up(self) -> bool:
        """Return whether whatever starts dead components again is at work on all of them."""
        ...

    def restart(self) -> None:
        """Bring the cluster up again when it is not kept up any more. Raises RuntimeError."""
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

    def words(self, name: str) -> str:
        """Return what a component has logged."""
        ...

    def job_processes(self) -> list[str]:
        """Return the living processes of jobs, as people read them."""
        ...

    def stop(self) -> list[str]:
        """Take the cluster down; return what is wrong with that."""
        ...

    def unmount(self) -> None:
        """Take the stores away, once nothing is to be read from them any more."""
        ...


class Paused:
    """The processes that are stopped, by component: each is stopped and woken once."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Any]] = {}

    def stop(self, name: str, entry: dict[str, Any]) -> bool:
        """SIGSTOP a process unless one of that name is stopped; return whether that was done."""
        if name in self._entries or not send(entry, signal.SIGSTOP):
            return False
        self._entries[name] = entry
        return True

    def wake(self, name: str) -> None:
        """SIGCONT it, if it is still the same."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            send(entry, signal.SIGCONT)


def entry_of(pid: int) -> dict[str, Any]:
    """Return pid and start of a process; empty if there is none."""
    return {"pid": pid, "start_ticks": folder.start_ticks(pid)} if pid else {}


def pid_of(entry: dict[str, Any]) -> int:
    """Return the pid of the process that `entry` means, 0 if it is gone."""
    return int(entry["pid"]) if folder.is_alive(entry) else 0


def send(entry: dict[str, Any], number: signal.Signals) -> bool:
    """Send a signal to the process that `entry` means, and to no later one of its number."""
    if not folder.is_alive(entry):
        return False
    try:
        os.kill(entry["pid"], number)
    except ProcessLookupError:
        return False
    return True


def pids() -> Iterator[int]:
    """Return the pid of every process of the machine."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def words_of(pid: int) -> list[bytes]:
    """Return a process's command; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def job_processes(notes: str) -> dict[int, str]:
    """Return every living process of a job, which knows to write its notes to `notes`."""
    mark = b"NOTES=" + os.fsencode(notes)
    found = {}
    for pid in pids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables:
            token = next((each for each in variables if each.startswith(b"SKEP_RUN=")), b"")
            found[pid] = f"{token.decode()} {b' '.join(words_of(pid)).decode()}"
    return found
