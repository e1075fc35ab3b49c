"""Which jobs should have a VC's GPUs by a preemptive order, and which are preempted for them.

The order ranks running and waiting jobs together. Jobs are selected in this order while the VC's
GPUs suffice. Selected jobs that wait get a turn; a running job that is not selected is stopped only
if that lets a selected one run. A job that is being stopped counts as one that waits for GPUs that
come free, so a plan does not change while it is carried out.

Jobs are read in their order only until no GPU is left for any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.policy.capacity import FreeCapacity, Place, choose_victims
from skep.policy.plan import Plan, Preempt, Turn, Withheld
from skep.policy.roster import Order, Ranked, Roster
from skep.policy.view import JobView, Phase, VcView
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


def select(view: VcView, order: Order) -> Selection:
    """Return the first jobs of an order that the VC's GPUs hold.

    A job that needs more GPUs than are left is skipped.

    Args:
        view: Gives the number of GPUs by pin.
        order: The jobs. Those that keep their GPUs in any case come first, wherever they are in it.
    """
    left = view.gpus_for()
    for job in order.held:
        if job.phase in FIXED:
            left[job.pin] = left.get(job.pin, 0) - job.gpus
    taken, turns = [], []
    most = max(left.values())
    for _, job in order:
        if most <= 0:
            break
        if job.phase in FIXED or job.gpus > left.get(job.pin, 0):
            continue
        left[job.pin] -= job.gpus
        most = max(left.values())
        taken.append(job)
        if job.phase in QUEUED:
            turns.append(job)
    return Selection(taken, turns)


def preempt_for(
    view: VcView,
    roster: Roster,
    order: Order,
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
        roster: What has followed the views of the VC up to this one.
        order: Its running and waiting jobs, the first to run first.
        why: The reason of turns.
        because: The reason of preemptions.
        look_at: When to plan again if no event comes before.
    """
    if not order.waits:
        return Plan(look_at=look_at)
    selection = select(view, order)
    if not selection.turns:
        return Plan(look_at=look_at)
    if not view.nodes:
        victims = _victims_by_count(view, order, selection)
        turns = tuple(Turn(job.job, why) for job in selection.turns)
        holds: tuple[Withheld, ...] = ()
    else:
        places = _Places(view, roster, order, selection)
        places.find()
        victims = [job for _, job in reversed(order.holding) if job.job in places.leaving]
        turns = tuple(
            Turn(job.job, why, tuple(node for node, _ in place))
            for job, place in places.at.values()
            if job.phase in QUEUED
        )
        held = (job for job in selection.turns if job.job not in places.at)
        holds = tuple(Withheld(job.job, Reason.WAITS_FOR_AFFINITY) for job in held)
    actions = tuple(Preempt(job.job, because) for job in victims)
    return Plan(turns=turns, strict=False, actions=actions, holds=holds, look_at=look_at)


def _victims_by_count(view: VcView, order: Order, selection: Selection) -> list[JobView]:
    """Return the jobs to preempt, last first, so that the GPUs suffice for all selected jobs."""
    taken = {job.job for job in selection.taken}
    free = view.free_for()
    for job in selection.turns:
        free[job.pin] -= job.gpus
    for job in order.held:
        if job.phase is Phase.STOPPING and job.job not in taken:
            free[job.pin] = free.get(job.pin, 0) + job.gpus
    victims = []
    for _, job in reversed(order.holding):
        short = free.get(job.pin, 0) < 0
        if short and job.phase in STOPPABLE and job.job not in taken:
            victims.append(job)
            free[job.pin] += job.gpus
    return victims


class _Places:
    """Where each job would be if the order were carried out with as few moves as possible.

    Waiting jobs are placed one after the other: on free GPUs, or on GPUs that later jobs leave.
    Jobs that were not selected leave first. A preempted job is tried again at its own place in the
    order.
    """

    def __init__(self, view: VcView, roster: Roster, order: Order, selection: Selection) -> None:
        self.at: dict[str, tuple[JobView, Place]] = {}
        """Jobs that wait, or that leave and come back, in their order, and their places."""
        self.leaving: dict[str, JobView] = {}
        self._order = order
        self._taken = {job.job for job in selection.taken}
        stopping, kept = [], dict[str, int]()
        for job in order.held:
            if job.phase is Phase.STOPPING:
                stopping.append(job)
            else:
                kept[job.pin] = kept.get(job.pin, 0) + job.gpus
        self._capacity = FreeCapacity.after(view, stopping, kept, roster.nodes)

    def find(self) -> None:
        """Find a place for each job that can have one."""
        lower = [each for each in self._order.holding if each[1].phase in STOPPABLE]
        beyond = dict[str, int]()
        for _, job in lower:
            beyond[job.pin] = beyond.get(job.pin, 0) + job.gpus
        lower.sort(key=lambda each: each[1].job in self._taken, reverse=True)
        lower.reverse()
        pins = self._capacity.pins
        for place, job in self._order:
            if not any(self._capacity.left(pin) + beyond.get(pin, 0) > 0 for pin in pins):
                break
            stays = job.phase in STOPPABLE and job.job not in self.leaving
            if job.phase in STOPPABLE:
                beyond[job.pin] = beyond.get(job.pin, 0) - job.gpus
            if stays or job.phase in FIXED:
                continue
            if job.gpus > self._capacity.left(job.pin) + beyond.get(job.pin, 0):
                continue
            self._find(place, job, lower)

    def _find(self, rank: tuple[int, Any, int], job: JobView, lower: Sequence[Ranked]) -> None:
        """Find a place for one job; jobs behind it leave for it if that helps."""
        place = self._capacity.fit(job)
        if place is None and job.phase is not Phase.STOPPING:
            self._clear(job, [each for behind, each in lower if behind > rank])
            place = self._capacity.fit(job)
        if place is not None:
            self._capacity.take(job, place)
            self.at[job.job] = job, place

    def _clear(self, job: JobView, lower: Sequence[JobView]) -> None:
        """Preempt some of the jobs after a job, if it fits then."""
        able = [each for each in lower if each.job not in self.leaving]
        cost = {each.job: each.gpus if each.job in self._taken else 0 for each in able}
        for each in choose_victims(job, self._capacity, able, cost) or ():
            self.leaving[each.job] = each
            self._capacity.release(each)
