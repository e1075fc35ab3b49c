"""The invariants of the cells in pieces that are cheap enough for production.

`check` recomputes everything from the GPUs up, which costs a second or more on a large cluster. The
same holds if it holds for each piece. `unsafe_levels` costs the levels of a chain and `check_hold`
the GPUs of one hold, so both run after every decision. A `Patrol` checks all other pieces in
rounds, so many GPUs at a time. Counts of a cell are compared with those of its children, which
another piece compares with theirs: by induction they are those of the GPUs.

Nothing here raises for a broken invariant: it is returned as `Broken`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from skep.cells.chain import OPEN, OWNED, SPLIT, ChainState
from skep.cells.holds import CellHold
from skep.cells.pools import Pool
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.reasons import Reason


class Broken(NamedTuple):
    """An invariant that does not hold: which, the VCs concerned, where, and what was found."""

    rule: Reason
    chain: str
    vcs: tuple[str, ...]
    where: str
    text: str


def unsafe_levels(chain: ChainState) -> Iterator[Broken]:
    """Yield the levels at which owed cells are not available (HiveD invariant 2, strong form)."""
    shape, forest, spare = chain.topology, chain.forest, 0
    for level in range(shape.top, 0, -1):
        above = spare * shape.fan[level + 1] if level < shape.top else 0
        spare = len(forest.free[level]) - forest.owed[level] + above
        if spare < 0:
            vcs = sorted({pool.vc for pool in chain.pools.values() if pool.left[level]})
            text = f"{-spare} cells of level {shape.levels[level]} are owed and not there"
            yield Broken(Reason.CELLS_UNSAFE, shape.name, tuple(vcs), shape.levels[level], text)
            spare = 0


def check_hold(cells: Cells, job: AttemptId) -> Iterator[Broken]:
    """Yield what is wrong with the GPUs of a hold, at most one finding for each worker.

    Args:
        cells: The cells.
        job: The name of the hold; if there is none, nothing is found.
    """
    hold = cells.holds.get(job)
    if hold is None:
        return
    for name, spots in hold.portions:
        chain = cells.chains[name]
        for spot in spots:
            text = _wrong(chain, hold, spot.leaves, spot.level)
            if text:
                node = chain.topology.node(spot.leaves[0])
                yield Broken(Reason.GPUS_HELD_WRONGLY, name, (hold.vc,), node, text)


def _wrong(chain: ChainState, hold: CellHold, leaves: tuple[int, ...], level: int) -> str:
    shape = chain.topology
    for leaf in leaves:
        owner = chain.claim.get(leaf) if hold.claims else chain.user[leaf]
        if owner is not hold:
            # tidy: allow word because alarms keep their text
            user = "nobody's" if owner is None else f"{owner.job}'s"
            return f"GPU {shape.device(leaf)} is held by {hold.job} and counts as {user}"
    if hold.guaranteed:
        cell = chain.bound[level].get(shape.up(leaves[0], level)) if level else None
        if cell is None:
            return f"{hold.job} is guaranteed and in no bound cell"
        if (cell.pool.vc, cell.pool.pin) != (hold.vc, hold.pin):
            return f"{hold.job} of {hold.vc} is in a cell of {cell.pool.vc}"
    return ""


def check_node(cells: Cells, chain: ChainState, node: int) -> Iterator[Broken]:
    """Yield what is wrong on a node: the users and claims of its GPUs, their cells, and the counts.

    Args:
        cells: The cells.
        chain: A chain of it.
        node: The index of the node in the chain.
    """
    shape = chain.topology
    span = shape.span(shape.node_level, node)
    holds: dict[CellHold, None] = {}
    for leaf in span:
        for owner in (chain.user[leaf], chain.claim.get(leaf)):
            if owner is not None:
                holds[owner] = None
    vcs = tuple(sorted({hold.vc for hold in holds}))
    for hold in holds:
        spots = hold.spots_in(shape.name)
        listed = {leaf for spot in spots for leaf in spot.leaves if leaf in span}
        has = {
            leaf
            for leaf in span
            if (chain.claim.get(leaf) if hold.claims else chain.user[leaf]) is hold
        }
        if cells.holds.get(hold.job) is not hold or listed != has:
            text = f"{hold.job} is said to hold {sorted(listed)} and has leaves {sorted(has)}"
            yield Broken(Reason.GPUS_HELD_WRONGLY, shape.name, vcs, shape.nodes[node], text)
    for leaf in span:
        text = _leaf(chain, leaf)
        if text:
            yield Broken(Reason.CELLS_MISCOUNTED, shape.name, vcs, shape.nodes[node], text)
            return
    for level in range(2, shape.node_level + 1):
        for index in shape.within(shape.node_level, node, level):
            text = _sums(chain, level, index)
            if text:
                yield Broken(Reason.CELLS_MISCOUNTED, shape.name, vcs, shape.nodes[node], text)
                return
    kind = _kind(chain, node)
    key = (
        chain.forest.firm[shape.node_level][node],
        (shape.node_size - chain.forest.busy[shape.node_level][node]),
    )
    if chain.kind[node] != kind or (kind != OPEN and node not in chain.crowd[kind].get(key, ())):
        text = f"listed as {chain.kind[node]} and is {kind}, with (firm, idle) {key}"
        yield Broken(Reason.CELLS_MISCOUNTED, shape.name, vcs, shape.nodes[node], text)


def _leaf(chain: ChainState, leaf: int) -> str:
    """Return what is wrong with a GPU's own counts and its cells; empty: nothing."""
    shape, forest = chain.topology, chain.forest
    if forest.busy[1][leaf] != (not chain.is_idle(leaf)):
        return f"GPU {shape.device(leaf)} is wrongly counted as busy or idle"
    holders = (chain.user[leaf], chain.claim.get(leaf))
    guaranteed = any(holder is not None and holder.guaranteed for holder in holders)
    if forest.firm[1][leaf] != (leaf in chain.bad or guaranteed):
        return f"GPU {shape.device(leaf)} is wrongly counted as firm"
    found = []
    for level in range(1, shape.top + 1):
        cell = shape.up(leaf, level)
        if cell in forest.free[level]:
            found.append(f"free {shape.levels[level]}")
        if cell in chain.bound[level]:
            found.append(f"bound {shape.levels[level]}")
    if len(found) != 1:
        return f"GPU {shape.device(leaf)} is in {' and '.join(found) or 'no cell'}"
    return _listed(chain, 1, leaf)


