"""What a request is entitled to, by trying every possibility: the yardstick for `find_placement`.

A guaranteed request is *legal in its VC's current virtual state* if the VC's cells of one chain
(of the GPU type asked for; or the one pinned cell asked for) have room for all its workers at once,
seen as the tenant sees them:

- A cell that is bound offers its GPUs that are healthy and that nobody uses or claims with the
  request's priority or a higher one. Users without a guarantee always yield; of the same VC lower
  priorities do; nobody else's job is ever in a VC's bound cell.
- A cell that is not bound offers all its GPUs, wherever it may come to lie.
- A worker lies within one node of one cell; a cell below node level is a small node of its own,
  and two cells are never combined for a worker, even where they are neighbours.
- With a hard `within`, all workers lie in one cell of that level that is inside one of the VC's
  cells, or in one of the VC's cells that is smaller than that. A chain without such a level cannot
  serve it.

There are *enough healthy cells* for it if the unbound cells it needs can be bound to distinct free
physical cells without a bad GPU such that every cell still owed to any VC can be had besides, out
of distinct free physical cells without a bad GPU. Without enough, it may still be granted if all
cells still owed can be had at all, bad GPUs included: that is sharing safety, which nothing may
break.

An opportunistic request is possible if idle healthy GPUs of one chain have room for it: workers on
one node each, all in one physical cell of a hard `within`.

Exponential in everything: for chains of at most a dozen GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from skep.cells.chain import ChainState
from skep.cells.holds import FREE, Request
from skep.cells.pools import Pool
from skep.cells.state import Cells
from skep.cells.topology import Topology

Rooms = tuple[int, ...]
"""How many GPUs each node (or small node) offers."""


def must_grant(cells: Cells, request: Request) -> bool:
    """Return whether a guaranteed request is legal and there are enough healthy cells for it."""
    return any(
        _granted(chain, pool, request, healthy=True)
        for chain, pool in cells.offers(request.vc, request.gpu, request.pin)
    )


def may_grant(cells: Cells, request: Request) -> bool:
    """Return whether a guaranteed request is legal and can be granted without breaking safety."""
    return any(
        _granted(chain, pool, request, healthy=False)
        for chain, pool in cells.offers(request.vc, request.gpu, request.pin)
    )


def idle_for(cells: Cells, request: Request) -> bool:
    """Return whether an opportunistic request has room on idle GPUs."""
    for chain in cells.chains.values():
        shape = chain.topology
        if request.gpu not in ("", shape.gpu) or not _has_level(shape, request):
            continue
        top = [[leaf for leaf in range(shape.leaves) if chain.is_idle(leaf)]]
        for leaves in _domains(shape, top, request):
            if _packs(_rooms(shape, leaves), tuple(sorted(request.sizes, reverse=True))):
                return True
    return False


def _has_level(shape: Topology, request: Request) -> bool:
    return not (request.hard and request.within) or shape.level(request.within) is not None


def _granted(chain: ChainState, pool: Pool, request: Request, *, healthy: bool) -> bool:
    sizes = tuple(sorted(request.sizes, reverse=True))
    if not _has_level(chain.topology, request):
        return False
    bound = [_offered(chain, level, index, request) for level, index in pool.bound]
    for new in product(*(range(left + 1) for left in pool.left)):
        if _fits_view(chain.topology, bound, new, request, sizes) and _bindable(
            chain, new, healthy=healthy
        ):
            return True
    return False


def _offered(chain: ChainState, level: int, index: int, request: Request) -> list[int]:
    """Return the GPUs a bound cell offers a request."""
    found = []
    for leaf in chain.topology.span(level, index):
        user, claim = chain.user[leaf], chain.claim.get(leaf)
        held = claim or user
        priority = FREE if held is None else held.priority
        if leaf not in chain.bad and priority < request.priority:
            assert held is None or not held.guaranteed or held.vc == request.vc, held.job
            found.append(leaf)
    return found


def _fits_view(
    shape: Topology,
    bound: list[list[int]],
    new: tuple[int, ...],
    request: Request,
    sizes: tuple[int, ...],
) -> bool:
    """Return whether the workers fit the bound cells and so many new ones of each level."""
    # A new cell is the first of its level in a chain of its own: where it lies does not matter.
    cells = [*bound]
    at = shape.leaves
    for level, count in enumerate(new):
        for _ in range(count):
            at = -(-at // shape.size[shape.top]) * shape.size[shape.top]
            cells.append(list(range(at, at + shape.size[level])))
            at += shape.size[level]
    if request.hard and request.within:
        return any(
            _packs(_rooms(shape, leaves), sizes) for leaves in _domains(shape, cells, request)
        )
    rooms = tuple(room for leaves in cells for room in _rooms(shape, leaves))
    return _packs(tuple(sorted(rooms)), sizes)


def _domains(shape: Topology, cells: list[list[int]], request: Request) -> Iterator[list[int]]:
    """Yield the GPUs that all workers must be among, one possibility after the other."""
    within = shape.level(request.within) if request.hard and request.within else None
    for leaves in cells:
        if within is None:
            yield leaves
            continue
        parts: dict[int, list[int]] = {}
        for leaf in leaves:
            parts.setdefault(shape.up(leaf, within), []).append(leaf)
        yield from parts.values()


def _rooms(shape: Topology, leaves: list[int]) -> Rooms:
    nodes: dict[int, int] = {}
    for leaf in leaves:
        nodes[leaf // shape.node_size] = nodes.get(leaf // shape.node_size, 0) + 1
    return tuple(sorted(nodes.values()))


@cache
def _packs(rooms: Rooms, sizes: tuple[int, ...]) -> bool:
    """Return whether workers of these sizes (descending) fit rooms (ascending), by trying."""
    if not sizes:
        return True
    for position, room in enumerate(rooms):
        if room >= sizes[0]:
            rest = (*rooms[:position], room - sizes[0], *rooms[position + 1 :])
            if _packs(tuple(sorted(rest)), sizes[1:]):
                return True
    return False


def _bindable(chain: ChainState, new: tuple[int, ...], *, healthy: bool) -> bool:
    """Return whether so many new cells can be bound and all that is owed then can be had too."""
    shape = chain.topology
    free = frozenset(
        leaf
        for level, cells in enumerate(chain.forest.free)
        for cell in cells
        for leaf in shape.span(level, cell)
    )
    sound = frozenset(leaf for leaf in free if leaf not in chain.bad)
    owed = [0] * (shape.top + 1)
    for pool in chain.pools.values():
        for level, left in enumerate(pool.left):
            owed[level] += left
    rest_owed = tuple(count - used for count, used in zip(owed, new, strict=True))
    tried: dict[tuple[frozenset[int], tuple[int, ...]], bool] = {}

    def have(leaves: frozenset[int], wanted: tuple[int, ...]) -> bool:
        """Return whether disjoint cells of these levels are among the leaves."""
        key = leaves, wanted
        if key not in tried:
            tried[key] = any(have(rest, less) for rest, less in _choices(shape, leaves, wanted))
            tried[key] |= not any(wanted)
        return tried[key]

    def bind(leaves: frozenset[int], wanted: tuple[int, ...]) -> bool:
        if not any(wanted):
            rest = leaves if healthy else leaves | (free - sound)
            return have(rest, rest_owed)
        return any(bind(rest, less) for rest, less in _choices(shape, leaves, wanted))

    return bind(sound, new)


def _choices(
    shape: Topology, leaves: frozenset[int], wanted: tuple[int, ...]
) -> Iterator[tuple[frozenset[int], tuple[int, ...]]]:
    """Yield what is left when one of the largest cells wanted is taken, for every such cell."""
    level = max((each for each, count in enumerate(wanted) if count), default=0)
    less = tuple(count - int(each == level) for each, count in enumerate(wanted))
    for index in range(shape.count[level]) if level else ():
        span = shape.span(level, index)
        if leaves.issuperset(span):
            yield leaves.difference(span), less
