"""The window of a trial: samples of its jobs after the change, until they can be judged.

    mini-batches of the slowest rank --> samples of SAMPLE or longer --> judge --> a finding

Samples rest on counts and on the ends of mini-batches by the rank's own clock, as rates do: late or
lost reports change nothing.
"""

from __future__ import annotations

from math import isfinite

from skep.perf.judge import SAMPLE, SAMPLES_MAX, Baseline, Judgement, Tried, judge, spread_milli
from skep.perf.progress import RATE_MILLI_MAX, RankWindow, rate_milli
from skep.perf.stopping import stop
from skep.units import NS_PER_SECOND, Instant, after, seconds
from skep.wire.profile import Timing
from skep.wire.trials import After, Before, Kind, OpenTrial

RATE_NS = 1000 * NS_PER_SECOND
"""A rate is this over the nanoseconds of a mini-batch."""
SETTLES = seconds(5.0)
"""How long after a change nothing is measured: caches are cold, and memory is still allocated."""


class Samples:
    """The samples of one job since a change: adjacent stretches of its slowest rank."""

    __slots__ = ("_lives", "_rank", "_since", "_steps", "rates")

    def __init__(self) -> None:
        """Start without samples."""
        self.rates: list[int] = []
        """Each in thousandths of a mini-batch per second."""
        self._rank: RankWindow | None = None

    def take(self, slowest: RankWindow) -> None:
        """Look at the job, and add a sample if a stretch is complete.

        Args:
            slowest: Its slowest rank now, to which the next sample belongs.
        """
        rank = self._rank
        if rank is None or rank.lives != self._lives:
            self._begin(slowest)
            return
        span, made = rank.last_step_at - self._since, rank.steps - self._steps
        if span < SAMPLE or made <= 0:
            return
        if len(self.rates) < SAMPLES_MAX:
            self.rates.append(rate_milli(made, span))
        self._begin(slowest)

    def _begin(self, rank: RankWindow) -> None:
        self._rank, self._lives = rank, rank.lives
        self._since, self._steps = rank.last_step_at, rank.steps


class Window:
    """The measurement of an open trial. It has to be updated every second."""

    def __init__(self, trial: OpenTrial) -> None:
        """Begin without measurements."""
        self.trial = trial
        self.samples = {each.job: Samples() for each in trial.jobs}
        known = tuple(each for each in trial.jobs if each.solo_milli)
        # A job that asked to share a GPU may join before it ever ran alone: then it does not count.
        self._compared = known if known and trial.kind is Kind.PACK else trial.jobs
        self._tried = -1
        """How many samples every job had when the trial was last judged."""
        self._found: Judgement | None = None

    def measures(self, now: Instant) -> bool:
        """Return whether mini-batches of its jobs count by now."""
        return self.trial.since > 0 and now >= after(self.trial.since, SETTLES)

    def judge(self) -> Judgement | None:
        """Return the verdict; None: there is none yet."""
        if self._found is None or self._found.kept is None:
            least = min(len(self.samples[each.job].rates) for each in self._compared)
            if least > self._tried:
                self._tried = least
                jobs = [
                    Tried(self._baseline(each), self.samples[each.job].rates)
                    for each in self._compared
                ]
                self._found = judge(jobs, self.trial.needed_milli / 1000)
        found = self._found
        spares = self.trial.kind is Kind.DEFRAG and self._tried >= SAMPLES_MAX
        if found is not None and found.kept is None and spares and isfinite(found.high):
            return found._replace(kept=True)  # As far as is known it lost no more than it may.
        return found if found is not None and found.kept is not None else None

    def after(self) -> tuple[After, ...]:
        """Return the mean rates of its jobs since the change."""
        return tuple(
            After(
                job=job,
                rate_milli=sum(each.rates) // max(1, len(each.rates)),
                samples=len(each.rates),
            )
            for job, each in self.samples.items()
        )

    def probed(self, timing: Timing | None, *, times: bool) -> After | None:
        """Return what was measured of a probe; None: it was not measured for long enough.

        Args:
            timing: What its mini-batches took, if that counts by now.
            times: Whether the job times them. Else the samples are what the sequential rule goes
                by: where it does, what is recorded of the place has to come first.
        """
        (name, each) = next(iter(self.samples.items()))
        if timing is not None:
            rate = RATE_NS // timing.mean_ns
            return After(job=name, rate_milli=min(rate, RATE_MILLI_MAX), samples=timing.samples)
        if times:
            return None
        count, lasted = len(each.rates), SAMPLE * len(each.rates)
        mean = sum(each.rates) / max(count, 1)
        spread = float(spread_milli(each.rates))
        if stop(count, mean, spread, made=0, lasted=lasted) is None:
            return None
        return After(job=name, rate_milli=round(mean), samples=count)

    def _baseline(self, job: Before) -> Baseline:
        alone = self.trial.kind is Kind.PACK
        mean = job.solo_milli if alone else job.rate_milli
        return Baseline(mean, job.spread_milli, job.samples)
