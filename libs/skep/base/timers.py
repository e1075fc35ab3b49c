"""A heap of timers (in ns) that can be replaced and cancelled in constant time."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from typing import Any, Generic, TypeVar

from skep.units import Instant

STALE_MAX = 64
"""How many entries the heap may hold beyond twice its timers before it is rebuilt: a rebuild costs
little then, and small heaps are not rebuilt at every change."""
NEVER = Instant(2**62)
"""Later than every timer."""

Key = TypeVar("Key")


class TimerHeap(Generic[Key]):
    """One timer for each key, the soonest first.

    Timers of one instant come in the order of their keys, or of what was given for them.

    A timer that is replaced or cancelled leaves an entry in the heap. It is dropped when it comes
    to the top, or when the heap is rebuilt.
    """

    def __init__(self) -> None:
        """Start without timers."""
        self.due: dict[Key, int] = {}
        """When each timer is due."""
        self._heap: list[tuple[int, Any, Key]] = []
        """When each timer is due, its place among those of that instant, and its key."""

    def __len__(self) -> int:
        """Return the number of entries in the heap, those of replaced timers included."""
        return len(self._heap)

    def set_timer(self, key: Key, at: int, order: Any = None) -> None:
        """Set the timer of a key, in place of the one it had.

        Args:
            key: The key.
            at: When the timer is due, in nanoseconds.
            order: Its place among the timers of that instant, always the same for the key; None:
                by the key itself.
        """
        self.due[key] = at
        heapq.heappush(self._heap, (at, key if order is None else order, key))
        if len(self._heap) > 2 * len(self.due) + STALE_MAX:
            kept = {entry[2]: entry for entry in self._heap if self.due.get(entry[2]) == entry[0]}
            self._heap = sorted(kept.values())

    def cancel(self, key: Key) -> None:
        """Cancel the timer of a key, if it has one."""
        self.due.pop(key, None)

    def pop_due(self, now: int) -> list[Key]:
        """Remove the timers that are due at `now`, and return their keys, the soonest first.

        Args:
            now: Nanoseconds.
        """
        fallen = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self.due.get(key) == at:
                del self.due[key]
                fallen.append(key)
        return fallen

    def upcoming(self, until: int, apart: Container[Key] = ()) -> Iterator[tuple[int, Key]]:
        """Yield the timers that are due before `until`, the soonest first, and leave them set.

        Args:
            until: The end of the time that is looked at, in nanoseconds, itself not included.
            apart: Keys to pass over.

        Yields:
            When each timer is due, and its key.
        """
        passed, heap = [], self._heap
        try:
            while heap and heap[0][0] < until:
                entry = heapq.heappop(heap)
                at, _, key = entry
                if self.due.get(key) != at:
                    continue
                passed.append(entry)
                if key not in apart:
                    yield at, key
        finally:
            for entry in passed:
                heapq.heappush(heap, entry)

    def first_due(self, apart: Container[Key] = ()) -> int | None:
        """Return when the soonest timer is due.

        Args:
            apart: Keys to pass over.

        Returns:
            Nanoseconds; None: there is no such timer.
        """
        heap = self._heap
        while heap and self.due.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        if not heap or heap[0][0] >= NEVER:
            return None
        if heap[0][2] not in apart:
            return heap[0][0]
        return next((at for at, _ in self.upcoming(NEVER, apart)), None)
