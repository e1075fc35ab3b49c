"""One session in a job, from a person's side: its terminal or its pipes, and the gateway.

One loop waits for all of it. What cannot be written yet waits here, at most one window of it, and
the command in the job waits with it. A terminal is put back as it was, whatever ends the session.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from skep_services.cli import exits, websocket
from skep_services.cli.client import Client, quote
from skep_services.cli.connection import LostError
from skep_services.cli.exits import CommandError
from skep_services.cli.websocket import WebSocket

OPEN, INPUT, END_OF_INPUT, RESIZE = b"o", b"i", b"e", b"r"
OPENED, OUTPUT, ERRORS, OVER, USED_UP, ALIVE = b"b", b"1", b"2", b"x", b"u", b"a"
"""The first byte of a frame: see `skep.wire.terminal`, which takes too long to import."""
WINDOW_BYTES = 256 * 1024
DATA_BYTES_MAX = 32 * 1024
FRAME_COST = 64
ALIVE_EVERY_S = 5.0
SILENT_S = 20.0
SILENT = f"nothing was heard of the gateway for {SILENT_S:.0f} s"
WRITE_BYTES = 1024
"""How much is written to a terminal or a pipe that can take something, so that it does not block:
a pipe takes 4 KiB then, a terminal less."""
ESCAPE = b"\x10\x11"
"""Ctrl-p Ctrl-q: what lets a person leave a terminal without ending what runs there."""
STDIN, STDOUT, STDERR = 0, 1, 2


class Ended(NamedTuple):
    """How a session ended: the command's exit code, or `detached`."""

    code: int
    detached: bool = False


