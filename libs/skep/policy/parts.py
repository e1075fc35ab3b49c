"""What the published orders share: keys, and the two kinds of order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from skep.policy.api import NUMBER_MAX, Policy
from skep.policy.plan import Plan, Turn
from skep.policy.preempt import QUEUED, preempt_for
from skep.policy.view import JobView, VcView
from skep.units import Instant
from skep.wire.reasons import Reason

LATE_DIVISOR = 60
"""A round may be this part of itself late: people's clocks and messages take their time."""

Key = Callable[[JobView], Any]


def queued(view: VcView) -> list[JobView]:
    """Return the jobs that may be placed, in the order of arrival."""
    return [job for job in view.jobs if job.phase in QUEUED]


def own(view: VcView) -> list[JobView]:
    """Return the jobs that have GPUs of the VC or want some: not those that borrow."""
    return [job for job in view.jobs if not job.borrows]


def by(jobs: Iterable[JobView], key: Key) -> list[JobView]:
    """Return jobs by priority, then by `key`, then by arrival."""
    return sorted(jobs, key=lambda job: (-job.spec.priority, key(job), job.sequence))


def arrived(jobs: Iterable[JobView]) -> list[JobView]:
    """Return jobs by priority, then by arrival."""
    return sorted(jobs, key=lambda job: (-job.spec.priority, job.sequence))


def known(value: int | None) -> tuple[bool, int]:
    """Return a key by which what nobody knows comes last."""
    return value is None, value or 0


def in_turn(jobs: Iterable[JobView], why: Reason) -> tuple[Turn, ...]:
    """Return a turn for each job."""
    return tuple([Turn(job.job, why) for job in jobs])


def portions(whole: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return what everybody has of a whole, by weights above 0: together all of it.

    What is left over once each has the whole part of his share goes to the largest remainders, of
    equal ones to the first named.
    """
    total = sum(Fraction(weight) for weight in weights.values())
    shares = {name: whole * Fraction(weight) / total for name, weight in weights.items()}
    parts = {name: int(share) for name, share in shares.items()}
    rest = sorted(shares, key=lambda name: parts[name] - shares[name])
    for name in rest[: whole - sum(parts.values())]:
        parts[name] += 1
    return parts


def once(option: str, names: Iterable[str]) -> None:
    """Refuse a name that an option has twice. Raises ValueError."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            reason = f"{option} name {name!r} twice"
            raise ValueError(reason)
        seen.add(name)


def span(option: str, value: float, unit: str) -> None:
    """Refuse a span of less than 1 `unit`, after each of which a plan is made. Raises ValueError.

    Less is no time at all, once it is rounded, or a plan every millisecond.
    """
    if not 1 <= value <= NUMBER_MAX:
        reason = f"{option} is {unit}, 1 or more: not {value}"
        raise ValueError(reason)


class Queued(Policy, frozen=True, kw_only=True):
    """An order of those that wait; who runs, runs to its end.

    With `strict` the first one that does not fit holds up the others, so that none starves.
    """

    strict: bool = True

    def plan(self, view: VcView) -> Plan:
        """Return a turn for each that waits."""
        turns = in_turn(by(queued(view), self.key(view)), self.why())
        return Plan(turns=turns, strict=self.strict)

    @property
    def only_orders(self) -> bool:
        """Return whether it is not strict."""
        return not self.strict

    def key(self, view: VcView) -> Key:
        """Return by what jobs are ordered: the lowest first."""
        raise NotImplementedError

    def why(self) -> Reason:
        """Return what the order is called."""
        raise NotImplementedError


class Preemptive(Policy, frozen=True, kw_only=True):
    """An order of all jobs, in which those that run may have to go.

    With `places` it looks at nodes, so that nobody is stopped for a gang that would not fit after
    all; without, GPUs are only counted, which is right where every worker has one GPU, no gang has
    to be close together, and all GPUs are of one type.
    """

    places: bool = True

    @property
    def sees_nodes(self) -> bool:
        """Return `places`."""
        return self.places

    def plan(self, view: VcView) -> Plan:
        """Return the first jobs of the order that the GPUs hold."""
        ordered = by(own(view), self.key(view))
        return preempt_for(view, ordered, self.why(), look_at=self.look_at(view))

    def key(self, view: VcView) -> Key:
        """Return by what jobs are ordered: the lowest first."""
        raise NotImplementedError

    def why(self) -> Reason:
        """Return what the order is called."""
        raise NotImplementedError

    def look_at(self, view: VcView) -> Instant | None:
        """Return when the order changes though nothing happens."""
        return None
