"""Skep's cluster file: chains of cells, pinned cells, and what each virtual cluster owns.

    version: 1
    chains:
      v100:                        # a name of yours; one chain for each kind of node
        gpu: v100                  # the type that agents tell
        levels: {switch: 2, socket: 2, node: 2, rack: 4}   # from the lowest up: a switch = 2 GPUs
        node: node                 # the level that is one machine; `node` unless said otherwise
        cells:                     # or just `nodes: a-[1-8]`, in the order of the tree
          r1: a-[1-4]
          r2: a-[5-8]
        devices:                   # GPU indices in the order of the tree, where not 0, 1, ...
          a-[5-8]: [0, 2, 1, 3, 4, 6, 5, 7]
    pinned:
      big: v100/rack/r1            # CHAIN/LEVEL/ a name, an index, or a node and an index within it
    vcs:
      nlp: {cells: {v100/socket: 2}, pinned: [big], weight: 2, jobs_max: 1000}
      vision: 6                    # GPUs, in the largest cells that make them up
      speech: {gpus: 8, policy: backfill}                  # `skep policies` lists them
      video: {gpus: 8, policy: {name: NAME, OPTION: ...}}  # the same with options
      lab: {gpus: 8, fair_share: {half_life: 7d, weights: {ada: 2}},
            limits: {person: {running: 10, gpus: 16, queued: 200}},
            idle: {suspend_after: 30m}}
    priorities: {submitter: 5, manager: 50}   # the highest by role; of one VC: in its entry
    quarantine: {jobs: 3, within: 300, window: 86400, share: 0.1, signs: [signal, not-started]}
    volumes: {datasets: /mnt/datasets}        # folders of the nodes: `cells.volumes`

This file reads shapes; what values may be is `clustercheck`'s. Host lists are Slurm's. In YAML a
list between brackets needs quotes around host lists: `nodes: ["a-[1-8]", b1]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from skep.cells import hostlist
from skep.cells.clustercheck import (
    NODES_MAX,
    PROBLEMS_MAX,
    SIGNS,
    Paths,
    chain_problems,
    level_problems,
    problem,
    rest_problems,
)
from skep.cells.levels import cells_by_level, devices_of, gpus_by_level, gpus_per_node, level_names
from skep.cells.volumes import read_volumes
from skep.wire.cluster import (
    FIFO,
    JOBS_MAX,
    QUARANTINE,
    Chain,
    Cluster,
    FairShare,
    IdleRule,
    Level,
    NodeCell,
    PersonLimits,
    Pin,
    QuarantineRule,
    Quota,
    Template,
    VirtualCluster,
)
from skep.wire.parse import kind_of, nearest
from skep.wire.reasons import Reason
from skep.wire.roles import Role
from skep.wire.spec import Problem
from skep.wire.times import time_s

CLUSTER_VERSION = 1

CLUSTER_KEYS = ("version", "chains", "pinned", "vcs", "quarantine", "priorities", "volumes")
CHAIN_KEYS = ("gpu", "levels", "node", "nodes", "cells", "devices", "names", "leaf")
QUARANTINE_KEYS = ("jobs", "within", "window", "share", "signs", "slow", "quarantine_slow")
LIMITED_ROLES = (Role.SUBMITTER, Role.MANAGER)
"""The roles whose priorities can have a limit: a viewer has no jobs, an operator no limit."""
VC_KEYS = (
    "cells",
    "pinned",
    "gpus",
    "weight",
    "jobs_max",
    "policy",
    "priorities",
    "fair_share",
    "limits",
    "templates",
    "idle",
)
TEMPLATE_KEYS = ("spec", "fixed", "about")
FAIR_KEYS = ("half_life", "weights")
PERSON_KEYS = ("running", "gpus", "queued")


def parse_cluster(tree: Any) -> Cluster | list[Problem]:
    """Return the cluster in a decoded YAML or JSON value, or everything that is wrong with it.

    Args:
        tree: The value; of any type.
    """
    reader = _Reader()
    cluster = reader.cluster(tree)
    found = reader.found
    found += rest_problems(cluster, cluster.chains, reader.paths, found)
    return found[:PROBLEMS_MAX] or cluster


class _FilePaths(Paths):
    """Paths of a file that gives its nodes by `nodes` or by `cells`, as each chain did."""

    def __init__(self) -> None:
        self.nodes_key: dict[str, str] = {}

    def node(self, chain: str, position: int) -> str:
        return f"$.chains.{chain}.{self.nodes_key.get(chain, 'nodes')}"

    def name(self, chain: str, cell: str) -> str:
        key = "cells" if self.nodes_key.get(chain) == "cells" else f"names.{cell}"
        return f"$.chains.{chain}.{key}"


class _Reader:
    """Reads one file and collects what is wrong with it."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.paths = _FilePaths()
        self.broken: list[str] = []
        """Chains with problems: what refers to them is not looked at."""
        self.chains_read = True
        """Whether `chains` is an object at all."""
        self.broken_pins: list[str] = []

    def add(self, path: str, reason: Reason, text: str, suggestion: str = "") -> None:
        self.found.append(problem(path, reason, text, suggestion))

    def wrong_type(self, path: str, wanted: str, value: Any, suggestion: str = "") -> None:
        name = path.rpartition(".")[2]
        text = f"`{name}` must be {wanted}, not {kind_of(value)}"
        self.add(path, Reason.WRONG_TYPE, text, suggestion)

    def mapping(self, value: Any, path: str, what: str) -> dict[str, Any]:
        """Return an object's entries whose keys are text; nothing for what is absent."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong_type(path, what, value)
            return {}
        for key in value:
            if not isinstance(key, str):
                text = f"the key `{key}` must be text, not {kind_of(key)}"
                self.add(f"{path}.{key}", Reason.WRONG_TYPE, text, "put it in quotes")
        return {key: inner for key, inner in value.items() if isinstance(key, str)}

    def keys(self, tree: dict[str, Any], known: Sequence[str], path: str) -> None:
        """Report unknown keys of an object."""
        for key in tree:
            if key not in known:
                text = f"unknown key `{key}`"
                hint = nearest(key, list(known)) or f"known are {', '.join(known)}"
                self.add(f"{path}.{key}", Reason.UNKNOWN_KEY, text, hint)

    def text(self, tree: dict[str, Any], key: str, path: str, default: str | None) -> str | None:
        """Return a text; None after reporting that it is missing or of another type."""
        value = tree.get(key, default)
        if isinstance(value, str):
            return value
        here = f"{path}.{key}"
        if key not in tree:
            self.add(here, Reason.MISSING_KEY, f"`{key}` is required")
        else:
            self.wrong_type(here, "text", value, "put it in quotes")
        return None

    def number(self, value: Any, path: str) -> int | None:
        """Return a whole number; None after reporting that the value is of another type."""
        if type(value) is int:
            return value
        self.wrong_type(path, "a whole number", value)
        return None

    # --- the file ---------------------------------------------------------------------------------

    def cluster(self, tree: Any) -> Cluster:
        if not isinstance(tree, dict):
            text = f"a cluster file is an object with `chains` and `vcs`, not {kind_of(tree)}"
            self.add("$", Reason.WRONG_TYPE, text)
            return Cluster()
        top = self.mapping(tree, "$", "an object")
        if "physicalCluster" in top or "virtualClusters" in top:
            text = "this is a file of HiveD's"
            hint = "`skep cluster import FILE` makes a cluster file of it"
            self.add("$", Reason.WRONG_VERSION, text, hint)
            return Cluster()
        self.keys(top, CLUSTER_KEYS, "$")
        if top.get("version", CLUSTER_VERSION) != CLUSTER_VERSION:
            text = f"version {top['version']} is not spoken here"
            self.add("$.version", Reason.WRONG_VERSION, text, f"use version {CLUSTER_VERSION}")
        chains: dict[str, Chain] = {}
        self.chains_read = isinstance(top.get("chains"), dict | None)
        for name, value in self.mapping(top.get("chains"), "$.chains", "chains by name").items():
            chain = self.chain(name, value)
            if chain is None:
                self.broken.append(name)
            else:
                chains[name] = chain
        pins: dict[str, Pin] = {}
        for name, value in self.mapping(top.get("pinned"), "$.pinned", "cells by name").items():
            pin = self.pin(f"$.pinned.{name}", value, chains)
            if pin is None:
                self.broken_pins.append(name)
            else:
                pins[name] = pin
        vcs: dict[str, VirtualCluster] = {}
        usual = self.priorities(top.get("priorities"), "$.priorities")
        for name, value in self.mapping(top.get("vcs"), "$.vcs", "virtual clusters").items():
            vc = self.vc(f"$.vcs.{name}", value, chains)
            own = isinstance(value, dict) and "priorities" in value
            vcs[name] = vc if own or not usual else replace(vc, priorities=usual)
        rule = self.quarantine(top.get("quarantine"))
        volumes, wrong = read_volumes(top.get("volumes"))
        self.found += wrong
        return Cluster(chains=chains, pins=pins, vcs=vcs, quarantine=rule, volumes=volumes)

    def quarantine(self, value: Any) -> QuarantineRule:
        """Return when GPUs are quarantined by rule; what is not given has its default."""
        path, usual = "$.quarantine", QUARANTINE
        tree = self.mapping(value, path, "an object")
        self.keys(tree, QUARANTINE_KEYS, path)
        numbers = {
            key: self.number(tree.get(key, getattr(usual, key)), f"{path}.{key}")
            for key in ("jobs", "within", "window", "slow")
        }
        acts = tree.get("quarantine_slow", usual.quarantine_slow)
        if not isinstance(acts, bool):
            self.wrong_type(f"{path}.quarantine_slow", "true or false", acts)
            acts = usual.quarantine_slow
        share, signs = tree.get("share", usual.share), tree.get("signs", list(usual.signs))
        if type(share) not in (int, float):
            self.wrong_type(f"{path}.share", "a number from 0 to 1", share)
            share = usual.share
        if not isinstance(signs, list) or not all(isinstance(one, str) for one in signs):
            self.wrong_type(f"{path}.signs", f"a list of {', '.join(SIGNS)}", signs)
            signs = []
        rule = QuarantineRule(
            **{
                key: getattr(usual, key) if given is None else given
                for key, given in numbers.items()
            },
            share=float(share),
            signs=tuple(signs),
            quarantine_slow=acts,
        )
        return usual if rule == usual else rule

    # --- chains -----------------------------------------------------------------------------------

    def chain(self, name: str, value: Any) -> Chain | None:
        path = f"$.chains.{name}"
        before = len(self.found)
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            return None
        tree = self.mapping(value, path, "an object")
        self.keys(tree, CHAIN_KEYS, path)
        # A word in place of what cannot be read lets the rest be checked too.
        gpu = self.text(tree, "gpu", path, None)
        gpu = "unread" if gpu is None else gpu
        leaf = self.text(tree, "leaf", path, "gpu")
        leaf = "unread" if leaf is None else leaf
        shape = len(self.found)
        levels = self.levels(tree, path)
        node_level = self.node_level(tree, path, levels)
        if node_level is None or len(self.found) > shape:
            self.nodes_of(tree.get("nodes"), f"{path}.nodes")
            return None
        chain = Chain(gpu=gpu, levels=levels, node_level=node_level, nodes=(), leaf=leaf)
        names: dict[str, str] = {}
        devices: dict[str, tuple[int, ...]] = {}
        sized = not any(level_problems(name, chain, self.paths))
        if sized:
            nodes = self.nodes(tree, path, name, chain, names)
            names.update(self.names(tree.get("names"), f"{path}.names"))
            whole = len(self.found) == before
            devices = self.devices(tree.get("devices"), f"{path}.devices", nodes, whole=whole)
        else:
            # Without sizes, nodes cannot be assigned to cells.
            nodes = self.nodes_of(tree.get("nodes"), f"{path}.nodes")
        # Only of levels that were found sound: wrong ones may say that a node has any size.
        plain = tuple(range(gpus_per_node(chain))) if sized else ()
        cells = tuple(
            NodeCell(node=node, devices=() if devices.get(node) == plain else devices.get(node, ()))
            for node in nodes
        )
        chain = Chain(
            gpu=gpu, levels=levels, node_level=node_level, nodes=cells, leaf=leaf, names=names
        )
        # That cells are not full may only mean that nodes could not be read.
        unread = len(self.found) > before or not sized
        self.found += [
            one
            for one in chain_problems(name, chain, self.paths)
            if not (unread and one.reason == Reason.CELLS_NOT_FULL)
        ]
        return None if len(self.found) > before else chain

    def names(self, value: Any, path: str) -> dict[str, str]:
        """Return the names of cells, given as `level/index`."""
        names: dict[str, str] = {}
        for cell, called in self.mapping(value, path, "names by level/index").items():
            if isinstance(called, str):
                names[cell] = called
            else:
                self.wrong_type(f"{path}.{cell}", "text", called, "put it in quotes")
        return names

    def levels(self, tree: dict[str, Any], path: str) -> tuple[Level, ...]:
        here = f"{path}.levels"
        if "levels" not in tree:
            hint = "from the lowest up, such as levels: {socket: 4, node: 2, rack: 8}"
            self.add(here, Reason.MISSING_KEY, "`levels` is required", hint)
            return ()
        levels: list[Level] = []
        entries = self.mapping(tree["levels"], here, "levels with their sizes")
        for name, value in entries.items():
            fanout = self.number(value, f"{here}.{name}")
            if fanout is not None:
                levels.append(Level(name=name, fanout=fanout))
        if not entries and isinstance(tree["levels"], dict | None):
            self.add(here, Reason.BAD_VALUE, "no level", "the smallest chain: levels: {node: 4}")
        return tuple(levels)

    def node_level(self, tree: dict[str, Any], path: str, levels: tuple[Level, ...]) -> str | None:
        """Return which level is one machine; None after reporting what is wrong with it."""
        names = [level.name for level in levels]
        level = self.text(tree, "node", path, "node")
        if level is not None and names and level not in names:
            text = f"no level {level!r} to be one machine; there are {', '.join(names)}"
            hint = nearest(level, names) or "say which level is one machine: node: LEVEL"
            self.add(f"{path}.node", Reason.UNKNOWN_LEVEL, text, hint)
            return None
        return level

    # --- nodes ------------------------------------------------------------------------------------

    def nodes(
        self, tree: dict[str, Any], path: str, name: str, chain: Chain, names: dict[str, str]
    ) -> list[str]:
        """Return the nodes' names in the order of the tree.

        Args:
            tree: A chain in the file.
            path: Its path in the file, for the messages.
            name: Its name.
            chain: Its levels; its nodes are not known yet.
            names: The names of cells by `level/index`; those found are added.

        Returns:
            The names; empty: what is wrong was reported.
        """
        given = [key for key in ("nodes", "cells") if key in tree]
        if len(given) != 1:
            reason = Reason.WRONG_PLACE if given else Reason.MISSING_KEY
            text = "exactly one of `nodes` and `cells` must be given"
            self.add(f"{path}.nodes", reason, text, "nodes: a-[1-8]")
            return []
        self.paths.nodes_key[name] = given[0]
        if given == ["nodes"]:
            return self.nodes_of(tree["nodes"], f"{path}.nodes")
        node = level_names(chain).index(chain.node_level)
        top = len(chain.levels)
        if top == node:
            text = f"`{chain.node_level}` is the highest level: there are no cells above nodes"
            self.add(f"{path}.cells", Reason.WRONG_PLACE, text, "list them under `nodes`")
            return []
        found: list[str] = []
        self.cells(tree["cells"], f"{path}.cells", chain, top, names, found)
        return found

    def cells(
        self,
        value: Any,
        path: str,
        chain: Chain,
        level: int,
        names: dict[str, str],
        nodes: list[str],
    ) -> None:
        """Read several cells of a level, named in an object or without names in a list.

        Args:
            value: The cells in the file.
            path: Their path in the file, for the messages.
            chain: Its levels; its nodes are not known yet.
            level: The number of the cells' level, above that of nodes.
            names: The names of cells by `level/index`; those found are added.
            nodes: The nodes read so far, in the order of the tree; those found are added.
        """
        entries: list[tuple[str, str, Any]]
        if isinstance(value, list):
            entries = [("", f"{path}[{at}]", inner) for at, inner in enumerate(value)]
        elif isinstance(value, dict):
            tree = self.mapping(value, path, "cells by name")
            entries = [(key, f"{path}.{key}", inner) for key, inner in tree.items()]
        else:
            self.wrong_type(path, "cells by name, or a list of them", value)
            return
        title = level_names(chain)[level]
        per_cell = gpus_by_level(chain)[level] // gpus_per_node(chain)
        node_level = level_names(chain).index(chain.node_level)
        for key, here, inner in entries:
            start = len(nodes)
            if key:
                names[f"{title}/{start // per_cell}"] = key
            nested = isinstance(inner, dict) or (
                isinstance(inner, list) and any(not isinstance(one, str) for one in inner)
            )
            problems = len(self.found)
            if nested and level - 1 > node_level:
                self.cells(inner, here, chain, level - 1, names, nodes)
            else:
                nodes += self.nodes_of(inner, here)
            count = len(nodes) - start
            if count != per_cell and len(self.found) == problems:
                text = f"a cell of level {title!r} has {per_cell} nodes, not {count}"
                self.add(here, Reason.CELLS_NOT_FULL, text)
            # Continue as if it were full, so that names of later cells stay right.
            del nodes[start + per_cell :]
            nodes += [f"missing-{start + at}" for at in range(count, per_cell)]

    def nodes_of(self, value: Any, path: str) -> list[str]:
        """Return the names in a host list or a list of them."""
        lists = value if isinstance(value, list) else [value]
        names: list[str] = []
        for at, text in enumerate(lists):
            here = f"{path}[{at}]" if isinstance(value, list) else path
            if value is None:
                continue
            if not isinstance(text, str):
                hint = "put it in quotes" if isinstance(text, int | float) else "write a-[1-8]"
                if isinstance(text, list | dict):
                    hint = "cells above nodes stand under `cells`, as deep as there are levels"
                self.wrong_type(here, "a host list", text, hint)
                continue
            some = hostlist.expand(text, NODES_MAX - len(names))
            if isinstance(some, str):
                self.add(here, Reason.BAD_VALUE, some)
            else:
                names += some
        return names

    def devices(
        self, value: Any, path: str, nodes: list[str], *, whole: bool
    ) -> dict[str, tuple[int, ...]]:
        """Return the GPU indices by node: one list for all nodes, or one for each host list.

        Args:
            value: The indices in the file.
            path: Their path in the file, for the messages.
            nodes: The nodes of the chain.
            whole: Whether these are all nodes: then a host list with another one is a mistake.
        """
        if value is None:
            return {}
        if not isinstance(value, dict):
            devices = self.indices(value, path)
            return dict.fromkeys(nodes, devices)
        found: dict[str, tuple[int, ...]] = {}
        present = dict.fromkeys(nodes)
        for hosts, inner in self.mapping(value, path, "indices by node").items():
            here = f"{path}.{hosts}"
            named = hostlist.expand(hosts, NODES_MAX)
            devices = self.indices(inner, here)
            if isinstance(named, str):
                self.add(here, Reason.BAD_VALUE, named)
                continue
            for node in named:
                if node not in present:
                    if not whole:
                        continue
                    text = f"no node {node!r} in this chain"
                    self.add(here, Reason.UNKNOWN_NODE, text, nearest(node, nodes[:1000]))
                elif node in found:
                    text = f"devices of node {node!r} are given twice"
                    self.add(here, Reason.DUPLICATE_NODE, text)
                else:
                    found[node] = devices
        return found

    def indices(self, value: Any, path: str) -> tuple[int, ...]:
        if isinstance(value, list) and value and all(type(one) is int for one in value):
            return tuple(value)
        self.wrong_type(path, "a list of GPU indices", value, "write [8, 9, 10, 11]")
        return ()

    # --- pinned cells -----------------------------------------------------------------------------

    def pin(self, path: str, value: Any, chains: dict[str, Chain]) -> Pin | None:
        """Return the cell that `CHAIN/LEVEL/...` names; None after reporting what is wrong."""
        if not isinstance(value, str):
            self.wrong_type(path, "a cell such as v100/rack/0", value)
            return None
        parts = value.split("/")
        name = parts[0]
        if name not in chains:
            if self.chains_read and name not in self.broken:
                hint = nearest(name, list(chains))
                self.add(path, Reason.UNKNOWN_CHAIN, f"no chain {name!r}", hint)
            return None
        chain = chains[name]
        levels = level_names(chain)
        if len(parts) not in (3, 4):
            text = f"{value!r} names no cell: write CHAIN/LEVEL/INDEX, CHAIN/LEVEL/NAME"
            self.add(path, Reason.BAD_VALUE, f"{text} or CHAIN/LEVEL/NODE/INDEX")
            return None
        if parts[1] not in levels:
            text = f"chain {name!r} has no level {parts[1]!r}; it has {', '.join(levels)}"
            self.add(path, Reason.UNKNOWN_LEVEL, text, nearest(parts[1], list(levels)))
            return None
        index = _cell_index(chain, levels.index(parts[1]), parts[2:])
        if isinstance(index, str):
            self.add(path, Reason.UNKNOWN_CELL, index)
            return None
        return Pin(chain=name, level=parts[1], index=index)

    # --- virtual clusters -------------------------------------------------------------------------

    def vc(self, path: str, value: Any, chains: dict[str, Chain]) -> VirtualCluster:
        if type(value) is int:
            return VirtualCluster(gpus=value)
        tree = self.mapping(value, path, "an object, or a number of GPUs")
        self.keys(tree, VC_KEYS, path)
        quotas: dict[tuple[str, str], int] = {}
        entries = self.mapping(tree.get("cells"), f"{path}.cells", "numbers by chain/level")
        for key, cells in entries.items():
            here = f"{path}.cells.{key}"
            count = self.number(cells, here)
            place = self.level(key, here, chains)
            if count is None or place is None:
                continue
            if place in quotas:
                text = f"{place[0]}/{place[1]} is given twice"
                self.add(here, Reason.DUPLICATE_NAME, text)
            quotas[place] = count
        pinned = tree.get("pinned", [])
        if not isinstance(pinned, list) or not all(isinstance(one, str) for one in pinned):
            self.wrong_type(f"{path}.pinned", "a list of names of pinned cells", pinned)
            pinned = []
        gpus = self.number(tree.get("gpus", 0), f"{path}.gpus")
        jobs_max = self.number(tree.get("jobs_max", JOBS_MAX), f"{path}.jobs_max")
        weight = tree.get("weight", 1.0)
        if type(weight) not in (int, float):
            self.wrong_type(f"{path}.weight", "a number", weight)
            weight = 1.0
        policy, options = self.policy(tree.get("policy", FIFO), f"{path}.policy")
        return VirtualCluster(
            cells=tuple(
                Quota(chain=chain, level=level, count=count)
                for (chain, level), count in quotas.items()
                if count
            ),
            pinned=tuple(one for one in pinned if one not in self.broken_pins),
            gpus=gpus or 0,
            weight=float(weight) if abs(weight) < 1e300 else 0.0,
            jobs_max=JOBS_MAX if jobs_max is None else jobs_max,
            policy=policy,
            options=options,
            priorities=self.priorities(tree.get("priorities"), f"{path}.priorities"),
            fair_share=self.fair_share(tree.get("fair_share"), f"{path}.fair_share"),
            limits=self.limits(tree.get("limits"), f"{path}.limits"),
            templates=self.templates(tree.get("templates"), f"{path}.templates"),
            idle=self.idle(tree.get("idle"), f"{path}.idle"),
        )

    def templates(self, value: Any, path: str) -> dict[str, Template]:
        """Return the templates of a VC by name; what their specs say is looked at later."""
        found = {}
        for name, given in self.mapping(value, path, "templates by name").items():
            here = f"{path}.{name}"
            tree = self.mapping(given, here, "an object such as {spec: {priority: 5}}")
            self.keys(tree, TEMPLATE_KEYS, here)
            spec = self.mapping(tree.get("spec"), f"{here}.spec", "keys of a spec")
            fixed, about = tree.get("fixed", []), tree.get("about", "")
            if not isinstance(fixed, list) or not all(isinstance(one, str) for one in fixed):
                self.wrong_type(f"{here}.fixed", "a list of keys, as resources.gpu_type", fixed)
                fixed = []
            if not isinstance(about, str):
                self.wrong_type(f"{here}.about", "text", about)
                about = ""
            found[str(name)] = Template(spec=spec, fixed=tuple(fixed), about=about)
        return found

    def idle(self, value: Any, path: str) -> IdleRule | None:
        """Return what becomes of jobs of a VC that do nothing; None: they stay."""
        if value is None:
            return None
        tree = self.mapping(value, path, "an object such as {suspend_after: 30m}")
        self.keys(tree, ("suspend_after",), path)
        given = tree.get("suspend_after", IdleRule().suspend_after)
        length_s = time_s(given) if type(given) in (int, str) else None
        if length_s is None:
            where = f"{path}.suspend_after"
            self.wrong_type(where, "a length of time", given, "write 30m, 2h or 90s")
        return IdleRule(suspend_after=length_s or IdleRule().suspend_after)

    def fair_share(self, value: Any, path: str) -> FairShare | None:
        """Return how a VC's people share over time; None: they do not."""
        if value is None:
            return None
        tree = self.mapping(value, path, "an object such as {half_life: 7d}")
        self.keys(tree, FAIR_KEYS, path)
        given = tree.get("half_life", FairShare().half_life)
        half_life = time_s(given) if type(given) in (int, str) else None
        if half_life is None:
            self.wrong_type(f"{path}.half_life", "a length of time", given, "write 7d, 12h or 30m")
        weights: dict[str, float] = {}
        entries = self.mapping(tree.get("weights"), f"{path}.weights", "numbers by person")
        for person, weight in entries.items():
            if type(weight) in (int, float) and abs(weight) < 1e300:
                weights[person] = float(weight)
            else:
                self.wrong_type(f"{path}.weights.{person}", "a number", weight)
        return FairShare(half_life=half_life or FairShare().half_life, weights=weights)

    def limits(self, value: Any, path: str) -> PersonLimits | None:
        """Return what each person of a VC may have; None: there is no limit."""
        if value is None:
            return None
        tree = self.mapping(value, path, "an object such as {person: {running: 10}}")
        self.keys(tree, ("person",), path)
        person = self.mapping(tree.get("person"), f"{path}.person", "numbers of running, ...")
        self.keys(person, PERSON_KEYS, f"{path}.person")
        found = {
            key: self.number(person[key], f"{path}.person.{key}")
            for key in PERSON_KEYS
            if key in person
        }
        return PersonLimits(**found) if found else None

    def priorities(self, value: Any, path: str) -> dict[str, int]:
        """Return the highest priorities by role; what they may be is checked later."""
        tree = self.mapping(value, path, "numbers by role")
        self.keys(tree, LIMITED_ROLES, path)
        found = {role: self.number(most, f"{path}.{role}") for role, most in tree.items()}
        return {
            role: most for role, most in found.items() if most is not None and role in LIMITED_ROLES
        }

    def policy(self, value: Any, path: str) -> tuple[str, dict[str, Any]]:
        """Return a policy's name and options, without checking whether such a policy exists."""
        if isinstance(value, str):
            return value, {}
        if not isinstance(value, dict):
            self.wrong_type(path, "a policy's name, or an object with its `name`", value)
            return FIFO, {}
        tree = self.mapping(value, path, "an object")
        name = self.text(tree, "name", path, None)
        options = {key: option for key, option in tree.items() if key != "name"}
        return (FIFO, {}) if name is None else (name, options)

    def level(self, key: str, path: str, chains: dict[str, Chain]) -> tuple[str, str] | None:
        """Return chain and level of a quota's key; `level` alone where one chain has it."""
        chain, mark, level = key.partition("/")
        if mark:
            # A chain with problems of its own hides whether it has the level.
            unread = chain in self.broken or not self.chains_read
            return None if unread else (chain, level)
        having = [name for name, one in chains.items() if key in level_names(one)]
        if self.broken or not self.chains_read:
            return None
        if len(having) == 1:
            return having[0], key
        if having:
            text = f"several chains have a level {key!r}: {', '.join(having)}"
            self.add(path, Reason.UNKNOWN_CHAIN, text, f"write {having[0]}/{key}")
            return None
        known = [name for one in chains.values() for name in level_names(one)]
        text = f"no chain has a level {key!r}"
        hint = nearest(key, known) or "write CHAIN/LEVEL"
        if not chains:
            hint = "without `chains` give `gpus`; `skep cluster init` proposes chains"
        self.add(path, Reason.UNKNOWN_LEVEL, text, hint)
        return None


