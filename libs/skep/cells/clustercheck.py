"""Check a cluster whose shape is right: report each mistake with its path and what to do.

A chain is checked on its own first. References to a chain with problems are not checked further, so
that one mistake is reported once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from skep.cells import feasible
from skep.cells.hostlist import NODE_NAME
from skep.cells.levels import cells_by_level, devices_of, gpus_by_level, gpus_per_node, level_names
from skep.cells.volumes import volume_problems
from skep.ids import is_token
from skep.wire.cluster import JOBS_MAX, Chain, Cluster, QuarantineRule, VirtualCluster
from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep.wire.roles import Role
from skep.wire.spec import PRIORITY_MAX, TIME_S_MAX, Problem

IDLE_MIN_S = 60
"""A job does nothing for a minute now and then: it reads its data, or stores its state."""
LEVELS_MAX = 16
"""The most levels of one chain: real clusters have five to seven."""
NODES_MAX = 65_536
"""Nodes of one chain: eight times the largest cluster that is measured."""
GPUS_MAX = 1_000_000
"""GPUs of one chain, and cells in one quota."""
DEVICE_MAX = 1023
WEIGHT_MAX = 1_000_000
HALF_LIFE_MIN, HALF_LIFE_MAX = 60, 365 * 86_400
PERSON_CHARS_MAX = 256
SIGNS = ("signal", "not-started", "exit")
"""The ends of an attempt that count against its GPUs."""
SECONDS_MAX = 366 * 86_400
PROBLEMS_MAX = 100
"""A file can have a thousand problems; the first hundred are enough to begin with."""

NAME = re.compile(r"[^\s/](?:[^/]{0,126}[^\s/])?")
"""What chains, levels, cells above nodes and pins may be called. `/` parts them in paths."""


class Paths:
    """The path of each thing in a Skep cluster file."""

    def chain(self, chain: str) -> str:
        """Return the path of a chain."""
        return f"$.chains.{chain}"

    def gpu(self, chain: str) -> str:
        """Return the path of a chain's GPU type."""
        return f"$.chains.{chain}.gpu"

    def levels(self, chain: str) -> str:
        """Return the path of a chain's levels."""
        return f"$.chains.{chain}.levels"

    def level(self, chain: str, level: str) -> str:
        """Return the path of one level's fan-out."""
        return f"$.chains.{chain}.levels.{level}"

    def node_level(self, chain: str) -> str:
        """Return the path of the key that says which level is a machine."""
        return f"$.chains.{chain}.node"

    def node(self, chain: str, position: int) -> str:
        """Return the path of a node.

        Args:
            chain: The name of the chain.
            position: The position of the node in it.
        """
        return f"$.chains.{chain}.nodes"

    def devices(self, chain: str, position: int) -> str:
        """Return the path of a node's GPU indices.

        Args:
            chain: The name of the chain.
            position: The position of the node in it.
        """
        return f"$.chains.{chain}.devices"

    def name(self, chain: str, cell: str) -> str:
        """Return the path of the name of a cell.

        Args:
            chain: The name of the chain.
            cell: The cell as `level/index`.
        """
        return f"$.chains.{chain}.names.{cell}"

    def pin(self, pin: str) -> str:
        """Return the path of a pinned cell."""
        return f"$.pinned.{pin}"

    def vc(self, vc: str) -> str:
        """Return the path of a virtual cluster."""
        return f"$.vcs.{vc}"

    def quota(self, vc: str, position: int, chain: str, level: str) -> str:
        """Return the path of a quota.

        Args:
            vc: The name of the virtual cluster.
            position: The position of the quota in it.
            chain: The chain of the quota.
            level: Its level.
        """
        return f"$.vcs.{vc}.cells.{chain}/{level}"

    def owned_pin(self, vc: str, position: int) -> str:
        """Return the path of a pinned cell in a virtual cluster."""
        return f"$.vcs.{vc}.pinned[{position}]"

    def vcs(self) -> str:
        """Return the path of the virtual clusters."""
        return "$.vcs"


def problem(path: str, reason: Reason, text: str, suggestion: str = "") -> Problem:
    """Return a problem; positional arguments make calls shorter."""
    return Problem(path=path, reason=reason, text=text, suggestion=suggestion)


