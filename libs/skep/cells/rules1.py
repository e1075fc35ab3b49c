"""How facts of epochs by rules 1 are applied. Frozen: logs say no more than these functions read.

By rules 1 facts left open which VC bears bad hardware, which attempt leads a set, and what becomes
of each hold when the cells change; the program that applied them chose, by the functions here. They
keep what they need of other modules' decisions as it was, so that those may change. Nothing here is
to be mended or tidied: another choice would read old logs as other decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from skep.cells.chain import ChainState
from skep.cells.forest import Forest
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request, Spot
from skep.cells.install import Gpu, ReconfiguredJob
from skep.cells.pools import Pool
from skep.cells.state import Cells
from skep.cells.topology import Topology
from skep.ids import AttemptId
from skep.wire.cluster import Cluster


class Rules1:
    """The choosers of rules 1, for `Cells.choosers`."""

    def settle(self, chain: ChainState, *, health: bool) -> None:
        """Choose which VC bears bad hardware of a chain."""
        settle(chain)

    def lead(self, candidates: Sequence[AttemptId]) -> AttemptId:
        """Choose which attempt leads a set: the first that came."""
        return candidates[0]


RULES1 = Rules1()


def settle(chain: ChainState) -> None:
    """Have VCs bear the bad hardware that is not avoidable, and none that is.

    Where the healthy free cells cannot serve all that is owed, the VC with most unbound cells
    of that level gets a bad one bound; it stays with that VC until there are enough again.
    """
    if chain.bad or chain.bad_cells:
        _spare(chain)
        short = _deficits(chain.forest.whole, chain.forest.owed, chain.topology)
        while any(short):
            level = max(level for level, count in enumerate(short) if count)
            if not _doom(chain, level):
                return
            short = _deficits(chain.forest.whole, chain.forest.owed, chain.topology)


def _spare(chain: ChainState) -> None:
    """Take bad cells back that need not be: healed ones, and the least bad of each level.

    Which ones depends on the state alone, never on the order in which it came about: facts
    that are replayed must lead to the same cells as a snapshot.
    """
    for cell in chain.healed:
        if cell in chain.bad_cells and not cell.used and not chain.firm_gpus(cell):
            chain.unbind_bad_cell(cell.level, cell.index)
    chain.healed.clear()
    for level in range(chain.topology.top, 0, -1):
        while chain.bad_cells_at[level] and _serves(chain.forest, level):
            idle = (cell for cell in chain.bad_cells if cell.level == level and not cell.used)
            least = min(idle, key=lambda cell: (chain.firm_gpus(cell), cell.index), default=None)
            if least is None:
                break
            chain.unbind_bad_cell(least.level, least.index)


def _serves(forest: Forest, level: int) -> bool:
    owed = list(forest.owed)
    owed[level] += 1
    return not any(_deficits(forest.whole, owed, forest.topology))


def _doom(chain: ChainState, level: int) -> bool:
    pools = [pool for pool in chain.pools.values() if pool.left[level]]
    worst = max(pools, key=lambda pool: (pool.left[level], pool.vc), default=None)
    if worst is None:
        return False
    firm, shape = chain.forest.firm[level], chain.topology
    for high in range(level, shape.top + 1):
        for free in sorted(chain.forest.ill[high]):
            inside = [cell for cell in shape.within(high, free, level) if firm[cell]]
            for cell in sorted(inside, key=firm.__getitem__):
                if Draft(chain.forest).take(level, cell):
                    chain.bind_bad_cell(worst.vc, level, cell)
                    return True
    return False


def reconfigure(cells: Cells, cluster: Cluster) -> tuple[Cells, list[ReconfiguredJob]]:
    """Return the same jobs on another cluster, and what that means for each; none is stopped.

    A job keeps its guarantee if its VC owns cells there that cover it and can be taken safely;
    higher priorities come first, then those that have run longest. GPUs that a job uses outside its
    new chain count as bad until it leaves them.
    """
    new = Cells(cluster, RULES1)
    # Which VC bears what is bad is settled when all are in: it depends on the state alone.
    for node, device in sorted(cells.bad_gpus()):
        new.note_bad_gpu(node, device)
    changes: list[ReconfiguredJob] = []
    # Opportunistic jobs go in last: they bind nothing, and those that bind may do so around them.
    order = sorted(cells.holds.values(), key=lambda hold: -hold.asked)
    for hold in order:
        if hold.claims:
            changes.append(ReconfiguredJob(hold.job, hold.vc, "released"))
            continue
        changes += _carry(cells, new, hold)
    for job, gpus in cells.off_chain.items():
        for node, device in gpus if job not in cells.holds else ():
            new.note_off_chain(job, node, device)
    for chain in new.chains.values():
        settle(chain)
    return new, changes


def _carry(old: Cells, new: Cells, hold: CellHold) -> Iterator[ReconfiguredJob]:
    """Enter a hold into the new cells, on the same GPUs; yield what that means for whose it is."""
    shape = old.chains[hold.chain].topology

    def named(leaves: Sequence[int]) -> list[Gpu]:
        return [(shape.node(leaf), shape.device(leaf)) for leaf in leaves]

    theirs = {
        job: named(old.leaves_of(job)) + list(old.off_chain.get(job, ()))
        for job in hold.partners or (hold.job,)
    }
    used = [named(spot.leaves) for spot in hold.spots]
    inside_before = {gpu for gpus in used for gpu in gpus}
    used += [
        [gpu]
        for gpu in dict.fromkeys(gpu for gpus in theirs.values() for gpu in gpus)
        if gpu not in inside_before
    ]
    homes = [new.find(*gpu) for gpus in used for gpu in gpus]
    chains = [home[0] for home in homes if home is not None]
    name = max(dict.fromkeys(chains), key=chains.count, default="")
    spots = []
    levels = [spot.level for spot in hold.spots] + [0] * len(used)
    for each, level in zip(used, levels, strict=False):
        inside = _inside(new, name, each)
        if inside:
            spots.append(Spot(inside, level))
    astray = {
        job: tuple(gpu for gpu in gpus if not _inside(new, name, [gpu]))
        for job, gpus in theirs.items()
    }
    for job, gone in astray.items():
        for gpu in gone:
            new.note_off_chain(job, *gpu)
    fate = "demoted"
    if spots:
        fate = _enter(
            new,
            hold,
            Placement(name, tuple(spots)),
            any(astray.values()),
            {job: _inside(new, name, gpus) for job, gpus in theirs.items()},
        )
    for job in theirs:
        yield ReconfiguredJob(job, hold.vc, fate, astray[job])


def _inside(cells: Cells, chain: str, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return those of some GPUs that are in a chain, as leaves of it."""
    homes = [cells.find(*gpu) for gpu in gpus]
    return tuple(sorted(home[1] for home in homes if home is not None and home[0] == chain))


