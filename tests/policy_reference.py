"""What preemptive orders plan, made from nothing by reading every job: slow, and plain."""

from __future__ import annotations

from collections.abc import Sequence

from skep.policy.capacity import FreeCapacity, Place, choose_victims
from skep.policy.parts import own_jobs
from skep.policy.plan import Plan, Preempt, Turn, Withheld
from skep.policy.roster import Key
from skep.policy.view import HOLDING, QUEUED, STOPPABLE, JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason

FIXED = HOLDING - STOPPABLE - {Phase.STOPPING}


def preempt_from_nothing(
    view: VcView, key: Key, why: Reason, because: Reason, look_at: Instant | None
) -> Plan:
    """Return the plan of a preemptive order.

    Args:
        view: The VC.
        key: The sort key of jobs within a priority, at the time of the view.
        why: The reason of turns.
        because: The reason of preemptions.
        look_at: When the plan says to plan again.
    """
    order = sorted(own_jobs(view), key=lambda job: (-job.spec.priority, key(job), job.sequence))
    taken, turns = _selected(view, order)
    if not turns:
        return Plan(look_at=look_at)
    if view.nodes:
        at, leaving = _places(view, order, taken)
    else:
        at, leaving = {job.job: (job, ()) for job in turns}, _counted(view, order, taken, turns)
    victims = [job for job in reversed(order) if job.job in leaving]
    return Plan(
        turns=tuple(
            Turn(job.job, why, tuple(node for node, _ in place))
            for job, place in at.values()
            if job.phase in QUEUED
        ),
        strict=False,
        actions=tuple(Preempt(job.job, because) for job in victims),
        holds=tuple(
            Withheld(job.job, Reason.WAITS_FOR_AFFINITY) for job in turns if job.job not in at
        ),
        look_at=look_at,
    )


def _selected(view: VcView, order: list[JobView]) -> tuple[dict[str, JobView], list[JobView]]:
    left = view.gpus_for()
    for job in order:
        if job.phase in FIXED:
            left[job.pin] -= job.gpus
    taken = dict[str, JobView]()
    for job in order:
        if job.phase not in FIXED and job.gpus <= left[job.pin]:
            left[job.pin] -= job.gpus
            taken[job.job] = job
    return taken, [job for job in taken.values() if job.phase in QUEUED]


def _counted(
    view: VcView, order: list[JobView], taken: dict[str, JobView], turns: list[JobView]
) -> dict[str, None]:
    free = view.free_for()
    for job in turns:
        free[job.pin] -= job.gpus
    for job in order:
        if job.phase is Phase.STOPPING and job.job not in taken:
            free[job.pin] += job.gpus
    leaving = dict[str, None]()
    for job in reversed(order):
        if free[job.pin] < 0 and job.phase in STOPPABLE and job.job not in taken:
            leaving[job.job] = None
            free[job.pin] += job.gpus
    return leaving


def _places(
    view: VcView, order: list[JobView], taken: dict[str, JobView]
) -> tuple[dict[str, tuple[JobView, Place]], dict[str, None]]:
    staying = [job for job in order if job.phase in HOLDING and job.phase is not Phase.STOPPING]
    capacity = FreeCapacity(view, staying)
    at, leaving = dict[str, tuple[JobView, Place]](), dict[str, None]()
    for number, job in enumerate(order):
        if job.phase in FIXED or (job.phase in STOPPABLE and job.job not in leaving):
            continue
        place = capacity.fit(job)
        if place is None and job.phase is not Phase.STOPPING:
            lower: Sequence[JobView] = [
                each
                for each in reversed(order[number + 1 :])
                if each.phase in STOPPABLE and each.job not in leaving
            ]
            lower = sorted(lower, key=lambda each: each.job in taken)
            cost = {each.job: each.gpus if each.job in taken else 0 for each in lower}
            for each in choose_victims(job, capacity, lower, cost) or ():
                leaving[each.job] = None
                capacity.release(each)
            place = capacity.fit(job)
        if place is not None:
            capacity.take(job, place)
            at[job.job] = job, place
    return at, leaving
