"""What /proc says about processes. Standard library only: the runner starts without site-packages.

A process identifier alone identifies nothing for long, because the kernel hands it out again. Pid
and `ticks` together (the start time of proc_pid_stat(5), field 22) are an identity until a reboot.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

STAT_BYTES_MAX = 4096
"""More than /proc/PID/stat ever holds: 52 numbers and a name of at most 64 bytes."""

MARK_MIN = 1 << 60
"""Microseconds: 36,000 years."""

COMMAND_CHARS_MAX = 160
"""What is shown of a command line: program, script and the first arguments."""

ENVIRON_CHUNK_BYTES = 65_536
"""One read covers nearly every environment; the kernel bounds the whole at 6 MiB."""

LINEAGE_MAX = 128
"""Processes above one another. A launcher below a launcher is five; a hostile job can make
thousands, and each costs a read of /proc."""

RUN_VARIABLE = "SKEP_RUN"
RUN_VARIABLE_BEFORE = "SKEP_TOKEN"
"""What names its run in a process's environment, and what did up to version 0.1. The second is
also the variable of a user's credential, so only what has the form of a run's name is taken."""

NODE_VARIABLE = "SKEP_NODE_STATE"
"""What names the state folder of the agent that started a process: runs of two clusters on one
machine have the same names."""


class Process(NamedTuple):
    """One process: its identity (`pid`, `ticks`), parent, process group and session."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    ticks: int


def process(pid: int) -> Process | None:
    """Return the process, or None if there is none or only its zombie is left."""
    fields = _stat(pid)
    return None if fields is None or _is_dead(fields) else _process(pid, fields)


def lineage(pid: int) -> Iterator[Process]:
    """Yield a process and those above it, the nearest first, at most LINEAGE_MAX of them.

    Nothing is yielded for pid 0, which is what the kernel says of processes that cannot be seen.
    """
    for _ in range(LINEAGE_MAX):
        one = process(pid) if pid > 0 else None
        if one is None:
            return
        yield one
        pid = one.ppid


def is_here(pid: int) -> bool:
    """Return whether a process has a number here and is in no container of its own."""
    try:
        return pid > 0 and os.stat(f"/proc/{pid}/ns/pid").st_ino == _own_namespace()
    except OSError:
        return False  # It ended, or is of a user whose processes may not be looked at.


def _own_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def run_named(variables: dict[bytes, bytes]) -> str:
    """Return the run that an environment names, or an empty text."""
    token = os.fsdecode(variables.get(RUN_VARIABLE.encode(), b""))
    if token:
        return token
    before = os.fsdecode(variables.get(RUN_VARIABLE_BEFORE.encode(), b""))
    # tidy: allow attempt-id because the runner, which imports this, starts without skep
    job, *numbers = before.rsplit(".", 2)
    named = job and len(numbers) == 2 and all(each.isdecimal() for each in numbers)
    return before if named else ""


def start_ticks(pid: int) -> int | None:
    """Return when a process started, zombies included, or None if there is none.

    Returns:
        Clock ticks since boot.
    """
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def processes() -> dict[int, Process]:
    """Return every living process that can be seen, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            one = process(int(name))
            if one is not None:
                found[one.pid] = one
    return found


def children(pid: int) -> list[int]:
    """Return the children of a single-threaded process, zombies included.

    Nothing is missed when a process asks for its own: only its own wait removes one from the list.
    """
    try:
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return [one.pid for one in processes().values() if one.ppid == pid]


def command_line(pid: int) -> str:
    """Return the words a process was executed with, for people; if it has none, its name.

    ASCII, bounded, without control characters, and `?` where nothing can be read.
    """
    try:
        words = _read(f"/proc/{pid}/cmdline").split(b"\0")
        text = " ".join(word.decode(errors="replace") for word in words if word)
        text = text or _read(f"/proc/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return "?"
    shown = "".join(each if each.isascii() and each.isprintable() else "?" for each in text)
    return shown[:COMMAND_CHARS_MAX]


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in use (bytes); 0 where it cannot be read."""
    try:
        fields = _read(f"/proc/{pid}/statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def environ(pid: int) -> dict[bytes, bytes]:
    """Return the environment a process was executed with, empty where it cannot be read.

    It is also empty for kernel threads, for what is exiting, and for a moment while a process
    executes another program, which may be the moment after its parent was told that it does.
    Reading waits while the process forks: not for use on many that do.
    """
    try:
        text = _read(f"/proc/{pid}/environ")
    except OSError:
        return {}
    pairs = (pair.partition(b"=") for pair in text.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


@contextmanager
def marked(number: int) -> Iterator[None]:
    """Let the processes started inside carry a number, and all that descends from them.

    Nothing but asking for another one removes it: it survives fork, exec, setsid and an emptied
    environment. It is the soft limit of RLIMIT_RTTIME, the microseconds of processor time that a
    real-time process may use without blocking: a number at least MARK_MIN limits nothing.
    Where that limit is bounded already, nothing is carried.

    Args:
        number: The number, at least MARK_MIN.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    if hard != resource.RLIM_INFINITY:
        yield
        return
    resource.setrlimit(resource.RLIMIT_RTTIME, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def mark(pid: int) -> int | None:
    """Return the number that a process carries; None without one or where it cannot be read."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_RTTIME)
    except (ProcessLookupError, PermissionError):
        return None
    return soft if soft >= MARK_MIN else None


def random_mark() -> int:
    """Return a number for `marked` that nothing else on this machine carries."""
    return MARK_MIN | int.from_bytes(os.urandom(7), "big")


def tree(everything: dict[int, Process], roots: Iterable[int]) -> dict[int, Process]:
    """Return the roots, what descends from them, and what shares a session with any of these.

    Sessions matter because a process that outlives its parent goes to another, but keeps its
    session until it makes one of its own.

    Args:
        everything: The living processes by pid.
        roots: Pids; those of processes that are gone are passed over.

    Returns:
        The processes by pid.
    """
    by_parent: dict[int, list[int]] = {}
    by_session: dict[int, list[int]] = {}
    for one in everything.values():
        by_parent.setdefault(one.ppid, []).append(one.pid)
        by_session.setdefault(one.sid, []).append(one.pid)
    found: dict[int, Process] = {}
    waiting = [pid for pid in roots if pid in everything]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            one = found[pid] = everything[pid]
            waiting += by_parent.get(pid, ())
            waiting += by_session.pop(one.sid, ())
    return found


def send(one: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; return whether it was there and could be signalled."""
    try:
        handle = os.pidfd_open(one.pid)
    except OSError:
        return False
    try:
        # The handle holds whatever has the pid at this moment: a match makes it the right one.
        if start_ticks(one.pid) != one.ticks:
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def boot_id() -> str:
    """Return the name of this boot: pids and ticks of another one say nothing."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the third (the state) on."""
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(handle, STAT_BYTES_MAX)
    except OSError:
        return None
    finally:
        os.close(handle)
    # The second field is the name in parentheses, which may itself hold spaces and parentheses.
    return text[text.rindex(b")") + 2 :].split()


def _is_dead(fields: list[bytes]) -> bool:
    # A main thread that ended before the others shows as a zombie too, with threads left.
    return fields[0] in {b"Z", b"X"} and int(fields[17]) <= 1


def _process(pid: int, fields: list[bytes]) -> Process:
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(handle, ENVIRON_CHUNK_BYTES):
            chunks.append(chunk)
    finally:
        os.close(handle)
    return b"".join(chunks)
