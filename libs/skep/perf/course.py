"""A rank with known future mini-batches: what it would report, second by second.

A simulation says once that a rank makes mini-batches at some pace until it says otherwise
(fast-forwarding, as in Gandiva, section 6.1). A reader of this comes to the same state as with a
report every second: the missing reports follow from the one that was sent, and long stretches in
which nothing new can be found are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from skep.units import NS_PER_SECOND


class Course(NamedTuple):
    """The state of a rank at `at` (nanoseconds), and how it continues.

    `steps` mini-batches were done, the latest at `last_step_at`; the next one ends at `next_at` and
    each further one `step_ns` later. If `next_at` is 0, the rank makes none.
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
        """Return how many mini-batches are done by `now`, and when the latest one ended.

        Args:
            now: Nanoseconds.
        """
        if not self.goes or now < self.next_at:
            return self.steps, self.last_step_at
        more = (now - self.next_at) // self.step_ns
        return self.steps + 1 + more, self.next_at + more * self.step_ns

    def ends(self, steps: int) -> int:
        """Return when mini-batch number `steps` ends, in nanoseconds.

        Args:
            steps: More than the mini-batches that were done at the beginning.
        """
        return self.next_at + (steps - self.steps - 1) * self.step_ns

    def heard(self, moment: int) -> int:
        """Return when the latest report before a moment is made, with one report every second.

        Args:
            moment: Nanoseconds.
        """
        seconds = max(0, moment - self.at - 1) // NS_PER_SECOND
        return self.at + seconds * NS_PER_SECOND

    def tells(self, moment: int) -> int:
        """Return when the first report at or after a moment is made, with one report every second.

        Args:
            moment: Nanoseconds.
        """
        return self.at + -(-max(0, moment - self.at) // NS_PER_SECOND) * NS_PER_SECOND
