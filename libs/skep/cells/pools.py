"""What one virtual cluster owns of a chain, and where its bound cells have free GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from skep.cells.forest import Forest, Index


class Pool:
    """A VC's cells of one chain, or (`pin`) one pinned cell of it.

    `total[l]` are its cells of level `l`, and `left[l]` those that are not bound. Free GPUs in
    bound cells are listed by *unit*: a node, or a bound cell below node level; a worker never spans
    units.
    """

    def __init__(self, vc: str, total: list[int], node_level: int, pin: str = "") -> None:
        """Start with everything unbound.

        Args:
            vc: The virtual cluster.
            total: By level, how many cells it owns.
            node_level: The level that is one node.
            pin: The name of the pinned cell; empty: the VC's other cells.
        """
        self.vc, self.pin = vc, pin
        self.in_order = False
        """Whether the first of equal units in the chain is taken, as some published simulators do,
        and the first of equal nodes in a cell. Else the unit that has been equal for longest is
        taken, which needs no search."""
        self.total = total
        self.left = list(total)
        self.bound: dict[tuple[int, int], VirtualCell] = {}
        self.loose: list[dict[int, Index]] = [{} for _ in range(node_level + 1)]
        """By level of the unit, by GPUs that are idle or would be without opportunistic jobs: the
        units that have had as many for longest come first. So the order depends only on the VC's
        own history, and is the same in a private cluster."""
        self._room: dict[tuple[int, int], int] = {}
        self.freed = 0
        """Counts how often something of its cells came free."""
        self.bindings = 0
        """Counts how often one of its cells was bound, or is not bound any longer."""

    def list_unit(self, forest: Forest, level: int, index: int) -> None:
        """List a unit by its free GPUs; while their number is the same, it keeps its place.

        Args:
            forest: The counts of the chain.
            level: The level of the unit.
            index: Its index.
        """
        room = forest.topology.size[level] - forest.firm[level][index]
        before = self._room.get((level, index))
        if before != room:
            if before is not None:
                _drop(self.loose[level], before, index)
                self.freed += room > before
            self._room[level, index] = room
            self.loose[level].setdefault(room, {})[index] = None

    def unlist_unit(self, level: int, index: int) -> None:
        """Remove a unit that is not bound any longer."""
        _drop(self.loose[level], self._room.pop((level, index)), index)
        self.freed += 1

    def most_gpus(self, sizes: list[int]) -> int:
        """Return how many GPUs a gang could have at most if only opportunistic jobs yield.

        Args:
            sizes: GPUs of a cell, by level.
        """
        room = 0
        for left, size in zip(self.left, sizes, strict=True):
            room += left * size
        for units in self.loose:
            for idle, group in units.items():
                room += idle * len(group)
        return room

    def may_hold(self, members: Sequence[tuple[int, int]], sizes: list[int]) -> bool:
        """Return False if a gang finds no place even if all opportunistic jobs yield.

        A worker never spans units. So the workers of each size and the larger ones have to find
        their places in the units one by one; that they do is necessary, but may not suffice.

        Args:
            members: How many workers of how many GPUs.
            sizes: GPUs of a cell, by level.
        """
        wanted = 0
        for workers, gpus in sorted(members, key=lambda each: -each[1]):
            wanted += workers
            if self.places(gpus, sizes) < wanted:
                return False
        return len(members) == 1 or self.most_gpus(sizes) >= sum(
            each[0] * each[1] for each in members
        )

    def places(self, gpus: int, sizes: list[int]) -> int:
        """Return for how many workers the units have GPUs at most if opportunistic jobs yield.

        Args:
            gpus: GPUs of a worker.
            sizes: GPUs of a cell, by level.
        """
        places = self.unbound_places(gpus, sizes)
        for units in self.loose:
            for idle, group in units.items():
                places += idle // gpus * len(group)
        return places

    def unbound_places(self, gpus: int, sizes: list[int]) -> int:
        """Return for how many workers cells that are not bound have GPUs; see `places`."""
        node_size, places = sizes[len(self.loose) - 1], 0
        for left, size in zip(self.left, sizes, strict=True):
            if left:
                unit = min(size, node_size)
                places += left * (size // unit) * (unit // gpus)
        return places

    def units_with_room(self, gpus: int, sizes: list[int]) -> Iterator[tuple[int, int, Index]]:
        """Yield the units with room for so many GPUs, in groups of equal room, the tightest first.

        Room is what is idle, or would be without opportunistic jobs.

        Args:
            gpus: GPUs wanted on one unit.
            sizes: GPUs of a cell, by level.

        Yields:
            Level, room, and the units in the order in which they came to have it.
        """
        top = len(self.loose) - 1
        levels = [level for level in range(1, top + 1) if sizes[level] >= gpus]
        for room in range(gpus, sizes[top] + 1):
            for level in levels:
                group = self.loose[level].get(room)
                if group:
                    yield level, room, group

    def roomiest(self) -> Iterator[tuple[int, int, Index]]:
        """Yield every unit with room, in groups of equal room, those with most first.

        Yields:
            Level, room, and the units in the order in which they came to have it.
        """
        for room in range(max((max(each, default=0) for each in self.loose), default=0), 0, -1):
            for level in range(len(self.loose) - 1, 0, -1):
                group = self.loose[level].get(room)
                if group:
                    yield level, room, group


class VirtualCell:
    """One cell of a pool that is bound to a physical cell.

    `used` counts its GPUs that guaranteed jobs of the VC have or claim. A *bad cell* is bound
    because healthy cells no longer suffice for all that VCs own (HiveD's doomed bad cell).
    """

    __slots__ = ("bad_cell", "index", "level", "number", "pool", "used")

    def __init__(self, pool: Pool, level: int, index: int, *, bad_cell: bool = False) -> None:
        """Describe a binding.

        Args:
            pool: The pool of the VC.
            level: The level of the cell.
            index: Its index in the chain.
            bad_cell: Whether it is bound as a bad cell.
        """
        self.pool, self.level, self.index = pool, level, index
        self.used, self.bad_cell = 0, bad_cell
        taken = {cell.number for (at, _), cell in pool.bound.items() if at == level}
        self.number: int = next(each for each in count() if each not in taken)
        """Its number among the VC's cells of its level, whatever hardware it is bound to."""


def _drop(buckets: dict[int, Index], key: int, index: int) -> None:
    bucket = buckets[key]
    del bucket[index]
    if not bucket:
        del buckets[key]
