"""The invariants of the cells: counts recomputed from the GPUs, and sharing safety.

For tests, the simulator, and the periodic check in production. Costs O(cells); raises
AssertionError with the cell and the tenant concerned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from skep.cells.chain import OPEN, OWNED, SPLIT, ChainState
from skep.cells.state import Cells
from skep.ids import AttemptId


def check_cells(cells: Cells) -> None:
    """Assert every invariant of HiveD's design, and every count that is kept beside it.

    Costs the size of the cluster.

    Raises:
        AssertionError: Names the cell, and the job or VC concerned.
    """
    _counted(cells)
    for name, chain in cells.chains.items():
        held: dict[int, AttemptId] = {}
        for hold in cells.holds.values():
            for leaf in (leaf for spot in hold.spots_in(name) for leaf in spot.leaves):
                owner = chain.claim.get(leaf) if hold.claims else chain.user[leaf]
                assert owner is hold, f"{hold.job} does not have leaf {leaf} of {name}"
                if not hold.claims:
                    assert leaf not in held, f"{leaf}: {held[leaf]} and {hold.job}"
                    held[leaf] = hold.job
        users = {leaf for leaf, user in enumerate(chain.user) if user is not None}
        assert users == set(held), f"{name}: leaves used by no hold"
        _sets(cells, name)
        _counts(chain)
        _forest(chain)
        _pools(cells, chain)
        safe(chain)


def _counted(cells: Cells) -> None:
    """Assert that what each VC borrows, and holds by priority, is counted once for each hold."""
    borrowed: Counter[str] = Counter()
    priorities: dict[str, Counter[int]] = {}
    for hold in cells.holds.values():
        names = [name for name, spots in hold.portions if spots]
        assert names, f"{hold.job} holds nothing"
        assert len(names) == len(set(names)) == len(hold.portions), f"{hold.job}: {names}"
        if hold.guaranteed:
            priorities.setdefault(hold.vc, Counter())[hold.priority] += 1
        else:
            borrowed[hold.vc] += hold.gpus
    assert {vc: gpus for vc, gpus in cells.borrowed.items() if gpus} == borrowed, "borrowed"
    counted = {vc: counts for vc, counts in cells.priorities.items() if counts}
    assert counted == priorities, f"holds by priority: {counted}, not {priorities}"


def _sets(cells: Cells, chain: str) -> None:
    """Assert that of jobs that share each uses part of their hold, and all of it is in use."""
    shape = cells.chains[chain].topology
    for hold in cells.holds.values():
        if hold.chain != chain or not hold.partners:
            continue
        assert not hold.further, f"{hold.job}: shared, and in several chains"
        leaves = [leaf for spot in hold.spots for leaf in spot.leaves]
        used = {leaf for each in hold.partners.values() for leaf in each.leaves}
        assert used == set(leaves), f"{hold.job} holds {leaves} for uses of {used}"
        assert len({shape.node(leaf) for leaf in leaves}) == 1, f"{hold.job}: shared on two nodes"
        assert hold.job in hold.partners, f"{hold.job} leads a set that it is not in"
        asked = max(each.asked for each in hold.partners.values())
        assert hold.asked == asked, f"{hold.job}: asked {hold.asked}, not {asked}"
    members = {job: hold for hold in cells.holds.values() for job in hold.partners}
    assert members == cells.sets, f"in sets: {sorted(cells.sets)}, not {sorted(members)}"
    for job in cells.sets:
        assert job not in cells.holds or cells.holds[job] is cells.sets[job], job


def safe(chain: ChainState) -> None:
    """Assert sharing safety: every owed cell is available (HiveD invariant 2, strong form).

    Raises:
        AssertionError: Cells of a level are owed and not available.
    """
    shape, forest, spare = chain.topology, chain.forest, 0
    for level in range(shape.top, 0, -1):
        above = spare * shape.fan[level + 1] if level < shape.top else 0
        spare = len(forest.free[level]) - forest.owed[level] + above
        assert spare >= 0, (
            f"{shape.name}: {-spare} cells of level {shape.levels[level]} are owed and not there"
        )


def _counts(chain: ChainState) -> None:
    shape, forest = chain.topology, chain.forest
    for leaf in range(shape.leaves):
        assert forest.busy[1][leaf] == (not chain.is_idle(leaf)), f"leaf {leaf}: busy"
        user = chain.user[leaf]
        holders = (user, chain.claim.get(leaf))
        guaranteed = any(holder is not None and holder.guaranteed for holder in holders)
        hard = leaf in chain.bad or guaranteed
        assert forest.firm[1][leaf] == hard, f"leaf {leaf}: firm"
    for level in range(2, shape.top + 1):
        for cell in range(shape.count[level]):
            children = shape.within(level, cell, level - 1)
            where = shape.address(level, cell)
            busy, firm = forest.busy[level - 1], forest.firm[level - 1]
            assert forest.busy[level][cell] == sum(busy[child] for child in children), where
            assert forest.firm[level][cell] == sum(firm[child] for child in children), where
            for lower in range(1, level):
                inside = shape.within(level, cell, lower)
                clean = sum(not forest.busy[lower][each] for each in inside)
                assert forest.clean[level][lower][cell] == clean, (where, lower)
    node_level = shape.node_level
    for level in range(node_level + 1, shape.top + 1):
        for cell, counts in enumerate(chain.by_idle[level]):
            nodes = shape.within(level, cell, node_level)
            idle = Counter(shape.node_size - forest.busy[node_level][node] for node in nodes)
            assert counts == [idle[each] for each in range(shape.node_size + 1)], (level, cell)


def _forest(chain: ChainState) -> None:
    """Assert that free and bound cells together make up the chain, merged as far as possible."""
    shape, forest = chain.topology, chain.forest
    covered: dict[int, str] = {}
    for level in range(1, shape.top + 1):
        for kind, cells in (("free", forest.free[level]), ("bound", chain.bound[level])):
            for cell in cells:
                for leaf in shape.span(level, cell):
                    assert leaf not in covered, f"leaf {leaf}: {covered[leaf]} and {kind}"
                    covered[leaf] = kind
    assert len(covered) == shape.leaves, f"{shape.name}: leaves in no cell"
    for level in range(1, shape.top):
        siblings = Counter(cell // shape.fan[level + 1] for cell in forest.free[level])
        assert max(siblings.values(), default=0) < shape.fan[level + 1], "buddies are not merged"
    whole = [0] * (shape.top + 1)
    for level in range(1, shape.top + 1):
        for cell in forest.free[level]:
            for each in _whole(chain, level, cell):
                whole[each] += 1
    assert forest.whole == whole, f"{shape.name}: whole {forest.whole}, not {whole}"
    _indexes(chain)


def _whole(chain: ChainState, level: int, cell: int) -> Iterator[int]:
    if not chain.forest.firm[level][cell]:
        yield level
    elif level > 1:
        for child in chain.topology.within(level, cell, level - 1):
            yield from _whole(chain, level - 1, child)


def _indexes(chain: ChainState) -> None:
    shape, forest = chain.topology, chain.forest
    for level in range(1, shape.top + 1):
        busy, firm = forest.busy[level], forest.firm[level]
        listed = {cell: count for count, cells in forest.by_busy[level].items() for cell in cells}
        assert listed == {cell: busy[cell] for cell in forest.free[level]}, level
        assert set(forest.ill[level]) == {cell for cell in forest.free[level] if firm[cell]}
        for lower in range(1, level):
            part = {
                cell
                for cell in forest.free[level]
                if busy[cell] and forest.clean[level][lower][cell]
            }
            assert set(forest.part[level][lower]) == part, (level, lower)
    for node in range(shape.count[shape.node_level]):
        kind, idle = chain.kind[node], shape.node_size - forest.busy[shape.node_level][node]
        key = forest.firm[shape.node_level][node], idle
        assert kind == _kind(chain, node), f"{shape.nodes[node]}: kind {kind}"
        assert kind == OPEN or node in chain.crowd[kind][key], shape.nodes[node]


def _kind(chain: ChainState, node: int) -> int:
    shape = chain.topology
    if chain.forest.enclosing_free_level(shape.node_level, node):
        return OPEN
    cell = chain.cell_of(node * shape.node_size)
    return OWNED if cell is not None and cell.level >= shape.node_level else SPLIT


def _pools(cells: Cells, chain: ChainState) -> None:
    shape, owed = chain.topology, [0] * (chain.topology.top + 1)
    used: Counter[tuple[int, int]] = Counter()
    for hold in cells.holds.values():
        for spot in hold.spots_in(shape.name) if hold.guaranteed else ():
            assert spot.level, hold.job
            index = shape.up(spot.leaves[0], spot.level)
            assert all(shape.up(leaf, spot.level) == index for leaf in spot.leaves), hold.job
            cell = chain.bound[spot.level].get(index)
            assert cell is not None, f"{hold.job}: its cell is not bound"
            assert (cell.pool.vc, cell.pool.pin) == (hold.vc, hold.pin), hold.job
            used[spot.level, index] += len(spot.leaves)
    for pool in chain.pools.values():
        bound = Counter(level for level, _ in pool.bound)
        for level in range(1, shape.top + 1):
            assert pool.left[level] + bound[level] == pool.total[level], (pool.vc, level)
            owed[level] += pool.left[level]
        for (level, index), cell in pool.bound.items():
            assert chain.bound[level][index] is cell, shape.address(level, index)
            assert cell.used == used[level, index], shape.address(level, index)
            assert cell.used or cell.bad_cell or pool.pin, "a cell is bound for no use"
        _units(chain)
    assert chain.forest.owed == owed, f"{shape.name}: owed {chain.forest.owed}, not {owed}"


def _units(chain: ChainState) -> None:
    shape, forest = chain.topology, chain.forest
    for pool in chain.pools.values():
        units = [
            (min(level, shape.node_level), unit)
            for level, index in pool.bound
            for unit in shape.within(level, index, min(level, shape.node_level))
        ]
        listed = {
            (level, unit): room
            for level, each in enumerate(pool.loose)
            for room, unitset in each.items()
            for unit in unitset
        }
        assert listed == {
            (level, unit): shape.size[level] - forest.firm[level][unit] for level, unit in units
        }, pool.vc
