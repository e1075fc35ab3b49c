"""What comes from outside: each message becomes facts, and what has to be done at once."""

from __future__ import annotations

from itertools import islice

from skep.ids import job_sequence
from skep.ledger.job_state import JobState, Part, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import deferring, ends, outbox, slow_nodes, timers, windows
from skep.machines.allocator.changes import migration, node_answers, requests, resizing_across_nodes
from skep.machines.allocator.end_facts import ended
from skep.machines.allocator.ends import part_gone
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.transaction import Transaction
from skep.policy.check import cluster_problems
from skep.units import Instant
from skep.wire.admin import Admin, DrainNode, QuarantineGpu, SetVcs
from skep.wire.array import ArrayAdmitted, ArrayOver, TasksRetried
from skep.wire.changes import ChangeAsked
from skep.wire.codec import ServiceFact
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    ClusterRefused,
    End,
    GhostGone,
    JobQueued,
    JobRan,
    MemberRan,
    NodeClean,
    NodeDrained,
    ReservationDropped,
)
from skep.wire.node import (
    MemberChanged,
    MemberExited,
    MemberKnown,
    MemberLoaded,
    MemberReady,
    MemberStarted,
    NodeCleared,
)
from skep.wire.reasons import Reason
from skep.wire.windows import CancelWindow, ReserveNodes

PROBLEMS_MAX = 100
"""Problems of one cluster file that are recorded: more would be the same mistake again."""


def admitted(tx: Transaction, fact: ServiceFact, now: Instant) -> None:
    """Take in a fact of admission: a job, the wish to cancel one, or to change one."""
    match fact:
        case Admitted():
            if (job_sequence(fact.job) or 0) > tx.state.last_queued:
                tx.record(
                    JobQueued(
                        job=fact.job,
                        spec=fact.spec,
                        trace=fact.trace,
                        submitted_at=fact.submitted_at,
                        owner=fact.owner,
                    )
                )
                deferring.queued(tx, tx.state.jobs[fact.job], now)
        case CancelAsked():
            _cancel(tx, fact.job, now)
        case ChangeAsked():
            requests.ask(tx, fact, now)
        case ArrayAdmitted() | TasksRetried() | ArrayOver():
            deferring.array(tx, fact, now)
        case _:
            pass  # Refusals, keys and admission's own views are not placement.


def _cancel(tx: Transaction, name: str, now: Instant) -> None:
    """Cancel a job: stop it if it has GPUs, else it ends at once."""
    job = tx.state.jobs.get(name)
    if job is None or job.cancelled:
        return
    tx.record(CancelAsked(job=name))
    if job.state is State.RESERVED:
        tx.record(ReservationDropped(job=name, attempt=job.following, why=Reason.CANCELLED))
    if job.state in (State.QUEUED, State.DEFERRED):
        tx.record(ended(job, End.CANCELLED, Reason.CANCELLED, now, ""))
    elif job.state is not State.STOPPING:
        outbox.stop(tx, job, Reason.CANCELLED, now)


def operator(tx: Transaction, event: Admin, now: Instant) -> None:
    """Do what an operator asks for: set the cluster, drain a node, quarantine a GPU, a window.

    Args:
        tx: Facts are added. A cluster that cannot be is refused, with what is wrong.
        event: What an operator asks for.
        now: The time of the decision.
    """
    match event:
        case SetVcs():
            problems = tuple(islice(cluster_problems(event.cluster), PROBLEMS_MAX))
            if problems:
                tx.record(ClusterRefused(problems=problems))
            else:
                job_cells.resolve(tx, event.cluster, may_refuse=True)
        case DrainNode():
            node = tx.state.nodes.get(event.node)
            if node is not None and node.drained != event.drain:
                tx.record(NodeDrained(node=event.node, drain=event.drain))
        case QuarantineGpu():
            if not event.quarantine:
                slow_nodes.acquit(tx, event.node, event.device, now)
            job_cells.quarantine(tx, event)
        case ReserveNodes() | CancelWindow():
            windows.asked(tx, event, now)


def member_started(tx: Transaction, event: MemberStarted, now: Instant) -> None:
    """Take in that a part of an attempt runs."""
    job = tx.state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt:
        return
    if job.parts.get(event.node) is not Part.BOUND or not _speaks(tx.state, job, event):
        return
    # The node's clock may be wrong, and the time limit counts from here.
    at = min(max(event.at, job.bound_at), now)
    tx.record(MemberRan(job=job.job, attempt=job.attempt, node=event.node, at=at))
    if (job.job, job.attempt) not in tx.state.nodes[event.node].open_orders:
        tx.soft.cancel_timer(timers.Resend(event.node, job.job, job.attempt))
    if job.state is State.BOUND and Part.BOUND not in job.parts.values():
        tx.record(JobRan(job=job.job, attempt=job.attempt, at=at, trace=job.trace))
        outbox.limit(tx, job, now)
        requests.follow(tx, job, now)
    elif job.state is State.RUNNING:
        outbox.command(tx, event.node, job.job, job.attempt, now)


def member_exited(tx: Transaction, event: MemberExited, now: Instant) -> None:
    """Take in that a part of an attempt is over, or what was left of an earlier one."""
    node, attempt = tx.state.nodes.get(event.node), (event.job, event.attempt)
    if node is not None and node.has_orphan(attempt, event.identity, event.order):
        tx.record(GhostGone(job=event.job, attempt=event.attempt, node=event.node))
        return
    job = tx.state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt:
        if job is not None:
            migration.exited(tx, job, event, now)
            requests.follow(tx, job, now)
    elif job.parts.get(event.node, Part.GONE) is Part.GONE or not _speaks(tx.state, job, event):
        pass  # Said again, or of an earlier part.
    elif resizing_across_nodes.exited(tx, job, event, now):
        node_answers.after_change(tx, job, now)
    else:
        tx.record(part_gone(job, event))
        tx.soft.cancel_timer(timers.Resend(event.node, job.job, job.attempt))
        ends.settle(tx, job, now)


def member_told(
    tx: Transaction, event: MemberKnown | MemberReady | MemberLoaded | MemberChanged, now: Instant
) -> None:
    """Take in what a node says about its part of an attempt.

    If it was the last part, and its ranks were to leave, the attempt is over: the others have ended
    while it had not answered yet.
    """
    node_answers.heard(tx, event, now)
    job = tx.state.jobs.get(event.job)
    if job is not None and job.attempt == event.attempt and job.parts and job.over:
        ends.settle(tx, job, now)


def _speaks(state: ClusterState, job: JobState, event: MemberStarted | MemberExited) -> bool:
    """Return whether the agent that speaks has the part, and means the one it has now."""
    mine = job.members[event.node].identity == event.identity
    return mine and state.nodes[event.node].means((event.job, event.attempt), event.order)


def node_cleared(tx: Transaction, event: NodeCleared) -> None:
    """Take in that nothing of an earlier owner is left on a node."""
    node = tx.state.nodes.get(event.node)
    if node is None or event.identity != node.joined.identity:
        return
    if 0 < node.clearing <= event.order:
        tx.record(NodeClean(node=event.node))
