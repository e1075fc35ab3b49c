"""Attempts that use the same GPUs by a recorded decision, as the facts tell it.

The attempts on a GPU are those that hold it on its node: one that ends, gives its GPUs back or
goes on elsewhere leaves a set, and the others stay. The cells have one hold for all of them
(`cells.sets`). What part of each device's memory an attempt may use follows from the others there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from skep import ids
from skep.cells.nodes import Attempt, NodeState
from skep.ledger import attempts
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.wire.commands import Share
from skep.wire.facts import Member
from skep.wire.packs import GpusShared
from skep.wire.spec import Resources

SHARE_DIGITS = 4
"""Shares are told in ten-thousandths of a device's memory: 8 MB of 80 GB."""
SHARE_PARTS = 10_000


def decided(job: JobState, attempt: int) -> GpusShared | None:
    """Return the decision by which an attempt is to be beside others, or None.

    Args:
        job: The job.
        attempt: The number of the attempt.
    """
    packed = job.packed
    return packed if packed is not None and packed.attempt == attempt else None


def enter(
    state: ClusterState, job: JobState, attempt: int, chain: str, members: Sequence[Member]
) -> None:
    """Give an attempt GPUs that others hold (Gandiva, section 3.2: packing).

    Args:
        state: Changed.
        job: The guest. `job.packed` is the decision.
        attempt: The number of its attempt.
        chain: The chain of the GPUs.
        members: The parts of the guest, one for each node.
    """
    packed = job.packed
    assert packed is not None, job
    leaves = [leaf for spot in attempts.spots(state, chain, members) for leaf in spot.leaves]
    asked = attempts.request(job, attempt, guaranteed=not job.spec.opportunistic)
    state.cells.share(asked, ids.attempt_id(*packed.beside[0]), leaves)
    for member in members:
        held = state.nodes[member.node].holdings[job.job, attempt]
        state.nodes[member.node].alter((job.job, attempt), replace(held, guest=True))
    if job.released:
        job.mixed = True  # Its processes run already: they are told once they have gone on.
    else:
        told(job, Share(share=packed.told, beside=tuple(name for name, _ in packed.beside)))
    state.delta.disturbed += (job.job,)
    parted(state, packed.beside)


ALONE = Share()


def told(job: JobState, share: Share) -> None:
    """Note what an attempt was last told."""
    job.told = share.share, share.beside
    job.mixed = job.mixed or bool(share.beside)


def on(node: NodeState, device: int) -> list[Attempt]:
    """Return the attempts that use a GPU."""
    found = []
    for attempt, held in node.holdings.items():
        if not held.suspended:
            for gpus in held.member.devices:
                if device in gpus:
                    found.append(attempt)
                    break
    return found


def partners(state: ClusterState, nodes: Iterable[str], attempt: Attempt) -> list[Attempt]:
    """Return the attempts that share GPUs of some nodes with one.

    Args:
        state: Read.
        nodes: The names of the nodes to look at.
        attempt: The one; it is not in the result.
    """
    found: dict[Attempt, None] = {}
    if _nobody_shares(state):
        return []
    for name in nodes:
        node = state.nodes[name]
        held = node.holdings.get(attempt)
        for device in held.devices if held is not None else ():
            found.update(dict.fromkeys(on(node, device)))
    found.pop(attempt, None)
    return list(found)


def _nobody_shares(state: ClusterState) -> bool:
    """Return whether no GPU at all is held by two attempts, which is almost always so."""
    return not state.cells.sets and not state.cells.off_chain


def parted(state: ClusterState, others: Iterable[Attempt]) -> None:
    """Note of attempts that others have come to their GPUs, or left them.

    Which attempt leads the set, and what part of the memory each has, may be different now.
    """
    for name, attempt in others:
        job = state.jobs.get(name)
        if job is not None and job.attempt == attempt:
            state.note_borrowed(job)
            state.delta.partners += (name,)
            state.delta.disturbed += (name,)
            state.delta.views += (name,)


def give_back(state: ClusterState, name: ids.AttemptId) -> None:
    """Free its VC's cells of an attempt that is to end; its GPUs stay taken until it has ended.

    Args:
        state: Changed.
        name: The attempt, as the cells know it.
    """
    state.cells.stand_back(name)
    shared = state.cells.sets.get(name)
    parted(state, map(ids.job_and_number, shared.partners if shared is not None else ()))
    state.delta.freed += 1


def shares(state: ClusterState, job: JobState) -> bool:
    """Return whether a job shares some of its GPUs."""
    return bool(partners(state, job.live, (job.job, job.attempt)))


def due(state: ClusterState, job: JobState) -> Share:
    """Return what a job is to keep to: the least of what is left to it on any of its GPUs.

    One that asks for a share of a GPU keeps to it while it is alone, too: else there would be no
    memory for others when they come.
    """
    own = own_part(state, job) if job.spec.resources.share and job.members else 0.0
    if _nobody_shares(state):
        return Share(share=own) if own else ALONE
    mine, beside = (job.job, job.attempt), dict[str, None]()
    parts: list[float] = []
    for name in job.live:
        node = state.nodes[name]
        held = node.holdings.get(mine)
        for device in held.devices if held is not None else ():
            there = on(node, device)
            beside |= {other: None for other, _ in there if other != job.job}
            if len(there) > 1:
                parts.append(part(state, mine, there))
    return Share(share=min(parts, default=own), beside=tuple(beside))


def part(state: ClusterState, mine: Attempt, there: Iterable[Attempt]) -> float:
    """Return what of a device is for one of the attempts on it.

    Args:
        state: Read for the shares that were asked for.
        mine: The attempt.
        there: All attempts on the device, this one included.

    Returns:
        A part of the device's memory, 0 to 1: what was asked for, else an even part of the rest.
    """
    said = {attempt: said_for(state, attempt) for attempt in there}
    left = max(0.0, 1.0 - sum(said.values()))
    even = sum(not share for share in said.values())
    return round(said[mine] or left / max(1, even), SHARE_DIGITS)


def said_for(state: ClusterState, attempt: Attempt) -> float:
    """Return the share that was asked for an attempt, 0.0 if none was.

    Returns:
        A part of each device's memory, 0 to 1.
    """
    job = state.jobs.get(attempt[0])
    packed = decided(job, attempt[1]) if job is not None else None
    if packed is not None:
        return packed.share
    asks = job is not None and job.attempt == attempt[1] and job.spec.resources.share
    return own_part(state, job) if job is not None and asks and job.members else 0.0


def own_part(state: ClusterState, job: JobState) -> float:
    """Return the part of its GPU's memory that a job with a share of one keeps to, 0 to 1."""
    (member, *_) = job.members.values()
    return memory_part(job.spec.resources, state.nodes[member.node], member.devices[0][0])


def memory_part(wanted: Resources, node: NodeState, device: int) -> float:
    """Return the part of a GPU's memory that a job with a share is to have there.

    Args:
        wanted: With a share, and perhaps an amount of memory.
        node: The node of the GPU.
        device: The GPU.

    Returns:
        A part, 0 to 1; more than 1: the GPU has less than it needs. Where the memory of the GPU is
        not known, it is the share itself.
    """
    memory = sum(gpu.memory for gpu in node.joined.gpus if gpu.index == device)
    if not memory or not wanted.gpu_memory:
        return wanted.share / 1000
    parts = -(-int(wanted.gpu_memory) * SHARE_PARTS // memory)
    return parts / SHARE_PARTS
