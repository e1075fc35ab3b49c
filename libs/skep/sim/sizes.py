"""What the allocator's log may say of a gang's size, for the model of it."""

from __future__ import annotations

from msgspec.structs import replace

from skep.sim.modelled import AllocatorLog
from skep.sim.moves import gpus
from skep.sim.violation import require
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.trials import Kind


def resize(model: AllocatorLog, fact: GangWidened | GangNarrowed) -> None:
    """Take a fact about the size of a gang.

    A gang has GPUs for its ranks and those that join, and gives back GPUs on which no rank is.

    Args:
        model: What the log says so far; changed.
        fact: The fact.

    Raises:
        ViolationError: The gang must not have, or give back, these GPUs.
    """
    if isinstance(fact, GangWidened):
        _widen(model, fact)
    else:
        _narrow(model, fact)


def _widen(model: AllocatorLog, fact: GangWidened) -> None:
    job, name, more = model.attempt_of(fact.job, fact.attempt), fact.job, fact.member
    still = job.changing is None and job.stopping is None and not job.suspended
    require(still, "I14", f"{name}: {fact} in the middle of something else")
    follows = more.numbers == tuple(range(job.ranks, job.ranks + len(more.devices)))
    require(follows, "I14", f"{name}: {fact} after {job.ranks} ranks")
    require(any(more.levels) == job.guaranteed, "I8", f"{name} gets GPUs by another right")
    model.gpus.take(gpus(more), (name, fact.attempt), f"{name} grows by")
    model.tried.changed = Kind.GROW, name, fact.attempt
    mine = job.members.get(more.node)
    if mine is None:
        model.next_order(fact.order)
        node = model.nodes[more.node]
        usable = not (node.lost or node.drained or node.clearing)
        usable = usable and node.identity == more.identity
        require(usable, "I2", f"{name} comes to {more.node}, which is not usable")
        job.members[more.node] = more
    else:
        require(more.identity == mine.identity, "I2", f"{name}: {fact} of another machine")
        job.members[more.node] = replace(
            mine,
            devices=mine.devices + more.devices,
            ranks=mine.numbers + more.numbers,
            levels=mine.levels + more.levels,
        )
    model.within_quota(job.spec.vc)


def _narrow(model: AllocatorLog, fact: GangNarrowed) -> None:
    job, name = model.attempt_of(fact.job, fact.attempt), fact.job
    require(job.stopping is None and not job.suspended, "I14", f"{name}: {fact}")
    before = job.members[fact.node]
    left = before.numbers[fact.workers :]
    freed = gpus(replace(before, devices=before.devices[fact.workers :]))
    require(all(rank >= job.workers for rank in left), "I14", f"{name}: {fact} of {job.workers}")
    if fact.node not in job.gone:
        model.left(freed, name, fact.attempt)
        model.gpus.drop(freed, (name, fact.attempt))
    if fact.workers:
        job.members[fact.node] = replace(
            before, devices=before.devices[: fact.workers], ranks=before.numbers[: fact.workers]
        )
    else:
        del job.members[fact.node]
        job.gone.pop(fact.node, None)
        job.ran.pop(fact.node, None)
