"""Attempts that use the same GPUs by a recorded decision, as the facts tell it.

Who is on a GPU is told by what attempts hold on its node: one that ends, gives its GPUs back or
goes on elsewhere leaves a set, and the others stay. The cells have one hold for all of them
(`cells.sets`). What part of each device's memory an attempt may use follows from who is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skep.cells.nodes import Attempt, NodeState
from skep.machines.allocator import cellwork, paces
from skep.machines.allocator.jobs import JobState
from skep.units import Instant
from skep.wire.commands import Share
from skep.wire.facts import Member
from skep.wire.packs import GpusShared

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

SHARE_DIGITS = 4
"""Shares are told in ten-thousandths of a device's memory: 8 MB of 80 GB."""


def decided(job: JobState, attempt: int) -> GpusShared | None:
    """Return the decision by which an attempt is to be beside others, if there is one."""
    packed = job.packed
    return packed if packed is not None and packed.attempt == attempt else None


def enter(
    machine: AllocatorMachine, job: JobState, attempt: int, chain: str, members: Sequence[Member]
) -> None:
    """Have an attempt use GPUs that others hold."""
    packed = job.packed
    assert packed is not None, job
    leaves = [leaf for spot in cellwork.spots(machine, chain, members) for leaf in spot.leaves]
    asked = cellwork.request(job, attempt, guaranteed=not job.spec.opportunistic)
    machine.cells.share(asked, cellwork.holder(*packed.beside[0]), leaves)
    for member in members:
        held = machine.nodes[member.node].holdings[job.job, attempt]
        machine.nodes[member.node].alter((job.job, attempt), replace(held, guest=True))
    if job.released:
        job.mixed = True  # Its processes run already: they are told once they have gone on.
    else:
        told(job, Share(share=packed.told, beside=tuple(name for name, _ in packed.beside)))
    paces.disturbed(machine, job)
    parted(machine, packed.beside)


ALONE = Share()


def told(job: JobState, share: Share) -> None:
    """Note what an attempt was last told."""
    job.told = share.share, share.beside
    job.mixed = job.mixed or bool(share.beside)


def on(node: NodeState, device: int) -> list[Attempt]:
    """Return the attempts that use a GPU."""
    return [attempt for attempt, held in node.holdings.items() if device in held.devices]


def partners(machine: AllocatorMachine, nodes: Iterable[str], attempt: Attempt) -> list[Attempt]:
    """Return the attempts that share GPUs of these nodes with one."""
    found: dict[Attempt, None] = {}
    if _nobody_shares(machine):
        return []
    for name in nodes:
        node = machine.nodes[name]
        held = node.holdings.get(attempt)
        for device in held.devices if held is not None else ():
            found.update(dict.fromkeys(on(node, device)))
    found.pop(attempt, None)
    return list(found)


def _nobody_shares(machine: AllocatorMachine) -> bool:
    """Return whether no GPU at all is held by two attempts, which is almost always so."""
    return not machine.cells.sets and not machine.cells.off_chain


def parted(machine: AllocatorMachine, others: Iterable[Attempt]) -> None:
    """Note of attempts that somebody has come to them, or gone: who leads, and what is theirs."""
    for name, attempt in others:
        job = machine.jobs.get(name)
        if job is not None and job.attempt == attempt:
            machine.note_borrowed(job)
            machine.soft.reshare[name] = None
            machine.soft.telling.unsure[name] = Instant(0)
            paces.disturbed(machine, job)
            if machine.soft.planned:
                machine.soft.touched[name] = None


def shares(machine: AllocatorMachine, job: JobState) -> bool:
    """Return whether a job shares some of its GPUs."""
    return bool(partners(machine, job.live, (job.job, job.attempt)))


def due(machine: AllocatorMachine, job: JobState) -> Share:
    """Return what a job is to keep to: the least of what is left to it on any of its GPUs."""
    if _nobody_shares(machine):
        return ALONE
    mine, beside = (job.job, job.attempt), dict[str, None]()
    parts: list[float] = []
    for name in job.live:
        node = machine.nodes[name]
        held = node.holdings.get(mine)
        for device in held.devices if held is not None else ():
            there = on(node, device)
            beside |= {other: None for other, _ in there if other != job.job}
            if len(there) > 1:
                parts.append(part(machine, mine, there))
    return Share(share=min(parts, default=0.0), beside=tuple(beside))


def part(machine: AllocatorMachine, mine: Attempt, there: Iterable[Attempt]) -> float:
    """Return what of a device is for one of those on it: what was said, else an even share."""
    said = {attempt: said_for(machine, attempt) for attempt in there}
    left = max(0.0, 1.0 - sum(said.values()))
    even = sum(not share for share in said.values())
    return round(said[mine] or left / max(1, even), SHARE_DIGITS)


def said_for(machine: AllocatorMachine, attempt: Attempt) -> float:
    """Return the share that was asked for an attempt, 0.0 if none was."""
    job = machine.jobs.get(attempt[0])
    packed = decided(job, attempt[1]) if job is not None else None
    return packed.share if packed is not None else 0.0
