"""Waiting for news about a job: what long polls, log followers and submissions do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Watch:
    """Futures by job id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def wake(self, jobs: Iterable[str]) -> None:
        """Wake the requests that wait for one of these jobs."""
        if not self._waiting:
            return
        for job in jobs:
            for future in self._waiting.pop(job, ()):
                if not future.done():
                    future.set_result(None)

    async def until(self, job: str, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Return True once `reached()` is true, False when it was not within `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not reached():
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            await self.news(job, left_s)
        return True

    async def news(self, job: str, timeout_s: float) -> None:
        """Return when something is said about the job, or after `timeout_s`."""
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(job, [])
        waiting.append(future)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            pass  # The caller looks for itself.
        finally:
            if future in waiting:
                waiting.remove(future)
            if not waiting and self._waiting.get(job) is waiting:
                del self._waiting[job]
