"""Holds the terminal of a shell that is a job, while people attach to it and leave it.

The shell runs on a pseudo-terminal of this process, which is the job's rank: so it ends with the
attempt and with nothing else. `attach.py` connects to a socket of the job's account, from within
the job (`skep attach`). One is attached at a time: a newer one takes the terminal over, as a
connection that was lost may take a while to be known as lost. What was printed last is kept, and
shown to the next one.

    attach.py -> holder    i, length, keys          r, length, rows and columns
    holder -> attach.py    o, length, output        x, length, exit code       d, 0: taken over

While the one that is attached takes nothing, nothing is read of the shell: it waits, as it would on
any terminal. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import socket
import stat
import struct
import sys
import termios
import time
from collections.abc import Sequence

HEAD = struct.Struct(">cH")
SIZE = struct.Struct(">HH")
CODE = struct.Struct(">i")
PEER = struct.Struct("iII")
KEPT_BYTES = 64 * 1024
"""What is shown of the past to one that attaches: some screens."""
WAITING_BYTES_MAX = 128 * 1024
"""What may wait for the one that is attached before the shell has to wait."""
READ_BYTES = 16 * 1024
INBOX_BYTES_MAX = 256 * 1024
LAST_WITHIN_S = 2.0
"""How long the last words may take after the shell has ended."""
SHELLS = ("/bin/bash", "/bin/sh")
RUN_VARIABLE = "SKEP_RUN"


def folder() -> str:
    """Return the folder of this account's sockets, in the job's own /tmp where it has one."""
    return f"/tmp/skep-shell-{os.getuid()}"  # noqa: S108 - its owner is looked at before use


def address(run: str) -> str:
    """Return where the terminal of a run is attached to."""
    return os.path.join(folder(), f"{run}.sock")


def shell(given: Sequence[str]) -> list[str]:
    """Return the command to run: what is given, else the account's shell."""
    if given:
        return list(given)
    wanted = os.environ.get("SHELL", "")
    found = (each for each in (wanted, *SHELLS) if each and os.access(each, os.X_OK))
    return [next(found, "/bin/sh")]


class Attached:
    """The one that is attached."""

    def __init__(self, link: socket.socket) -> None:
        """Take over its connection."""
        link.setblocking(False)
        self.link, self.inbox, self.outbox = link, bytearray(), bytearray()

    def put(self, kind: bytes, body: bytes = b"") -> None:
        """Have something wait to be sent."""
        for begin in range(0, max(len(body), 1), READ_BYTES):
            piece = body[begin : begin + READ_BYTES]
            self.outbox += HEAD.pack(kind, len(piece)) + piece

    def flush(self) -> bool:
        """Send what the connection takes; return whether it is still there."""
        try:
            while self.outbox:
                del self.outbox[: self.link.send(self.outbox)]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def messages(self) -> list[tuple[bytes, bytes]] | None:
        """Return what it says; None: it has gone."""
        try:
            data = self.link.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self.inbox) > INBOX_BYTES_MAX:
            return None
        self.inbox += data
        found = []
        while len(self.inbox) >= HEAD.size:
            kind, size = HEAD.unpack_from(self.inbox)
            if len(self.inbox) < HEAD.size + size:
                break
            found.append((kind, bytes(self.inbox[HEAD.size : HEAD.size + size])))
            del self.inbox[: HEAD.size + size]
        return found


