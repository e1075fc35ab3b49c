"""Telling the ends of runs: each once, and again to a listener that failed on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from skep_services.ports import RunExited

log = logging.getLogger(__name__)

TELL_AGAIN_SECONDS = 1.0
"""When an end is told once more to a listener that failed on it."""


class Ends:
    """The ends a node runtime has heard of and not forgotten."""

    def __init__(self) -> None:
        """Know of none."""
        # As many as there are runs, which every runtime bounds.
        self._waiting: asyncio.Queue[RunExited] = asyncio.Queue()
        self._told: dict[str, bool] = {}

    def heard(self, end: RunExited) -> None:
        """Have an end told, unless it was."""
        if end.token not in self._told:
            self._told[end.token] = True
            self._waiting.put_nowait(end)

    def forget(self, token: str) -> None:
        """Drop what is known of a run."""
        self._told.pop(token, None)

    async def tell(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        """Tell every end until cancelled."""
        while True:
            end = await self._waiting.get()
            # The one that asked for the start has its answer before the end: the answer came
            # first, but its task may still have to take its turn.
            await asyncio.sleep(0)
            try:
                await on_exit(end)
            except Exception:
                log.exception("the end of run %s was not taken; it is told again", end.token)
                self._waiting.put_nowait(end)
                await asyncio.sleep(TELL_AGAIN_SECONDS)