def _sums(chain: ChainState, level: int, index: int) -> str:
    """Return which count of a cell is not the sum of its children's counts; empty: none."""
    shape, forest = chain.topology, chain.forest
    children = shape.within(level, index, level - 1)
    part = slice(children.start, children.stop)
    where = shape.address(level, index)
    for name, counts in (("busy", forest.busy), ("firm", forest.firm)):
        if counts[level][index] != sum(counts[level - 1][part]):
            return f"{where}: {counts[level][index]} GPUs {name}, its parts say otherwise"
    for lower in range(1, level):
        below = (
            forest.clean[level - 1][lower][part]
            if lower < level - 1
            else [not busy for busy in forest.busy[lower][part]]
        )
        if forest.clean[level][lower][index] != sum(below):
            return f"{where}: idle cells of level {shape.levels[lower]} are miscounted"
    if all(child in forest.free[level - 1] for child in children):
        return f"{where}: its parts are all free and not merged"
    return _listed(chain, level, index)


def _listed(chain: ChainState, level: int, index: int) -> str:
    """Return, as text, that a cell is missing from an index over free cells or wrongly in one."""
    forest = chain.forest
    free, busy = index in forest.free[level], forest.busy[level][index]
    listed = index in forest.by_busy[level].get(busy, ())
    ill = index in forest.ill[level]
    part = any(
        (index in forest.part[level][lower])
        != (free and busy > 0 and forest.clean[level][lower][index] > 0)
        for lower in range(1, level)
    )
    if listed != free or ill != (free and forest.firm[level][index] > 0) or part:
        return f"{chain.topology.address(level, index)} is not where free cells are looked for"
    return ""


def _kind(chain: ChainState, node: int) -> int:
    shape = chain.topology
    if chain.forest.enclosing_free_level(shape.node_level, node):
        return OPEN
    cell = chain.cell_of(node * shape.node_size)
    return OWNED if cell is not None and cell.level >= shape.node_level else SPLIT


def check_cell(chain: ChainState, level: int, index: int) -> Iterator[Broken]:
    """Yield what is wrong with the counts of a cell above node level.

    Args:
        chain: The chain.
        level: The level of the cell.
        index: Its index.
    """
    shape, node_level = chain.topology, chain.topology.node_level
    text = _sums(chain, level, index)
    children = shape.within(level, index, level - 1)
    if level - 1 > node_level:
        columns = zip(*chain.by_idle[level - 1][children.start : children.stop], strict=True)
        counts = [sum(column) for column in columns]
    else:
        busy = Counter(chain.forest.busy[node_level][children.start : children.stop])
        counts = [busy[shape.node_size - idle] for idle in range(shape.node_size + 1)]
    if not text and counts != chain.by_idle[level][index]:
        text = "its nodes by idle GPUs are miscounted"
    if text:
        where = shape.address(level, index)
        yield Broken(Reason.CELLS_MISCOUNTED, shape.name, (), where, text)


