"""The shape of one chain: levels, sizes, and which cell contains which, all by arithmetic.

Cells of a level are numbered from 0 in the order of the tree, so the children of cell `i` of level
`l` are `i * fan[l]` to `i * fan[l] + fan[l] - 1` of the level below, and its GPUs are `i * size[l]`
to `(i + 1) * size[l] - 1`. Level 1 is one GPU (a leaf); level 0 does not exist, so lists by level
have an unused first entry.
"""

from __future__ import annotations

from bisect import bisect_left

from skep.wire.cluster import Chain


class Topology:
    """The shape of a chain, which never changes."""

    def __init__(self, name: str, chain: Chain) -> None:
        """Lay out a chain.

        Args:
            name: The name of the chain.
            chain: Its levels and nodes; the nodes fill its top cells.
        """
        self.name = name
        self.chain = chain
        self.gpu = chain.gpu
        self.levels = ("", chain.leaf, *(level.name for level in chain.levels))
        self.top = len(self.levels) - 1
        self.node_level = self.levels.index(chain.node_level)
        self.fan = [0, 0, *(level.fanout for level in chain.levels)]
        """By level: how many cells of the level below make one."""
        self.size = [0, 1]
        """By level: GPUs of one cell."""
        for fan in self.fan[2:]:
            self.size.append(self.size[-1] * fan)
        self.node_size = self.size[self.node_level]
        self.leaves = len(chain.nodes) * self.node_size
        assert self.leaves % self.size[self.top] == 0, f"{name}: its nodes do not fill its cells"
        self.count = [0, *(self.leaves // size for size in self.size[1:])]
        """By level: cells of the chain."""
        self.nodes = tuple(cell.node for cell in chain.nodes)
        self.node_index = {node: index for index, node in enumerate(self.nodes)}
        self._devices = {
            index: cell.devices for index, cell in enumerate(chain.nodes) if cell.devices
        }

    def level(self, name: str) -> int | None:
        """Return the number of a level by its name; None: the chain has no such level."""
        return self.levels.index(name) if name in self.levels[1:] else None

    def level_for(self, gpus: int) -> int | None:
        """Return the lowest level whose cells have at least so many GPUs; None: there is none."""
        level = bisect_left(self.size, gpus, 1)
        return level if level <= self.top else None

    def up(self, leaf: int, level: int) -> int:
        """Return the index of the cell of a level that contains a leaf."""
        return leaf // self.size[level]

    def span(self, level: int, index: int) -> range:
        """Return the leaves of a cell."""
        size = self.size[level]
        return range(index * size, (index + 1) * size)

    def within(self, level: int, index: int, lower: int) -> range:
        """Return the cells of a lower (or the same) level in a cell.

        Args:
            level: The level of the cell.
            index: Its index.
            lower: The level of the cells that are returned.
        """
        each = self.size[level] // self.size[lower]
        return range(index * each, (index + 1) * each)

    def node(self, leaf: int) -> str:
        """Return the name of the node of a leaf."""
        return self.nodes[leaf // self.node_size]

    def device(self, leaf: int) -> int:
        """Return the device index of a leaf on its node."""
        if not self._devices:
            return leaf % self.node_size
        node, place = divmod(leaf, self.node_size)
        devices = self._devices.get(node)
        return place if devices is None else devices[place]

    def leaf(self, node: str, device: int) -> int | None:
        """Return the leaf of a node's device; None: it is not in this chain."""
        index = self.node_index.get(node)
        if index is None:
            return None
        devices = self._devices.get(index)
        if devices is None:
            return index * self.node_size + device if 0 <= device < self.node_size else None
        return index * self.node_size + devices.index(device) if device in devices else None

    def address(self, level: int, index: int) -> str:
        """Return a readable name of a cell: its path from the top, as `rack 0/n3/socket 1`.

        Args:
            level: The level of the cell.
            index: Its index.
        """
        words = []
        for each in range(self.top, level - 1, -1):
            cell = index * self.size[level] // self.size[each]
            if each == self.node_level:
                words.append(self.nodes[cell])
                continue
            place = cell if each == self.top else cell % self.fan[each + 1]
            named = self.chain.names.get(f"{self.levels[each]}/{cell}")
            words.append(named or f"{self.levels[each]} {place}")
        return "/".join(words)
