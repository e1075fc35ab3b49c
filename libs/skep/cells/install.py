"""Puts the holds of one cluster into the cells of another, as `decide.reconfigure` decided.

This is the fold's part of a reconfiguration. It chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skep.cells.holds import OPPORTUNISTIC, CellHold, Partner, Placement, Request, Spot
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.bearing import BadCell, Fate
from skep.wire.cluster import Cluster

Gpu = tuple[str, int]
"""A node and a device of it."""


class ReconfiguredJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reconfiguration means for a job that holds GPUs.

    `fate` is one of: kept (its VC's cells cover it), demoted (it continues where it is,
    opportunistically), opportunistic (as before), released (a reservation, planned again). `astray`
    are the GPUs, as (node, device), that it continues to use in another chain or in none.
    """

    job: AttemptId
    vc: str
    fate: str
    astray: tuple[tuple[str, int], ...] = ()


class Carried(NamedTuple):
    """What a change of the cells makes of a hold, which has the name `hold` before it.

    Afterwards it is in `chain` (empty: in none), with those of its GPUs that are there. `levels`
    are those of the VC's cells that cover its spots; none: it is opportunistic. `leads` is its new
    name. `chains` say of a mixed gang in which chain each of its spots is.
    """

    hold: AttemptId
    chain: str
    levels: tuple[int, ...]
    fate: Fate
    leads: AttemptId
    chains: tuple[str, ...] = ()


class Home(NamedTuple):
    """Where the GPUs of a hold are in the cells of another cluster."""

    spots: tuple[tuple[int, ...], ...]
    """Those in the chain, as leaves of it."""
    partners: dict[AttemptId, Partner]
    """Of a set: the jobs that still have GPUs in the chain."""
    off_chain: dict[AttemptId, tuple[Gpu, ...]]
    """By job: those outside the chain."""


def install_cluster(
    cells: Cells, cluster: Cluster, carried: Sequence[Carried], bad_cells: Sequence[BadCell]
) -> tuple[Cells, list[ReconfiguredJob]]:
    """Return the same jobs on another cluster, as it was decided, and what that means for each job.

    Args:
        cells: The cells before; they are not changed.
        cluster: The new cluster.
        carried: The holds for which something changes; any other hold stays as it is.
        bad_cells: The bad cells that VCs have in the new cluster.
    """
    new = Cells(cluster, cells.choosers)
    for node, device in sorted(cells.bad_gpus()):
        new.note_bad_gpu(node, device)
    for cell in bad_cells:
        new.bind_bad_cell(cell)
    changes: list[ReconfiguredJob] = []
    listed = {each.hold for each in carried}
    stay = [as_before(hold) for name, hold in cells.holds.items() if name not in listed]
    for each in (*stay, *carried):
        hold = cells.holds[each.hold]
        if each.fate is Fate.RELEASED:
            changes.append(ReconfiguredJob(hold.job, hold.vc, each.fate))
            continue
        home = home_of(cells, new, hold, each.chain, each.chains)
        enter_carried(new, hold, each, home)
        changes += [
            ReconfiguredJob(job, hold.vc, each.fate, gone) for job, gone in home.off_chain.items()
        ]
    for job, gpus in cells.off_chain.items():
        for node, device in gpus if job not in cells.holds else ():
            new.note_off_chain(job, node, device)
    for chain in new.chains.values():
        new.mark_unsettled(chain)
    return new, changes


def as_before(hold: CellHold) -> Carried:
    """Return the outcome of a hold for which a change of the cells changes nothing."""
    levels = tuple(spot.level for _, spots in hold.portions for spot in spots)
    fate = Fate.KEPT if hold.guaranteed else Fate.OPPORTUNISTIC
    chains = tuple(name for name, spots in hold.portions for _ in spots)
    return Carried(
        hold.job,
        hold.chain,
        levels if hold.guaranteed else (),
        fate,
        hold.job,
        chains if hold.further else (),
    )


