"""What one virtual cluster owns of a chain, and where what it has bound is idle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from skep.cells.forest import Forest, Index


class Pool:
    """A VC's cells of one chain, or (`pin`) one pinned cell of it.

    `left[l]` are its cells of level `l` that are bound to nothing. Idle room in bound cells is
    kept by *unit*: a node, or a bound cell below node level; a worker never spans units.
    """

    def __init__(self, vc: str, total: list[int], node_level: int, pin: str = "") -> None:
        """Start with everything unbound."""
        self.vc, self.pin = vc, pin
        self.in_order = False
        """Whether of units alike the first of the chain is taken, as some published simulators do:
        else whichever has been so for longest, which costs no search."""
        self.total = total
        self.left = list(total)
        self.bound: dict[tuple[int, int], VCell] = {}
        self.units: list[dict[int, Index]] = [{} for _ in range(node_level + 1)]
        """By level of the unit, by idle GPUs."""
        self.loose: list[dict[int, Index]] = [{} for _ in range(node_level + 1)]
        """By level of the unit, by GPUs that are idle or would be without opportunistic jobs."""

    def enter(self, forest: Forest, level: int, index: int) -> None:
        """List a unit under its present counts."""
        size = forest.topology.size[level]
        self.units[level].setdefault(size - forest.busy[level][index], {})[index] = None
        self.loose[level].setdefault(size - forest.firm[level][index], {})[index] = None

    def leave(self, forest: Forest, level: int, index: int) -> None:
        """Unlist a unit, before its counts change."""
        size = forest.topology.size[level]
        _drop(self.units[level], size - forest.busy[level][index], index)
        _drop(self.loose[level], size - forest.firm[level][index], index)

    def room(self, sizes: list[int]) -> int:
        """Return how many GPUs a gang could have at most, if only opportunistic jobs yield."""
        room = 0
        for count, size in zip(self.left, sizes, strict=True):
            room += count * size
        for units in self.loose:
            for idle, group in units.items():
                room += idle * len(group)
        return room

    def alike(self, gpus: int, sizes: list[int], most: int) -> Iterator[Iterator[tuple[int, int]]]:
        """Yield groups of units with equal room for so many GPUs, the tightest rooms first.

        Room is what is idle or would be without opportunistic jobs. Of a group first units that
        are idle enough as they are; at most so many of those, and of others.
        """
        top = len(self.loose) - 1
        levels = [level for level in range(1, top + 1) if sizes[level] >= gpus]
        for room in range(gpus, sizes[top] + 1):
            for level in levels:
                group = self.loose[level].get(room)
                if group:
                    yield self._idle_first(level, group, (gpus, room), most)

    def _idle_first(
        self, level: int, group: Index, wanted: tuple[int, int], most: int
    ) -> Iterator[tuple[int, int]]:
        units, (gpus, room) = self.units[level], wanted
        if self.in_order:
            alike = (index for idle in range(room, gpus - 1, -1)
                     for index in sorted(units.get(idle, ())) if index in group)  # fmt: skip
            yield from ((level, index) for index in (*alike, *sorted(group)))
            return
        # Without opportunistic jobs a unit's idle GPUs are its room.
        seen = 0
        for idle in range(room, gpus - 1, -1):
            for index in units.get(idle, ()):
                if index in group:
                    yield level, index
                seen += 1
                if seen == most:
                    break
        for index in islice(group, most):
            yield level, index

    def roomiest(self, busy: list[list[int]]) -> Iterator[tuple[int, int]]:
        """Yield every unit with room, that with most first, and of equals the least used."""
        for room in range(max((max(each, default=0) for each in self.loose), default=0), 0, -1):
            for level in range(len(self.loose) - 1, 0, -1):
                for index in sorted(self.loose[level].get(room, ()), key=busy[level].__getitem__):
                    yield level, index


class VCell:
    """One cell of a pool that is bound to a physical cell.

    `used` counts its GPUs that guaranteed jobs of the VC have or claim. A *doomed* cell is bound
    because the VC has to bear bad hardware: it is shown what it can still use.
    """

    __slots__ = ("doomed", "index", "level", "pool", "used")

    def __init__(self, pool: Pool, level: int, index: int, *, doomed: bool = False) -> None:
        """Describe a binding."""
        self.pool, self.level, self.index = pool, level, index
        self.used, self.doomed = 0, doomed


def _drop(buckets: dict[int, Index], key: int, index: int) -> None:
    bucket = buckets[key]
    del bucket[index]
    if not bucket:
        del buckets[key]
