"""The ranks of a part of a gang, as its node is sent them."""

from __future__ import annotations

import msgspec

from skep.wire.commands import RankPlan, Resize
from skep.wire.facts import Member


def told_to(member: Member, change: Resize) -> Resize:
    """Return a change of size as one node of a gang is told it: with the ranks that are its."""
    return msgspec.structs.replace(change, ranks=plans(member, change.world))


def plans(member: Member, world: int) -> tuple[RankPlan, ...]:
    """Return the ranks of a part that a gang of this size has.

    Args:
        member: The part: its ranks' numbers and devices.
        world: The number of ranks of the gang.

    Returns:
        One for each rank with a number below `world`.
    """
    pairs = zip(member.numbers, member.devices, strict=True)
    return tuple(
        RankPlan(rank=rank, local_rank=i, devices=devices)
        for i, (rank, devices) in enumerate(pairs)
        if rank < world
    )
