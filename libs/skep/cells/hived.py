"""Read the original HiveD's configuration: `physicalCluster` and `virtualClusters`, unchanged.

Every cell type of a top cell is a chain with the name of that type; its levels have the names of
the types below, the GPU that of the lowest. What the original infers is inferred: children that are
not listed, addresses that are not given. A node-level address is the node's name, a leaf's address
its index on the node. What the original silently ignores is ignored with a warning; what makes it
fail later is a problem with its path.
"""

from __future__ import annotations

import math
from typing import Any

from skep.cells.clustercheck import (
    GPUS_MAX,
    NODES_MAX,
    PROBLEMS_MAX,
    Paths,
    chain_problems,
    cluster_remarks,
    rest_problems,
)
from skep.cells.hivedtypes import Shape, TypeReader
from skep.cells.levels import level_names
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

TOP_IGNORED = {
    "kubeApiServerAddress": "Skep needs no Kubernetes",
    "kubeConfigFilePath": "Skep needs no Kubernetes",
    "webServerAddress": "`skep up` says where the gateway listens",
    "forcePodBindThreshold": "a binding is final here",
    "waitingPodSchedulingBlockMilliSec": "the queue keeps its order without it",
}
TOP_KEYS = ("physicalCluster", "virtualClusters", *TOP_IGNORED)
PHYSICAL_IGNORED = {
    "skuTypes": "HiveD itself does not read it; agents tell their CPUs and memory",
    "gpuTypes": "HiveD itself does not read it; agents tell their CPUs and memory",
}
PHYSICAL_KEYS = ("cellTypes", "physicalCells", *PHYSICAL_IGNORED)
CELL_KEYS = ("cellType", "cellAddress", "pinnedCellId", "cellChildren")
VC_KEYS = ("virtualCells", "pinnedCells")

Imported = tuple[Cluster, list[Problem]]


def import_hived(tree: Any) -> Imported | list[Problem]:
    """Return the cluster and the warnings, or what is wrong with a configuration.

    Args:
        tree: The decoded configuration. An empty one, as HiveD ships by default, is a cluster
            without chains.
    """
    importer = _Importer()
    cluster = importer.cluster(tree)
    found = importer.problems
    sound: list[str] = []
    for name, chain in cluster.chains.items():
        wrong = list(chain_problems(name, chain, importer.paths))
        if not wrong and name not in importer.unsound:
            sound.append(name)
        # Missing parts of its cells are reported already, so the chain need not be full.
        unsound = name in importer.unsound
        found += [one for one in wrong if not (unsound and one.reason != Reason.DUPLICATE_NODE)]
    found += rest_problems(cluster, sound, importer.paths, found)
    if found:
        return found[:PROBLEMS_MAX]
    warnings = importer.warnings + cluster_remarks(cluster, importer.paths)
    return cluster, warnings[:PROBLEMS_MAX]


class _Chain:
    """A chain while its cells are read. `counts` are the cells seen so far, by depth."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: list[NodeCell] = []
        self.counts = [0] * len(shape.types)
        self.names: dict[str, str] = {}
        self.called: dict[tuple[int, str], str] = {}
        """Full addresses of named cells, by depth and name."""


class _HivedPaths(Paths):
    """The path of each thing in the original's file, noted during reading."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[str, int], str] = {}
        self.pins: dict[str, str] = {}
        self.quotas: dict[tuple[str, int], str] = {}
        self.owned: dict[tuple[str, int], str] = {}

    def chain(self, chain: str) -> str:
        return f"$.physicalCluster.cellTypes.{chain}"

    def gpu(self, chain: str) -> str:
        return self.chain(chain)

    def levels(self, chain: str) -> str:
        return self.chain(chain)

    def level(self, chain: str, level: str) -> str:
        return f"$.physicalCluster.cellTypes.{level}"

    def node(self, chain: str, position: int) -> str:
        return self.nodes.get((chain, position), "$.physicalCluster.physicalCells")

    def devices(self, chain: str, position: int) -> str:
        return self.node(chain, position)

    def name(self, chain: str, cell: str) -> str:
        return "$.physicalCluster.physicalCells"

    def pin(self, pin: str) -> str:
        return self.pins.get(pin, "$.physicalCluster.physicalCells")

    def vc(self, vc: str) -> str:
        return f"$.virtualClusters.{vc}"

    def quota(self, vc: str, position: int, chain: str, level: str) -> str:
        return self.quotas.get((vc, position), self.vc(vc))

    def owned_pin(self, vc: str, position: int) -> str:
        return self.owned.get((vc, position), self.vc(vc))

    def vcs(self) -> str:
        return "$.virtualClusters"


