"""Where a guaranteed gang goes in its VC's cells. The state is read and not changed.

The order of the search keeps what is scarce for the VC: first free GPUs in cells that it has bound
already, tightest first; then a new cell of the smallest level that suffices; only then jobs of the
VC with a lower priority yield. Opportunistic jobs do not influence that, or what is left to a VC
would depend on jobs of other VCs. They only decide between places that are equal for the VC: a new
cell has no opportunistic jobs wherever safety allows splitting such a one off, and they yield where
there is none. A gang stays in the smallest cell that holds it; otherwise it is spread.

Source: HiveD, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain as chained
from itertools import islice
from typing import NamedTuple

from skep.cells.bin_packing import Bin, pack_workers
from skep.cells.chain import ChainState
from skep.cells.decide.gpu_choice import (
    Loss,
    Seized,
    available_leaves,
    closest_leaves,
    seize_leaves,
)
from skep.cells.forest import Draft, Index, Kind
from skep.cells.holds import Placement, Request, Spot
from skep.cells.pools import Pool
from skep.ids import AttemptId

Limit = Callable[[str], int] | None
"""How many of the gang's workers a node has other resources for; None if that limits nothing."""

LOOK = 24
"""The number of cells whose victims are compared: the counts put the least used ones first."""
NO_JOBS: Mapping[AttemptId, None] = {}


class Cell(NamedTuple):
    """Part of a VC's free capacity: a physical cell in a cell of level `bound` that covers it."""

    level: int
    place: int
    bound: int


class Found(NamedTuple):
    """A placement and what it costs other jobs."""

    spots: list[Spot]
    loss: float = 0.0
    victims: Mapping[AttemptId, None] = {}
    cancels: Mapping[AttemptId, None] = {}


