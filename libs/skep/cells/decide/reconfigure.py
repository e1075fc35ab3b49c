"""Decide what becomes of jobs when the cells change; `cells.install` carries it out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from skep.cells.chain import ChainState
from skep.cells.decide.cover import find_cover
from skep.cells.forest import Draft
from skep.cells.holds import OPPORTUNISTIC, CellHold, Request, Spot
from skep.cells.install import (
    Carried,
    Gpu,
    Home,
    ReconfiguredJob,
    as_before,
    enter_carried,
    gpus_of_hold,
    home_of,
    install_cluster,
    placed,
)
from skep.cells.state import Cells
from skep.wire.bearing import BadCell, Fate
from skep.wire.cluster import Cluster


class Outcome(NamedTuple):
    """The result of a change of the cells: all holds, and the bad cells that VCs keep bearing."""

    carried: tuple[Carried, ...]
    bad_cells: tuple[BadCell, ...]


def decide_outcome(cells: Cells, cluster: Cluster) -> Outcome:
    """Return what becomes of all holds on another cluster; none of their jobs is stopped.

    In a chain with the same shape and owners everything stays as it is. Elsewhere a hold keeps its
    guarantee if its VC owns cells there that cover it and can be taken safely; higher priorities
    come first, then those that have held longest. The hold goes to the chain that has most of its
    GPUs; the others count as bad until it leaves them. A VC keeps bearing a bad cell if it can.

    Args:
        cells: The cells before; they are not changed.
        cluster: The new cluster.
    """
    new = Cells(cluster)
    for node, device in sorted(cells.bad_gpus()):
        new.note_bad_gpu(node, device)
    same = [name for name in new.chains if _same(cells, new, name)]
    bad_cells = [cell for cell in cells.bound_bad_cells() if cell.chain in same]
    for cell in bad_cells:
        new.bind_bad_cell(cell)
    carried: list[Carried] = []
    stay: list[CellHold] = []
    others: list[CellHold] = []
    for hold in cells.holds.values():
        as_it_is = all(name in same for name, _ in hold.portions)
        (stay if as_it_is and _stays(cells, hold) else others).append(hold)
    for hold in stay:
        carried.append(as_before(hold))
        home = home_of(cells, new, hold, hold.chain, carried[-1].chains)
        enter_carried(new, hold, carried[-1], home)
    # Opportunistic jobs go in last: they bind nothing, and others may bind around them.
    for hold in sorted(others, key=lambda hold: -hold.asked):
        if hold.claims:
            carried.append(Carried(hold.job, "", (), Fate.RELEASED, hold.job))
            continue
        chains = _chains(cells, new, hold)
        chain = chains[0] if chains else _chain(cells, new, hold)
        home = home_of(cells, new, hold, chain, chains)
        levels = [spot.level for _, spots in hold.portions for spot in spots]
        if not chains:
            levels = _levels(cells, new, hold, chain)
        carried.append(_decide(new, hold, chain, home, levels, chains))
        enter_carried(new, hold, carried[-1], home)
    bad_cells += _go_on(cells, new, same)
    return Outcome(tuple(carried), tuple(bad_cells))


def reconfigure(cells: Cells, cluster: Cluster) -> tuple[Cells, list[ReconfiguredJob]]:
    """Return the same jobs on another cluster and what that means for each, without facts.

    Args:
        cells: The cells before; they are not changed.
        cluster: The new cluster.
    """
    return install_cluster(cells, cluster, *decide_outcome(cells, cluster))


def _same(old: Cells, new: Cells, name: str) -> bool:
    """Return whether a chain has the same shape and the same owners as before."""
    before = old.chains.get(name)
    if before is None or old.cluster.chains[name] != new.cluster.chains[name]:
        return False
    owned, owns = _owned(before), _owned(new.chains[name])
    pins = [
        {pin: old.cluster.pins[pin] for _, pin in owned if pin},
        {pin: new.cluster.pins[pin] for _, pin in owns if pin},
    ]
    return owned == owns and pins[0] == pins[1]


def _owned(chain: ChainState) -> dict[tuple[str, str], list[int]]:
    return {key: pool.total for key, pool in chain.pools.items() if any(pool.total)}


def _stays(cells: Cells, hold: CellHold) -> bool:
    """Return whether a hold can stay as it is in a chain that does not change."""
    off_chain = any(job in cells.off_chain for job in hold.partners or (hold.job,))
    rightful = hold.asked > OPPORTUNISTIC or not hold.guaranteed
    return rightful and not off_chain and not hold.claims


def _chain(old: Cells, new: Cells, hold: CellHold) -> str:
    """Return the chain that has most of the GPUs of a hold."""
    _, spots = gpus_of_hold(old, hold)
    homes = [new.find(*gpu) for gpus in spots for gpu in gpus]
    chains = [home[0] for home in homes if home is not None]
    return max(dict.fromkeys(chains), key=chains.count, default="")


def _chains(old: Cells, new: Cells, hold: CellHold) -> tuple[str, ...]:
    """Return the chain of each spot of a mixed gang, in the order of its workers.

    Returns:
        Nothing if it is not mixed, or if a spot is in no one chain: then it is carried over as any
        hold, in the chain that has most of its GPUs. Spots of one chain follow one another.
    """
    if not hold.further or hold.job in old.off_chain:
        return ()
    _, spots = gpus_of_hold(old, hold)
    found: list[str] = []
    for gpus in spots:
        homes = dict.fromkeys("" if home is None else home[0] for home in map(_at(new), gpus))
        found += list(homes) if len(homes) == 1 else [""]
    changes = sum(one != other for one, other in itertools.pairwise(found))
    return tuple(found) if "" not in found and changes + 1 == len(set(found)) else ()


def _at(cells: Cells) -> Callable[[Gpu], tuple[str, int] | None]:
    return lambda gpu: cells.find(*gpu)


def _levels(old: Cells, new: Cells, hold: CellHold, chain: str) -> list[int]:
    """Return the levels that its spots in a chain had; 0 for GPUs that were outside the chain."""
    _, spots = gpus_of_hold(old, hold)
    levels = [spot.level for _, mine in hold.portions for spot in mine] + [0] * len(spots)
    homes = [[new.find(*gpu) for gpu in gpus] for gpus in spots]
    return [
        level
        for level, inside in zip(levels, homes, strict=False)
        if any(home is not None and home[0] == chain for home in inside)
    ]


def _decide(
    new: Cells, hold: CellHold, chain: str, home: Home, levels: list[int], chains: tuple[str, ...]
) -> Carried:
    """Return what becomes of a hold whose chain changed."""
    leads = hold.job if hold.job in home.partners else next(iter(home.partners), hold.job)
    if not home.spots:
        return Carried(hold.job, chain, (), Fate.DEMOTED, leads)
    spots = tuple(Spot(leaves, level) for leaves, level in zip(home.spots, levels, strict=True))
    moved = CellHold(
        Request(leads, hold.vc, hold.asked, (), pin=hold.pin, lazy=hold.lazy),
        placed(chain, spots, chains),
    )
    # A set whose guaranteed jobs are all to end has no right to cells.
    owns = hold.guaranteed and hold.asked > OPPORTUNISTIC
    covered = find_cover(new, moved) if owns and not any(home.off_chain.values()) else None
    if covered is not None:
        taken = tuple(spot.level for spot in covered)
        return Carried(hold.job, chain, taken, Fate.KEPT, leads, chains)
    fate = Fate.DEMOTED if hold.guaranteed else Fate.OPPORTUNISTIC
    return Carried(hold.job, chain, (), fate, leads, chains)


def _go_on(old: Cells, new: Cells, same: list[str]) -> Iterator[BadCell]:
    """Yield the cells of changed chains that VCs keep bearing; they are bound in `new`."""
    for cell in sorted(
        old.bound_bad_cells(), key=lambda cell: (cell.chain, cell.level, cell.index)
    ):
        found = _found(old, new, cell) if cell.chain not in same else None
        if found is None:
            continue
        chain = new.chains[found.chain]
        pool = chain.pools.get((found.vc, ""))
        bad = chain.forest.firm[found.level][found.index]
        owes = pool is not None and pool.left[found.level] > 0
        if owes and bad and Draft(chain.forest).take_if_safe(found.level, found.index):
            new.bind_bad_cell(found)
            yield found


def _found(old: Cells, new: Cells, cell: BadCell) -> BadCell | None:
    """Return the cell that consists of the same GPUs in other cells; None: there is none."""
    shape = old.chains[cell.chain].topology
    gpus = [(shape.node(leaf), shape.device(leaf)) for leaf in shape.span(cell.level, cell.index)]
    homes = dict.fromkeys(new.find(*gpu) for gpu in gpus)
    chains = dict.fromkeys(home[0] if home is not None else "" for home in homes)
    if len(chains) != 1 or "" in chains:
        return None
    (name,) = chains
    leaves = sorted(home[1] for home in homes if home is not None)
    there = new.chains[name].topology
    for level in range(1, there.top + 1):
        index = there.up(leaves[0], level)
        if list(there.span(level, index)) == leaves:
            return BadCell(chain=name, vc=cell.vc, level=level, index=index)
    return None