def cluster_problems(cluster: Cluster, paths: Paths | None = None) -> list[Problem]:
    """Return everything that is wrong with a cluster.

    Args:
        cluster: The cluster.
        paths: The path of each part of it, for the messages; None: that of a cluster file.

    Returns:
        At most PROBLEMS_MAX problems; none if the cluster is good.
    """
    paths = paths or Paths()
    found: list[Problem] = []
    sound: list[str] = []
    for name, chain in cluster.chains.items():
        wrong = list(chain_problems(name, chain, paths))
        found += wrong
        if not wrong:
            sound.append(name)
    found += rest_problems(cluster, sound, paths, found)
    return found[:PROBLEMS_MAX]


def rest_problems(
    cluster: Cluster, sound: Iterable[str], paths: Paths, found: Iterable[Problem]
) -> list[Problem]:
    """Return what is wrong beyond single chains.

    Feasibility is checked only if nothing else is wrong.

    Args:
        cluster: The cluster.
        sound: The chains without problems.
        paths: The path of each part of it.
        found: The problems that are known already.
    """
    chains = {name: cluster.chains[name] for name in sound}
    more = list(_shared_nodes(chains, paths))
    more += _pins(cluster, chains, paths)
    for name, vc in cluster.vcs.items():
        more += _vc(cluster, name, vc, chains, paths)
    more += _owners(cluster, paths)
    more += _quarantine(cluster.quarantine)
    more += volume_problems(cluster.volumes, cluster.vcs)
    if not more and not any(True for _ in found):
        more += _infeasible(cluster, paths)
    return more


def _quarantine(rule: QuarantineRule) -> Iterator[Problem]:
    path = "$.quarantine"
    for key, least, most in (
        ("jobs", 0, 1000),
        ("within", 1, SECONDS_MAX),
        ("window", 1, SECONDS_MAX),
        ("share", 0, 1),
        ("slow", 0, 1000),
    ):
        value = getattr(rule, key)
        if not least <= value <= most:
            text = f"`{key}` is {value}; it must be {least} to {most}"
            yield problem(f"{path}.{key}", Reason.BAD_VALUE, text)
    for sign in rule.signs:
        if sign not in SIGNS:
            text = f"unknown sign {sign!r}"
            hint = nearest(sign, list(SIGNS)) or f"known are {', '.join(SIGNS)}"
            yield problem(f"{path}.signs", Reason.BAD_VALUE, text, hint)


# --- one chain ------------------------------------------------------------------------------------


def chain_problems(name: str, chain: Chain, paths: Paths) -> Iterator[Problem]:
    """Yield what is wrong with one chain.

    Args:
        name: Its name.
        chain: The chain.
        paths: The path of each part of the cluster.
    """
    if not is_name(name):
        yield _bad_name(paths.chain(name), name, "a chain")
    if not chain.gpu or not chain.gpu.isprintable():
        text = "`gpu` must be the type of the chain's GPUs, as agents tell it"
        yield problem(paths.gpu(name), Reason.BAD_VALUE, text)
    wrong = list(level_problems(name, chain, paths))
    yield from wrong
    wrong_nodes = list(_nodes(name, chain, paths))
    yield from wrong_nodes
    if wrong:
        return
    yield from _fill(name, chain, paths)
    yield from _devices(name, chain, paths)
    if not wrong_nodes:
        yield from _names(name, chain, paths)


def is_name(text: str) -> bool:
    """Return whether a chain, a level, a cell or a pin may have this name."""
    return NAME.fullmatch(text) is not None and text.isprintable()


def _bad_name(path: str, name: str, what: str) -> Problem:
    text = f"{name!r} is no name for {what}: up to 128 printable characters without `/`"
    return problem(path, Reason.BAD_VALUE, text)


