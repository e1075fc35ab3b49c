"""Explain in terms of cells why a gang waits, for a job that `find_placement` cannot place.

The cost depends on what the VC owns, for an opportunistic job on the number of top cells. Nothing
is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skep.cells.bin_packing import Bin, workers_fit
from skep.cells.chain import ChainState
from skep.cells.decide import mixed
from skep.cells.holds import CellHold, Request
from skep.cells.legal import gpus_text, impossible
from skep.cells.pools import Pool
from skep.cells.state import Cells
from skep.wire.reasons import Reason
from skep.wire.spec import suits

NAMES_MAX = 4
"""The most jobs or nodes that a sentence lists."""


class Why(NamedTuple):
    """Why a gang waits: a code, and a sentence."""

    reason: Reason
    text: str


class Unit(NamedTuple):
    """One node (or small cell) of a VC, bound or not: how many GPUs a request could have there.

    `bad` are those that it could have if they were healthy. `domain` distinguishes units where the
    gang is tied to a level; it begins with 0 in bound cells and with 1 in others.
    """

    domain: tuple[int, int, int]
    room: int
    bad: int = 0


def explain_wait(cells: Cells, request: Request) -> Why:
    """Return why a gang has to wait, or never gets a place.

    Args:
        cells: The cells.
        request: A gang for which `find_placement` finds no place.
    """
    refusal = impossible(cells.cluster, request)
    if refusal is not None:
        text = f"{refusal.text}; {refusal.suggestion}" if refusal.suggestion else refusal.text
        return Why(Reason.FITS_NO_CELL, text)
    if not request.guaranteed:
        return _waits_for_idle(cells, request)
    reports = [
        _report(chain, pool, request)
        for chain, pool in cells.offers(request.vc, request.gpu, request.pin)
    ]
    best = min(reports, key=lambda report: ORDER.index(report.reason))
    return (
        best._replace(text=f"{best.text}; {_together(cells, request)}") if request.mixed else best
    )


def _together(cells: Cells, request: Request) -> str:
    """Return for how many workers of a mixed gang each chain has GPUs now, as text."""
    rooms = [
        (mixed.most_workers(offer, request, request.priority), offer.chain.topology.name)
        for offer in cells.offers(request.vc, request.gpu)
    ]
    workers = len(request.sizes)
    held = ", ".join(f"{room} in {name}" for room, name in rooms[:NAMES_MAX])
    more = f" and {len(rooms) - NAMES_MAX} more chains" if len(rooms) > NAMES_MAX else ""
    text = f"in several chains it has place for {held}{more}, of {workers} workers"
    if sum(room for room, _ in rooms) < workers:
        return text
    return f"{text}, counted by GPUs alone: in each chain of a host that is in two"


ORDER = (
    Reason.WAITS_FOR_REPAIR,
    Reason.WAITS_FOR_AFFINITY,
    Reason.WAITS_FOR_NODES,
    Reason.WAITS_FOR_CELLS,
    Reason.FITS_NO_CELL,
)
"""Of several chains, the reason of the one that the job is closest to getting is returned."""


def _report(chain: ChainState, pool: Pool, request: Request) -> Why:
    """Return why one chain's cells do not serve the request now."""
    shape = chain.topology
    sizes = sorted(request.sizes, reverse=True)
    within = shape.level(request.within) if request.hard and request.within else None
    if request.hard and request.within and within is None:
        return Why(Reason.FITS_NO_CELL, f"{shape.name} has no level {request.within}")
    units = list(_units(chain, pool, request, within))
    owner = f"pinned cell {pool.pin}" if pool.pin else f"cells of {pool.vc}"
    if _fit(units, sizes, within, healed=False):
        # The counts allow it and `find_placement` does not, so something else limits it.
        if any(chain.forest.deficits()):
            text = f"not enough healthy cells of {shape.name} are free for all that is owned"
            return Why(Reason.WAITS_FOR_REPAIR, text)
        text = f"the {owner} have room, but their nodes lack CPUs or memory for the workers"
        return Why(Reason.WAITS_FOR_NODES, text)
    if any(unit.bad for unit in units) and _fit(units, sizes, within, healed=True):
        text = f"it would fit but for {_bad(chain, pool)} in the {owner}"
        return Why(Reason.WAITS_FOR_REPAIR, f"{text}: hardware that {pool.vc} has to bear")
    unbound = sum(left * size for left, size in zip(pool.left, shape.size, strict=True))
    room = unbound + sum(unit.room for unit in units if not unit.domain[0])
    need = sum(sizes)
    users = _users(chain, pool, request)
    held = f"in use: {_named(users)}" if users else "none of them is in use"
    if room >= need:
        best = max(unit.room for unit in units)
        text = f"to be had in the {owner}: {gpus_text(room)}, at most {best} on one node"
        if within is not None:
            domains: dict[tuple[int, int, int], int] = {}
            for unit in units:
                domains[unit.domain] = domains.get(unit.domain, 0) + unit.room
            most = max(domains.values())
            text = f"to be had in the {owner}: {gpus_text(room)}"
            text += f", at most {most} in one {request.within}"
        return Why(Reason.WAITS_FOR_AFFINITY, f"{text}; {held}")
    text = f"to be had in the {owner} with priority {request.priority}: {room} of {gpus_text(need)}"
    return Why(Reason.WAITS_FOR_CELLS, f"{text}; {held}")


