"""The node runtime for plain processes: a client of the runner that holds them.

The runner (`skep_services.agent.runner`) is another process, so the runs, their exit codes and
their logs outlive this one. Every request may be repeated without harm, so a lost connection is
mended by starting a runner if there is none, and asking again what has no answer yet.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skep.units import Instant
from skep_services.adapters import process_session
from skep_services.adapters.ends import Ends
from skep_services.agent import runner, runner_process
from skep_services.ports import (
    Entered,
    EnterPlan,
    NotEntered,
    RunExited,
    RunNotStarted,
    RunPlan,
    RunStarted,
)

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""How long a runner without runs waits for an agent to come back."""

INTERPRETER = (sys.executable, "-I", "-S", "-X", "utf8")
"""Isolated and without site-packages: the runner needs the standard library only, and starts in
half the time. UTF-8 whatever the locale, because paths and environments arrive as JSON.
"""

PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
)
"""What the runner gets of the agent's environment. It holds jobs, and needs no credentials."""

REQUESTS_MAX = 1024
"""Requests under way at once; more wait. A start takes about a millisecond, so this is a second."""

CONNECT_ATTEMPTS_MAX = 30
CONNECT_PAUSE_SECONDS = 0.02
CONNECT_PAUSE_SECONDS_MAX = 1.0
"""The pause between attempts doubles up to its bound: half a minute in all, in which a runner that
is ending lets go of its lock, and a machine short of memory may recover.
"""

SHORT_LIVES_MAX = 10
SHORT_LIFE_SECONDS = 1.0
"""How many runners in a row may die this soon: one that dies of what it is asked dies each time."""

LAUNCH_SECONDS_MAX = 30.0
"""How long a runner may take to start: it takes 0.1 s on an idle machine."""

COMPLAINT_BYTES = 2000
"""How much of the runner's stderr an error quotes: the end of a traceback."""

_SHUTDOWN = 0  # The request number of a shutdown: its answer is the last message there is.
_GREETING = -1  # The request number of the first request of each connection.


class RunnerLostError(Exception):
    """No runner can be started or reached: an operator has to look. The text says what it said."""


