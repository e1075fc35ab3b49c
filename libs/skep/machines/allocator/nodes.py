"""Nodes that join, live, fall silent and come back."""

from __future__ import annotations

from skep.cells.nodes import NodeState
from skep.ledger.job_state import State
from skep.machines.allocator import ends, gpu_suspects, outbox, settings
from skep.machines.allocator.changes import migration
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Record, Send
from skep.units import Instant, after
from skep.wire import subjects
from skep.wire.commands import JoinAgain, RefuseNode, is_restored
from skep.wire.facts import GhostGone, MemberGone, NodeAdded, NodeBack, NodeLost
from skep.wire.node import JOIN_DELAY_MAX, TAKE_OVER_AFTER, NodeJoined, Outcome
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat

LOSS_FACTS_MAX = 1000
"""With so many facts a decision gives up no further node: one record has to hold them."""


# --- nodes -------------------------------------------------------------------------------------

assert settings.NODE_CHECK_EVERY * 3 <= TAKE_OVER_AFTER < settings.NODE_LOST_AFTER


def heartbeat(tx: Transaction, event: Heartbeat, now: Instant) -> None:
    """Note that a node lives; one that was lost must first confirm what it still holds."""
    node = tx.state.nodes.get(event.node)
    if node is None:
        return
    if node.joined.identity != event.identity:
        if _silent(tx, node, now):
            # Its join takes the name over. It may be on its way, or have come too early for that.
            _ask_to_join(tx, event)
        elif event.node in tx.soft.speaking:
            _refuse(tx, event.node, event.identity)
        return
    tx.soft.last_heard[event.node] = now
    tx.soft.speaking[event.node] = None
    if event.incarnation > node.joined.incarnation:
        # Its latest join came while another had the name, or has not come yet.
        _ask_to_join(tx, event)
    elif 0 < event.incarnation < node.joined.incarnation and not _taken_lately(tx, node, now):
        # The agent never said what is known of its node.
        _ask_to_join(tx, event)
    elif is_restored(tx.state.epoch, event.epoch):
        # The node has done what is not known here. It learns so by the epoch of this command.
        _ask_to_join(tx, event)
    if node.lost:
        _back(tx, event.node, now)
    elif event.trouble:
        gpu_suspects.troubled(tx, event)


def _ask_to_join(tx: Transaction, event: Heartbeat) -> None:
    """Ask an agent to join again, as it speaks for a node that is not known."""
    again = JoinAgain(epoch=tx.state.epoch, node=event.node, identity=event.identity)
    tx.effects.append(Send(subjects.command(event.node), again))


def joined(tx: Transaction, event: NodeJoined, now: Instant) -> None:
    """Take in a node, or refuse a second agent of its name while the first is alive.

    Args:
        tx: Facts and commands are added.
        event: What an agent says of its node.
        now: The time of the decision.
    """
    node = tx.state.nodes.get(event.node)
    replaced = node is not None and node.joined.identity != event.identity
    if node is not None and replaced:
        if not _silent(tx, node, now):
            if event.node in tx.soft.speaking:
                _refuse(tx, event.node, event.identity)
            return  # The one with the name may speak yet; if not, the newcomer is asked again.
        _replace(tx, node, now)
    elif (
        node is not None
        and event.incarnation < node.joined.incarnation
        and _taken_lately(tx, node, now)
    ):
        return  # Published by an earlier process of this agent, stored after a later one's.
    tx.soft.last_heard[event.node] = tx.soft.inventory_at[event.node] = now
    if tx.soft.check_at is None:
        tx.soft.check_at = after(now, tx.settings.node_check_every)
    if node is None or node.joined != event:
        tx.record(NodeAdded(joined=event, clear=tx.state.order if replaced else 0))
        job_cells.follow_join(tx, now)
    if node is not None and node.lost:
        _back(tx, event.node, now)
    elif node is not None:
        for attempt in list(node.holdings):
            outbox.command(tx, event.node, *attempt, now)
        outbox.clear(tx, event.node, now)


def _taken_lately(tx: Transaction, node: NodeState, now: Instant) -> bool:
    """Return whether a node's inventory is so new that an earlier join may still be on its way."""
    return now - tx.soft.inventory_at.setdefault(node.joined.node, now) <= JOIN_DELAY_MAX


def _silent(tx: Transaction, node: NodeState, now: Instant) -> bool:
    """Return whether nothing was heard of a node for so long that another may take its name."""
    heard = tx.soft.last_heard.get(node.joined.node, now)
    return node.lost or now - heard > TAKE_OVER_AFTER


def _replace(tx: Transaction, node: NodeState, now: Instant) -> None:
    """Give up everything on a node whose agent was replaced by one with another state folder.

    The newcomer has other processes and says what GPUs it has. If it had the name before, its old
    processes may still run: it gets no work until it has confirmed that they are gone.
    """
    name = node.joined.node
    if not node.lost:
        _lose(tx, name, now)
    tx.soft.speaking.pop(name, None)
    for job, attempt in list(node.ghosts):
        tx.record(GhostGone(job=job, attempt=attempt, node=name))


def _refuse(tx: Transaction, name: str, identity: str) -> None:
    """Send to an agent that another one has its name."""
    text = f"another agent named {name} is alive: give this one another name"
    refusal = RefuseNode(epoch=tx.state.epoch, node=name, identity=identity, text=text)
    tx.effects.append(Send(subjects.command(name), refusal))


def _back(tx: Transaction, name: str, now: Instant) -> None:
    """Take over that a node is back, and ask after what it may still run."""
    tx.record(NodeBack(node=name))
    for attempt in list(tx.state.nodes[name].ghosts):
        outbox.command(tx, name, *attempt, now)
    outbox.clear(tx, name, now)


def _look_for_lost_nodes(tx: Transaction, now: Instant) -> None:
    """Declare nodes lost that were silent for too long."""
    tx.soft.losing = False
    for name, node in tx.state.nodes.items():
        heard = tx.soft.last_heard.setdefault(name, now)
        if not node.lost and now - heard > tx.settings.node_lost_after:
            _lose(tx, name, now)
            # It follows from the facts alone, so it is the same if the log is decided again.
            if sum(isinstance(each, Record) for each in tx.effects) > LOSS_FACTS_MAX:
                tx.soft.losing, tx.soft.check_at = True, now
                return


def _lose(tx: Transaction, name: str, now: Instant) -> None:
    """Give up what runs on a node; its GPUs stay taken until it confirms that they are free."""
    tx.record(NodeLost(node=name))
    node = tx.state.nodes[name]
    for job_name, attempt in list(node.holdings):
        if (job_name, attempt) in node.ghosts:
            continue
        job = tx.state.jobs[job_name]
        if job.succeeds(attempt):
            migration.undo(tx, job, now, Reason.NOT_TAKEN, f"{name} was lost")
            continue
        if job.state is not State.STOPPING:
            outbox.stop(tx, job, Reason.NODE_LOST, now, name)
        tx.record(
            MemberGone(
                job=job_name,
                attempt=attempt,
                node=name,
                free=False,
                outcome=Outcome.UNKNOWN,
                detail="node lost",
            )
        )
        ends.settle(tx, job, now)
