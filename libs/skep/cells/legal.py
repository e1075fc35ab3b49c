"""Refuse requests that no cell can ever serve, with a hint on what would fit.

They are judged by the cluster file alone, as if every GPU were healthy and no job ran. The cost
depends on the lines of the VC's quota, not on the nodes of the cluster. A gang of many unequal
workers is refused only where trying every packing is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skep.cells.bin_packing import Bin, workers_fit
from skep.cells.holds import Request
from skep.cells.levels import cells_by_level, gpus_by_level, level_names, node_level
from skep.wire.cluster import Chain, Cluster
from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep.wire.spec import TYPES_APART, suits

MIXED_CHAINS_MIN = 2
NAMES_MAX = 8
"""Names of types or levels that a sentence lists."""


class Refusal(NamedTuple):
    """Why a request can never be served, and what to ask for instead."""

    reason: Reason
    text: str
    suggestion: str = ""


class View(NamedTuple):
    """What a VC may use of a chain: so many cells of each level (0 is one GPU)."""

    owner: str
    name: str
    chain: Chain
    cells: tuple[int, ...]

    @property
    def node_gpus(self) -> int:
        """Return the GPUs of one node."""
        return gpus_by_level(self.chain)[node_level(self.chain)]

    @property
    def gpus(self) -> int:
        """Return the GPUs of all cells."""
        sizes = gpus_by_level(self.chain)
        return sum(count * size for count, size in zip(self.cells, sizes, strict=True))

    def rooms(self, within: int | None = None) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the nodes over which workers may be spread, in each way.

        Args:
            within: A level to which the gang is tied; None: it is not. Then there is one way
                for all cells, else one for each kind of cell of at most that level.

        Yields:
            The level, and pairs of GPUs of a node and how many such nodes.
        """
        sizes, node = gpus_by_level(self.chain), node_level(self.chain)
        everything: list[tuple[int, int]] = []
        highest = 0
        for level, count in enumerate(self.cells):
            if not count:
                continue
            bound = level if within is None else min(level, within)
            lower = min(bound, node)
            each = sizes[bound] // sizes[lower]
            if within is not None:
                yield bound, [(sizes[lower], each)]
            everything.append((sizes[lower], each * count))
            highest = level
        if within is None and everything:
            yield highest, everything


def impossible(cluster: Cluster, request: Request) -> Refusal | None:
    """Return why a request can never be served; None: it can.

    Of several chains that the job might use, the one that comes closest gives the reason.

    Args:
        cluster: The cluster; its names and quotas are right.
        request: The request.
    """
    if request.vc not in cluster.vcs:
        return Refusal(
            Reason.UNKNOWN_VC,
            f"there is no virtual cluster `{request.vc}`",
            nearest(request.vc, sorted(cluster.vcs)),
        )
    types = list(dict.fromkeys(chain.gpu for chain in cluster.chains.values()))
    strange = [kind for kind in request.gpu.split(TYPES_APART) if kind and kind not in types]
    if strange and not request.pin:
        return Refusal(
            Reason.NO_SUCH_GPU_TYPE,
            f"no chain has GPUs of the type `{strange[0]}`",
            nearest(strange[0], types) or _listed("the types are", types),
        )
    if request.pin and not request.guaranteed:
        return Refusal(
            Reason.PIN_NEEDS_GUARANTEE,
            f"`{request.pin}` is a pinned cell: opportunistic jobs run anywhere",
            "leave the pinned cell out, or make the job guaranteed",
        )
    pinned = cluster.vcs[request.vc].pinned
    if request.pin and request.pin not in pinned:
        return Refusal(
            Reason.UNKNOWN_PIN,
            f"{request.vc} owns no pinned cell `{request.pin}`",
            nearest(request.pin, list(pinned)) or _listed("its pinned cells are", list(pinned)),
        )
    views = list(_views(cluster, request))
    if not views:
        return _owns_none(cluster, request)
    if request.within and all(request.within not in level_names(view.chain) for view in views):
        levels = list(dict.fromkeys(name for view in views for name in level_names(view.chain)))
        return Refusal(
            Reason.UNKNOWN_LEVEL,
            f"no cell has the level `{request.within}`",
            nearest(request.within, levels) or _listed("the levels are", levels),
        )
    if request.mixed and len(views) < MIXED_CHAINS_MIN:
        return _no_mix(views[0], request)
    refusals = [_judge(view, request) for view in views]
    if any(refusal is None for refusal in refusals):
        return None
    if request.mixed:
        return _judge_mixed(views, request)
    return max((each for each in refusals if each is not None), key=lambda each: each[0])[1]


