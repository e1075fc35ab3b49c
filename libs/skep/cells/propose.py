"""Make a cluster from the nodes that joined, and complete a cluster file.

A file without chains gets one for each kind of node, so a cluster works before it is described. A
virtual cluster with `gpus: 6` gets cells with as many GPUs, as large as possible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from skep.cells.feasible import Stock, stocks
from skep.cells.hostlist import NODE_NAME, natural
from skep.cells.levels import cells_by_level, gpus_by_level, level_names
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.node import NodeJoined

GROUPS = {2: "pair", 4: "quad", 8: "octet", 16: "sixteen"}
"""Names of cells below node level, by their GPUs."""

Taken = dict[tuple[str, str], int]
"""Cells that one virtual cluster gets: chain and level to their number."""


def propose(inventory: Sequence[NodeJoined]) -> Cluster:
    """Return a cluster of all nodes: one chain for each GPU type and number of GPUs per node.

    Nodes are sorted by name, numbers in them by value. Where the number of GPUs is a power of two,
    each level doubles the one below: neighbouring GPUs are usually closer.
    """
    return Cluster(chains=_chains(sorted(inventory, key=lambda joined: natural(joined.node))))


def resolve(cluster: Cluster, inventory: Sequence[NodeJoined]) -> Cluster:
    """Return the cluster with chains, and with `cells` in place of each `gpus`.

    Every virtual cluster gets its GPUs from one chain and in as few cells as possible where it can:
    then from the chain that could give them first. So once everything that was promised in this way
    is available, further nodes change nothing. While less is available, the smaller promises are
    kept and the larger ones reduced alike (max-min fairness in GPUs).

    Args:
        cluster: The cluster of a file.
        inventory: Nodes in the order in which they first joined, so that a further node is the
            last of its chain.
    """
    joined: dict[str, int] = {}
    if not cluster.chains:
        joined = {node.node: at for at, node in enumerate(inventory)}
        cluster = msgspec.structs.replace(cluster, chains=_chains(inventory))
    wanted = {name: vc.gpus for name, vc in cluster.vcs.items() if vc.gpus}
    if not wanted:
        return cluster
    shelves = [
        _Shelf(name, cluster.chains[name], stock, joined) for name, stock in stocks(cluster).items()
    ]
    shares = _shares(wanted, sum(shelf.stock.left(0) for shelf in shelves))
    given: dict[str, Taken] = {}
    # The largest first: small ones fit into what these leave.
    for name in sorted(shares, key=lambda name: (-wanted[name], name)):
        given[name] = _cells(shares[name], shelves)
    vcs = {
        name: _with(vc, given[name]) if name in given else vc for name, vc in cluster.vcs.items()
    }
    return msgspec.structs.replace(cluster, vcs=vcs)


# --- chains ---------------------------------------------------------------------------------------


def _chains(inventory: Sequence[NodeJoined]) -> dict[str, Chain]:
    kinds: dict[tuple[str, int], list[NodeCell]] = {}
    for joined in inventory:
        by_type: dict[str, list[int]] = {}
        for gpu in sorted(joined.gpus, key=lambda gpu: gpu.index):
            by_type.setdefault(gpu.type, []).append(gpu.index)
        assert NODE_NAME.fullmatch(joined.node), joined.node
        for kind, devices in by_type.items():
            plain = devices == list(range(len(devices)))
            cell = NodeCell(node=joined.node, devices=() if plain else tuple(devices))
            kinds.setdefault((kind, len(devices)), []).append(cell)
    chains: dict[str, Chain] = {}
    for (kind, gpus), nodes in kinds.items():
        base = re.sub(r"[^A-Za-z0-9_.-]+", "-", kind).strip("-.")[:100] or "gpu"
        name, number = f"{base}x{gpus}", 2
        while name in chains:
            # Two types that differ only in characters that a chain's name does not have.
            name, number = f"{base}x{gpus}-{number}", number + 1
        chains[name] = Chain(gpu=kind, levels=_levels(gpus), node_level="node", nodes=tuple(nodes))
    return chains


def _levels(gpus: int) -> tuple[Level, ...]:
    """Return the levels of a node: by doubling where that comes out even."""
    below = [name for size, name in GROUPS.items() if size < gpus and gpus & (gpus - 1) == 0]
    levels = [Level(name=name, fanout=2) for name in below]
    return (*levels, Level(name="node", fanout=gpus >> len(below)))


# --- the shorthand --------------------------------------------------------------------------------


class _Shelf:
    """The cells of one chain that are left, and when each of its top cells became available."""

    def __init__(self, name: str, chain: Chain, stock: Stock, joined: dict[str, int]) -> None:
        self.name = name
        self.levels = level_names(chain)
        self.sizes = gpus_by_level(chain)
        self.stock = stock
        tops = cells_by_level(chain)[-1]
        per_top = len(chain.nodes) // tops
        # Of chains that are described, which nodes joined when decides nothing.
        self.since = [
            max(
                joined.get(cell.node, -1) for cell in chain.nodes[at * per_top : (at + 1) * per_top]
            )
            for at in range(tops)
        ]

    def fewest(self, gpus: int) -> dict[int, int]:
        """Return the fewest cells that make up so many GPUs, by level, if there were enough."""
        cells: dict[int, int] = {}
        for level in range(self.stock.top, -1, -1):
            count, gpus = divmod(gpus, self.sizes[level])
            if count:
                cells[level] = count
        return cells

    def since_when(self, cells: dict[int, int]) -> int | None:
        """Return from which place in the order of joining these cells are available; None: not yet.

        Top cells are counted in their order, and pinned cells are taken out of the first ones.
        """
        self.take(cells, 1)
        short = self.stock.short()
        top = self.stock.top
        needed = self.stock.needed(top) + self.stock.taken[top]
        self.take(cells, -1)
        if short:
            return None
        beyond = len(self.since) - self.stock.loose[top]
        return max(self.since[: needed + beyond], default=-1)

    def take(self, cells: dict[int, int], times: int) -> None:
        for level, count in cells.items():
            self.stock.taken[level] += times * count


def _shares(wanted: dict[str, int], there: int) -> dict[str, int]:
    """Return the GPUs each gets: what it wants, or max-min fair shares of what is there."""
    shares: dict[str, int] = {}
    ordered = sorted(wanted, key=lambda name: (wanted[name], name))
    for at, name in enumerate(ordered):
        shares[name] = min(wanted[name], there // (len(ordered) - at))
        there -= shares[name]
    return shares


def _cells(gpus: int, shelves: list[_Shelf]) -> Taken:
    """Take so many GPUs, which are there, from the shelves in the largest cells."""
    taken: Taken = {}
    whole = [
        (since, at)
        for at, shelf in enumerate(shelves)
        if (since := shelf.since_when(shelf.fewest(gpus))) is not None
    ]
    if whole:
        shelf = shelves[min(whole)[1]]
        cells = shelf.fewest(gpus)
        shelf.take(cells, 1)
        return {(shelf.name, shelf.levels[level]): count for level, count in cells.items()}
    # In one chain if that is possible at all, else from each what it has.
    holding = [shelf for shelf in shelves if shelf.stock.left(0) >= gpus]
    for shelf in holding[:1] or shelves:
        for level in range(shelf.stock.top, -1, -1):
            count = min(gpus // shelf.sizes[level], max(0, shelf.stock.usable(level)))
            if count:
                shelf.take({level: count}, 1)
                taken[shelf.name, shelf.levels[level]] = count
                gpus -= count * shelf.sizes[level]
    assert gpus == 0, "shares are of what is there"
    return taken


def _with(vc: VirtualCluster, taken: Taken) -> VirtualCluster:
    """Return the virtual cluster with these cells beside its own, and without the shorthand."""
    cells = {(quota.chain, quota.level): quota.count for quota in vc.cells}
    for place, count in taken.items():
        cells[place] = cells.get(place, 0) + count
    quotas = tuple(
        Quota(chain=chain, level=level, count=count) for (chain, level), count in cells.items()
    )
    return msgspec.structs.replace(vc, cells=quotas, gpus=0)
