"""A rank whose mini-batches are known in advance: what it would report, second by second.

A simulation says once that a rank goes on at some pace until it says otherwise (fast-forwarding, as
in Gandiva, section 6.1). A reader of that comes to what a report every second would have led to:
the reports that are left out follow from the one that was sent, and long stretches in which nothing
new can be found are passed over.
"""

from __future__ import annotations

from typing import NamedTuple

from skep.units import NS_PER_SECOND


class Course(NamedTuple):
    """What a rank was at `at` (ns), and how it goes on.

    `steps` mini-batches were done, the latest at `last_step_at`; the next one ends at `next_at`
    and each further one `step_ns` later. `next_at` 0: it makes none.
    """

    at: int
    steps: int
    last_step_at: int
    next_at: int
    step_ns: int

    @property
    def goes(self) -> bool:
        """Return whether it makes mini-batches."""
        return self.next_at > 0 and self.step_ns > 0

    def done(self, now: int) -> tuple[int, int]:
        """Return how many mini-batches are done by then, and when the latest one ended."""
        if not self.goes or now < self.next_at:
            return self.steps, self.last_step_at
        more = (now - self.next_at) // self.step_ns
        return self.steps + 1 + more, self.next_at + more * self.step_ns

    def ends(self, steps: int) -> int:
        """Return when so many mini-batches are done; more than there were to begin with."""
        return self.next_at + (steps - self.steps - 1) * self.step_ns

    def heard(self, moment: int) -> int:
        """Return when the latest report before a moment is made, with one every second."""
        seconds = max(0, moment - self.at - 1) // NS_PER_SECOND
        return self.at + seconds * NS_PER_SECOND

    def tells(self, moment: int) -> int:
        """Return when the first report at or after a moment is made."""
        return self.at + -(-max(0, moment - self.at) // NS_PER_SECOND) * NS_PER_SECOND
