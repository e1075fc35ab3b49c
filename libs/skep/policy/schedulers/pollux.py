"""Pollux: GPUs go where they add most to the goodput of all jobs, relative to their fair shares.

Goodput is useful progress per second: throughput times statistical efficiency (section 3). A job
that adapts its batch size to its GPUs reports useful mini-batches, so its measured and predicted
rates (`JobView.rates`) are its goodput by number of workers. For a job whose batch size is fixed,
goodput is throughput.

The paper searches with a genetic algorithm. Here the search is deterministic: without the places of
GPUs the fitness is a sum over jobs, and the steps of the upper concave envelope of each job's term
are taken in the order of what they add per GPU. That is the optimum for the number of GPUs that the
steps use up.

Source: Pollux (OSDI 2021), sections 4.1 and 4.2.
"""

from __future__ import annotations

import math
from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.parts import LATE_DIVISOR, by_arrival, check_one_or_more, queued
from skep.policy.plan import Plan, Resize, Turn
from skep.policy.powers import Powers
from skep.policy.shares import Choice, carry_out, share_out
from skep.policy.sizes import EXPLORED, changeable, gpus_per_worker, known_speeds
from skep.policy.view import JobView, VcView
from skep.units import NS_PER_SECOND, Instant

LEAST_SPEEDUP = 1e-3
"""Added to every speed-up: a job without progress makes the fitness bad, and not infinitely so."""

GAINS_LEAST = 1.1
"""A job is tried anew if no size up to EXPLORED times its own is faster by this factor."""


class Pollux(Policy, frozen=True):
    """Every `every_s` seconds GPUs are shared out anew to maximise the fitness (section 4.2).

    The fitness is the power mean of all jobs' speed-ups, with exponent `fairness`: 1 maximises
    their sum, and the further below zero it is, the more the slowest job counts. A job's speed-up
    is its goodput relative to that with an equal share of the GPUs. If its size is changed, it is
    multiplied by (T - R d) / (T + d): T is its age, R how often it was started again, and d
    `restart_s`.

    Elastic jobs begin with the fewest workers that they may have, or more. Where the speed of a
    size is unknown it is assumed to be in proportion to the GPUs, up to twice the largest size that
    is known (section 4.1). How a job scales changes while it trains, as its statistical efficiency
    does, and what is known of its family may be of younger jobs: every `retry_s` seconds a running
    job that no larger size makes faster is thought to scale in proportion, and so tried anew. Other
    jobs have the GPUs of their spec, in the order of arrival. No job
    is stopped; a job that does not fit beside the fewest workers of all others waits, and with
    `strict` blocks those behind it.
    """

    name: ClassVar[str] = "pollux"
    source: ClassVar[str] = "Pollux (OSDI 2021), sections 4.1 and 4.2"
    every_s: float = 60
    fairness: float = -1
    restart_s: float = 30
    retry_s: float = 1800
    strict: bool = True

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `every_s` is too short, `restart_s` negative, or `fairness` above 1.
        """
        check_one_or_more("every_s", self.every_s, "seconds")
        check_one_or_more("retry_s", self.retry_s, "seconds")
        if self.restart_s < 0:
            reason = f"restart_s is seconds, 0 or more: not {self.restart_s}"
            raise ValueError(reason)
        if not -10 <= self.fairness <= 1:
            reason = f"fairness is an exponent from -10 to 1: not {self.fairness}"
            raise ValueError(reason)

    @property
    def sees_rates(self) -> bool:
        """Return True."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that it changes the size of elastic jobs, as rates say it."""
        return Powers(resizes=True, rates=True, passes=not self.strict)

    def plan(self, view: VcView) -> Plan:
        """Return new sizes and turns at the beginning of a round.

        What smaller jobs give back in the time that a restart takes is passed on in that time.
        """
        length = round(self.every_s * NS_PER_SECOND)
        began = view.now // length * length
        late = length // LATE_DIVISOR
        into = view.now - began
        turns: list[Turn] = []
        resizes: list[Resize] = []
        if into <= late + min(round(self.restart_s * NS_PER_SECOND), length - 2 * late):
            free = view.free_for()
            for pin in sorted(view.gpus_for()):
                more, other = self._among(view, pin, free.get(pin, 0), began, shrinks=into <= late)
                turns += more
                resizes += other
        return Plan(
            turns=tuple(turns),
            strict=self.strict,
            actions=tuple(resizes),
            look_at=Instant(began + length),
        )

    def _among(
        self, view: VcView, pin: str, free: int, began: int, *, shrinks: bool
    ) -> tuple[list[Turn], list[Resize]]:
        """Return turns and new sizes of the jobs with this pin.

        Args:
            view: The VC.
            pin: The pin.
            free: GPUs that none of these jobs has.
            began: When the round began: jobs that came later wait for the next one.
            shrinks: Whether jobs may be made smaller.
        """
        running = [job for job in view.jobs if job.pin == pin and changeable(job)]
        waiting = [
            job for job in by_arrival(queued(view)) if job.pin == pin and job.waiting_since <= began
        ]
        shared = free + sum(job.gpus for job in running)
        own = {job.job: 0 for job in waiting} | {job.job: job.workers for job in running}
        fair = view.gpus_for()[pin] / max(len(own), 1)
        choices = {
            job.job: self._choices(job, own[job.job], fair, view.now)
            for job in (*running, *waiting)
        }
        sizes = share_out((*running, *waiting), choices, shared, strict=self.strict)
        return carry_out(running, waiting, sizes, free, shrinks=shrinks)

    def _choices(self, job: JobView, own: int, fair: float, now: Instant) -> list[Choice]:
        """Return what a job adds to the fitness with each number of workers, fewest first.

        Args:
            job: It runs, or waits.
            own: The workers that it has now; 0: none.
            fair: An equal share of the GPUs.
            now: The time of the view.
        """
        each = gpus_per_worker(job)
        speeds = known_speeds(job)
        if own and self._tries_again(job, now):
            larger = [k for k in speeds if own < k <= EXPLORED * own]
            if max((speeds[k] for k in larger), default=0.0) < GAINS_LEAST * speeds[own]:
                speeds |= {k: speeds[own] * k / own for k in larger}
        equal = min(speeds, key=lambda workers: abs(workers - round(fair / each)))
        age = (now - job.submitted_at) / NS_PER_SECOND
        kept = max(age - max(job.starts - 1, 0) * self.restart_s, 0.0) / (
            age + self.restart_s + 1e-9
        )
        found = []
        for workers, speed in speeds.items():
            speedup = speed / speeds[equal]
            if own and workers != own:
                speedup *= kept
            found.append(Choice(workers * each, workers, self._worth(speedup)))
        return found

    def _tries_again(self, job: JobView, now: Instant) -> bool:
        """Return whether a job is to be tried at larger sizes in this round.

        Jobs take turns, by their place in the order of arrival.
        """
        rounds = max(round(self.retry_s / self.every_s), 1)
        return (now // round(self.every_s * NS_PER_SECOND) + job.sequence) % rounds == 0

    def _worth(self, speedup: float) -> float:
        """Return a job's term of the fitness, to be maximised as a sum (section 4.2)."""
        more = speedup + LEAST_SPEEDUP
        if self.fairness == 0:
            return math.log(more)
        return math.copysign(more**self.fairness, self.fairness)