def _units(chain: ChainState, pool: Pool, request: Request, within: int | None) -> Iterator[Unit]:
    """Yield what each node of the VC's cells offers a request, unbound cells last."""
    shape, node = chain.topology, chain.topology.node_level
    for level, index in pool.bound:
        domain = min(level, within or level)
        for unit in shape.within(level, index, min(domain, node)):
            room = bad = 0
            leaves = shape.span(min(domain, node), unit)
            for leaf in leaves:
                if chain.priority_of(leaf) < request.priority:
                    room += leaf not in chain.bad
                    bad += leaf in chain.bad
            yield Unit((0, domain, shape.up(leaves.start, domain)), room, bad)
    number = 0
    for level, left in enumerate(pool.left):
        domain = min(level, within or level)
        lower = min(domain, node)
        # More cells of one kind than the gang has workers make no difference.
        for _ in range(min(left, len(request.sizes))):
            for _ in range(shape.size[level] // shape.size[domain] if within else 1):
                number += 1
                for _ in range(shape.size[domain] // shape.size[lower]):
                    yield Unit((1, domain, number), shape.size[lower])


def _fit(units: Sequence[Unit], sizes: Sequence[int], within: int | None, *, healed: bool) -> bool:
    """Return whether workers fit units, all of one domain where they are tied to a level."""
    domains: dict[tuple[int, int, int], list[int]] = {}
    for unit in units:
        key = unit.domain if within is not None else (0, 0, 0)
        domains.setdefault(key, []).append(unit.room + unit.bad * healed)
    return any(_packs(rooms, sizes) for rooms in domains.values())


def _packs(rooms: Sequence[int], sizes: Sequence[int]) -> bool:
    if sizes[0] == sizes[-1]:
        return sum(room // sizes[0] for room in rooms) >= len(sizes)
    return bool(workers_fit([Bin(room) for room in rooms if room >= sizes[-1]], sizes))


def _users(chain: ChainState, pool: Pool, request: Request) -> dict[CellHold, int]:
    """Return the jobs on (or claiming) GPUs of bound cells of the VC that it cannot take."""
    users: dict[CellHold, int] = {}
    for level, index in pool.bound:
        for leaf in chain.topology.span(level, index):
            holder = chain.claim.get(leaf) or chain.user[leaf]
            if holder is not None and holder.priority >= request.priority:
                users[holder] = users.get(holder, 0) + 1
    return users


def _named(users: dict[CellHold, int]) -> str:
    order = sorted(users, key=lambda hold: (-users[hold], hold.job))
    parts = [
        f"{hold.job} ({gpus_text(users[hold])}, priority {hold.priority}"
        f"{', reserved' if hold.claims else ''})"
        for hold in order[:NAMES_MAX]
    ]
    if len(order) > NAMES_MAX:
        parts.append(f"and {len(order) - NAMES_MAX} more jobs")
    return ", ".join(parts)


def _bad(chain: ChainState, pool: Pool) -> str:
    """Return the bad GPUs of a VC's bound cells by node."""
    shape = chain.topology
    nodes: dict[str, int] = {}
    for leaf in chain.bad:
        cell = chain.cell_of(leaf)
        if cell is not None and cell.pool is pool:
            nodes[shape.node(leaf)] = nodes.get(shape.node(leaf), 0) + 1
    parts = [
        f"{count} bad GPUs on {node}" if count > 1 else f"1 bad GPU on {node}"
        for node, count in list(nodes.items())[:NAMES_MAX]
    ]
    if len(nodes) > NAMES_MAX:
        parts.append(f"more on {len(nodes) - NAMES_MAX} other nodes")
    return ", ".join(parts)


def _waits_for_idle(cells: Cells, request: Request) -> Why:
    """Return why an opportunistic gang has no place: no job is stopped for it."""
    idle = best = 0
    for chain in cells.chains.values():
        shape, forest = chain.topology, chain.forest
        if not suits(request.gpu, shape.gpu):
            continue
        idle += sum(shape.size[shape.top] - busy for busy in forest.busy[shape.top])
        best = max(best, _roomiest(chain))
    need, kind = sum(request.sizes), request.gpu or "any type"
    text = f"idle ({kind}): {gpus_text(idle)}, at most {best} on one node"
    if idle < need:
        return Why(Reason.WAITS_FOR_GPUS, f"{gpus_text(need)} wanted; {text}")
    if request.hard and request.within:
        text += f", and not {need} in one {request.within}"
    return Why(Reason.WAITS_FOR_AFFINITY, text)


def _roomiest(chain: ChainState) -> int:
    """Return the idle GPUs of the node with most of them."""
    shape = chain.topology
    if shape.top == shape.node_level:
        return shape.node_size - min(chain.forest.busy[shape.top], default=shape.node_size)
    return max(
        (
            idle
            for counts in chain.by_idle[shape.top]
            for idle in range(shape.node_size, -1, -1)
            if counts[idle]
        ),
        default=0,
    )
