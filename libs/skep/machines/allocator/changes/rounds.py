"""The rounds of a change: what is sent to which nodes of an attempt, and which mini-batch is named.

A gang on several nodes must stop after the same mini-batch. No clock is shared. The first one named
is almost always past, and a rank that is past it says where it is; the next is counted from there
(the two-phase clock; DL2, section 4.2).
"""

from __future__ import annotations

from typing import NamedTuple

from skep.ledger.job_state import JobState, OpenChange
from skep.machines.allocator import outbox
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Goal, JobChanging
from skep.wire.commands import Change
from skep.wire.reasons import Reason

FIRST_STEP = 1
"""The mini-batch first named to a gang on several nodes: almost always past, and a rank that is
past it says where it is, which is what the next one is counted from."""
MARGIN = 2
MARGIN_GROWS = 4
ROUNDS_MAX = 7
"""Rounds of one suspension: the last one leaves 2,048 mini-batches for a command to arrive in."""


def later(change: OpenChange) -> int | None:
    """Return the mini-batch to name in the next round, or None after the last one.

    Returns:
        The number of a mini-batch; None: there were ROUNDS_MAX rounds.
    """
    if change.round >= ROUNDS_MAX:
        return None
    margin: int = MARGIN * MARGIN_GROWS ** (change.round - 1)
    return change.far + margin


class Round(NamedTuple):
    """One round of a change.

    Attributes:
        goal: What the whole change is for.
        change: What the nodes are to do in this round.
        nodes: Which nodes; each has to answer.
        why: The reason of the whole change.
        ask: The number of the request that it follows from; 0: of none.
        number: Which round it is, from 1 on.
        undoing: Whether it takes back what an earlier round did.
        detail: What is the matter, in words.
        owed: The slices of GPU time that the job is owed for it (`JobChanging.owed`).
    """

    goal: Goal
    change: Change
    nodes: tuple[str, ...]
    why: Reason
    ask: int = 0
    number: int = 1
    undoing: bool = False
    detail: str = ""
    owed: int = 0


def following(change: OpenChange, what: Change, nodes: tuple[str, ...]) -> Round:
    """Return a further round of an open change, of the same number.

    Args:
        change: The open change.
        what: What the nodes are to do.
        nodes: Which nodes; each has to answer.
    """
    ask = change.asked.number if change.asked is not None else 0
    return Round(change.goal, what, nodes, change.why, ask, change.round, detail=change.detail)


def send(tx: Transaction, job: JobState, of: Round, now: Instant) -> None:
    """Record a round of a change of an attempt, and send it to its nodes."""
    tx.record(
        JobChanging(
            job=job.job,
            attempt=job.attempt,
            order=tx.state.order + 1,
            goal=of.goal,
            change=of.change,
            nodes=of.nodes,
            why=of.why,
            at=now,
            round=of.number,
            undoing=of.undoing,
            ask=of.ask,
            detail=of.detail,
            trace=job.trace,
            owed=of.owed,
        )
    )
    for name in of.nodes:
        outbox.command(tx, name, job.job, job.attempt, now)


def begin(
    tx: Transaction,
    job: JobState,
    goal: Goal,
    change: Change,
    now: Instant,
    *,
    why: Reason,
    detail: str = "",
    owed: int = 0,
) -> None:
    """Begin a change of every part of an attempt.

    Args:
        tx: A fact and commands are added.
        job: Nothing else is under way with it.
        goal: What the whole change is for.
        change: What its nodes are to do first.
        now: The time of the decision.
        why: The reason of the change. A request of the tenant is answered by it if the reason says
            so.
        detail: For which job, or what is the matter, in words; may be empty.
        owed: The slices of GPU time that the job is owed for it.
    """
    asks = why in (Reason.REQUESTED, Reason.UNPACKED)
    ask = job.asked.number if job.asked is not None and asks else 0
    first = Round(goal, change, tuple(job.live), why, ask, detail=detail, owed=owed)
    send(tx, job, first, now)
