"""Who gets GPUs next, where, and at whose expense.

Each VC's guaranteed jobs go to the VC's own cells, in the order of its queue: a small job never
overtakes a large one there, so no gang starves, and no VC waits for another. Who must be stopped
first is stopped under a reservation: the cells are the preemptor's from the decision on. Idle GPUs
go to opportunistic jobs, to the VC with the smallest share of them first (weighted max-min).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from skep.cells.holds import Placement
from skep.ledger import attempt_names
from skep.ledger.job_state import JobState, State
from skep.ledger.queue import Entry, Head
from skep.machines.allocator import (
    cellwork,
    changing,
    lending,
    outcome,
    packing,
    placing,
    plans,
    views,
)
from skep.machines.allocator.outcome import Done
from skep.units import Instant
from skep.wire.advice import QueueAdvice
from skep.wire.facts import ReservationDropped
from skep.wire.reasons import Reason

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def advised(machine: AllocatorMachine, event: QueueAdvice, now: Instant) -> None:
    """Let the queues follow an order among equals until it expires."""
    if event.expires_at <= now:
        return
    orders: dict[tuple[str, bool], list[Entry]] = {}
    for advice in event.jobs:
        job = machine.state.jobs.get(advice.job)
        if machine.soft.planned and job is not None:
            views.predicted(machine, job, advice)
        if job is not None and job.state is State.QUEUED:
            orders.setdefault(job.queue, []).append(job.entry)
    for key, queue in machine.state.queues.items():
        queue.advise(orders.get(key, ()))
    machine.soft.advice_until = event.expires_at


def schedule(machine: AllocatorMachine, now: Instant) -> None:
    """Bind what has its cells, then guaranteed jobs, then opportunistic ones on what is idle."""
    if 0 < machine.soft.advice_until <= now:
        machine.soft.advice_until = Instant(0)
        for queue in machine.state.queues.values():
            queue.advise(())
    if machine.soft.reshare:
        packing.follow(machine, now)
    if machine.soft.returning:
        _take_back(machine, now)
    bound = _finish(machine, now) if machine.soft.ripe else 0
    bound += plans.serve(machine, now, placing.MEMBERS_BOUND_MAX - bound)
    lent = views.lines(machine)
    for opportunistic in (False, True):
        if opportunistic:
            lent.clear()
            changing.come_back(machine, now)
            bound += plans.lend(machine, now, placing.MEMBERS_BOUND_MAX - bound)
            if not _nobody_waits(machine):
                bound += lending.lend(machine, now, placing.MEMBERS_BOUND_MAX - bound)
        if not _nobody_waits(machine):
            bound += _serve_queues(
                machine, lent, now, placing.MEMBERS_BOUND_MAX - bound, opportunistic=opportunistic
            )
            if bound >= placing.MEMBERS_BOUND_MAX:
                machine.soft.check_at = now  # Go on in the next decision.
                return
        bound += _lent_alone(machine, lent, now, placing.MEMBERS_BOUND_MAX - bound)
    if machine.state.borrowed:
        _promote(machine, now)


def _serve_queues(
    machine: AllocatorMachine,
    lent: dict[str, list[JobState]],
    now: Instant,
    room: int,
    *,
    opportunistic: bool,
) -> int:
    """Serve the queues of all VCs: guaranteed jobs, or opportunistic ones.

    `lent` are the jobs of each VC that were lent GPUs, the next one at the end: those that have a
    turn before the head of the queue take theirs, and leave the list if they have their VC's cells.

    Returns:
        How many parts were bound and victims named; `room` or more if there may be more to do.
    """
    bound = 0
    turns = [
        (_turn(machine, vc, head, opportunistic=opportunistic), vc)
        for (vc, kind), queue in machine.state.queues.items()
        if kind is opportunistic
        and queue.entries
        and (kind or not _held_back(machine, vc))
        and (head := queue.head()) is not None
    ]
    heapq.heapify(turns)
    while turns and bound < room:
        vc = turns[0][1]
        queue = machine.state.queues[vc, opportunistic]
        head = queue.head()
        assert head is not None, vc
        cost = _lent_before(machine, lent.get(vc, []), head.claim, now)
        if cost is None:
            cost = _serve(machine, head, now, room - bound)
        bound += cost
        following = queue.head() if cost else None
        if following is None:
            heapq.heappop(turns)
        else:
            turn = _turn(machine, vc, following, opportunistic=opportunistic)
            heapq.heapreplace(turns, (turn, vc))
        if machine.soft.returned:
            for other in _returned(machine, turns, opportunistic=opportunistic):
                heapq.heappush(turns, other)
    return bound if not turns else max(bound, room)


def _lent_alone(
    machine: AllocatorMachine, lent: dict[str, list[JobState]], now: Instant, room: int
) -> int:
    """Give jobs that were lent GPUs their turns in VCs whose queue is empty."""
    taken = 0
    for vc, line in lent.items():
        queue = machine.state.queues.get((vc, False))
        while line and not (queue and queue.entries) and not _held_back(machine, vc):
            cost = _lent_before(machine, line, None, now)
            if not cost:
                break
            taken += cost
    return taken


def _lent_before(
    machine: AllocatorMachine, line: list[JobState], claim: Entry | None, now: Instant
) -> int | None:
    """Give the first job of a VC's `line` its turn, if that comes before the head's `claim`.

    Takes a job that has its VC's cells from the line.

    Returns:
        What it took of a decision; 0 if its VC has to wait for it, None if it has no turn yet.
    """
    if not line or (claim is not None and claim < line[-1].entry):
        return None
    taken = lending.take_turn(machine, line[-1], now)
    if isinstance(taken, Done):
        line.pop()
    return outcome.cost(taken)


def _take_back(machine: AllocatorMachine, now: Instant) -> None:
    """Have suspended jobs go on for which others left GPUs, before anyone else is offered those.

    A job of its VC that has an earlier turn by now is served first.
    """
    for name in list(machine.soft.returning):
        job = machine.state.jobs.get(name)
        lent = views.lines(machine)
        waits = job is not None and job.away and job.change is None
        if job is not None and waits and not views.behind(machine, job, lent):
            if changing.returns_now(machine, job, now):
                placing.promote(machine, job, now, home=job.lent)
            elif changing.reclaim(machine, job, now, lent):
                continue  # The others have yet to leave.
        del machine.soft.returning[name]
        machine.soft.changes += 1  # Those GPUs are no longer kept for it.


def _nobody_waits(machine: AllocatorMachine) -> bool:
    """Return whether all queues are empty: every job there is has GPUs, claims some, or is parked.

    So it is after most events of a cluster that is not full, however many VCs it has.
    """
    others = len(machine.state.placed) + len(machine.state.reserved) + len(machine.state.parked)
    return len(machine.state.jobs) == others


def _held_back(machine: AllocatorMachine, vc: str) -> bool:
    """Return whether a VC's queue is not served here.

    Its policy places its jobs, or a suspended job of it takes back what its cells cover.
    """
    if views.rules(machine, vc):
        return True
    names = machine.soft.returning
    return any(
        machine.state.jobs[name].spec.vc == vc for name in names if name in machine.state.jobs
    )


def _returned(
    machine: AllocatorMachine, turns: list[tuple[tuple[float, Entry], str]], *, opportunistic: bool
) -> list[tuple[tuple[float, Entry], str]]:
    """Return turns for VCs that had theirs before a job came back to their queue.

    It claimed idle GPUs that were then taken for another VC's job. Its own cells may hold it by
    now, and that is not to wait for the next event.
    """
    back = [
        vc
        for vc, kind in machine.soft.returned
        if kind is opportunistic and (kind or not _held_back(machine, vc))
    ]
    machine.soft.returned.clear()
    heads = {vc: machine.state.queues[vc, opportunistic].head() for vc in back}
    having = {vc for _, vc in turns}
    return [
        (_turn(machine, vc, head, opportunistic=opportunistic), vc)
        for vc, head in heads.items()
        if head is not None and vc not in having
    ]


def _turn(
    machine: AllocatorMachine, vc: str, head: Head, *, opportunistic: bool
) -> tuple[float, Entry]:
    """Return what orders the VCs: of opportunistic jobs, what they have of what is idle."""
    if not opportunistic:
        return 0.0, head.claim
    owned = machine.state.cells.cluster.vcs.get(vc)
    weight = owned.weight if owned is not None else 1.0
    return machine.state.cells.borrowed.get(vc, 0) / weight, head.claim


def _finish(machine: AllocatorMachine, now: Instant) -> int:
    """Bind reservations whose victims are gone; drop those on hardware that went bad.

    Returns how many parts were bound and victims stopped.
    """
    cost, ripe = 0, machine.soft.ripe
    for key in list(ripe):
        if cost >= placing.MEMBERS_BOUND_MAX:
            machine.soft.check_at = now
            break
        del ripe[key]
        job = machine.state.reserved.get(key)
        if job is None:
            continue
        name = attempt_names.holder(job.job, job.following)
        hold = machine.state.cells.holds[name]
        chain = machine.state.cells.chains[hold.chain]
        if any(leaf in chain.bad for spot in hold.spots for leaf in spot.leaves):
            machine.record(
                ReservationDropped(job=job.job, attempt=job.following, why=Reason.NODE_LOST)
            )
        elif not machine.state.cells.claim_is_free(name):
            stopped = placing.stop_all(
                machine, job, placing.users(machine, job), now, placing.MEMBERS_BOUND_MAX - cost
            )
            cost += stopped
            if stopped:
                ripe[key] = None  # There may be more to stop than one decision does.
        else:
            where = Placement(hold.chain, hold.spots)
            made = cellwork.members(machine, where)
            if not placing.has_room(machine, job, made):
                ripe[key] = None
                placing.more_victims(machine, job, made, now)
                continue
            bound = placing.bind(machine, job, where, made, Reason.CELLS_RESERVED, job.ranked, now)
            cost += outcome.cost(bound)
            if not isinstance(bound, Done):
                ripe[key] = None
    return cost


def _serve(machine: AllocatorMachine, head: Head, now: Instant, room: int) -> int:
    """Serve the head of a queue; 0 if its queue has to wait.

    What could not be placed is not tried again before something came free.
    """
    job = machine.state.jobs[head.entry.job]
    if machine.soft.failed.get(job.queue) == (job.job, machine.soft.changes):
        return 0
    return outcome.cost(placing.serve(machine, job, head.ranked, now, room))


def _promote(machine: AllocatorMachine, now: Instant) -> None:
    """Let jobs that borrow GPUs have their VC's cells, where nobody of the VC waits for them."""
    lent = views.lines(machine)
    for job in list(machine.state.borrowed.values()):
        if views.rules(machine, job.spec.vc) and views.borrowing(machine, job):
            continue  # It has its turn in its policy's plan.
        if views.lent(machine, job):
            continue  # It has its turn in the order of its queue.
        if job.state is not State.STOPPING and not views.behind(machine, job, lent):
            placing.promote(machine, job, now)