def check_pool(chain: ChainState, pool: Pool) -> Iterator[Broken]:
    """Yield what is wrong with the counts of a VC: cells owned, bound and used."""
    shape = chain.topology
    bound = Counter(level for level, _ in pool.bound)
    text = ""
    for level in range(1, shape.top + 1):
        if pool.left[level] + bound[level] != pool.total[level]:
            text = (
                f"of {pool.total[level]} cells of level {shape.levels[level]} it has bound "
                f"{bound[level]} and not bound {pool.left[level]}"
            )
    for (level, index), cell in pool.bound.items():
        if chain.bound[level].get(index) is not cell:
            text = f"{shape.address(level, index)} is bound to it and is not"
        elif not (cell.used or cell.bad_cell or pool.pin):
            # tidy: allow word because alarms keep their text
            text = f"{shape.address(level, index)} is bound to it for nobody"
        unit = min(level, shape.node_level)
        for each in shape.within(level, index, unit) if not text else ():
            room = shape.size[unit] - chain.forest.firm[unit][each]
            if each not in pool.loose[unit].get(room, ()):
                text = f"the room in {shape.address(unit, each)} is miscounted"
    if text:
        yield Broken(Reason.CELLS_MISCOUNTED, shape.name, (pool.vc,), pool.pin or pool.vc, text)


def check_bound_cell(chain: ChainState, level: int, index: int) -> Iterator[Broken]:
    """Yield a finding if the GPUs in use in a bound cell are miscounted.

    Args:
        chain: The chain.
        level: The level of the cell.
        index: Its index; if it is not bound, nothing is found.
    """
    cell, shape = chain.bound[level].get(index), chain.topology
    if cell is None:
        return
    used = 0
    for leaf in shape.span(level, index):
        for holder in (chain.user[leaf], chain.claim.get(leaf)):
            used += holder is not None and holder.guaranteed
    if used != cell.used:
        text = f"{used} GPUs are in use or claimed, and {cell.used} counted"
        where = shape.address(level, index)
        yield Broken(Reason.CELLS_MISCOUNTED, shape.name, (cell.pool.vc,), where, text)


def check_lists(chain: ChainState) -> Iterator[Broken]:
    """Yield a finding for each level at which cells owed or listed as free are miscounted."""
    shape, forest = chain.topology, chain.forest
    for level in range(1, shape.top + 1):
        owed = sum(pool.left[level] for pool in chain.pools.values())
        listed = sum(len(cells) for cells in forest.by_busy[level].values())
        if forest.owed[level] != owed or listed != len(forest.free[level]):
            text = (
                f"{owed} cells are owed and {forest.owed[level]} counted; "
                f"{len(forest.free[level])} are free and {listed} listed"
            )
            yield Broken(Reason.CELLS_MISCOUNTED, shape.name, (), shape.levels[level], text)


Piece = tuple[int, Iterator[Broken]]
"""The cost of a piece, in GPUs, and what is broken in it, which is found during iteration."""


class Patrol:
    """Checks all pieces of the cells in rounds, a few at a time."""

    def __init__(self, cells: Cells) -> None:
        """Begin a round."""
        self.cells = cells
        self.over = False
        """Whether every piece was looked at."""
        self._pieces = self._round()

    def step(self, gpus: int) -> Iterator[Broken]:
        """Check pieces worth about so many GPUs, or the rest of a round.

        Args:
            gpus: How much to check.

        Yields:
            What is broken.
        """
        for cost, found in self._pieces:
            yield from found
            gpus -= cost
            if gpus <= 0:
                return
        self.over = True

    def _round(self) -> Iterator[Piece]:
        for chain in self.cells.chains.values():
            shape = chain.topology
            yield shape.top, unsafe_levels(chain)
            yield shape.top, check_lists(chain)
            for pool in chain.pools.values():
                units = (max(1, shape.size[level] // shape.node_size) for level, _ in pool.bound)
                yield 1 + sum(units), check_pool(chain, pool)
            for level in range(1, shape.top + 1):
                for index in list(chain.bound[level]):
                    yield shape.size[level], check_bound_cell(chain, level, index)
            for node in range(len(shape.nodes)):
                yield shape.node_size, check_node(self.cells, chain, node)
            for level in range(shape.node_level + 1, shape.top + 1):
                for index in range(shape.count[level]):
                    yield shape.fan[level], check_cell(chain, level, index)
