"""What attempts hold while their gangs grow and shrink."""

from __future__ import annotations

import msgspec

from skep import ids
from skep.ledger import attempts
from skep.ledger.job_state import JobState, Part
from skep.ledger.state import ClusterState
from skep.wire.facts import Member
from skep.wire.resizes import GangNarrowed, GangWidened, ResizeFact


def came(state: ClusterState, job: JobState, name: str) -> int:
    """Return the order by which a gang came to a node while it grew; 0 if it began there."""
    held = state.nodes[name].holdings.get((job.job, job.attempt))
    return held.came if held is not None else 0


def apply(state: ClusterState, fact: ResizeFact) -> None:
    """Take over one fact."""
    job, name = state.jobs[fact.job], ids.attempt_id(fact.job, fact.attempt)
    match fact:
        case GangWidened(member=more):
            chain = state.cells.holds[name].chain  # Other cells may have been set since.
            state.cells.widen(name, attempts.spots(state, chain, (more,)))
            if more.node in job.members:
                _hold(state, job, wider(job.members[more.node], more))
            else:
                _come(state, job, fact)
        case GangNarrowed(node=node, workers=workers):
            before = job.members[node]
            freed = [(node, gpu) for gpus in before.devices[workers:] for gpu in gpus]
            state.delta.claims += tuple(map(ids.job_of, state.cells.claimers(name)))
            over = job.parts[node] is Part.GONE  # It holds nothing there any more.
            if not over:
                state.cells.narrow(name, freed)
            if workers and over:
                job.members = {**job.members, node: narrower(before, workers)}
            elif workers:
                _hold(state, job, narrower(before, workers))
            else:
                _go(state, job, node)
            state.delta.freed += 1
    state.note_borrowed(job)


def wider(member: Member, more: Member) -> Member:
    """Return a part with further ranks behind its own."""
    levels = member.levels or (0,) * len(member.devices)
    levels += more.levels or (0,) * len(more.devices)
    return _numbered(member, member.numbers + more.numbers, member.devices + more.devices, levels)


def narrower(member: Member, workers: int) -> Member:
    """Return a part with its first ranks only.

    Args:
        member: The part.
        workers: How many ranks it keeps.
    """
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


def _hold(state: ClusterState, job: JobState, member: Member) -> None:
    """Have an attempt hold this on a node from here on; what it meets on there stays its."""
    node, attempt = state.nodes[member.node], (job.job, job.attempt)
    before = node.holdings[attempt]
    after = attempts.holding(job, member, before.port)
    node.alter(attempt, msgspec.structs.replace(after, meets=before.meets, came=before.came))
    job.members = {**job.members, member.node: member}


def _come(state: ClusterState, job: JobState, fact: GangWidened) -> None:
    """Give an attempt a part on a node where it had none."""
    node, attempt = state.nodes[fact.member.node], (job.job, job.attempt)
    holding = attempts.holding(job, fact.member, 0)
    node.take(attempt, msgspec.structs.replace(holding, came=fact.order))
    node.open_orders[attempt] = state.order = fact.order
    job.members = {**job.members, fact.member.node: fact.member}
    job.parts[fact.member.node] = Part.BOUND


def _go(state: ClusterState, job: JobState, name: str) -> None:
    """Have an attempt have no part on a node any more."""
    node, attempt = state.nodes[name], (job.job, job.attempt)
    if job.parts.pop(name) is not Part.GONE:
        node.open_orders.pop(attempt, None)
        node.release(attempt)
    job.members = {each: member for each, member in job.members.items() if each != name}
    job.learned = {each: learned for each, learned in job.learned.items() if each != name}
    job.gone = [gone for gone in job.gone if gone.node != name]
