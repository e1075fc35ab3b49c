"""An attempt of a job as its ranks report it: what the introspector knows of it."""

from __future__ import annotations

from skep.perf.progress import PhaseWatch, RankWindow
from skep.units import Instant
from skep.wire.codec import is_trace
from skep.wire.reports import JobProgress


class Attempt:
    """One attempt of a job as its ranks report it."""

    __slots__ = (
        "attempt",
        "behind",
        "calm",
        "heard_at",
        "job",
        "learned",
        "look_at",
        "ranks",
        "speaker",
        "spoke_at",
        "stalled",
        "stands",
        "told_step",
        "trace",
        "values",
        "values_step",
        "watch",
        "world",
    )

    def __init__(self, progress: JobProgress) -> None:
        """Begin with what is said first."""
        self.job = progress.job
        self.attempt = progress.attempt
        self.trace = progress.trace if is_trace(progress.trace) else ""
        self.ranks: dict[int, RankWindow] = {}
        self.world = 0
        self.heard_at = 0
        self.learned = False
        self.stalled: int | None = None
        """Since when, if it is."""
        self.stands = False
        """It is suspended: that it makes no mini-batches says nothing."""
        self.watch: PhaseWatch | None = None
        self.values: dict[str, float] = {}
        self.values_step = 0
        self.speaker = 0
        """The rank whose values these are: the lowest one that tells any."""
        self.spoke_at = 0
        self.told_step = 0
        self.behind = 0
        """By how much the clock of the reporting agent is behind this one."""
        self.calm = 0
        """Looks since all rates rest on what the latest lasting report says."""
        self.look_at: Instant | None = None
        """When there is something to be found; None as well where nothing lasts."""