class Search:
    """The search for one request in one chain's pool, with one threshold of priorities.

    `below`: jobs with a lower priority yield; with 0 these are only opportunistic jobs.
    """

    def __init__(
        self, chain: ChainState, pool: Pool, request: Request, below: int, loss: Loss, limit: Limit
    ) -> None:
        """Prepare the search.

        Args:
            chain: The chain; it is not changed.
            pool: The VC's cells of it.
            request: A guaranteed gang.
            below: The threshold.
            loss: What stopping a job would cost.
            limit: By node name, the workers of this gang that the node has CPUs and memory for.
        """
        self.chain, self.pool, self.below = chain, pool, below
        self.shape = chain.topology
        self.loss, self.limit = loss, limit
        # Which of many nodes suffice for a limit is known only once each has been looked at.
        self.look = LOOK if limit is None else self.shape.count[self.shape.node_level]
        self.sizes = sorted(request.sizes, reverse=True)
        self.need = sum(self.sizes)
        within = self.shape.level(request.within) if request.within else None
        self.hard = within if request.hard and within else self.shape.top
        self.tied = request.hard and within is not None
        self.least = self.shape.level_for(self.need) or self.shape.top + 1

    def run(self) -> Found | None:
        """Return where the gang goes, or None."""
        if self.sizes[0] > self.shape.node_size:
            return None
        best = None
        for alike in self._together():
            found = _cheapest(alike)
            if found is not None and (self.below == 0 or not found.victims):
                return found
            if found is not None and (best is None or found.loss < best.loss):
                best = found
        if best is None and not self.tied and (len(self.sizes) > 1 or any(self.pool.left)):
            best = self._spread()  # One worker has been tried in each cell that is bound.
        return best

    # --- in one cell ---------------------------------------------------------------------------

    def _together(self) -> Iterator[Iterator[Found]]:
        """Yield placements in one cell, the smallest cells first.

        Placements of one group are equal for the VC: opportunistic jobs decide only between them.
        So what a VC has left of its cells never depends on jobs of other VCs, and it is served as
        in a private cluster.
        """
        top, node = self.hard, self.shape.node_level
        if self.least <= node:
            yield from self._in_units(min(top, node))
        for level in range(1, self.shape.top + 1):
            if node < level <= top and level >= self.least:
                yield from self._in_domains(level)
            if self.shape.size[level] >= self.need and self.pool.left[level]:
                yield self._in_new(level, min(level, top))

    def _in_units(self, within: int) -> Iterator[Iterator[Found]]:
        """Yield placements on one node, in cells the VC has bound."""
        if self.below:
            for unit in self._units_by_priority():
                yield self._in_unit([unit], within)
            return
        for level, room, group in self.pool.units_with_room(self.need, self.shape.size):
            for units in self._alike(level, room, group):
                yield self._in_unit(units, within)

    def _alike(self, level: int, room: int, group: Index) -> Iterator[list[tuple[int, int]]]:
        """Yield units with equally many free GPUs in the order in which a private cluster would.

        Two partly used units differ by their users, so each is a group of its own. Whole nodes of
        one cell are equal: the ones that opportunistic jobs use least come first.
        """
        if self.pool.in_order:
            yield from ([(level, index)] for index in sorted(group))
        elif room < self.shape.size[level] or level < self.shape.node_level:
            yield from ([(level, index)] for index in group)
        else:
            busy = self.chain.forest.busy[level]
            for bound, cell in self.pool.bound:
                whole = (
                    [index for index in self.shape.within(bound, cell, level) if index in group]
                    if bound >= level
                    else []
                )
                whole.sort(key=busy.__getitem__)
                yield [(level, index) for index in whole[: self.look]]

    def _in_unit(self, units: Iterable[tuple[int, int]], within: int) -> Iterator[Found]:
        for level, index in units:
            bound = self._bound_level(level, index)
            yield from islice(self._inside(level, index, within, bound), 1)

    def _units_by_priority(self) -> Iterator[tuple[int, int]]:
        chain, node = self.chain, self.shape.node_level
        for level, index in self.pool.bound:
            lower = min(level, node)
            for unit in self.shape.within(level, index, lower):
                if len(available_leaves(chain, lower, unit, self.below)) >= self.need:
                    yield lower, unit

    def _inside(self, level: int, index: int, within: int, bound: int) -> Iterator[Found]:
        """Yield placements in a unit, tied to one of its cells of level `within` if that is less.

        Without preemption the first is the best; else every cell is worth comparing.
        """
        if self.limit is not None:
            node = self.shape.node(self.shape.span(level, index).start)
            if self.limit(node) < len(self.sizes):
                return
        lower = min(level, within)
        cells = self.shape.within(level, index, lower)
        order: Sequence[int] = cells
        if len(cells) > 1:
            busy, firm = self.chain.forest.busy[lower], self.chain.forest.firm[lower]
            order = sorted(cells, key=lambda cell: (-firm[cell], busy[cell]))
        for cell in order:
            found = self._take(
                available_leaves(self.chain, lower, cell, self.below), self.sizes, bound
            )
            if found is not None:
                yield found

    def _take(
        self,
        leaves: list[int],
        sizes: Sequence[int],
        bound: int,
        gone: Mapping[AttemptId, None] = NO_JOBS,
    ) -> Found | None:
        """Return workers of these sizes on these leaves of one node; `gone` are victims anyway."""
        need = sum(sizes)
        if len(leaves) < need:
            return None
        user, claim = self.chain.user, self.chain.claim
        idle = [leaf for leaf in leaves if user[leaf] is None and leaf not in claim]
        if len(idle) < need:
            seized = seize_leaves(self.chain, leaves, sizes, self.loss, gone)
            return None if seized is None else _found(seized, bound)
        spots = []
        for gpus in sizes:
            got = closest_leaves(self.shape, idle, gpus)
            spots.append(Spot(got, bound))
            if len(got) < len(idle):
                idle = [leaf for leaf in idle if leaf not in got]
        return Found(spots)

    def _bound_level(self, level: int, index: int) -> int:
        """Return the level of the pool's cell that covers a unit."""
        shape = self.shape
        while (level, index) not in self.pool.bound:
            level += 1
            index //= shape.fan[level]
        return level

    def _in_domains(self, level: int) -> Iterator[Iterator[Found]]:
        """Yield placements over several nodes of one cell above node level that is bound."""
        tight: list[tuple[int, Cell]] = []
        firm = self.chain.forest.firm[level]
        for bound, index in self.pool.bound:
            if bound >= level:
                for cell in self.shape.within(bound, index, level):
                    room = self.shape.size[level] - firm[cell]
                    if room >= self.need or self.below > 0:
                        tight.append((room, Cell(level, cell, bound)))
        for _, domain in sorted(tight, key=lambda each: each[0]):
            yield self._in_domain([domain])

    def _in_domain(self, domains: Iterable[Cell]) -> Iterator[Found]:
        node = self.shape.node_level
        for domain in domains:
            units = [Cell(node, each, domain.bound) for each in self._nodes(domain)]
            found = self._fill(units)
            if found is not None:
                yield found

    def _nodes(self, domain: Cell) -> list[int]:
        """Return a cell's nodes, those with most free GPUs first, and of whole ones the least used.

        Other nodes with equally many are in the order of their history (see `_alike`).
        """
        node, shape = self.shape.node_level, self.shape
        busy, firm = self.chain.forest.busy[node], self.chain.forest.firm[node]
        inside = shape.within(domain.level, domain.place, node)
        if self.pool.in_order:
            return sorted(inside, key=firm.__getitem__)
        room = dict.fromkeys(firm[each] for each in inside if firm[each])
        rank = {
            each: place
            for taken in room
            for place, each in enumerate(self.pool.loose[node].get(shape.node_size - taken, ()))
        }
        return sorted(
            inside,
            key=lambda each: (firm[each], rank.get(each, each) if firm[each] else busy[each]),
        )

    # --- in new cells --------------------------------------------------------------------------

    def _in_new(self, level: int, within: int) -> Iterator[Found]:
        """Yield placements in one more cell of a level that the VC binds for it."""
        for cell in new_cells(self.chain, level, most=self.look):
            node = self.shape.node_level
            if level <= node:
                for found in self._inside(level, cell, within, level):
                    yield found
                    break
                continue
            lower = max(within, node)
            for part in self.shape.within(level, cell, lower):
                if self.shape.size[lower] < self.need:
                    return
                units = [Cell(node, each, level) for each in self._nodes(Cell(lower, part, level))]
                laid = self._one_node(units, within) if within <= node else self._fill(units)
                if laid is not None:
                    yield laid
                    break

    def _one_node(self, units: list[Cell], within: int) -> Found | None:
        for unit in units:
            for found in self._inside(unit.level, unit.place, within, unit.bound):
                return found
        return None

    # --- over several cells --------------------------------------------------------------------

    def _spread(self) -> Found | None:
        """Return a placement over several units: free GPUs of bound cells first, then new cells.

        Of new cells the largest ones that are filled are taken, and the smallest that holds the
        rest.
        """
        units = (
            Cell(level, index, self._bound_level(level, index)) for level, index in self._roomy()
        )
        return self._fill(units, more=self._more_units)

    def _roomy(self) -> Iterator[tuple[int, int]]:
        if self.below == 0:
            for level, room, group in self.pool.roomiest():
                for units in self._alike(level, room, group):
                    yield from units
            return
        node = self.shape.node_level
        for level, index in self.pool.bound:
            lower = min(level, node)
            for unit in self.shape.within(level, index, lower):
                yield lower, unit

    def _more_units(self, sizes: list[int]) -> Iterator[Cell]:
        """Yield the units of new cells for the remaining workers (`sizes` shrinks meanwhile)."""
        shape, node = self.shape, self.shape.node_level
        draft, left = Draft(self.chain.forest), list(self.pool.left)
        while sizes:
            level = self._next_level(left, sizes)
            if level is None:
                return
            each = max(1, shape.size[level] // sizes[0])
            want = min(left[level], max(1, len(sizes) // each))
            got = list(islice(new_cells(self.chain, level, draft), want))
            left[level] = left[level] - len(got) if got else 0
            lower = min(level, node)
            for cell in got:
                for unit in shape.within(level, cell, lower):
                    yield Cell(lower, unit, level)

    def _next_level(self, left: list[int], sizes: list[int]) -> int | None:
        """Return the smallest level that holds the rest of the gang, else the largest."""
        need, largest = sum(sizes), None
        for level in range(1, self.shape.top + 1):
            if left[level] and self.shape.size[level] >= sizes[-1]:
                largest = level
                if self.shape.size[level] >= need:
                    break
        return largest

    def _fill(
        self,
        units: Iterator[Cell] | Sequence[Cell],
        more: Callable[[list[int]], Iterator[Cell]] | None = None,
    ) -> Found | None:
        """Place the workers on units in this order, the largest that fit first."""
        rest, tried, placed = list(self.sizes), list[Cell](), dict[str, int]()
        plan: list[tuple[Cell, list[int]]] = []
        for source in (iter(units), more(rest) if more is not None else iter(())):
            for unit in source:
                tried.append(unit)
                room = len(available_leaves(self.chain, unit.level, unit.place, self.below))
                fitting = self._fitting(rest, room, unit, placed)
                if fitting:
                    plan.append((unit, fitting))
                if not rest:
                    return self._as_found(plan)
        if self.sizes[0] > self.sizes[-1]:
            return self._packed(tried)
        return None

    def _packed(self, units: list[Cell]) -> Found | None:
        """Place unequal workers on some of these units by trial."""
        bins = []
        for unit in units:
            node = self._node_of(unit)
            room = len(available_leaves(self.chain, unit.level, unit.place, self.below))
            bins.append(Bin(room, node, None if self.limit is None else self.limit(node)))
        got = pack_workers(bins, self.sizes)
        if got is None:
            return None
        return self._as_found(
            [(unit, sizes) for unit, sizes in zip(units, got, strict=True) if sizes]
        )

    def _as_found(self, plan: list[tuple[Cell, list[int]]]) -> Found:
        """Return the placement with these workers on these units."""
        got: list[Spot] = []
        victims: dict[AttemptId, None] = {}
        cancels: dict[AttemptId, None] = {}
        lost = 0.0
        for unit, sizes in plan:
            leaves = available_leaves(self.chain, unit.level, unit.place, self.below)
            laid = self._take(leaves, sizes, unit.bound, victims)
            assert laid is not None, unit
            got += laid.spots
            lost += laid.loss
            victims.update(laid.victims)
            cancels.update(laid.cancels)
        return Found(got, lost, victims, cancels)

    def _node_of(self, unit: Cell) -> str:
        return self.shape.node(self.shape.span(unit.level, unit.place).start)

    def _fitting(self, rest: list[int], room: int, unit: Cell, placed: dict[str, int]) -> list[int]:
        """Remove from `rest` (descending) the workers that fit on a unit, and return them.

        `placed` counts them by node, where the nodes' other resources are limited.
        """
        if room < rest[-1]:
            return []
        if self.limit is None:
            return self._fit(rest, room, len(rest))
        node = self._node_of(unit)
        taken = self._fit(rest, room, self.limit(node) - placed.get(node, 0))
        placed[node] = placed.get(node, 0) + len(taken)
        return taken

    @staticmethod
    def _fit(rest: list[int], room: int, most: int) -> list[int]:
        if rest[0] == rest[-1]:
            count = max(0, min(most, room // rest[0], len(rest)))
            taken = rest[:count]
            del rest[:count]
            return taken
        taken, kept = [], []
        for gpus in rest:
            if gpus <= room and len(taken) < most:
                taken.append(gpus)
                room -= gpus
            else:
                kept.append(gpus)
        rest[:] = kept
        return taken


def new_cells(
    chain: ChainState, level: int, draft: Draft | None = None, most: int = LOOK
) -> Iterator[int]:
    """Yield cells that may be bound: safe to take out of the free cells, one after another.

    Cells without busy GPUs come first, then those that opportunistic jobs use.

    Args:
        chain: The chain.
        level: The level of the cells.
        draft: What is taken already; it takes each cell that is yielded. None: each cell is an
            alternative to the others.
        most: The most used cells that are looked at, without a draft.

    Yields:
        Indexes of cells.
    """
    forest, looked = chain.forest, 0
    plan = draft or Draft(forest)
    refused: dict[Kind, None] = {}

    def skip(high: int, free: int) -> bool:
        return bool(refused) and (high, high) in refused and plan.untouched(high, free)

    clean, used = forest.clean_cells(level, skip), forest.used_cells(level, skip)
    for cell, _, _ in chained(clean, used):
        kind = plan.safety_class(level, cell)
        if kind is None or kind in refused:
            continue
        if not plan.take_if_safe(level, cell):
            refused[kind] = None
            continue
        if draft is None:
            plan = Draft(forest)
        yield cell
        looked += draft is None and forest.busy[level][cell] > 0
        if looked == most:
            return


def _cheapest(found: Iterator[Found]) -> Found | None:
    """Return the first placement without victims and cancelled claims, else the cheapest one."""
    best: Found | None = None
    for each in found:
        if not each.victims and not each.cancels:
            return each
        if best is None or each.loss < best.loss:
            best = each
    return best


def _found(seized: Seized, bound: int) -> Found:
    spots = [Spot(leaves, bound) for leaves in seized.leaves]
    return Found(spots, seized.loss, seized.victims, seized.cancels)


def as_placement(chain: ChainState, request: Request, found: Found) -> Placement:
    """Return what was found with the workers in the order of the request.

    Args:
        chain: The chain.
        request: The request.
        found: The spots in any order, one for each worker.
    """
    if len(found.spots) == 1:
        only = (found.spots[0],)
        return Placement(chain.topology.name, only, tuple(found.victims), tuple(found.cancels))
    by_size: dict[int, list[Spot]] = {}
    for spot in found.spots:
        by_size.setdefault(len(spot.leaves), []).append(spot)
    order = {gpus: iter(spots) for gpus, spots in by_size.items()}
    spots = tuple(next(order[gpus]) for gpus in request.sizes)
    return Placement(chain.topology.name, spots, tuple(found.victims), tuple(found.cancels))
