"""The free cells of one chain: buddy allocation, and counts of what is idle in every cell.

`free[l]` lists the cells of level `l` that no VC has bound and whose parent is not free as a whole
(HiveD Algorithm 1). `owed[l]` is the number of cells of level `l` that virtual clusters own and
have not bound. Two counts are kept for every cell:

- `busy`: its GPUs that are not both healthy and unused; `firm`: those that are bad, used by a
guaranteed job or claimed, so that preempting opportunistic jobs would not free them.
- `clean[l][k]`: for a cell of level `l`, the cells of level `k` in it without a busy GPU.

Indexes over the free cells answer "a clean cell of level k" in the time of a few look-ups, however
many cells there are. Counting costs O(levels^2) per GPU that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from skep.cells.topology import Topology

Index = dict[int, None]
"""Cells of one level, in the order in which they were added."""


class Forest:
    """Free lists and counts of one chain (HiveD Algorithm 1). It knows nothing of jobs."""

    def __init__(self, topology: Topology) -> None:
        """Start with every top cell free, healthy and unused."""
        self.in_order = False
        """Whether untouched cells are taken in the order of the chain (see `Pool.in_order`)."""
        self.topology = shape = topology
        levels = range(shape.top + 1)
        self.busy = [[0] * shape.count[level] for level in levels]
        self.firm = [[0] * shape.count[level] for level in levels]
        self.clean = [
            [
                [shape.size[high] // shape.size[low]] * shape.count[high] if 0 < low < high else []
                for low in levels
            ]
            for high in levels
        ]
        self.free: list[Index] = [{} for _ in levels]
        self.owed = [0 for _ in levels]
        self.whole = [0 for _ in levels]
        """By level: the largest cells without a firm GPU that the free cells consist of."""
        self.by_busy: list[dict[int, Index]] = [{} for _ in levels]
        self.part: list[list[Index]] = [[{} for _ in levels] for _ in levels]
        """`part[l][k]`: the free cells of level l with busy GPUs and a clean cell of level k."""
        self.ill: list[Index] = [{} for _ in levels]
        """The free cells with bad GPUs."""
        self._free_children: list[dict[int, int]] = [{} for _ in levels]
        self._attach_range(shape.top, range(shape.count[shape.top]))
        self.whole[shape.top] = shape.count[shape.top]

    # --- asking ------------------------------------------------------------------------------

    def enclosing_free_level(self, level: int, index: int) -> int:
        """Return the level of the free cell that contains a cell; 0: none does.

        Args:
            level: The level of the cell.
            index: Its index.
        """
        shape = self.topology
        while level <= shape.top:
            if index in self.free[level]:
                return level
            level += 1
            index //= shape.fan[level] if level <= shape.top else 1
        return 0

    def is_safe(self) -> bool:
        """Return whether every owed cell is available (HiveD invariant 2, over all levels)."""
        return _covers([len(cells) for cells in self.free], self.owed, self.topology)

    def deficits(self) -> list[int]:
        """Return, by level, how many of the owed cells are not available without bad hardware."""
        return deficits(self.whole, self.owed, self.topology)

    def can_serve_one_more(self, level: int) -> bool:
        """Return whether one more cell of a level could be owed and served by healthy hardware."""
        owed = list(self.owed)
        owed[level] += 1
        return not any(deficits(self.whole, owed, self.topology))

    def clean_cells(
        self, level: int, skip: Callable[[int, int], bool] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield cells of a level without a busy GPU, in the order of preference.

        The lowest free cells come first, so that large ones stay whole. At each level: first cells
        in free cells with bad GPUs, which serve nothing larger; then in untouched ones; then in
        those where opportunistic jobs use other parts.

        Args:
            level: The level of the cells.
            skip: Is asked for a free cell, by level and index, before each cell in it; True leaves
                out (the rest of) the free cell.

        Yields:
            The index of the cell, and level and index of the free cell that contains it.
        """
        for high in range(level, self.topology.top + 1):
            if high == level:
                untouched: Iterable[int] = self.by_busy[high].get(0, ())
                for cell in sorted(untouched) if self.in_order else untouched:
                    yield cell, high, cell
                continue
            clean = self.clean[high][level]
            ill = [cell for cell in self.ill[high] if clean[cell]]
            part = (cell for cell in self.part[high][level] if cell not in self.ill[high])
            for cells in (ill, self.by_busy[high].get(0, ()), part):
                for cell in cells:
                    if skip is not None and skip(high, cell):
                        continue
                    for each in self.clean_in(high, cell, level):
                        yield each, high, cell
                        if skip is not None and skip(high, cell):
                            break

    def clean_in(self, level: int, index: int, lower: int) -> Iterator[int]:
        """Yield the cells of a lower level in a cell that have no busy GPU.

        Args:
            level: The level of the cell.
            index: Its index.
            lower: The level of the cells that are returned.

        Yields:
            Their indexes.
        """
        inside = self.topology.within(level, index, lower)
        busy, at = self.busy[lower], inside.start
        try:
            while True:
                at = busy.index(0, at, inside.stop)
                yield at
                at += 1
        except ValueError:
            return

    def used_cells(
        self, level: int, skip: Callable[[int, int], bool] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield cells that only opportunistic jobs use, least used free cells first.

        Args:
            level: The level of the cells.
            skip: Is asked for each free cell, by level and index; True leaves it out.

        Yields:
            The index of the cell, and level and index of the free cell that contains it.
        """
        busy, firm = self.busy[level], self.firm[level]
        for high in range(level, self.topology.top + 1):
            for count in sorted(self.by_busy[high]):
                for cell in self.by_busy[high][count] if count else ():
                    if skip is not None and skip(high, cell):
                        continue
                    inside = self.topology.within(high, cell, level)
                    for each in sorted(
                        (i for i in inside if busy[i] and not firm[i]), key=busy.__getitem__
                    ):
                        yield each, high, cell

    # --- changing ----------------------------------------------------------------------------

    def allocate(self, level: int, index: int) -> None:
        """Remove a cell from the free lists; split the free cell around it (HiveD, algorithm 1).

        Args:
            level: The level of the cell.
            index: Its index; it is part of a free cell.
        """
        shape, at, cell = self.topology, level, index
        self._count_whole(level, index, -1)
        while cell not in self.free[at]:
            at += 1
            cell //= shape.fan[at]
        self._detach(at, cell)
        while at > level:
            at -= 1
            kept = index * shape.size[level] // shape.size[at]
            children = shape.within(at + 1, cell, at)
            for part in (range(children.start, kept), range(kept + 1, children.stop)):
                self._attach_range(at, part)
            cell = kept

    def free_and_merge(self, level: int, index: int) -> None:
        """Return a cell to the free lists; merge buddies while all are free (HiveD, algorithm 1).

        Args:
            level: The level of the cell.
            index: Its index; it is not free.
        """
        shape = self.topology
        self._attach(level, index)
        self._count_whole(level, index, 1)
        while level < shape.top:
            parent = index // shape.fan[level + 1]
            if self._free_children[level + 1].get(parent, 0) < shape.fan[level + 1]:
                return
            self._detach_family(level, parent)
            if not self.firm[level + 1][parent]:
                self.whole[level] -= shape.fan[level + 1]
                self.whole[level + 1] += 1
            level, index = level + 1, parent
            self._attach(level, index)

    def add_to_counts(self, leaf: int, busy: int, firm: int) -> None:
        """Add to the counts of every cell that contains a leaf; indexes are `detached` meanwhile.

        Args:
            leaf: The GPU.
            busy: -1, 0 or 1.
            firm: -1, 0 or 1.
        """
        shape, index = self.topology, leaf
        fan, top = shape.fan, shape.top
        for level in range(1, top + 1):
            if firm:
                self.firm[level][index] += firm
            if busy:
                before = self.busy[level][index]
                self.busy[level][index] = before + busy
                if not before or not before + busy:
                    change, cell = (1 if before else -1), index
                    for high in range(level + 1, top + 1):
                        cell //= fan[high]
                        self.clean[high][level][cell] += change
            if level < top:
                index //= fan[level + 1]

    def detach(self, level: int, index: int) -> None:
        """Take a free cell out of the indexes while its counts change."""
        self._unindex(level, index)

    def attach(self, level: int, index: int) -> None:
        """Put a free cell back into the indexes."""
        self._index(level, index)

    def adjust_whole(self, level: int, index: int, leaf: int, *, bad: bool) -> None:
        """Adjust `whole` for a leaf of a free cell that turned bad or healed.

        Called while the leaf does not count as firm: before it turned bad, or after it healed.

        Args:
            level: The level of the free cell.
            index: Its index.
            leaf: The GPU.
            bad: Whether it turned bad, else it healed.
        """
        shape, highest = self.topology, 0
        for at in range(1, level + 1):
            if self.firm[at][shape.up(leaf, at)]:
                break
            highest = at
        if highest:
            self._open(highest, 1, -1 if bad else 1)
            self.whole[1] -= 1 if bad else -1

    def _open(self, high: int, low: int, sign: int) -> None:
        """Count one whole cell of level `high` as split so that one of level `low` appears."""
        self.whole[high] += sign
        for level in range(low, high):
            self.whole[level] -= sign * (self.topology.fan[level + 1] - 1)
        self.whole[low] -= sign

    def _count_whole(self, level: int, index: int, sign: int) -> None:
        """Adjust `whole` for a cell that leaves (-1) the free cells or has joined them (1)."""
        shape = self.topology
        if self.firm[level][index]:
            self._count_parts(level, index, sign)
            return
        high, at, cell = level, level, index
        while cell not in self.free[at]:
            at += 1
            cell //= shape.fan[at]
            if not self.firm[at][cell]:
                high = at
        self._open(high, level, sign)
        self.whole[level] += sign

    def _count_parts(self, level: int, index: int, sign: int) -> None:
        if level == 1:
            return
        lower = self.firm[level - 1]
        children = self.topology.within(level, index, level - 1)
        for child in children:
            if lower[child]:
                self._count_parts(level - 1, child, sign)
            else:
                self.whole[level - 1] += sign

    # --- indexes -----------------------------------------------------------------------------

    def _attach(self, level: int, index: int) -> None:
        self.free[level][index] = None
        if level < self.topology.top:
            parent, counts = index // self.topology.fan[level + 1], self._free_children[level + 1]
            counts[parent] = counts.get(parent, 0) + 1
        self._index(level, index)

    def _detach(self, level: int, index: int) -> None:
        del self.free[level][index]
        if level < self.topology.top:
            parent, counts = index // self.topology.fan[level + 1], self._free_children[level + 1]
            counts[parent] -= 1
            if not counts[parent]:
                del counts[parent]
        self._unindex(level, index)

    def _attach_range(self, level: int, cells: range) -> None:
        """List cells as free: buddies of one parent, or top cells."""
        if not cells:
            return
        busy = self.busy[level]
        dirty = [cell for cell in cells if busy[cell]]
        clean = dict.fromkeys(cells)
        for cell in dirty:
            del clean[cell]
        self.free[level].update(clean)
        if clean:
            self.by_busy[level].setdefault(0, {}).update(clean)
        if level < self.topology.top:
            parent, counts = cells.start // self.topology.fan[level + 1], self._free_children
            counts[level + 1][parent] = counts[level + 1].get(parent, 0) + len(clean)
        for cell in dirty:
            self._attach(level, cell)

    def _detach_family(self, level: int, parent: int) -> None:
        """Unlist all children of a cell of the level above: they are about to be merged."""
        del self._free_children[level + 1][parent]
        busy, free = self.busy[level], self.free[level]
        clean = self.by_busy[level].get(0, {})
        for child in self.topology.within(level + 1, parent, level):
            del free[child]
            if busy[child]:
                self._unindex(level, child)
            else:
                del clean[child]
        if not clean:
            self.by_busy[level].pop(0, None)

    def _index(self, level: int, index: int) -> None:
        busy = self.busy[level][index]
        self.by_busy[level].setdefault(busy, {})[index] = None
        if busy:
            for lower in range(1, level):
                if self.clean[level][lower][index]:
                    self.part[level][lower][index] = None
            if self.firm[level][index]:
                self.ill[level][index] = None

    def _unindex(self, level: int, index: int) -> None:
        busy = self.busy[level][index]
        bucket = self.by_busy[level][busy]
        del bucket[index]
        if not bucket:
            del self.by_busy[level][busy]
        if busy:
            for lower in range(1, level):
                self.part[level][lower].pop(index, None)
            self.ill[level].pop(index, None)


Kind = tuple[int, int]
"""Levels: of what is split to take a cell, and of the largest healthy cell it is part of (or 0)."""


class Draft:
    """A plan to take several cells, checked one after the other. It changes nothing."""

    def __init__(self, forest: Forest) -> None:
        """Begin with the free cells as they are."""
        self._forest = forest
        self._free = [len(cells) for cells in forest.free]
        self._whole = list(forest.whole)
        self._owed = list(forest.owed)
        self._split: set[tuple[int, int]] = set()
        """Cells that are taken, or split because a cell in them is."""
        self._taken: set[tuple[int, int]] = set()
        self._short = sum(deficits(self._whole, self._owed, forest.topology))

    def assume_returned(self, level: int, *, bad: bool) -> None:
        """Assume that a bound cell of this level went back, and is owed again.

        Args:
            level: Its level.
            bad: Whether it has bad GPUs.
        """
        for counts in (self._free, self._owed) if bad else (self._free, self._owed, self._whole):
            counts[level] += 1

    def safety_class(self, level: int, index: int) -> Kind | None:
        """Return what the safety of taking a cell depends on.

        Two cells of one level and class are equally safe to take.

        Args:
            level: The level of the cell.
            index: Its index.

        Returns:
            None if a part of the cell is taken.
        """
        forest, shape = self._forest, self._forest.topology
        if (level, index) in self._split:
            return None
        at, cell, high = level, index, 0 if forest.firm[level][index] else level
        while cell not in forest.free[at]:
            parent = (at + 1, cell // shape.fan[at + 1]) if at < shape.top else (0, 0)
            if parent in self._split:
                return None if parent in self._taken else (at, high)
            if at == shape.top:
                return None
            at, cell = parent
            if high and not forest.firm[at][cell]:
                high = at
        return at, high

    def untouched(self, level: int, index: int) -> bool:
        """Return whether nothing of a free cell is taken and its parts are of one class."""
        return (level, index) not in self._split and not self._forest.firm[level][index]

    def take_if_safe(self, level: int, index: int) -> bool:
        """Take a cell if every owed cell stays available, and as many healthy ones as now.

        This is HiveD's invariant 2 for all levels together, also after splits that Algorithm 1
        would not choose.

        Args:
            level: The level of the cell.
            index: Its index.

        Returns:
            Whether it was taken; else the draft is as before.
        """
        kind = self.safety_class(level, index)
        if kind is None:
            return False
        at, high = kind
        self._move(self._free, at, level, 1)
        if high:
            self._move(self._whole, high, level, 1)
        self._owed[level] -= 1
        if at > level and not self._safe():
            self._move(self._free, at, level, -1)
            if high:
                self._move(self._whole, high, level, -1)
            self._owed[level] += 1
            return False
        shape, cell = self._forest.topology, index
        self._taken.add((level, index))
        for each in range(level, at + 1):
            self._split.add((each, cell))
            cell //= shape.fan[each + 1] if each < shape.top else 1
        return True

    def _move(self, counts: list[int], high: int, level: int, sign: int) -> None:
        counts[high] -= sign
        for each in range(level, high):
            counts[each] += sign * (self._forest.topology.fan[each + 1] - 1)

    def _safe(self) -> bool:
        shape = self._forest.topology
        if not _covers(self._free, self._owed, shape):
            return False
        return sum(deficits(self._whole, self._owed, shape)) <= self._short


def _covers(free: list[int], owed: list[int], shape: Topology) -> bool:
    spare = 0
    for level in range(shape.top, 0, -1):
        above = spare * shape.fan[level + 1] if level < shape.top else 0
        spare = free[level] - owed[level] + above
        if spare < 0:
            return False
    return True


def deficits(whole: list[int], owed: list[int], shape: Topology) -> list[int]:
    """Return, by level, by how many the owed cells exceed the whole ones.

    Larger cells are served first, and what is left of them is split.

    Args:
        whole: By level, the cells that are available as a whole.
        owed: By level, the cells that are owed.
        shape: The shape of the chain.
    """
    short, spare = [0] * (shape.top + 1), 0
    for level in range(shape.top, 0, -1):
        above = spare * shape.fan[level + 1] if level < shape.top else 0
        left = whole[level] - owed[level] + above
        short[level], spare = max(0, -left), max(0, left)
    return short
