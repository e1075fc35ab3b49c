"""A command that a person runs in a container: an exec of the engine, over a connection of its own.

The engine starts it in the container, as its user and with its variables, and carries its terminal,
or its three streams in frames of eight bytes and a piece (Engine API, "Attach to a container"). The
engine does not end it when the connection ends. So it carries a mark in its variables, and `close`
has the container kill whatever has that mark; an image without `grep` keeps it until its run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol

from skep_services.adapters.docker_engine import EngineGoneError
from skep_services.agent.runner_sessions import KEPT_BACK
from skep_services.ports import Entered, EnterPlan, NotEntered

MARK = "SKEP_SESSION"
HEAD = struct.Struct(">BxxxI")
HEAD_BYTES_MAX = 16 * 1024
READ_BYTES = 32 * 1024
STARTED_WITHIN_S = 10.0
SIGNALS_ABOVE, SIGNALS_MAX = 128, 64
WITHOUT = f'unset {" ".join(sorted(KEPT_BACK))}; exec "$@"'
"""Images have a /bin/sh; the variables by which a rank speaks are not for a person's command."""
END_ALL = 'for p in /proc/[0-9]*; do grep -qs "$0" "$p/environ" && kill -9 "${p#/proc/}"; done'


class Execs(Protocol):
    """What is asked of an engine about commands in its containers: blocking calls, for threads."""

    host: str

    def exec_create(self, token: str, argv: list[str], **how: Any) -> str:
        """Return the id of a new command, not started."""
        ...

    def exec_state(self, number: str) -> tuple[bool, int | None]:
        """Return whether a command runs, and its exit code; None: it is not known any more."""
        ...

    def exec_resize(self, number: str, rows: int, columns: int) -> None:
        """Set the size of a command's terminal."""
        ...

    def exec_alone(self, token: str, argv: list[str]) -> None:
        """Run a command in a container, and do not wait for it."""
        ...


Call = Callable[..., Any]


class ContainerSession:
    """One command; see `ports.Entered`."""

    def __init__(
        self,
        engine: Execs,
        call: Call,
        number: str,
        token: str,
        link: socket.socket,
        behind: bytes,
        *,
        mark: str,
        terminal: bool,
        lives: Callable[[], bool],
    ) -> None:
        """Take over the connection; `call` runs blocking calls, `lives` tells of the run."""
        self._engine, self._call, self._number = engine, call, number
        self._token, self._mark, self._terminal, self._lives = token, mark, terminal, lives
        self._link, self._inbox = link, bytearray(behind)
        self._stream, self._left = 1, 0
        self._code: int | None = None
        self._over = False
        self._tasks: dict[int, asyncio.Future[Any]] = {}
        self.run_over = False
        self.run_code: int | None = None

    async def read(self, most: int) -> tuple[int, bytes] | None:
        while not self._over:
            piece = self._piece(most)
            if piece is not None:
                return piece
            try:
                data = await asyncio.get_running_loop().sock_recv(self._link, READ_BYTES)
            except OSError:
                data = b""
            if not data:
                await self._ended()
            self._inbox += data
        return None

    def _piece(self, most: int) -> tuple[int, bytes] | None:
        if self._terminal:
            self._left = len(self._inbox)
        elif not self._left and len(self._inbox) >= HEAD.size:
            self._stream, self._left = HEAD.unpack_from(self._inbox)
            del self._inbox[: HEAD.size]
        data = bytes(self._inbox[: min(most, self._left)])
        del self._inbox[: len(data)]
        self._left -= len(data)
        return (2 if self._stream == 2 else 1, data) if data else None

    async def _ended(self) -> None:
        running, code = await self._call(self._engine.exec_state, self._number)
        self._over = True
        self._code = None if running or code is None else _signalled(code)
        self.run_over = code is None or not self._lives()

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # It takes no input any more: that is its own matter.
            await asyncio.get_running_loop().sock_sendall(self._link, data)

    def end_input(self) -> None:
        if not self._terminal:
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal and not self._over:
            with contextlib.suppress(EngineGoneError):  # Its next size may come through.
                await self._call(self._engine.exec_resize, self._number, rows, columns)

    @property
    def code(self) -> int | None:
        return self._code

    def close(self) -> None:
        if self._link.fileno() >= 0:
            self._link.close()
            if not self._over and self._lives():
                words = ["/bin/sh", "-c", END_ALL, f"{MARK}={self._mark}"]
                self._spawn(self._call(self._engine.exec_alone, self._token, words))
        self._over = True

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[id(task)] = task
        task.add_done_callback(lambda done: self._tasks.pop(id(done), None) and done.exception())


