"""Moving a running attempt: a successor makes everything ready while the job trains on.

    bind the successor elsewhere; once it listens, Move: the source stops at a boundary and sends
    its state; once all of it has arrived, JobMoved; then the successor is resumed, the source
    stopped. Whatever fails before JobMoved, the successor is stopped and the source goes on.

The job pauses only from Move on, and every hop follows at once from the event before it. Before
JobMoved nobody resumes the successor, after it nobody resumes the source: as the two are different
attempts, a late command for one is never taken by the other (Gandiva, section 4.1).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from skep.cells.holds import Placement
from skep.machines.allocator import cellwork, changes, dispatch
from skep.machines.allocator.jobs import JobState, Successor
from skep.units import Instant, after, seconds
from skep.wire.changes import Goal, JobChanging, MemberAnswered, MemberLearned, Result
from skep.wire.commands import Move, Resume, Target
from skep.wire.facts import GhostGone
from skep.wire.moves import (
    JobMoved,
    SuccessorBound,
    SuccessorLoaded,
    SuccessorReady,
)
from skep.wire.node import Manner, MemberExited, MemberKnown, MemberLoaded, MemberReady
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

MOVE_WITHIN = seconds(180)
"""What source and successor get for the state: three times what an agent gives its ranks."""


def begin(machine: AllocatorMachine, job: JobState, to: str, now: Instant) -> tuple[Reason, str]:
    """Begin to move an attempt, to a node if one is named; return why not, in an empty text if so.

    The open change begins with nobody told.
    """
    where = _place(machine, job, to)
    if where is None:
        return Reason.NO_ROOM, f"on {to}" if to else "on other nodes"
    made = cellwork.members(machine, where)
    port = machine.nodes[made[0].node].port()
    if port is None or len(made) > GANG_NODES_MAX:
        return Reason.WAITS_FOR_PORT, made[0].node
    assert job.asked is not None, job
    order, attempt = machine.order + 1, job.following
    text = f"{job.job}.{attempt}.{order}"
    secret = hmac.new(machine.key, text.encode(), hashlib.sha256).hexdigest()
    machine.record(SuccessorBound(job=job.job, attempt=attempt, order=order, members=made,
                                  master_port=port, at=now, chain=where.chain, secret=secret,
                                  trace=job.trace))  # fmt: skip
    machine.record(JobChanging(job=job.job, attempt=job.attempt, order=machine.order + 1,
                               goal=Goal.MIGRATE, change=Move(targets=()), nodes=(),
                               why=Reason.REQUESTED, at=now, ask=job.asked.number,
                               trace=job.trace))  # fmt: skip
    for member in made:
        dispatch.command(machine, member.node, job.job, attempt, now)
    machine.soft.remind(after(now, dispatch.READY_WITHIN), ("", job.job, attempt))
    return Reason.REQUESTED, ""


def _place(machine: AllocatorMachine, job: JobState, to: str) -> Placement | None:
    """Return idle GPUs elsewhere: of the VC's cells if there are, else borrowed for now."""
    wanted = job.spec.resources

    def limit(name: str) -> int:
        node = machine.nodes.get(name)
        if node is None or name in job.members or (to and name != to):
            return 0
        return node.workers(wanted)

    for guaranteed in (True, False):
        if guaranteed and job.spec.opportunistic:
            continue
        asked = cellwork.request(job, job.following, guaranteed=guaranteed)
        where = machine.cells.place(asked, limit=limit)
        if where is not None and not (where.victims or where.cancels or where.demoted):
            return where
    return None


# --- what successors say -----------------------------------------------------------------------


