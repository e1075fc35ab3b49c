"""One chain's whole state: free and bound cells, the user of each GPU, and what is bad.

Every change keeps the counts and indexes of `Forest`, of the pools and of the nodes in step. It
costs at most the GPUs that it is about times the number of levels; splitting and merging a cell
costs its children.

A leaf is one GPU, by its index in the chain. A cell is named by its level (1: one GPU) and index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from skep.cells.forest import Forest, Index
from skep.cells.holds import FREE, CellHold, Spot
from skep.cells.pools import Pool, VirtualCell
from skep.cells.topology import Topology
from skep.wire.bearing import BadCell

OPEN, SPLIT, OWNED = 0, 1, 2
"""What a node is: part of a free cell, partly bound below node level, part of a bound cell."""


class ChainState:
    """Cells of one chain. Callers name cells by level and index, and GPUs by leaf."""

    def __init__(self, topology: Topology, returned: list[BadCell]) -> None:
        """Start with everything free.

        Args:
            topology: The shape of the chain.
            returned: Gets the bad cells that are returned, as the last job of their VC left.
        """
        self.topology = topology
        self.forest = Forest(topology)
        self.bound: list[dict[int, VirtualCell]] = [{} for _ in topology.levels]
        self.pools: dict[tuple[str, str], Pool] = {}
        """By VC and name of the pin; the VC's own cells have no pin."""
        self.user: list[CellHold | None] = [None] * topology.leaves
        self.claim: dict[int, CellHold] = {}
        self.bad: Index = {}
        self.bad_cells: dict[VirtualCell, None] = {}
        self.bad_cells_at = [0] * len(topology.levels)
        self.healed: list[VirtualCell] = []
        """Bad cells of VCs with GPUs that healed in the current change."""
        self._returned = returned
        self.bindings = 0
        """Counts changes of what is bound, and of what is bad: while it is the same, the cells of
        each VC are on the same nodes in the same order."""
        self.kind = bytearray(topology.count[topology.node_level])
        self.crowd: tuple[dict[tuple[int, int], Index], ...] = ({}, {}, {})
        """Split and owned nodes by (firm, idle GPUs); open ones are found through free cells."""
        self.by_idle = [
            [[0] * (topology.node_size + 1) for _ in range(count)]
            if level > topology.node_level
            else []
            for level, count in enumerate(topology.count)
        ]
        """For each cell above node level: how many of its nodes have so many idle GPUs."""
        for level in range(topology.node_level + 1, topology.top + 1):
            for counts in self.by_idle[level]:
                counts[-1] = topology.size[level] // topology.node_size

    def add_pool(self, pool: Pool) -> None:
        """Give a VC cells of this chain: they are owed until they are bound."""
        self.pools[pool.vc, pool.pin] = pool
        for level, count in enumerate(pool.total):
            self.forest.owed[level] += count

    # --- leaves --------------------------------------------------------------------------------

    def priority_of(self, leaf: int) -> int:
        """Return the priority that protects a leaf: its claim's, else its user's, else FREE."""
        claim = self.claim.get(leaf)
        if claim is not None:
            return claim.priority
        user = self.user[leaf]
        return FREE if user is None else user.priority

    def is_idle(self, leaf: int) -> bool:
        """Return whether no job uses or claims a leaf and it is not bad."""
        return self.user[leaf] is None and leaf not in self.claim and leaf not in self.bad

    def cell_of(self, leaf: int) -> VirtualCell | None:
        """Return the bound cell that contains a leaf, or None if it is in a free cell."""
        for level in range(1, self.topology.top + 1):
            cell = self.bound[level].get(leaf // self.topology.size[level])
            if cell is not None:
                return cell
        return None

    def allocate_spot(self, hold: CellHold, spot: Spot) -> None:
        """Give a worker its leaves; bind the virtual cell that covers them if it is not bound yet.

        Args:
            hold: The hold that the worker belongs to.
            spot: Leaves without a user, and without a claim of another hold.

        Raises:
            AssertionError: A leaf has a user or is claimed by another hold, or the VC has no cell
                left.
        """
        cell = self._cover(hold, spot)
        turned: list[int] = []
        firm: list[int] = []
        for leaf in spot.leaves:
            assert self.user[leaf] is None, (leaf, hold.job)
            claimed = self.claim.pop(leaf, None)
            assert claimed in (None, hold), (leaf, hold.job)
            self.user[leaf] = hold
            if claimed is None:
                (turned if leaf not in self.bad else []).append(leaf)
                if cell is not None:
                    cell.used += 1
        if cell is not None:
            firm = turned
        self._change(turned, firm, 1)

    def claim_spot(self, hold: CellHold, spot: Spot) -> None:
        """Claim a worker's leaves for the time when their users are gone; they may be idle already.

        Args:
            hold: The hold that claims; its VC's cell that covers the leaves is bound at once.
            spot: Leaves that no hold claims.

        Raises:
            AssertionError: A leaf is claimed already, or the VC has no cell left.
        """
        cell = self._cover(hold, spot)
        for leaf in spot.leaves:
            assert leaf not in self.claim, (leaf, hold.job)
        turned = [leaf for leaf in spot.leaves if self.is_idle(leaf)]
        firm = [leaf for leaf in spot.leaves if cell is not None and not self._firm(leaf)]
        for leaf in spot.leaves:
            self.claim[leaf] = hold
        if cell is not None:
            cell.used += len(spot.leaves)
        self._change(turned, firm, 1)

    def cancel_claim(self, spot: Spot) -> None:
        """Cancel the claim on a worker's leaves; their users are not affected."""
        cell = self.cell_of(spot.leaves[0]) if spot.level else None
        for leaf in spot.leaves:
            del self.claim[leaf]
        turned = [leaf for leaf in spot.leaves if self.is_idle(leaf)]
        firm = [leaf for leaf in spot.leaves if cell is not None and not self._firm(leaf)]
        self._change(turned, firm, -1)
        if cell is not None:
            self._unused(cell, len(spot.leaves))

    def free_leaves(self, leaves: Iterable[int], hold: CellHold) -> None:
        """Free leaves of one node; unbind cells that no job of the VC needs any more.

        Args:
            leaves: Leaves; those that the hold does not use are ignored.
            hold: The hold.
        """
        gone = [leaf for leaf in leaves if self.user[leaf] is hold]
        if not gone:
            return
        cell = self.cell_of(gone[0]) if hold.guaranteed else None
        for leaf in gone:
            self.user[leaf] = None
        turned = [leaf for leaf in gone if self.is_idle(leaf)]
        self._change(turned, turned if hold.guaranteed else (), -1)
        if cell is not None:
            self._unused(cell, len(gone))

    def _firm(self, leaf: int) -> bool:
        """Return whether a leaf counts as firm: bad, or in guaranteed use or claim."""
        user, claim = self.user[leaf], self.claim.get(leaf)
        used = user is not None and user.guaranteed
        claimed = claim is not None and claim.guaranteed
        return used or claimed or leaf in self.bad

    # --- health --------------------------------------------------------------------------------

    def set_bad(self, leaves: Sequence[int], *, bad: bool) -> bool:
        """Note that leaves of one node turned bad or healed.

        Which VC has to take a bad cell is decided separately (`decide.bad_cells`).

        Args:
            leaves: The leaves.
            bad: Whether they turned bad, else they healed.

        Returns:
            Whether any of them changed.
        """
        changed = [leaf for leaf in leaves if (leaf in self.bad) is not bad]
        if not changed:
            return False
        self.bindings += 1
        if not bad:
            for leaf in changed:
                del self.bad[leaf]
            for pool in self.pools.values():
                pool.freed += 1
        busy = [leaf for leaf in changed if self.is_idle(leaf)]
        firm = [leaf for leaf in changed if not self._firm(leaf)]
        if bad:
            self.bad.update(dict.fromkeys(changed))
        self._change(busy, firm, 1 if bad else -1)
        for leaf in () if bad else changed:
            cell = self.cell_of(leaf)
            if cell is not None and cell.bad_cell:
                self.healed.append(cell)
        return True

    def bind_bad_cell(self, vc: str, level: int, index: int) -> None:
        """Bind a cell with bad GPUs to a VC (HiveD's doomed bad cell).

        Args:
            vc: The VC.
            level: The level of the cell.
            index: Its index.
        """
        self._bind(self.pools[vc, ""], level, index, bad_cell=True)

    def unbind_bad_cell(self, level: int, index: int) -> None:
        """Return a bad cell of a VC to the free cells.

        Args:
            level: The level of the cell.
            index: Its index.

        Raises:
            AssertionError: The cell is not bound as a bad cell, or a job uses it.
        """
        cell = self.bound[level][index]
        assert cell.bad_cell, (level, index)
        assert not cell.used, (level, index)
        self._unbind(cell)

    def bad_cell_of(self, cell: VirtualCell) -> BadCell:
        """Return a bound bad cell in the form of facts."""
        return BadCell(
            chain=self.topology.name, vc=cell.pool.vc, level=cell.level, index=cell.index
        )

    def firm_gpus(self, cell: VirtualCell) -> int:
        """Return how many GPUs of a cell are bad, or in guaranteed use or claim."""
        return self.forest.firm[cell.level][cell.index]

    # --- cells ---------------------------------------------------------------------------------

    def bind_pinned_cell(self, pool: Pool, level: int, index: int) -> None:
        """Bind a pinned cell to its pool permanently.

        Args:
            pool: The pool of the pin.
            level: The level of the cell.
            index: Its index.
        """
        self.forest.owed[level] += 1
        pool.total[level] = pool.left[level] = 1
        self._bind(pool, level, index)

    def _cover(self, hold: CellHold, spot: Spot) -> VirtualCell | None:
        """Return the bound cell that covers a guaranteed worker, and bind it if necessary."""
        if not spot.level:
            return None
        index = self.topology.up(spot.leaves[0], spot.level)
        pool = self.pools[hold.vc, hold.pin]
        cell = self.bound[spot.level].get(index)
        if cell is None:
            cell = self._bind(pool, spot.level, index)
        assert cell.pool is pool, f"{hold.job}: {self.topology.address(spot.level, index)}"
        return cell

    def _bind(self, pool: Pool, level: int, index: int, *, bad_cell: bool = False) -> VirtualCell:
        assert pool.left[level] > 0, f"{pool.vc} has no cell of level {level} left"
        self.bindings += 1
        shape = self.topology
        self.forest.allocate(level, index)
        self.forest.owed[level] -= 1
        pool.left[level] -= 1
        pool.bindings += 1
        cell = self.bound[level][index] = pool.bound[level, index] = VirtualCell(pool, level, index)
        if bad_cell:
            cell.bad_cell = True
            self.bad_cells[cell] = None
            self.bad_cells_at[level] += 1
        if level < shape.node_level:
            node = shape.within(level, index, 1).start // shape.node_size
            if self.kind[node] == OPEN:
                self._turn(node, SPLIT)
            pool.list_unit(self.forest, level, index)
        else:
            for node in shape.within(level, index, shape.node_level):
                self._turn(node, OWNED)
                pool.list_unit(self.forest, shape.node_level, node)
        return cell

    def _unused(self, cell: VirtualCell, count: int) -> None:
        cell.used -= count
        assert cell.used >= 0, (cell.level, cell.index)
        if not cell.used and not cell.pool.pin:
            if cell.bad_cell:
                self._returned.append(self.bad_cell_of(cell))
            self._unbind(cell)

    def _unbind(self, cell: VirtualCell) -> None:
        shape, level, index, pool = self.topology, cell.level, cell.index, cell.pool
        self.bindings += 1
        del self.bound[level][index], pool.bound[level, index]
        if cell.bad_cell:
            del self.bad_cells[cell]
            self.bad_cells_at[level] -= 1
        pool.left[level] += 1
        pool.bindings += 1
        self.forest.owed[level] += 1
        nodes = shape.within(level, index, shape.node_level) if level >= shape.node_level else ()
        if level < shape.node_level:
            pool.unlist_unit(level, index)
        for node in nodes:
            pool.unlist_unit(shape.node_level, node)
            self._turn(node, OPEN)
        self.forest.free_and_merge(level, index)
        if level < shape.node_level:
            node = shape.span(level, index).start // shape.node_size
            if self.forest.enclosing_free_level(shape.node_level, node):
                self._turn(node, OPEN)

    def _turn(self, node: int, kind: int) -> None:
        key = self._key(node)
        if self.kind[node] != OPEN:
            _drop(self.crowd[self.kind[node]], key, node)
        self.kind[node] = kind
        if kind != OPEN:
            self.crowd[kind].setdefault(key, {})[node] = None

    # --- counts --------------------------------------------------------------------------------

    def _change(self, busy: Sequence[int], firm: Sequence[int], sign: int) -> None:
        """Change the counts for leaves of one node, with every index that depends on them."""
        leaves = dict.fromkeys((*busy, *firm))
        if not leaves:
            return
        shape, forest = self.topology, self.forest
        node = next(iter(leaves)) // shape.node_size
        regions = self._regions(node, leaves)
        before = self._key(node)
        for at, index, pool in regions:
            if pool is None:
                forest.detach(at, index)
        for leaf in leaves:
            hard = sign if leaf in firm else 0
            free = self._free_level(leaf, regions) if hard else 0
            if free and hard > 0:
                forest.adjust_whole(free, shape.up(leaf, free), leaf, bad=True)
            forest.add_to_counts(leaf, sign if leaf in busy else 0, hard)
            if free and hard < 0:
                forest.adjust_whole(free, shape.up(leaf, free), leaf, bad=False)
        for at, index, pool in regions:
            if pool is None:
                forest.attach(at, index)
            else:
                pool.list_unit(forest, at, index)
        after = self._key(node)
        if before != after:
            self._moved(node, before, after)

    def nodes_of_kind(self, kind: int, idle: Sequence[int]) -> Iterator[int]:
        """Yield split or owned nodes with so many idle GPUs, those with the fewest firm GPUs first.

        A VC puts its next jobs on nodes where it has jobs and room; opportunistic jobs stay away
        from them.

        Args:
            kind: SPLIT or OWNED.
            idle: Numbers of idle GPUs, in the order of preference.
        """
        crowd = self.crowd[kind]
        for firm in range(self.topology.node_size + 1):
            for count in idle:
                yield from crowd.get((firm, count), ())

    def _key(self, node: int) -> tuple[int, int]:
        """Return how many GPUs of a node are firm, and how many are idle."""
        level, forest = self.topology.node_level, self.forest
        return forest.firm[level][node], self.topology.node_size - forest.busy[level][node]

    def _free_level(self, leaf: int, regions: list[tuple[int, int, Pool | None]]) -> int:
        """Return the level of the free cell among these that contains a leaf, 0 if none does.

        Returns:
            The level; 0: it is in a bound cell.

        Raises:
            AssertionError: A bug: none of the regions contains the leaf.
        """
        for level, index, pool in regions:
            if self.topology.up(leaf, level) == index:
                return level if pool is None else 0
        raise AssertionError(leaf)

    def _moved(self, node: int, before: tuple[int, int], after: tuple[int, int]) -> None:
        shape = self.topology
        if self.kind[node] != OPEN:
            crowd = self.crowd[self.kind[node]]
            _drop(crowd, before, node)
            crowd.setdefault(after, {})[node] = None
        cell = node
        for level in range(shape.node_level + 1, shape.top + 1):
            cell //= shape.fan[level]
            counts = self.by_idle[level][cell]
            counts[before[1]] -= 1
            counts[after[1]] += 1

    def _regions(self, node: int, leaves: Iterable[int]) -> list[tuple[int, int, Pool | None]]:
        """Return where leaves of a node are listed: in free cells, or in units of pools.

        Returns:
            Level and index of each region, and the pool of its cell; None: the region is a free
            cell.

        Raises:
            AssertionError: A bug: the node counts as owned, and no bound cell contains it.
        """
        shape = self.topology
        kind = self.kind[node]
        if kind == OPEN:
            level = self.forest.enclosing_free_level(shape.node_level, node)
            return [(level, shape.up(node * shape.node_size, level), None)]
        if kind == OWNED:
            cell, index = None, node
            for level in range(shape.node_level, shape.top + 1):
                cell = self.bound[level].get(index)
                if cell is not None:
                    return [(shape.node_level, node, cell.pool)]
                if level < shape.top:
                    index //= shape.fan[level + 1]
            raise AssertionError(node)
        found: dict[tuple[int, int], Pool | None] = {}
        for leaf in leaves:
            cell = self.cell_of(leaf)
            if cell is not None:
                found[cell.level, cell.index] = cell.pool
            else:
                level = self.forest.enclosing_free_level(1, leaf)
                found[level, shape.up(leaf, level)] = None
        return [(level, index, pool) for (level, index), pool in found.items()]


def _drop(buckets: dict[tuple[int, int], Index], key: tuple[int, int], index: int) -> None:
    bucket = buckets[key]
    del bucket[index]
    if not bucket:
        del buckets[key]
