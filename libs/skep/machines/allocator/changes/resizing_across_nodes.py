"""A gang on several nodes, before or after, changes its size.

    prepare   newcomers start and make everything ready, the meeting place is opened: no rank that
              trains is told anything, so what fails here costs the gang nothing
    agree     all nodes are told at once; the ranks agree where they meet on the mini-batch, on the
              commit, and on whether the new gang stands (`skep_job.elastic.agreement`)
    JobChanged

A node on which the gang has no rank yet gets a BindJob first, like a successor, and then the same
commands as the others; one that is left by all its ranks says so, and its part is over.

All nodes can only have taken it or none, unless an agent could not tell in time what its ranks did.
If some took it and some did not, the gang is brought to the smaller of both sizes in another
generation, on all nodes, in rounds: no rank has to be started for that. Thus a growth is undone
and a shrinking done. One that can be brought to neither is stopped and repeated. Ranks are numbered
as they come, and leave in the reverse order.
"""

from __future__ import annotations

from skep.ledger.job_state import JobState, OpenChange, State
from skep.machines.allocator import outbox
from skep.machines.allocator.changes import change_ends, resize_ends, rounds
from skep.machines.allocator.changes.rounds import Round
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Goal, MemberAnswered
from skep.wire.commands import Resize
from skep.wire.node import Manner, MemberExited, MemberReady
from skep.wire.reasons import Reason

ROUNDS_MAX = 4
"""How often a gang of which only some nodes took a change is told the smaller size."""


def spans(change: OpenChange) -> bool:
    """Return whether a change is one of the size of a gang on several nodes."""
    return isinstance(change.change, Resize) and (change.change.prepare or change.change.agree)


def begin(
    tx: Transaction, job: JobState, at: str, workers: int, port: int, *, now: Instant, why: Reason
) -> None:
    """Have everything made ready that a gang of so many workers needs.

    Args:
        tx: A fact and commands are added.
        job: It is on several nodes, or is to be.
        at: The node on which all ranks meet.
        workers: How many workers the gang is to have.
        port: The port on which they meet.
        now: The time of the decision.
        why: Why the size changes.
    """
    nodes = [name for name in job.live if name == at or job.members[name].numbers[-1] >= job.size]
    resize = Resize(
        generation=tx.state.order + 1,
        world=workers,
        ranks=(),
        master_port=port,
        at=at,
        master_address=tx.state.nodes[at].joined.address,
        prepare=True,
    )
    begins = Round(Goal.RESIZE, resize, tuple(nodes), why, change_ends.number(job, why))
    rounds.send(tx, job, begins, now)


# --- what nodes say ----------------------------------------------------------------------------


def ready(tx: Transaction, job: JobState, event: MemberReady, now: Instant) -> None:
    """Take it that all is ready on a node."""
    change = job.change
    if change is None or not event.order or event.order != change.order:
        return
    if change.answers.get(event.node, event) is None:
        _answer(tx, job, change, event.node, Manner.BOUNDARY, "")
        conclude(tx, job, now)


def exited(tx: Transaction, job: JobState, event: MemberExited, now: Instant) -> bool:
    """Take the end of a part that was only to join.

    Args:
        tx: Facts and commands are added.
        job: The job.
        event: The end of the part.
        now: The time of the decision.

    Returns:
        Whether it was one; if not, nothing is done.
    """
    change, name = job.change, event.node
    if change is None or job.state is not State.RUNNING or not job.outside(name):
        return False
    assert isinstance(change.change, Resize), job
    if change.answers.get(name, event) is None:
        leaves = job.members[name].first_rank >= change.change.world
        manner = Manner.BOUNDARY if leaves else Manner.UNCHANGED
        _answer(tx, job, change, name, manner, event.detail or event.outcome)
    resize_ends.leave(tx, job, name, now)
    conclude(tx, job, now)
    return True


def _answer(
    tx: Transaction, job: JobState, change: OpenChange, name: str, manner: Manner, detail: str
) -> None:
    """Record the answer of a node, or that it is gone."""
    tx.record(
        MemberAnswered(
            job=job.job,
            attempt=job.attempt,
            node=name,
            order=change.order,
            manner=manner,
            detail=detail,
        )
    )


# --- rounds ------------------------------------------------------------------------------------


def conclude(tx: Transaction, job: JobState, now: Instant) -> None:
    """Go on once all nodes that were told have answered, or one cannot be ready."""
    change = job.change
    assert change is not None, job
    told = {name: answer for name, answer in change.answers.items() if name in job.parts}
    refused = "; ".join(refusals(change).values())
    assert isinstance(change.change, Resize), job
    if change.change.prepare and not change.undoing:
        if refused or _short(job, change.change.world):
            withdraw(tx, job, now, refused or "not all that were to join are there")
        elif None not in told.values():
            _tell(tx, job, change, change.change.world, now, number=1)
    elif None in [told[name] for name in told if name in job.live]:
        pass  # The others are told again until they answer.
    elif change.change.prepare:
        resize_ends.conclude(tx, job, change.detail, now)
    else:
        _agreed(tx, job, change, refused, now)


