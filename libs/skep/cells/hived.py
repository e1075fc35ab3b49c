"""Reading the original HiveD's configuration: `physicalCluster` and `virtualClusters`, unchanged.

Every cell type that a top cell has is a chain, called as that type; its levels are called as the
types below, the GPU as the lowest. What the original infers is inferred: children that are not
listed, addresses that are not given. A node-level address is the node's name, a leaf's address its
index on the node. What the original ignored silently is ignored with a warning; what it died of
later is a problem with its path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from skep.cells.clustercheck import (
    GPUS_MAX,
    LEVELS_MAX,
    NODES_MAX,
    PROBLEMS_MAX,
    Paths,
    chain_problems,
    cluster_remarks,
    problem,
    rest_problems,
)
from skep.cells.levels import level_names
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.parse import kind_of, nearest
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

TOP_IGNORED = {
    "kubeApiServerAddress": "Skep needs no Kubernetes",
    "kubeConfigFilePath": "Skep needs no Kubernetes",
    "webServerAddress": "`skep up --listen` says where the gateway listens",
    "forcePodBindThreshold": "a binding is final here",
    "waitingPodSchedulingBlockMilliSec": "the queue keeps its order without it",
}
TOP_KEYS = ("physicalCluster", "virtualClusters", *TOP_IGNORED)
PHYSICAL_IGNORED = {
    "skuTypes": "HiveD itself does not read it; agents tell their CPUs and memory",
    "gpuTypes": "HiveD itself does not read it; agents tell their CPUs and memory",
}
PHYSICAL_KEYS = ("cellTypes", "physicalCells", *PHYSICAL_IGNORED)
TYPE_KEYS = ("childCellType", "childCellNumber", "isNodeLevel")
CELL_KEYS = ("cellType", "cellAddress", "pinnedCellId", "cellChildren")
VC_KEYS = ("virtualCells", "pinnedCells")

Imported = tuple[Cluster, list[Problem]]


def import_hived(tree: Any) -> Imported | list[Problem]:
    """Return the cluster and the warnings, or what is wrong, of a decoded configuration.

    An empty one, as HiveD ships by default, is a cluster without chains.
    """
    importer = _Importer()
    cluster = importer.cluster(tree)
    found = importer.problems
    sound: list[str] = []
    for name, chain in cluster.chains.items():
        wrong = list(chain_problems(name, chain, importer.paths))
        if not wrong and name not in importer.unsound:
            sound.append(name)
        # What is missing of a cell has been told: that its chain is not full then says nothing.
        told = name in importer.unsound
        found += [one for one in wrong if not (told and one.reason != Reason.DUPLICATE_NODE)]
    found += rest_problems(cluster, sound, importer.paths, found)
    if found:
        return found[:PROBLEMS_MAX]
    warnings = importer.warnings + cluster_remarks(cluster, importer.paths)
    return cluster, warnings[:PROBLEMS_MAX]


class _CellType(NamedTuple):
    """One entry of `cellTypes`."""

    child: str
    number: int
    is_node: bool


class _Shape(NamedTuple):
    """A top cell type spelled out: type names and fan-outs from the top down to the GPU."""

    types: tuple[str, ...]
    fanouts: tuple[int, ...]
    node: int
    """Where in `types` the node level is."""


class _Chain:
    """A chain while its cells are read. `counts` are the cells seen so far, by depth."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.nodes: list[NodeCell] = []
        self.counts = [0] * len(shape.types)
        self.names: dict[str, str] = {}
        self.called: dict[tuple[int, str], str] = {}
        """Full addresses of named cells, by depth and name."""


class _HivedPaths(Paths):
    """Where in the original's file each thing stands: noted while reading."""

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