def level_problems(name: str, chain: Chain, paths: Paths) -> Iterator[Problem]:
    """Yield what is wrong with a chain's levels; with such problems cells have no sizes.

    Args:
        name: The name of the chain.
        chain: The chain.
        paths: The path of each part of the cluster.
    """
    if not 1 <= len(chain.levels) <= LEVELS_MAX:
        text = f"a chain has 1 to {LEVELS_MAX} levels above one GPU, not {len(chain.levels)}"
        yield problem(
            paths.levels(name), Reason.BAD_VALUE, text, "the smallest chain: levels: {node: 4}"
        )
    if not is_name(chain.leaf):
        yield _bad_name(f"{paths.chain(name)}.leaf", chain.leaf, "a level")
    seen = {chain.leaf: True}
    size = 1
    for level in chain.levels:
        here = paths.level(name, level.name)
        if not is_name(level.name):
            yield _bad_name(here, level.name, "a level")
        if level.name in seen:
            text = f"the chain has two levels called {level.name!r}"
            hint = f"`{chain.leaf}` is one GPU" if level.name == chain.leaf else ""
            yield problem(here, Reason.DUPLICATE_NAME, text, hint)
        seen[level.name] = True
        if level.fanout < 1:
            text = f"a {level.name} is made of {level.fanout} cells of the level below"
            yield problem(here, Reason.WRONG_FANOUT, text, "give a number of 1 or more")
        size *= max(1, level.fanout)
    if size > GPUS_MAX:
        text = f"one top cell would have {size} GPUs; at most {GPUS_MAX}"
        yield problem(paths.levels(name), Reason.WRONG_FANOUT, text)
    above = [level.name for level in chain.levels]
    if chain.node_level in above and not any(level.fanout < 1 for level in chain.levels):
        gpus = gpus_per_node(chain)
        if DEVICE_MAX + 1 < gpus <= GPUS_MAX:
            text = f"one {chain.node_level} would have {gpus} GPUs; at most {DEVICE_MAX + 1}"
            yield problem(paths.level(name, chain.node_level), Reason.WRONG_FANOUT, text)
    if chain.levels and chain.node_level not in above:
        text = f"no level {chain.node_level!r} to be one machine; there are {', '.join(above)}"
        hint = nearest(chain.node_level, above) or "name the level that is one machine by `node`"
        yield problem(paths.node_level(name), Reason.UNKNOWN_LEVEL, text, hint)


def _nodes(name: str, chain: Chain, paths: Paths) -> Iterator[Problem]:
    if not 1 <= len(chain.nodes) <= NODES_MAX:
        text = f"a chain has 1 to {NODES_MAX} nodes, not {len(chain.nodes)}"
        yield problem(paths.node(name, 0), Reason.CELLS_NOT_FULL, text)
    seen: dict[str, int] = {}
    for position, cell in enumerate(chain.nodes):
        here = paths.node(name, position)
        if cell.node in seen:
            text = f"node {cell.node!r} is twice in chain {name!r}: as number {seen[cell.node]}"
            yield problem(here, Reason.DUPLICATE_NODE, f"{text} and {position}, from 0")
        elif not NODE_NAME.fullmatch(cell.node):
            yield problem(here, Reason.BAD_VALUE, f"{cell.node!r} is no name for a node")
        seen.setdefault(cell.node, position)


def _fill(name: str, chain: Chain, paths: Paths) -> Iterator[Problem]:
    nodes = len(chain.nodes)
    per_top = gpus_by_level(chain)[-1] // gpus_per_node(chain)
    beyond = nodes % per_top
    if beyond:
        top = chain.levels[-1].name
        text = f"{nodes} nodes do not fill cells of level {top!r}, which have {per_top} nodes each"
        hint = f"add {per_top - beyond} or take {beyond} out"
        yield problem(paths.node(name, nodes - beyond), Reason.CELLS_NOT_FULL, text, hint)
    if nodes * gpus_per_node(chain) > GPUS_MAX:
        text = f"the chain would have more than {GPUS_MAX} GPUs"
        yield problem(paths.node(name, 0), Reason.BAD_VALUE, text)


def _devices(name: str, chain: Chain, paths: Paths) -> Iterator[Problem]:
    """Yield what is wrong with GPU indices, once for all nodes that have the same."""
    wanted = gpus_per_node(chain)
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, cell in enumerate(chain.nodes):
        if cell.devices:
            groups.setdefault(cell.devices, []).append(position)
    for devices, positions in groups.items():
        here = paths.devices(name, positions[0])
        nodes = _some([chain.nodes[position].node for position in positions])
        if len(devices) != wanted:
            text = f"{nodes} with {len(devices)} devices; the levels say {wanted}"
            yield problem(here, Reason.WRONG_FANOUT, text)
        twice = [str(device) for device, count in Counter(devices).items() if count > 1]
        if twice:
            text = f"{nodes} with device {', '.join(twice)} more than once"
            yield problem(here, Reason.DUPLICATE_DEVICE, text)
        if not all(0 <= device <= DEVICE_MAX for device in devices):
            text = f"{nodes} with devices that are not 0 to {DEVICE_MAX}"
            yield problem(here, Reason.BAD_VALUE, text)


