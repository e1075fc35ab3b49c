"""The progress of each job: work done at the rate of where it runs, stored, and lost."""

from __future__ import annotations

import math

import msgspec

from skep.units import Duration, Instant
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import STAGES, Situation

HUNDREDTH = 100
"""The mini-batch by which AutoML decides about a model (Gandiva, section 6.2)."""


class Work(msgspec.Struct):
    """One job's progress. Work is nanoseconds at speed 1; `rate` is its present speed."""

    job: TraceJob
    done: int = 0
    """The work that is done, as of `since`."""
    stored: int = 0
    """The part of that which survives a stop."""
    made: int = 0
    """All work that was ever done, with lost work: it only grows."""
    rate: float = 0.0
    """0: it does not train."""
    since: int = 0
    debt: int = 0
    """For so many nanoseconds it trains without progress first."""
    stopped: int = 0
    """The latest attempt for which a debt was counted."""
    begun: int = 0
    """When it began to train without a break: checkpoints follow at equal times from then on."""
    attempt: int = 0
    """The attempt that trains, or is suspended and is to continue."""
    version: int = 0
    """Counts how often its end was computed: only the latest end happens."""
    factor: float = 1.0
    """The speed of this attempt relative to its model, by chance."""
    phase: float = 1.0
    """The present speed of the job relative to its model, in any attempt."""
    where: Situation | None = None
    """Where it trains."""
    hundred: int = 0
    lost: int = 0
    overhead: int = 0
    paid: tuple[int, int] = (0, 0)
    """Attempt and order for which a cost was counted last: a gang has several parts."""

    def advance(self, now: Instant, store_every: int) -> None:
        """Add the work since the last call.

        Args:
            now: The present instant.
            store_every: Nanoseconds between two checkpoints; 0: there are none.
        """
        span = now - self.since
        if not self.rate or span <= 0:
            self.since = now
            return
        if self.debt:
            paid = min(self.debt, span)
            self.debt -= paid
            self.since += paid
            span -= paid
        more = span if self.rate == 1.0 else round(span * self.rate)
        more = min(more, self.job.run_time - self.done)
        if store_every:
            latest = self.begun + (now - self.begun) // store_every * store_every
            if latest > self.since:
                self.stored = self.done + min(more, round((latest - self.since) * self.rate))
        batches = self.job.mini_batches
        if batches >= HUNDREDTH and not self.hundred:
            needed = math.ceil(self.job.run_time * HUNDREDTH / batches)
            if self.done + more >= needed:
                self.hundred = self.since + round(max(0, needed - self.done) / self.rate)
        self.done += more
        self.made += more
        self.since = now

    def left(self) -> Duration:
        """Return how long it still takes from `since` on, at its present speed (above 0)."""
        rest = self.job.run_time - self.done
        return Duration(self.debt + (rest if self.rate == 1.0 else math.ceil(rest / self.rate)))

    def stage(self) -> int:
        """Return in which part of its run the job is; 0 if its batch size is fixed."""
        if not self.job.batch_max or not self.job.run_time:
            return 0
        return min(self.done * STAGES // self.job.run_time, STAGES - 1)

    def next_stage(self) -> Duration | None:
        """Return how long the present part still takes at its speed (above 0); None: it is last."""
        stage = self.stage()
        if not self.job.batch_max or stage == STAGES - 1:
            return None
        rest = math.ceil((stage + 1) * self.job.run_time / STAGES) - self.done
        return Duration(self.debt + math.ceil(rest / self.rate) + 1)

    def lose(self) -> None:
        """Return to the stored state."""
        self.lost += self.done - self.stored
        self.done = self.stored

    def steps(self) -> int:
        """Return the mini-batches that are done; 0 if the trace does not have their number."""
        batches, whole = self.job.mini_batches, self.job.run_time
        return batches * self.done // whole if whole else batches
