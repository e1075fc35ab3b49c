"""What admission hears of how jobs go and how fast models are: soft, bounded, told again.

    Outlook --> fits by VC: lengths of jobs that are submitted (`promises.speeds`)
            --> promises that have to be judged again: a few in each decision

A fit that changes concerns the promises that rest on it; a pace concerns its job. What a job is now
expected to take is worked out when it is its turn, so of several news the last one counts.
"""

from __future__ import annotations

from skep.perf.fitted import FitsKept
from skep.promises.length import LENGTH_MAX, Speeds, length
from skep.promises.pledges import Pledge, Pledges
from skep.promises.speeds import Predicted
from skep.units import Duration, Instant, after, seconds
from skep.wire.advice import JobPace, Outlook
from skep.wire.promises import Lasts

STEADY, UNSURE = 1.28, 0.15
"""P90 is so many standard deviations of a rate's windows above P50; and so much, as a part of the
rest, where their deviation is not known."""
LEAST_UNSURE, MOST_UNSURE = 0.02, 1.0
BEGINS = seconds(15.0)
"""How long after a start the answers say that fits may not have been heard yet."""


class Measurements:
    """The fits that were heard, and the promises that they and paces concern."""

    def __init__(self, pledges: Pledges) -> None:
        """Begin without anything heard."""
        self._pledges = pledges
        self.fits = FitsKept()
        self.speeds: Speeds = Predicted(self.fits)
        self.pending: dict[str, None] = {}
        """Promised jobs that have to be judged again."""
        self._paces: dict[str, tuple[JobPace, Instant]] = {}
        self._attempts: dict[str, int] = {}
        self._begun = Instant(0)
        self._heard = False

    def began(self, now: Instant) -> None:
        """Take note of a start."""
        self._begun, self._heard = now, False

    def is_new(self, now: Instant) -> bool:
        """Return whether this has only just begun, and may not have heard of any fit."""
        return not self._heard and now < after(self._begun, BEGINS)

    def hear(self, told: Outlook, now: Instant) -> None:
        """Take over what the advisor tells.

        Args:
            told: What is new. What concerns no promise of a running job is passed over.
            now: The time.
        """
        changed = dict[tuple[str, str, str], None]()
        for fit in told.fits:
            self._heard = True
            if self.fits.hear(fit):
                changed[fit.vc, fit.family, fit.gpu_type] = None
        for pace in told.jobs:
            pledge = self._pledges.jobs.get(pace.job)
            known = self._attempts.get(pace.job, pace.attempt)
            if pledge is None or not pledge.since or known != pace.attempt:
                continue
            self._paces[pace.job] = pace, now
            if pledge.promised:
                self.pending[pace.job] = None
        for pledge in self._pledges.jobs.values() if changed else ():
            place, size = pledge.place, pledge.spec.size
            if place is None or pledge.declared or size.family is None:
                continue
            if (pledge.spec.vc, size.family, place.gpu_type) in changed:
                self.pending[pledge.job] = None

    def runs(self, job: str, attempt: int) -> None:
        """Take note of which attempt runs: what was told of an earlier one says nothing of it."""
        self._paces.pop(job, None)
        if job in self._pledges.jobs:
            self._attempts[job] = attempt

    def forget(self, job: str) -> None:
        """Forget a job that is over."""
        for known in (self.pending, self._paces, self._attempts):
            known.pop(job, None)

    def lasts(self, pledge: Pledge, now: Instant) -> Lasts | None:
        """Return how long a promised job is now expected to run in all; None: nothing new is known.

        Args:
            pledge: The job.
            now: The time.
        """
        told = self._paces.get(pledge.job)
        if pledge.since and told is not None:
            return self._by_pace(pledge, *told)
        size, place = pledge.spec.size, pledge.place
        total = size.total()
        if place is None or pledge.declared or total is None:
            return None
        gpus, nodes = sum(gpus for _, gpus in place.nodes), len(place.nodes)
        step = self.speeds.step(pledge.spec, place.gpu_type, gpus, nodes)
        if step is None:
            return None
        p10, p50, p90 = (length(each * total / 1e9) for each in step)
        return Lasts(p10=p10, p50=p50, p90=p90)

    def _by_pace(self, pledge: Pledge, pace: JobPace, at: Instant) -> Lasts | None:
        """Return what a job runs in all at its pace, if it has the GPUs that it was promised."""
        place = pledge.place
        if place is None or pace.remaining is None or not pace.rate_milli:
            return None
        rest = min(pace.remaining, LENGTH_MAX)
        gpus = sum(gpus for _, gpus in place.nodes)
        if pledge.spec.elastic is not None and pace.workers * pledge.spec.resources.gpus != gpus:
            return None
        unsure = UNSURE
        if pace.samples > 1 and pace.mean_milli:
            unsure = STEADY * pace.spread_milli / pace.mean_milli
        unsure = min(max(unsure, LEAST_UNSURE), MOST_UNSURE)
        ran = pledge.served(at)
        low, middle, high = rest * (1 - unsure), rest, rest * (1 + unsure)
        if pace.samples < 2:
            low = 0.0  # Its first minute may be slow. No promise is broken by that.
        return Lasts(
            p10=Duration(ran + round(low)),
            p50=Duration(ran + round(middle)),
            p90=Duration(ran + round(high)),
        )

    def check(self) -> None:
        """Assert that only jobs that are followed are remembered.

        Raises:
            AssertionError: Another one is.
        """
        self.fits.check()
        for known in (self.pending, self._paces, self._attempts):
            assert known.keys() <= self._pledges.jobs.keys()
