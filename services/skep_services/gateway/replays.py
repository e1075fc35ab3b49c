"""`/v1/replays`: what a span would have been under other policies, simulated beside the gateway.

    POST ──▶ running ──▶ done | failed | cancelled

A replay runs in a process of its own (`replay_run`): with low priority, in bounded memory and time,
one at a time. It ends with the gateway. The newest ones are kept in memory, until the gateway ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from typing import Annotated, Any

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from skep.access.rights import Action
from skep.policy.registry import NoPolicy, make
from skep.units import GIB, MIB, NS_PER_SECOND, Instant
from skep.wire.bounds import Short
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, caller_of, forbidden, json_response, number
from skep_services.gateway.bodies import Body, read
from skep_services.gateway.index import Indexer
from skep_services.gateway.jobs import WAIT_S, WAIT_S_MAX
from skep_services.gateway.replay_said import Asked, Done, Failed, Progress, Said
from skep_services.gateway.trials import meant
from skep_services.gateway.watch import Watch
from skep_services.ports import Clock

log = structlog.get_logger(service="gateway")

KEPT = 20
"""Replays at hand: an outcome has 200 KB at most."""
TIME_S_MAX = 600
"""How long one may run: then it is ended."""
LIMITS = {resource.RLIMIT_AS: 4 * GIB, resource.RLIMIT_CPU: 900}
"""Bytes of memory, and seconds of processor time: more than the time above, for two threads."""
NICE = 19
SPAN_S_MAX = 31 * 86_400
VCS_MAX = 100
ENDS_WITHIN_S = 5.0
"""How long a process that has said all may take to end."""
LINE_BYTES_MAX = 16 * MIB
"""An outcome is one line."""
COMMAND = (sys.executable, "-m", "skep_services.gateway.replay_run")
RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


class PolicyChosen(Body, frozen=True):
    """A policy by its name, with the options that are not the defaults."""

    name: Short
    options: dict[Short, Any] = msgspec.field(default_factory=dict)


class ReplayBody(Body, frozen=True):
    """What `POST /v1/replays` takes: a past span (Unix ns), and the VCs' other policies."""

    since: Annotated[int, Meta(ge=0, le=2**62)]
    until: Annotated[int, Meta(ge=0, le=2**62)]
    policies: Annotated[dict[Short, PolicyChosen], Meta(min_length=1, max_length=VCS_MAX)]


