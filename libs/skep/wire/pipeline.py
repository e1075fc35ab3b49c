"""Specs that name one another in `after`: in which order they are submitted, and what is wrong.

A name in `after` means a spec beside it before any job of the cluster. Cycles can only be among
specs that are submitted together: a job that is in the cluster already waits for earlier ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skep.ids import job_sequence
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

NAMED_MAX = 5
"""Names of a cycle that are told."""

KINDS = ("ok", "any", "fail")


class Named(NamedTuple):
    """A place in `after` of one spec that names another spec beside it."""

    path: str
    kind: str
    at: int
    spec: int


class Misfit(NamedTuple):
    """What is wrong with one of the specs."""

    spec: int
    problem: Problem


class Order(NamedTuple):
    """In which order specs are submitted, and which others each of them names."""

    specs: tuple[int, ...]
    named: tuple[tuple[Named, ...], ...]


def order_of(trees: Sequence[Any]) -> Order | list[Misfit]:
    """Return the order in which specs are submitted, each after those that it names.

    Args:
        trees: Specs as decoded JSON or YAML values, right or wrong. What is no spec names nothing.

    Returns:
        The order, which is the given one where no spec names a later one; or what is wrong.
    """
    places: dict[str, list[int]] = {}
    for number, tree in enumerate(trees):
        name = tree.get("name") if isinstance(tree, Mapping) else None
        if isinstance(name, str) and job_sequence(name) is None:
            places.setdefault(name, []).append(number)
    named: list[tuple[Named, ...]] = []
    wrong: list[Misfit] = []
    for number, tree in enumerate(trees):
        mine = []
        for path, kind, at, name in _after(tree):
            found = places.get(name, ())
            if len(found) > 1:
                wrong.append(Misfit(number, _ambiguous(path, name, len(found))))
            elif found:
                mine.append(Named(path, kind, at, found[0]))
        named.append(tuple(mine))
    if wrong:
        return wrong
    specs = _sorted(named)
    if len(specs) < len(trees):
        return [_cycle(trees, named, specs)]
    return Order(specs, tuple(named))


def resolved(tree: Any, named: Sequence[Named], jobs: Mapping[int, str]) -> Any:
    """Return a spec with the ids of jobs in the place of the specs that it names.

    Args:
        tree: The spec.
        named: What it names.
        jobs: By spec: the id of its job.
    """
    if not named:
        return tree
    after = {kind: list(tree["after"].get(kind, ())) for kind in KINDS if kind in tree["after"]}
    for each in named:
        after[each.kind][each.at] = jobs[each.spec]
    return {**tree, "after": {**tree["after"], **after}}


def _after(tree: Any) -> list[tuple[str, str, int, str]]:
    """Return what a spec names in `after`: path, kind, place and name; nothing if it is none."""
    after = tree.get("after") if isinstance(tree, Mapping) else None
    if not isinstance(after, Mapping):
        return []
    return [
        (f"$.after.{kind}[{at}]", kind, at, name)
        for kind in KINDS
        if isinstance(after.get(kind), list | tuple)
        for at, name in enumerate(after[kind])
        if isinstance(name, str)
    ]


def _sorted(named: Sequence[Sequence[Named]]) -> tuple[int, ...]:
    """Return specs in an order in which each comes after those that it names, without cycles."""
    left = [len({each.spec for each in mine}) for mine in named]
    followers: list[list[int]] = [[] for _ in named]
    for number, mine in enumerate(named):
        for other in sorted({each.spec for each in mine}):
            followers[other].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    done: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        done.append(number)
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
    return tuple(done)


def _cycle(trees: Sequence[Any], named: Sequence[Sequence[Named]], done: Sequence[int]) -> Misfit:
    """Return what is wrong with specs of which some wait for one another."""
    free = dict.fromkeys(done)
    number = next(each for each in range(len(trees)) if each not in free)
    met: dict[int, Named] = {}
    while number not in met:
        met[number] = next(each for each in named[number] if each.spec not in free)
        number = met[number].spec
    around = list(met)[list(met).index(number) :]
    names = [str(trees[each]["name"]) for each in around]
    more = f" -> {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    shown = " -> ".join(names[:NAMED_MAX]) + more
    text = f"these jobs wait for one another: {shown} -> {names[0]}"
    if len(names) == 1:
        text = f"`{names[0]}` waits for itself"
    problem = Problem(
        path=met[number].path,
        reason=Reason.DEPENDENCY_CYCLE,
        text=text,
        suggestion="leave one of them out of `after`, or give the id of an earlier job",
    )
    return Misfit(number, problem)


def _ambiguous(path: str, name: str, count: int) -> Problem:
    return Problem(
        path=path,
        reason=Reason.AMBIGUOUS_NAME,
        text=f"{count} jobs of this file have the name `{name}`",
        suggestion="give each a name of its own",
    )


__all__ = ["Misfit", "Named", "Order", "order_of", "resolved"]
