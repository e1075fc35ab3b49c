"""A pool: nodes on machines that another system owns, asked for, given a token and handed back.

    asked for ──▶ runs ──▶ invited ──▶ is a node ──▶ leaves ──▶ handed back
      ▲ jobs wait, or fewer than the least      │       ▲
      │                                         └───────┘ idle, or its time ends

Each allocation is one node: a job of Slurm's, or a pod of Kubernetes. Nothing is kept but what that
system and Skep say themselves, so a keeper that is killed and started again goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

WAITS, RUNS = "PENDING", "RUNNING"


class Allocation(NamedTuple):
    """One machine, or a part of one, that was asked for.

    `number` is the name of it that its system knows, `node` the name of its node. It `WAITS` until
    there is a machine for it, and then it `RUNS`. `left_s` is None where nothing ends it.
    """

    number: str
    node: str
    state: str
    left_s: float | None = None


class Node(NamedTuple):
    """A node as Skep lists it; `idle_s` is for how long it has had no job."""

    name: str
    jobs: tuple[str, ...]
    idle_s: float


class Limits(NamedTuple):
    """What the keeper is to hold to.

    `margin_s` before its end an allocation is to be left: its jobs move to a free node, for which
    there is half of that time, or else are stored.
    """

    least: int
    most: int
    gpus: int
    margin_s: float
    idle_s: float


class Do(NamedTuple):
    """What is to be done now: numbers of allocations, and names of nodes."""

    ask: int = 0
    invite: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    """Their jobs are to be stored or moved, and then they are handed back."""
    give_up: tuple[str, ...] = ()
    """Allocations that are not needed any more, or that end before they are nodes."""
    remove: tuple[str, ...] = ()
    """Nodes whose allocation is gone."""


def decide(
    allocations: Sequence[Allocation], nodes: Mapping[str, Node], waiting_gpus: int, limits: Limits
) -> Do:
    """Return what is to be done.

    Args:
        allocations: What the system that owns the machines lists.
        nodes: The nodes of this pool that Skep lists, by name.
        waiting_gpus: GPUs of the jobs that wait for some.
        limits: What to hold to.
    """
    known = {each.node for each in allocations}
    ends = [each for each in allocations if _ends(each, limits.margin_s)]
    ending = [each for each in ends if each.state == RUNS and each.node in nodes]
    useless = [each for each in ends if each not in ending]
    staying = [each for each in allocations if each.state == RUNS and each not in ends]
    waiting = [each for each in allocations if each.state == WAITS and each not in ends]
    # A job that finds a free node moves there; without one it is stored, with half of the time.
    free = sum(1 for each in staying if each.node in nodes and not nodes[each.node].jobs)
    late_s = limits.margin_s / 2
    now = [each for each in ending if free or not nodes[each.node].jobs or _ends(each, late_s)]
    # Jobs of allocations that end need GPUs elsewhere.
    gone = [name for name in nodes if name not in known]
    busy = [name for name in (*(each.node for each in ending), *gone) if nodes[name].jobs]
    needed = -(-waiting_gpus // limits.gpus) + max(0, len(busy) - free)
    # What has been allotted and is no node yet will take jobs as well.
    coming = len(waiting) + sum(1 for each in staying if each.node not in nodes)
    there = len(staying) + len(waiting)
    more = max(limits.least - there, needed - coming)
    ask = max(0, min(more, limits.most - there))
    idle = [
        each
        for each in staying
        if each.node in nodes
        and not nodes[each.node].jobs
        and nodes[each.node].idle_s >= limits.idle_s
    ]
    spare = 0 if needed or busy else max(0, there - limits.least)
    given_up = waiting[::-1][:spare]
    idle = idle[: spare - len(given_up)]
    return Do(
        ask=ask,
        invite=tuple(each.number for each in staying if each.node not in nodes),
        leave=tuple(each.number for each in (*now, *idle)),
        give_up=tuple(each.number for each in (*useless, *given_up)),
        remove=tuple(gone),
    )


def _ends(allocation: Allocation, within_s: float) -> bool:
    return allocation.left_s is not None and allocation.left_s <= within_s
