"""A program on a real terminal, whose person is a test."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

WITHIN_S = 20.0


class Terminal:
    """A process on a terminal of a person, who types and reads."""

    def __init__(self, argv: list[str], env: dict[str, str], rows: int = 24) -> None:
        """Start a program."""
        self.said = b""
        self.was_raw = False
        """How the program left the terminal."""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        self.resize(rows, 80)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; what runs on it is told by the kernel."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def raw(self) -> bool:
        """Whether every key goes to the program as it is."""
        return not termios.tcgetattr(self.master)[3] & termios.ICANON

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.master, text.encode())

    def see(self, pattern: str) -> None:
        """Read until a pattern is seen; what is behind it stays to be seen."""
        until = time.monotonic() + WITHIN_S
        while not (found := re.search(pattern.encode(), self.said)):
            ready, _, _ = select.select([self.master], [], [], until - time.monotonic())
            assert ready, self.said
            self.said += os.read(self.master, 65536)
        self.said = self.said[found.end() :]

    def end(self) -> int:
        """Read to the end and return the exit code, or minus a signal's number."""
        while True:
            try:
                if not (read := os.read(self.master, 65536)):
                    break
                self.said += read
            except OSError:
                break
        self.was_raw = self.raw
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
