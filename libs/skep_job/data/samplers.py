"""Stands in for a data loader's sampler while a pass begins, and takes the pass to where it was.

A data loader draws its workers' seed between making the sampler's iterator and asking that for the
first index, unless its workers persist: then it draws it in the first pass alone. A random sampler
draws its order with that first index, one of the user's perhaps already with the iterator. So the
generators are remembered at both moments, and set at both when the pass is taken up again. Then the
sampler passes over what is done, no sample is read for it, and only then the generators are set to
what they were at the checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Moment = Callable[[int], None]
"""Called with 0 before the sampler's iterator is made, with 1 before its first index."""


class Plan(NamedTuple):
    """What to do in the pass that begins next."""

    moment: Moment
    skip: int
    then: Callable[[int], None] | None  # with how many were passed over


class Sampler:
    """One for each loader: an iterator with persistent workers asks it again for every pass."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.plan: Plan | None = None
        self.opened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        if plan is None:
            return iter(self.sampler)
        # An iterator with workers makes two, and uses the second.
        if not self.opened:
            self.opened = True
            plan.moment(0)
        return _indices(iter(self.sampler), plan)


def _indices(indices: Iterator[Any], plan: Plan) -> Iterator[Any]:
    plan.moment(1)
    skipped = 0
    for _ in range(plan.skip):
        try:
            next(indices)
        except StopIteration:
            break
        skipped += 1
    if plan.then is not None:
        plan.then(skipped)
    yield from indices


def batches(loader: Any, plan: Plan) -> Iterator[Any]:
    """Yield the batches of a pass that begins as planned.

    The loader has its own sampler back once the first batch is there: a loader may be a generator
    that begins only then.

    Args:
        loader: Its sampler is another one while the pass begins.
        plan: What to do meanwhile.
    """
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    attributes = vars(holder(loader, name))  # The loader itself refuses to have them set.
    sampler = attributes[name]
    ours = attributes.get("_skep_sampler")
    if ours is None or ours.sampler is not sampler:
        ours = attributes["_skep_sampler"] = Sampler(sampler)
    ours.plan, ours.opened = plan, False
    attributes[name] = ours
    try:
        iterator = iter(loader)
        first = list(itertools.islice(iterator, 1))
    finally:
        attributes[name] = sampler
        ours.plan = None
    yield from first
    yield from iterator


def holder(loader: Any, name: str) -> Any:
    """Return whose sampler the batches come from: a loader may be wrapped around another."""
    inner = vars(loader).get("base_dataloader")
    return inner if inner is not None and name not in vars(loader) else loader
