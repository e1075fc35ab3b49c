"""What the introspector knows of an attempt of a job, from the reports of its ranks."""

from __future__ import annotations

from skep.perf.profile_watch import ProfileWatch
from skep.perf.progress import PhaseWatch, RankWindow
from skep.perf.slow_ranks import SlowWatch
from skep.units import Instant
from skep.wire.codec import is_trace
from skep.wire.reports import JobProgress


class Attempt:
    """One attempt of a job, from the reports of its ranks."""

    __slots__ = (
        "attempt",
        "behind",
        "calm",
        "heard_at",
        "job",
        "learned",
        "look_at",
        "profile",
        "ranks",
        "slow",
        "slow_at",
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
        """Begin with the first report."""
        self.job = progress.job
        self.attempt = progress.attempt
        self.trace = progress.trace if is_trace(progress.trace) else ""
        self.ranks: dict[int, RankWindow] = {}
        self.world = 0
        self.heard_at = 0
        self.learned = False
        self.stalled: int | None = None
        """When its stall began; None: it is not stalled."""
        self.stands = False
        """It is suspended: missing mini-batches mean nothing."""
        self.watch: PhaseWatch | None = None
        self.values: dict[str, float] = {}
        self.values_step = 0
        self.speaker = 0
        """The rank whose values these are: the lowest one that reports any."""
        self.spoke_at = 0
        self.told_step = 0
        self.profile: ProfileWatch | None = None
        """What it shows of its model, if it shows anything."""
        self.slow: SlowWatch | None = None
        """Of a gang whose ranks report their own times."""
        self.slow_at = 0
        """When to compare these again."""
        self.behind = 0
        """By how many nanoseconds the clock of the reporting agent is behind this one."""
        self.calm = 0
        """The number of looks since all rates rest on the latest lasting report."""
        self.look_at: Instant | None = None
        """When there is something to be found; None also where no report lasts."""