def _some(nodes: list[str]) -> str:
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"node {nodes[0]!r}{more}"


def _names(name: str, chain: Chain, paths: Paths) -> Iterator[Problem]:
    levels = level_names(chain)
    counts = dict(zip(levels, cells_by_level(chain), strict=True))
    above = levels[levels.index(chain.node_level) + 1 :]
    seen: dict[tuple[str, str], str] = {}
    for cell, called in chain.names.items():
        here = paths.name(name, cell)
        level, _, index = cell.partition("/")
        if level not in above:
            text = f"{cell!r} is no cell above node level"
            hint = nearest(level, list(above)) or "write level/index, such as rack/0"
            yield problem(here, Reason.UNKNOWN_LEVEL, text, hint)
        elif not (index.isascii() and index.isdecimal() and int(index) < counts[level]):
            text = f"no cell {cell!r}: level {level!r} has cells 0 to {counts[level] - 1}"
            yield problem(here, Reason.UNKNOWN_CELL, text)
        elif not is_name(called) or called.isdecimal():
            yield _bad_name(here, called, "a cell (and a number is its place, no name)")
        elif (level, called) in seen:
            text = f"two cells of level {level!r} are called {called!r}: {seen[level, called]}"
            yield problem(here, Reason.DUPLICATE_NAME, f"{text} and {cell}")
        seen.setdefault((level, called), cell)


# --- what chains share ----------------------------------------------------------------------------


def _shared_nodes(chains: dict[str, Chain], paths: Paths) -> Iterator[Problem]:
    """Yield what two chains share: a node may have two types of GPU, a GPU has one.

    Nodes that have the same GPUs in the same two chains are reported together.
    """
    seen: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    shared: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for name, chain in chains.items():
        for position, cell in enumerate(chain.nodes):
            devices = devices_of(chain, position)
            before = seen.setdefault(cell.node, [])
            for other, others in before:
                both = tuple(device for device in devices if device in others)
                if both:
                    shared.setdefault((name, other, both), []).append(position)
            before.append((name, devices))
    for (name, other, both), positions in shared.items():
        nodes = _some([chains[name].nodes[position].node for position in positions])
        text = f"GPU {', '.join(map(str, both))} of {nodes} is in chain {other!r} too"
        hint = "a node of two chains needs `devices` in at least one of them"
        yield problem(paths.devices(name, positions[0]), Reason.OVERLAPPING_DEVICES, text, hint)


def _pins(cluster: Cluster, chains: dict[str, Chain], paths: Paths) -> Iterator[Problem]:
    """Yield what is wrong with pinned cells: unknown, the same, or one inside another."""
    spans: list[tuple[str, int, int, str]] = []
    for name, pin in cluster.pins.items():
        here = paths.pin(name)
        if not is_name(name):
            yield _bad_name(here, name, "a pinned cell")
        if pin.chain not in cluster.chains:
            hint = nearest(pin.chain, list(cluster.chains))
            yield problem(here, Reason.UNKNOWN_CHAIN, f"no chain {pin.chain!r}", hint)
        if pin.chain not in chains:
            continue
        chain = chains[pin.chain]
        levels = level_names(chain)
        if pin.level not in levels:
            yield _no_level(here, pin.chain, pin.level, levels)
            continue
        level = levels.index(pin.level)
        count = cells_by_level(chain)[level]
        if not 0 <= pin.index < count:
            text = f"no cell {pin.index}: level {pin.level!r} of chain {pin.chain!r} has {count}"
            yield problem(here, Reason.UNKNOWN_CELL, text, f"its cells are 0 to {count - 1}")
            continue
        size = gpus_by_level(chain)[level]
        spans.append((pin.chain, pin.index * size, -size, name))
    spans.sort()
    last: tuple[str, int, int, str] | None = None
    for span in spans:
        if last and span[0] == last[0] and span[1] < last[1] - last[2]:
            here, other = paths.pin(span[3]), last[3]
            if span[1:3] == last[1:3] and cluster.pins[span[3]] == cluster.pins[other]:
                text = f"the same cell is pinned as {other!r}"
                yield problem(here, Reason.DUPLICATE_PIN, text, "give it one name")
            else:
                text = f"the cell is inside the pinned cell {other!r}"
                yield problem(here, Reason.OVERLAPPING_PINS, text, "pin only one of them")
        else:
            last = span


