"""What is known of the time of jobs in pieces, and back: a start need not read the whole log."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skep.ledger.blame.holders import Holders
from skep.ledger.blame.lives import Life
from skep.ledger.blame.state import Blame
from skep.ledger.blame.told import Total
from skep.ledger.blame.usage import Group, Tally


class BlameKept(msgspec.Struct, frozen=True, kw_only=True, tag="blame-kept"):
    """Everything that no other piece has. Comes first.

    `position` is how far it goes in its log, `usage` whether what people had is among the pieces:
    an earlier version kept none of it.
    """

    position: int
    clock: int
    users: dict[str, list[str]]
    kinds: dict[str, str]
    lost: dict[str, None]
    totals: dict[str, Total]
    usage: bool = False


class LifeKept(msgspec.Struct, frozen=True, tag="life-kept"):
    """A job that has not ended. They come in the order of their arrival."""

    life: Life


class HoldersKept(msgspec.Struct, frozen=True, tag="holders-kept"):
    """The holders of what is waited for in a scope, with GPUs of a type."""

    scope: str
    wanted: str
    holders: Holders


class UsageKept(msgspec.Struct, frozen=True, tag="usage-kept"):
    """What ended jobs of a person, project and type of GPU had, by day."""

    group: Group
    days: dict[int, Tally]


Kept = BlameKept | LifeKept | HoldersKept | UsageKept


def keep(blame: Blame, position: int = 0) -> Iterator[Kept]:
    """Yield the pieces from which `restore` makes the same, in that order.

    Args:
        blame: The pieces share structures with it: encode each before the next fact.
        position: How far it goes, for the caller.
    """
    yield BlameKept(
        position=position,
        clock=blame.clock,
        users=blame.users,
        kinds=blame.kinds,
        lost=blame.lost,
        totals=blame.totals,
        usage=True,
    )
    for group, days in blame.usage.items():
        yield UsageKept(group, days)
    for life in blame.lives.values():
        yield LifeKept(life)
    for scope, groups in blame.groups.items():
        for wanted, holders in groups.items():
            yield HoldersKept(scope, wanted, holders)


def restore(blame: Blame, kept: Kept) -> int:
    """Take over one piece; return the position that it names, or 0."""
    match kept:
        case BlameKept():
            blame.clock, blame.users, blame.kinds = kept.clock, kept.users, kept.kinds
            blame.lost, blame.totals = kept.lost, kept.totals
            return kept.position
        case UsageKept():
            blame.usage[kept.group] = kept.days
        case LifeKept():
            blame.lives[kept.life.job] = kept.life
        case HoldersKept():
            blame.groups.setdefault(kept.scope, {})[kept.wanted] = kept.holders
    return 0
