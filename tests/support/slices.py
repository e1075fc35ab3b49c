"""Turns of more jobs than there are slots, and how fair they are: pure, in quanta.

A job gets the next turn if it had the fewest so far. With `rebind` it takes any slot that is free,
else it can only return to the slot on which it began. (The mechanism is what is compared here; who
should run when is a policy's matter.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Shift = Mapping[int, int]
"""Who runs in a quantum: the slot of each job."""


def turns(jobs: int, slots: int, quanta: int, *, rebind: bool) -> list[Shift]:
    """Return who runs where in each quantum; jobs begin on slots in turn."""
    home = {job: job % slots for job in range(jobs)}
    given, last = dict.fromkeys(range(jobs), 0), dict(home)
    made: list[Shift] = []
    for _ in range(quanta):
        order = sorted(range(jobs), key=lambda job: (given[job], job))
        shift = _any_slot(order, last, slots) if rebind else _own_slot(order, home)
        for job, slot in shift.items():
            given[job] += 1
            last[job] = slot
        made.append(shift)
    return made


def _own_slot(order: Sequence[int], home: Mapping[int, int]) -> dict[int, int]:
    taken: dict[int, int] = {}
    for job in order:
        taken.setdefault(home[job], job)
    return {job: slot for slot, job in taken.items()}


def _any_slot(order: Sequence[int], last: Mapping[int, int], slots: int) -> dict[int, int]:
    """Give a slot to the first of `order`: its last one where that is not taken."""
    shift: dict[int, int] = {}
    free = dict.fromkeys(range(slots))
    runs = order[:slots]
    for job in runs:
        if last[job] in free:
            del free[last[job]]
            shift[job] = last[job]
    for job in runs:
        if job not in shift:
            shift[job] = next(iter(free))
            del free[shift[job]]
    return shift


def counts(shifts: Sequence[Shift], jobs: int) -> list[int]:
    """Return how many quanta each job had."""
    return [sum(job in shift for shift in shifts) for job in range(jobs)]


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 if all have the same, 1/n if one has everything.

    R. Jain, D. Chiu, W. Hawe: "A quantitative measure of fairness", DEC-TR-301, 1984, eq. (2).
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def spread(shares: Sequence[float]) -> float:
    """Return what the one with least has of what the one with most has."""
    return min(shares) / max(shares) if max(shares) else 1.0
