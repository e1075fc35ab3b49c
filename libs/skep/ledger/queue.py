"""Which job is next: priority, then arrival; among equals the advisor's order while fresh."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from skep.wire.reasons import Reason

CAME_SPARE = 1000
"""Jobs that came and left that are noted, as they are taken only while some job waits."""


class Entry(NamedTuple):
    """A waiting job. Sorts by priority (highest first), then by arrival."""

    negative_priority: int
    sequence: int
    job: str


class Head(NamedTuple):
    """The next job of a queue, what its queue may claim against others, and why it is next."""

    entry: Entry
    claim: Entry
    ranked: Reason


class JobQueue:
    """The waiting jobs of one VC and service class.

    Adding and removing cost a binary search and a memory move; the head is at hand.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.entries: list[Entry] = []
        self._came: list[Entry] = []
        self._advised: deque[Entry] = deque()

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self.entries)

    def add(self, entry: Entry) -> None:
        """Let a job wait. One that comes back takes its old place: arrival never changes."""
        at = bisect_left(self.entries, entry)
        assert self.entries[at : at + 1] != [entry], entry
        self.entries.insert(at, entry)
        self._came.append(entry)
        if len(self._came) > 2 * len(self.entries) + CAME_SPARE:
            self._came = list(self.entries)

    def came(self) -> list[Entry]:
        """Return the jobs that were added since this was last asked; some may have left since."""
        came, self._came = self._came, []
        return came

    def remove(self, entry: Entry) -> None:
        """Take a waiting job out."""
        at = bisect_left(self.entries, entry)
        assert self.entries[at : at + 1] == [entry], entry
        del self.entries[at]

    def holds(self, entry: Entry) -> bool:
        """Return whether the job waits here."""
        at = bisect_left(self.entries, entry)
        return at < len(self.entries) and self.entries[at] == entry

    def advise(self, order: Iterable[Entry]) -> None:
        """Follow this order among equal priorities until told another; entries may be stale."""
        self._advised = deque(order)

    def head(self) -> Head | None:
        """Return the next job, or None if no job waits.

        Advice only permutes jobs of the highest waiting priority; the claim against other queues
        stays that of the earliest arrival, so advice moves no job across tenants.
        """
        if not self.entries:
            return None
        first = self.entries[0]
        while self._advised and not self.holds(self._advised[0]):
            self._advised.popleft()
        if self._advised and self._advised[0].negative_priority == first.negative_priority:
            advised = self._advised[0]
            ranked = Reason.ARRIVAL if advised == first else Reason.PREDICTED_SHORTEST
            return Head(advised, first, ranked)
        return Head(first, first, Reason.ARRIVAL)