class Holder:
    """The shell, its terminal and the one that is attached."""

    def __init__(self, master: int, pid: int, listener: socket.socket) -> None:
        """Take over the terminal, the shell's process, and where people come from."""
        os.set_blocking(master, False)
        self._master, self._pid, self._listener = master, pid, listener
        self._attached: Attached | None = None
        self._kept = bytearray()
        self._input = bytearray()
        self._open = True
        self._wake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        # What a shell leaves behind may keep its terminal open: its end is told by a signal.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def run(self) -> int:
        """Serve until the shell has ended; return its exit code as a shell would."""
        while True:
            reads: list[int | socket.socket] = [self._listener, self._wake]
            writes: list[int | socket.socket] = []
            one = self._attached
            if one is not None:
                if len(self._input) < INBOX_BYTES_MAX:
                    reads.append(one.link)
                if one.outbox:
                    writes.append(one.link)
            if self._open and (one is None or len(one.outbox) < WAITING_BYTES_MAX):
                reads.append(self._master)
            if self._open and self._input:
                writes.append(self._master)
            readable, writable, _ = select.select(reads, writes, [])
            if self._wake in readable:
                os.read(self._wake, READ_BYTES)
            if self._master in readable:
                self._read()
            if self._master in writable:
                self._write()
            if self._listener in readable:
                self._accept()
            if one is not None and one is self._attached:
                self._serve(one, readable=one.link in readable)
            done, status = os.waitpid(self._pid, os.WNOHANG)
            if done:
                return self._last(os.waitstatus_to_exitcode(status))

    def _read(self) -> None:
        try:
            data = os.read(self._master, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # The last process that had the terminal has gone.
        if not data:
            self._open = False
            return
        self._kept += data
        del self._kept[:-KEPT_BYTES]
        if self._attached is not None:
            self._attached.put(b"o", data)

    def _write(self) -> None:
        try:
            del self._input[: os.write(self._master, self._input)]
        except BlockingIOError:
            return
        except OSError:
            self._input.clear()

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return
        peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        if PEER.unpack(peer)[1] not in (os.getuid(), 0):
            link.close()
            return
        if self._attached is not None:
            self._attached.put(b"d")
            self._leave(self._attached)
        self._attached = Attached(link)
        shown = bytes(self._kept)
        if len(shown) == KEPT_BYTES:
            shown = shown[shown.find(b"\n") + 1 :]  # Not the rest of a line, or of a sequence.
        if shown:
            self._attached.put(b"o", shown)

    def _serve(self, one: Attached, *, readable: bool) -> None:
        said = one.messages() if readable else []
        for kind, body in said or ():
            if kind == b"i":
                self._input += body
            elif kind == b"r" and len(body) == SIZE.size:
                self._resize(*SIZE.unpack(body))
        if said is None or not one.flush():
            self._leave(one)

    def _resize(self, rows: int, columns: int) -> None:
        before = fcntl.ioctl(self._master, termios.TIOCGWINSZ, b"\0" * 8)
        wanted = struct.pack("HHHH", rows, columns, 0, 0)
        if before == wanted:
            # What draws whole screens draws this one anew only if its size has changed.
            fcntl.ioctl(
                self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows + 1, columns, 0, 0)
            )
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, wanted)

    def _leave(self, one: Attached) -> None:
        one.flush()
        one.link.close()
        self._attached = None

    def _last(self, code: int) -> int:
        """Show what the shell printed last, and how it ended."""
        until = time.monotonic() + LAST_WITHIN_S
        while self._open and time.monotonic() < until:
            ready, _, _ = select.select([self._master], [], [], 0)
            if not ready:
                break
            self._read()
        one = self._attached
        if one is not None:
            one.put(b"x", CODE.pack(code))
            while one.outbox and time.monotonic() < until:
                select.select([], [one.link], [], 0.1)
                if not one.flush():
                    break
            one.link.close()
        return 128 - code if code < 0 else code


def listen(run: str) -> socket.socket:
    """Return a socket at which only this account can attach to a run.

    Raises:
        OSError: It cannot be made, or another account was there before.
    """
    place = folder()
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        pass  # Another shell of this account, or of another account: it is looked at.
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(errno.EPERM, "it is not a folder of this account alone", place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = address(run)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # The usual case: no earlier one of this name was killed.
    listener.bind(path)
    listener.listen(4)
    listener.setblocking(False)
    return listener


def main(arguments: Sequence[str]) -> int:
    """Run a shell on a terminal that can be attached to; return its exit code."""
    run = os.environ.get(RUN_VARIABLE, "")
    if not run or "/" in run:
        sys.stderr.write("skep_job.terminal: it is a job's process: `skep shell` starts it\n")
        return 2
    try:
        listener = listen(run)
    except OSError as error:
        text = f"skep_job.terminal: nobody could attach: {error.strerror} ({error.filename})\n"
        sys.stderr.write(text)
        return 1
    argv = shell(list(arguments)[1:] if list(arguments)[:1] == ["--"] else arguments)
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.execvp(argv[0], argv)  # noqa: S606 - no shell is between
        except OSError as error:
            os.write(2, f"{argv[0]} cannot be executed: {error.strerror}\r\n".encode())
        os._exit(127)
    os.set_inheritable(master, False)

    def hang_up(number: int, frame: object) -> None:
        # A shell that a person uses takes no SIGTERM, and ends when its terminal does.
        os.kill(pid, signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hang_up)
    sys.stdout.write(f"[skep] a shell runs here: skep attach {run.partition('.')[0]}\n")
    sys.stdout.flush()
    try:
        return Holder(master, pid, listener).run()
    finally:
        try:
            os.unlink(address(run))
        except OSError:
            pass  # Its /tmp has gone before it.
