"""What the allocator's log says about attempts that go on elsewhere (I13)."""

from __future__ import annotations

from msgspec.structs import replace

from skep.sim import sharing
from skep.sim.modelled import AllocatorLog, ModelJob
from skep.sim.violation import ViolationError, require
from skep.wire.commands import Move
from skep.wire.member import Member
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.node import Manner
from skep.wire.trials import Kind


def take(
    model: AllocatorLog, job: ModelJob, fact: SuccessorBound | JobMoved | SuccessorDropped
) -> None:
    """Take a fact about a successor.

    Args:
        model: What the log says so far; changed.
        job: The job that the fact is about; changed.
        fact: The fact.

    Raises:
        ViolationError: The job has no such successor, or must not move now.
    """
    name = fact.job
    if isinstance(fact, SuccessorBound):
        _bound(model, job, fact)
        return
    successor = model.successors.pop(name, None)
    if successor is None or successor.attempt != fact.attempt:
        invariant = "I13"
        raise ViolationError(invariant, f"{name} has no successor {fact.attempt}")
    left, attempt = list(successor.members), fact.attempt
    if isinstance(fact, JobMoved):
        require(job.stopping is None, "I13", f"{name} moves while it is stopped")
        _is_whole(model, job, name, successor)
        left = [member for node, member in job.members.items() if node not in job.gone]
        attempt = job.attempt
        model.moved[name, fact.attempt] = name, attempt
        job.attempt = fact.attempt
        job.members = {member.node: member for member in successor.members}
        job.gone, job.ran = {}, dict.fromkeys(job.members)
        job.guaranteed = any(level for one in successor.members for level in one.levels)
    for member in left:
        model.ghosts[member.node, name, attempt] = member


def succeeds(model: AllocatorLog, name: str, attempt: int) -> bool:
    """Return whether an attempt is to take over from the one that is the job."""
    successor = model.successors.get(name)
    return successor is not None and successor.attempt == attempt


def demote(model: AllocatorLog, name: str, attempt: int) -> None:
    """Have an attempt, and jobs that share its GPUs, or a successor, hold no cells of its VC.

    Args:
        model: What the log says so far; changed.
        name: The job.
        attempt: The number of the attempt, or of the successor.
    """
    if succeeds(model, name, attempt):
        fact = model.successors[name]
        members = tuple(replace(member, levels=()) for member in fact.members)
        model.successors[name] = replace(fact, members=members)
        return
    for job in sharing.set_of(model, name, attempt):
        job.guaranteed = False


def _bound(model: AllocatorLog, job: ModelJob, fact: SuccessorBound) -> None:
    """A successor has GPUs for every rank that the gang has now."""
    name = fact.job
    free = not job.queued and job.stopping is None and name not in model.successors
    require(free and fact.attempt == job.spent + 1, "I13", f"{name}: {fact}")
    ranks = [one.first_rank + i for one in fact.members for i in range(len(one.devices))]
    require(ranks == list(range(job.workers)), "I13", f"{name}: {fact.members} for {job.workers}")
    job.spent = fact.attempt
    model.tried.changed = Kind.MIGRATE, name, fact.attempt
    model.successors[name], model.loaded[name] = fact, {}
    for member in fact.members:
        model.gpus.take(gpus(member), (name, fact.attempt), f"{name} is to move to")


def _is_whole(model: AllocatorLog, job: ModelJob, name: str, successor: SuccessorBound) -> None:
    """Require that every part of the source has sent its state, and every successor has it."""
    moves = job.changing is not None and isinstance(job.changing.change, Move)
    told = [job.answers.get(node) for node in job.members]
    sent = all(one is not None and one.manner is not Manner.UNCHANGED for one in told)
    require(moves and sent, "I13", f"{name} moves, and was sent by {told}")
    missing = [one.node for one in successor.members if one.node not in model.loaded[name]]
    require(not missing, "I13", f"{name} moves, and has not arrived on {missing}")


def gpus(member: Member) -> list[tuple[str, int]]:
    """Return the GPUs of a part: the identity of a machine, and a device."""
    return [(member.identity, device) for devices in member.devices for device in devices]
