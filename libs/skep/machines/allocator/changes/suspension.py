"""What becomes of a suspension, a resumption and a stored state, once all nodes have answered.

A rank that is past the mini-batch S that was named answers `unchanged` and where it is, the others
are resumed, and a later S is tried (the two-phase clock; DL2, section 4.2, scales at such a common
step). Whatever fails, an attempt is in the end suspended in every part or runs in every part; one
that can be brought to neither is stopped and repeated.
"""

from __future__ import annotations

from skep.ledger.job_state import GIVES_WAY, JobState, OpenChange, State
from skep.machines.allocator import outbox
from skep.machines.allocator.changes import change_ends, making_room, migration, rounds
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import AskSuspend, Goal, MemberAnswered, Result
from skep.wire.commands import Resume, Suspend
from skep.wire.node import Manner
from skep.wire.reasons import Reason

Answers = dict[str, MemberAnswered]
"""By node."""

RESUMES_MAX = 3
"""How often a part is asked to go on before its attempt is given up."""


def refusals(told: Answers) -> dict[str, str]:
    """Return what the nodes say that did not do it, by node.

    Returns:
        By node: its name, and what it said. Nodes that did it are not among them.
    """
    return {
        name: f"{name}: {answer.detail}" if answer.detail else name
        for name, answer in told.items()
        if answer.manner is Manner.UNCHANGED
    }


def suspended(tx: Transaction, job: JobState, told: Answers, now: Instant) -> None:
    """Conclude a round in which parts were to stop.

    Args:
        tx: Facts and commands are added.
        job: It has an open change.
        told: The answers of all nodes that were told.
        now: The time of the decision.
    """
    change = job.change
    assert change is not None, job
    assert isinstance(change.change, Suspend), change
    refused = refusals(told)
    took = tuple(name for name in told if name not in refused)
    if refused and took and job.state is State.RUNNING:
        _go_on(tx, job, change, took, now, undoing=True)
    elif refused:
        _again(tx, job, change, now, "; ".join(refused.values()))
    else:
        whole = all(answer.released for answer in told.values())
        why = change.why
        change_ends.close(
            tx,
            job,
            Result.DONE,
            why,
            now,
            released=change.change.release and whole,
            detail=change.detail,
        )
        if why in making_room.MAKES_ROOM and not job.released:
            outbox.stop(tx, job, why, now, change.detail)
        elif why is Reason.UNPACKED and not job.released:
            making_room.stay_or_stop(tx, job, now, change.detail)
        elif why is Reason.IDLE and not job.released:
            # It would hold its GPUs for nothing, and could not even be looked into.
            said = next((answer.detail for answer in told.values() if answer.detail), "")
            text = f"it kept its GPUs: {said}" if said else "it kept its GPUs"
            rounds.begin(tx, job, Goal.RESUME, Resume(), now, why=why, detail=text)


def _again(tx: Transaction, job: JobState, change: OpenChange, now: Instant, detail: str) -> None:
    """Name a later mini-batch, or give the suspension up."""
    if change.goal is Goal.MIGRATE:
        migration.again(tx, job, now, detail)
        return
    gang = isinstance(change.change, Suspend) and change.change.step > 0
    gang = gang or change.undoing
    later = rounds.later(change)
    if change.goal is Goal.SUSPEND and gang and later is not None and job.state is State.RUNNING:
        step = later if len(job.live) > 1 else 0
        release = "release" in job.can and _wants_release(change)
        what = Suspend(release=release, step=step)
        sent = rounds.following(change, what, tuple(job.live))._replace(number=change.round + 1)
        rounds.send(tx, job, sent, now)
        return
    why, for_whom = change.why, change.detail
    change_ends.close(tx, job, Result.UNDONE, Reason.NOT_TAKEN, now, detail=detail)
    if making_room.owes_room(tx, job, why):
        outbox.stop(tx, job, why, now, for_whom)
    elif why is Reason.UNPACKED:
        making_room.stay_or_stop(tx, job, now, detail)


def _wants_release(change: OpenChange) -> bool:
    """Return whether a suspension is to give back the GPUs."""
    asked = change.asked.ask if change.asked is not None else None
    leaves = change.why in (*GIVES_WAY, Reason.IDLE)
    return asked.release if isinstance(asked, AskSuspend) else leaves


def resumed(tx: Transaction, job: JobState, told: Answers, now: Instant) -> None:
    """Conclude a round in which parts were to go on.

    Args:
        tx: Facts and commands are added.
        job: It has an open change.
        told: The answers of all nodes that were told.
        now: The time of the decision.
    """
    change = job.change
    assert change is not None, job
    refused = refusals(told)
    stays = all(told[name].released for name in refused) and len(refused) == len(told)
    if refused and job.stood_on and stays and len(told) == len(job.live):
        # Every rank stands where it stood, its state in the host's memory: nothing is lost.
        change_ends.close(
            tx,
            job,
            Result.UNDONE,
            Reason.NOT_TAKEN,
            now,
            released=True,
            detail="; ".join(refused.values()),
        )
    elif refused and change.round % RESUMES_MAX:
        _go_on(tx, job, change, tuple(refused), now, undoing=change.undoing)
    elif refused:
        # Some parts run and others cannot: nothing but another attempt puts that right.
        outbox.stop(tx, job, Reason.NOT_TAKEN, now, "; ".join(refused.values()))
    elif change.undoing:
        apart = "its parts could not stop after the same mini-batch"
        _again(tx, job, change, now, change.detail or apart)
    else:
        change_ends.close(tx, job, Result.DONE, change.why, now)
        outbox.limit(tx, job, now)


def _go_on(
    tx: Transaction,
    job: JobState,
    change: OpenChange,
    nodes: tuple[str, ...],
    now: Instant,
    *,
    undoing: bool,
) -> None:
    """Have some parts go on: those that stopped in vain, or did not go on when they were told."""
    again = isinstance(change.change, Resume) and not undoing
    number = change.round + 1 if again else change.round
    sent = rounds.following(change, Resume(), nodes)._replace(number=number, undoing=undoing)
    rounds.send(tx, job, sent, now)


def stored(tx: Transaction, job: JobState, told: Answers, now: Instant) -> None:
    """Conclude a checkpoint.

    Args:
        tx: Facts and commands are added.
        job: It has an open change.
        told: The answers of all nodes that were told.
        now: The time of the decision.
    """
    change = job.change
    assert change is not None, job
    refused = refusals(told)
    result, why = (Result.UNDONE, Reason.NOT_TAKEN) if refused else (Result.DONE, change.why)
    change_ends.close(tx, job, result, why, now, detail="; ".join(refused.values()))
    if making_room.owes_room(tx, job, change.why):
        outbox.stop(tx, job, change.why, now, change.detail)
    elif change.why is Reason.UNPACKED:
        making_room.stay_or_stop(tx, job, now, change.detail)
