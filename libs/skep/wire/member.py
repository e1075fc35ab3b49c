"""One node's part of a gang."""

from __future__ import annotations

from skep.wire.message import Message


class Member(Message, frozen=True):
    """One node's part of a gang: `devices[i]` are the GPUs of rank `first_rank + i`.

    `levels[i]` is the level of the VC's cell that covers them (1 is one GPU); 0, or without
    `levels`, none does: the rank runs opportunistically.
    """

    node: str
    identity: str
    first_rank: int
    devices: tuple[tuple[int, ...], ...]
    levels: tuple[int, ...] = ()
