"""First come, first served: strictly, or with smaller jobs going ahead where the first cannot."""

from __future__ import annotations

from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.parts import arrived, in_turn, queued
from skep.policy.plan import Plan, Turn
from skep.policy.view import VcView
from skep.wire.reasons import Reason


class Fifo(Policy, frozen=True):
    """Priority, then arrival; the first that does not fit holds up the others, so no gang starves.

    What every VC has unless it says otherwise. Jobs that wait have idle GPUs meanwhile, if they
    can give them back (`over_quota: auto`). The allocator serves it from its own queue, which
    costs nothing for jobs that wait, so `plan` is there for whoever compares policies.
    """

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "HiveD, section 4 (the default order inside a VC)"

    def plan(self, view: VcView) -> Plan:
        """Return the waiting jobs in their order."""
        return Plan(turns=in_order(view), strict=True)


class Backfill(Policy, frozen=True):
    """The same order, and whoever fits goes: a large job may wait for as long as small ones come.

    YARN's and Slurm's habit without a reservation for the first job.
    """

    name: ClassVar[str] = "backfill"
    source: ClassVar[str] = "the greedy FIFO of Tiresias' and HiveD's comparisons"

    @property
    def only_orders(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return the waiting jobs in their order."""
        return Plan(turns=in_order(view), strict=False)


def in_order(view: VcView) -> tuple[Turn, ...]:
    """Return a turn for each waiting job: priority, then arrival."""
    return in_turn(arrived(queued(view)), Reason.ARRIVAL)
