"""Decide which VC bears bad hardware, and which attempt leads a set, after cells have changed.

Some bad hardware cannot be avoided: the healthy free cells no longer suffice for all that VCs own.
HiveD binds such *doomed bad cells* to VCs, which see the part of them that still works. Which
cells, and to which VC, is defined by these rules:

1. A borne cell that no job uses is returned as soon as it is healthy, or as soon as its level has
   enough healthy cells without it: first the one with the fewest bad GPUs, then the lowest.
2. While a level is short, its lowest suitable free cell with bad GPUs is bound, in the cell with
   the fewest bad GPUs that can be taken safely. Higher levels come first.
3. The VCs with most unbound cells of a level bear most: as if each cell had gone to the VC that had
   most left, one after the other (of equal ones: the last by name). The VC that comes last by name
   bears the lowest of them, and so on.

A cell that a job of its VC uses stays with it. The rest depends on which GPUs are bad and what is
bound, and not on the order of failures: where cells of several levels are owned, rules 1 and 2 are
applied from the beginning whenever a GPU turns bad or heals. (Only while at most AFRESH_MAX cells
are borne: beyond that much of a chain is broken, and each failure would cost as many facts.) Rule 3
is applied only when a GPU turns bad or heals, or when rule 1 or 2 changes something: a job that
comes or goes moves no other borne cell.

`next_steps` decides and changes nothing: the caller carries out each step before it asks for the
next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from skep.cells import sets
from skep.cells.chain import ChainState
from skep.cells.forest import Draft
from skep.cells.pools import Pool, VirtualCell
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.bearing import BadCell

AFRESH_MAX = 32
"""The most borne cells that are returned and chosen again: each costs two facts."""


class Bear(NamedTuple):
    """A VC is to bear a bad cell."""

    cell: BadCell


class Relieve(NamedTuple):
    """A VC is to stop bearing a bad cell."""

    cell: BadCell


class Lead(NamedTuple):
    """A job of a set is to lead it; the hold still has the name of another job."""

    name: AttemptId
    leader: AttemptId


Step = Bear | Relieve | Lead


def next_steps(cells: Cells) -> Iterator[Step]:
    """Yield the choices that the changes since `begin_change` left open, one step after the other.

    Args:
        cells: Read before each step; the caller carries out a step (by a fact) before the next
            one.
    """
    unsettled, unled = dict(cells.unsettled), list(cells.unled)
    returned = [cell for chain in cells.chains for cell in cells.returned if cell.chain == chain]
    for cell in returned:
        yield Relieve(cell)  # Done already; a fact has to state it.
    for name in unled:
        yield Lead(name, choose_leader(sets.leader_candidates(cells.holds[name])))
    for chain, health in unsettled.items():
        yield from _settle(cells.chains[chain], health=health)


class AtOnce:
    """Decides and carries out at once, for cells without recorded facts."""

    def settle(self, chain: ChainState, *, health: bool) -> None:
        """Decide which VCs bear bad hardware of a chain, and bind it.

        Args:
            chain: The chain, which changes.
            health: Whether GPUs turned bad or healed.
        """
        for step in _settle(chain, health=health):
            match step:
                case Bear(cell):
                    chain.bind_bad_cell(cell.vc, cell.level, cell.index)
                case Relieve(cell):
                    chain.unbind_bad_cell(cell.level, cell.index)

    def lead(self, candidates: Sequence[AttemptId]) -> AttemptId:
        """Choose which attempt leads a set."""
        return choose_leader(candidates)


AT_ONCE = AtOnce()


def choose_leader(candidates: Sequence[AttemptId]) -> AttemptId:
    """Return which of several jobs leads a set: the one that joined first."""
    return candidates[0]


def _settle(chain: ChainState, *, health: bool) -> Iterator[Bear | Relieve]:
    if not (chain.bad or chain.bad_cells):
        return
    changed = health
    if health:
        yield from _returned_for_new_choice(chain)
    for step in _unneeded(chain):
        changed = True
        yield step
    for bear in _needed(chain):
        changed = True
        yield bear
    if changed and len(chain.pools) > 1:
        yield from _share_out(chain)


def _returned_for_new_choice(chain: ChainState) -> Iterator[Relieve]:
    """Yield all borne cells that no job uses, if which ones are bound depends on the order.

    That is so only if cells of several levels are owned: a cell that was bound at one level may be
    in the way of a better one at another.
    """
    owned = [
        any(pool.total[level] and not pool.pin for pool in chain.pools.values())
        for level in range(chain.topology.top + 1)
    ]
    idle = [cell for cell in chain.bad_cells if not cell.used]
    if sum(owned) > 1 and len(idle) <= AFRESH_MAX:
        for cell in sorted(idle, key=lambda cell: (cell.level, cell.index)):
            yield _relieve(chain, cell)


def _unneeded(chain: ChainState) -> Iterator[Relieve]:
    """Yield the cells that need not be borne any more."""
    for cell in [cell for cell in chain.bad_cells if not cell.used and not chain.firm_gpus(cell)]:
        yield _relieve(chain, cell)
    for level in range(chain.topology.top, 0, -1):
        while chain.bad_cells_at[level] and chain.forest.can_serve_one_more(level):
            least = min(
                _idle(chain, level),
                default=None,
                key=lambda cell: (chain.firm_gpus(cell), cell.index),
            )
            if least is None:
                break
            yield _relieve(chain, least)


def _needed(chain: ChainState) -> Iterator[Bear]:
    """Yield the cells that have to be borne, one for each that is missing."""
    short = chain.forest.deficits()
    while any(short):
        level = max(level for level, count in enumerate(short) if count)
        pools = [pool for pool in chain.pools.values() if pool.left[level]]
        worst = max(pools, key=lambda pool: (pool.left[level], pool.vc), default=None)
        index = _bad_cell(chain, level) if worst is not None else None
        if worst is None or index is None:
            return
        yield _bear(chain, worst.vc, level, index)
        short = chain.forest.deficits()


def _bad_cell(chain: ChainState, level: int) -> int | None:
    """Return the cell with bad GPUs that is bound next at a level."""
    firm, shape = chain.forest.firm[level], chain.topology
    for high in range(level, shape.top + 1):
        for free in sorted(chain.forest.ill[high]):
            inside = [cell for cell in shape.within(high, free, level) if firm[cell]]
            for cell in sorted(inside, key=firm.__getitem__):
                if Draft(chain.forest).take_if_safe(level, cell):
                    return cell
    return None


def _share_out(chain: ChainState) -> Iterator[Bear | Relieve]:
    """Yield the steps that give each VC its share of the borne cells that no job uses."""
    for level in range(chain.topology.top, 0, -1):
        if not chain.bad_cells_at[level]:
            continue
        cells = sorted(_idle(chain, level), key=lambda cell: cell.index)
        pools = {pool.vc: pool for pool in chain.pools.values() if not pool.pin}
        owners = _owners(cells, pools, level)
        moved = [
            (cell.index, owner)
            for cell, owner in zip(cells, owners, strict=True)
            if cell.pool.vc != owner
        ]
        for index, _ in moved:
            yield _relieve(chain, chain.bound[level][index])
        for index, owner in moved:
            yield _bear(chain, owner, level, index)


def _owners(cells: list[VirtualCell], pools: Mapping[str, Pool], level: int) -> list[str]:
    """Return which VC is to bear each of these cells of a level."""
    borne = dict.fromkeys(sorted(pools, reverse=True), 0)
    for cell in cells:
        borne[cell.pool.vc] += 1
    counts = share_bad_cells(
        {vc: pools[vc].left[level] + count for vc, count in borne.items()}, len(cells)
    )
    return [vc for vc, count in counts.items() for _ in range(count)]


def share_bad_cells(unbound: Mapping[str, int], cells: int) -> dict[str, int]:
    """Return how many of some cells each VC bears: each goes to the VC that has most left.

    Args:
        unbound: By VC, how many cells of the level it would have unbound if it bore none of
            these.
        cells: How many are to be borne; no more than all of them have.
    """
    low, high = 0, max(unbound.values(), default=0)
    while low < high:  # Find the least that all can keep if at most `cells` are taken.
        middle = (low + high) // 2
        if sum(max(0, count - middle) for count in unbound.values()) <= cells:
            high = middle
        else:
            low = middle + 1
    found = {vc: max(0, count - low) for vc, count in unbound.items()}
    rest = cells - sum(found.values())
    for vc in sorted(unbound, reverse=True):
        if rest and unbound[vc] >= low > 0:
            found[vc] += 1
            rest -= 1
    return found


def _idle(chain: ChainState, level: int) -> list[VirtualCell]:
    """Return the borne cells of a level that no job uses."""
    return [cell for cell in chain.bad_cells if cell.level == level and not cell.used]


def _relieve(chain: ChainState, cell: VirtualCell) -> Relieve:
    return Relieve(chain.bad_cell_of(cell))


def _bear(chain: ChainState, vc: str, level: int, index: int) -> Bear:
    return Bear(BadCell(chain=chain.topology.name, vc=vc, level=level, index=index))
