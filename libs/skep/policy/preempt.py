"""Which jobs should have a VC's GPUs by a preemptive order, and which are preempted for them.

The order ranks running and waiting jobs together. Jobs are selected in this order while the VC's
GPUs suffice. Selected jobs that wait get a turn; a running job that is not selected is stopped only
if that lets a selected one run. A job that is being stopped counts as one that waits for GPUs that
come free, so a plan does not change while it is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skep.policy.capacity import FreeCapacity, Place, choose_victims
from skep.policy.plan import Plan, Preempt, Turn, Withheld
from skep.policy.view import HOLDING, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason

QUEUED = frozenset({Phase.WAITING, Phase.AWAY})
"""Phases in which a job may get a turn."""
STOPPABLE = frozenset({Phase.STARTING, Phase.RUNNING})
"""Phases in which a job's GPUs may be taken for another one."""
FIXED = frozenset({Phase.RESERVED, Phase.SUSPENDED})
"""Phases in which a job keeps its GPUs whatever the order says: they are reserved for it, or its
tenant suspended it."""


class Selection(NamedTuple):
    """Jobs that should have the VC's GPUs, in the order (`taken`), and those of them that wait."""

    taken: list[JobView]
    turns: list[JobView]


def select(view: VcView, ordered: Iterable[JobView]) -> Selection:
    """Return the first jobs of an order that the VC's GPUs hold.

    A job that needs more GPUs than are left is skipped.

    Args:
        view: Gives the number of GPUs by pin, and jobs that keep theirs in any case.
        ordered: Jobs, the first to run first.
    """
    left = view.gpus_for()
    for job in view.jobs:
        if job.phase in FIXED and not job.borrows:
            left[job.pin] = left.get(job.pin, 0) - job.gpus
    taken, turns = [], []
    most = max(left.values())
    for job in ordered:
        if most <= 0:
            break
        if job.phase in FIXED or job.borrows or job.gpus > left.get(job.pin, 0):
            continue
        left[job.pin] -= job.gpus
        most = max(left.values())
        taken.append(job)
        if job.phase in QUEUED:
            turns.append(job)
    return Selection(taken, turns)


def preempt_for(
    view: VcView,
    ordered: Sequence[JobView],
    why: Reason,
    *,
    because: Reason = Reason.OUTRANKED,
    look_at: Instant | None = None,
) -> Plan:
    """Return the plan of a preemptive order.

    If the view has nodes, gangs are placed on them. A gang that would not fit as closely as it has
    to, even if all jobs after it left, is withheld, and no job is stopped for it. Without nodes,
    GPUs are only counted, as if all were of one type.

    Args:
        view: The VC.
        ordered: Its running and waiting jobs, the first to run first.
        why: The reason of turns.
        because: The reason of preemptions.
        look_at: When to plan again if no event comes before.
    """
    selection = select(view, ordered)
    if not selection.turns:
        return Plan(look_at=look_at)
    if not view.nodes:
        victims = _victims_by_count(view, ordered, selection)
        turns = tuple(Turn(job.job, why) for job in selection.turns)
        holds: tuple[Withheld, ...] = ()
    else:
        places = _Places(view, ordered, selection)
        places.find()
        victims = [job for job in reversed(ordered) if job.job in places.leaving]
        turns = tuple(
            Turn(job.job, why, tuple(node for node, _ in places.at[job.job]))
            for job in ordered
            if job.phase in QUEUED and job.job in places.at
        )
        held = (job for job in selection.turns if job.job not in places.at)
        holds = tuple(Withheld(job.job, Reason.WAITS_FOR_AFFINITY) for job in held)
    actions = tuple(Preempt(job.job, because) for job in victims)
    return Plan(turns=turns, strict=False, actions=actions, holds=holds, look_at=look_at)


def _victims_by_count(
    view: VcView, ordered: Sequence[JobView], selection: Selection
) -> list[JobView]:
    """Return the jobs to preempt, last first, so that the GPUs suffice for all selected jobs."""
    taken = {job.job for job in selection.taken}
    free = view.free_for()
    for job in selection.turns:
        free[job.pin] -= job.gpus
    for job in view.jobs:
        if job.phase is Phase.STOPPING and job.job not in taken and not job.borrows:
            free[job.pin] = free.get(job.pin, 0) + job.gpus
    victims = []
    for job in reversed(ordered):
        short = free.get(job.pin, 0) < 0
        if short and job.phase in STOPPABLE and job.job not in taken and not job.borrows:
            victims.append(job)
            free[job.pin] += job.gpus
    return victims


class _Places:
    """Where each job would be if the order were carried out with as few moves as possible.

    Waiting jobs are placed one after the other: on free GPUs, or on GPUs that later jobs leave.
    Jobs that were not selected leave first. A preempted job is tried again at its own place in the
    order.
    """

    def __init__(self, view: VcView, ordered: Sequence[JobView], selection: Selection) -> None:
        self.at: dict[str, Place] = {}
        """The places of jobs that wait, or that leave and come back."""
        self.leaving: dict[str, JobView] = {}
        self._ordered = ordered
        self._taken = {job.job for job in selection.taken}
        staying = [
            job
            for job in view.jobs
            if job.phase in HOLDING and job.phase is not Phase.STOPPING and not job.borrows
        ]
        self._capacity = FreeCapacity(view, staying)

    def find(self) -> None:
        """Find a place for each job that can have one."""
        lower = [job for job in self._ordered if job.phase in STOPPABLE and not job.borrows]
        lower.sort(key=lambda job: job.job in self._taken, reverse=True)
        ranks = {job.job: rank for rank, job in enumerate(self._ordered)}
        beyond = dict[str, int]()
        for job in lower:
            beyond[job.pin] = beyond.get(job.pin, 0) + job.gpus
        for rank, job in enumerate(self._ordered):
            stays = job.phase in STOPPABLE and job.job not in self.leaving
            if job.phase in STOPPABLE:
                beyond[job.pin] = beyond.get(job.pin, 0) - job.gpus
            if stays or job.borrows or job.phase in FIXED:
                continue
            if job.gpus > self._capacity.left(job.pin) + beyond.get(job.pin, 0):
                continue
            if self._capacity.fit(job) is None and job.phase is not Phase.STOPPING:
                self._clear(job, [e for e in reversed(lower) if ranks[e.job] > rank])
            place = self._capacity.fit(job)
            if place is not None:
                self._capacity.take(job, place)
                self.at[job.job] = place

    def _clear(self, job: JobView, lower: Sequence[JobView]) -> None:
        """Preempt some of the jobs after a job, if it fits then."""
        able = [each for each in lower if each.job not in self.leaving]
        cost = {each.job: each.gpus if each.job in self._taken else 0 for each in able}
        for each in choose_victims(job, self._capacity, able, cost) or ():
            self.leaving[each.job] = each
            self._capacity.release(each)
