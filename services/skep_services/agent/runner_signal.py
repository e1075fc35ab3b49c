"""Which processes of a run get a signal: the uppermost ones that have a handler for it.

A shell without a trap, a launcher of processes or a data loader does not expect the signal, and
would end by it. So the tree is gone down from the main process, and no further below a process that
has a handler: what it forked has inherited that, and is not meant. Standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from skep_services.agent import proc

CAUGHT = "SigCgt:"


def number_of(name: str) -> signal.Signals | None:
    """Return a signal by its name without SIG, or None if there is none."""
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        return None


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; False where it cannot be seen."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith(CAUGHT)), "")
    except OSError:
        return False
    mask = int(line.removeprefix(CAUGHT).strip() or "0", 16)
    return bool(mask >> (number - 1) & 1)


def uppermost(main: int, members: Iterable[proc.Process], number: int) -> list[proc.Process]:
    """Return the uppermost processes of a tree that have a handler for a signal.

    Args:
        main: The process that the tree began with.
        members: The living processes of the tree.
        number: The signal.
    """
    every = {one.pid: one for one in members}
    below: dict[int, list[int]] = {}
    for one in every.values():
        below.setdefault(one.ppid, []).append(one.pid)
    # What has lost its parent comes after the main process: it is below no other.
    roots = [pid for pid, one in every.items() if one.ppid not in every and pid != main]
    waiting, found, seen = [*reversed(roots), *([main] if main in every else [])], [], set()
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        if catches(pid, number):
            found.append(every[pid])
        else:
            waiting += below.get(pid, ())
    return found
