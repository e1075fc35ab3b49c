"""Where a suspended attempt that gave its GPUs back goes on, and what follows from the facts of it.

    released --GpusRegained--> has GPUs again, borrowed --JobChanging(Resume)--> running
        ^                            |
        +---- JobChanged(undone) ----+   no rank could go on with other GPUs: it has none again

Its processes are on their nodes, so it returns there: to the very same GPUs, or, where its ranks
can `rebind`, to any idle ones of each node. A rank that then cannot after all still stands, its
state in the host's memory, so nothing is lost: from then on the attempt waits for its own GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skep import ids
from skep.cells.decide import placement
from skep.cells.decide.cover import find_cover
from skep.cells.decide.rebind import rebind
from skep.cells.holds import CellHold
from skep.ledger import attempts
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.transaction import Transaction
from skep.wire.commands import RankPlan
from skep.wire.facts import Member

ABILITY = "rebind"
"""What every rank must have said it can, for its attempt to return to other GPUs."""


class Back(NamedTuple):
    """GPUs to return to: of this chain; `members` are empty where they are the very same."""

    chain: str
    members: tuple[Member, ...] = ()


def find(state: ClusterState, job: JobState) -> Back | None:
    """Return which idle GPUs a suspended attempt can return to, or None.

    Args:
        state: Its cells are read.
        job: It is suspended, without GPUs.
    """
    same = job_cells.home(state, job)
    if same is not None:
        return Back(same)
    return elsewhere(state, job) if moves(job) else None


def lent(state: ClusterState, job: JobState) -> list[ids.AttemptId]:
    """Return the opportunistic attempts on GPUs that a suspended job may have back.

    Those are GPUs that its VC's cells can cover: what it had, or else other GPUs of its node if it
    can go on with those.

    Args:
        state: Its cells are read.
        job: It is suspended, without GPUs.

    Returns:
        The attempts that would have to leave; empty: none, or its VC cannot cover such GPUs.
    """
    if not state.cells.opportunistic:
        return []
    return _on_its_own(state, job) or _on_its_node(state, job)


def _on_its_node(state: ClusterState, job: JobState) -> list[ids.AttemptId]:
    """Return the attempts that would leave its one node for it to go on there with any GPUs."""
    if len(job.live) != 1 or not moves(job) or job.spec.opportunistic:
        return []
    (node,) = job.live
    asked = attempts.request(job, job.following, guaranteed=True)
    asked = asked._replace(priority=0, mixed=False)
    where = placement.find_placement(
        state.cells, asked, limit=lambda name: job.size if name == node else 0
    )
    return list(where.victims) if where is not None else []


def _on_its_own(state: ClusterState, job: JobState) -> list[ids.AttemptId]:
    """Return the attempts that use the very GPUs it had, if its VC can cover them."""
    live = [job.members[name] for name in job.live]
    chains: dict[str, None] = {}
    for member in live:
        for device in (device for devices in member.devices for device in devices):
            found = state.cells.find(member.node, device)
            if found is None:
                return []
            chain, leaf = state.cells.chains[found[0]], found[1]
            user = chain.user[leaf]
            if leaf in chain.claim or leaf in chain.bad or (user is not None and user.guaranteed):
                return []
            chains[job_cells.leading_chain(job, member, found[0])] = None
    if len(chains) != 1 or "" in chains:
        return []
    asked = attempts.request(job, job.attempt, guaranteed=not job.spec.opportunistic)
    where = attempts.placement(state, next(iter(chains)), live)
    if not asked.guaranteed or find_cover(state.cells, CellHold(asked, where)) is None:
        return []
    return state.cells.users(where.portions)


def waits_for(tx: Transaction, job: JobState) -> str:
    """Return a suspended job that is to go on with what this one borrows.

    Returns:
        The name of the job; empty: there is none.
    """
    holder = ids.attempt_id(job.job, job.attempt)
    for name in tx.soft.returning:
        other = tx.state.jobs.get(name)
        if other is not None and other.away and holder in lent(tx.state, other):
            return name
    for planned in tx.soft.planned.values():
        moves = tx.state.jobs.get(planned.leaving.get(holder, ""))
        if moves is not None and moves.away:
            return moves.job
        for name in planned.returning:
            other = tx.state.jobs.get(name)
            if other is not None and other.away and holder in lent(tx.state, other):
                return name
    return ""


def kept(tx: Transaction) -> dict[str, None]:
    """Return the nodes that others leave for suspended jobs, or for jobs of a VC with a policy.

    Nothing claims those GPUs one by one, so no other job may borrow any there until it is over.
    """
    found: dict[str, None] = {}
    for name in tx.soft.returning:
        job = tx.state.jobs.get(name)
        found |= dict.fromkeys(job.live if job is not None and job.away else ())
    for planned in tx.soft.planned.values():
        found |= planned.awaited
        for name in planned.returning:
            job = tx.state.jobs.get(name)
            found |= dict.fromkeys(job.live if job is not None else ())
    return found


def moves(job: JobState) -> bool:
    """Return whether an attempt can return to other GPUs of its nodes than it had."""
    return ABILITY in job.can and not job.tied


def elsewhere(state: ClusterState, job: JobState) -> Back | None:
    """Return idle GPUs of the nodes on which an attempt is, in the chain in which it was.

    Args:
        state: Its cells are read.
        job: It is suspended, without GPUs.

    Returns:
        The GPUs; None: too few are idle, or the chain is no more.
    """
    chain = state.cells.chains.get(job.chain)
    if chain is None:
        return None  # Other cells were set since: only what it had is known to be of its kind.
    shape, live = chain.topology, [job.members[name] for name in job.live]
    busy = chain.forest.busy[shape.node_level]
    for member in live:
        index = shape.node_index.get(member.node)
        if index is None or shape.node_size - busy[index] < sum(map(len, member.devices)):
            return None
    parts: dict[int, list[tuple[int, ...]]] = {}
    for member in live:
        leaves = [
            tuple(shape.leaf(member.node, device) for device in devices)
            for devices in member.devices
        ]
        known = [tuple(leaf for leaf in each if leaf is not None) for each in leaves]
        if known != leaves:
            return None
        parts[shape.node_index[member.node]] = known
    asked = attempts.request(job, job.attempt, guaranteed=not job.spec.opportunistic)
    found = rebind(chain, asked, parts)
    if found is None:
        return None
    made = tuple(
        msgspec.structs.replace(
            member,
            levels=(),
            devices=tuple(
                tuple(shape.device(leaf) for leaf in leaves)
                for leaves in found[shape.node_index[member.node]]
            ),
        )
        for member in live
    )
    return Back(job.chain, made)


def needs(job: JobState) -> str:
    """Return what an attempt needs to return, in words: GPUs, or so many of its nodes."""
    if not moves(job):
        return job_cells.gpus_of(job)
    counts = {name: sum(map(len, job.members[name].devices)) for name in job.live}
    return " ".join(f"{count} GPUs of {name}" for name, count in counts.items())


def plans(member: Member) -> tuple[RankPlan, ...]:
    """Return what each rank of a part has, as its node is told."""
    pairs = zip(member.numbers, member.devices, strict=True)
    return tuple(
        RankPlan(rank=rank, local_rank=i, devices=devices)
        for i, (rank, devices) in enumerate(pairs)
    )
