"""What one virtual cluster owns of a chain, and where what it has bound is idle."""

from __future__ import annotations

from collections.abc import Iterator

from skep.cells.forest import Forest, Index


class Pool:
    """A VC's cells of one chain, or (`pin`) one pinned cell of it.

    `left[l]` are its cells of level `l` that are bound to nothing. Idle room in bound cells is
    kept by *unit*: a node, or a bound cell below node level; a worker never spans units.
    """

    def __init__(self, vc: str, total: list[int], node_level: int, pin: str = "") -> None:
        """Start with everything unbound."""
        self.vc, self.pin = vc, pin
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

    def tightest(self, gpus: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
        """Yield units with at least so many idle GPUs as (level, index), the tightest first."""
        return _tightest(self.units, gpus, sizes)

    def tightest_loose(self, gpus: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
        """Yield units with room for so many GPUs if opportunistic jobs went."""
        return _tightest(self.loose, gpus, sizes)

    def roomiest(self, *, loose: bool = False) -> Iterator[tuple[int, int]]:
        """Yield every unit with room, the one with most idle GPUs first."""
        buckets = self.loose if loose else self.units
        for idle in range(max((max(each, default=0) for each in buckets), default=0), 0, -1):
            for level in range(len(buckets) - 1, 0, -1):
                for index in buckets[level].get(idle, ()):
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


def _tightest(
    buckets: list[dict[int, Index]], gpus: int, sizes: list[int]
) -> Iterator[tuple[int, int]]:
    top = len(buckets) - 1
    levels = [level for level in range(1, top + 1) if sizes[level] >= gpus and buckets[level]]
    if levels:
        for idle in range(gpus, sizes[top] + 1):
            for level in levels:
                for index in buckets[level].get(idle, ()):
                    yield level, index


def _drop(buckets: dict[int, Index], key: int, index: int) -> None:
    bucket = buckets[key]
    del bucket[index]
    if not bucket:
        del buckets[key]
