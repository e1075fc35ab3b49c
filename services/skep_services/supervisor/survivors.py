"""Processes of a cluster whose supervisor was killed: found by what they are, and stopped.

A pid that was written down may be missing (the supervisor died before it wrote) or belong to
another process by now. So a process counts as a survivor if its pid and start are on record, or if
its command line and state folder are those of one of the cluster's processes.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence

from skep_services.agent import proc
from skep_services.supervisor import home as folder
from skep_services.supervisor.children import STOP_WITHIN_S
from skep_services.supervisor.table import ChildPlan

Survivors = dict[str, proc.Process]


def find(home: str, plans: Sequence[ChildPlan]) -> Survivors:
    """Return the living processes of the cluster in `home` by name.

    Args:
        home: The state folder.
        plans: The processes that the cluster consists of; empty: only what is on record is found.
    """
    found: Survivors = {}
    try:
        recorded = folder.read_json(folder.pids_path(home))
    except (ValueError, OSError):
        recorded = None
    if isinstance(recorded, dict):
        for name, entry in recorded.items():
            process = proc.process(entry["pid"]) if folder.is_alive(entry) else None
            if process is not None:
                found[name] = process
    by_command = {_command(plan.argv[1:]): True for plan in plans}
    known = {process.pid for process in found.values()}
    for process in proc.processes().values():
        if process.pid in known or process.pid == os.getpid():
            continue
        command = _command_line(process.pid)
        if command not in by_command:
            continue
        state = proc.environ(process.pid).get(b"SKEP_STATE")
        for plan in plans:
            wanted = plan.env.get("SKEP_STATE")
            if _command(plan.argv[1:]) == command and state == (wanted and os.fsencode(wanted)):
                found.setdefault(plan.name, process)
    return found


def stop_in_order(found: Survivors, bus: str) -> None:
    """End processes of a cluster, the bus last: others tell it that they go.

    Args:
        found: The processes by name.
        bus: The name of the bus.
    """
    stop(process for name, process in found.items() if name != bus)
    stop(process for name, process in found.items() if name == bus)


def stop(processes: Iterable[proc.Process], within_s: float = STOP_WITHIN_S) -> None:
    """End processes, by force those that take too long. Returns once they are gone.

    Args:
        processes: The processes.
        within_s: What they get before SIGKILL, and again after it (seconds).
    """
    waiting = list(processes)
    for number, left_s in ((signal.SIGTERM, within_s), (signal.SIGKILL, within_s)):
        for process in waiting:
            proc.send(process, number)
        waiting = _wait_gone(waiting, left_s)
        if not waiting:
            return


def _wait_gone(processes: list[proc.Process], within_s: float) -> list[proc.Process]:
    """Return those of the processes that are still there when the time is up."""
    deadline = time.monotonic() + within_s
    left = []
    for process in processes:
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:
            continue
        try:
            while (now := proc.process(process.pid)) is not None and now.ticks == process.ticks:
                wait_s = deadline - time.monotonic()
                if wait_s <= 0:
                    left.append(process)
                    break
                select.select([handle], [], [], wait_s)
        finally:
            os.close(handle)
    return left


def _command(words: Sequence[str]) -> bytes:
    return b"\0".join(os.fsencode(word) for word in words)


def _command_line(pid: int) -> bytes:
    """Return the arguments after the first of a process, empty where they cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").partition(b"\0")[2]
    except OSError:
        return b""
