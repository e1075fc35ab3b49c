"""The node runtime for containers: the engine holds them, so that they survive the agent.

    begun -> executed -> ended --forget--> (unknown)

What the engine cannot tell is in small files (see `docker_records`): what was asked of a run, that
its command was executed, and its end, which is written before the container is removed. Ends are
heard as the engine's events; whenever those break off, and when the agent begins, every container
is looked at instead.

An engine that goes away stops its containers, as jobs that Skep did not ask to end. So
what has ended when it is back, or after a reboot, counts as told to end, whatever its status.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skep.units import Instant
from skep_services.adapters import docker_session, docker_signal
from skep_services.adapters.docker_account import Confined, Prepare, with_files
from skep_services.adapters.docker_engine import (
    CALLS_MAX,
    Container,
    Ended,
    Engine,
    EngineGoneError,
    EngineRefusedError,
    News,
)
from skep_services.adapters.docker_entry import EXECUTED, REFUSED
from skep_services.adapters.docker_plans import mounts_of, silence_of, trouble_of
from skep_services.adapters.docker_records import TOKEN, End, Kept, Records
from skep_services.adapters.ends import Ends
from skep_services.agent import proc, runner_signal
from skep_services.agent.runner_launch import NotStarted, not_written
from skep_services.agent.runner_log import RunLog
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

LOG_CHECK_SECONDS = 0.25
LOG_CHECK_FLOOD_SECONDS = 0.05
"""How often logs are measured, and how often while one of them outgrows its bound."""

KILL_AGAIN_SECONDS = 1.0
"""Between two attempts to kill a container: a process in uninterruptible sleep takes its time."""

OPEN_SECONDS_MAX = 10.0
"""How long an agent's start may wait for the engine: far below the silence that loses a node."""

NEWS_SECONDS_MAX = 1.0
"""How long the news of an end may take that has happened: some milliseconds."""

ENGINE_PAUSE_SECONDS = 0.1
ENGINE_PAUSE_SECONDS_MAX = 5.0
"""Between two attempts to reach an engine that is gone, doubled up to its bound."""

BEGIN_SECONDS_MAX = 60.0
"""From a container's start to its command's: some milliseconds on an idle machine."""

SAID_SECONDS = 0.005
SAID_SECONDS_MAX = 0.1
"""How often a container that just started is looked at, doubled up to its bound."""

SIGNALS_ABOVE = 128
SIGNALS_MAX = 64
"""An exit status above the first says which signal ended it: there is no other way to tell."""


class _Run:
    """One container. `kept` is None before its start; `starting` until that is answered.

    `kill_at` is monotonic seconds; `status` is what it is heard to have `died` with. `lock` is held
    by what changes the container.
    """

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.starting = False
        self.lock = asyncio.Lock()
        self.log: RunLog | None = None
        self.kill_at = math.inf
        self.killer: asyncio.Task[None] | None = None
        self.status: int | None = None
        self.died = asyncio.Event()

    @property
    def live(self) -> bool:
        """Return whether it has begun and not ended."""
        return self.kept is not None and self.kept.end is None


