"""Least attained service in rounds: everybody has had about the same time (max-min fairness)."""

from __future__ import annotations

from typing import ClassVar

from skep.policies.parts import Key, by, in_turn, own
from skep.policies.policy import Policy
from skep.policies.preempt import QUEUED, preempt_for
from skep.units import NS_PER_SECOND, Instant
from skep.view.plan import Plan
from skep.view.view import VcView
from skep.wire.reasons import Reason

LATE_DIVISOR = 60
"""A round may be this part of itself late: people's clocks and messages take their time."""


class Las(Policy, frozen=True):
    """At the beginning of each round, those run that have run the least; nobody is stopped in it.

    Rounds are `round_s` seconds long and begin at whole multiples of that. What comes free within
    a round goes to whoever waits and has run the least, or, without `fill`, to nobody.
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
        """Refuse a round that is not positive."""
        if self.round_s <= 0:
            reason = f"round_s is seconds, more than 0: not {self.round_s}"
            raise ValueError(reason)

    def plan(self, view: VcView) -> Plan:
        """Return who runs in this round."""
        length = round(self.round_s * NS_PER_SECOND)
        began = view.now // length * length
        following = Instant(began + length)
        first = by(own(view), least_time(view))
        if view.now - began <= length // LATE_DIVISOR:
            return preempt_for(
                view, first, Reason.LEAST_TIME, because=Reason.SLICE_OVER, look_at=following
            )
        if not self.fill:
            return Plan(look_at=following)
        turns = in_turn((job for job in first if job.phase in QUEUED), Reason.LEAST_TIME)
        return Plan(turns=turns, strict=False, look_at=following)


def least_time(view: VcView) -> Key:
    """Return how long a job has run; of equals, who runs stays."""
    return lambda job: (job.ran(view.now), job.phase in QUEUED)
