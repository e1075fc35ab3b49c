"""Carrying out what the policy of a VC plans: actions, then turns; and what is held, with why.

A policy decides in its VC as its tenant would in a cluster of his own: about its guaranteed jobs
and nothing else. Whatever it names is checked here, so that a wrong plan does no harm. A policy
that fails is passed over: until its next plan the VC's queue is served first come, first served.

A plan is made when something happened in the VC (a fact about one of its jobs, hardware that came
or went), when what its jobs wait for may have come free elsewhere, or when the policy asked for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import cell_watch, outcome
from skep.machines.allocator.changes import resume_places, resumption
from skep.machines.allocator.outcome import BLOCKED, DEFERRED, LEAVING, Done, Outcome, done
from skep.machines.allocator.placement import gpu_shares, job_cells, placing, quota
from skep.machines.allocator.policies import advising, policy_actions, policy_views
from skep.machines.allocator.policies.demand import SHAPES_MAX
from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.allocator.transaction import Transaction
from skep.policy.capacity import room_on
from skep.policy.plan import Action, Plan, Turn
from skep.policy.view import Phase
from skep.units import Instant, after, seconds
from skep.wire.reasons import Reason

LOOK_AGAIN = seconds(0.001)
"""The soonest that a policy is asked again if nothing happens: one that always says `now` is to
cost a part of a processor, and not all of it."""
STANDS_FIRST = seconds(15)
"""A suspended job moves to idle GPUs only once it has stood for so long: it has to move back, and
what is idle only until a job has its turn is not worth that."""
LENDS_LOOK = 200
"""Waiting jobs of a VC that are offered idle GPUs in one decision: most are alike."""
LENT = "lent"
ASIDE = (Reason.PERSON_LIMIT, Reason.WAITS_FOR_WINDOW, Reason.WAITS_FOR_SHARE)
"""Why a job waits that holds up no other of a strict plan: it does not wait for GPUs."""
HOLDS_TOLD = 50
"""Jobs that are told in one decision why they wait: 200 bytes of its record each."""


def has_plans(tx: Transaction) -> bool:
    """Return whether a VC has a policy, could not have its own, or the cluster changed."""
    soft, state = tx.soft, tx.state
    return (
        bool(soft.planned or soft.unmade or state.alarms)
        or soft.planned_for is not state.cells.cluster
    )


def serve(tx: Transaction, now: Instant, room: int) -> int:
    """Carry out the plans of VCs in which something happened.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision.
        room: The cost that is left of the decision.

    Returns:
        What it took of the decision.
    """
    policy_views.bring_up(tx, now)
    if tx.soft.unmade or tx.state.alarms:
        cell_watch.no_policy(tx, now)
    if not tx.soft.planned:
        return 0
    taken = _return(tx, now, room)
    _settle(tx, now)
    for planned in tx.soft.planned.values():
        if not _asks(tx, planned, now):
            continue
        if taken >= room:
            tx.soft.check_at = now
            break
        if _in_vain(tx, planned):
            continue
        taken += _run(tx, planned, now, room - taken)
        policy_views.bring_up(tx, None)
    return taken


def _settle(tx: Transaction, now: Instant) -> None:
    """Give a job that goes on by its turn its VC's cells, once the job that had them has left.

    Else its VC would seem to have them free, and they would be offered to another.
    """
    for planned in tx.soft.planned.values():
        for name in list(planned.going):
            job = tx.state.jobs.get(name)
            goes = job is not None and job.state is State.SUSPENDED and not job.released
            if job is None or not goes or placing.promote(tx, job, now, home=True):
                del planned.going[name]


def _return(tx: Transaction, now: Instant, room: int) -> int:
    """Have jobs go on for which others have left: before other jobs are offered those GPUs."""
    taken = 0
    for planned in tx.soft.planned.values():
        for name in list(planned.returning):
            job = _job(tx.state, planned, name)
            waits = job is not None and job.away and job.change is None
            if job is not None and waits and taken < room:
                cost = resumption.returns_now(tx, job, now)
                placing.promote(tx, job, now)
                taken, waits = taken + cost, not cost
                # Others may have them for good by now, or they are bad: then there is no hope here.
                waits = waits and bool(resume_places.lent(tx.state, job))
            if not waits:
                del planned.returning[name]
                planned.due = planned.due or (job is not None and job.away)
                tx.soft.changes += 1  # Those GPUs are kept for no job any more.
    return taken


def _asks(tx: Transaction, planned: Planned, now: Instant) -> bool:
    """Return whether a VC is to be planned again now."""
    asks = planned.due or (planned.look_at is not None and planned.look_at <= now)
    elsewhere = (planned.open and planned.outside) or planned.limited
    asks = asks or (elsewhere and planned.changes != tx.soft.changes)
    every = tx.settings.plan_every
    if asks and every and now % every:
        planned.due, planned.look_at = True, Instant((now // every + 1) * every)
        return False
    return asks


def _in_vain(tx: Transaction, planned: Planned) -> bool:
    """Return whether a plan would come to nothing, and need not be made.

    So it is where a policy says only which job is next, and nothing that any job waits for can be
    had since it was last tried. Which jobs run, and which have come to ask for the same, is no
    matter then.
    """
    demand, changes = planned.demand, tx.soft.changes
    if not (planned.whole and planned.policy.only_orders and demand.in_vain(changes)):
        return False
    if planned.fallen or planned.misfits or planned.returning or tx.state.alarms:
        return False
    planned.due, planned.look_at, planned.changes = False, None, changes
    planned.open, planned.outside = bool(demand), demand.outside()
    return True


def _run(tx: Transaction, planned: Planned, now: Instant, room: int) -> int:
    """Have a policy plan, and do what it says."""
    planned.due, planned.look_at, planned.vain = False, None, None
    whole, planned.whole, before = planned.whole, False, len(tx.effects)
    planned.returning.clear()
    planned.awaited.clear()
    planned.leaving.clear()
    view = policy_views.of_vc(tx, planned, now)
    try:
        plan = planned.plan(view)
        jobs = _meant(plan)
    except Exception as error:
        planned.fallen = True
        text = f"{planned.policy.name}: {type(error).__name__}: {error}"
        cell_watch.policy_wrong(tx, planned.vc, Reason.POLICY_FAILED, text, now)
        return 0
    planned.fallen = False
    if plan.following is not None:
        advising.note(tx, planned, plan.following, now)
    planned.named = jobs | dict.fromkeys([action.job for action in plan.actions])
    planned.line = tuple(turn.job for turn in plan.turns)
    planned.limited = any(hold.why is Reason.PERSON_LIMIT for hold in plan.holds)
    planned.lent_at = -1
    cell_watch.policy_right(tx, planned.vc, Reason.POLICY_FAILED, now)
    if plan.look_at is not None:
        planned.look_at = max(plan.look_at, after(now, LOOK_AGAIN))
    wrong: list[str] = []
    taken = _act(tx, planned, plan, now, room, wrong)
    if taken < room:
        taken += _take_turns(tx, planned, plan, now, room - taken, wrong, told=whole)
    if taken >= room:
        planned.due, tx.soft.check_at = True, now
    _hold(tx, planned, plan, jobs, now)
    planned.changes = tx.soft.changes
    if wrong:
        text = f"{planned.policy.name}: {'; '.join(wrong[:5])}"
        cell_watch.policy_wrong(tx, planned.vc, Reason.NOT_ITS_JOB, text, now)
    else:
        cell_watch.policy_right(tx, planned.vc, Reason.NOT_ITS_JOB, now)
    if len(tx.effects) == before and planned.whole and not planned.due:
        planned.vain = now, tx.soft.changes, tx.soft.stirred
    if tx.settings.witness is not None:
        tx.settings.witness(view, plan, tx.effects[before:])
    return taken


def lend(tx: Transaction, now: Instant, room: int) -> int:
    """Let jobs have idle GPUs that their VC's policy leaves waiting.

    The VC with the smallest share of what is lent comes first; in it the jobs that have a turn, in
    that order, then the others as they came. One that finds nothing holds up no other.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision.
        room: The cost that is left of the decision.

    Returns:
        What it took of the decision; `room` too where a gang has to come first in the next one.
    """
    policy_views.bring_up(tx, now)
    lines = {}
    for vc, planned in tx.soft.planned.items():
        if not planned.fallen and planned.lent_at != tx.soft.changes:
            lines[vc] = _wanting(tx, planned)
    turns = [(placing.share(tx.state, vc), vc) for vc in lines]
    heapq.heapify(turns)
    taken = 0
    while turns:
        vc = turns[0][1]
        if taken >= room:
            tx.soft.check_at = now
            return taken
        lent = _lend(tx, tx.soft.planned[vc], lines[vc], now, room - taken)
        if lent is DEFERRED:
            return room
        if isinstance(lent, Done):
            taken += lent.cost
            heapq.heapreplace(turns, (placing.share(tx.state, vc), vc))
        else:
            tx.soft.planned[vc].lent_at = tx.soft.changes
            heapq.heappop(turns)
    return taken


def _wanting(tx: Transaction, planned: Planned) -> Iterator[JobState]:
    """Yield the jobs of a VC that want idle GPUs, up to LENDS_LOOK of them."""
    if not (planned.misfits or planned.borrowers or planned.strays):
        return
    misfits = sorted(planned.misfits, key=lambda name: tx.state.jobs[name].entry)
    names = dict.fromkeys((*misfits, *planned.line, *planned.views))
    # Else a suspended job might borrow what is being left for another.
    stand = {} if resume_places.kept(tx) else planned.views
    wanting = (
        job
        for name in names
        if (job := tx.state.jobs.get(name)) is not None
        and (
            job.state is State.QUEUED
            or (job.away and (stand.get(name) is not None or name in planned.misfits))
        )
        and (planned.borrows(job) or name in planned.misfits or name in planned.strays)
        and name not in tx.state.parked
    )
    yield from islice(wanting, len(misfits) + LENDS_LOOK)


def _lend(
    tx: Transaction, planned: Planned, line: Iterator[JobState], now: Instant, room: int
) -> Outcome:
    """Lend to the first job that finds something; `BLOCKED` if none does."""
    unlent = tx.soft.unlent
    for job in line:
        if gpu_shares.awaits(tx, job):
            continue
        # A suspended job may be kept from moving by what has nothing to do with idle GPUs.
        lends = planned.lends and job.job not in planned.misfits and not quota.borrows(job)
        shape = job.spec.vc, job.spec.resources, LENT if lends and not job.away else job.away
        known = unlent.get(shape)
        told = known is not None and (job.waits == known[1] or job.job not in planned.misfits)
        if known is not None and known[0] == tx.soft.changes and told:
            continue
        if job.away and job.job not in planned.misfits:
            long = after(job.since, STANDS_FIRST)
            if now < long:
                if job_cells.idle_gpus(tx.state) >= job.size * job.spec.resources.gpus:
                    planned.look_at = min(planned.look_at or long, long)
                continue
            lent = done(policy_actions.borrow(tx, job, now))
        elif job.away:
            lent = done(policy_actions.go_on(tx, job, (), now))
        elif job.job in planned.misfits:
            said = len(tx.effects)
            lent = placing.serve(tx, job, Reason.ARRIVAL, now, room)
            if lent is BLOCKED and len(tx.effects) > said:
                lent = Done(
                    placing.MEMBERS_BOUND_MAX // HOLDS_TOLD
                )  # What is told takes its place.
        elif lends:
            lent = placing.lend(tx, job, now, room)
        else:
            lent = placing.borrow(tx, job, now, room)
        if lent is not BLOCKED:
            return lent
        moves = "migrate" in job.can and job.change is None and job.job not in planned.tried
        if not job.away or moves:
            if len(unlent) >= SHAPES_MAX:
                unlent.clear()
            unlent[shape] = tx.soft.changes, job.waits
    return BLOCKED


def _meant(plan: Plan) -> dict[str, None]:
    """Return the jobs that have a turn; raises what a plan does that is none."""
    assert isinstance(plan, Plan), plan
    return dict.fromkeys([turn.job for turn in plan.turns])


def _job(state: ClusterState, planned: Planned, name: str) -> JobState | None:
    """Return a job that the policy may decide about."""
    return state.jobs.get(name) if planned.views.get(name) is not None else None


# --- actions -------------------------------------------------------------------------------------


def _act(
    tx: Transaction, planned: Planned, plan: Plan, now: Instant, room: int, wrong: list[str]
) -> int:
    """Take the actions of a plan; `wrong` is told what cannot be meant."""
    taken = 0
    for action in plan.actions:
        if taken >= room:
            break
        job = _job(tx.state, planned, action.job)
        if job is None:
            wrong.append(f"{_kind(action)} {action.job}: no such job of {planned.vc}")
            continue
        refused = policy_actions.illegal(tx.state, job, action)
        if refused is not None:
            why, detail = refused
            wrong.append(f"{_kind(action)} {action.job}: {why} ({detail})")
            continue
        taken += policy_actions.act(tx, job, action, planned.policy.name, now)
    return taken


def _kind(action: Action) -> str:
    """Return the word for a kind of action."""
    return type(action).__name__.lower()


# --- turns ---------------------------------------------------------------------------------------


def _take_turns(
    tx: Transaction,
    planned: Planned,
    plan: Plan,
    now: Instant,
    room: int,
    wrong: list[str],
    *,
    told: bool,
) -> int:
    """Place jobs in the order of a plan; return what it took.

    `told`: it has been said why jobs wait, if the policy does nothing but order.
    """
    ends = told and planned.policy.only_orders
    taken, stuck, said = 0, False, 0
    planned.open = planned.outside = False
    for turn in plan.turns:
        job = _job(tx.state, planned, turn.job)
        if job is None or not _allows(job, turn.workers):
            size = f"its spec does not allow {turn.workers} workers"
            wrong.append(f"turn of {turn.job}: {size if job else f'no such job of {planned.vc}'}")
            continue
        borrows = policy_views.borrowing(tx.state, job)
        if job.state is not State.QUEUED and not job.away and not borrows:
            continue  # It has its GPUs, or another turn or action of this plan took it.
        if taken >= room:
            return taken
        if borrows:
            up: Outcome = BLOCKED
            if not stuck:
                up = placing.take_up(tx, job, now, room - taken, turn.nodes)
            taken += outcome.cost(up)
            planned.open = planned.open or not isinstance(up, Done)
            if isinstance(up, Done) and not policy_views.borrowing(tx.state, job):
                # It has its VC's cells in place: no fact of it will follow that asks for a plan.
                planned.due, tx.soft.check_at = True, now
            # The cells of a job that has yet to leave are kept for it.
            stays = planned.lends and up is BLOCKED and placing.stays(job)
            blocks = plan.strict and up is BLOCKED and not stays
            stuck = stuck or up in (DEFERRED, LEAVING) or blocks
            continue
        if said >= HOLDS_TOLD:
            planned.due, tx.soft.check_at = True, now
            return taken  # It goes on in the next decision, which remembers what was said.
        before = len(tx.effects)
        placed: Outcome = BLOCKED
        if not stuck:
            placed = _take_turn(tx, planned, job, turn, now, room - taken)
        if placed is DEFERRED:
            return room  # It comes first in the next decision.
        if isinstance(placed, Done):
            taken += placed.cost
            planned.demand.leave(turn.job)
            if job.away and job.change is None and turn.job not in planned.returning:
                # Others have yet to leave nodes where it has nothing. No other job gets those.
                planned.open = planned.outside = True
                planned.awaited |= dict.fromkeys(turn.nodes)
            continue
        planned.open = True
        planned.awaited |= dict.fromkeys(_left(tx, planned, turn))
        aside = job.waits is not None and job.waits[0] in ASIDE
        stuck = stuck or (plan.strict and not job.away and not aside)
        if job.waits is not None and job.waits[0] is Reason.HELD_BY_POLICY:
            placing.wait(tx, job, Reason.WAITS_BEHIND, "")
        said += len(tx.effects) > before
        if ends and said < HOLDS_TOLD and planned.demand.in_vain(tx.soft.changes):
            planned.outside = planned.demand.outside()
            break  # No job after it can have anything either.
    planned.whole = True
    return taken


def _allows(job: JobState, workers: int) -> bool:
    """Return whether an attempt of a job may begin with so many workers; 0: those of its spec."""
    allowed = job.spec.elastic
    if allowed is None or not workers:
        return workers in (0, job.spec.resources.workers)
    return allowed.min <= workers <= allowed.max


def _take_turn(
    tx: Transaction, planned: Planned, job: JobState, turn: Turn, now: Instant, room: int
) -> Outcome:
    """Place a job on the nodes of its turn, or elsewhere if these can never be had."""
    changes = tx.soft.changes
    if job.away:
        cost = policy_actions.go_on(tx, job, turn.nodes, now)
        if not cost and "migrate" in job.can and _misled(tx, planned, job, turn, now):
            cost = policy_actions.go_on(tx, job, (), now)
        planned.outside = planned.outside or not cost
        return done(cost)
    host = gpu_shares.awaits(tx, job)
    if host:
        placing.wait(tx, job, Reason.WAITS_FOR_SHARE, host)
        return BLOCKED
    shape: tuple[Any, ...] = (job.spec.resources, job.spec.over_quota, turn.nodes)
    if turn.workers:
        shape = *shape, turn.workers, turn.workers_per_node
    known = planned.demand.failed(shape, changes)
    if known is not None:
        planned.outside = planned.outside or known
        return BLOCKED
    placed = placing.serve(
        tx,
        job,
        turn.why,
        now,
        room,
        turn.nodes,
        workers=turn.workers,
        per_node=turn.workers_per_node,
    )
    if placed is BLOCKED and _misled(tx, planned, job, turn, now):
        placed = placing.serve(tx, job, turn.why, now, room, (), workers=turn.workers)
    if placed is BLOCKED:
        outside = _others_matter(tx.state, job)
        planned.demand.fail(shape, tx.soft.changes, outside=outside)
        planned.outside = planned.outside or outside
    return placed


def _left(tx: Transaction, planned: Planned, turn: Turn) -> tuple[str, ...]:
    """Return the nodes of a turn if jobs of the VC are about to leave GPUs there."""
    policy_views.bring_up(tx, None)  # This plan's actions have them leave.
    there = (planned.views.get(name) for node in turn.nodes for name in planned.seats.on(node))
    leaves = any(view is not None and view.phase is Phase.STOPPING for view in there)
    return turn.nodes if leaves else ()


def _misled(tx: Transaction, planned: Planned, job: JobState, turn: Turn, now: Instant) -> bool:
    """Return whether the nodes of a turn were refused, though no job of the VC is in the way.

    The view shows room there and the cells have none, or no job is there whose end would make room.
    To wait for such nodes may be to wait for ever: the cells' own rule says where the job goes.
    """
    if not turn.nodes:
        return False
    policy_views.bring_up(tx, None)  # This plan's earlier turns are in the way, too.
    mine = planned.views.get(job.job)
    if mine is None:
        return False
    there = {name: None for node in turn.nodes for name in planned.seats.on(node)}
    ahead = [view for name in there if (view := planned.views.get(name)) is not None]
    ahead = [view for view in ahead if view.pin == mine.pin and not view.borrows]
    if any(view.phase is Phase.STOPPING for view in ahead):
        return False
    if not ahead:
        return True
    return room_on(mine, policy_views.of_vc(tx, planned, now), turn.nodes)


def _others_matter(state: ClusterState, job: JobState) -> bool:
    """Return whether what a job waits for may come free outside its VC's cells."""
    wanted = job.spec.resources
    if wanted.cpus or wanted.memory:
        return True
    port = job.waits is not None and job.waits[0] is Reason.WAITS_FOR_PORT
    return port or any(chain.bad for chain in state.cells.chains.values())