class ProcessRuntime:
    """The runs of the node whose state folder is `state` (created if absent, 0700).

    One runner serves each state folder. It ends by itself after `idle_s` seconds without a living
    run or a client. `open` raises RunnerLostError where no runner can be started, and so does
    every other call from the moment a lost runner could not be replaced.

    A run whose start was under way when the runner was killed, and of which no process is left,
    is reported as started with pid 0, and as ended without exit code.
    """

    def __init__(
        self, state: Path, idle_s: float = IDLE_SECONDS, interpreter: Sequence[str] = INTERPRETER
    ) -> None:
        self._name = f"the runner of {state}"
        self._state = state
        self._idle_s = idle_s
        self._interpreter = interpreter
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        self._number = _SHUTDOWN
        self._pending: dict[int, tuple[bytes, asyncio.Future[dict[str, Any]]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._lost: Exception | None = None
        self._ends = Ends()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        assert not self._tasks, "open is called once"
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        reader = await self._connect()
        self._tasks = [
            asyncio.create_task(self._keep_connected(reader)),
            asyncio.create_task(self._ends.tell(on_exit)),
        ]

    async def runs(self) -> list[RunStarted | RunExited]:
        answer = await self._ask({"do": "list"})
        return [_run(run) for run in answer["runs"]]

    async def start(self, plan: RunPlan) -> RunStarted | RunNotStarted:
        assert plan.argv, f"run {plan.token} has no command"
        token_fits = plan.token.isascii() and len(plan.token) <= runner.TOKEN_CHARS_MAX
        assert token_fits, f"token {plan.token!r}: ASCII, {runner.TOKEN_CHARS_MAX} characters"
        answer = await self._ask({"do": "start", "plan": self._asked(plan)})
        if "not_started" in answer:
            at_node = answer.get("fault") == "node"
            return RunNotStarted(plan.token, answer["not_started"], of_node=at_node)
        if "warm" in answer:
            log.info("run %s was forked from a warm process", plan.token)
        elif "cold" in answer:
            log.info("run %s was executed, not forked: %s", plan.token, answer["cold"])
        return _started(answer["started"])

    def _asked(self, plan: RunPlan) -> dict[str, Any]:
        """Return a plan as the runner takes it."""
        return {
            "token": plan.token,
            "argv": plan.argv,
            "env": dict(plan.env),
            "workdir": plan.workdir,
            "log_path": plan.log_path,
            "log_bytes_max": plan.log_bytes_max,
            "script": plan.script,
            # Launchers of before know no such key: it is said where it is needed.
            **({"fresh": True} if plan.fresh else {}),
            **({"warm": msgspec.to_builtins(plan.warm)} if plan.warm else {}),
        }

    async def stop(self, token: str, grace_s: float) -> None:
        await self._ask({"do": "stop", "token": token, "grace_s": grace_s})

    async def freeze(self, token: str) -> str:
        answer = await self._ask({"do": "freeze", "token": token})
        return str(answer.get("trouble", ""))

    async def thaw(self, token: str) -> str:
        answer = await self._ask({"do": "thaw", "token": token})
        return str(answer.get("trouble", ""))

    async def signal(self, token: str, name: str, order: int) -> str:
        request = {"do": "signal", "token": token, "name": name, "order": order}
        answer = await self._ask(request, may_refuse=True)
        if "error" in answer:
            return f"{self._name} began before an upgrade, and knows no signals"
        return str(answer.get("trouble", ""))

    async def enter(self, plan: EnterPlan) -> Entered | NotEntered:
        return await process_session.enter(self._session_connection, plan)

    async def forget(self, token: str) -> None:
        await self._ask({"do": "forget", "token": token})
        self._ends.forget(token)

    async def ping(self) -> int:
        """Return the runner's pid, having heard from it."""
        pid: int = (await self._ask({"do": "ping"}))["pid"]
        return pid

    async def shutdown(self, grace_s: float) -> None:
        """Stop every run, wait until all are gone and end the runner. Then only `close` is left.

        The ends go to the next process that opens this state folder.

        Args:
            grace_s: How long a run may take to end before it is killed (seconds).
        """
        await self._ask({"do": "shutdown", "grace_s": grace_s}, _SHUTDOWN)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, future in self._pending.values():
            future.cancel()
        await self._disconnect()

    # --- requests ---------------------------------------------------------------------------------

    async def _ask(
        self, request: dict[str, Any], number: int | None = None, *, may_refuse: bool = False
    ) -> dict[str, Any]:
        assert self._tasks, "open comes first"
        async with self._slots:
            if self._lost is not None:
                raise self._lost
            if number is None:
                self._number += 1
                number = self._number
            frame = _frame({"id": number, **request})
            future = asyncio.get_running_loop().create_future()
            self._pending[number] = (frame, future)
            try:
                if self._writer is not None:
                    self._writer.write(frame)
                answer: dict[str, Any] = await future
            finally:
                del self._pending[number]
        assert may_refuse or "error" not in answer, (
            f"the runner refused {request}: {answer['error']}"
        )
        return answer

    def _take(self, message: dict[str, Any]) -> None:
        if "exited" in message:
            self._ends.heard(_exited(message["exited"]))
            return
        for run in message.get("runs", ()):
            if "code" in run:
                self._ends.heard(_exited(run))
        if message["id"] in self._pending:
            _, future = self._pending[message["id"]]
            if not future.done():
                future.set_result(message)

    # --- the connection ---------------------------------------------------------------------------

    async def _keep_connected(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._stay_connected(reader)
        except Exception as error:
            log.exception("%s is lost", self._name)
            self._lost = error
            for _, future in self._pending.values():
                if not future.done():
                    future.set_exception(error)

    async def _stay_connected(self, reader: asyncio.StreamReader) -> None:
        short_lives = 0
        connected_at = time.monotonic()
        while not await self._listen(reader, _SHUTDOWN):
            await self._disconnect()
            log.warning("%s is gone; starting another", self._name)
            short = time.monotonic() - connected_at < SHORT_LIFE_SECONDS
            short_lives = short_lives + 1 if short else 0
            if short_lives > SHORT_LIVES_MAX:
                text = f"{self._name} dies again and again: {self._complaint()}"
                raise RunnerLostError(text)
            reader = await self._connect()
            connected_at = time.monotonic()
            assert self._writer is not None
            for frame, _ in self._pending.values():
                self._writer.write(frame)

    async def _listen(self, reader: asyncio.StreamReader, last: int) -> bool:
        """Take messages up to the answer to request `last`; return whether it came."""
        try:
            while True:
                (length,) = runner.LENGTH.unpack(await reader.readexactly(runner.LENGTH.size))
                message = json.loads(await reader.readexactly(length))
                self._take(message)
                if message.get("id") == last:
                    return True
        except (asyncio.IncompleteReadError, ConnectionError):
            return False

    async def _connect(self) -> asyncio.StreamReader:
        """Connect to the runner, starting it if there is none.

        Raises:
            RunnerLostError: No runner can be started, or none can be reached.
        """
        pause = CONNECT_PAUSE_SECONDS
        for attempt in range(CONNECT_ATTEMPTS_MAX):
            if attempt > 0:
                await self._launch()
            try:
                reader, writer = await self._connect_once()
            except (FileNotFoundError, ConnectionError):
                pass  # There is none, it is just ending, or it has just been killed.
            else:
                if await self._greet(reader, writer):
                    return reader
            if attempt > 0:
                await asyncio.sleep(pause)
                pause = min(pause * 2, CONNECT_PAUSE_SECONDS_MAX)
        text = f"{self._name} starts but cannot be reached: {self._complaint()}"
        raise RunnerLostError(text)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hear what ended meanwhile; return whether the connection is fit for use."""
        try:
            writer.write(_frame({"id": _GREETING, "do": "list"}))
            if await self._listen(reader, _GREETING):
                self._writer = writer
        finally:
            if self._writer is not writer:
                await _close(writer)
        return self._writer is writer

    async def _connect_once(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # An address has room for 107 bytes; a folder of any depth is reached by its descriptor.
        folder = os.open(self._state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            path = f"/proc/self/fd/{folder}/runner.sock"
            return await asyncio.open_unix_connection(path)
        finally:
            os.close(folder)

    async def _session_connection(self) -> socket.socket:
        """Return a new connection to the runner, which is not asyncio's: descriptors come by it."""
        folder = os.open(self._state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return await unix_connection(f"/proc/self/fd/{folder}/runner.sock")
        finally:
            os.close(folder)

    async def _launch(self) -> None:
        """Start a runner; do nothing if one holds the lock.

        Raises:
            RunnerLostError: It cannot be started, fails, or takes longer than LAUNCH_SECONDS_MAX.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *self._interpreter,
                runner_process.__file__,
                self._state,
                str(self._idle_s),
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            text = f"{self._name} cannot be started: {error}"
            raise RunnerLostError(text) from error
        try:
            async with asyncio.timeout(LAUNCH_SECONDS_MAX):
                _, complaint = await process.communicate()
        except TimeoutError as error:
            text = f"{self._name} did not start within {LAUNCH_SECONDS_MAX:.0f} s"
            raise RunnerLostError(text) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        if process.returncode != 0:
            said = complaint.decode(errors="replace")[-COMPLAINT_BYTES:].strip()
            text = f"{self._name} does not start: {said}"
            raise RunnerLostError(text)

    async def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await _close(writer)

    def _complaint(self) -> str:
        try:
            text = (self._state / "runner.log").read_bytes()
        except OSError as error:
            return str(error)
        return text[-COMPLAINT_BYTES:].decode(errors="replace").strip() or "it left no word"


async def unix_connection(path: str) -> socket.socket:
    """Return a socket that is connected to a path.

    Raises:
        OSError: No process listens there.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(made, path)
    except BaseException:
        made.close()
        raise
    return made


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass  # It is closed all the same.


def _frame(message: dict[str, Any]) -> bytes:
    # Not msgspec: environments may hold bytes that are no UTF-8, as lone surrogates.
    text = json.dumps(message).encode()
    assert len(text) <= runner.MESSAGE_BYTES_MAX, f"a request of {len(text)} bytes"
    return runner.LENGTH.pack(len(text)) + text


def _run(run: dict[str, Any]) -> RunStarted | RunExited:
    return _exited(run) if "code" in run else _started(run)


def _started(run: dict[str, Any]) -> RunStarted:
    frozen = bool(run.get("frozen", False))
    uid = run.get("uid", -1)
    return RunStarted(run["token"], run["pid"], run["ticks"], Instant(run["at"]), frozen, uid)


def _exited(run: dict[str, Any]) -> RunExited:
    return RunExited(
        run["token"],
        run["code"],
        Instant(run["at"]),
        run["leftovers"],
        run["asked"],
        tuple(run.get("left", ())),
        run.get("exceeded", ""),
    )