def _signalled(code: int) -> int:
    """Return an exit status, or minus the signal's number, as far as an engine tells them apart."""
    return SIGNALS_ABOVE - code if SIGNALS_ABOVE < code <= SIGNALS_ABOVE + SIGNALS_MAX else code


async def enter(
    engine: Execs, call: Call, plan: EnterPlan, lives: Callable[[], bool]
) -> Entered | NotEntered:
    """Have an engine start a command in the container of a run.

    Args:
        engine: The engine.
        call: Runs one of its blocking calls.
        plan: The run and the command.
        lives: Says whether the run's container runs.

    Raises:
        CancelledError: It is not waited for any more.
    """
    mark = secrets.token_hex(16)
    argv = ["/bin/sh", "-c", WITHOUT, "sh", *plan.argv]
    how = {"tty": plan.terminal, "environment": {**plan.env, MARK: mark}}
    number = await call(functools.partial(engine.exec_create, plan.token, argv, **how))
    link: socket.socket | None = None
    try:
        async with asyncio.timeout(STARTED_WITHIN_S):
            link = await _connected(engine.host)
            behind = await _start(link, number, plan)
            if plan.terminal:  # An older engine takes no size at the start.
                await call(engine.exec_resize, number, plan.rows, plan.columns)
    except asyncio.CancelledError:
        if link is not None:
            link.close()
        raise
    except (OSError, TimeoutError, ValueError) as error:
        if link is not None:
            link.close()
        return NotEntered(f"the engine did not start it: {error}")
    return ContainerSession(
        engine,
        call,
        number,
        plan.token,
        link,
        behind,
        mark=mark,
        terminal=plan.terminal,
        lives=lives,
    )


async def _connected(host: str) -> socket.socket:
    """Return a connection to an engine.

    Raises:
        ValueError: It is reached in a way that no session goes.
        OSError: It does not answer.
    """
    if not host.startswith("unix://"):
        message = f"not-built: sessions in containers go by an engine's Unix socket, not {host}"
        raise ValueError(message)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(link, host.removeprefix("unix://"))
    except BaseException:
        link.close()
        raise
    return link


async def _start(link: socket.socket, number: str, plan: EnterPlan) -> bytes:
    """Start a command, and return what came of it with the engine's answer.

    Raises:
        ValueError: The engine refuses it; the text says why.
        ConnectionError: It hangs up.
    """
    loop = asyncio.get_running_loop()
    size = {"ConsoleSize": [plan.rows, plan.columns]} if plan.terminal else {}
    body = json.dumps({"Detach": False, "Tty": plan.terminal, **size}).encode()
    lines = (
        f"POST /exec/{number}/start HTTP/1.1",
        "Host: engine",
        "Content-Type: application/json",
        "Connection: Upgrade",
        "Upgrade: tcp",
        f"Content-Length: {len(body)}",
        "\r\n",
    )
    await loop.sock_sendall(link, "\r\n".join(lines).encode() + body)
    said = b""
    while b"\r\n\r\n" not in said:
        data = await loop.sock_recv(link, READ_BYTES)
        if not data or len(said) > HEAD_BYTES_MAX:
            message = "the engine hung up"
            raise ConnectionError(message)
        said += data
    head, _, behind = said.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status not in ([b"101"], [b"200"]):
        raise ValueError(_complaint(behind) or head.split(b"\r\n", 1)[0].decode("latin-1"))
    return behind


def _complaint(body: bytes) -> str:
    begin, end = body.find(b"{"), body.rfind(b"}")
    try:
        return str(json.loads(body[begin : end + 1]).get("message", ""))
    except ValueError:
        return ""
