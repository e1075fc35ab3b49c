"""SCHED²'s placement by packing: as few servers as possible, with as few free GPUs as possible.

Source: SCHED², section II-B and figure 2.
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.capacity import FreeCapacity
from skep.policy.plan import Plan, Turn, Withheld
from skep.policy.powers import Powers
from skep.policy.schedulers.fifo import in_order
from skep.policy.view import HOLDING, VcView
from skep.wire.reasons import Reason


class Packing(Policy, frozen=True):
    """In order of arrival, each job on the servers that the figure's algorithm chooses.

    That is the server with the fewest free GPUs that holds the job. If there is none, it is the one
    with the most free GPUs, and the rest of the job is placed by the same rule. A server counts for
    as many workers as it has GPUs, processors and memory for. A gang that has to be on one server
    is never split.
    """

    name: ClassVar[str] = "packing"
    source: ClassVar[str] = "SCHED², section II-B and figure 2"
    strict: bool = True

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    @property
    def powers(self) -> Powers:
        """Return those of an order of the queue."""
        return Powers(passes=not self.strict)

    def plan(self, view: VcView) -> Plan:
        """Return a turn on its servers for each job that fits (SCHED², figure 2).

        Later jobs get what is left.
        """
        capacity = FreeCapacity(
            view, [job for job in view.jobs if job.phase in HOLDING and not job.borrows]
        )
        jobs = {job.job: job for job in view.jobs}
        turns, holds, behind = [], [], False
        for turn in in_order(view):
            if behind:
                holds.append(Withheld(turn.job, Reason.WAITS_BEHIND))
                continue
            job = jobs[turn.job]
            place = capacity.fit(job)
            if place is None:
                turns.append(turn)
                behind = self.strict
                continue
            capacity.take(job, place)
            turns.append(Turn(turn.job, turn.why, tuple(node for node, _ in place)))
        return Plan(turns=tuple(turns), strict=self.strict, holds=tuple(holds))
