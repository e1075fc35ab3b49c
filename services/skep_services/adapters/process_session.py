"""A command that a person runs in a process run: its descriptors, and the runner that told of it.

The runner starts it and hands its descriptors over (see `agent.runner_sessions`). The connection on
which that was asked is the session's own: when it ends, the runner hangs up on the command, so an
agent that dies leaves none behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from skep_services.agent import runner
from skep_services.agent.runner_ends import resize
from skep_services.ports import Entered, EnterPlan, NotEntered

ANSWER_WITHIN_S = 10.0
"""How long a runner or a launcher may take to start a command: it takes some milliseconds."""
DESCRIPTORS_MAX = 3
STDOUT, STDERR = 1, 2
OLDER = (
    "what holds this job's processes is of a version that runs no commands in them: it is replaced "
    "when no job runs on the node (`systemctl reload skep-launcher` replaces a launcher at once)"
)

Connect = Callable[[], Awaitable[socket.socket]]


class ProcessSession:
    """One running command; see `ports.Entered`."""

    def __init__(self, connection: socket.socket, handed: list[int], *, terminal: bool) -> None:
        """Take over the connection and the descriptors."""
        self._connection, self._terminal = connection, terminal
        self._stdin = handed[0]
        self._outputs = {handed[0]: STDOUT} if terminal else {handed[1]: STDOUT, handed[2]: STDERR}
        self._open = dict.fromkeys(handed, True)
        for number in handed:
            os.set_blocking(number, False)
        self._ready, self._writable = asyncio.Event(), asyncio.Event()
        self._watched: dict[int, bool] = {}
        self._told: bytearray = bytearray()
        self._code: int | None = None
        self._over = False
        self.run_over = False
        self.run_code: int | None = None
        asyncio.get_running_loop().add_reader(connection.fileno(), self._hear)

    # --- output ---------------------------------------------------------------------------------

    async def read(self, most: int) -> tuple[int, bytes] | None:
        while True:
            self._ready.clear()
            # Asked first: what it wrote before its end is there by then.
            over = self._over
            for number, stream in list(self._outputs.items()):
                data = self._taken(number, most)
                if data:
                    return stream, data
            if over:
                return None
            self._watch()
            await self._ready.wait()

    def _taken(self, number: int, most: int) -> bytes:
        """Return what is there to read; empty: nothing now. A stream that has ended is dropped."""
        pieces: list[bytes] = []
        while most > 0:
            try:
                piece = os.read(number, most)
            except BlockingIOError:
                break
            except OSError:
                piece = b""  # The last process that had the terminal has gone.
            if not piece:
                self._unwatch(number)
                del self._outputs[number]
                if not self._terminal:
                    self._drop(number)
                break
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._outputs:
            if number not in self._watched:
                self._watched[number] = True
                loop.add_reader(number, self._seen, number)

    def _seen(self, number: int) -> None:
        # Not watched while there is no reader: a flood would keep the agent busy.
        self._unwatch(number)
        self._ready.set()

    def _unwatch(self, number: int) -> None:
        if self._watched.pop(number, False):
            asyncio.get_running_loop().remove_reader(number)

    # --- input ----------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._open.get(self._stdin):
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                self._writable.clear()
                loop = asyncio.get_running_loop()
                loop.add_writer(self._stdin, self._writable.set)
                try:
                    await self._writable.wait()
                finally:
                    if self._open.get(self._stdin):
                        loop.remove_writer(self._stdin)
            except OSError:
                return  # The command takes no input any more: that is its own matter.

    def end_input(self) -> None:
        if not self._terminal:
            self._drop(self._stdin)

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal and self._open.get(self._stdin):
            with contextlib.suppress(OSError):
                resize(self._stdin, rows, columns)

    # --- the end --------------------------------------------------------------------------------

    @property
    def code(self) -> int | None:
        return self._code

    def close(self) -> None:
        for number in list(self._watched):
            self._unwatch(number)
        self._outputs.clear()
        for number in list(self._open):
            self._drop(number)
        if self._connection.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._connection.close()
        self._over = True
        self._ready.set()

    def _drop(self, number: int) -> None:
        if self._open.pop(number, False):
            loop = asyncio.get_running_loop()
            loop.remove_writer(number)
            self._writable.set()
            os.close(number)

    def _hear(self) -> None:
        try:
            data = self._connection.recv(runner.READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._ended(None, run_over=False)
        self._told += data
        while (message := next_message(self._told)) is not None:
            if "left" in message:
                # A runner of an earlier version does not say how the run ended.
                self.run_code = message.get("run_code")
                self._ended(int(message["left"]), run_over=bool(message.get("run_over")))

    def _ended(self, code: int | None, *, run_over: bool) -> None:
        if not self._over:
            self._over, self._code, self.run_over = True, code, run_over
            self._ready.set()


def next_message(told: bytearray) -> dict[str, Any] | None:
    """Take the next whole message out of what a runner said; None: there is none yet."""
    size = runner.LENGTH.size
    if len(told) < size:
        return None
    end = size + runner.LENGTH.unpack_from(told)[0]
    if len(told) < end:
        return None
    message: dict[str, Any] = json.loads(told[size:end])
    del told[:end]
    return message


async def enter(connect: Connect, plan: EnterPlan) -> Entered | NotEntered:
    """Have a runner start a command in one of its runs.

    Args:
        connect: Returns a new connection to the runner.
        plan: The run and the command.

    Raises:
        CancelledError: It is not waited for any more; what was started is hung up on.
    """
    handed: list[int] = []
    connection: socket.socket | None = None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            connection = await connect()
            answer, told = await _asked(connection, plan, handed)
    except asyncio.CancelledError:
        _let_go(connection, handed)  # The runner hangs up on what it may have started.
        raise
    except (OSError, TimeoutError, ValueError) as error:
        answer, told = {"refused": f"no answer of what holds the job's processes: {error!r}"}, b""
    if "entered" not in answer or len(handed) != (1 if plan.terminal else DESCRIPTORS_MAX):
        _let_go(connection, handed)
        return NotEntered(str(answer.get("refused") or OLDER))
    assert connection is not None
    session = ProcessSession(connection, handed, terminal=plan.terminal)
    session._told += told
    return session


def _let_go(connection: socket.socket | None, handed: list[int]) -> None:
    for number in handed:
        os.close(number)
    if connection is not None:
        connection.close()


async def _asked(
    connection: socket.socket, plan: EnterPlan, handed: list[int]
) -> tuple[dict[str, Any], bytes]:
    """Return the runner's answer and what it said behind it; its descriptors go to `handed`.

    Raises:
        ConnectionError: It says nothing more.
    """
    loop = asyncio.get_running_loop()
    request = {
        "id": 1,
        "do": "enter",
        "token": plan.token,
        "argv": plan.argv,
        "env": dict(plan.env),
        "terminal": plan.terminal,
        "rows": plan.rows,
        "columns": plan.columns,
    }
    text = json.dumps(request).encode()
    await loop.sock_sendall(connection, runner.LENGTH.pack(len(text)) + text)
    told = bytearray()
    while True:
        message = next_message(told)
        if message is not None and message.get("id") == 1:
            return message, bytes(told)
        if message is not None:
            continue  # A run ended meanwhile: every client is told.
        heard = loop.create_future()
        loop.add_reader(connection.fileno(), _set, heard)
        try:
            await heard
        finally:
            loop.remove_reader(connection.fileno())
        data, descriptors, _, _ = socket.recv_fds(connection, runner.READ_BYTES, DESCRIPTORS_MAX)
        handed += descriptors
        for number in descriptors:
            os.set_inheritable(number, False)
        if not data:
            message_text = "the connection ended"
            raise ConnectionError(message_text)
        told += data


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
