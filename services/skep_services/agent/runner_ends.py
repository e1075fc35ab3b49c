"""The terminal of a session in a run, or its three pipes. Standard library only."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from typing import NamedTuple

SIZE = struct.Struct("HHHH")


class Ends(NamedTuple):
    """The descriptors of a session: those of its process, and those that the agent gets."""

    stdin: int
    output: int
    errors: int
    ours: tuple[int, ...]
    terminal: bool

    def close_theirs(self) -> None:
        """Close what the process has now."""
        for number in {self.stdin, self.output, self.errors}:
            os.close(number)

    def close_ours(self) -> None:
        """Close what was for the agent."""
        for number in self.ours:
            os.close(number)


def open_ends(*, terminal: bool, rows: int, columns: int) -> Ends:
    """Return the descriptors of a new session.

    Raises:
        OSError: There are none.
    """
    if terminal:
        master, slave = pty.openpty()
        for number in (master, slave):
            os.set_inheritable(number, False)
        resize(master, rows, columns)
        return Ends(slave, slave, slave, (master,), True)
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe2(os.O_CLOEXEC)
    except OSError:
        for number in made:
            os.close(number)
        raise
    return Ends(made[0], made[3], made[5], (made[1], made[2], made[4]), False)


def resize(master: int, rows: int, columns: int) -> None:
    """Set the size of a terminal; what runs on it is told by the kernel."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, SIZE.pack(rows, columns, 0, 0))
