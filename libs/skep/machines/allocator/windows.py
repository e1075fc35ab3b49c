"""Windows: booking, opening and closing them, and having jobs leave their nodes.

    booked --begins--> open: other jobs leave (moved, else stored, else suspended, else stopped)
       |                 |
       +-- cancelled ----+--ends--> forgotten: the nodes are as before

Until a window opens its nodes are used, by jobs that are known to be over by then, and by those of
which nothing is known (`skep.policy.windows`).
"""

from __future__ import annotations

from skep.ledger.job_state import JobState, State
from skep.machines.allocator.changes import making_room, migration, requests, rounds
from skep.machines.allocator.transaction import Transaction
from skep.policy.windows import problem
from skep.units import Instant, after, seconds
from skep.wire.changes import AskMigrate, Goal
from skep.wire.commands import Checkpoint
from skep.wire.reasons import Reason
from skep.wire.windows import (
    CancelWindow,
    ReserveNodes,
    Window,
    WindowBegan,
    WindowBooked,
    WindowEnded,
    WindowRefused,
)

LOOK_AGAIN = seconds(10.0)
"""How often it is looked whether jobs are still on the nodes of an open window: a move that came to
nothing, or a suspension that its ranks refused, leaves them there."""
LEAVE_MAX = 50
"""Jobs that are told to leave in one decision: 700 bytes of its record each."""


def asked(tx: Transaction, event: ReserveNodes | CancelWindow, now: Instant) -> None:
    """Book or give up a window, or record why that cannot be.

    Args:
        tx: Facts are added.
        event: What an operator asks for. What is done already changes nothing.
        now: The time of the decision.
    """
    if isinstance(event, CancelWindow):
        if event.name in tx.state.windows:
            tx.record(WindowEnded(name=event.name, at=now, cancelled=True))
        else:
            text = f"no window is called {event.name}: see `skep reserve ls`"
            _refuse(tx, event.name, Reason.UNKNOWN_WINDOW, text, now)
        return
    window = event.window
    if tx.state.windows.get(window.name) == window:
        return
    vcs = tx.state.cells.cluster.vcs
    wrong = problem(window, now, tx.state.windows, tx.state.nodes, vcs)
    if wrong is not None:
        _refuse(tx, window.name, wrong.why, wrong.text, now)
        return
    tx.record(WindowBooked(window=window, at=now))
    go_round(tx, now)


def _refuse(tx: Transaction, name: str, why: Reason, text: str, now: Instant) -> None:
    tx.record(WindowRefused(name=name, why=why, text=text, at=now))


def wake_at(tx: Transaction) -> Instant | None:
    """Return when a window opens or ends next, or jobs may still be there."""
    times = [
        window.ends if name in tx.state.opened else min(window.begins, window.ends)
        for name, window in tx.state.windows.items()
    ]
    if tx.state.opened and tx.soft.leave_at is not None:
        times.append(tx.soft.leave_at)
    return min(times, default=None)


def go_round(tx: Transaction, now: Instant) -> None:
    """Open and end windows whose time has come; have jobs leave the nodes of open ones.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision.
    """
    for name, window in list(tx.state.windows.items()):
        if window.ends <= now:
            tx.record(WindowEnded(name=name, at=now))
        elif window.begins <= now and name not in tx.state.opened:
            tx.record(WindowBegan(name=name, at=now))
            tx.soft.leave_at = now
    if tx.state.opened and (tx.soft.leave_at is None or tx.soft.leave_at <= now):
        told = sum(_clear(tx, tx.state.windows[name], now) for name in tx.state.opened)
        tx.soft.leave_at = now if told >= LEAVE_MAX else after(now, LOOK_AGAIN)


def _clear(tx: Transaction, window: Window, now: Instant) -> int:
    """Have jobs leave the nodes of an open window; return how many were told to."""
    names = [
        job
        for node in window.nodes
        if node in tx.state.nodes
        for job, _ in tx.state.nodes[node].holdings
    ]
    told = 0
    for name in dict.fromkeys(names):
        job = tx.state.jobs.get(name)
        if told >= LEAVE_MAX or job is None or job.away:
            continue
        if window.vc and job.spec.vc == window.vc:
            continue
        told += _leave(tx, job, window, now)
    return told


def _leave(tx: Transaction, job: JobState, window: Window, now: Instant) -> bool:
    """Have one job leave, with as little lost as it can; return whether it was told to now."""
    why = Reason.RESERVED_FOR_VC if window.vc else Reason.MAINTENANCE
    detail = f"window {window.name}"
    before = len(tx.effects)
    known, calm = tx.soft.moved_for.get(job.job), job.change is None and job.successor is None
    alive = job.state in (State.RUNNING, State.SUSPENDED)
    if calm and alive and job.asked is None and known != (window.name, job.attempt):
        wish = AskMigrate(job=job.job, to="")
        tx.soft.moved_for[job.job] = window.name, job.attempt
        if job.known and requests.refusal(tx.state, job, wish) is None:
            migration.begin(tx, job, "", now, why)
    if len(tx.effects) > before:
        return True
    if calm and job.state is State.RUNNING and "checkpoint" in job.can:
        rounds.begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=why, detail=detail)
    elif job.change is None or job.change.goal is not Goal.MIGRATE:
        making_room.give_way(tx, job, now, detail, memory=False, why=why)
    return len(tx.effects) > before
