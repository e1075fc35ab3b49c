"""Which jobs use which GPUs, and by which right: read from the state that the ledger folds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skep.cells.holds import OPPORTUNISTIC
from skep.cells.nodes import Holding, NodeState
from skep.ids import AttemptId, attempt_id
from skep.ledger import sharing
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.wire.spec import suits

GUARANTEED_CLASS, OPPORTUNISTIC_CLASS = "guaranteed", "opportunistic"


class User(NamedTuple):
    """One rank of an attempt on a GPU. `owns`: the GPU is in a cell of its VC, not borrowed."""

    job: str
    attempt: int
    rank: int
    owns: bool


class Use(NamedTuple):
    """How a placed job has its GPUs: `right` is a service class, `beside` shares GPUs with it."""

    right: str = ""
    beside: tuple[str, ...] = ()


UNPLACED = Use()


def use_of(state: ClusterState, name: str) -> Use:
    """Return how a job has its GPUs: by which right, and beside which others.

    Args:
        state: Read.
        name: The job. Without GPUs, or unknown, it has no right.
    """
    job = state.placed.get(name)
    if job is None or name in state.away:
        return UNPLACED
    right = GUARANTEED_CLASS if owns(state, name, job.attempt) else OPPORTUNISTIC_CLASS
    return Use(right, sharing.due(state, job).beside)


def owns(state: ClusterState, job: str, attempt: int) -> bool:
    """Return whether the GPUs of an attempt are in cells of its VC.

    Of several attempts on the same GPUs each is looked at alone: by what it was submitted with.
    """
    name = attempt_id(job, attempt)
    hold = state.cells.sets.get(name) or state.cells.holds.get(name)
    if hold is None or not hold.guaranteed:
        return False
    partner = hold.partners.get(name)
    return partner is None or partner.asked > OPPORTUNISTIC


def partners(state: ClusterState, job: str, attempt: int) -> Iterable[AttemptId]:
    """Return the attempts that hold GPUs together with one, as the cells name them."""
    hold = state.cells.sets.get(attempt_id(job, attempt))
    return hold.partners if hold is not None else ()


def users(state: ClusterState, node: NodeState) -> dict[int, list[User]]:
    """Return the attempts on each GPU of a node that is in use, by its index.

    The first of them has the GPU: one that owns it if there is one, else the one that came first.
    """
    found: dict[int, list[User]] = {}
    for (job, attempt), held in node.holdings.items():
        right = owns(state, job, attempt)
        for rank, devices in _ranks(held):
            for device in devices:
                found.setdefault(device, []).append(User(job, attempt, rank, right))
    for there in found.values():
        if len(there) > 1:
            there.sort(key=lambda user: not user.owns)
    return found


def counted(state: ClusterState, job: JobState) -> int:
    """Return how many GPUs a job has, each counted for one of the jobs that share it."""
    mine, count = (job.job, job.attempt), 0
    alone = attempt_id(*mine) not in state.cells.sets and not state.cells.off_chain
    for name in job.parts:
        node = state.nodes[name]
        held = node.holdings.get(mine)
        if held is None:
            continue
        if alone:
            count += len(held.devices)
        else:
            there = users(state, node)
            count += sum(there[device][0][:2] == mine for device in held.devices)
    return count


def free_gpus(node: NodeState, gpu_type: str | None) -> int:
    """Return how many GPUs of a type (or of several; None: any) no attempt holds on a node."""
    held = {device for each in node.holdings.values() for device in each.devices}
    return sum(gpu.index not in held for gpu in node.joined.gpus if suits(gpu_type, gpu.type))


def _ranks(held: Holding) -> Iterable[tuple[int, tuple[int, ...]]]:
    if held.suspended:
        return ()
    return zip(held.member.numbers, held.member.devices, strict=True)