class Replay(msgspec.Struct, kw_only=True):
    """A replay as it is answered. `version` grows with every change of it."""

    replay: str
    state: str
    phase: str
    part: int
    since: int
    until: int
    policies: dict[str, PolicyChosen]
    by: str
    begun_at: int
    ended_at: int | None = None
    reason: str | None = None
    text: str = ""
    version: int = 1
    outcome: dict[str, Any] | None = None

    def row(self) -> dict[str, Any]:
        """Return it without its outcome."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "outcome"}


class Replays:
    """The handlers, and the one process that runs."""

    def __init__(self, indexer: Indexer, watch: Watch, clock: Clock) -> None:
        self._indexer, self._watch, self._clock = indexer, watch, clock
        self._kept: dict[str, Replay] = {}
        self._begun = 0
        self._running: tuple[Replay, asyncio.Task[None]] | None = None

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/replays", self.listing, allow_head=False),
            web.post("/v1/replays", self.begin),
            web.get("/v1/replays/{replay}", self.show, allow_head=False),
            web.delete("/v1/replays/{replay}", self.cancel),
        ]

    async def close(self, _: web.Application) -> None:
        """End the process, if there is one."""
        if self._running is not None:
            self._running[1].cancel()
            await asyncio.gather(self._running[1], return_exceptions=True)

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the replays that are kept, the newest first, without their outcomes.

        Raises:
            ApiError: The caller is no operator (403).
        """
        _operators(request)
        found = [one.row() for one in reversed(self._kept.values())]
        return json_response({"replays": found})

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Begin a replay.

        Raises:
            ApiError: The caller is no operator (403), the span or a policy is wrong (400, 413,
                422), a VC is unknown (404), or a replay runs already (409).
        """
        _operators(request)
        body = await read(request, ReplayBody)
        self._check(body)
        while self._running is not None:
            running, task = self._running
            if running.state == RUNNING:
                text = f"{running.replay} runs: wait for its end, or cancel it"
                raise ApiError(409, Reason.REPLAY_RUNS, text)
            await asyncio.wait([task])  # It is over, and its process is about to end.
        self._begun += 1
        replay = Replay(
            replay=f"r{self._begun}",
            state=RUNNING,
            phase="starting",
            part=0,
            since=body.since,
            until=body.until,
            policies=body.policies,
            by=caller_of(request).name,
            begun_at=self._clock.now(),
        )
        self._kept[replay.replay] = replay
        for old in list(self._kept)[:-KEPT]:
            del self._kept[old]
        task = asyncio.create_task(self._run(replay), name=f"replay {replay.replay}")
        self._running = replay, task
        task.add_done_callback(lambda ended: self._ended(replay, ended))
        return json_response(replay.row(), 201)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer a replay with its outcome, at once or when it is later than version `seen`.

        Raises:
            ApiError: There is no such replay (404), a query parameter is wrong (400), or the caller
                is no operator (403).
        """
        replay = self._find(request)
        seen = number(request, "seen", 0, 2**31)
        timeout_s = number(request, "timeout_s", WAIT_S, WAIT_S_MAX)
        if replay.state == RUNNING:
            await self._watch.until(replay.replay, lambda: replay.version > seen, timeout_s)
        return json_response({**replay.row(), "outcome": replay.outcome})

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """End a replay that runs.

        Raises:
            ApiError: There is no such replay (404), it is over (409), or the caller is no operator
                (403).
        """
        replay = self._find(request)
        if self._running is None or replay.state != RUNNING:
            text = f"{replay.replay} is over already: {replay.state}"
            raise ApiError(409, Reason.ALREADY_ENDED, text)
        self._running[1].cancel()
        await asyncio.gather(self._running[1], return_exceptions=True)
        return json_response(replay.row())

    # --- checking --------------------------------------------------------------------------------

    def _find(self, request: web.Request) -> Replay:
        _operators(request)
        name = request.match_info["replay"]
        if name not in self._kept:
            text = (
                f"there is no replay {name}: the gateway keeps its newest {KEPT}, and none of"
                " those before it began"
            )
            raise ApiError(404, Reason.UNKNOWN_REPLAY, text)
        return self._kept[name]

    def _check(self, body: ReplayBody) -> None:
        length_s = (body.until - body.since) / NS_PER_SECOND
        if length_s <= 0:
            raise ApiError(422, Reason.BAD_SPAN, "`since` must be before `until`")
        if body.until > self._clock.now():
            raise ApiError(
                422, Reason.BAD_SPAN, "`until` is not past yet: what is to come is a plan"
            )
        if length_s > SPAN_S_MAX:
            text = f"the span is longer than {SPAN_S_MAX // 86_400} days: ask for a part of it"
            raise ApiError(422, Reason.BAD_SPAN, text)
        known = self._indexer.fold.state.asked.vcs
        for vc, chosen in body.policies.items():
            if vc not in known:
                text = f"there is no virtual cluster {vc}{meant(vc, known)}"
                raise ApiError(404, Reason.UNKNOWN_VC, text)
            try:
                make(chosen.name, chosen.options)
            except NoPolicy as error:
                raise ApiError(422, Reason.UNKNOWN_POLICY, f"{vc}: {error}") from None

    # --- running ---------------------------------------------------------------------------------

    async def _run(self, replay: Replay) -> None:
        try:
            async with asyncio.timeout(TIME_S_MAX):
                await self._play(replay)
        except TimeoutError:
            text = f"it took longer than {TIME_S_MAX} s: ask for a shorter span"
            self._over(replay, FAILED, Reason.REPLAY_TOO_LARGE, text)
        except OSError as error:
            self._over(replay, FAILED, Reason.REPLAY_FAILED, f"its process cannot be run: {error}")

    def _ended(self, replay: Replay, task: asyncio.Task[None]) -> None:
        """Let the next replay begin, and note the end of one that was cut off."""
        self._running = None
        if task.cancelled():
            text = "it was cancelled, or its gateway ended"
            self._cut(replay, CANCELLED, Reason.CANCELLED, text)
        elif (error := task.exception()) is not None:
            log.error("replay", replay=replay.replay, error=repr(error))
            text = "what it said cannot be read: the gateway's log has why"
            self._cut(replay, FAILED, Reason.REPLAY_FAILED, text)
        took_ns = (replay.ended_at or replay.begun_at) - replay.begun_at
        log.info(
            "replay",
            replay=replay.replay,
            state=replay.state,
            text=replay.text,
            took_s=round(took_ns / NS_PER_SECOND, 1),
        )

    def _cut(self, replay: Replay, state: str, reason: str, text: str) -> None:
        if replay.state == RUNNING:
            self._over(replay, state, reason, text)

    async def _play(self, replay: Replay) -> None:
        chosen = {vc: (one.name, one.options) for vc, one in replay.policies.items()}
        asked = Asked(since=replay.since, until=replay.until, policies=chosen)
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(os.environ),
            limit=LINE_BYTES_MAX,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _bound(process.pid)
            process.stdin.write(msgspec.json.encode(asked) + b"\n")
            async for line in process.stdout:
                self._take(replay, msgspec.json.decode(line, type=Said))
            # A signal at its end would take the place of its own exit status.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            code = await process.wait()
        if replay.state == RUNNING:
            text = f"its process ended with {code}, and said no more: the gateway's log has why"
            self._over(replay, FAILED, Reason.REPLAY_FAILED, text)

    def _take(self, replay: Replay, said: Said) -> None:
        match said:
            case Progress():
                replay.phase, replay.part = said.phase, said.part
                self._changed(replay)
            case Done():
                replay.outcome, replay.part = said.outcome, 1000
                self._over(replay, DONE, None, "")
            case Failed():
                self._over(replay, FAILED, said.reason, said.text)

    def _over(self, replay: Replay, state: str, reason: str | None, text: str) -> None:
        replay.state, replay.reason, replay.text = state, reason, text
        replay.ended_at = Instant(self._clock.now())
        self._changed(replay)

    def _changed(self, replay: Replay) -> None:
        replay.version += 1
        self._watch.wake((replay.replay,))


def _bound(pid: int) -> None:
    """Bound a process that has just begun, unless it has ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
        for limit, most in LIMITS.items():
            resource.prlimit(pid, limit, (most, most))


def _operators(request: web.Request) -> None:
    ruling = caller_of(request).ruling(Action.SET_VCS, "")
    if not ruling:
        raise forbidden(ruling)
