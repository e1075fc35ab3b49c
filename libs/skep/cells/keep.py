"""The state of cells as plain data, and back: for snapshots, restarts and reconfiguration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from skep.cells.holds import OPPORTUNISTIC, Hold, Partner, Placement, Request, Spot
from skep.cells.orders import Order, orders, reorder
from skep.cells.state import Cells
from skep.wire.cluster import Cluster

Gpu = tuple[str, int]
"""A node and a device of it."""


class HoldKept(msgspec.Struct, frozen=True):
    """One hold: whose, with which priority (`asked` for, and in force), and its spots."""

    job: str
    vc: str
    asked: int
    priority: int
    chain: str
    spots: tuple[tuple[tuple[int, ...], int], ...]
    pin: str
    lazy: bool
    claims: bool
    partners: dict[str, Partner] = {}


class CellsKept(msgspec.Struct, frozen=True, tag="cells-kept"):
    """Everything that the cluster file does not say. `doomed`: chain, VC, level, index.

    `orders` are those of the indexes of each chain; a snapshot without leads to places as good.
    """

    cluster: Cluster
    holds: tuple[HoldKept, ...]
    ill: tuple[tuple[str, int], ...]
    doomed: tuple[tuple[str, str, int, int], ...]
    astray: tuple[tuple[str, str, int], ...]
    orders: dict[str, tuple[Order, ...]] = {}


def keep(cells: Cells) -> CellsKept:
    """Return what `restore` makes the same cells from."""
    return CellsKept(
        cluster=cells.cluster,
        holds=tuple(_kept(hold) for hold in cells.holds.values()),
        ill=tuple(cells.ill()),
        doomed=tuple((name, cell.pool.vc, cell.level, cell.index)
                     for name, chain in cells.chains.items() for cell in chain.doomed),
        astray=tuple((job, *gpu) for job, gpus in cells.astray.items() for gpu in gpus),
        orders={name: orders(chain) for name, chain in cells.chains.items()},
    )  # fmt: skip


def restore(kept: CellsKept) -> Cells:
    """Return cells in the state that was kept."""
    cells = Cells(kept.cluster)
    for job, node, device in kept.astray:
        cells.stray(job, node, device)
    for node, device in kept.ill:
        cells.note_ill(node, device)
    for name, vc, level, index in kept.doomed:
        cells.chains[name].doom(vc, level, index)
    for each in sorted(kept.holds, key=lambda hold: hold.claims):
        cells.enter(_hold(each), settle=False)
    # Who has held longest is told by their order, also of those that only claimed at first.
    cells.holds = {each.job: cells.holds[each.job] for each in kept.holds}
    for name, order in kept.orders.items():
        reorder(cells.chains[name], order)
    return cells


def _kept(hold: Hold) -> HoldKept:
    return HoldKept(job=hold.job, vc=hold.vc, asked=hold.asked, priority=hold.priority,
                    chain=hold.chain, spots=tuple(hold.spots), pin=hold.pin, lazy=hold.lazy,
                    claims=hold.claims, partners=dict(hold.partners))  # fmt: skip


def _hold(kept: HoldKept) -> Hold:
    request = Request(kept.job, kept.vc, kept.asked, (), pin=kept.pin, lazy=kept.lazy)
    spots = tuple(Spot(tuple(leaves), level) for leaves, level in kept.spots)
    hold = Hold(request, Placement(kept.chain, spots), claims=kept.claims)
    hold.priority = kept.priority
    hold.partners.update(kept.partners)
    return hold


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reconfiguration means for a job that holds GPUs.

    `fate`: kept (its VC's cells cover it), demoted (it goes on where it is, opportunistically),
    opportunistic (as before), released (a reservation, planned anew).
    `astray` are GPUs it goes on using that are in no chain, or in another one, by now.
    """

    job: str
    vc: str
    fate: str
    astray: tuple[tuple[str, int], ...] = ()


