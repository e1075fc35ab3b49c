"""Least attained service in rounds: all jobs get about the same time (max-min fairness).

Source: Gavel (OSDI 2020), sections 4.1 (LAS as max-min fairness) and 5 (rounds).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from msgspec.structs import replace

from skep.policy.api import Planner, Policy
from skep.policy.parts import LATE_DIVISOR, check_one_or_more, turns_for
from skep.policy.plan import Plan
from skep.policy.powers import Powers
from skep.policy.preempt import preempt_for
from skep.policy.roster import Course, Order, Roster
from skep.policy.view import QUEUED, JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant
from skep.wire.reasons import Reason

FIRST = 200
"""Waiting jobs that have a turn within a round although no GPU is free."""


class Las(Policy, frozen=True):
    """Run the jobs that have run the least, in rounds; no job is stopped within a round.

    Rounds are `round_s` seconds long and begin at whole multiples of that. GPUs that come free
    within a round go to the waiting job that has run the least, or, without `fill`, to no job. What
    counts is how long a job ran until the round began, so that all plans of a round agree with its
    first.
    """

    name: ClassVar[str] = "las"
    source: ClassVar[str] = (
        "Gavel (OSDI 2020), sections 4.1 (LAS as max-min fairness) and 5 (rounds)"
    )
    round_s: float = 360
    fill: bool = True
    places: bool = True

    @property
    def sees_nodes(self) -> bool:
        """Return `places`."""
        return self.places

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `round_s` is too short.
        """
        check_one_or_more("round_s", self.round_s, "seconds")

    @property
    def powers(self) -> Powers:
        """Return that jobs are preempted at the beginning of a round."""
        return Powers(suspends=True, passes=True, priority="takes")

    def plan(self, view: VcView) -> Plan:
        """Return which jobs run in this round."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that keeps the order of waiting jobs from one view to the next."""
        roster = Roster()
        return lambda view: self._plan(view, roster)

    def _plan(self, view: VcView, roster: Roster) -> Plan:
        length = round(self.round_s * NS_PER_SECOND)
        began = Instant(view.now // length * length)
        end = Instant(began + length)
        order = roster.follow(view, partial(_key, began), partial(_course, began, end))
        # Where no job waits no round changes anything, and the next one that comes is an event.
        following = end if order.waits else None
        if view.now - began <= length // LATE_DIVISOR:
            why, because = Reason.LEAST_TIME, Reason.SLICE_OVER
            plan = preempt_for(view, roster, order, why, because=because, look_at=following)
            return replace(plan, behind=Reason.WAITS_BEHIND)
        turns = turns_for(_next(view, order), Reason.LEAST_TIME) if self.fill else ()
        return Plan(turns=turns, strict=False, look_at=following, behind=Reason.WAITS_BEHIND)


def ran_until(job: JobView, at: Instant) -> int:
    """Return how many nanoseconds a job had run by `at`.

    A job that is being stopped at a mini-batch boundary runs until then, and `served` does not
    count that yet. It may also have been stopped before it ran at all since it last waited.

    Args:
        job: The job.
        at: An instant, not after the view.
    """
    return job.served + (max(at - job.since, 0) if _runs(job) else 0)


def _runs(job: JobView) -> bool:
    return job.phase in (Phase.RUNNING, Phase.STOPPING) and job.since >= job.waiting_since


def _key(began: Instant, job: JobView) -> tuple[int, bool]:
    return ran_until(job, began), job.phase in QUEUED


def _course(began: Instant, following: Instant, job: JobView) -> Course:
    """Return how the key of a job changes: all that run have run one round more in the next."""
    ran, waits = _key(began, job)
    if not _runs(job):
        return Course((ran, waits))
    if began < job.since:
        return Course((ran, waits), until=following)
    return Course(job.served - job.since, like=True)


def _next(view: VcView, order: Order) -> Iterator[JobView]:
    """Yield the waiting jobs that need no more GPUs than are free, and the first in any case.

    If jobs of other VCs have GPUs of this one, those go back to the first. Idle GPUs of others are
    lent in the order of turns.
    """
    free = view.free_for()
    most = max(free.values())
    for count, job in enumerate(order.queue()):
        if count < FIRST or job.gpus <= free.get(job.pin, 0):
            yield job
        elif most <= 0:
            return
