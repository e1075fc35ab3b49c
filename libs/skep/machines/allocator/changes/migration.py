"""Moving an attempt: a successor makes everything ready, while the job trains on if it does.

    running      bind the successor elsewhere; once it listens, Move: the source stops at a boundary
                 and sends its state; once all of it has arrived, JobMoved; then the successor is
                 resumed, the source stopped
    on several   the same, but first all parts of the source stand after one mini-batch, agreed on
      nodes      in rounds as for a suspension; only then is any state sent
    suspended    the same without stopping anything, also from the host's memory; the successor is
                 then suspended in its turn, or goes on if the job had only made room

Whatever fails before JobMoved, the successor is stopped and the source is as it was: it goes on, or
stays suspended. A job that trains pauses only from when it is told to stop, and every hop follows
at once from the event before it. Before JobMoved nothing resumes the successor, after it nothing
resumes the source: as the two are different attempts, a late command for one is never taken by the
other (Gandiva, section 4.1). Every rank gets a successor, also one that stays on its node: the
process group has other members and another address, so every rank begins it anew.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import msgspec

from skep.cells.decide import placement
from skep.cells.holds import Placement
from skep.ids import AttemptId, attempt_id
from skep.ledger import attempts
from skep.ledger.job_state import ASKS_BACK, JobState, OpenChange, State, Successor
from skep.ledger.state import ClusterState
from skep.machines.allocator import outbox, settings, timers
from skep.machines.allocator.changes import change_ends, rounds, warning
from skep.machines.allocator.changes.rounds import Round
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.placement import job_cells, kept_nodes
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after, seconds
from skep.wire.changes import Goal, MemberAnswered, MemberLearned, Result
from skep.wire.commands import Move, Resume, Suspend, Target
from skep.wire.facts import GhostGone
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorLoaded, SuccessorReady
from skep.wire.node import Manner, MemberExited, MemberKnown, MemberLoaded, MemberReady
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX

MOVE_WITHIN = seconds(180)
"""What source and successor get for the state: three times what an agent gives its ranks."""


def begin(
    tx: Transaction, job: JobState, to: str, now: Instant, why: Reason = Reason.REQUESTED
) -> Refused | None:
    """Begin to move an attempt: open a change, which no node is told yet.

    Args:
        tx: Its nodes, cells and jobs are read; facts, a command and a timer are added.
        job: It runs or is suspended, and can migrate.
        to: Names of nodes, separated by commas; empty for any that the job is not on.
        now: The time of the decision.
        why: Why it is to move.

    Returns:
        Why it does not begin, or None.
    """
    where = _place(tx.state, job, to, kept_nodes.kept_from(tx, job, now))
    if where is None:
        gpus = f"{job.size} x {job.spec.resources.gpus} GPUs"
        return Refused(Reason.NO_ROOM, f"{gpus} on {to or 'other nodes'}")
    made = job_cells.members(tx.state, where)
    port = tx.state.nodes[made[0].node].port()
    if port is None or len(made) > GANG_NODES_MAX:
        return Refused(Reason.WAITS_FOR_PORT, made[0].node)
    order, attempt = tx.state.order + 1, job.following
    text = f"{attempt_id(job.job, attempt)}.{order}"
    secret = hmac.new(tx.settings.key, text.encode(), hashlib.sha256).hexdigest()
    tx.record(
        SuccessorBound(
            job=job.job,
            attempt=attempt,
            order=order,
            members=made,
            master_port=port,
            at=now,
            chain=where.chain,
            secret=secret,
            trace=job.trace,
        )
    )
    begins = Round(Goal.MIGRATE, Move(targets=()), (), why, change_ends.number(job, why))
    rounds.send(tx, job, begins, now)
    for member in made:
        outbox.command(tx, member.node, job.job, attempt, now)
    tx.soft.set_timer(timers.SuccessorDeadline(job.job, attempt), after(now, settings.READY_WITHIN))
    return None


def _place(state: ClusterState, job: JobState, to: str, kept: dict[str, str]) -> Placement | None:
    """Return idle GPUs on the nodes named (separated by commas), or on any that it is not on.

    They are of one chain: also a mixed gang moves only to where it is no longer mixed.
    Of the VC's cells if there are, else borrowed for now. No job makes room for a move.
    """
    limit = kept_nodes.without(kept, _limit(state, job, to), job.size)
    for guaranteed in (True, False):
        if guaranteed and job.spec.opportunistic:
            continue
        asked = attempts.request(job, job.following, guaranteed=guaranteed)._replace(mixed=False)
        where = placement.find_placement(state.cells, asked, limit=limit)
        if where is not None and not (where.victims or where.cancels or where.demoted):
            return where
    return None


def lent(state: ClusterState, job: JobState, to: str) -> list[AttemptId]:
    """Return the opportunistic attempts on what a job's VC's cells could hold it with there.

    Args:
        state: Its cells and nodes are read.
        job: It is to move.
        to: Names of nodes, separated by commas; empty for any that the job is not on.

    Returns:
        The attempts that would have to leave; empty also where no place is found.
    """
    asked = attempts.request(job, job.following, guaranteed=True)
    asked = asked._replace(priority=0, mixed=False)
    where = placement.find_placement(state.cells, asked, limit=_limit(state, job, to))
    return list(where.victims) if where is not None else []


def _limit(state: ClusterState, job: JobState, to: str) -> Callable[[str], int]:
    """Return how many workers of a job a node may have, by its name."""
    wanted = msgspec.structs.replace(job.spec.resources, workers=job.size)
    named = [name.strip() for name in to.split(",") if name.strip()]

    def limit(name: str) -> int:
        node = state.nodes.get(name)
        if node is None or (name not in named if named else name in job.members):
            return 0
        return node.workers(wanted)

    return limit


# --- what successors say -----------------------------------------------------------------------


def heard(
    tx: Transaction, job: JobState, event: MemberKnown | MemberReady | MemberLoaded, now: Instant
) -> None:
    """Take what a node says about its part of a successor."""
    successor = job.successor
    if successor is None or event.attempt != successor.attempt:
        return
    member = successor.members.get(event.node)
    if member is None or member.identity != event.identity:
        return
    name, attempt, node = job.job, successor.attempt, event.node
    match event:
        case MemberKnown():
            learned = MemberLearned(
                job=name,
                attempt=attempt,
                node=node,
                tier=event.tier,
                can=event.can,
                sizes=event.sizes,
            )
            if successor.learned.get(node) != learned:
                tx.record(learned)
        case MemberReady() if node not in successor.doors:
            tx.record(SuccessorReady(job=name, attempt=attempt, node=node, doors=event.doors))
            if len(successor.doors) == len(successor.members):
                _ready(tx, job, successor, now)
        case MemberLoaded() if node not in successor.loaded:
            tx.record(SuccessorLoaded(job=name, attempt=attempt, node=node, step=event.step))
            conclude(tx, job, now)
        case _:
            pass  # Said again.


def _ready(tx: Transaction, job: JobState, successor: Successor, now: Instant) -> None:
    """Have the source stand if it does not, or (on one node it stops by itself) send its state."""
    tx.soft.set_timer(timers.SuccessorDeadline(job.job, successor.attempt), after(now, MOVE_WITHIN))
    if job.state is State.RUNNING and len(job.live) > 1:
        _tell(tx, job, Suspend(step=rounds.FIRST_STEP), now)
    else:
        _send(tx, job, successor, now)


def _send(tx: Transaction, job: JobState, successor: Successor, now: Instant) -> None:
    """Have the source send its state."""
    targets = tuple(
        Target(rank=door.rank, host=door.host, port=door.port, token=successor.secret)
        for doors in successor.doors.values()
        for door in doors
    )
    _tell(tx, job, Move(targets=targets), now)
    tx.soft.set_timer(timers.SuccessorDeadline(job.job, successor.attempt), after(now, MOVE_WITHIN))


def _tell(
    tx: Transaction,
    job: JobState,
    change: Move | Resume | Suspend,
    now: Instant,
    nodes: tuple[str, ...] | None = None,
    *,
    number: int = 1,
    undoing: bool = False,
    detail: str = "",
) -> None:
    """Open a round of the move."""
    told = tuple(job.live) if nodes is None else nodes
    assert job.change is not None, job
    sent = Round(Goal.MIGRATE, change, told, job.change.why, 0, number, undoing, detail)
    rounds.send(tx, job, sent, now)


# --- what the source says ----------------------------------------------------------------------


def concludes(change: OpenChange) -> bool:
    """Return whether the answers to a change are taken here: all of a move, but to go on."""
    return change.goal is Goal.MIGRATE and not isinstance(change.change, Resume)


def conclude(tx: Transaction, job: JobState, now: Instant) -> None:
    """Go on with a move as far as what its parts have said allows.

    Args:
        tx: Facts and commands are added.
        job: Its open change is a move.
        now: The time of the decision.
    """
    change, successor = job.change, job.successor
    assert change is not None, job
    if successor is not None and len(job.live) < len(job.members):
        undo(tx, job, now, Reason.NOT_TAKEN, "a part of it has ended")
    elif isinstance(change.change, Move) and successor is not None:
        _sent(tx, job, change, successor, now)
    elif None in change.answers.values():
        pass
    elif successor is not None:
        _stood(tx, job, change, successor, now)
    elif change.undoing:
        change_ends.close(tx, job, Result.UNDONE, Reason.NOT_TAKEN, now, detail=change.detail)
    else:
        _stays(tx, job, change, now)


def _stood(
    tx: Transaction, job: JobState, change: OpenChange, successor: Successor, now: Instant
) -> None:
    """Have a gang send its state once all of it stands after one mini-batch; else try a later."""
    refused = [name for name, answer in change.answers.items() if _refused(answer)]
    took = tuple(name for name in change.answers if name not in refused)
    frozen = [
        name
        for name, answer in change.answers.items()
        if answer is not None and answer.manner is Manner.FROZEN
    ]
    if frozen:
        # Wherever it is: what it has in its hands is not its state.
        text = f"{frozen[0]}: it came to no boundary in time"
        undo(tx, job, now, Reason.NOT_TAKEN, text)
    elif not refused:
        _send(tx, job, successor, now)
    elif took:
        _tell(tx, job, Resume(), now, took, number=change.round, undoing=True)
    else:
        again(tx, job, now, _why(change, refused[0]))


def again(tx: Transaction, job: JobState, now: Instant, detail: str) -> None:
    """Name a later mini-batch to a gang that runs everywhere, or give the move up.

    Args:
        tx: Facts and commands are added.
        job: It is to move.
        now: The time of the decision.
        detail: Which rank was past the step, in words.
    """
    change = job.change
    assert change is not None, job
    later = rounds.later(change)
    if job.successor is None:
        change_ends.close(tx, job, Result.UNDONE, Reason.NOT_TAKEN, now, detail=detail)
    elif later is None or len(job.live) < len(job.members):
        outbox.drop(tx, job, now, Reason.NOT_TAKEN, detail)
        change_ends.close(tx, job, Result.UNDONE, Reason.NOT_TAKEN, now, detail=detail)
    else:
        _tell(tx, job, Suspend(step=later), now, number=change.round + 1)


def _sent(
    tx: Transaction, job: JobState, change: OpenChange, successor: Successor, now: Instant
) -> None:
    """Have the successor be the job once the source has sent everything and that has it."""
    refused = next((name for name, one in change.answers.items() if _refused(one)), None)
    if refused is not None:
        undo(tx, job, now, Reason.NOT_TAKEN, _why(change, refused))
        return
    sent = bool(change.answers) and None not in change.answers.values()
    if not sent or len(successor.loaded) < len(successor.members):
        return
    source, step, released = job.attempt, min(successor.loaded.values()), job.released
    left = list(job.live)
    tx.record(
        JobMoved(
            job=job.job,
            attempt=successor.attempt,
            source=source,
            at=now,
            order=tx.state.order + 1,
            step=step,
            trace=job.trace,
        )
    )
    # A job that its tenant suspended stands on; one that only made room has room now.
    stands = job.state is State.SUSPENDED and job.held in ASKS_BACK
    _tell(tx, job, Suspend(release=released) if stands else Resume(), now)
    for name in left:
        outbox.command(tx, name, job.job, source, now)
    tx.soft.cancel_timer(timers.TimeLimit(job.job, source))
    tx.soft.cancel_timer(timers.CheckpointTime(job.job, source))
    warning.moved(tx, job, source)
    tx.soft.cancel_timer(timers.SuccessorDeadline(job.job, job.attempt))
    if job.state is State.RUNNING:
        outbox.limit(tx, job, now)


def _stays(tx: Transaction, job: JobState, change: OpenChange, now: Instant) -> None:
    """End the move of a suspended job: it stands where it is now, with its GPUs or without."""
    told = [answer for answer in change.answers.values() if answer is not None]
    wanted = isinstance(change.change, Suspend) and change.change.release
    released = wanted and all(answer.released for answer in told)
    change_ends.close(tx, job, Result.DONE, change.why, now, released=released)


def undo(tx: Transaction, job: JobState, now: Instant, why: Reason, detail: str = "") -> None:
    """Give a successor up; the source goes on, or stands on if it was suspended before.

    Args:
        tx: Facts and commands are added.
        job: It has an open change and a successor.
        now: The time of the decision.
        why: Why the successor is given up.
        detail: What is the matter, in words; may be empty.
    """
    change = job.change
    assert change is not None, job
    back = tuple(name for name in _standing(job, change) if name in job.live)
    outbox.drop(tx, job, now, why, detail)
    if back:
        change_back = Resume() if job.state is State.RUNNING else Suspend()
        _tell(tx, job, change_back, now, back, undoing=True, detail=detail)
    else:
        change_ends.close(tx, job, Result.UNDONE, why, now, detail=detail)


def _standing(job: JobState, change: OpenChange) -> list[str]:
    """Return the nodes that have to be told, for their part to be as it was before the move."""
    answers = change.answers
    if isinstance(change.change, Resume):
        return [name for name, answer in answers.items() if answer is None or _refused(answer)]
    if isinstance(change.change, Move) and len(job.live) > 1 and job.state is State.RUNNING:
        return list(answers)  # They stood before they were told to send.
    return [name for name, answer in answers.items() if not _refused(answer)]


def _refused(answer: MemberAnswered | None) -> bool:
    """Return whether a node did not do what it was to do."""
    return answer is not None and answer.manner is Manner.UNCHANGED


def _why(change: OpenChange, name: str) -> str:
    """Return what a node said against it."""
    answer = change.answers[name]
    return f"{name}: {answer.detail}".rstrip(": ") if answer is not None else name


def exited(tx: Transaction, job: JobState, event: MemberExited, now: Instant) -> None:
    """Give a successor up of which a part has ended."""
    successor = job.successor
    if successor is None or event.attempt != successor.attempt:
        return
    member = successor.members.get(event.node)
    if member is None or member.identity != event.identity:
        return
    detail = f"the successor on {event.node}: {event.detail or event.outcome}"
    undo(tx, job, now, Reason.NOT_TAKEN, detail)
    tx.record(GhostGone(job=job.job, attempt=event.attempt, node=event.node))
