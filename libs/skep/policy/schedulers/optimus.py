"""Optimus: one more worker goes to the job that gains the most from it.

Source: Optimus (EuroSys 2018), section 4.1; DL², section 6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import msgspec

from skep.policy.api import Policy
from skep.policy.parts import LATE_DIVISOR, by_arrival, check_one_or_more, queued, turns_for
from skep.policy.plan import Plan, Resize, Turn
from skep.policy.powers import Powers
from skep.policy.sizes import fewest_workers, gpus_per_worker, known_speeds, offered, offers
from skep.policy.view import JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant
from skep.wire.reasons import Reason


class Optimus(Policy, frozen=True):
    """Every `every_s` seconds GPUs are shared out anew among the elastic jobs that run.

    Each gets its fewest workers. Then one worker more goes to the job whose remaining time falls
    the most for it, per GPU, until the GPUs are used up or no job gains. A job that offers only
    some sizes gets as many more as lead to the next one. Waiting jobs come first, in order of
    arrival, with the workers of their spec; no job is stopped. Parameter servers stay as they are:
    their predicted speeds are not in the view.

    Only jobs whose rates are predicted are resized: those whose family was measured at two sizes or
    more (`JobView.rates`). For all others this is an order of arrival.

    With `fewest` waiting elastic jobs begin with the fewest workers that they may have, as in the
    paper, and unknown speeds are assumed to be in proportion to the workers, up to twice the
    largest size that is known: else no family would ever be measured at a second size.
    """

    name: ClassVar[str] = "optimus"
    source: ClassVar[str] = "Optimus (EuroSys 2018), section 4.1; DL², section 6.1"
    every_s: float = 600
    strict: bool = True
    fewest: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `every_s` is too short.
        """
        check_one_or_more("every_s", self.every_s, "seconds")

    @property
    def sees_rates(self) -> bool:
        """Return True."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that it resizes, by remaining times and rates."""
        return Powers(resizes=True, passes=not self.strict, run_times=True, rates=True)

    def plan(self, view: VcView) -> Plan:
        """Return turns in order of arrival, and new sizes at the beginning of a round."""
        length = round(self.every_s * NS_PER_SECOND)
        began = view.now // length * length
        actions: list[Resize] = []
        if view.now - began <= length // LATE_DIVISOR:
            actions = self._resizes(view)
        waiting = by_arrival(queued(view))
        turns = turns_for(waiting, Reason.ARRIVAL)
        if self.fewest:
            turns = tuple(
                Turn(job.job, Reason.ARRIVAL, workers=fewest_workers(job)) for job in waiting
            )
        return Plan(
            turns=turns, strict=self.strict, actions=tuple(actions), look_at=Instant(began + length)
        )

    def _resizes(self, view: VcView) -> list[Resize]:
        spare = view.free_for()
        for job in queued(view):
            workers = self.fewest and fewest_workers(job)
            asks = workers * gpus_per_worker(job) if workers else job.gpus
            spare[job.pin] = spare.get(job.pin, 0) - asks
        return [resize for pin, free in spare.items() for resize in self._among(view, pin, free)]

    def _among(self, view: VcView, pin: str, free: int) -> list[Resize]:
        """Return new sizes of the jobs with this pin, given what waiting jobs leave free."""
        elastic = [job for job in view.jobs if job.pin == pin and _is_elastic(job, view)]
        now = {job.job: job.workers for job in elastic}
        if self.fewest:
            elastic = [_with_all_speeds(job) for job in elastic]
        shares = share_out(elastic, view, free)
        resizes = []
        for job in sorted(elastic, key=lambda job: (shares[job.job] - now[job.job], job.sequence)):
            more = (shares[job.job] - now[job.job]) * _gpus_per_worker(job)
            if more and more <= max(free, 0):
                free -= max(more, 0)
                resizes.append(Resize(job.job, Reason.MOST_GAIN, shares[job.job]))
        return resizes


def share_out(elastic: list[JobView], view: VcView, free: int) -> dict[str, int]:
    """Return by job how many workers it is to have (Optimus, section 4.1).

    Args:
        elastic: Running jobs with predicted rates.
        view: The VC.
        free: GPUs that are free beside these jobs.
    """
    rates = {
        job.job: {size: rate for size, rate in job.rates if offers(job, size)} for job in elastic
    }
    larger = {job.job: _larger(job, rates[job.job]) for job in elastic}
    shares = {job.job: min(rates[job.job]) for job in elastic}
    left = free + sum((job.workers - shares[job.job]) * _gpus_per_worker(job) for job in elastic)
    while True:
        steps = [
            (job, shares[job.job], larger[job.job][shares[job.job]])
            for job in elastic
            if shares[job.job] in larger[job.job]
        ]
        gains = [
            (_gain(job, rates[job.job], now, then, view), -job.sequence, job)
            for job, now, then in steps
            if (then - now) * _gpus_per_worker(job) <= left
        ]
        best = max(gains, key=lambda each: each[:2], default=None)
        if best is None or best[0] <= 0:
            return shares
        now = shares[best[2].job]
        shares[best[2].job] = larger[best[2].job][now]
        left -= (shares[best[2].job] - now) * _gpus_per_worker(best[2])


def _larger(job: JobView, rates: Mapping[int, int]) -> dict[int, int]:
    """Return by size the next larger one that a job can have, if the rate of that is known."""
    sizes = offered(job, min(rates), max(rates))
    return {now: then for now, then in pairwise(sizes) if then in rates}


def _gain(job: JobView, rates: Mapping[int, int], now: int, then: int, view: VcView) -> float:
    """Return the remaining nanoseconds that a step to a larger size saves, per GPU."""
    remaining = job.remaining(view.now) or 0
    speed, gpus = rates.get(job.workers, 0), (then - now) * _gpus_per_worker(job)
    if not rates[now] or not rates[then]:
        return 0.0
    return remaining * speed * (1 / rates[now] - 1 / rates[then]) / gpus


def _with_all_speeds(job: JobView) -> JobView:
    """Return a job whose unknown rates are assumed."""
    rates = tuple((workers, round(rate)) for workers, rate in known_speeds(job).items())
    return msgspec.structs.replace(job, rates=rates)


def _is_elastic(job: JobView, view: VcView) -> bool:
    return (
        job.phase is Phase.RUNNING
        and not job.borrows
        and "resize" in job.can
        and job.workers in dict(job.rates)
        and job.remaining(view.now) is not None
    )


def _gpus_per_worker(job: JobView) -> int:
    return max(job.gpus // max(job.workers, 1), 1)
