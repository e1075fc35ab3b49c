"""The orders that SCHED² is compared with: the lowest number goes first, without preemption.

All of them place a job by packing, which is also the rule of the cells (`packing` follows the
figure exactly).

Source: SCHED², section IV-A.
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.capacity import FreeCapacity, best_locality
from skep.policy.parts import Queued, queued, sort_jobs, unknown_last
from skep.policy.plan import Plan, Turn, Withheld
from skep.policy.roster import Key
from skep.policy.view import HOLDING, JobView, VcView
from skep.wire.reasons import Reason


class Sif(Queued, frozen=True):
    """Shortest ideal time job first."""

    name: ClassVar[str] = "sif"
    source: ClassVar[str] = "SCHED², section IV-A"
    by_run_times: ClassVar[bool] = True

    def key(self, view: VcView) -> Key:
        """Return how long the job runs where its speed is 1, in nanoseconds."""
        return lambda job: unknown_last(_ideal(job))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.SHORTEST_JOB


class Dsif(Sif, frozen=True):
    """The same, but a job that would not be on as few nodes as possible is held up to `delays`.

    "The same" is `sif`. A delay is one missed chance: something has come free since the last one.
    The rule has no clock, so a job is withheld only for GPUs that the VC's own jobs can leave. If
    those would not bring it closer together either, it is placed at once.
    """

    name: ClassVar[str] = "dsif"
    source: ClassVar[str] = "SCHED², section IV-A (the job is delayed at most 3 times)"
    delays: int = 3

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `delays` is negative.
        """
        if self.delays < 0:
            reason = f"delays is how often a job is held back, 0 or more: not {self.delays}"
            raise ValueError(reason)

    @property
    def only_orders(self) -> bool:
        """Return False: some jobs are withheld."""
        return False

    @property
    def counts_holds(self) -> bool:
        """Return True."""
        return True

    @property
    def sees_nodes(self) -> bool:
        """Return True: locality depends on nodes."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return turns for all waiting jobs but those that are withheld for locality."""
        turns, holds, free = [], [], view.free_for()
        for job in sort_jobs(queued(view), self.key(view)):
            if (
                job.held < self.delays
                and job.gpus <= free.get(job.pin, 0)
                and view.nodes
                and not best_locality(job, view)
                and best_locality(job, view, emptied=True)
            ):
                holds.append(Withheld(job.job, Reason.HELD_FOR_LOCALITY))
            else:
                turns.append(Turn(job.job, self.why()))
        return Plan(turns=tuple(turns), strict=self.strict, holds=tuple(holds))


class Saf(Queued, frozen=True):
    """Shortest actual time job first: how long it would run where there is room for it now.

    A job without a predicted slowdown counts as equally fast on any nodes. Slowdowns are predicted
    for families that were measured on different numbers of nodes (`JobView.slowdown`).
    """

    name: ClassVar[str] = "saf"
    source: ClassVar[str] = "SCHED², section IV-A (an oracle tells the placement and its speed)"
    by_run_times: ClassVar[bool] = True

    @property
    def sees_nodes(self) -> bool:
        """Return True: the order depends on where a job would go."""
        return True

    @property
    def sees_rates(self) -> bool:
        """Return True: the order depends on how slow a job would be there."""
        return True

    def key(self, view: VcView) -> Key:
        """Return the ideal time, slowed down by the number of nodes the job would be on."""
        capacity = FreeCapacity(
            view, [job for job in view.jobs if job.phase in HOLDING and not job.borrows]
        )
        return lambda job: unknown_last(_actual(job, capacity))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.SHORTEST_HERE


class Lrf(Queued, frozen=True):
    """Least resource job first."""

    name: ClassVar[str] = "lrf"
    source: ClassVar[str] = "SCHED², section IV-A"

    def key(self, view: VcView) -> Key:
        """Return the number of GPUs."""
        return lambda job: job.gpus

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.FEWEST_GPUS


class Spf(Queued, frozen=True):
    """Smallest product job first: GPUs multiplied by the ideal time."""

    name: ClassVar[str] = "spf"
    source: ClassVar[str] = "SCHED², section IV-A"
    by_run_times: ClassVar[bool] = True

    def key(self, view: VcView) -> Key:
        """Return GPUs multiplied by time."""
        return lambda job: unknown_last(_product(job))

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.SMALLEST_PRODUCT


def _ideal(job: JobView) -> int | None:
    return job.expected if job.expected is not None else job.left


def _product(job: JobView) -> int | None:
    ideal = _ideal(job)
    return None if ideal is None else ideal * job.gpus


def _actual(job: JobView, capacity: FreeCapacity) -> int | None:
    ideal = _ideal(job)
    if ideal is None:
        return None
    place = capacity.fit(job)
    nodes = len(place) if place else 1
    slower = [slower for count, slower in job.slowdown if count <= nodes]
    return ideal * (slower[-1] if slower else 1000) // 1000