def _agreed(tx: Transaction, job: JobState, change: OpenChange, refused: str, now: Instant) -> None:
    """End a change that all nodes have answered, or bring those that differ to one size."""
    resize = change.change
    assert isinstance(resize, Resize), job
    took = [
        name
        for name, answer in change.answers.items()
        if answer is not None and answer.manner is not Manner.UNCHANGED
    ]
    whole = not refused and not _short(job, resize.world)
    if whole and change.undoing and resize.world == job.size:
        resize_ends.conclude(tx, job, change.detail or "not all nodes took it", now)
    elif whole:
        resize_ends.conclude(tx, job, "", now)
    elif not took and not change.undoing:
        resize_ends.conclude(tx, job, refused, now)
    elif change.round >= ROUNDS_MAX:
        outbox.stop(tx, job, Reason.NOT_TAKEN, now, refused)
    else:
        for name in [] if change.undoing else refusals(change):
            if name in job.members and job.outside(name):  # Its ranks have ended, as it said.
                resize_ends.leave(tx, job, name, now)
        smaller = min(resize.world, job.size)
        _tell(
            tx,
            job,
            change,
            smaller,
            now,
            number=change.round + 1,
            undoing=True,
            detail=change.detail or refused,
        )


def refusals(change: OpenChange) -> dict[str, str]:
    """Return why nodes did not take a change, by node."""
    return {
        name: f"{name}: {one.detail}".rstrip(": ")
        for name, one in change.answers.items()
        if one is not None and one.manner is Manner.UNCHANGED
    }


def _short(job: JobState, world: int) -> bool:
    """Return whether a node has gone on which ranks of a gang of this size were to be."""
    known = {rank for member in job.members.values() for rank in member.numbers}
    return not known.issuperset(range(world))


def withdraw(tx: Transaction, job: JobState, now: Instant, why: str) -> None:
    """Have no rank join after all, as long as the gang itself was told nothing.

    Args:
        tx: Facts and commands are added.
        job: It has an open change of its size.
        now: The time of the decision.
        why: What is the matter, in words.
    """
    change = job.change
    assert change is not None, job
    assert isinstance(change.change, Resize), job
    refused = refusals(change)
    nodes = [name for name in change.answers if name in job.live and name not in refused]
    if not nodes:
        resize_ends.conclude(tx, job, why, now)
        return
    order = tx.state.order + 1
    resize = Resize(
        generation=order,
        world=job.size,
        ranks=(),
        master_address="",
        prepare=True,
        master_port=change.change.master_port,
    )
    _record(tx, job, change, resize, nodes, now, number=change.round, undoing=True, detail=why)


def give_up(tx: Transaction, job: JobState, now: Instant, why: str) -> None:
    """Withdraw a change of size of which the gang was told nothing yet; else let it end.

    Args:
        tx: Facts and commands are added.
        job: It has an open change of its size.
        now: The time of the decision.
        why: For which job it makes room, in words.
    """
    change = job.change
    assert change is not None, job
    if isinstance(change.change, Resize) and change.change.prepare:
        withdraw(tx, job, now, f"it makes room {why}")


def _tell(
    tx: Transaction,
    job: JobState,
    change: OpenChange,
    world: int,
    now: Instant,
    *,
    number: int,
    undoing: bool = False,
    detail: str = "",
) -> None:
    """Have every node of the gang, and those that are to be, change at a common mini-batch."""
    earlier = change.change
    assert isinstance(earlier, Resize), job
    at = next(name for name in job.members if job.members[name].first_rank == 0)
    resize = Resize(
        generation=tx.state.order + 1,
        world=world,
        ranks=(),
        agree=True,
        at=at,
        master_port=earlier.master_port,
        master_address=tx.state.nodes[at].joined.address,
    )
    _record(tx, job, change, resize, job.live, now, number=number, undoing=undoing, detail=detail)


def _record(
    tx: Transaction,
    job: JobState,
    change: OpenChange,
    resize: Resize,
    nodes: list[str],
    now: Instant,
    *,
    number: int,
    undoing: bool,
    detail: str,
) -> None:
    """Open a further round."""
    following = rounds.following(change, resize, tuple(nodes))
    sent = following._replace(number=number, undoing=undoing, detail=detail)
    rounds.send(tx, job, sent, now)
