"""Which rank of a gang that makes no mini-batches keeps the others, from where each stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from skep.wire.standing import Hang, Standing

NAMED_MAX = 8
"""Ranks that are named: what keeps more is no rank."""

COLLECTIVES_MAX = 3
"""Collectives that are named where ranks wait in different ones."""


class Blame(NamedTuple):
    """What keeps a gang."""

    code: Hang
    ranks: tuple[int, ...]
    """The ranks that keep the others, the lowest first."""
    text: str


def blame(stands: Mapping[int, Standing | None]) -> Blame | None:
    """Return what keeps a gang; None if nothing is known.

    Args:
        stands: By rank, where it stands; None: it does not say.
    """
    known = {rank: each for rank, each in sorted(stands.items()) if each is not None}
    found = _blame(stands, known) if known else None
    if found is None:
        return None
    return found._replace(text=f"{found.text}{_record(found.ranks, known)}")


def _blame(stands: Mapping[int, Standing | None], known: Mapping[int, Standing]) -> Blame | None:
    mute = [rank for rank in sorted(stands) if stands[rank] is None]
    most = max(each.entered for each in known.values())
    behind = [rank for rank, each in known.items() if each.entered < most]
    name = next((one.collective for one in known.values() if one.entered == most), "")
    waiting = [rank for rank, one in known.items() if one.entered == most and one.waits]
    if behind and waiting:
        lines = _lines({rank: known[rank] for rank in behind})
        others = "1 rank waits" if len(waiting) == 1 else f"{len(waiting)} ranks wait"
        text = f"{_ranks(behind)} not entered collective {most} ({name}), in which {others}{lines}"
        return Blame(Hang.BEHIND, tuple(behind[:NAMED_MAX]), text)
    if mute:
        text = f"{_ranks(mute)} not said where it stands: its process runs no Python"
        return Blame(Hang.MUTE, tuple(mute[:NAMED_MAX]), text)
    if len(known) > 1 and len(waiting) == len(known):
        text = f"all {len(known)} ranks wait in collective {most}{_called(known)}{_lines(known)}"
        return Blame(Hang.TOGETHER, (), text)
    if len(known) == 1:
        (rank,) = known
        if not known[rank].line:
            return None
        return Blame(Hang.ALONE, (rank,), f"it stands at {known[rank].line}")
    return None


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:NAMED_MAX]))
    more = "" if len(ranks) <= NAMED_MAX else f" and {len(ranks) - NAMED_MAX} more"
    return f"rank {named} has" if len(ranks) == 1 else f"ranks {named}{more} have"


def _called(known: Mapping[int, Standing]) -> str:
    """Return which collective ranks wait in, or in which ones where they differ."""
    first: dict[str, int] = {}
    for rank, one in known.items():
        first.setdefault(one.collective, rank)
    if len(first) == 1:
        return f" ({next(iter(first))})"
    named = [f"rank {rank} in {name}" for name, rank in list(first.items())[:COLLECTIVES_MAX]]
    return f", and not in the same one: {', '.join(named)}"


def _record(ranks: tuple[int, ...], known: Mapping[int, Standing]) -> str:
    """Return where what torch recorded is: of a rank that keeps the others, if it has said so."""
    order = sorted(known, key=lambda rank: (rank not in ranks, rank))
    return next((f"; recorded in {known[rank].record}" for rank in order if known[rank].record), "")


def _lines(known: Mapping[int, Standing]) -> str:
    lines = sorted({each.line for each in known.values() if each.line})
    return f"; at {', '.join(lines[:2])}" if lines else ""
