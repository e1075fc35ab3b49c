"""What may be said of a suspended attempt that gets GPUs again: judged from the log alone.

I15 a suspended attempt returns to the GPUs it had; to others of the same nodes only if every
    part said that it can, each rank to as many as it had, of no VC's cells, and idle ones
"""

from __future__ import annotations

from skep.sim import sharing
from skep.sim.modelled import AllocatorLog, ModelJob
from skep.sim.moves import gpus
from skep.sim.violation import require
from skep.wire.changes import GpusRegained, JobChanged
from skep.wire.facts import Member


def regained(model: AllocatorLog, job: ModelJob, fact: GpusRegained) -> None:
    """Take it that a suspended attempt has GPUs again."""
    name, attempt = fact.job, (fact.job, fact.attempt)
    require(attempt in model.released, "I12", f"{name} has its GPUs")
    del model.released[attempt]
    live = [member for node, member in job.members.items() if node not in job.gone]
    if fact.members:
        _others(model, job, fact, live)
    job.before = {member.node: member for member in live}
    job.members = {**job.members, **{member.node: member for member in fact.members}}
    for member in fact.members or live:
        model.gpus.take(gpus(member), attempt, f"{name} got back")
    job.guaranteed = sharing.inherits(model, *attempt)


def refused(model: AllocatorLog, job: ModelJob, fact: JobChanged) -> list[Member]:
    """Take it that no rank can go on with other GPUs.

    Args:
        model: What the log says so far; changed.
        job: The job; changed.
        fact: The end of the change.

    Returns:
        The parts that give GPUs back.
    """
    attempt = fact.job, fact.attempt
    require(job.suspended and bool(job.before), "I15", f"{fact.job} gives back what it runs on")
    left = [member for node, member in job.members.items() if node not in job.gone]
    for member in left:
        model.gpus.drop(gpus(member), attempt)
    job.members = {**job.members, **job.before}
    job.guaranteed = False
    model.released[attempt] = None
    return left


def _others(model: AllocatorLog, job: ModelJob, fact: GpusRegained, live: list[Member]) -> None:
    told = [model.learned.get((fact.job, fact.attempt, member.node), ()) for member in live]
    able = all("rebind" in can for can in told)
    require(able, "I15", f"{fact.job} goes on with other GPUs and can {told}")
    pairs = list(zip(live, fact.members, strict=False))
    same = len(live) == len(fact.members) and all(
        (a.node, a.identity, a.first_rank, list(map(len, a.devices)))
        == (b.node, b.identity, b.first_rank, list(map(len, b.devices)))
        and not any(b.levels)
        for a, b in pairs
    )
    require(same, "I15", f"{fact.job} had {live} and goes on with {fact.members}")
