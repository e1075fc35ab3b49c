"""What facts about cells, and about the attempts in them, change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skep import ids
from skep.cells import rules1
from skep.cells.install import Carried, ReconfiguredJob, install_cluster
from skep.cells.state import Cells
from skep.ledger import attempts
from skep.ledger.state import ClusterState
from skep.wire.bearing import BadCellBound, BadCellReturned, RulesRaised, SetLed
from skep.wire.cluster import Cluster
from skep.wire.facts import (
    CellsReserved,
    CellsSet,
    EpochBegan,
    JobDemoted,
    JobPromoted,
    ReservationDropped,
)
from skep.wire.reasons import Reason


def install(state: ClusterState, fact: CellsSet) -> tuple[Cells, list[ReconfiguredJob]]:
    """Return the cells that were set, with the same jobs.

    Args:
        state: Read: its cells and the version of the rules.
        fact: What was set. By rules 2 it says what becomes of each hold; by rules 1 that is
            derived.

    Returns:
        The new cells, and what that means for each job that has them otherwise.
    """
    if state.rules < 2:
        return rules1.reconfigure(state.cells, fact.cluster)
    return install_cluster(state.cells, fact.cluster, tuple(carried_of(fact)), fact.bad_cells)


def carried_of(fact: CellsSet) -> Iterator[Carried]:
    """Yield what becomes of each hold that a fact lists, as the cells take it."""
    for each in fact.carried:
        name = ids.attempt_id(each.job, each.attempt)
        leads = ids.attempt_id(each.leads, each.leads_attempt) if each.leads else name
        yield Carried(name, each.chain, each.levels, each.fate, leads, each.chains)


def apply_bearing(
    state: ClusterState, fact: BadCellBound | BadCellReturned | SetLed | RulesRaised
) -> None:
    """Take over which VC bears a bad cell, or which attempt leads a set."""
    match fact:
        case BadCellBound():
            state.cells.bind_bad_cell(fact.cell)
        case BadCellReturned():
            state.cells.unbind_bad_cell(fact.cell)
        case SetLed():
            state.cells.set_leader(
                ids.attempt_id(fact.before, fact.attempt_before),
                ids.attempt_id(fact.job, fact.attempt),
            )
            for name in (fact.before, fact.job):
                if name in state.jobs:
                    state.note_borrowed(state.jobs[name])
        case RulesRaised():
            state.unstated = False


def began(state: ClusterState, fact: EpochBegan) -> None:
    """Take over that an epoch began, and by which rules its facts are applied."""
    raised = state.rules < fact.rules
    state.unstated = state.unstated or (raised and state.epoch > 0)
    state.epoch = fact.epoch
    follow_rules(state, fact.rules)


def follow_rules(state: ClusterState, rules: int) -> None:
    """Have facts be applied by a version of the rules from here on.

    Args:
        state: Changed.
        rules: The version, as `EpochBegan` and `RulesRaised` name it.
    """
    state.rules = rules
    state.cells.choosers = rules1.RULES1 if rules < 2 else None


def apply_hold(
    state: ClusterState, fact: CellsReserved | ReservationDropped | JobDemoted | JobPromoted
) -> None:
    """Take over what an attempt claims, and which cells of its VC it has or loses."""
    name, job = ids.attempt_id(fact.job, fact.attempt), state.jobs.get(fact.job)
    state.delta.freed += not isinstance(fact, CellsReserved)  # A claim frees nothing.
    if isinstance(fact, JobDemoted):
        state.cells.demote(name)
        if job is not None:  # Else it has ended, but a lost node may still run it.
            state.note_borrowed(job, fact.at)
        return
    assert job is not None, fact
    match fact:
        case CellsReserved():
            state.queue(job).remove(job.entry)
            job.move("CellsReserved")
            job.ranked = fact.ranked
            state.cells.enter(attempts.hold(state, job, fact, claims=True))
            state.reserved[job.job] = job
            state.delta.claims += (job.job,)
        case ReservationDropped():
            job.move("ReservationDropped")
            # A claim lost to another job: its placement settles which VC bears bad hardware.
            state.cells.release(name, settle=fact.why is not Reason.PREEMPTED)
            del state.reserved[job.job]
            state.queue(job).add(job.entry)
        case JobPromoted():
            state.cells.promote(name, fact.levels)
            state.note_borrowed(job, fact.at)


def uncovered(state: ClusterState) -> list[tuple[ids.AttemptId, str, int]]:
    """Return the GPUs that attempts use and the cells do not know of: attempt, node, device.

    Returns:
        For each such GPU the attempt, the name of its node, and its index there.
    """
    return [
        (name, node.joined.node, device)
        for node in state.nodes.values()
        for attempt, held in node.holdings.items()
        for device in held.devices
        if not state.cells.covers(name := ids.attempt_id(*attempt), node.joined.node, device)
    ]


def health(state: ClusterState, names: Sequence[str]) -> None:
    """Set in the cells which GPUs of some nodes are bad.

    Args:
        state: Changed.
        names: The nodes. All GPUs of a node that never joined are bad.
    """
    for name in names:
        node = state.nodes.get(name)
        state.cells.set_health(name, node.bad if node is not None else _absent)


def _absent(_device: int, _kind: str) -> bool:
    return True


def node_names(cluster: Cluster) -> list[str]:
    """Return every node of a cluster once."""
    return list(
        dict.fromkeys(cell.node for chain in cluster.chains.values() for cell in chain.nodes)
    )
