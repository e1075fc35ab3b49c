"""The runs of a node that may be processes or containers, as one runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from skep.wire.reasons import Reason
from skep_services.ports import (
    Entered,
    EnterPlan,
    NodeRuntime,
    NotEntered,
    RunExited,
    RunNotStarted,
    RunPlan,
    RunStarted,
)


class NodeRuntimes:
    """Starts a plan with an image as a container, any other as a process.

    A token is known to one of the two; what is asked of the other does nothing.
    """

    def __init__(self, processes: NodeRuntime, containers: NodeRuntime) -> None:
        """Take both, not opened."""
        self._processes, self._containers = processes, containers

    async def open(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        await self._processes.open(on_exit)
        await self._containers.open(on_exit)

    async def runs(self) -> Sequence[RunStarted | RunExited]:
        return [*await self._processes.runs(), *await self._containers.runs()]

    async def start(self, plan: RunPlan) -> RunStarted | RunNotStarted:
        return await (self._containers if plan.image else self._processes).start(plan)

    async def stop(self, token: str, grace_s: float) -> None:
        await asyncio.gather(
            self._processes.stop(token, grace_s), self._containers.stop(token, grace_s)
        )

    async def freeze(self, token: str) -> str:
        return await self._processes.freeze(token) or await self._containers.freeze(token)

    async def thaw(self, token: str) -> str:
        return await self._processes.thaw(token) or await self._containers.thaw(token)

    async def signal(self, token: str, name: str, order: int) -> str:
        if token in [run.token for run in await self._containers.runs()]:
            return await self._containers.signal(token, name, order)
        return await self._processes.signal(token, name, order)

    async def enter(self, plan: EnterPlan) -> Entered | NotEntered:
        outcome = await self._processes.enter(plan)
        if isinstance(outcome, NotEntered) and outcome.detail.startswith(Reason.NOT_RUNNING):
            return await self._containers.enter(plan)
        return outcome

    async def forget(self, token: str) -> None:
        await asyncio.gather(self._processes.forget(token), self._containers.forget(token))

    async def close(self) -> None:
        await self._processes.close()
        await self._containers.close()