def gpus_of_hold(
    cells: Cells, hold: CellHold
) -> tuple[dict[AttemptId, list[Gpu]], list[list[Gpu]]]:
    """Return the GPUs of each job of a hold, and those of each of its spots.

    Args:
        cells: The cells that the hold is in.
        hold: The hold.

    Returns:
        By job and by spot. A GPU that a job uses outside its chains is a spot of its own.
    """

    def named(chain: str, leaves: Sequence[int]) -> list[Gpu]:
        shape = cells.chains[chain].topology
        return [(shape.node(leaf), shape.device(leaf)) for leaf in leaves]

    gpus_of = {
        job: [
            *(gpu for portion in cells.leaves_by_chain(job) for gpu in named(*portion)),
            *cells.off_chain.get(job, ()),
        ]
        for job in hold.partners or (hold.job,)
    }
    spots = [named(name, spot.leaves) for name, each in hold.portions for spot in each]
    before = {gpu for gpus in spots for gpu in gpus}
    spots += [
        [gpu]
        for gpu in dict.fromkeys(gpu for gpus in gpus_of.values() for gpu in gpus)
        if gpu not in before
    ]
    return gpus_of, spots


def home_of(old: Cells, new: Cells, hold: CellHold, chain: str, chains: Sequence[str] = ()) -> Home:
    """Return where the GPUs of a hold are if it is to be in a chain of other cells, or in several.

    Args:
        old: The cells that it is in.
        new: The cells of the new cluster.
        hold: The hold.
        chain: A chain of `new`; empty or unknown: no GPU is in it.
        chains: Of a mixed gang: the chain of each of its spots, which has all of its GPUs.
    """
    gpus_of, gpus = gpus_of_hold(old, hold)
    if chains:
        there = tuple(_inside(new, name, each) for name, each in zip(chains, gpus, strict=True))
        return Home(there, {}, {hold.job: ()})
    leaves = {job: _inside(new, chain, each) for job, each in gpus_of.items()}
    return Home(
        tuple(inside for each in gpus if (inside := _inside(new, chain, each))),
        {
            job: each._replace(leaves=leaves[job])
            for job, each in hold.partners.items()
            if leaves[job]
        },
        {
            job: tuple(gpu for gpu in each if not _inside(new, chain, [gpu]))
            for job, each in gpus_of.items()
        },
    )


def enter_carried(new: Cells, hold: CellHold, each: Carried, home: Home) -> None:
    """Enter a hold into other cells, as it was decided.

    Args:
        new: The cells of the new cluster, which change.
        hold: The hold as it was.
        each: What becomes of it.
        home: Where its GPUs are in `new`.
    """
    for job, gone in home.off_chain.items():
        for gpu in gone:
            new.note_off_chain(job, *gpu)
    if not home.spots:
        return
    levels = each.levels or (0,) * len(home.spots)
    spots = tuple(Spot(leaves, level) for leaves, level in zip(home.spots, levels, strict=True))
    moved = CellHold(
        Request(each.leads, hold.vc, hold.asked, (), pin=hold.pin, lazy=hold.lazy),
        placed(each.chain, spots, each.chains),
    )
    moved.partners = home.partners
    if not each.levels:
        moved.priority = OPPORTUNISTIC
    new.enter(moved, settle=False)


def placed(chain: str, spots: tuple[Spot, ...], chains: Sequence[str]) -> Placement:
    """Return spots as a placement.

    Args:
        chain: The chain of all of them, where `chains` is empty.
        spots: The spots.
        chains: The chain of each of them.
    """
    if not chains:
        return Placement(chain, spots)
    portions: dict[str, tuple[Spot, ...]] = {}
    for name, spot in zip(chains, spots, strict=True):
        portions[name] = (*portions.get(name, ()), spot)
    (first, mine), *further = portions.items()
    return Placement(first, mine, further=tuple(further))


def _inside(cells: Cells, chain: str, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return those of some GPUs that are in a chain, as leaves of it."""
    homes = [cells.find(*gpu) for gpu in gpus]
    return tuple(sorted(home[1] for home in homes if home is not None and home[0] == chain))