def _enter(
    new: Cells,
    hold: CellHold,
    where: Placement,
    strays: bool,
    leaves: Mapping[AttemptId, tuple[int, ...]],
) -> str:
    """Enter what is left of a hold in one chain; return what became of its right to it."""
    partners = {
        job: each._replace(leaves=leaves[job]) for job, each in hold.partners.items() if leaves[job]
    }
    leads = hold.job if hold.job in partners else next(iter(partners), hold.job)
    moved = CellHold(Request(leads, hold.vc, hold.asked, (), pin=hold.pin, lazy=hold.lazy), where)
    moved.partners = partners
    # Of a set whose guaranteed ones are all to end none has a right to cells.
    owns = hold.guaranteed and moved.asked > OPPORTUNISTIC
    covered = cover(new, moved) if owns and not strays else None
    if covered is not None:
        moved.spots = covered
        fate = "kept"
    else:
        moved.priority = OPPORTUNISTIC
        moved.spots = tuple(Spot(spot.leaves) for spot in where.spots)
        fate = "demoted" if hold.guaranteed else "opportunistic"
    new.enter(moved, settle=False)
    return fate


def cover(cells: Cells, hold: CellHold) -> tuple[Spot, ...] | None:
    """Return a job's own leaves as cells its VC can own now, or None if it cannot.

    A worker fits a cell the VC has bound there, or a new one that may be taken safely. A job
    that has to make room for another has no claim to where it is.
    """
    chain = cells.chains[hold.chain]
    pool = chain.pools.get((hold.vc, hold.pin))
    claimed = any(leaf in chain.claim for spot in hold.spots for leaf in spot.leaves)
    if pool is None or claimed:
        return None
    draft, left, shape = Draft(chain.forest), list(pool.left), chain.topology
    new: dict[tuple[int, int], None] = {}
    spots = []
    for spot in hold.spots:
        level = _cover_level(chain, pool, spot, new)
        if not level:
            first, last = min(spot.leaves), max(spot.leaves)
            for at in _levels(spot.level, shape.top):
                cell = first // shape.size[at]
                if cell == last // shape.size[at] and left[at] and draft.take(at, cell):
                    left[at] -= 1
                    new[at, cell] = None
                    level = at
                    break
        if not level:
            return None
        spots.append(Spot(spot.leaves, level))
    return tuple(spots)


