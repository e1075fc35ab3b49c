"""First come, first served: strictly, or with backfill where the first job does not fit.

Source: HiveD, section 4 (`fifo`); the greedy FIFO of Tiresias' and HiveD's comparisons
(`backfill`).
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.parts import by_arrival, queued, turns_for
from skep.policy.plan import Plan, Turn
from skep.policy.powers import Powers
from skep.policy.view import VcView
from skep.wire.reasons import Reason


class Fifo(Policy, frozen=True):
    """Priority, then arrival; the first that does not fit holds up the others, so no gang starves.

    This is the default of every VC. Waiting jobs borrow idle GPUs if they can give them back
    (`over_quota: auto`). The allocator serves it from its own queue, which costs nothing for jobs
    that wait; `plan` exists to compare policies.
    """

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "HiveD, section 4 (the default order inside a VC)"

    @property
    def powers(self) -> Powers:
        """Return that a higher priority takes GPUs: the allocator's own queue does that."""
        return Powers(priority="takes")

    def plan(self, view: VcView) -> Plan:
        """Return turns for the waiting jobs in their order."""
        return Plan(turns=in_order(view), strict=True)


class Backfill(Policy, frozen=True):
    """Order jobs by priority, then arrival; a job that does not fit blocks no other.

    A large job may wait for as long as small ones come. YARN and Slurm do the same without a
    reservation for the first job.
    """

    name: ClassVar[str] = "backfill"
    source: ClassVar[str] = "the greedy FIFO of Tiresias' and HiveD's comparisons"

    @property
    def only_orders(self) -> bool:
        """Return True."""
        return True

    @property
    def powers(self) -> Powers:
        """Return those of an order that passes over what does not fit."""
        return Powers(passes=True)

    def plan(self, view: VcView) -> Plan:
        """Return turns for the waiting jobs in their order."""
        return Plan(turns=in_order(view), strict=False)


def in_order(view: VcView) -> tuple[Turn, ...]:
    """Return a turn for each waiting job: priority, then arrival."""
    return turns_for(by_arrival(queued(view)), Reason.ARRIVAL)