class DockerRuntime:
    """The containers of the node whose state folder is `state`.

    Nothing is asked of an engine before there is a container, so a node without one may have this
    too: what it cannot start is answered so. The folder must have the same path for the engine.
    While no agent is there, a log may outgrow its bound; it is cut when one is back. A container
    sees nothing of the folders `hidden` but what its plan names. With `prepare` each is confined
    to an account.
    """

    def __init__(
        self, state: Path, hidden: Sequence[Path] = (), prepare: Prepare | None = None
    ) -> None:
        self._prepare = prepare
        self._records = Records(state)
        self._state = state
        self._private = (state, *hidden)
        self._boot = proc.boot_id()
        self._runs: dict[str, _Run] = {}
        self._ends = Ends()
        self._engine = Engine("")
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="docker")
        self._needed = asyncio.Event()
        self._looked = asyncio.Event()
        self._connected = False
        self._news: News | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def open(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        assert not self._tasks, "open is called once"
        self._engine = Engine(self._records.open())
        for kept in self._records.every():
            self._runs[kept.token] = run = _Run()
            run.kept = kept
            if kept.end is not None:
                self._ends.heard(_exited(kept))
        self._spawn(self._ends.tell(on_exit))
        self._spawn(self._follow())
        self._spawn(self._keep_logs())
        if self._runs:
            self._needed.set()
            # Processes must not wait for an engine that hangs; records are believed meanwhile.
            await _within(OPEN_SECONDS_MAX, self._looked.wait())

    async def runs(self) -> list[RunStarted | RunExited]:
        found: list[RunStarted | RunExited] = []
        for run in self._runs.values():
            if run.kept is None or run.starting:
                continue
            if run.live and run.kept.started_at == 0:
                # Begun by an earlier agent, and no engine tells whether it came to more.
                run.kept.started_at = Instant(time.time_ns())
                self._write(run.kept)
            found.append(_started(run.kept) if run.kept.end is None else _exited(run.kept))
        return found

    async def signal(self, token: str, name: str, order: int) -> str:
        run = self._find(token) if TOKEN.fullmatch(token) else None
        number = runner_signal.number_of(name)
        if run is None or run.kept is None or not run.live or run.kill_at < math.inf:
            return "its container has ended, or is being ended"
        if number is None:
            return f"there is no signal {name!r}"
        async with run.lock:
            if order <= run.kept.signalled:
                return ""
            try:
                run.kept.signalled = order
                self._records.write(run.kept)
                asked = docker_signal.command(number, name)
                code: int | None = await self._call(self._engine.exec_wait, token, asked)
            except (EngineGoneError, EngineRefusedError, OSError) as error:
                return str(error)
        return docker_signal.trouble_of(code, name)

    async def enter(self, plan: EnterPlan) -> Entered | NotEntered:
        run = self._find(plan.token) if TOKEN.fullmatch(plan.token) else None
        if run is None or not run.live or run.kill_at < math.inf:
            return NotEntered("not-running: its container has ended, or is being ended")
        if run.kept is not None and run.kept.frozen:
            return NotEntered("job-suspended: its processes are frozen: `skep resume` it first")
        try:
            outcome = await docker_session.enter(
                self._engine, self._call, plan, lambda: run.live and run.kill_at == math.inf
            )
        except (EngineGoneError, EngineRefusedError) as error:
            return NotEntered(str(error))
        return outcome

    async def start(self, plan: RunPlan) -> RunStarted | RunNotStarted:
        assert plan.image, f"run {plan.token} has no image"
        assert plan.argv, f"run {plan.token} has no command"
        assert TOKEN.fullmatch(plan.token), f"token {plan.token!r}: {TOKEN.pattern}"
        while True:
            run = self._find(plan.token) or self._runs.setdefault(plan.token, _Run())
            async with run.lock:
                if self._runs.get(plan.token) is run:
                    return await self._start(run, plan)

    async def stop(self, token: str, grace_s: float) -> None:
        if not TOKEN.fullmatch(token):
            return
        run = self._find(token)
        if run is None:
            return
        async with run.lock:
            if run.kept is None or run.kept.end is not None:
                return
            if run.kept.asked_at == 0:
                run.kept.asked_at = Instant(time.time_ns())
                self._write(run.kept)
            if run.kept.frozen:
                # A frozen container takes no signal but the last.
                with contextlib.suppress(EngineGoneError):
                    await self._call(self._engine.thaw, token)
            at = time.monotonic()
            again = run.kill_at < math.inf
            run.kill_at = min(run.kill_at, at + max(grace_s, 0.0))
            if not again and run.kill_at > at:
                await self._terminate(token)
            if run.killer is not None:
                run.killer.cancel()
            run.killer = self._spawn(self._kill(token, run))

    async def freeze(self, token: str) -> str:
        return await self._pause(token, frozen=True)

    async def thaw(self, token: str) -> str:
        return await self._pause(token, frozen=False)

    async def _pause(self, token: str, *, frozen: bool) -> str:
        """Have the engine freeze or thaw a container; noted first where it is to be frozen."""
        run = self._find(token) if TOKEN.fullmatch(token) else None
        if run is None:
            return ""
        async with run.lock:
            kept = run.kept
            if kept is None or kept.end is not None or (frozen and run.kill_at < math.inf):
                return ""
            if not frozen and not kept.frozen:
                return ""
            call = self._engine.freeze if frozen else self._engine.thaw
            try:
                if frozen:
                    kept.frozen = True
                    self._records.write(kept)
                trouble: str = await self._call(call, token)
            except (EngineGoneError, OSError) as error:
                return str(error)
            if not frozen and not trouble:
                kept.frozen = False
                self._write(kept)
            return trouble

    async def forget(self, token: str) -> None:
        run = self._runs.get(token)
        if run is None or run.live or run.starting:
            return
        del self._runs[token]
        self._records.drop(token)
        self._ends.forget(token)

    async def close(self) -> None:
        if self._news is not None:
            self._news.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run in self._runs.values():
            _close_log(run)
        self._engine.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- starting ---------------------------------------------------------------------------------

    def _find(self, token: str) -> _Run | None:
        """Return a run that was begun, also if another agent of this folder did."""
        run = self._runs.get(token)
        if run is None and (kept := self._records.read(token)) is not None:
            run = self._runs[token] = _Run()
            run.kept = kept
            self._needed.set()
        return run

    async def _start(self, run: _Run, plan: RunPlan) -> RunStarted | RunNotStarted:
        earlier = run.kept
        if earlier is not None:
            return _started(earlier)
        run.starting = True
        try:
            why = await self._begin(run, plan)
        finally:
            run.starting = False
        if run.kept is not None:
            return _started(run.kept)
        self._runs.pop(plan.token, None)
        return RunNotStarted(plan.token, *why)

    async def _begin(self, run: _Run, plan: RunPlan) -> NotStarted:
        """Start a container; `run.kept` is set if its command may run, else return why not."""
        trouble = trouble_of(plan, self._private, entered=self._prepare is None)
        if trouble:
            return NotStarted(trouble)
        try:
            await self._call(self._engine.ping)
        except EngineGoneError as error:
            return NotStarted(f"image {plan.image}: {error}")
        given = None if self._prepare is None else await self._prepare(plan)
        if isinstance(given, NotStarted):
            return given
        if given is not None:
            plan = with_files(plan, given)
        try:
            run.log = RunLog(plan.log_path, plan.log_bytes_max)
            if plan.fresh:
                run.log.clear()
        except OSError as error:
            return not_written(f"log {plan.log_path}", error)
        self._needed.set()
        kept = Kept(
            token=plan.token,
            boot=self._boot,
            log=run.log.path,
            log_bytes_max=run.log.bytes_max,
            began_at=Instant(time.time_ns()),
            uid=-1 if given is None else given.uid,
        )
        try:
            self._records.drop(plan.token)
            self._records.write(kept)
            why = NotStarted(await self._execute(run, plan, kept, given))
        except OSError as error:
            why = not_written(str(error.filename or self._state), error)
        except (EngineGoneError, EngineRefusedError) as error:
            why = NotStarted(str(error))
        if run.kept is None:
            _close_log(run)
            await self._discard(plan.token)
        return why

    async def _execute(self, run: _Run, plan: RunPlan, kept: Kept, given: Confined | None) -> str:
        said = self._records.provide(plan.token, shared=given is not None)
        mounts = mounts_of(plan, self._private, said)
        # A container of that name has no record: it is the rest of one that never came to run.
        await self._call(self._engine.remove, plan.token)
        await self._call(self._engine.create, plan, str(said), mounts, given)
        try:
            await self._call(self._engine.start, plan.token)
            trouble = await self._said(plan)
            found = None if trouble else await self._call(self._engine.look, plan.token)
        except EngineGoneError:
            # It may run: whether it does is seen once the engine is back.
            trouble, found = "", None
        if trouble:
            return trouble
        run.kept = kept
        self._note_start(kept, found)
        if found is None or not found.alive:
            # Its event may have come while nothing was known of it.
            self._spawn(self._settle(plan.token))
        return ""

    async def _said(self, plan: RunPlan) -> str:
        """Return an empty text once a container executes its command, or why it does not."""
        pause, deadline = SAID_SECONDS, time.monotonic() + BEGIN_SECONDS_MAX
        while not (said := self._records.said(plan.token)):
            await asyncio.sleep(pause)
            pause = min(pause * 2, SAID_SECONDS_MAX)
            if pause < SAID_SECONDS_MAX:
                continue
            found = await self._call(self._engine.look, plan.token)
            if (found is None or not found.alive) and not self._records.said(plan.token):
                return silence_of(plan, found)
            if time.monotonic() > deadline:
                return f"the container of {plan.image} did nothing for {BEGIN_SECONDS_MAX:.0f} s"
        return "" if said == EXECUTED else said.removeprefix(REFUSED)

    async def _discard(self, token: str) -> None:
        """Remove what never came to run; without an engine that is done once it is back."""
        try:
            self._records.drop(token)
            await self._call(self._engine.remove, token)
        except EngineGoneError:
            pass
        except OSError as error:
            log.warning("the record of %s cannot be removed: %s", token, error)

    # --- ending -----------------------------------------------------------------------------------

    async def _terminate(self, token: str) -> None:
        try:
            if await self._call(self._engine.kill, token, signal.SIGTERM):
                # A suspended process acts on SIGTERM only once it goes on.
                await self._call(self._engine.kill, token, signal.SIGCONT)
        except EngineGoneError:
            pass  # The first look at it once the engine is back kills it at the end of its grace.

    async def _kill(self, token: str, run: _Run) -> None:
        """Kill a container when its grace is over, until it is gone."""
        await asyncio.sleep(run.kill_at - time.monotonic())
        while run.live:
            try:
                if not await self._call(self._engine.kill, token, signal.SIGKILL):
                    await self._settle(token)
            except EngineGoneError:
                pass  # Tried again until it is back.
            await asyncio.sleep(KILL_AGAIN_SECONDS)

    async def _settle(self, token: str, *, lost: bool = False) -> None:
        """Look at a container and draw the consequences; `lost`: the engine was away."""
        run = self._find(token)
        if run is None:
            return
        async with run.lock:
            if run.kept is None or run.kept.end is not None:
                return
            found = await self._call(self._engine.look, token)
            if run.kept.started_at == 0 and self._records.executed(run.kept):
                # Its agent died before it had an answer.
                self._note_start(run.kept, found)
            if found is not None and found.alive:
                self._adopt(run)
            elif self._records.executed(run.kept):
                await self._finish(run, found, lost=lost)
            else:
                # Nothing of it ever ran: it may be started anew.
                run.kept = None
                self._runs.pop(token, None)
                await self._discard(token)

    def _adopt(self, run: _Run) -> None:
        assert run.kept is not None
        if run.log is None:
            try:
                run.log = RunLog(run.kept.log, run.kept.log_bytes_max)
            except OSError as error:
                log.warning("log %s cannot be kept within its bound: %s", run.kept.log, error)

    async def _finish(self, run: _Run, found: Container | None, *, lost: bool) -> None:
        kept = run.kept
        assert kept is not None
        if found is None:
            # It was removed from outside; how it ended may be on its way.
            await _within(NEWS_SECONDS_MAX, run.died.wait())
        # Another agent of this folder may have asked it to end, or may have seen it end.
        latest = self._records.read(kept.token) or kept
        at = Instant(time.time_ns())
        code = run.status
        if found is not None:
            at = found.finished_at or at
            code = None if found.error else found.code
        if code is not None and SIGNALS_ABOVE < code <= SIGNALS_ABOVE + SIGNALS_MAX:
            code = SIGNALS_ABOVE - code
        asked_at = kept.asked_at or latest.asked_at
        asked = 0 < asked_at <= at or lost or kept.boot != self._boot
        kept.end = latest.end or End(code, at, asked)
        self._write(kept)
        _close_log(run)
        self._ends.heard(_exited(kept))
        await self._call(self._engine.remove, kept.token)

    # --- the engine -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Hear of ends for ever, from the first container on."""
        await self._needed.wait()
        pause, lost = ENGINE_PAUSE_SECONDS, False
        while True:
            try:
                await self._hear(lost=lost)
                pause = ENGINE_PAUSE_SECONDS
            except EngineGoneError as error:
                if pause == ENGINE_PAUSE_SECONDS:
                    log.warning("containers are out of sight: %s", error)
                pause = min(pause * 2, ENGINE_PAUSE_SECONDS_MAX)
            lost = True
            self._looked.set()
            await asyncio.sleep(pause)

    async def _hear(self, *, lost: bool) -> None:
        """Look at everything, and hear what happens until the engine is gone."""
        self._news = news = await self._call(self._engine.news)
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[Ended | None]()

        def listen() -> None:
            for one in news:
                loop.call_soon_threadsafe(heard.put_nowait, one)
            loop.call_soon_threadsafe(heard.put_nowait, None)

        listening = loop.run_in_executor(self._threads, listen)
        try:
            looking = self._spawn(self._look_at_everything(lost=lost))
            while (one := await heard.get()) is not None:
                self._take(one)
            await looking
        finally:
            news.close()
            await listening

    def _take(self, one: Ended) -> None:
        run = self._find(one.token)
        if run is not None:
            if one.code is not None:
                run.status = one.code
                run.died.set()
            self._spawn(self._settle(one.token))

    async def _look_at_everything(self, *, lost: bool) -> None:
        try:
            await self._look(lost=lost)
        finally:
            self._looked.set()

    async def _look(self, *, lost: bool) -> None:
        there = await self._call(self._engine.tokens)
        for token in there:
            run = self._find(token)
            if run is None or not (run.live or run.starting):
                # Its end is on record, or it never came to run.
                await self._call(self._engine.remove, token)
        live = [token for token, run in self._runs.items() if run.live or run.starting]
        await asyncio.gather(*(self._settle(token, lost=lost) for token in live))

    async def _keep_logs(self) -> None:
        """Keep logs within their bounds."""
        while True:
            await self._needed.wait()
            flood = False
            for run in self._runs.values():
                flood = _check_log(run) or flood
            await asyncio.sleep(LOG_CHECK_FLOOD_SECONDS if flood else LOG_CHECK_SECONDS)

    # --- small things -----------------------------------------------------------------------------

    def _note_start(self, kept: Kept, found: Container | None) -> None:
        if found is not None:
            kept.pid, kept.ticks = found.pid, proc.start_ticks(found.pid) or 0
            kept.started_at = found.started_at
        kept.started_at = kept.started_at or Instant(time.time_ns())
        self._write(kept)

    def _write(self, kept: Kept) -> None:
        """Remember where failing to must not fail the run.

        What is missing shows after the agent's death only, as an end that is less exact.
        """
        try:
            self._records.write(kept)
        except OSError as error:
            log.warning("the record of %s cannot be written: %s", kept.token, error)

    async def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[id(task)] = task
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[id(task)]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EngineGoneError):
            # What was not seen or done now is, once everything is looked at again.
            if self._news is not None:
                self._news.close()
        elif error is not None:
            log.error("containers: %r", error, exc_info=error)


async def _within(seconds: float, event: Awaitable[object]) -> None:
    """Wait for an event, but not longer."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event, seconds)


def _started(kept: Kept) -> RunStarted:
    return RunStarted(kept.token, kept.pid, kept.ticks, kept.started_at, kept.frozen, uid=kept.uid)


def _exited(kept: Kept) -> RunExited:
    assert kept.end is not None
    return RunExited(kept.token, kept.end.code, kept.end.at, asked=kept.end.asked)


def _check_log(run: _Run) -> bool:
    """Keep a run's log within its bound; return whether it had outgrown it."""
    try:
        return run.log is not None and run.log.check()
    except OSError as error:
        log.warning("log %s cannot be kept within its bound: %s", run.log and run.log.path, error)
        return False


def _close_log(run: _Run) -> None:
    if run.log is not None:
        _check_log(run)
        run.log.close()
        run.log = None
