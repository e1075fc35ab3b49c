"""What the introspector has heard of an attempt's fingerprint and timing, and what is news of it.

The first fingerprint of an attempt is its only one: the model of a process does not change, and
what says so may lie. A timing counts when the sequential rule says so, and only if all mini-batches
behind it were made with the present number of workers. What was told is told again now and then:
messages get lost, and the advisor may be started anew.
"""

from __future__ import annotations

from skep.perf.stopping import stop
from skep.units import Instant, seconds
from skep.wire.profile import SAMPLES_MAX, Fingerprint, Profiled, Timing
from skep.wire.reports import RankProgress

AGAIN_EVERY = seconds(60.0)
OTHER_DIVISOR = 20
"""A median that differs by more than this part of what was told is told at once."""
QUANTILES_NS_MAX = 10**15
"""No mini-batch takes 11 days."""


class ProfileWatch:
    """Follows one attempt."""

    __slots__ = ("_began", "_counted", "_fingerprint", "_told", "_told_at", "_world", "times")

    def __init__(self) -> None:
        """Begin without anything heard."""
        self._fingerprint: Fingerprint | None = None
        self.times = False
        """Whether the attempt times its mini-batches."""
        self._world = 0
        self._began = 0
        """Mini-batches that were made when the gang became as large as it is."""
        self._counted: Timing | None = None
        self._told: tuple[Fingerprint | None, Timing | None, int] = (None, None, 0)
        self._told_at = Instant(0)

    def take(self, rank: RankProgress, world: int) -> None:
        """Take over what a rank shows.

        Args:
            rank: Its report.
            world: Workers of the gang.
        """
        if self._fingerprint is None:
            self._fingerprint = rank.fingerprint
        if world != self._world:
            self._began = rank.steps if self._world else 0
            self._world, self._counted = world, None
        timing = rank.timing
        if timing is None or not is_sane(timing):
            return
        self.times = True
        made = rank.steps - self._began - 1
        lasted = made * timing.mean_ns
        if made < timing.samples:
            return  # Some of them were made before the gang changed.
        why = stop(timing.samples, timing.mean_ns, timing.deviation_ns, made=made, lasted=lasted)
        if why is not None:
            self._counted = timing

    def timing(self, world: int) -> Timing | None:
        """Return what counts of a gang of so many workers; None: it was not timed for long enough.

        Args:
            world: Workers of the gang.
        """
        return self._counted if world == self._world else None

    def news(self, job: str, attempt: int, now: Instant) -> Profiled | None:
        """Return what is to be told now, if anything.

        Args:
            job: The job's id.
            attempt: The attempt's number.
            now: The time.
        """
        said = self._fingerprint, self._counted, self._world
        if said[:2] == (None, None):
            return None
        if not _is_other(self._told, said) and now - self._told_at < AGAIN_EVERY:
            return None
        self._told, self._told_at = said, now
        return Profiled(
            at=now,
            job=job,
            attempt=attempt,
            workers=self._world,
            fingerprint=self._fingerprint,
            timing=self._counted,
        )


def is_sane(timing: Timing) -> bool:
    """Return whether a timing may be true: a job may say anything within the bounds of its fields.

    Args:
        timing: As a job told it.
    """
    ordered = 0 < timing.p10_ns <= timing.p50_ns <= timing.p90_ns < QUANTILES_NS_MAX
    small = timing.deviation_ns < QUANTILES_NS_MAX and 0 < timing.mean_ns < QUANTILES_NS_MAX
    return ordered and small and 2 <= timing.samples <= SAMPLES_MAX


def _is_other(
    told: tuple[Fingerprint | None, Timing | None, int],
    said: tuple[Fingerprint | None, Timing | None, int],
) -> bool:
    before, now = told[1], said[1]
    if (told[0], told[2], before is None) != (said[0], said[2], now is None):
        return True
    if before is None or now is None:
        return False
    return abs(now.p50_ns - before.p50_ns) * OTHER_DIVISOR > before.p50_ns
