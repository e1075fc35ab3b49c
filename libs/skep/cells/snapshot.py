"""The state of cells as plain data, and back: for snapshots, restarts and reconfiguration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from skep.cells.chain import ChainState
from skep.cells.holdings import Choosers
from skep.cells.holds import CellHold, Partner, Placement, Request, Spot
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.cluster import Cluster

Order = tuple[int | tuple[int, int], ...]
"""Keys of one index: cells or nodes, or bound cells by level and index.

The order in which an index lists equal entries decides which of equal places is taken. It depends
on history, and on nothing else in a snapshot. So it is stored too, and a restart changes no
decision."""


Spots = tuple[tuple[tuple[int, ...], int], ...]
"""Leaves and level of each spot."""


class HoldSnapshot(msgspec.Struct, frozen=True):
    """One hold: its job, the priority asked for and the one in force, and its spots."""

    job: AttemptId
    vc: str
    asked: int
    priority: int
    chain: str
    spots: Spots
    pin: str
    lazy: bool
    claims: bool
    partners: dict[AttemptId, Partner] = {}


class CellsSnapshot(msgspec.Struct, frozen=True, tag="cells-kept"):
    """Everything that the cluster file does not say.

    `ill` are bad GPUs as (node, device). `doomed` are the bad cells of VCs: chain, VC, level,
    index. `astray` are GPUs that jobs use outside their chain: job, node, device. `orders` are
    those of the indexes of each chain; a snapshot without them leads to places that are as good.
    `further` are the portions of mixed gangs in chains beside that of their hold.
    """

    cluster: Cluster
    holds: tuple[HoldSnapshot, ...]
    ill: tuple[tuple[str, int], ...]
    doomed: tuple[tuple[str, str, int, int], ...]
    astray: tuple[tuple[AttemptId, str, int], ...]
    orders: dict[str, tuple[Order, ...]] = {}
    further: dict[AttemptId, tuple[tuple[str, Spots], ...]] = {}


def take_snapshot(cells: Cells) -> CellsSnapshot:
    """Return the data from which `restore_cells` makes the same cells."""
    return CellsSnapshot(
        cluster=cells.cluster,
        holds=tuple(_kept(hold) for hold in cells.holds.values()),
        ill=tuple(cells.bad_gpus()),
        doomed=tuple(
            (name, cell.pool.vc, cell.level, cell.index)
            for name, chain in cells.chains.items()
            for cell in chain.bad_cells
        ),
        astray=tuple((job, *gpu) for job, gpus in cells.off_chain.items() for gpu in gpus),
        orders={name: index_orders(chain) for name, chain in cells.chains.items()},
        further={
            hold.job: tuple((name, tuple(spots)) for name, spots in hold.further)
            for hold in cells.holds.values()
            if hold.further
        },
    )


def restore_cells(kept: CellsSnapshot, choosers: Choosers | None = None) -> Cells:
    """Return cells in the state of a snapshot.

    Args:
        kept: The snapshot.
        choosers: Decide at once what later changes leave open; None: it is left to the caller.
    """
    cells = Cells(kept.cluster, choosers)
    for job, node, device in kept.astray:
        cells.note_off_chain(job, node, device)
    for node, device in kept.ill:
        cells.note_bad_gpu(node, device)
    for name, vc, level, index in kept.doomed:
        cells.chains[name].bind_bad_cell(vc, level, index)
    for each in sorted(kept.holds, key=lambda hold: hold.claims):
        further = kept.further.get(each.job, ())
        cells.enter(_hold(each, further), settle=False)
    # The order of holds says which has existed longest, also of those that began as claims.
    cells.holds = {each.job: cells.holds[each.job] for each in kept.holds}
    for name, order in kept.orders.items():
        restore_orders(cells.chains[name], order)
    return cells


def _kept(hold: CellHold) -> HoldSnapshot:
    return HoldSnapshot(
        job=hold.job,
        vc=hold.vc,
        asked=hold.asked,
        priority=hold.priority,
        chain=hold.chain,
        spots=tuple(hold.spots),
        pin=hold.pin,
        lazy=hold.lazy,
        claims=hold.claims,
        partners=dict(hold.partners),
    )


def _hold(kept: HoldSnapshot, beside: tuple[tuple[str, Spots], ...]) -> CellHold:
    request = Request(kept.job, kept.vc, kept.asked, (), pin=kept.pin, lazy=kept.lazy)
    (chain, spots), *further = (
        (name, tuple(Spot(tuple(leaves), level) for leaves, level in each))
        for name, each in ((kept.chain, kept.spots), *beside)
    )
    where = Placement(chain, spots, further=tuple(further))
    hold = CellHold(request, where, claims=kept.claims)
    hold.priority = kept.priority
    hold.partners.update(kept.partners)
    return hold


def index_orders(chain: ChainState) -> tuple[Order, ...]:
    """Return the order of each index of a chain that has more than one entry."""
    return tuple(tuple(index) for index in _indexes(chain) if len(index) > 1)


def restore_orders(chain: ChainState, kept: tuple[Order, ...]) -> None:
    """Put the indexes of a chain in the same state into these orders.

    An index with other entries than in the snapshot stays as it is: its order is equally good.

    Args:
        chain: The chain, which changes.
        kept: Orders from `index_orders`.
    """
    longer = [index for index in _indexes(chain) if len(index) > 1]
    for index, order in zip(longer, kept, strict=False):
        if set(order) == set(index):
            again = {key: index[key] for key in order}
            index.clear()
            index.update(again)


def _indexes(chain: ChainState) -> Iterator[dict[Any, Any]]:
    """Yield the indexes that placements search, in an order that depends on no index."""
    forest, levels = chain.forest, range(chain.topology.top + 1)
    for level in levels:
        yield forest.free[level]
        yield from _buckets(forest.by_busy[level])
        yield from (forest.part[level][lower] for lower in levels)
        yield forest.ill[level]
    for crowd in chain.crowd:
        yield from _buckets(crowd)
    for _, pool in sorted(chain.pools.items()):
        yield pool.bound
        for each in pool.loose:
            yield from _buckets(each)


def _buckets(index: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    return (index[key] for key in sorted(index))
