"""What an attempt of a job is called, asks for and holds, in the cells and on nodes.

An attempt is held in the cells under a name of its own (`j3.2`): a lost node may still run an
attempt while the next one is bound elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from skep import ids
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request, Spot
from skep.cells.nodes import Holding
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.wire.facts import CellsReserved, JobBound, Member
from skep.wire.moves import SuccessorBound


def request(job: JobState, attempt: int, *, guaranteed: bool, workers: int = 0) -> Request:
    """Return what an attempt of a job asks of the cells, for as many workers as it has now.

    Args:
        job: Not changed.
        attempt: The number of the attempt, which may be the next one.
        guaranteed: Whether it asks for cells of its VC, or for idle GPUs.
        workers: With how many workers the attempt is to begin; 0: as many as it has now.
    """
    name = ids.attempt_id(job.job, attempt)
    return Request.of(job.spec, name, guaranteed=guaranteed, workers=workers or job.resized)


def ranks_of(members: Iterable[Member]) -> int:
    """Return how many ranks the parts of a gang have together."""
    return sum(len(member.devices) for member in members)


def hold(
    state: ClusterState, job: JobState, fact: JobBound | CellsReserved, *, claims: bool
) -> CellHold:
    """Return what a recorded placement holds or claims.

    Args:
        state: Read for the chain of the placement.
        job: The job that is placed.
        fact: The record. Without levels it is opportunistic.
        claims: Whether others still use the GPUs (CellsReserved).

    Raises:
        KeyError: The state has no such chain.
    """
    asked = request(
        job, fact.attempt, guaranteed=not job.spec.opportunistic, workers=ranks_of(fact.members)
    )
    made = CellHold(asked, placement(state, fact.chain, fact.members), claims=claims)
    if not made.spots[0].level:
        made.priority = OPPORTUNISTIC
    return made


def placement(state: ClusterState, chain: str, members: Iterable[Member]) -> Placement:
    """Return the GPUs of a gang, which may be mixed, in the order of ranks.

    Args:
        state: Read for the shapes of the chains.
        chain: The chain of the parts that name none.
        members: The parts of the gang.
    """
    parts: dict[str, list[Member]] = {}
    for member in sorted(members, key=_first):
        parts.setdefault(member.chain or chain, []).append(member)
    (first, mine), *further = parts.items()
    return Placement(
        first,
        spots(state, first, mine),
        further=tuple((name, spots(state, name, each)) for name, each in further),
    )


def _first(member: Member) -> int:
    return member.first_rank


def spots(state: ClusterState, chain: str, members: Iterable[Member]) -> tuple[Spot, ...]:
    """Return the GPUs of a gang as leaves of a chain, in the order of ranks.

    Args:
        state: Read for the shape of the chain.
        chain: Its name.
        members: The parts of the gang. GPUs that the chain does not have are left out.

    Returns:
        One spot for each rank: its leaves, and the level of the cell of its VC around them (0:
        none).
    """
    shape, made = state.cells.chains[chain].topology, {}
    for member in members:
        levels = member.levels or (0,) * len(member.devices)
        for rank, devices, level in zip(member.numbers, member.devices, levels, strict=True):
            leaves = [shape.leaf(member.node, device) for device in devices]
            made[rank] = Spot(tuple(leaf for leaf in leaves if leaf is not None), level)
    return tuple(made[rank] for rank in sorted(made))


def holding(job: JobState, member: Member, port: int) -> Holding:
    """Return what a part of an attempt holds on its node.

    Args:
        job: Read for the CPUs and bytes of memory of each worker.
        member: The part.
        port: The port on which the gang meets, if its first rank is here; else 0.
    """
    workers, wanted = len(member.devices), job.spec.resources
    return Holding(
        member=member, cpus=wanted.cpus * workers, port=port, memory=int(wanted.memory) * workers
    )


def take(state: ClusterState, job: JobState, fact: JobBound | SuccessorBound) -> None:
    """Have an attempt hold its parts of nodes, each of which owes an answer to its order."""
    attempt = fact.job, fact.attempt
    for member in fact.members:
        port = fact.master_port if member.first_rank == 0 else 0
        node = state.nodes[member.node]
        node.take(attempt, holding(job, member, port))
        node.open_orders[attempt] = fact.order
