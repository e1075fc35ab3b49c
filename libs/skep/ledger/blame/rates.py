"""How much of a job's training was slowed, by the rates that facts hold of it.

A condition is where an attempt trains: nodes, number of workers, and the parties on the same GPUs.
A fact that tells a rate tells it of the condition that the job is in. Time in a condition is
divided by comparing its rate with those of others of the same job. What was not measured is not
divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from skep.ledger.blame.causes import Cause

SAME_MILLI = 950
"""Rates differ by chance: one that is not 5 % below another is as good."""


class Condition(msgspec.Struct):
    """Where and how a job trained. `rate_milli`: thousandths of a mini-batch a second; 0: unknown.

    `bad` is a node of it of which a GPU was quarantined while the job was on that GPU.
    """

    nodes: tuple[str, ...]
    workers: int
    beside: tuple[str, ...] = ()
    rate_milli: int = 0
    bad: str = ""

    def like(self, other: Condition) -> bool:
        """Return whether two are the same, but for what is known of them."""
        return (self.nodes, self.workers, self.beside) == (other.nodes, other.workers, other.beside)


Part = tuple[Cause, int, tuple[str, ...]]
"""A cause, a length in nanoseconds, and the keys of its parties."""


def divide(
    length: int, here: Condition, known: Sequence[Condition], solo: dict[int, int], workers: int
) -> Iterator[Part]:
    """Yield what a stretch of training was, in parts that come to its length.

    Args:
        length: Nanoseconds.
        here: The condition that the job was in.
        known: All conditions of the job.
        solo: By number of workers: the rate on GPUs of its own that trials of packs tell.
        workers: As many workers as its spec asks for.
    """
    left, rate = length, here.rate_milli
    if rate and here.beside:
        alone = max(_best(known, here.workers, here.nodes), solo.get(here.workers, 0))
        alone = alone or _best(known, here.workers)
        left, lost = _slower(left, rate, alone)
        if lost:
            yield Cause.SLOWED_BY_PACKING, lost, here.beside
            rate = alone
    if rate and (rate == here.rate_milli or here.beside):
        best = _best(known, here.workers)
        left, lost = _slower(left, rate, best)
        if lost and here.bad:
            yield Cause.SLOWED_BY_NODE, lost, (f"node {here.bad}",)
        elif lost:
            yield Cause.SLOWED_BY_PLACEMENT, lost, tuple(f"node {each}" for each in here.nodes)
        rate = max(rate, best) if lost else rate
    if rate and here.workers < workers:
        left, lost = _slower(left, rate, _best(known, workers))
        if lost:
            yield Cause.SLOWED_BY_SIZE, lost, ()
    if left:
        yield Cause.RUNNING, left, ()


def _slower(length: int, rate: int, best: int) -> tuple[int, int]:
    """Return how much of a length the better rate would have taken, and the rest."""
    if rate * 1000 >= best * SAME_MILLI:
        return length, 0
    kept = length * rate // best
    return kept, length - kept


def _best(known: Sequence[Condition], workers: int, nodes: tuple[str, ...] | None = None) -> int:
    """Return the highest rate known of so many workers on GPUs of their own; 0: none is."""
    return max(
        (
            each.rate_milli
            for each in known
            if not each.beside and each.workers == workers and nodes in (None, each.nodes)
        ),
        default=0,
    )