class Session:
    """One session. `begin` it, then `run` it."""

    def __init__(
        self,
        client: Client,
        job: str,
        wanted: dict[str, Any],
        *,
        escape: bytes = b"",
        stdin: int = STDIN,
        write: Callable[[int, bytes], int] | None = None,
    ) -> None:
        """Take what is to run.

        Args:
            client: The gateway.
            job: The job.
            wanted: As `skep.wire.terminal.Open` has it.
            escape: Keys that let a person leave; empty: none do.
            stdin: The descriptor of the input; -1: there is none.
            write: Takes output (1) and errors (2) in place of this process's own.
        """
        self._client, self._job, self._wanted = client, job, wanted
        self._escape, self._stdin, self._write = Escape(escape), stdin, write
        self._terminal = bool(wanted.get("terminal"))
        self._opened = self._input_over = False
        self._waiting: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self._sizes: dict[int, deque[int]] = {STDOUT: deque(), STDERR: deque()}
        """Of the frames whose bodies wait."""
        self._used = self._used_told = self._received = 0
        self._sent = self._confirmed = 0
        self._heard_at = time.monotonic()
        self._alive_at = 0.0
        self._over: dict[str, Any] | None = None
        link, behind = client.upgrade(f"/v1/jobs/{quote(job)}/terminal", websocket.asking())
        self._socket = WebSocket(link, behind)
        self._wake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        self._wakes = wakes

    def run(self) -> Ended:
        """Carry the session until it is over.

        Raises:
            CommandError: It could not be opened, or was lost.
        """
        self._put(OPEN, json.dumps(self._wanted).encode())
        try:
            with self._raw_terminal():
                return self._carry()
        except LostError as error:
            raise CommandError(exits.UNREACHABLE, self._lost(str(error)), "session-lost") from None
        finally:
            self._socket.close()
            os.close(self._wake)
            os.close(self._wakes)

    # --- the loop -------------------------------------------------------------------------------

    def _carry(self) -> Ended:
        while True:
            if self._over is not None and not any(self._waiting.values()):
                return self._ended(self._over)
            now = time.monotonic()
            if now - self._heard_at > SILENT_S:
                raise LostError(SILENT)
            if now - self._alive_at >= ALIVE_EVERY_S:
                self._alive_at = now
                self._put(ALIVE)
            readable, writable, _ = select.select(*self._sources(), self._pause(now))
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._put(RESIZE, _size_frame())
            if self._socket in readable or self._socket.pending:
                self._hear()
            for number in (STDOUT, STDERR):
                if self._waiting[number] and (self._write or number in writable):
                    self._show(number)
            if self._socket in writable:
                self._socket.flush()
            if self._stdin in readable and self._take_input():
                return Ended(0, detached=True)

    def _sources(self) -> tuple[list[Any], list[Any], list[Any]]:
        reads: list[Any] = [self._wake]
        writes: list[Any] = []
        if self._over is None:
            reads.append(self._socket)
        room = self._sent - self._confirmed + DATA_BYTES_MAX + FRAME_COST <= WINDOW_BYTES
        reads_input = self._opened and not self._input_over and self._over is None
        if self._stdin >= 0 and reads_input and room and self._socket.waiting < WINDOW_BYTES:
            reads.append(self._stdin)
        if self._socket.waiting:
            writes.append(self._socket)
        if self._write is None:
            writes += [number for number in (STDOUT, STDERR) if self._waiting[number]]
        return reads, writes, []

    def _pause(self, now: float) -> float:
        if self._socket.pending or (self._write is not None and any(self._waiting.values())):
            return 0.0
        return max(0.0, min(ALIVE_EVERY_S, self._alive_at + ALIVE_EVERY_S - now))

    def _hear(self) -> None:
        for message in self._socket.receive():
            self._heard_at = time.monotonic()
            self._obey(message[:1], message[1:])
        if self._socket.closed and self._over is None:
            raise LostError(websocket.CUT)

    def _obey(self, kind: bytes, body: bytes) -> None:
        if kind in (OUTPUT, ERRORS):
            number = STDOUT if kind == OUTPUT else STDERR
            self._received += len(body) + FRAME_COST
            self._waiting[number] += body
            self._sizes[number].append(len(body))
        elif kind == OPENED:
            self._opened = True
        elif kind == USED_UP and len(body) == 8:
            self._confirmed = int.from_bytes(body, "big")
        elif kind == OVER:
            self._over = json.loads(body)

    def _show(self, number: int) -> None:
        """Write some of what waits, and say how much was used."""
        waiting = self._waiting[number]
        if self._write is not None:
            done = self._write(number, bytes(waiting))
        else:
            done = os.write(number, waiting[:WRITE_BYTES])
        del waiting[:done]
        sizes = self._sizes[number]
        self._used += done
        while sizes and done >= sizes[0]:
            done -= sizes.popleft()
            self._used += FRAME_COST
        if done:
            sizes[0] -= done
        fresh = self._used - self._used_told
        if fresh and (fresh >= DATA_BYTES_MAX or self._used == self._received):
            self._used_told = self._used
            self._put(USED_UP, self._used.to_bytes(8, "big"))

    def _take_input(self) -> bool:
        """Read some input and send it; return whether the person wants to leave."""
        try:
            data = os.read(self._stdin, DATA_BYTES_MAX - len(ESCAPE))
        except OSError:
            data = b""
        if not data:
            self._input_over = True
            self._put(END_OF_INPUT)
            return False
        data, leaves = self._escape.feed(data)
        if data:
            self._sent += len(data) + FRAME_COST
            self._put(INPUT, data)
        return leaves

    def _put(self, kind: bytes, body: bytes = b"") -> None:
        if self._over is None:
            self._socket.send(kind + body)

    # --- the end --------------------------------------------------------------------------------

    def _ended(self, over: dict[str, Any]) -> Ended:
        code = over.get("code")
        if isinstance(code, int):
            return Ended(128 - code if code < 0 else code)
        reason, text = str(over.get("reason", "session-lost")), str(over.get("text", ""))
        status = {"no-rank": exits.NOT_FOUND, "node-away": exits.UNREACHABLE}.get(reason)
        if reason == "session-lost":
            status, text = exits.UNREACHABLE, self._lost(text)
        more = {"returns": True} if over.get("returns") is True else {}
        raise CommandError(status or exits.FAILED, text, reason, **more)

    def _lost(self, why: str) -> str:
        job = self._job
        if self._wanted.get("what") == "attach":
            return f"the session is lost: {why}; the shell goes on: skep attach {job}"
        return f"the session is lost, and its command is ended: {why} (the job is not: {job})"

    @contextlib.contextmanager
    def _raw_terminal(self) -> Iterator[None]:
        """Have every key go to the job, until the session is over."""
        if not self._terminal or self._stdin < 0 or not os.isatty(self._stdin):
            yield
            return
        import termios
        import tty

        before = termios.tcgetattr(self._stdin)
        signals = {
            number: signal.signal(number, _terminated)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        }
        signals[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
        kept = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        try:
            tty.setraw(self._stdin, termios.TCSANOW)
            yield
        finally:
            # Not TCSADRAIN: where nobody reads the terminal it would wait for ever.
            termios.tcsetattr(self._stdin, termios.TCSANOW, before)
            signal.set_wakeup_fd(kept)
            for number, handler in signals.items():
                signal.signal(number, handler)


def _terminated(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def size() -> tuple[int, int]:
    """Return rows and columns of this terminal."""
    for number in (STDOUT, STDIN, STDERR):
        try:
            found = os.get_terminal_size(number)
        except OSError:
            continue
        if found.lines and found.columns:
            return min(found.lines, 4096), min(found.columns, 4096)
    return 24, 80


def _size_frame() -> bytes:
    rows, columns = size()
    return rows.to_bytes(2, "big") + columns.to_bytes(2, "big")


class Escape:
    """Finds the keys by which a person leaves, in what it types; both may come apart."""

    def __init__(self, keys: bytes) -> None:
        """Look for these keys, one after the other; empty: for none."""
        self._keys, self._seen = keys, 0

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Return what of the input goes on, and whether the person leaves."""
        if not self._keys:
            return data, False
        passed = bytearray()
        for byte in data:
            if byte == self._keys[self._seen]:
                self._seen += 1
                if self._seen == len(self._keys):
                    return bytes(passed), True
                continue
            # The first key alone is the job's: what was held back goes on before this one.
            passed += self._keys[: self._seen]
            self._seen = int(byte == self._keys[0])
            if not self._seen:
                passed.append(byte)
        return bytes(passed), False


def is_terminal() -> bool:
    """Return whether a person sits here: its keys come in, and what is printed is seen."""
    return sys.stdin is not None and os.isatty(STDIN) and os.isatty(STDOUT)