def heard(
    machine: AllocatorMachine,
    job: JobState,
    event: MemberKnown | MemberReady | MemberLoaded,
    now: Instant,
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
            learned = MemberLearned(job=name, attempt=attempt, node=node, tier=event.tier,
                                    can=event.can)  # fmt: skip
            if successor.learned.get(node) != learned:
                machine.record(learned)
        case MemberReady() if node not in successor.doors:
            machine.record(SuccessorReady(job=name, attempt=attempt, node=node, doors=event.doors))
            if len(successor.doors) == len(successor.members):
                _move(machine, job, successor, now)
        case MemberLoaded() if node not in successor.loaded:
            machine.record(SuccessorLoaded(job=name, attempt=attempt, node=node, step=event.step))
            conclude(machine, job, now)
        case _:
            pass  # Said again.


def _move(machine: AllocatorMachine, job: JobState, successor: Successor, now: Instant) -> None:
    """Have the source send its state."""
    targets = tuple(Target(rank=door.rank, host=door.host, port=door.port, token=successor.secret)
                    for doors in successor.doors.values() for door in doors)  # fmt: skip
    _tell(machine, job, Move(targets=targets), now)
    machine.soft.remind(after(now, MOVE_WITHIN), ("", job.job, successor.attempt))


def _tell(
    machine: AllocatorMachine, job: JobState, change: Move | Resume, now: Instant,
    nodes: tuple[str, ...] | None = None, *, undoing: bool = False, detail: str = "",
) -> None:  # fmt: skip
    told = tuple(job.live) if nodes is None else nodes
    machine.record(JobChanging(job=job.job, attempt=job.attempt, order=machine.order + 1,
                               goal=Goal.MIGRATE, change=change, nodes=told, detail=detail,
                               why=Reason.REQUESTED, at=now, undoing=undoing,
                               trace=job.trace))  # fmt: skip
    for name in told:
        dispatch.command(machine, name, job.job, job.attempt, now)


def conclude(machine: AllocatorMachine, job: JobState, now: Instant) -> None:
    """Go on once the source has sent everything and the successor has it; or undo the move."""
    change, successor = job.change, job.successor
    if change is None or successor is None or not isinstance(change.change, Move):
        return
    answers = change.answers
    refused = [name for name, one in answers.items() if _refused(one)]
    if refused:
        first = answers[refused[0]]
        assert first is not None
        undo(machine, job, now, Reason.NOT_TAKEN, f"{refused[0]}: {first.detail}".rstrip(": "))
        return
    sent = bool(answers) and None not in answers.values()
    if not sent or len(successor.loaded) < len(successor.members):
        return
    source, step = job.attempt, min(successor.loaded.values())
    left = list(job.live)
    machine.record(JobMoved(job=job.job, attempt=successor.attempt, source=source, at=now,
                            order=machine.order + 1, step=step, trace=job.trace))  # fmt: skip
    _tell(machine, job, Resume(), now)
    for name in left:
        dispatch.command(machine, name, job.job, source, now)
    machine.soft.call_off(("", job.job, source))
    machine.soft.call_off(("", job.job, job.attempt))
    dispatch.limit(machine, job, now)


def undo(
    machine: AllocatorMachine, job: JobState, now: Instant, why: Reason, detail: str = ""
) -> None:
    """Give a successor up; the source, which may have stopped to send its state, goes on."""
    change = job.change
    assert change is not None, job
    dispatch.drop(machine, job, now, why, detail)
    stood = tuple(name for name in job.live
                  if name in change.answers and not _refused(change.answers[name]))  # fmt: skip
    if stood:
        _tell(machine, job, Resume(), now, stood, undoing=True, detail=detail)
    else:
        changes.close(machine, job, Result.UNDONE, why, now, detail=detail)


def _refused(answer: MemberAnswered | None) -> bool:
    return answer is not None and answer.manner is Manner.UNCHANGED


def exited(machine: AllocatorMachine, job: JobState, event: MemberExited, now: Instant) -> None:
    """Give a successor up of which a part has ended."""
    successor = job.successor
    if successor is None or event.attempt != successor.attempt:
        return
    member = successor.members.get(event.node)
    if member is None or member.identity != event.identity:
        return
    detail = f"the successor on {event.node}: {event.detail or event.outcome}"
    undo(machine, job, now, Reason.NOT_TAKEN, detail)
    machine.record(GhostGone(job=job.job, attempt=event.attempt, node=event.node))
