"""Which ranks of a gang are slow, from what of a mini-batch each spends on its own.

    own times of all ranks --(every LOOK)--> beyond the gang's median? --HELD looks--> slow
                                                          --HELD looks not--> over

A rank is compared with the lower median of its gang, so that up to half of the ranks may be slow:
two ranks on a slow node, or one of two. What is little of a mini-batch says nothing, however many
times the median it is. While more than RANKS_MAX ranks are beyond it, none of them counts as such.
A rank of which nothing was heard between two looks is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from skep.units import seconds
from skep.wire.held_up import RANKS_MAX, OwnTime

LOOK = seconds(10.0)
"""Two reports of each rank: its own time is that of its latest 64 mini-batches."""

FACTOR_MILLI = 1300
"""How far beyond the median an own time has to be: ranks of equal work differ by a tenth."""

SHARE_MILLI = 100
"""How much of a mini-batch what is beyond the median has to be: less is not worth a look."""

CALM_FACTOR_MILLI, CALM_SHARE_MILLI = 1150, 50
"""Below either of these a slow rank is slow no more: half way back, so that none flaps."""

HELD = 6
"""Looks in a row, a minute in all: an evaluation, a checkpoint or noise of the CPU is shorter."""

SAID_EVERY = 6
"""Looks after which a rank that is still slow is said to be: a message may be lost."""

assert CALM_FACTOR_MILLI < FACTOR_MILLI
assert CALM_SHARE_MILLI < SHARE_MILLI


class Slow(NamedTuple):
    """A rank that is slow, or no more."""

    rank: int
    own_ns: int
    usual_ns: int
    loads: bool
    """Most of what is beyond the median is its data loader's."""
    over: bool = False


class SlowWatch:
    """The ranks of one gang. Bounded by the number of ranks that are looked at."""

    __slots__ = ("_held", "_looks", "slow")

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        """By rank: for how many looks in a row it has been otherwise than is said of it."""
        self._looks = 0
        self.slow: dict[int, bool] = {}
        """The ranks that are said to be slow, and whether that is for their loaders."""

    def look(self, owns: Mapping[int, OwnTime], step_ns: int) -> list[Slow]:
        """Compare the ranks; return those that are slow since now, slow no more, and still slow.

        Args:
            owns: What each rank has reported since the last look.
            step_ns: What a mini-batch of the gang takes, in nanoseconds.
        """
        if len(owns) < 2 or step_ns <= 0:
            return []
        self._looks += 1
        usual_ns = _lower_median([own.own_ns for own in owns.values()])
        usual_load_ns = _lower_median([own.load_ns for own in owns.values()])
        beyond = {
            rank
            for rank, own in owns.items()
            if _beyond(own, usual_ns, usual_load_ns, step_ns, calm=rank in self.slow)
        }
        if len(beyond | (self.slow.keys() - owns.keys())) > RANKS_MAX:
            beyond.clear()
        found = []
        for rank, own in sorted(owns.items()):
            said = self._turn(rank, beyond=rank in beyond)
            if said is None:
                continue
            if not said:
                loads = self.slow.pop(rank)
                found.append(Slow(rank, own.own_ns, usual_ns, loads, over=True))
                continue
            more_ns, more_load_ns = own.own_ns - usual_ns, own.load_ns - usual_load_ns
            # A loader's time that is hidden in the own time of all is beyond that of the gang too.
            loads = 2 * more_load_ns >= more_ns
            self.slow[rank] = loads
            told_ns = max(own.own_ns, usual_ns + more_load_ns)
            found.append(Slow(rank, told_ns, usual_ns, loads))
        return found

    def leave(self, world: int) -> list[int]:
        """Forget the ranks that a gang of this size has no more; return those that were slow."""
        self._held = {rank: held for rank, held in self._held.items() if rank < world}
        gone = [rank for rank in self.slow if rank >= world]
        for rank in gone:
            del self.slow[rank]
        return gone

    def _turn(self, rank: int, *, beyond: bool) -> bool | None:
        """Return whether a rank is to be said to be slow (or slow no more); None: nothing is."""
        slow = rank in self.slow
        if beyond is slow:
            self._held.pop(rank, None)
            return True if slow and self._looks % SAID_EVERY == 0 else None
        held = self._held[rank] = self._held.get(rank, 0) + 1
        if held < HELD or (not slow and len(self.slow) >= RANKS_MAX):
            return None
        del self._held[rank]
        return beyond


def _beyond(own: OwnTime, usual_ns: int, usual_load_ns: int, step_ns: int, *, calm: bool) -> bool:
    """Return whether a rank's own time, or that of its loader, is far beyond its gang's."""
    factor = CALM_FACTOR_MILLI if calm else FACTOR_MILLI
    share = CALM_SHARE_MILLI if calm else SHARE_MILLI
    return any(
        mine * 1000 > usual * factor and (mine - usual) * 1000 > step_ns * share
        for mine, usual in ((own.own_ns, usual_ns), (own.load_ns, usual_load_ns))
    )


def _lower_median(values: list[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]