def _levels(preferred: int, top: int) -> list[int]:
    levels = list(range(1, top + 1))
    return sorted(levels, key=lambda level: (level != preferred, level))


def _cover_level(
    chain: ChainState, pool: Pool, spot: Spot, new: dict[tuple[int, int], None]
) -> int:
    shape = chain.topology
    for level in range(1, shape.top + 1):
        first = spot.leaves[0] // shape.size[level]
        if all(leaf // shape.size[level] == first for leaf in spot.leaves):
            key = level, first
            if key in new or key in pool.bound:
                return level
    return 0


Kind = tuple[int, int]
"""Levels: of what is split to take a cell, and of the largest healthy cell it is part of (or 0)."""


class Draft:
    """A plan of several cells to take, checked one after the other, that changes nothing."""

    def __init__(self, forest: Forest) -> None:
        """Begin with the free cells as they are."""
        self._forest = forest
        self._free = [len(cells) for cells in forest.free]
        self._whole = list(forest.whole)
        self._owed = list(forest.owed)
        self._split: set[tuple[int, int]] = set()
        """Cells that are taken, or split because one in them is."""
        self._taken: set[tuple[int, int]] = set()
        self._short = sum(_deficits(self._whole, self._owed, forest.topology))

    def returned(self, level: int, *, bad: bool) -> None:
        """Assume that a bound cell of this level went back, and is owed again.

        Args:
            level: The level of the cell.
            bad: Whether it has bad GPUs.
        """
        for counts in (self._free, self._owed) if bad else (self._free, self._owed, self._whole):
            counts[level] += 1

    def kind(self, level: int, index: int) -> Kind | None:
        """Return what the safety of taking a cell depends on.

        Args:
            level: The level of the cell.
            index: Its index.

        Returns:
            The level of the free cell around it, and the highest level of a cell around it without
            firm GPUs (0: it has some itself); None: a part of it is taken.
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
        """Return whether nothing of a free cell is taken, and all cells in it are of one kind."""
        return (level, index) not in self._split and not self._forest.firm[level][index]

    def take(self, level: int, index: int) -> bool:
        """Take a cell if every cell owed can still be had then, healthy as far as now."""
        kind = self.kind(level, index)
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
        return sum(_deficits(self._whole, self._owed, shape)) <= self._short


def _covers(free: list[int], owed: list[int], shape: Topology) -> bool:
    spare = 0
    for level in range(shape.top, 0, -1):
        above = spare * shape.fan[level + 1] if level < shape.top else 0
        spare = free[level] - owed[level] + above
        if spare < 0:
            return False
    return True


def _deficits(whole: list[int], owed: list[int], shape: Topology) -> list[int]:
    """Return, by level, how many cells owed exceed the whole ones, larger cells served first."""
    short, spare = [0] * (shape.top + 1), 0
    for level in range(shape.top, 0, -1):
        above = spare * shape.fan[level + 1] if level < shape.top else 0
        left = whole[level] - owed[level] + above
        short[level], spare = max(0, -left), max(0, left)
    return short
