"""What attempts hold while their gangs grow and shrink, as the facts tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skep.machines.allocator import cellwork
from skep.machines.allocator.jobs import JobState
from skep.wire.facts import Member
from skep.wire.resizes import GangNarrowed, GangWidened, ResizeFact

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def apply(machine: AllocatorMachine, fact: ResizeFact) -> None:
    """Take over one fact."""
    job, name = machine.jobs[fact.job], cellwork.holder(fact.job, fact.attempt)
    match fact:
        case GangWidened(member=more):
            chain = machine.cells.holds[name].chain  # Other cells may have been set since.
            machine.cells.widen(name, cellwork.spots(machine, chain, (more,)))
            _hold(machine, job, wider(job.members[more.node], more))
        case GangNarrowed(node=node, workers=workers):
            before = job.members[node]
            freed = [(node, gpu) for gpus in before.devices[workers:] for gpu in gpus]
            for claimer in machine.cells.claimers(name):
                machine.soft.ripe[cellwork.job_of(claimer)] = None
            machine.cells.narrow(name, freed)
            _hold(machine, job, narrower(before, workers))
            machine.soft.changes += 1
    machine.note_borrowed(job)


def wider(member: Member, more: Member) -> Member:
    """Return a part with further ranks behind its own."""
    levels = member.levels or (0,) * len(member.devices)
    levels += more.levels or (0,) * len(more.devices)
    return msgspec.structs.replace(member, devices=member.devices + more.devices,
                                   levels=levels if any(levels) else ())  # fmt: skip


def narrower(member: Member, workers: int) -> Member:
    """Return a part with its first ranks only."""
    return msgspec.structs.replace(member, devices=member.devices[:workers],
                                   levels=member.levels[:workers])  # fmt: skip


def _hold(machine: AllocatorMachine, job: JobState, member: Member) -> None:
    """Have an attempt hold this on a node from here on; what it meets on there stays its."""
    node, attempt = machine.nodes[member.node], (job.job, job.attempt)
    before = node.holdings[attempt]
    after = cellwork.holding(job, member, before.port)
    node.alter(attempt, msgspec.structs.replace(after, meets=before.meets))
    job.members = {**job.members, member.node: member}
