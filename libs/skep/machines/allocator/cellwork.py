"""Between jobs and cells: what a job asks of them, and what facts about it mean for them.

An attempt is held in the cells under a name of its own (`j3.2`): a lost node may still run an
attempt while the next one is bound elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skep.cells.holds import OPPORTUNISTIC, Hold, Placement, Request, Spot
from skep.cells.keep import reconfigure
from skep.cells.propose import resolve as resolved
from skep.machines.allocator.jobs import JobState
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsReserved, CellsSet, JobBound, JobFate, Member

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def holder(job: str, attempt: int) -> str:
    """Return the name under which cells know an attempt."""
    return f"{job}.{attempt}"


def job_of(name: str) -> str:
    """Return the job whose attempt cells know under a name."""
    return name.rpartition(".")[0]


def request(job: JobState, attempt: int, *, guaranteed: bool) -> Request:
    """Return what an attempt of a job asks of the cells."""
    return Request.of(job.spec, holder(job.job, attempt), guaranteed=guaranteed)


def borrows(job: JobState) -> bool:
    """Return whether a guaranteed job also takes idle GPUs, until its VC's cells are free."""
    return job.spec.over_quota == "opportunistic" and not job.spec.opportunistic


def short(machine: AllocatorMachine, vc: str) -> bool:
    """Return whether nodes have yet to join before a VC owns all the GPUs it was promised."""
    promised = machine.asked.vcs.get(vc)
    owned = sum(count * chain.topology.size[level]
                for chain in machine.cells.chains.values()
                for (owner, pin), pool in chain.pools.items() if owner == vc and not pin
                for level, count in enumerate(pool.total))  # fmt: skip
    return not machine.nodes or (promised is not None and owned < promised.gpus)


def members(machine: AllocatorMachine, where: Placement) -> tuple[Member, ...]:
    """Return a placement as parts of a gang: one for each node, ranks in the order of nodes."""
    shape = machine.cells.chains[where.chain].topology
    parts: dict[str, list[Spot]] = {}
    for spot in where.spots:
        parts.setdefault(shape.node(spot.leaves[0]), []).append(spot)
    made: list[Member] = []
    rank = 0
    for node, spots in parts.items():
        devices = tuple(tuple(shape.device(leaf) for leaf in spot.leaves) for spot in spots)
        levels = tuple(spot.level for spot in spots)
        made.append(Member(node=node, identity=machine.nodes[node].joined.identity,
                           first_rank=rank, devices=devices,
                           levels=levels if any(levels) else ()))  # fmt: skip
        rank += len(spots)
    return tuple(made)


def hold(
    machine: AllocatorMachine, job: JobState, fact: JobBound | CellsReserved, *, claims: bool
) -> Hold:
    """Return what a recorded placement holds or claims."""
    shape = machine.cells.chains[fact.chain].topology
    spots = []
    for member in fact.members:
        levels = member.levels or (0,) * len(member.devices)
        for devices, level in zip(member.devices, levels, strict=True):
            leaves = [shape.leaf(member.node, device) for device in devices]
            spots.append(Spot(tuple(leaf for leaf in leaves if leaf is not None), level))
    asked = request(job, fact.attempt, guaranteed=not job.spec.opportunistic)
    made = Hold(asked, Placement(fact.chain, tuple(spots)), claims=claims)
    if not spots[0].level:
        made.priority = OPPORTUNISTIC
    return made


def resolve(machine: AllocatorMachine, asked: Cluster) -> None:
    """Record the cells that follow from what is asked for and which nodes have joined, if new."""
    inventory = [node.joined for node in machine.nodes.values()]
    cluster = resolved(asked, inventory)
    if cluster == machine.cells.cluster and asked == machine.asked:
        return
    _, changes = reconfigure(machine.cells, cluster)
    fates = tuple(JobFate(job=job_of(change.job), fate=change.fate)
                  for change in changes
                  if change.fate not in ("kept", "opportunistic"))  # fmt: skip
    machine.record(CellsSet(cluster=cluster, asked=asked, fates=fates))


def health(machine: AllocatorMachine, names: Sequence[str]) -> None:
    """Have the cells know which GPUs of these nodes are bad: also all of nodes that never came."""
    for name in names:
        node = machine.nodes.get(name)
        machine.cells.set_health(name, node.bad if node is not None else _absent)


def _absent(_device: int, _kind: str) -> bool:
    return True


def node_names(cluster: Cluster) -> list[str]:
    """Return every node of a cluster once."""
    return list(dict.fromkeys(
        cell.node for chain in cluster.chains.values() for cell in chain.nodes))  # fmt: skip
