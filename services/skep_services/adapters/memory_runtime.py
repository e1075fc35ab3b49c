"""Runs in memory: the reference of what a node's runtime promises, without any process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from skep.units import Instant
from skep_services.adapters.ends import Ends
from skep_services.ports import (
    Entered,
    EnterPlan,
    NotEntered,
    RunExited,
    RunNotStarted,
    RunPlan,
    RunStarted,
)


class MemoryRuns:
    """What outlives an agent: the runs of one node. A test ends and refuses them as it likes."""

    def __init__(self) -> None:
        """Start without any."""
        self.plans: dict[str, RunPlan] = {}
        self.alive: dict[str, RunStarted] = {}
        self.ended: dict[str, RunExited] = {}
        self.frozen: dict[str, None] = {}
        self.stopped: dict[str, float] = {}
        self.signals: dict[str, dict[int, str]] = {}
        """By run: the signals that it was given, by their orders."""
        self.refuse_freeze = ""
        """Why no tree can be frozen; empty while all can."""
        self._listeners: list[Ends] = []

    def listen(self, ends: Ends) -> None:
        """Have an agent hear of ends, also of those before."""
        self._listeners.append(ends)
        for end in self.ended.values():
            ends.heard(end)

    def end(self, token: str, code: int | None) -> None:
        """End a run."""
        del self.alive[token]
        self.frozen.pop(token, None)
        end = RunExited(token, code, Instant(2), asked=token in self.stopped)
        self.ended[token] = end
        for ends in self._listeners:
            ends.heard(end)

    def forget(self, token: str) -> None:
        """Drop an ended run."""
        if self.ended.pop(token, None) is not None:
            for ends in self._listeners:
                ends.forget(token)


class MemoryRuntime:
    """One agent's view of a node's runs."""

    def __init__(self, runs: MemoryRuns) -> None:
        """Share `runs` with every other agent of the node."""
        self._runs = runs
        self._ends = Ends()
        self._telling: asyncio.Task[None] | None = None

    async def open(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        """Hear of ends from here on."""
        self._runs.listen(self._ends)
        self._telling = asyncio.create_task(self._ends.tell(on_exit))

    async def runs(self) -> Sequence[RunStarted | RunExited]:
        """Return what is there."""
        frozen = self._runs.frozen
        alive = [
            msgspec.structs.replace(run, frozen=token in frozen)
            for token, run in self._runs.alive.items()
        ]
        return [*alive, *self._runs.ended.values()]

    async def start(self, plan: RunPlan) -> RunStarted | RunNotStarted:
        """Start a run, or say what it became."""
        runs = self._runs
        if plan.token not in runs.plans:
            pid = 100 + len(runs.plans)
            runs.plans[plan.token] = plan
            runs.alive[plan.token] = RunStarted(plan.token, pid, 1, Instant(1))
        return runs.alive.get(plan.token) or RunStarted(plan.token, 0, 0, Instant(1))

    async def stop(self, token: str, grace_s: float) -> None:
        """Ask a run to end: thawed, as it may use its grace."""
        if token in self._runs.alive:
            self._runs.frozen.pop(token, None)
            self._runs.stopped[token] = grace_s

    async def freeze(self, token: str) -> str:
        """Freeze a run, unless it is ending."""
        if self._runs.refuse_freeze:
            return self._runs.refuse_freeze
        if token in self._runs.alive and token not in self._runs.stopped:
            self._runs.frozen[token] = None
        return ""

    async def thaw(self, token: str) -> str:
        """Let a run go on."""
        self._runs.frozen.pop(token, None)
        return ""

    async def signal(self, token: str, name: str, order: int) -> str:
        """Note the signal of an order, once."""
        if token not in self._runs.alive:
            return "its process has ended"
        self._runs.signals.setdefault(token, {})[order] = name
        return ""

    async def enter(self, plan: EnterPlan) -> Entered | NotEntered:
        """Start nothing: what runs in memory has no processes."""
        if plan.token not in self._runs.alive:
            return NotEntered("not-running: its process has ended")
        if plan.token in self._runs.frozen:
            return NotEntered("job-suspended: its processes are frozen")
        return NotEntered("not-built: what runs in memory runs no commands")

    async def forget(self, token: str) -> None:
        """Drop an ended run."""
        self._runs.forget(token)

    async def close(self) -> None:
        """Leave the runs as they are."""
        if self._telling is not None:
            self._telling.cancel()