def _no_mix(view: View, request: Request) -> Refusal:
    """Return why a gang cannot be mixed: its VC owns cells of only one chain that it may be in."""
    only = f"{request.vc} owns cells of one chain with such GPUs only: {view.name}"
    hint = "leave `mixed` out, or name more types in `gpu_type`"
    return Refusal(Reason.MIXED_OF_ONE, f"`mixed` is of several chains, and {only}", hint)


def _judge_mixed(views: Sequence[View], request: Request) -> Refusal | None:
    """Return why the chains together cannot hold a mixed gang of equal workers, or None."""
    gpus, workers = request.sizes[0], len(request.sizes)
    room = [
        sum(count * (size // gpus) for size, count in rooms)
        for view in views
        for _, rooms in view.rooms()
    ]
    if sum(room) >= workers:
        return None
    names = ", ".join(dict.fromkeys(view.chain.gpu for view in views))
    return Refusal(
        Reason.QUOTA_TOO_SMALL,
        f"the gang has {workers} workers, and the cells of {request.vc} ({names}) hold {sum(room)}",
        f"ask for at most {sum(room)} workers of {gpus_text(gpus)}" if sum(room) else PACK_HINT,
    )


def _views(cluster: Cluster, request: Request) -> Iterator[View]:
    """Yield what the request may use, chain by chain."""
    if request.pin:
        pin = cluster.pins[request.pin]
        chain = cluster.chains[pin.chain]
        cells = tuple(int(name == pin.level) for name in level_names(chain))
        yield View(f"the pinned cell {request.pin}", pin.chain, chain, cells)
        return
    for name, chain in cluster.chains.items():
        if not suits(request.gpu, chain.gpu):
            continue
        if not request.guaranteed:
            top = (0,) * len(chain.levels)
            yield View("the cluster", name, chain, (*top, cells_by_level(chain)[-1]))
            continue
        counts = dict.fromkeys(level_names(chain), 0)
        for quota in cluster.vcs[request.vc].cells:
            if quota.chain == name:
                counts[quota.level] += quota.count
        if any(counts.values()):
            yield View(request.vc, name, chain, tuple(counts.values()))


def _owns_none(cluster: Cluster, request: Request) -> Refusal:
    quotas = cluster.vcs[request.vc].cells
    owned = list(dict.fromkeys(cluster.chains[quota.chain].gpu for quota in quotas if quota.count))
    if request.gpu and owned:
        return Refusal(
            Reason.TYPE_NOT_OWNED,
            f"{request.vc} owns no cells of `{request.gpu}`",
            _listed("it owns", owned) + ", or ask for an opportunistic run",
        )
    text = f"{request.vc} owns no cells" + (f" of `{request.gpu}`" if request.gpu else "")
    return Refusal(Reason.QUOTA_TOO_SMALL, text, "ask for an opportunistic run")


def _judge(view: View, request: Request) -> tuple[tuple[int, int], Refusal] | None:
    """Return how close a chain came, and why it cannot serve the request; or None if it can."""
    sizes = sorted(request.sizes, reverse=True)
    of = f"{view.owner} for {view.chain.gpu}"
    if sizes[0] > view.node_gpus:
        text = f"a worker needs {sizes[0]} GPUs, and a node of {view.name} has {view.node_gpus}"
        hint = f"ask for at most {view.node_gpus} GPUs per worker, and more workers"
        return (0, view.node_gpus), Refusal(Reason.NODE_TOO_SMALL, text, hint)
    largest = _largest(view)
    room = gpus_by_level(view.chain)[largest]
    if sizes[0] > room:
        text = (
            f"a worker needs {sizes[0]} GPUs; largest cell of {of}: "
            f"{level_names(view.chain)[largest]}, {gpus_text(room)}"
        )
        hint = f"ask for at most {gpus_text(room)} per worker"
        return (1, room), Refusal(Reason.CELL_TOO_SMALL, text, hint)
    if sum(sizes) > view.gpus:
        reason = Reason.QUOTA_TOO_SMALL if request.guaranteed else Reason.TOO_MANY_GPUS
        text = f"the gang needs {sum(sizes)} GPUs, and {of} has {view.gpus}"
        return (2, view.gpus), Refusal(
            reason, text, f"ask for at most {gpus_text(view.gpus)} in all"
        )
    if request.hard and request.within:
        return _judge_within(view, request, sizes)
    for _, rooms in view.rooms():
        if not _room_for(rooms, sizes):
            return (4, 0), Refusal(Reason.CELLS_DO_NOT_PACK, _packing(of, rooms, sizes), PACK_HINT)
    return None


PACK_HINT = "ask for smaller workers, so that they fill cells"


def _judge_within(
    view: View, request: Request, sizes: list[int]
) -> tuple[tuple[int, int], Refusal] | None:
    names, gpus = level_names(view.chain), gpus_by_level(view.chain)
    if request.within not in names:
        text = f"{view.name} has no level `{request.within}`"
        return (3, 0), Refusal(Reason.UNKNOWN_LEVEL, text, _listed("its levels are", list(names)))
    best = -1
    for level, rooms in view.rooms(names.index(request.within)):
        if _room_for(rooms, sizes):
            return None
        best = max(best, level)
    text = (
        f"{sum(sizes)} GPUs in one {request.within}: the largest that {view.owner} owns is "
        f"{names[best]}, {gpus_text(gpus[best])}"
    )
    if gpus[best] >= sum(sizes):
        text += f", whose nodes do not hold workers of {', '.join(map(str, _distinct(sizes)))} GPUs"
        return (3, gpus[best]), Refusal(Reason.WITHIN_TOO_SMALL, text, PACK_HINT)
    hint = f"ask for at most {gpus_text(gpus[best])} in all, a wider level, or make the wish soft"
    return (3, gpus[best]), Refusal(Reason.WITHIN_TOO_SMALL, text, hint)


def _room_for(rooms: list[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """Return whether workers fit (or may fit, where trying every way would take long)."""
    if sizes[0] == sizes[-1]:
        return sum(count * (room // sizes[0]) for room, count in rooms) >= len(sizes)
    # At most as many nodes of one kind as workers are useful.
    bins = [Bin(room) for room, count in rooms for _ in range(min(count, len(sizes)))]
    return workers_fit(bins, sizes) is not False


def _largest(view: View) -> int:
    """Return the largest level on which one worker can lie."""
    node = node_level(view.chain)
    return max(min(level, node) for level, count in enumerate(view.cells) if count)


def _packing(of: str, rooms: list[tuple[int, int]], sizes: Sequence[int]) -> str:
    wanted = ", ".join(f"{sizes.count(each)} x {each}" for each in _distinct(sizes))
    owned = ", ".join(f"{count} x {room}" for room, count in sorted(rooms, reverse=True))
    return f"workers of {wanted} GPUs do not fit what {of} consists of: {owned} GPUs"


def _distinct(sizes: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(sizes))


def gpus_text(count: int) -> str:
    """Return so many GPUs in words."""
    return f"{count} GPU" + ("" if count == 1 else "s")


def _listed(lead: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(f"`{name}`" for name in names[:NAMES_MAX])
    return f"{lead} {shown}" + (" ..." if len(names) > NAMES_MAX else "")