# --- jobs that are held --------------------------------------------------------------------------


def _hold(
    tx: Transaction, planned: Planned, plan: Plan, turns: dict[str, None], now: Instant
) -> None:
    """Say of jobs without a turn why they wait."""
    said = {hold.job: (hold.why, hold.needs) for hold in plan.holds}
    held = Reason.HELD_BY_POLICY, planned.policy.name
    usual, told = held if plan.behind is None else (plan.behind, ""), 0
    freed = policy_views.freed(tx.state, planned.vc)
    for name in _unsaid(tx, planned, turns, said):
        if planned.views[name] is None or name in tx.state.parked:
            continue
        job = tx.state.jobs[name]
        borrows = policy_views.borrowing(tx.state, job)
        away = job.away and job.change is None
        if job.state is not State.QUEUED and not away and not borrows:
            planned.unsaid.pop(name, None)
            continue
        if planned.policy.counts_holds:
            planned.hold(name, freed)
        why = said.get(name, usual)
        if job.waits == why or borrows:
            if borrows or why == usual:
                planned.unsaid.pop(name, None)
            continue
        if told == HOLDS_TOLD:
            planned.due, tx.soft.check_at = True, now
            return
        told += 1
        placing.wait(tx, job, *why)


def _unsaid(
    tx: Transaction, planned: Planned, turns: Iterable[str], said: Iterable[str]
) -> list[str]:
    """Return the jobs without a turn of which there may be something to say, first come first."""
    names = planned.views
    if planned.policy.counts_holds:
        return [name for name in names if name not in turns]
    maybe = dict.fromkeys((*planned.unsaid, *said, *tx.soft.touched))
    rest = [name for name in maybe if name in names and name not in turns]
    return sorted(rest, key=lambda name: tx.state.jobs[name].sequence)