def _cell_index(chain: Chain, level: int, parts: list[str]) -> int | str:
    """Return the index of a cell given by index, name, or node and place; or what is wrong."""
    title = level_names(chain)[level]
    count = cells_by_level(chain)[level]
    node_level = level_names(chain).index(chain.node_level)
    nodes = {cell.node: at for at, cell in enumerate(chain.nodes)}
    first = parts[0]
    if len(parts) == 1 and first.isascii() and first.isdecimal() and len(first) < 10:
        if int(first) < count:
            return int(first)
        return f"no cell {first}: level {title!r} has cells 0 to {count - 1}"
    if len(parts) == 1:
        if level == node_level and first in nodes:
            return nodes[first]
        named = {
            called: cell for cell, called in chain.names.items() if cell.startswith(f"{title}/")
        }
        if first in named:
            return int(named[first].rpartition("/")[2])
        known = [*named, *(list(nodes)[:1000] if level == node_level else ())]
        return f"no cell {first!r} at level {title!r} {nearest(first, known)}".rstrip()
    if level >= node_level:
        return f"level {title!r} is not inside a node: write CHAIN/{title}/INDEX or a name"
    if first not in nodes:
        return f"no node {first!r} in this chain {nearest(first, list(nodes)[:1000])}".rstrip()
    inside = gpus_per_node(chain) // gpus_by_level(chain)[level]
    if level == 0:
        # One GPU is given by its index on the node, as `nvidia-smi` and `skep gpus` show it.
        devices = devices_of(chain, nodes[first])
        if parts[1] in map(str, devices):
            return nodes[first] * inside + devices.index(int(parts[1]))
        return f"node {first!r} has GPUs {', '.join(map(str, devices))}"
    if not (parts[1].isascii() and parts[1].isdecimal() and int(parts[1]) < inside):
        return f"node {first!r} has cells 0 to {inside - 1} of level {title!r}"
    return nodes[first] * inside + int(parts[1])
