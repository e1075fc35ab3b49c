"""Copies of the state of jobs that have ended are removed from the memory of nodes.

    a node, every second: Heartbeat(copies) --> DropCopies, until it names the job no more

Nothing of it is kept: a node that was lost, or an allocator that takes over, begins with the next
heartbeat. A job that waits for its next attempt is to go on from its copies.
"""

from __future__ import annotations

from skep.ids import job_sequence
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Send
from skep.wire import subjects
from skep.wire.commands import DropCopies
from skep.wire.reports import Heartbeat


def heard(tx: Transaction, event: Heartbeat) -> None:
    """Have a node remove the copies of jobs that have ended.

    Args:
        tx: A command is added.
        event: What the node says. A job that is not known yet has not ended.
    """
    node = tx.state.nodes.get(event.node)
    if node is None or node.joined.identity != event.identity:
        return
    over = tuple(job for job in event.copies if _has_ended(tx, job))
    if over:
        epoch, identity = tx.state.epoch, event.identity
        command = DropCopies(epoch=epoch, node=event.node, identity=identity, jobs=over)
        tx.effects.append(Send(subjects.command(event.node), command))


def _has_ended(tx: Transaction, job: str) -> bool:
    sequence = job_sequence(job)
    known = sequence is not None and sequence <= tx.state.last_queued
    return known and job not in tx.state.jobs