class _Importer:
    """Reads one configuration and collects what is wrong with it and what is ignored."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.paths = _HivedPaths()
        self.types: dict[str, _CellType] = {}
        self.bad_types: dict[str, bool] = {}
        self.shapes: dict[str, _Shape | None] = {}
        self.chains: dict[str, _Chain] = {}
        self.unsound: dict[str, bool] = {}
        """Chains with problems in their cells: what refers to them is not looked at."""
        self.pins: dict[str, Pin] = {}

    def add(self, path: str, reason: Reason, text: str, suggestion: str = "") -> None:
        self.problems.append(problem(path, reason, text, suggestion))

    def warn(self, path: str, reason: Reason, text: str, suggestion: str = "") -> None:
        self.warnings.append(problem(path, reason, text, suggestion))

    def wrong_type(self, path: str, wanted: str, value: Any, suggestion: str = "") -> None:
        text = f"must be {wanted}, not {kind_of(value)}"
        self.add(path, Reason.WRONG_TYPE, text, suggestion)

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        """Return an object with its keys as text; nothing for what is absent or none."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            return {}
        return {str(key): inner for key, inner in value.items()}

    def listing(self, value: Any, path: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong_type(path, "a list", value)
            return []
        return value

    def keys(self, tree: dict[str, Any], known: tuple[str, ...], path: str) -> None:
        """Warn of keys that the original ignores without a word."""
        for key in tree:
            if key not in known:
                hint = nearest(key, list(known)) or f"known are {', '.join(known)}"
                text = f"unknown key `{key}` is ignored"
                self.warn(f"{path}.{key}", Reason.UNKNOWN_KEY, text, hint)

    def ignored(self, tree: dict[str, Any], which: dict[str, str], path: str) -> None:
        for key, why in which.items():
            if key in tree:
                text = f"`{key}` is ignored: {why}"
                self.warn(f"{path}.{key}", Reason.IGNORED_KEY, text)

    def count(self, tree: dict[str, Any], key: str, path: str) -> int | None:
        value = tree.get(key)
        if type(value) is int:
            return value
        if key not in tree:
            self.add(f"{path}.{key}", Reason.MISSING_KEY, f"`{key}` is required")
        else:
            self.wrong_type(f"{path}.{key}", "a whole number", value)
        return None

    # --- the file ---------------------------------------------------------------------------------

    def cluster(self, tree: Any) -> Cluster:
        top = self.mapping(tree, "$")
        self.keys(top, TOP_KEYS, "$")
        self.ignored(top, TOP_IGNORED, "$")
        physical = self.mapping(top.get("physicalCluster"), "$.physicalCluster")
        virtual = self.mapping(top.get("virtualClusters"), "$.virtualClusters")
        if not physical:
            if virtual:
                text = "`physicalCluster` is required where there are virtual clusters"
                self.add("$.physicalCluster", Reason.MISSING_KEY, text)
            else:
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
            self.top_cell(value, at, f"{path}.physicalCells[{at}]")
        chains = {name: self.made(chain) for name, chain in self.chains.items()}
        vcs = {
            name: self.vc(name, value, chains, f"$.virtualClusters.{name}")
            for name, value in virtual.items()
        }
        return Cluster(chains=chains, pins=self.pins, vcs=vcs)

    # --- cell types -------------------------------------------------------------------------------

    def cell_type(self, name: str, value: Any, path: str) -> None:
        before = len(self.problems)
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            self.bad_types[name] = True
            return
        tree = self.mapping(value, path)
        self.keys(tree, TYPE_KEYS, path)
        child = tree.get("childCellType")
        if isinstance(child, int) and not isinstance(child, bool):
            child = str(child)
        if not isinstance(child, str) or not child:
            here = f"{path}.childCellType"
            if child is None or child == "":
                self.add(here, Reason.MISSING_KEY, "`childCellType` is required")
            else:
                self.wrong_type(here, "the name of a cell type", child)
        number = self.count(tree, "childCellNumber", path)
        if number is not None and not 1 <= number <= GPUS_MAX:
            text = f"a {name} is made of {number} children; give 1 or more"
            self.add(f"{path}.childCellNumber", Reason.WRONG_FANOUT, text)
        is_node = tree.get("isNodeLevel", False)
        if not isinstance(is_node, bool):
            self.wrong_type(f"{path}.isNodeLevel", "true or false", is_node)
        if len(self.problems) > before:
            self.bad_types[name] = True
        elif isinstance(child, str) and number is not None:
            self.types[name] = _CellType(child, number, bool(is_node))

    def shape(self, top: str, path: str) -> _Shape | None:
        """Return a top type spelled out; say once what is wrong with it."""
        if top not in self.shapes:
            self.shapes[top] = self._shape(top, path)
        return self.shapes[top]

    def _shape(self, top: str, path: str) -> _Shape | None:
        if top in self.bad_types:
            return None
        if top not in self.types:
            text = f"no cell type {top!r}"
            hint = nearest(top, list(self.types)) or "describe it in cellTypes"
            self.add(path, Reason.UNKNOWN_CELL_TYPE, text, hint)
            return None
        types, fanouts = [top], [1]
        while types[-1] in self.types:
            below = self.types[types[-1]]
            if below.child in types:
                text = f"the type is made of itself: {' > '.join([*types, below.child])}"
                self.add(f"$.physicalCluster.cellTypes.{types[-1]}.childCellType",
                         Reason.BAD_VALUE, text, "cell types form trees")  # fmt: skip
                return None
            types.append(below.child)
            fanouts.append(below.number)
        if types[-1] in self.bad_types:
            return None
        here = f"$.physicalCluster.cellTypes.{top}"
        nodes = [at for at, name in enumerate(types[:-1]) if self.types[name].is_node]
        if len(nodes) != 1:
            way = " > ".join(types)
            known = [name for name in self.types if name not in types]
            hint = nearest(types[-1], known)
            hint = hint and f"`{types[-1]}` has no entry in cellTypes: {hint}"
            text = f"{len(nodes)} of the levels {way} have isNodeLevel; exactly one must"
            self.add(here, Reason.BAD_VALUE, text, hint or "set it on the type that is one machine")
            return None
        if len(types) > LEVELS_MAX + 1:
            self.add(here, Reason.BAD_VALUE, f"more than {LEVELS_MAX} levels")
            return None
        return _Shape(tuple(types), tuple(fanouts), nodes[0])

    # --- physical cells ---------------------------------------------------------------------------

    def top_cell(self, value: Any, at: int, path: str) -> None:
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            return
        kind = value.get("cellType")
        if kind is None:
            text = "`cellType` is required of a top cell"
            self.add(f"{path}.cellType", Reason.MISSING_KEY, text)
            return
        if not isinstance(kind, str | int):
            self.wrong_type(f"{path}.cellType", "the name of a cell type", kind)
            return
        shape = self.shape(str(kind), f"{path}.cellType")
        if shape is None:
            return
        chain = self.chains.setdefault(str(kind), _Chain(shape))
        before = len(self.problems)
        if len(chain.nodes) < NODES_MAX:
            self.cell(chain, 0, value, at, path, "")
        else:
            self.add(path, Reason.TOO_LARGE, f"more than {NODES_MAX} nodes in one chain")
        if len(self.problems) > before:
            self.unsound[str(kind)] = True

    def cell(
        self, chain: _Chain, depth: int, value: Any, place: int, path: str, above: str
    ) -> str | None:
        """Read a cell at or above node level; return its address.

        `place` is its default address: where it is among its like, as the original counts.
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
            told = self.cell(chain, depth + 1, child, place * number + at, here, full)
            self.twice(seen, told, at, here)
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
        self, chain: _Chain, depth: int, tree: dict[str, Any], place: int, path: str,
        devices: list[int],
    ) -> None:  # fmt: skip
        """Read what is below a cell of a node, or its GPU where it is a leaf."""
        shape = chain.shape
        if depth == len(shape.types) - 1:
            return
        number = shape.fanouts[depth + 1]
        children = self.children(tree, number, path)
        seen: dict[str, int] = {}
        for at, child in enumerate(children if children is not None else [None] * number):
            here = f"{path}.cellChildren[{at}]"
            inner = self.spec(chain, depth + 1, child, here)
            told = self.address(inner, here, place * number + at)
            self.pin(chain, depth + 1, inner, here)
            chain.counts[depth + 1] += 1
            if depth + 1 == len(shape.types) - 1:
                self.leaf(inner, told, here, devices)
            else:
                self.twice(seen, told, at, here)
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
            if quota is not None and count:
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
            self.paths.owned[name, len(pinned)] = f"{here}.pinnedCellId"
            pinned.append(str(pin))
        quotas = [
            Quota(chain=chain, level=level, count=count) for (chain, level), count in cells.items()
        ]
        return VirtualCluster(cells=tuple(quotas), pinned=tuple(pinned))

    def quota(
        self, entry: dict[str, Any], chains: dict[str, Chain], path: str
    ) -> tuple[str, str] | None:
        """Return chain and level of `Top.Mid.Type`, or None after saying what is wrong."""
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
            if self.shapes.get(top, ...) is not None and top not in self.bad_types:
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
