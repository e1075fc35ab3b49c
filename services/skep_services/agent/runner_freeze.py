"""Freezing the process tree of a run: by a control group where that works, else by SIGSTOP.

A control group (version 2) freezes what is in it and whatever it forks, atomically, and neither a
parent shell nor the processes themselves see anything of it. It needs a writable place below the
runner's own group. Elsewhere every process is sent SIGSTOP, again and again until nothing is found
that is not stopped; a parent that waits with WUNTRACED sees that.

Both outlive the runner. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from skep_services.agent import proc

FREEZE_SECONDS_MAX = 2.0
"""How long a tree may take to be frozen: milliseconds, but for what is in uninterruptible sleep,
which is counted as frozen once it is stopped."""
LOOK_SECONDS = 0.002
GROUP_NAME = "skep-"

Members = Callable[[], list[proc.Process]]


def group_for(mark: int) -> str:
    """Return the path of the group for a run, made if need be; empty if there can be none.

    Args:
        mark: The number that the run's processes carry.
    """
    home = _home()
    if not home:
        return ""
    path = os.path.join(home, f"{GROUP_NAME}{mark:x}")
    try:
        os.makedirs(path, exist_ok=True)
        usable = os.access(os.path.join(path, "cgroup.freeze"), os.W_OK)
        usable = usable and os.access(os.path.join(path, "cgroup.procs"), os.W_OK)
    except OSError:
        return ""
    if not usable:
        remove(path)
        return ""
    return path


def freeze_group(path: str, members: Members) -> str:
    """Freeze a tree in its group; return what would not be, or an empty text.

    The group is frozen before anything is moved into it, so what is moved stops at once and what
    it forked before is found in the next look.

    Args:
        path: The group.
        members: Returns the living processes of the tree, each time it is called.
    """
    until = time.monotonic() + FREEZE_SECONDS_MAX
    try:
        _write(path, "cgroup.freeze", "1")
        while True:
            inside = _inside(path)
            outside = [one for one in members() if one.pid not in inside]
            for one in outside:
                _move(path, one.pid)
            if not outside and "frozen 1" in _read(path, "cgroup.events"):
                return ""
            if not outside and not inside:
                return ""  # No process is left.
            if time.monotonic() >= until:
                return f"{path} is not frozen after {FREEZE_SECONDS_MAX:.0f} s"
            time.sleep(LOOK_SECONDS)
    except OSError as error:
        return f"{path}: {error.strerror}"


def thaw_group(path: str) -> str:
    """Let what is in a group go on; return why that failed, or an empty text."""
    try:
        _write(path, "cgroup.freeze", "0")
    except FileNotFoundError:
        return ""  # It was removed, which takes an empty group.
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def remove(path: str) -> None:
    """Remove the group of a run that has ended."""
    try:
        os.rmdir(path)
    except OSError:
        pass  # Something is in it still, or it was removed: neither does harm.


def stop_all(members: Members) -> str:
    """Stop every process of a tree; return what would not be, or an empty text.

    Args:
        members: Returns the living processes of the tree, each time it is called.
    """
    until = time.monotonic() + FREEZE_SECONDS_MAX
    stopped: dict[tuple[int, int], bool] = {}
    while True:
        fresh = [one for one in members() if (one.pid, one.ticks) not in stopped]
        if not fresh:
            return ""
        for one in fresh:
            proc.send(one, signal.SIGSTOP)
            stopped[one.pid, one.ticks] = True
        if time.monotonic() >= until:
            return f"its processes fork faster than they are stopped: {len(stopped)} so far"


def continue_all(members: Members) -> None:
    """Let every process of a tree go on."""
    for one in members():
        proc.send(one, signal.SIGCONT)


def _home() -> str:
    """Return the group that this process is in, by its path in the version 2 hierarchy."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ") for line in file]
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    except OSError:
        return ""
    for fields in lines:
        if "-" in fields and fields[fields.index("-") + 1] == "cgroup2":
            root, mount = fields[3], fields[4]
            inside = os.path.relpath(own, root) if own.startswith(root) else own.lstrip("/")
            return os.path.normpath(os.path.join(mount, inside))
    return ""


def _inside(path: str) -> dict[int, bool]:
    return {int(pid): True for pid in _read(path, "cgroup.procs").split()}


def _move(path: str, pid: int) -> None:
    try:
        _write(path, "cgroup.procs", str(pid))
    except ProcessLookupError:
        pass  # It has just ended.


def _read(path: str, name: str) -> str:
    with open(os.path.join(path, name), encoding="ascii") as file:
        return file.read()


def _write(path: str, name: str, text: str) -> None:
    with open(os.path.join(path, name), "w", encoding="ascii") as file:
        file.write(text)