class _Importer(TypeReader):
    """Reads one configuration and collects what is wrong with it and what is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = _HivedPaths()
        self.chains: dict[str, _Chain] = {}
        self.unsound: dict[str, bool] = {}
        """Chains with problems in their cells: what refers to them is not looked at."""
        self.unread = False
        """Whether a top cell could not be read at all."""
        self.hidden_pins: list[str] = []
        """Ids of pinned cells in what could not be read."""
        self.pins: dict[str, Pin] = {}

    # --- the file ---------------------------------------------------------------------------------

    def cluster(self, tree: Any) -> Cluster:
        top = self.mapping(tree, "$")
        self.keys(top, TOP_KEYS, "$")
        self.ignored(top, TOP_IGNORED, "$")
        physical = self.mapping(top.get("physicalCluster"), "$.physicalCluster")
        virtual = self.mapping(top.get("virtualClusters"), "$.virtualClusters")
        if not physical:
            if virtual and top.get("physicalCluster") in (None, {}):
                text = "`physicalCluster` is required where there are virtual clusters"
                self.add("$.physicalCluster", Reason.MISSING_KEY, text)
            elif not self.problems:
                text = "no cells in it: the nodes that join will make up the chains"
                self.warn("$", Reason.MISSING_KEY, text)
            return Cluster()
        path = "$.physicalCluster"
        self.keys(physical, PHYSICAL_KEYS, path)
        self.ignored(physical, PHYSICAL_IGNORED, path)
        types = self.mapping(physical.get("cellTypes"), f"{path}.cellTypes")
        for name, value in types.items():
            self.cell_type(name, value, f"{path}.cellTypes.{name}")
        cells = self.listing(physical.get("physicalCells"), f"{path}.physicalCells")
        for at, value in enumerate(cells):
            if not self.top_cell(value, at, f"{path}.physicalCells[{at}]"):
                self.unread = True
                self.hidden_pins += _pins_in(value)
        chains = {name: self.made(chain) for name, chain in self.chains.items()}
        vcs = {
            name: self.vc(name, value, chains, f"$.virtualClusters.{name}")
            for name, value in virtual.items()
        }
        return Cluster(chains=chains, pins=self.pins, vcs=vcs)

    # --- physical cells ---------------------------------------------------------------------------

    def top_cell(self, value: Any, at: int, path: str) -> bool:
        """Read a top cell and return whether its type is known, so that it could be read."""
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            return False
        kind = value.get("cellType")
        if kind is None:
            text = "`cellType` is required of a top cell"
            self.add(f"{path}.cellType", Reason.MISSING_KEY, text)
            return False
        if not isinstance(kind, str | int):
            self.wrong_type(f"{path}.cellType", "the name of a cell type", kind)
            return False
        shape = self.shape(str(kind), f"{path}.cellType")
        if shape is None:
            return False
        chain = self.chains.setdefault(str(kind), _Chain(shape))
        before = len(self.problems)
        gpus = (chain.counts[0] + 1) * math.prod(shape.fanouts)
        if len(chain.nodes) < NODES_MAX and gpus <= GPUS_MAX:
            self.cell(chain, 0, value, at, path, "")
        else:
            text = f"more than {NODES_MAX} nodes or {GPUS_MAX} GPUs in one chain"
            self.add(path, Reason.TOO_LARGE, text)
        if len(self.problems) > before:
            self.unsound[str(kind)] = True
        return True

    def cell(
        self, chain: _Chain, depth: int, value: Any, place: int, path: str, above: str
    ) -> str | None:
        """Read a cell at or above node level.

        Args:
            chain: The chain; what is read is added.
            depth: How far below the top cell it is; 0: it is the top cell.
            value: The cell in the file.
            place: Its default address: where it is among its like, as the original counts.
            path: Its path in the file, for the messages.
            above: The addresses of the cells around it, from the top, with slashes; empty: it is at
                the top.

        Returns:
            Its address; None: the given one is no text.
        """
        tree = self.spec(chain, depth, value, path)
        shape = chain.shape
        address = self.address(tree, path, place)
        full = f"{above}/{address}" if above else str(address)
        self.pin(chain, depth, tree, path)
        if depth == shape.node:
            self.node(chain, tree, address if "cellAddress" in tree else None, path)
            return address
        named = tree.get("cellAddress")
        if address is not None and isinstance(named, str) and not named.isdecimal():
            self.name(chain, depth, address, full)
        chain.counts[depth] += 1
        number = shape.fanouts[depth + 1]
        children = self.children(tree, number, path)
        if children is None:
            text = f"the nodes of this {shape.types[depth]} are not told"
            hint = "list them under cellChildren, with their names as cellAddress"
            self.add(f"{path}.cellChildren", Reason.MISSING_KEY, text, hint)
            return address
        seen: dict[str, int] = {}
        for at, child in enumerate(children):
            here = f"{path}.cellChildren[{at}]"
            own = self.cell(chain, depth + 1, child, place * number + at, here, full)
            # A duplicate node is reported for the whole chain.
            if depth + 1 < shape.node:
                self.twice(seen, own, at, here)
        return address

    def node(self, chain: _Chain, tree: dict[str, Any], name: str | None, path: str) -> None:
        """Read a node-level cell: its name, and its GPUs in the order of the file."""
        shape = chain.shape
        if name is None and "cellAddress" not in tree:
            text = f"a {shape.types[shape.node]} needs the node's name"
            self.add(f"{path}.cellAddress", Reason.MISSING_KEY, text)
        self.paths.nodes[shape.types[0], len(chain.nodes)] = path
        chain.counts[shape.node] += 1
        devices: list[int] = []
        # Below a node the original counts from 0 again.
        self.inside(chain, shape.node, tree, 0, path, devices)
        plain = devices == list(range(len(devices)))
        cell = NodeCell(
            node=name or f"node-{len(chain.nodes)}", devices=() if plain else tuple(devices)
        )
        chain.nodes.append(cell)

    def inside(
        self,
        chain: _Chain,
        depth: int,
        tree: dict[str, Any],
        place: int,
        path: str,
        devices: list[int],
    ) -> None:
        """Read what is below a cell of a node, or its GPU where it is a leaf.

        Args:
            chain: The chain; what is read is counted.
            depth: How far below the top cell the cell is.
            tree: The cell in the file.
            place: Where the cell is among its like within the node, as the original counts.
            path: Its path in the file, for the messages.
            devices: The indices of the node's GPUs read so far; those found are added.
        """
        shape = chain.shape
        if depth == len(shape.types) - 1:
            return
        number = shape.fanouts[depth + 1]
        children = self.children(tree, number, path)
        seen: dict[str, int] = {}
        for at, child in enumerate(children if children is not None else [None] * number):
            here = f"{path}.cellChildren[{at}]"
            inner = self.spec(chain, depth + 1, child, here)
            address = self.address(inner, here, place * number + at)
            self.pin(chain, depth + 1, inner, here)
            chain.counts[depth + 1] += 1
            if depth + 1 == len(shape.types) - 1:
                self.leaf(inner, address, here, devices)
            else:
                self.twice(seen, address, at, here)
                self.inside(chain, depth + 1, inner, place * number + at, here, devices)

    def leaf(
        self, tree: dict[str, Any], address: str | None, path: str, devices: list[int]
    ) -> None:
        if tree.get("cellChildren"):
            text = "a GPU has no children: the types end here"
            self.add(f"{path}.cellChildren", Reason.WRONG_FANOUT, text)
        if address is None:
            return
        if not (address.isascii() and address.isdecimal() and len(address) < 6):
            text = f"the address of a GPU is its index on the node, not {address!r}"
            self.add(f"{path}.cellAddress", Reason.BAD_VALUE, text)
        elif int(address) in devices:
            text = f"GPU {address} is twice in this node"
            hint = "addresses that are not given count from 0"
            self.add(path, Reason.DUPLICATE_DEVICE, text, hint)
        else:
            devices.append(int(address))

    def spec(self, chain: _Chain, depth: int, value: Any, path: str) -> dict[str, Any]:
        """Return a cell's keys after checking them; nothing for one that is inferred."""
        tree = self.mapping(value, path)
        self.keys(tree, CELL_KEYS, path)
        kind, wanted = tree.get("cellType"), chain.shape.types[depth]
        if kind is not None and str(kind) != wanted:
            text = f"the cell is a {wanted} by its place, not a {kind}"
            reason = Reason.BAD_VALUE if str(kind) in self.types else Reason.UNKNOWN_CELL_TYPE
            self.add(f"{path}.cellType", reason, text, "leave it out, or move the cell")
        return tree

    def children(self, tree: dict[str, Any], number: int, path: str) -> list[Any] | None:
        """Return the children that are listed, None where they are left to be inferred."""
        given = self.listing(tree.get("cellChildren"), f"{path}.cellChildren")
        if given and len(given) != number:
            text = f"{len(given)} children; its type has {number}"
            hint = "change the list or the type's childCellNumber"
            self.add(f"{path}.cellChildren", Reason.WRONG_FANOUT, text, hint)
        return given or None

    def address(self, tree: dict[str, Any], path: str, place: int) -> str | None:
        """Return an address as text: the one given, or the default."""
        value = tree.get("cellAddress")
        if value is None or value == "":
            tree.pop("cellAddress", None)
            return str(place)
        if isinstance(value, str) or type(value) is int:
            return str(value)
        self.wrong_type(f"{path}.cellAddress", "text or a whole number", value, "put it in quotes")
        return None

    def twice(self, seen: dict[str, int], address: str | None, at: int, path: str) -> None:
        if address is None:
            return
        if address in seen:
            text = f"address {address!r} is that of child {seen[address]} of the same cell too"
            self.add(f"{path}.cellAddress", Reason.DUPLICATE_NAME, text)
        seen.setdefault(address, at)

    def name(self, chain: _Chain, depth: int, address: str, full: str) -> None:
        """Keep an address above node level that is no number as the cell's name."""
        name = address.replace("/", "-")
        if (depth, name) in chain.called:
            # Addresses are unique among siblings only; names are unique in their level.
            name = full.replace("/", "-")
        chain.called[depth, name] = full
        chain.names[f"{chain.shape.types[depth]}/{chain.counts[depth]}"] = name

    def pin(self, chain: _Chain, depth: int, tree: dict[str, Any], path: str) -> None:
        given = tree.get("pinnedCellId")
        if given is None or given == "":
            return
        here = f"{path}.pinnedCellId"
        if not isinstance(given, str) and type(given) is not int:
            self.wrong_type(here, "text", given, "put it in quotes")
            return
        name = str(given)
        if name in self.pins:
            text = f"the id {name!r} is another cell's too: {self.paths.pins[name]}"
            self.add(here, Reason.DUPLICATE_PIN, text, "give each pinned cell its own id")
            return
        types = chain.shape.types
        self.pins[name] = Pin(chain=types[0], level=types[depth], index=chain.counts[depth])
        self.paths.pins[name] = here

    def made(self, chain: _Chain) -> Chain:
        shape = chain.shape
        levels = zip(reversed(shape.types[:-1]), reversed(shape.fanouts[1:]), strict=True)
        return Chain(
            gpu=shape.types[-1],
            leaf=shape.types[-1],
            levels=tuple(Level(name=name, fanout=fanout) for name, fanout in levels),
            node_level=shape.types[shape.node],
            nodes=tuple(chain.nodes),
            names=chain.names,
        )

    # --- virtual clusters -------------------------------------------------------------------------

    def vc(self, name: str, value: Any, chains: dict[str, Chain], path: str) -> VirtualCluster:
        tree = self.mapping(value, path)
        self.keys(tree, VC_KEYS, path)
        cells: dict[tuple[str, str], int] = {}
        for at, item in enumerate(self.listing(tree.get("virtualCells"), f"{path}.virtualCells")):
            here = f"{path}.virtualCells[{at}]"
            entry = self.mapping(item, here)
            if "pinnedCells" in entry or "pinnedCellId" in entry:
                wrong = "pinnedCells" if "pinnedCells" in entry else "pinnedCellId"
                text = f"`{wrong}` stands inside an item of virtualCells, where HiveD ignores it"
                hint = f"move it to {path}.pinnedCells, beside virtualCells"
                self.add(f"{here}.{wrong}", Reason.WRONG_PLACE, text, hint)
                if entry.keys() <= {"pinnedCells", "pinnedCellId"}:
                    continue
            known = ("cellType", "cellNumber", "pinnedCells", "pinnedCellId")
            self.keys(entry, known, here)
            count = self.count(entry, "cellNumber", here)
            if count is not None and not 0 <= count <= GPUS_MAX:
                text = f"{count} cells; it must be 0 to {GPUS_MAX}"
                self.add(f"{here}.cellNumber", Reason.BAD_VALUE, text)
            quota = self.quota(entry, chains, here)
            if quota is not None and count is not None and count > 0:
                if quota not in cells:
                    self.paths.quotas[name, len(cells)] = here
                cells[quota] = cells.get(quota, 0) + count
        pinned: list[str] = []
        for at, item in enumerate(self.listing(tree.get("pinnedCells"), f"{path}.pinnedCells")):
            here = f"{path}.pinnedCells[{at}]"
            entry = self.mapping(item, here)
            self.keys(entry, ("pinnedCellId",), here)
            pin = entry.get("pinnedCellId")
            if pin is None:
                text = "`pinnedCellId` is required"
                self.add(f"{here}.pinnedCellId", Reason.MISSING_KEY, text)
                continue
            if str(pin) not in self.hidden_pins:
                self.paths.owned[name, len(pinned)] = f"{here}.pinnedCellId"
                pinned.append(str(pin))
        quotas = [
            Quota(chain=chain, level=level, count=count) for (chain, level), count in cells.items()
        ]
        return VirtualCluster(cells=tuple(quotas), pinned=tuple(pinned))

    def quota(
        self, entry: dict[str, Any], chains: dict[str, Chain], path: str
    ) -> tuple[str, str] | None:
        """Return chain and level of `Top.Mid.Type`; None after reporting what is wrong."""
        here = f"{path}.cellType"
        kind = entry.get("cellType")
        if kind is None:
            self.add(here, Reason.MISSING_KEY, "`cellType` is required")
            return None
        parts = str(kind).split(".")
        top, wanted = parts[0], parts[-1]
        if str(kind) in chains:
            top = wanted = str(kind)
        elif top not in chains:
            # What could not be read may have been a top cell of this type.
            known = top in self.types or top in self.bad_types
            if not (self.unread and known):
                text = f"no top cell has the type {top!r}"
                hint = nearest(top, list(chains))
                inside = [name for name, chain in chains.items() if top in level_names(chain)]
                if inside and not hint:
                    hint = f"write it with its top type, such as {inside[0]}.{top}"
                self.add(here, Reason.UNKNOWN_CHAIN, text, hint)
            return None
        types = self.chains[top].shape.types
        if wanted not in types:
            text = f"a {top} has no {wanted!r} in it; it consists of {' > '.join(types)}"
            self.add(here, Reason.UNKNOWN_CELL_TYPE, text, nearest(wanted, list(types)))
            return None
        way = [types.index(part) if part in types else -1 for part in parts]
        if len(parts) > 1 and (-1 in way or way != sorted(way)):
            text = f"the types between first and last are not those of a {top}: {kind}"
            hint = ".".join(types[: types.index(wanted) + 1])
            self.warn(here, Reason.UNKNOWN_CELL_TYPE, text, f"write {hint}")
        return top, wanted


def _pins_in(value: Any) -> list[str]:
    """Return the ids of all pinned cells in a cell that cannot be read."""
    if not isinstance(value, dict):
        return []
    inner = value.get("cellChildren")
    found = [str(value["pinnedCellId"])] if "pinnedCellId" in value else []
    for child in inner if isinstance(inner, list) else []:
        found += _pins_in(child)
    return found
