"""Whether the cells that virtual clusters own are available all at once, per chain and level.

Cells of one level are alike, and a cell of a higher level is a fixed number of those below. So from
the top down: what is left of a level after its quota is split, and pinned cells leave some siblings
over. The assignment exists if and only if these together cover the quota of the next level (HiveD
section 3.3, initial assignment). Pinned cells of virtual clusters are removed first; a pinned cell
that no VC owns is only a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from skep.cells.levels import cells_by_level, fanouts, level_names
from skep.wire.cluster import Chain, Cluster


class Short(msgspec.Struct, frozen=True):
    """One level of a chain whose quota cannot be met: the cells wanted, and those available."""

    chain: str
    level: str
    wanted: int
    there: int

    @property
    def by(self) -> int:
        """Return how many cells are short."""
        return self.wanted - self.there


class Stock:
    """The cells of one chain by level, 0 for one GPU: available ones, and those that are taken.

    `loose[level]` are whole cells that exist beside those that a whole cell of the level above
    would give: all top cells, and the siblings that pinned cells leave over.
    """

    def __init__(self, chain: Chain, pinned: Sequence[tuple[int, int]] = ()) -> None:
        """Take the pinned cells out of the chain.

        Args:
            chain: The chain.
            pinned: Their levels and indexes; none is within another.
        """
        self.fanouts = fanouts(chain)
        self.top = len(self.fanouts) - 1
        self.loose = [0] * (self.top + 1)
        self.taken = [0] * (self.top + 1)
        self.loose[self.top] = cells_by_level(chain)[self.top]
        split: dict[int, None] = {}
        for level in range(self.top, -1, -1):
            # A cell of this level that is pinned or contains a pinned one is not whole.
            self.loose[level] += len(split) * self.fanouts[level + 1] if split else 0
            gone = dict.fromkeys(
                index // self._cells_between(at, level) for at, index in pinned if at <= level
            )
            self.loose[level] -= len(gone)
            split = dict.fromkeys(
                index // self._cells_between(at, level) for at, index in pinned if at < level
            )

    def _cells_between(self, low: int, high: int) -> int:
        count = 1
        for level in range(low + 1, high + 1):
            count *= self.fanouts[level]
        return count

    def left(self, level: int) -> int:
        """Return the cells of a level that are left after what is taken of it and above."""
        cells = 0
        for at in range(self.top, level - 1, -1):
            up = self.fanouts[at + 1] if at < self.top else 0
            cells = cells * up + self.loose[at] - self.taken[at]
        return cells

    def needed(self, level: int) -> int:
        """Return the cells of a level that must be split for what is taken below it."""
        cells = 0
        for at in range(1, level + 1):
            wanted = cells + self.taken[at - 1] - self.loose[at - 1]
            cells = max(0, -(-wanted // self.fanouts[at]))
        return cells

    def usable(self, level: int) -> int:
        """Return how many more cells of a level can be taken."""
        return self.left(level) - self.needed(level)

    def short(self) -> list[tuple[int, int, int]]:
        """Return what cannot be met, from the top down.

        Each shortage is counted as if the levels above were reduced to what is available.

        Returns:
            For each such level: its number, the cells wanted, the cells available.
        """
        found: list[tuple[int, int, int]] = []
        cells = 0
        for level in range(self.top, -1, -1):
            up = self.fanouts[level + 1] if level < self.top else 0
            cells = cells * up + self.loose[level]
            if self.taken[level] > cells:
                found.append((level, self.taken[level], cells))
            cells = max(0, cells - self.taken[level])
        return found


def stocks(cluster: Cluster) -> dict[str, Stock]:
    """Return every chain's cells, less what the virtual clusters own by `pinned` and `cells`."""
    pinned: dict[str, list[tuple[int, int]]] = {name: [] for name in cluster.chains}
    for vc in cluster.vcs.values():
        for name in vc.pinned:
            pin = cluster.pins[name]
            level = level_names(cluster.chains[pin.chain]).index(pin.level)
            pinned[pin.chain].append((level, pin.index))
    made = {name: Stock(chain, pinned[name]) for name, chain in cluster.chains.items()}
    for vc in cluster.vcs.values():
        for quota in vc.cells:
            level = level_names(cluster.chains[quota.chain]).index(quota.level)
            made[quota.chain].taken[level] += quota.count
    return made


def shortages(cluster: Cluster) -> Iterator[Short]:
    """Yield the quotas that cannot be met, per chain from the top down; none: it is feasible.

    Args:
        cluster: Its names and pinned cells are right. The shorthand `gpus` is not counted.
    """
    for name, stock in stocks(cluster).items():
        levels = level_names(cluster.chains[name])
        for level, wanted, there in stock.short():
            yield Short(name, levels[level], wanted, there)


def gpus_short(cluster: Cluster) -> int:
    """Return how many GPUs are missing for the shorthand `gpus`, given a feasible rest."""
    there = sum(stock.left(0) for stock in stocks(cluster).values())
    return max(0, sum(vc.gpus for vc in cluster.vcs.values()) - there)
