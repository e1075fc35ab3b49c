"""One node's part of a gang."""

from __future__ import annotations

from skep.wire.message import Message


class Member(Message, frozen=True):
    """One node's part of a gang: `devices[i]` are the GPUs of rank `first_rank + i`.

    Of a gang that has grown, the ranks of a node need not follow one another: then `ranks` names
    them, ascending, `first_rank` being the first.

    `levels[i]` is the level of the VC's cell that covers them (1 is one GPU); 0, or without
    `levels`, none does: the rank runs opportunistically.

    Of a mixed gang, whose parts are in several chains, `chain` and `gpu_type` say in which one this
    part is, and of which type its GPUs are.
    """

    node: str
    identity: str
    first_rank: int
    devices: tuple[tuple[int, ...], ...]
    levels: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    chain: str = ""
    gpu_type: str = ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the rank of each of `devices`."""
        if self.ranks:
            return self.ranks
        return tuple(range(self.first_rank, self.first_rank + len(self.devices)))
