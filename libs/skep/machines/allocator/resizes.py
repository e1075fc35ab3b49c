"""What attempts hold while their gangs grow and shrink, as the facts tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skep.machines.allocator import cellwork
from skep.machines.allocator.jobs import JobState, Part
from skep.wire.commands import RankPlan, Resize
from skep.wire.facts import Member
from skep.wire.resizes import GangNarrowed, GangWidened, ResizeFact

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def told_to(member: Member, change: Resize) -> Resize:
    """Return a change of size as one node of a gang is told it: with the ranks that are its."""
    return msgspec.structs.replace(change, ranks=plans(member, change.world))


def came(machine: AllocatorMachine, job: JobState, name: str) -> int:
    """Return the order by which a gang came to a node while it grew; 0 if it began there."""
    held = machine.nodes[name].holdings.get((job.job, job.attempt))
    return held.came if held is not None else 0


def plans(member: Member, world: int) -> tuple[RankPlan, ...]:
    """Return the ranks of a part that a gang of this size has."""
    pairs = zip(member.numbers, member.devices, strict=True)
    return tuple(
        RankPlan(rank=rank, local_rank=i, devices=devices)
        for i, (rank, devices) in enumerate(pairs)
        if rank < world
    )


def apply(machine: AllocatorMachine, fact: ResizeFact) -> None:
    """Take over one fact."""
    job, name = machine.jobs[fact.job], cellwork.holder(fact.job, fact.attempt)
    match fact:
        case GangWidened(member=more):
            chain = machine.cells.holds[name].chain  # Other cells may have been set since.
            machine.cells.widen(name, cellwork.spots(machine, chain, (more,)))
            if more.node in job.members:
                _hold(machine, job, wider(job.members[more.node], more))
            else:
                _come(machine, job, fact)
        case GangNarrowed(node=node, workers=workers):
            before = job.members[node]
            freed = [(node, gpu) for gpus in before.devices[workers:] for gpu in gpus]
            for claimer in machine.cells.claimers(name):
                machine.soft.ripe[cellwork.job_of(claimer)] = None
            if job.parts[node] is not Part.GONE:
                machine.cells.narrow(name, freed)
            if workers:
                _hold(machine, job, narrower(before, workers))
            else:
                _go(machine, job, node)
            machine.soft.changes += 1
    machine.note_borrowed(job)


def wider(member: Member, more: Member) -> Member:
    """Return a part with further ranks behind its own."""
    levels = member.levels or (0,) * len(member.devices)
    levels += more.levels or (0,) * len(more.devices)
    return _numbered(member, member.numbers + more.numbers, member.devices + more.devices, levels)


def narrower(member: Member, workers: int) -> Member:
    """Return a part with its first ranks only."""
    return _numbered(
        member, member.numbers[:workers], member.devices[:workers], member.levels[:workers]
    )


def _numbered(
    member: Member,
    ranks: tuple[int, ...],
    devices: tuple[tuple[int, ...], ...],
    levels: tuple[int, ...],
) -> Member:
    """Return a part with these ranks, named one by one only if they do not follow one another."""
    follow = ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
    return msgspec.structs.replace(
        member,
        first_rank=ranks[0],
        devices=devices,
        ranks=() if follow else ranks,
        levels=levels if any(levels) else (),
    )


def _hold(machine: AllocatorMachine, job: JobState, member: Member) -> None:
    """Have an attempt hold this on a node from here on; what it meets on there stays its."""
    node, attempt = machine.nodes[member.node], (job.job, job.attempt)
    before = node.holdings[attempt]
    after = cellwork.holding(job, member, before.port)
    node.alter(attempt, msgspec.structs.replace(after, meets=before.meets, came=before.came))
    job.members = {**job.members, member.node: member}


def _come(machine: AllocatorMachine, job: JobState, fact: GangWidened) -> None:
    """Give an attempt a part on a node where it had none."""
    node, attempt = machine.nodes[fact.member.node], (job.job, job.attempt)
    holding = cellwork.holding(job, fact.member, 0)
    node.take(attempt, msgspec.structs.replace(holding, came=fact.order))
    node.open_orders[attempt] = machine.order = fact.order
    job.members = {**job.members, fact.member.node: fact.member}
    job.parts[fact.member.node] = Part.BOUND


def _go(machine: AllocatorMachine, job: JobState, name: str) -> None:
    """Have an attempt have no part on a node any more."""
    node, attempt = machine.nodes[name], (job.job, job.attempt)
    if job.parts.pop(name) is not Part.GONE:
        node.open_orders.pop(attempt, None)
        node.release(attempt)
    job.members = {each: member for each, member in job.members.items() if each != name}
    job.learned = {each: learned for each, learned in job.learned.items() if each != name}
    job.gone = [gone for gone in job.gone if gone.node != name]