def _no_level(path: str, chain: str, level: str, levels: tuple[str, ...]) -> Problem:
    text = f"chain {chain!r} has no level {level!r}; it has {', '.join(levels)}"
    return problem(path, Reason.UNKNOWN_LEVEL, text, nearest(level, list(levels)))


# --- virtual clusters -----------------------------------------------------------------------------


def _vc(
    cluster: Cluster, name: str, vc: VirtualCluster, chains: dict[str, Chain], paths: Paths
) -> Iterator[Problem]:
    here = paths.vc(name)
    if not is_token(name):
        text = f"{name!r} is no name for a virtual cluster (letters, digits, _, -; 63 at most)"
        yield problem(here, Reason.BAD_VALUE, text)
    for position, quota in enumerate(vc.cells):
        at = paths.quota(name, position, quota.chain, quota.level)
        if quota.chain not in cluster.chains:
            hint = nearest(quota.chain, list(cluster.chains))
            if not cluster.chains:
                hint = "without `chains` give `gpus`; `skep cluster init` proposes chains"
            yield problem(at, Reason.UNKNOWN_CHAIN, f"no chain {quota.chain!r}", hint)
        elif quota.chain in chains and quota.level not in level_names(chains[quota.chain]):
            yield _no_level(at, quota.chain, quota.level, level_names(chains[quota.chain]))
        if not 0 <= quota.count <= GPUS_MAX:
            text = f"{quota.count} cells; it must be 0 to {GPUS_MAX}"
            yield problem(at, Reason.BAD_VALUE, text)
    for key, value, most in (("gpus", vc.gpus, GPUS_MAX), ("jobs_max", vc.jobs_max, JOBS_MAX)):
        if not 0 <= value <= most:
            text = f"`{key}` is {value}; it must be 0 to {most}"
            yield problem(f"{here}.{key}", Reason.BAD_VALUE, text)
    yield from _priorities(vc, f"{here}.priorities")
    if not (math.isfinite(vc.weight) and 0 < vc.weight <= WEIGHT_MAX):
        text = f"`weight` is {vc.weight}; it must be more than 0, and at most {WEIGHT_MAX}"
        yield problem(f"{here}.weight", Reason.BAD_VALUE, text)
    yield from _people(here, vc)
    if vc.idle is not None and not IDLE_MIN_S <= vc.idle.suspend_after <= TIME_S_MAX:
        text = f"`suspend_after` is {vc.idle.suspend_after} s; it must be 1m to 365d"
        yield problem(f"{here}.idle.suspend_after", Reason.BAD_VALUE, text)


def _people(here: str, vc: VirtualCluster) -> Iterator[Problem]:
    """Yield what is wrong with how a VC's people share, and with what each may have."""
    fair = vc.fair_share
    if fair is not None:
        if not HALF_LIFE_MIN <= fair.half_life <= HALF_LIFE_MAX:
            text = f"`half_life` is {fair.half_life} s; it must be 1m to 365d"
            yield problem(f"{here}.fair_share.half_life", Reason.BAD_VALUE, text)
        for person, weight in fair.weights.items():
            at = f"{here}.fair_share.weights.{person}"
            if not (0 < len(person) <= PERSON_CHARS_MAX and person.isprintable()):
                text = f"{person!r} is no name of a person"
                yield problem(at, Reason.BAD_VALUE, text)
            if not 0.001 <= weight <= WEIGHT_MAX:
                text = f"a weight is {weight}; it must be 0.001 to {WEIGHT_MAX}"
                yield problem(at, Reason.BAD_VALUE, text)
    if vc.limits is not None:
        for key in ("running", "gpus", "queued"):
            value = getattr(vc.limits, key)
            if value is not None and not 1 <= value <= JOBS_MAX:
                text = f"`{key}` is {value}; it must be 1 to {JOBS_MAX}"
                yield problem(f"{here}.limits.person.{key}", Reason.BAD_VALUE, text)


