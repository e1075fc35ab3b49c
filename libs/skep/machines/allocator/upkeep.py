"""What is done when time has passed, or the process has started again."""

from __future__ import annotations

from skep import ids
from skep.ledger.job_state import JobState, State
from skep.machines.allocator import (
    cell_watch,
    deferring,
    gpu_suspects,
    nodes,
    outbox,
    settings,
    slow_nodes,
    windows,
)
from skep.machines.allocator.changes import checkpoint_time, migration, warning
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.soft import Soft
from skep.machines.allocator.timers import (
    BeginTime,
    CheckpointTime,
    ClearNode,
    LimitWarning,
    Resend,
    SuccessorDeadline,
    TimeLimit,
    Timer,
    YieldDeadline,
)
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after
from skep.wire.changes import Goal
from skep.wire.node import TAKE_OVER_AFTER
from skep.wire.reasons import Reason


def restarted(tx: Transaction, now: Instant) -> None:
    """Take up every command that may not have been sent, and give every node time to speak."""
    soft = tx.soft = Soft()
    for name in tx.state.nodes:
        soft.last_heard[name] = now
    if tx.state.nodes:
        soft.check_at = after(now, tx.settings.node_check_every)
    soft.ripe = dict.fromkeys(tx.state.reserved)
    job_cells.state_bad_cells(tx)
    # Nodes may have joined that the cells had yet to follow.
    job_cells.resolve(tx, tx.state.asked)
    for job in tx.state.jobs.values():
        if job.lent and job.state is State.STOPPING:
            soft.anew[job.job] = None
        for name in job.parts:
            outbox.command(tx, name, job.job, job.attempt, now)
        if job.state is State.RUNNING:
            outbox.limit(tx, job, now)
            soft.reshare[job.job] = None
            if job.mixed:
                soft.telling.unsettle(job.job)
        if job.successor is not None:
            for name in job.successor.members:
                outbox.command(tx, name, job.job, job.successor.attempt, now)
            deadline = SuccessorDeadline(job.job, job.successor.attempt)
            soft.set_timer(deadline, after(now, settings.READY_WITHIN))
    deferring.restarted(tx)
    slow_nodes.restarted(tx, now)
    for name, node in tx.state.nodes.items():
        for attempt in node.ghosts:
            outbox.command(tx, name, *attempt, now)
        outbox.clear(tx, name, now)


def awake(soft: Soft, now: Instant) -> None:
    """Count no node's silence if this process itself slept, or its clock was set.

    Its own timer being late shows that: a laptop that wakes up finds every node silent for hours.

    Args:
        soft: Its times of when nodes were heard are changed.
        now: The time of the decision.
    """
    if soft.check_at is not None and now - soft.check_at > TAKE_OVER_AFTER:
        soft.last_heard = dict.fromkeys(soft.last_heard, now)
        soft.speaking = {}


def tick(tx: Transaction, now: Instant) -> None:
    """Do what has fallen due."""
    soft = tx.soft
    for timer in soft.timers.pop_due(now):
        _due(tx, timer, now)
    if soft.resolve_at is not None and soft.resolve_at <= now:
        job_cells.resolve(tx, tx.state.asked)
    if soft.check_at is not None and soft.check_at <= now:
        soft.check_at = after(now, tx.settings.node_check_every)
        nodes._look_for_lost_nodes(tx, now)
        gpu_suspects.convict(tx, now)
        slow_nodes.go_round(tx, now)
        cell_watch.go_round(tx, now)
    if tx.state.windows:
        windows.go_round(tx, now)


def _due(tx: Transaction, timer: Timer, now: Instant) -> None:
    """Do what a timer was set for, if that still has to be done."""
    match timer:
        case Resend(node, name, attempt):
            outbox.command(tx, node, name, attempt, now)
        case ClearNode(node):
            outbox.clear(tx, node, now)
        case TimeLimit(name, attempt):
            job = tx.state.jobs.get(name)
            if job is not None and job.attempt == attempt and job.state is State.RUNNING:
                outbox.stop(tx, job, Reason.TIME_LIMIT, now, f"limit {job.spec.limits.time} s")
        case LimitWarning(name, attempt):
            warning.due(tx, name, attempt, now)
        case CheckpointTime(name, attempt):
            checkpoint_time.due(tx, name, attempt, now)
        case SuccessorDeadline(name, attempt):
            job = tx.state.jobs.get(name)
            if job is not None and job.succeeds(attempt):
                migration.undo(tx, job, now, Reason.NOT_TAKEN, "the successor took too long")
        case BeginTime(name):
            tx.soft.resolving[name] = None
        case YieldDeadline(name, attempt):
            job = tx.state.jobs.get(name)
            if job is not None:
                _hurry(tx, job, attempt, now)


def _hurry(tx: Transaction, job: JobState, attempt: int, now: Instant) -> None:
    """Stop a job that was to make room after what was under way with it, and has not yet."""
    claimers = tx.state.cells.claimers(ids.attempt_id(job.job, attempt))
    change = job.change
    open_still = change is None or change.goal in (Goal.RESIZE, Goal.RESUME)
    open_still = open_still or (change is not None and change.why is Reason.CHECKPOINT_DUE)
    alive = job.state in (State.RUNNING, State.SUSPENDED)
    if job.attempt == attempt and alive and claimers and open_still:
        outbox.stop(tx, job, Reason.PREEMPTED, now, f"for {ids.job_of(claimers[0])}")