def reconfigure(cells: Cells, cluster: Cluster) -> tuple[Cells, list[Change]]:
    """Return the same jobs on another cluster, and what that means for each; none is stopped.

    A job keeps its guarantee if its VC owns cells there that cover it and can be taken safely;
    higher priorities come first, then who has run longest. GPUs that a job uses outside its new
    chain count as bad until it leaves them.
    """
    new = Cells(cluster)
    # Who bears what is bad is settled when all are in: it depends on the state alone.
    for node, device in sorted(cells.ill()):
        new.note_ill(node, device)
    changes: list[Change] = []
    # Opportunistic jobs go in last: they bind nothing, and whoever binds may do so around them.
    order = sorted(cells.holds.values(), key=lambda hold: -hold.asked)
    for hold in order:
        if hold.claims:
            changes.append(Change(hold.job, hold.vc, "released"))
            continue
        changes += _carry(cells, new, hold)
    for job, gpus in cells.astray.items():
        for node, device in gpus if job not in cells.holds else ():
            new.stray(job, node, device)
    new.settle()
    return new, changes


def _carry(old: Cells, new: Cells, hold: Hold) -> Iterator[Change]:
    """Enter a hold into the new cells, on the same GPUs; yield what that means for whose it is."""
    shape = old.chains[hold.chain].topology

    def named(leaves: Sequence[int]) -> list[Gpu]:
        return [(shape.node(leaf), shape.device(leaf)) for leaf in leaves]

    theirs = {job: named(old.leaves_of(job)) + list(old.astray.get(job, ()))
              for job in hold.partners or (hold.job,)}  # fmt: skip
    used = [named(spot.leaves) for spot in hold.spots]
    inside_before = {gpu for gpus in used for gpu in gpus}
    used += [[gpu] for gpu in dict.fromkeys(gpu for gpus in theirs.values() for gpu in gpus)
             if gpu not in inside_before]  # fmt: skip
    homes = [new.find(*gpu) for gpus in used for gpu in gpus]
    chains = [home[0] for home in homes if home is not None]
    name = max(dict.fromkeys(chains), key=chains.count, default="")
    spots = []
    levels = [spot.level for spot in hold.spots] + [0] * len(used)
    for each, level in zip(used, levels, strict=False):
        inside = _inside(new, name, each)
        if inside:
            spots.append(Spot(inside, level))
    astray = {job: tuple(gpu for gpu in gpus if not _inside(new, name, [gpu]))
              for job, gpus in theirs.items()}  # fmt: skip
    for job, gone in astray.items():
        for gpu in gone:
            new.stray(job, *gpu)
    fate = "demoted"
    if spots:
        fate = _enter(new, hold, Placement(name, tuple(spots)), any(astray.values()),
                      {job: _inside(new, name, gpus) for job, gpus in theirs.items()})  # fmt: skip
    for job in theirs:
        yield Change(job, hold.vc, fate, astray[job])


def _inside(cells: Cells, chain: str, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return those of some GPUs that are in a chain, as leaves of it."""
    homes = [cells.find(*gpu) for gpu in gpus]
    return tuple(sorted(home[1] for home in homes if home is not None and home[0] == chain))


def _enter(
    new: Cells, hold: Hold, where: Placement, strays: bool, leaves: Mapping[str, tuple[int, ...]]
) -> str:  # fmt: skip
    """Enter what is left of a hold in one chain; return what became of its right to it."""
    partners = {job: each._replace(leaves=leaves[job])
                for job, each in hold.partners.items() if leaves[job]}  # fmt: skip
    leads = hold.job if hold.job in partners else next(iter(partners), hold.job)
    moved = Hold(Request(leads, hold.vc, hold.asked, (), pin=hold.pin, lazy=hold.lazy), where)
    moved.partners = partners
    # Of a set whose guaranteed ones are all to end nobody has a right to cells.
    owns = hold.guaranteed and moved.asked > OPPORTUNISTIC
    covered = new.cover(moved) if owns and not strays else None
    if covered is not None:
        moved.spots = covered
        fate = "kept"
    else:
        moved.priority = OPPORTUNISTIC
        moved.spots = tuple(Spot(spot.leaves) for spot in where.spots)
        fate = "demoted" if hold.guaranteed else "opportunistic"
    new.enter(moved, settle=False)
    return fate
