"""What the published orders share: keys, checks of options, and the two kinds of order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, ClassVar

from skep.policy.api import NUMBER_MAX, Planner, Policy
from skep.policy.plan import Plan, Turn
from skep.policy.powers import Powers
from skep.policy.preempt import preempt_for
from skep.policy.roster import Course, Courses, Key, Roster
from skep.policy.view import QUEUED, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason

MOVING = frozenset({Phase.RUNNING, Phase.STOPPING})
"""Phases in which the key of a job may depend on the time, under every policy."""
LATE_DIVISOR = 60
"""A plan may be late by this part of a round and still count as its beginning: timers and messages
take time."""


def queued(view: VcView) -> list[JobView]:
    """Return the jobs that may be placed, in the order of arrival."""
    return [job for job in view.jobs if job.phase in QUEUED]


def own_jobs(view: VcView) -> list[JobView]:
    """Return the jobs that have or want GPUs of the VC, without jobs that borrow."""
    return [job for job in view.jobs if not job.borrows]


def sort_jobs(jobs: Iterable[JobView], key: Key) -> list[JobView]:
    """Return jobs sorted by priority, then by `key`, then by arrival.

    Args:
        jobs: The jobs.
        key: Returns a sort key of a job; the lowest comes first.
    """
    return sorted(jobs, key=lambda job: (-job.spec.priority, key(job), job.sequence))


def by_arrival(jobs: Iterable[JobView]) -> list[JobView]:
    """Return jobs sorted by priority, then by arrival."""
    return sorted(jobs, key=lambda job: (-job.spec.priority, job.sequence))


def unknown_last(value: int | None) -> tuple[bool, int]:
    """Return a sort key that puts None (unknown) last."""
    return value is None, value or 0


def turns_for(jobs: Iterable[JobView], why: Reason) -> tuple[Turn, ...]:
    """Return a turn for each job, all with the same reason."""
    return tuple([Turn(job.job, why) for job in jobs])


def portions(whole: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return integer parts of a whole by weight, which add up to the whole.

    Each name gets the integer part of its share. The rest goes to the largest remainders, and
    between equal ones to the first named (largest remainder method).

    Args:
        whole: What is divided, for example GPUs.
        weights: By name, each above 0.
    """
    total = sum(Fraction(weight) for weight in weights.values())
    shares = {name: whole * Fraction(weight) / total for name, weight in weights.items()}
    parts = {name: int(share) for name, share in shares.items()}
    rest = sorted(shares, key=lambda name: parts[name] - shares[name])
    for name in rest[: whole - sum(parts.values())]:
        parts[name] += 1
    return parts


def check_unique(option: str, names: Iterable[str]) -> None:
    """Check that an option has no name twice.

    Args:
        option: The name of the option, for the message.
        names: The names in its value.

    Raises:
        ValueError: A name occurs twice.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            reason = f"{option} name {name!r} twice"
            raise ValueError(reason)
        seen.add(name)


def check_one_or_more(option: str, value: float, unit: str) -> None:
    """Check the option that says after what time or service a new plan is made.

    A value below 1 would round to nothing, or cause a plan every millisecond.

    Args:
        option: The name of the option, for the message.
        value: Its value.
        unit: The unit of the value, for the message.

    Raises:
        ValueError: The value is below 1, or above NUMBER_MAX.
    """
    if not 1 <= value <= NUMBER_MAX:
        reason = f"{option} is {unit}, 1 or more: not {value}"
        raise ValueError(reason)


class Queued(Policy, frozen=True, kw_only=True):
    """An order of the waiting jobs; running jobs run to their end.

    With `strict` the first job that does not fit blocks the others, so that none starves.
    """

    strict: bool = True

    by_run_times: ClassVar[bool] = False
    """Whether the order goes by the run times that owners say."""

    @property
    def powers(self) -> Powers:
        """Return those of an order of the queue."""
        return Powers(passes=not self.strict, run_times=self.by_run_times, rates=self.sees_rates)

    def plan(self, view: VcView) -> Plan:
        """Return a turn for each waiting job."""
        turns = turns_for(sort_jobs(queued(view), self.key(view)), self.why())
        return Plan(turns=turns, strict=self.strict)

    @property
    def only_orders(self) -> bool:
        """Return whether it is not strict."""
        return not self.strict

    def key(self, view: VcView) -> Key:
        """Return the sort key of jobs: the lowest comes first."""
        raise NotImplementedError

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        raise NotImplementedError


class Preemptive(Policy, frozen=True, kw_only=True):
    """An order of all jobs, in which running jobs may be preempted.

    With `places` the policy looks at nodes, so that no job is stopped for a gang that would still
    not fit. Without `places` it only counts GPUs. That is correct where every worker has one GPU,
    no gang has a topology constraint, and all GPUs are of one type.
    """

    places: bool = True

    by_run_times: ClassVar[bool] = False
    """Whether the order goes by the run times that owners say."""

    @property
    def sees_nodes(self) -> bool:
        """Return `places`."""
        return self.places

    @property
    def powers(self) -> Powers:
        """Return those of an order in which running jobs are preempted."""
        return Powers(suspends=True, passes=True, priority="takes", run_times=self.by_run_times)

    def plan(self, view: VcView) -> Plan:
        """Return the plan that runs the first jobs of the order, as many as the GPUs hold."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that keeps the order of waiting jobs from one view to the next."""
        roster, why = Roster(), self.why()

        def plan(view: VcView) -> Plan:
            order = roster.follow(view, self.key(view), self.courses(view), self.basis(view))
            return preempt_for(view, roster, order, why, look_at=self.look_at(order.until))

        return plan

    def key(self, view: VcView) -> Key:
        """Return the sort key of jobs: the lowest comes first."""
        raise NotImplementedError

    def courses(self, view: VcView) -> Courses:
        """Return how the keys of jobs change with time, from the time of a view on.

        Unless a policy says more, the key of a job that runs may be any other one an instant later,
        and that of another job stays as it is.
        """
        key, later = self.key(view), Instant(view.now + 1)
        return lambda job: Course(key(job), until=later if job.phase in MOVING else None)

    def basis(self, _view: VcView) -> Any:
        """Return what the keys of all jobs depend on, beside each job and the time."""
        return None

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        raise NotImplementedError

    def look_at(self, _until: Instant | None) -> Instant | None:
        """Return when to plan again without an event; None: at no time.

        Args:
            _until: When the course of a job is another one; None: each stays as it is.
        """
        return None
