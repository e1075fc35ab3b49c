"""Keeping processes up: start, watch, start again, and stop.

A child is in a session of its own, so an interrupt at the terminal reaches the supervisor alone,
and its output goes straight into a file, so it outlives a supervisor that is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable
from typing import Any, Literal

from skep_services.supervisor.backoff import Backoff
from skep_services.supervisor.home import FILE_MODE, FOLDER_MODE, start_ticks
from skep_services.supervisor.table import ChildPlan

FINAL_CODES = {
    64: "bad configuration",
    72: "its log is missing or corrupt",
    73: "its name is taken by another process",
}
"""Ends after which starting again can only do harm, or nothing: a person has to look."""

STOP_WITHIN_S = 10.0
"""How long a process may take to end in good order before it is killed."""

PROBE_EVERY_S = 0.03
"""How often a starting process is looked at: it takes half a second, so this adds nothing."""

LOG_BYTES_MAX = 64 * 1024 * 1024
"""Of a process's own log. What is beyond goes into one older file, and then away."""

LINE_BYTES_MAX = 1024 * 1024

State = Literal["starting", "ready", "backoff", "stopped", "ended"]


class Child:
    """One process that is kept up. `changed` is called whenever what is known of it changes."""

    def __init__(
        self, plan: ChildPlan, say: Callable[..., None], changed: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.state: State = "starting"
        self.restarts = -1
        self.pid = 0
        self.start_ticks = 0
        self.started_at_ns = 0
        self.exit_code: int | None = None
        self.detail = ""
        self._say = say
        self._changed = changed
        self._backoff = Backoff()
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin keeping it up."""
        assert self._task is None, self.plan.name
        self._task = asyncio.create_task(self._keep(), name=self.plan.name)

    async def wait_ready(self) -> bool:
        """Return True once it is ready, False once it is given up."""
        assert self._task is not None
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        return self._ready.is_set()

    async def stop(self) -> None:
        """End the process in good order, by force if it takes too long, and for good."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    def kill(self) -> None:
        """Have it start anew: kill the process, if there is one."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def reload(self) -> None:
        """Have it read its configuration again, if it runs: else it will when it starts."""
        if self.pid:
            os.kill(self.pid, signal.SIGHUP)

    def facts(self) -> dict[str, Any]:
        """Return what `pids.json` says of it."""
        return {
            "pid": self.pid,
            "start_ticks": self.start_ticks,
            "restarts": max(self.restarts, 0),
            "state": self.state,
            "exit": self.exit_code,
            "detail": self.detail,
            "started_at": self.started_at_ns,
        }

    # --- the life of a process --------------------------------------------------------------------

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            lasted_s = await self._live()
            if self.state == "stopped" or self._stopping.is_set():
                break
            delay_s = self._backoff.delay_s(lasted_s)
            if delay_s:
                self._become("backoff")
                try:
                    async with asyncio.timeout(delay_s):
                        await self._stopping.wait()
                except TimeoutError:
                    pass  # The usual case: it was not stopped meanwhile.
        if self.state != "stopped":
            self._become("ended")

    async def _live(self) -> float:
        """Run the process once; return how many seconds it lasted."""
        begin = time.monotonic()
        try:
            process, size = await self._spawn()
        except OSError as error:
            self.detail = f"{self.plan.argv[0]}: {error.strerror}"
            self._say("not started", child=self.plan.name, error=self.detail)
            self._become("backoff")
            return time.monotonic() - begin
        watch = asyncio.create_task(self._watch(size))
        code = await self._ended(process)
        watch.cancel()
        self._ready.clear()
        lasted_s = time.monotonic() - begin
        self.exit_code = code
        self.pid = self.start_ticks = 0
        self.detail = "" if self._stopping.is_set() else exit_text(code)
        self._say("exited", child=self.plan.name, code=code, lasted_s=round(lasted_s, 3))
        if code in FINAL_CODES and not self._stopping.is_set():
            self._become("stopped")
        return lasted_s

    async def _ended(self, process: Process) -> int:
        """Return the exit code once the process has ended, by itself or because it is stopped."""
        end = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((end, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not end.done():
            _send(process, signal.SIGTERM)
            done, _ = await asyncio.wait((end,), timeout=STOP_WITHIN_S)
            if not done:
                self._say("killed", child=self.plan.name, after_s=STOP_WITHIN_S)
                _send(process, signal.SIGKILL)
        return await end

    async def _spawn(self) -> tuple[Process, int]:
        """Start the process; return it and the size of its log before that."""
        os.makedirs(self.plan.state, mode=FOLDER_MODE, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        output = os.open(self.plan.log_path, flags, FILE_MODE)
        try:
            size = os.fstat(output).st_size
            process = await asyncio.create_subprocess_exec(
                *self.plan.argv,
                env=dict(self.plan.env),
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(output)
        self.pid = process.pid
        if self.plan.niceness is not None:
            _renice(self.pid, self.plan.niceness)
        self.start_ticks = start_ticks(self.pid) or 0
        self.started_at_ns = time.time_ns()
        self.restarts += 1
        self._become("starting")
        self._say("started", child=self.plan.name, pid=self.pid, restarts=self.restarts)
        return process, size

    async def _watch(self, log_begin: int) -> None:
        """Notice when the process is ready."""
        reader = ReadyReader(self.plan.log_path, log_begin)
        # A file and a port tell no event.
        while not (  # noqa: ASYNC110
            await _listens(self.plan.host, self.plan.port) if self.plan.port else reader.look()
        ):
            await asyncio.sleep(PROBE_EVERY_S)
        self._become("ready")
        self._ready.set()

    def _become(self, state: State) -> None:
        self.state = state
        self._changed()


def _send(process: Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        pass  # It has just ended by itself.


def _renice(pid: int, niceness: int) -> None:
    """Change the niceness of a process that leads a session, where that is permitted."""
    try:
        # By its group, which has all of its threads: by itself it is only its first one.
        os.setpriority(os.PRIO_PGRP, pid, niceness)
        # Where the kernel shares time between sessions first, theirs is what counts.
        with open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as file:
            file.write(str(niceness))
    except OSError:
        pass  # Only root may hurry a process, and not every kernel knows sessions.


class ReadyReader:
    """Looks for the line that says `ready` in what a process adds to its log."""

    def __init__(self, path: str, begin: int) -> None:
        self._path = path
        self._position = begin

    def look(self) -> bool:
        """Return whether the line has come."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                data = file.read(LINE_BYTES_MAX)
        except OSError:
            return False
        whole, _, rest = data.rpartition(b"\n")
        # A line without an end in a megabyte is not one of ours: skip it.
        self._position += len(data) if len(rest) == LINE_BYTES_MAX else len(data) - len(rest)
        return any(_says_ready(line) for line in whole.split(b"\n"))


def _says_ready(line: bytes) -> bool:
    if b'"ready"' not in line:
        return False
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and entry.get("event") == "ready"


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def bound_log(path: str, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Move a log that is too large aside. Its writer goes on: it appends to whatever is there.

    Lines that are written during the copy may be lost.

    Args:
        path: The log; what was in it is in `PATH.1` afterwards.
        bytes_max: What is not too large (bytes).
    """
    try:
        if os.path.getsize(path) <= bytes_max:
            return
        with open(path, "rb") as source, open(f"{path}.1", "wb") as target:
            os.fchmod(target.fileno(), FILE_MODE)
            while os.sendfile(target.fileno(), source.fileno(), None, 1 << 30):
                pass
        os.truncate(path, 0)
    except OSError:
        pass  # A full disk: the next look tries again.


def exit_text(code: int) -> str:
    """Return what an exit code means.

    Args:
        code: The exit code; negative: the number of the signal that killed the process.
    """
    if code in FINAL_CODES:
        return f"exit code {code}: {FINAL_CODES[code]}"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


async def stop_all(children: Iterable[Child]) -> None:
    """Stop processes at the same time."""
    await asyncio.gather(*(child.stop() for child in children))
