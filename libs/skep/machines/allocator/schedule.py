"""Which job gets GPUs next, where, and which jobs make room.

Each VC's guaranteed jobs go to the VC's own cells, in the order of its queue: a small job never
overtakes a large one there, so no gang starves, and no VC waits for another. A job that must be
stopped first is stopped under a reservation: the cells are the preemptor's from the decision on.
Idle GPUs go to opportunistic jobs, to the VC with the smallest share of them first (weighted
max-min).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice

from skep import ids
from skep.cells.holds import Placement
from skep.ledger.job_state import JobState, State
from skep.ledger.queue import Entry, Head, JobQueue
from skep.ledger.state import ClusterState
from skep.machines.allocator import outcome
from skep.machines.allocator.changes import packing, resumption
from skep.machines.allocator.outcome import Done
from skep.machines.allocator.placement import gpu_shares, job_cells, lending, person_limits, placing
from skep.machines.allocator.policies import policy_plans, policy_views
from skep.machines.allocator.stages import NONE, Progress, Stage, spending
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.advice import QueueAdvice
from skep.wire.facts import ReservationDropped
from skep.wire.reasons import Reason

HasInput = Callable[[Transaction], object]
"""Tells whether a stage has anything to do: the truth of what it returns."""
Step = Callable[[Transaction, Instant, int], Progress]
"""A stage: changes the transaction at an instant, within so much room."""
PASSED_MAX = 100
"""Jobs of a queue that are passed in one decision, as they wait for no GPUs: each may be told."""


def advised(tx: Transaction, event: QueueAdvice, now: Instant) -> None:
    """Let the queues follow an order among equals until it expires.

    Args:
        tx: Its queues are put in order until the advice expires.
        event: The order, and how long jobs still have to run.
        now: The time of the decision.
    """
    if event.expires_at <= now:
        return
    orders: dict[tuple[str, bool], list[Entry]] = {}
    for advice in event.jobs:
        job = tx.state.jobs.get(advice.job)
        if tx.soft.planned and job is not None:
            policy_views.predicted(tx, job, advice)
        if job is not None and job.state is State.QUEUED:
            orders.setdefault(job.queue, []).append(job.entry)
    for key, queue in tx.state.queues.items():
        queue.advise(orders.get(key, ()))
    tx.soft.advice_until = event.expires_at


def run(tx: Transaction, now: Instant) -> None:
    """Give GPUs to the jobs that wait, stage by stage, until the decision has no room for more.

    A stage that has no input is skipped.

    Args:
        tx: Changed.
        now: The instant of the decision (Unix ns).
    """
    if not any_input(tx):
        return
    room = placing.MEMBERS_BOUND_MAX
    for stage, has_input, step in STAGES:
        if not has_input(tx):
            continue
        tx.enter(stage)
        progress = step(tx, now, room)
        if progress is NONE:
            continue
        tx.progress[stage] = progress
        room -= progress.spent
        if progress.full:
            tx.soft.check_at = now  # Go on in the next decision.
            return


def _expire(tx: Transaction, now: Instant, _room: int) -> Progress:
    """Let the queues forget an advised order that expired."""
    if tx.soft.advice_until <= now:
        tx.soft.advice_until = Instant(0)
        for queue in tx.state.queues.values():
            queue.advise(())
    return NONE


def _share(tx: Transaction, now: Instant, _room: int) -> Progress:
    """Send shares of memory to the jobs whose partners changed."""
    packing.follow(tx, now)
    return NONE


def _returns(tx: Transaction, now: Instant, _room: int) -> Progress:
    """Let suspended jobs go on for which others left GPUs."""
    _take_back(tx, now)
    return NONE


def _reservations(tx: Transaction, now: Instant, _room: int) -> Progress:
    """Bind the reservations that may be ready."""
    return spending(_finish(tx, now))


def _shares(tx: Transaction, now: Instant, room: int) -> Progress:
    """Put jobs that ask for a share of a GPU beside others that do."""
    return spending(gpu_shares.seat(tx, now, room))


def _policies(tx: Transaction, now: Instant, room: int) -> Progress:
    """Carry out the plans of VCs with a policy."""
    return spending(policy_plans.serve(tx, now, room))


def _guaranteed(tx: Transaction, now: Instant, room: int) -> Progress:
    """Serve the guaranteed queues; jobs that were lent GPUs have their turns among the others."""
    lent, spent = policy_views.lines(tx), 0
    if _some_wait(tx):
        spent = _serve_queues(tx, lent, now, room, opportunistic=False)
        if spent >= room:
            return Progress(spent, full=True)
    return spending(spent + _lent_alone(tx, lent, now, room - spent))


def _suspended(tx: Transaction, now: Instant, _room: int) -> Progress:
    """Give suspended jobs idle GPUs of their nodes."""
    resumption.come_back(tx, now)
    return NONE


def _lend(tx: Transaction, now: Instant, room: int) -> Progress:
    """Lend idle GPUs to jobs that a policy leaves waiting."""
    return spending(policy_plans.lend(tx, now, room))


def _lend_idle(tx: Transaction, now: Instant, room: int) -> Progress:
    """Lend idle GPUs to jobs that wait in VCs without a policy."""
    return spending(lending.lend(tx, now, room))


def _opportunistic(tx: Transaction, now: Instant, room: int) -> Progress:
    """Serve the opportunistic queues."""
    spent = _serve_queues(tx, {}, now, room, opportunistic=True)
    return Progress(spent, full=True) if spent >= room else spending(spent)


def _promotion(tx: Transaction, now: Instant, _room: int) -> Progress:
    """Give jobs that borrow the cells of their VC."""
    _promote(tx, now)
    return NONE


def _some_wait(tx: Transaction) -> bool:
    """Return whether some queue has jobs: not every job has GPUs, claims some, or is in no queue.

    After most events of a cluster that is not full no queue has, however many VCs there are.
    """
    state = tx.state
    others = len(state.placed) + len(state.reserved) + len(state.parked) + len(state.deferred)
    return len(state.jobs) != others


def _some_have_turns(tx: Transaction) -> bool:
    """Return whether jobs wait in a queue, or jobs that were lent GPUs may have a turn."""
    return bool(tx.state.lent or tx.state.away or tx.soft.anew or _some_wait(tx))


def _some_may_have_cells(tx: Transaction) -> bool:
    """Return whether a job that borrows may have its VC's cells, and could not when last looked.

    Policies and advice change the order of jobs without a fact.
    """
    soft = tx.soft
    news = soft.may_promote or soft.promoted_at != soft.changes
    return bool(tx.state.borrowed) and bool(news or soft.planned or soft.advice_until)


def any_input(tx: Transaction) -> bool:
    """Return False if no stage has input: so it is after most events of a cluster with room."""
    soft, state = tx.soft, tx.state
    return bool(
        policy_plans.has_plans(tx)
        or state.borrowed
        or state.away
        or soft.anew
        or soft.ripe
        or soft.reshare
        or soft.returning
        or soft.advice_until
        or _some_wait(tx)
    )


STAGES: tuple[tuple[Stage, HasInput, Step], ...] = (
    (Stage.ADVICE, lambda tx: tx.soft.advice_until, _expire),
    (Stage.SHARING, lambda tx: tx.soft.reshare, _share),
    (Stage.RETURNS, lambda tx: tx.soft.returning, _returns),
    (Stage.RESERVATIONS, lambda tx: tx.soft.ripe, _reservations),
    (Stage.SHARES, lambda tx: tx.state.unshared and _some_wait(tx), _shares),
    (Stage.POLICIES, policy_plans.has_plans, _policies),
    (Stage.GUARANTEED, _some_have_turns, _guaranteed),
    (Stage.SUSPENDED, lambda tx: tx.state.away, _suspended),
    (Stage.LENDING, policy_plans.has_plans, _lend),
    (Stage.IDLE, _some_wait, _lend_idle),
    (Stage.OPPORTUNISTIC, _some_wait, _opportunistic),
    (Stage.PROMOTION, _some_may_have_cells, _promotion),
)
"""The stages that give GPUs to jobs in their order, each with what tells whether it has input."""


def _serve_queues(
    tx: Transaction,
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
        (_turn(tx.state, vc, head, opportunistic=opportunistic), vc)
        for (vc, kind), queue in tx.state.queues.items()
        if kind is opportunistic
        and queue.entries
        and (kind or not _held_back(tx, vc))
        and (head := _head(tx, queue)) is not None
    ]
    heapq.heapify(turns)
    while turns and bound < room:
        vc = turns[0][1]
        queue = tx.state.queues[vc, opportunistic]
        head = _head(tx, queue)
        if head is None:
            heapq.heappop(turns)  # Its person has as much as one may have by now.
            continue
        cost = _lent_before(tx, lent.get(vc, []), head.claim, now)
        if cost is None:
            cost = _serve(tx, head, now, room - bound)
        bound += cost
        passed = tx.soft.passed.get(head.entry.job) == tx.soft.changes
        following = _head(tx, queue) if cost or passed else None
        if following is None:
            heapq.heappop(turns)
        else:
            turn = _turn(tx.state, vc, following, opportunistic=opportunistic)
            heapq.heapreplace(turns, (turn, vc))
        if tx.soft.returned:
            for other in _returned(tx, turns, opportunistic=opportunistic):
                heapq.heappush(turns, other)
    return bound if not turns else max(bound, room)


def _lent_alone(tx: Transaction, lent: dict[str, list[JobState]], now: Instant, room: int) -> int:
    """Give jobs that were lent GPUs their turns in VCs whose queue is empty."""
    taken = 0
    for vc, line in lent.items():
        queue = tx.state.queues.get((vc, False))
        while line and not (queue and queue.entries) and not _held_back(tx, vc):
            cost = _lent_before(tx, line, None, now)
            if not cost:
                break
            taken += cost
    return taken


def _lent_before(
    tx: Transaction, line: list[JobState], claim: Entry | None, now: Instant
) -> int | None:
    """Give the first job of a VC's `line` its turn, if that comes before the head's `claim`.

    Takes a job that has its VC's cells from the line.

    Returns:
        What it took of a decision; 0 if its VC has to wait for it, None if it has no turn yet.
    """
    if not line or (claim is not None and claim < line[-1].entry):
        return None
    taken = lending.take_turn(tx, line[-1], now)
    if isinstance(taken, Done):
        line.pop()
    return outcome.cost(taken)


def _take_back(tx: Transaction, now: Instant) -> None:
    """Let suspended jobs go on for which others left GPUs, before any other is offered those.

    A job of its VC that has an earlier turn by now is served first.
    """
    for name in list(tx.soft.returning):
        job = tx.state.jobs.get(name)
        lent = policy_views.lines(tx)
        waits = job is not None and job.away and job.change is None
        if job is not None and waits and not policy_views.behind(tx, job, lent):
            if resumption.returns_now(tx, job, now):
                placing.promote(tx, job, now, home=job.lent)
            elif resumption.reclaim(tx, job, now, lent):
                continue  # The others have yet to leave.
        del tx.soft.returning[name]
        tx.soft.changes += 1  # Those GPUs are no longer kept for it.


def _held_back(tx: Transaction, vc: str) -> bool:
    """Return whether a VC's queue is not served here.

    Its policy places its jobs, or a suspended job of it takes back what its cells cover.
    """
    if policy_views.rules(tx, vc):
        return True
    names = tx.soft.returning
    return any(tx.state.jobs[name].spec.vc == vc for name in names if name in tx.state.jobs)


def _returned(
    tx: Transaction, turns: list[tuple[tuple[float, Entry], str]], *, opportunistic: bool
) -> list[tuple[tuple[float, Entry], str]]:
    """Return turns for VCs that had theirs before a job came back to their queue.

    It claimed idle GPUs that were then taken for another VC's job. Its own cells may hold it by
    now, and that is not to wait for the next event.
    """
    back = [
        vc
        for vc, kind in tx.soft.returned
        if kind is opportunistic and (kind or not _held_back(tx, vc))
    ]
    tx.soft.returned.clear()
    heads = {vc: _head(tx, tx.state.queues[vc, opportunistic]) for vc in back}
    having = {vc for _, vc in turns}
    return [
        (_turn(tx.state, vc, head, opportunistic=opportunistic), vc)
        for vc, head in heads.items()
        if head is not None and vc not in having
    ]


def _turn(state: ClusterState, vc: str, head: Head, *, opportunistic: bool) -> tuple[float, Entry]:
    """Return what orders the VCs: of opportunistic jobs, what they have of what is idle."""
    if not opportunistic:
        return 0.0, head.claim
    owned = state.cells.cluster.vcs.get(vc)
    weight = owned.weight if owned is not None else 1.0
    return state.cells.borrowed.get(vc, 0) / weight, head.claim


def _finish(tx: Transaction, now: Instant) -> int:
    """Bind reservations whose victims are gone; drop those on hardware that went bad.

    Returns how many parts were bound and victims stopped.
    """
    cost, ripe = 0, tx.soft.ripe
    for key in list(ripe):
        if cost >= placing.MEMBERS_BOUND_MAX:
            tx.soft.check_at = now
            break
        del ripe[key]
        job = tx.state.reserved.get(key)
        if job is None:
            continue
        name = ids.attempt_id(job.job, job.following)
        hold = tx.state.cells.holds[name]
        if tx.state.cells.meets_bad(name):
            tx.record(ReservationDropped(job=job.job, attempt=job.following, why=Reason.NODE_LOST))
        elif not tx.state.cells.claim_is_free(name):
            stopped = placing.stop_all(
                tx, job, placing.users(tx, job), now, placing.MEMBERS_BOUND_MAX - cost
            )
            cost += stopped
            if stopped:
                ripe[key] = None  # There may be more to stop than one decision does.
        else:
            where = Placement(hold.chain, hold.spots, further=hold.further)
            made = job_cells.members(tx.state, where)
            if tx.state.windows and placing.kept(tx, job, made, now):
                window = Reason.WAITS_FOR_WINDOW
                tx.record(ReservationDropped(job=job.job, attempt=job.following, why=window))
                continue
            if not placing.has_room(tx.state, job, made):
                ripe[key] = None
                placing.more_victims(tx, job, made, now)
                continue
            bound = placing.bind(
                tx, job, where, made, Reason.CELLS_RESERVED, ranked=job.ranked, now=now
            )
            cost += outcome.cost(bound)
            if not isinstance(bound, Done):
                ripe[key] = None
    return cost


def _head(tx: Transaction, queue: JobQueue) -> Head | None:
    """Return the next job of a queue that nothing but GPUs keeps waiting.

    A job that waits for the end of a window, until its person has less, or for the start of a job
    that it is to share a GPU with, holds up no other.
    """
    head = queue.head()
    aside = tx.soft.passed or tx.state.people.of_vc or tx.state.unshared
    if head is None or not aside:
        return head
    if not _waits_aside(tx, head.entry):
        return head
    for entry in islice(queue.entries, PASSED_MAX):
        if not _waits_aside(tx, entry):
            return Head(entry, entry, Reason.ARRIVAL)
    return None


def _waits_aside(tx: Transaction, entry: Entry) -> bool:
    """Return whether a job waits for what is no matter of GPUs; say so if that is news."""
    job = tx.state.jobs[entry.job]
    if tx.soft.passed.get(entry.job) == tx.soft.changes:
        return True
    full = person_limits.above(tx, job) if tx.state.people.of_vc else ""
    if full:
        placing.wait(tx, job, Reason.PERSON_LIMIT, full)
    host = "" if full else gpu_shares.awaits(tx, job)
    if host:
        placing.wait(tx, job, Reason.WAITS_FOR_SHARE, host)
    return bool(full or host)


def _serve(tx: Transaction, head: Head, now: Instant, room: int) -> int:
    """Serve the head of a queue; 0 if its queue has to wait.

    What could not be placed is not tried again before something came free.
    """
    job = tx.state.jobs[head.entry.job]
    if tx.soft.failed.get(job.queue) == (job.job, tx.soft.changes):
        return 0
    return outcome.cost(placing.serve(tx, job, head.ranked, now, room))


def _promote(tx: Transaction, now: Instant) -> None:
    """Let jobs that borrow GPUs have their VC's cells, where no job of the VC waits for them."""
    soft = tx.soft
    jobs = [job for job in tx.state.borrowed.values() if not placing.known_uncovered(tx, job)]
    lent = policy_views.lines(tx) if jobs else {}
    for job in jobs:
        if policy_views.rules(tx, job.spec.vc) and policy_views.borrowing(tx.state, job):
            continue  # It has its turn in its policy's plan.
        if policy_views.lent(tx, job):
            continue  # It has its turn in the order of its queue.
        if job.state is not State.STOPPING and not policy_views.behind(tx, job, lent):
            placing.promote(tx, job, now)
    soft.may_promote, soft.promoted_at = False, soft.changes
