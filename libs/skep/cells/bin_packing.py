"""Assign workers to nodes by trial, for gangs of unequal workers.

For equal workers it is right to put the largest first onto the nodes with the most free GPUs. For
unequal ones that misses some packings: 3, 2 and 2 GPUs on nodes with 4 and 3. A trial of all is
exponential, so it is bounded; the bound is beyond what gangs of a dozen workers need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STEPS = 4096
"""The number of bins that are looked at before a packing is given up: some milliseconds."""

WORKERS_MAX = 64
"""The most workers of a gang for which packings are tried."""


class Bin(NamedTuple):
    """Free capacity for workers: GPUs, and the node whose other resources they share."""

    room: int
    node: str = ""
    most: int | None = None
    """For how many workers the node has other resources; None: they limit nothing."""


def pack_workers(bins: Sequence[Bin], sizes: Sequence[int]) -> list[list[int]] | None:
    """Return the workers of each bin, or None if no packing is found.

    Args:
        bins: Free GPUs.
        sizes: The GPUs of each worker, descending.

    Returns:
        By bin, the GPUs of each of its workers.
    """
    if len(sizes) > WORKERS_MAX or sum(each.room for each in bins) < sum(sizes):
        return None
    trial = _Trial(bins, sizes)
    return trial.got if trial.place(0, 0) else None


def workers_fit(bins: Sequence[Bin], sizes: Sequence[int]) -> bool | None:
    """Return whether workers fit, or None if trying takes too long.

    Args:
        bins: Free GPUs.
        sizes: The GPUs of each worker, descending.
    """
    if len(sizes) > WORKERS_MAX:
        return None if sum(each.room for each in bins) >= sum(sizes) else False
    trial = _Trial(bins, sizes)
    found = trial.place(0, 0)
    return None if trial.steps > STEPS and not found else found


class _Trial:
    def __init__(self, bins: Sequence[Bin], sizes: Sequence[int]) -> None:
        self.bins, self.sizes = bins, sizes
        # The tightest first: what is left of a bin is then large, or too small for any worker.
        self.order = sorted(range(len(bins)), key=lambda each: bins[each].room)
        self.room = [each.room for each in bins]
        self.most = {each.node: each.most for each in bins}
        self.got: list[list[int]] = [[] for _ in bins]
        self.steps = 0

    def place(self, worker: int, begin: int) -> bool:
        """Place this worker and those after it; one of the same size goes no further forward."""
        if worker == len(self.sizes):
            return True
        gpus, seen = self.sizes[worker], dict[tuple[int, str], None]()
        for position in range(begin, len(self.order)):
            self.steps += 1
            if self.steps > STEPS:
                return False
            each = self.order[position]
            node = self.bins[each].node
            most = self.most[node]
            # Two bins with the same room are alike, unless what else the node has is limited.
            alike = (self.room[each], "" if most is None else node)
            if self.room[each] < gpus or most == 0 or alike in seen:
                continue
            seen[alike] = None
            self._move(each, gpus, 1)
            equal = worker + 1 < len(self.sizes) and self.sizes[worker + 1] == gpus
            if self.place(worker + 1, position if equal else 0):
                return True
            self._move(each, gpus, -1)
        return False

    def _move(self, each: int, gpus: int, sign: int) -> None:
        self.room[each] -= sign * gpus
        node = self.bins[each].node
        most = self.most[node]
        if most is not None:
            self.most[node] = most - sign
        if sign > 0:
            self.got[each].append(gpus)
        else:
            self.got[each].pop()
