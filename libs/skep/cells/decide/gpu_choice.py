"""Choose the GPUs of a node for a worker: those closest to one another, at the least loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from skep.cells.chain import ChainState
from skep.cells.holds import OPPORTUNISTIC, CellHold
from skep.cells.topology import Topology
from skep.ids import NO_ATTEMPT, AttemptId

Loss = Callable[[AttemptId], float]
"""The work that is lost if a job is stopped now, in any unit that can be compared; above 0."""


def available_leaves(chain: ChainState, level: int, index: int, below: int) -> list[int]:
    """Return the healthy leaves of a cell that no job holds with this priority or a higher one.

    Args:
        chain: The chain.
        level: The level of the cell.
        index: Its index.
        below: The priority; OPPORTUNISTIC or lower: only idle leaves.
    """
    span = chain.topology.span(level, index)
    user, claim, bad = chain.user, chain.claim, chain.bad
    if below <= OPPORTUNISTIC:
        return [
            leaf for leaf in span if user[leaf] is None and leaf not in claim and leaf not in bad
        ]
    if claim:
        return [leaf for leaf in span if leaf not in bad and chain.priority_of(leaf) < below]
    return [
        leaf
        for leaf in span
        if ((hold := user[leaf]) is None or hold.priority < below) and leaf not in bad
    ]


def closest_leaves(shape: Topology, leaves: Sequence[int], gpus: int) -> tuple[int, ...]:
    """Return so many of some leaves with the lowest common ancestor.

    Of several cells of that level the tightest is taken; in it, whole children before parts of
    others.

    Args:
        shape: The shape of the chain.
        leaves: Leaves of one node, ascending.
        gpus: How many to return.

    Raises:
        AssertionError: There are fewer leaves.
    """
    if len(leaves) == gpus:
        return tuple(leaves)
    for level in range(shape.level_for(gpus) or 1, shape.top + 1):
        groups = _groups(leaves, shape.size[level])
        fitting = [group for group in groups if len(group) >= gpus]
        if fitting:
            return tuple(sorted(_part(shape, min(fitting, key=len), gpus, level)))
    message = f"{gpus} of {len(leaves)} leaves"
    raise AssertionError(message)


def _part(shape: Topology, leaves: Sequence[int], gpus: int, level: int) -> list[int]:
    """Return so many of a cell's leaves, breaking as few of its children as possible."""
    if gpus == len(leaves) or level == 1:
        return list(leaves[:gpus])
    chosen: list[int] = []
    groups = sorted(_groups(leaves, shape.size[level - 1]), key=len, reverse=True)
    while len(chosen) < gpus:
        left = gpus - len(chosen)
        whole = next((group for group in groups if len(group) <= left), None)
        if whole is None:
            tightest = min(groups, key=len)
            return chosen + _part(shape, tightest, left, level - 1)
        groups.remove(whole)
        chosen += whole
    return chosen


def _groups(leaves: Sequence[int], size: int) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for leaf in leaves:
        groups.setdefault(leaf // size, []).append(leaf)
    return list(groups.values())


class Seized(NamedTuple):
    """Leaves taken from other jobs: the loss, and which jobs used and claimed them."""

    loss: float
    leaves: list[tuple[int, ...]]
    victims: dict[AttemptId, None]
    cancels: dict[AttemptId, None]


def seize_leaves(
    chain: ChainState,
    leaves: Sequence[int],
    sizes: Sequence[int],
    loss: Loss,
    gone: Mapping[AttemptId, None],
) -> Seized | None:
    """Return leaves for workers of these sizes at the least loss, or None if there are too few.

    Whole victims are taken one after the other, the cheapest first, until their GPUs and the idle
    ones suffice.

    Args:
        chain: The chain.
        leaves: Leaves of one node that may be taken.
        sizes: GPUs of each worker.
        loss: What stopping a job would cost.
        gone: Jobs that are victims already: their GPUs cost nothing more.
    """
    need = sum(sizes)
    if len(leaves) < need:
        return None
    by_user: dict[AttemptId, list[int]] = {}
    free: list[int] = []
    for leaf in leaves:
        user = chain.user[leaf]
        if user is None or user.job in gone:
            free.append(leaf)
        else:
            by_user.setdefault(user.job, []).append(leaf)
    victims: dict[AttemptId, None] = {}
    lost = 0.0
    for job in sorted(by_user, key=lambda each: (loss(each), each)):
        if len(free) >= need:
            break
        victims[job] = None
        lost += loss(job)
        free += by_user[job]
    free.sort()
    chosen: list[tuple[int, ...]] = []
    for gpus in sizes:
        got = closest_leaves(chain.topology, free, gpus)
        taken = set(got)
        free = [leaf for leaf in free if leaf not in taken]
        chosen.append(got)
    used = [leaf for got in chosen for leaf in got]
    needed = dict.fromkeys(_job(chain.user[leaf]) for leaf in used)
    victims = {job: None for job in victims if job in needed}
    claims = dict.fromkeys(chain.claim[leaf].job for leaf in used if leaf in chain.claim)
    return Seized(lost, chosen, victims, claims)


def _job(hold: CellHold | None) -> AttemptId:
    return hold.job if hold is not None else NO_ATTEMPT
