"""Attaches its own terminal to that of a job that is a shell; run within the job, by its path.

    python -I -S attach.py [--fresh]

The agent runs it as a session of a person (`skep attach`), on a terminal of the person's size. It
ends with the shell's exit code; by SIGUSR1 if the job is no shell, and by SIGUSR2 if another one
has taken the terminal over: no exit code is mistaken for these. Standard library only, and nothing
of Skep: it is run by its path.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty

HEAD = struct.Struct(">cH")
SIZE = struct.Struct(">HH")
CODE = struct.Struct(">i")
READ_BYTES = 16 * 1024
READY_WITHIN_S = 10.0
"""How long a shell may take from its process's start until it can be attached to: 0.1 s."""
READY_EVERY_S = 0.02
NO_SHELL, TAKEN_OVER = signal.SIGUSR1, signal.SIGUSR2


def address() -> str:
    """Return where the shell of this job listens; as `holder.address`."""
    run = os.environ.get("SKEP_RUN", "").replace("/", "_")
    return f"/tmp/skep-shell-{os.getuid()}/{run}.sock"  # noqa: S108 - its owner is looked at


def connected(within_s: float) -> socket.socket | None:
    """Return a connection to the shell's holder; None: there is none of this account in time."""
    until = time.monotonic() + within_s
    while (link := connected_once()) is None and time.monotonic() < until:
        time.sleep(READY_EVERY_S)
    return link


def connected_once() -> socket.socket | None:
    """Return a connection to the shell's holder; None: there is none of this account now."""
    path = address()
    try:
        if os.lstat(os.path.dirname(path)).st_uid != os.getuid():
            return None
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(path)
    except OSError:
        return None
    return link


def size_frame() -> bytes:
    """Return what tells the holder how large this terminal is."""
    found = os.get_terminal_size(0)
    return HEAD.pack(b"r", SIZE.size) + SIZE.pack(found.lines, found.columns)


def write(data: bytes) -> None:
    """Write everything to standard output."""
    while data:
        data = data[os.write(1, data) :]


def end_by(number: int) -> None:
    """End this process by a signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def main() -> int:
    """Carry keys and output until the shell ends, or is taken over; return the exit code."""
    link = connected(READY_WITHIN_S if sys.argv[1:] == ["--fresh"] else 0.0)
    if link is None:
        end_by(NO_SHELL)
        return 1
    tty.setraw(0, termios.TCSANOW)  # What was typed already is for the shell.
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    link.sendall(size_frame())
    inbox = bytearray()
    sources: list[int | socket.socket] = [link, 0, wake]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if wake in readable:
            os.read(wake, READ_BYTES)
            link.sendall(size_frame())
        if 0 in readable:
            keys = os.read(0, READ_BYTES)
            if not keys:
                return 0
            link.sendall(HEAD.pack(b"i", len(keys)) + keys)
        if link in readable:
            data = link.recv(READ_BYTES)
            if not data:
                return 1
            inbox += data
            while len(inbox) >= HEAD.size:
                kind, size = HEAD.unpack_from(inbox)
                if len(inbox) < HEAD.size + size:
                    break
                body = bytes(inbox[HEAD.size : HEAD.size + size])
                del inbox[: HEAD.size + size]
                if kind == b"o":
                    write(body)
                elif kind == b"d":
                    end_by(TAKEN_OVER)
                elif kind == b"x":
                    code = int(CODE.unpack(body)[0])
                    return 128 - code if code < 0 else code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, KeyboardInterrupt):
        sys.exit(1)  # One of both ends has gone, and with it whoever could be told.
