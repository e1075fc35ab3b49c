"""Virtual time: a heap of moments, each with something to do."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from skep.units import Instant

EPOCH = Instant(1_700_000_000_000_000_000)
"""When every history begins: a wall-clock time, because facts carry such."""

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class Timeline:
    """The order in which things happen. Equal moments keep the order they were asked for in."""

    def __init__(self) -> None:
        """Start at EPOCH with nothing to do."""
        self.now = EPOCH
        self._moments: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = 0

    @property
    def elapsed_s(self) -> float:
        """Return the virtual seconds since the beginning."""
        return (self.now - EPOCH) / SECOND

    def after(self, delay: int, do: Callable[..., object], *arguments: Any) -> None:
        """Have `do(*arguments)` happen later.

        Args:
            delay: Nanoseconds from now.
            do: What to do.
            arguments: What `do` is called with.
        """
        self._serial += 1
        heapq.heappush(self._moments, (self.now + delay, self._serial, do, arguments))

    def step(self) -> None:
        """Go to the next moment and do what is due there."""
        at, _, do, arguments = heapq.heappop(self._moments)
        self.now = Instant(at)
        do(*arguments)
