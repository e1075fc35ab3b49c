"""Events for many readers at once: one ring, and every reader walks it at its own pace.

Nothing is kept per reader, so a slow one costs nothing but its connection, and it is cut once the
ring has overtaken it. It can resume from its last id: the store has what the ring has dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

RING_MAX = 10_000
"""Events at hand, about 3 MB: some six seconds at 160 jobs per second."""


class Shown(NamedTuple):
    """A stored event: its number, what it is about, and its JSON."""

    seq: int
    job: str
    vc: str
    doc: bytes


class Hub:
    """The newest stored events. `newest` is the number of the last one."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.cut = 0
        """Readers that were too slow."""
        self.readers = 0
        self.closed = False
        self._ring: deque[Shown] = deque(maxlen=RING_MAX)
        self._more = asyncio.Event()

    def show(self, events: Sequence[tuple[int, str, str, bytes]]) -> None:
        """Let readers see events that were just stored.

        Args:
            events: Number, job, VC and JSON of each, by number.
        """
        if not events:
            return
        self._ring.extend(Shown(*event) for event in events)
        self.newest = events[-1][0]
        self._more.set()
        self._more = asyncio.Event()

    def close(self) -> None:
        """Let every reader go."""
        self.closed = True
        self._more.set()

    def after(self, seq: int) -> list[Shown] | None:
        """Return the events after `seq`, or None if the ring has already dropped the next one."""
        missing = self.newest - seq
        if missing <= 0:
            return []
        if missing > len(self._ring):
            return None
        return list(islice(reversed(self._ring), missing))[::-1]

    async def wait(self, seq: int, timeout_s: float) -> bool:
        """Wait for events after `seq`.

        Returns:
            True: there are some, or the hub is closed; False: none came within `timeout_s`.
        """
        if self.newest > seq or self.closed:
            return True
        try:
            await asyncio.wait_for(self._more.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