def _priorities(vc: VirtualCluster, here: str) -> Iterator[Problem]:
    for role, most in vc.priorities.items():
        if role not in {Role.SUBMITTER, Role.MANAGER}:
            text = f"no role {role!r} whose priorities have a limit: submitter or manager"
            yield problem(f"{here}.{role}", Reason.UNKNOWN_KEY, text)
        elif not 0 <= most <= PRIORITY_MAX:
            text = f"`{role}` is {most}; it must be 0 to {PRIORITY_MAX}"
            yield problem(f"{here}.{role}", Reason.BAD_VALUE, text)
    lower, higher = vc.priorities.get(Role.SUBMITTER, 0), vc.priorities.get(Role.MANAGER)
    if higher is not None and lower > higher:
        text = f"a submitter may give {lower}, more than a manager ({higher})"
        yield problem(here, Reason.BAD_VALUE, text, f"let a manager give {lower} at least")


def _owners(cluster: Cluster, paths: Paths) -> Iterator[Problem]:
    """Yield pinned cells that are owned twice or do not exist."""
    owners: dict[str, str] = {}
    for name, vc in cluster.vcs.items():
        for position, pin in enumerate(vc.pinned):
            here = paths.owned_pin(name, position)
            if pin not in cluster.pins:
                hint = nearest(pin, list(cluster.pins))
                yield problem(here, Reason.UNKNOWN_PIN, f"no pinned cell {pin!r}", hint)
            elif pin in owners:
                owner = "twice" if owners[pin] == name else f"by {owners[pin]!r} too"
                text = f"the pinned cell {pin!r} is owned {owner}"
                yield problem(here, Reason.DUPLICATE_PIN, text, "a pinned cell has one owner")
            owners.setdefault(pin, name)


def _infeasible(cluster: Cluster, paths: Paths) -> Iterator[Problem]:
    shorts = list(feasible.shortages(cluster))
    for short in shorts:
        owners = [
            f"{name} {quota.count}"
            for name, vc in cluster.vcs.items()
            for quota in vc.cells
            if (quota.chain, quota.level) == (short.chain, short.level)
        ]
        text = (
            f"chain {short.chain!r}, level {short.level!r}: the virtual clusters own "
            f"{short.wanted} cells ({', '.join(owners)}) where there are {short.there} "
            f"after pinned and larger cells: {short.by} short"
        )
        hint = f"take {short.by} away, or add nodes"
        yield problem(paths.vcs(), Reason.INFEASIBLE, text, hint)
    if not shorts and cluster.chains and (by := feasible.gpus_short(cluster)):
        wanted = sum(vc.gpus for vc in cluster.vcs.values())
        text = (
            f"the virtual clusters own {wanted} GPUs by `gpus` where there are {wanted - by} "
            f"after `cells` and `pinned`: {by} short"
        )
        yield problem(paths.vcs(), Reason.INFEASIBLE, text, f"take {by} away, or add nodes")


# --- what is allowed but hardly meant -------------------------------------------------------------


def cluster_remarks(cluster: Cluster, paths: Paths | None = None) -> list[Problem]:
    """Return what is allowed but probably a mistake.

    Args:
        cluster: A cluster without problems.
        paths: The path of each part of it, for the messages; None: that of a cluster file.
    """
    paths = paths or Paths()
    found: list[Problem] = []
    odd = [
        (name, at, cell.node)
        for name, chain in cluster.chains.items()
        for at, cell in enumerate(chain.nodes)
        if not is_token(cell.node)
    ]
    if odd:
        nodes = list(dict.fromkeys(node for _, _, node in odd))
        some = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        text = f"no agent can have this name: {some} (letters, digits, _, -; 63 at most)"
        hint = "call nodes as their agents are called"
        found.append(problem(paths.node(*odd[0][:2]), Reason.BAD_VALUE, text, hint))
    owned = {pin: True for vc in cluster.vcs.values() for pin in vc.pinned}
    for pin in cluster.pins:
        if pin not in owned:
            text = f"no virtual cluster owns the pinned cell {pin!r}"
            found.append(problem(paths.pin(pin), Reason.UNKNOWN_PIN, text))
    return found
