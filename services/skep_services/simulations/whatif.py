"""What if: a cluster and its policies, changed by a few words.

    B.nodes+=2          two more nodes for B: spare ones if there are, else new ones
    B.nodes-=1          one less: it stays in the cluster, and belongs to no VC
    cluster.nodes+=4    four more nodes that belong to no VC (as many as -= says are taken away)
    A.policy=tiresias-l:thresholds=[3250]
    A.weight=2

Several are separated by semicolons or given one by one. Nodes are taken away before any are given:
`B.nodes+=2;A.nodes-=2` moves two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count as counting
from itertools import islice
from typing import NamedTuple

import msgspec

from skep.cells.clustercheck import cluster_problems
from skep.cells.levels import gpus_per_node, level_names
from skep.cells.propose import resolve
from skep.wire.cluster import Chain, Cluster, NodeCell, Quota, VirtualCluster
from skep_services.simulations.inputs import Choice, WrongError, like, policy

KEYS = ("nodes", "policy", "weight")
EVERYTHING = "cluster"
FORM = re.compile(r"(?P<vc>[^.=+\s]+)\.(?P<key>\w+)\s*(?P<sign>\+=|-=|=)\s*(?P<value>.+)")


class Change(NamedTuple):
    """One change. `sign` is `+=`, `-=` or `=`."""

    vc: str
    key: str
    sign: str
    value: str


class WhatIf(NamedTuple):
    """A changed cluster, the policies that are others now, and every change in words."""

    cluster: Cluster
    policies: dict[str, Choice]
    changes: tuple[str, ...]


def parse(text: str, cluster: Cluster) -> list[Change]:
    """Return the changes that a text asks for.

    Args:
        text: The changes, with semicolons between them.
        cluster: The cluster that is to be changed.

    Raises:
        WrongError: The text is no change, or the cluster has nothing of that name.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = FORM.fullmatch(part)
        if match is None:
            reason = f"--what-if {part!r}: write VC.nodes+=2, VC.policy=NAME or VC.weight=2"
            raise WrongError(reason)
        change = Change(match["vc"], match["key"], match["sign"], match["value"].strip())
        _check(change, cluster)
        found.append(change)
    if not found:
        reason = "--what-if: nothing is to change"
        raise WrongError(reason)
    return found


def _check(change: Change, cluster: Cluster) -> None:
    vcs, keys = [*cluster.vcs, EVERYTHING], list(KEYS)
    if change.vc not in vcs:
        reason = f"--what-if: no VC is called {change.vc!r}{like(change.vc, vcs)}"
        raise WrongError(reason)
    if change.vc == EVERYTHING and EVERYTHING not in cluster.vcs:
        keys = ["nodes", "policy"]
    if change.key not in keys:
        reason = f"--what-if: {change.vc} has no key {change.key!r}{like(change.key, keys)}"
        raise WrongError(reason)
    whole = change.value.isdecimal() and int(change.value) > 0
    if change.key == "nodes" and (change.sign == "=" or not whole):
        reason = f"--what-if {change.vc}.nodes: write += or -= and a number of nodes"
        raise WrongError(reason)
    if change.key != "nodes" and change.sign != "=":
        reason = f"--what-if {change.vc}.{change.key}: write = and what it is to be"
        raise WrongError(reason)


def apply(changes: Sequence[Change], cluster: Cluster) -> WhatIf:
    """Return what a cluster becomes.

    Args:
        changes: The changes; nodes are taken away before any are given.
        cluster: The cluster as it is.

    Raises:
        WrongError: The cluster cannot become that.
    """
    cluster = resolve(cluster, ())
    policies: dict[str, Choice] = {}
    words = []
    for change in sorted(changes, key=_taken_first):
        vcs = list(cluster.vcs) if change.vc == EVERYTHING else [change.vc]
        if change.key == "nodes":
            cluster, text = _nodes(cluster, change)
        elif change.key == "policy":
            policies |= dict.fromkeys(vcs, policy(change.value))
            text = f"{change.vc} is scheduled by {change.value}"
        else:
            cluster, text = _weight(cluster, change)
        words.append(text)
    problems = cluster_problems(cluster)
    if problems:
        reason = f"--what-if: that cluster would not do: {problems[0].path}: {problems[0].text}"
        raise WrongError(reason)
    return WhatIf(cluster, policies, tuple(words))


def _taken_first(change: Change) -> bool:
    return change.sign != "-="


def _weight(cluster: Cluster, change: Change) -> tuple[Cluster, str]:
    try:
        weight = float(change.value)
    except ValueError:
        weight = 0.0
    if not weight > 0:
        reason = f"--what-if {change.vc}.weight: write a number above 0, not {change.value!r}"
        raise WrongError(reason)
    vc = msgspec.structs.replace(cluster.vcs[change.vc], weight=weight)
    return _with_vc(cluster, change.vc, vc), f"{change.vc} has the weight {weight:g}"


# --- nodes ----------------------------------------------------------------------------------------


def _nodes(cluster: Cluster, change: Change) -> tuple[Cluster, str]:
    count = int(change.value)
    if change.vc == EVERYTHING and EVERYTHING not in cluster.vcs:
        name = _only_chain(cluster, "cluster")
        if change.sign == "+=":
            return _grow(cluster, name, count), f"{_nodes_text(count)} more in {name}, nobody's"
        return _shrink(cluster, name, count), f"{_nodes_text(count)} of {name} taken away"
    vc = cluster.vcs[change.vc]
    name = _chain_of(cluster, change.vc)
    chain = cluster.chains[name]
    if change.sign == "-=":
        cells = _fewer(vc, change.vc, name, chain, count)
        text = f"{change.vc} gives up {_nodes_text(count)} of {name}, which stay and are nobody's"
        return _with_vc(cluster, change.vc, msgspec.structs.replace(vc, cells=cells)), text
    spare = min(count, _spare(cluster, name))
    if count > spare:
        cluster = _grow(cluster, name, count - spare)
    cells = _more(vc, name, chain.node_level, count)
    text = f"{change.vc} gets {_nodes_text(count)} of {name}: {spare} spare, {count - spare} new"
    return _with_vc(cluster, change.vc, msgspec.structs.replace(vc, cells=cells)), text


def _nodes_text(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _with_vc(cluster: Cluster, name: str, vc: VirtualCluster) -> Cluster:
    return msgspec.structs.replace(cluster, vcs={**cluster.vcs, name: vc})


def _chain_of(cluster: Cluster, vc: str) -> str:
    """Return the chain of most of a VC's GPUs; the only one there is, if it has none."""
    gpus: dict[str, int] = {}
    for each in cluster.vcs[vc].cells:
        chain = cluster.chains[each.chain]
        gpus[each.chain] = gpus.get(each.chain, 0) + each.count * _gpus(chain, each.level)
    return max(gpus, key=gpus.__getitem__) if gpus else _only_chain(cluster, vc)


def _only_chain(cluster: Cluster, what: str) -> str:
    if len(cluster.chains) > 1:
        reason = f"--what-if {what}.nodes: of which chain? There are {', '.join(cluster.chains)}"
        raise WrongError(reason)
    return next(iter(cluster.chains))


def _gpus(chain: Chain, level: str) -> int:
    size = 1
    for name, each in zip(level_names(chain)[1:], chain.levels, strict=True):
        if level == chain.leaf:
            break
        size *= each.fanout
        if name == level:
            break
    return size


def _spare(cluster: Cluster, name: str) -> int:
    """Return how many nodes of a chain no VC owns, as far as whole ones are left."""
    chain = cluster.chains[name]
    node = gpus_per_node(chain)
    quotas = [each for vc in cluster.vcs.values() for each in vc.cells if each.chain == name]
    owned = sum(each.count * _gpus(chain, each.level) for each in quotas)
    owned += sum(_gpus(chain, pin.level) for pin in cluster.pins.values() if pin.chain == name)
    return max(0, (len(chain.nodes) * node - owned) // node)


def _grow(cluster: Cluster, name: str, count: int) -> Cluster:
    """Add nodes to a chain, whole top cells of them: what is more than asked for is no VC's."""
    chain = cluster.chains[name]
    top = _gpus(chain, level_names(chain)[-1]) // gpus_per_node(chain)
    count = -(-count // top) * top
    taken = {cell.node for each in cluster.chains.values() for cell in each.nodes}
    unused = (new for number in counting(1) if (new := f"{name}-new-{number}") not in taken)
    made = tuple(NodeCell(node=new) for new in islice(unused, count))
    grown = msgspec.structs.replace(chain, nodes=(*chain.nodes, *made))
    return msgspec.structs.replace(cluster, chains={**cluster.chains, name: grown})


def _shrink(cluster: Cluster, name: str, count: int) -> Cluster:
    chain = cluster.chains[name]
    top = _gpus(chain, level_names(chain)[-1]) // gpus_per_node(chain)
    count = -(-count // top) * top
    if count > _spare(cluster, name) or cluster.pins:
        reason = (
            f"--what-if cluster.nodes-={count}: {_spare(cluster, name)} of {name} are nobody's; "
            "take them from a VC first (VC.nodes-=N)"
        )
        raise WrongError(reason)
    shrunk = msgspec.structs.replace(chain, nodes=chain.nodes[:-count])
    return msgspec.structs.replace(cluster, chains={**cluster.chains, name: shrunk})


def _more(vc: VirtualCluster, chain: str, level: str, count: int) -> tuple[Quota, ...]:
    cells = list(vc.cells)
    for place, each in enumerate(cells):
        if (each.chain, each.level) == (chain, level):
            cells[place] = msgspec.structs.replace(each, count=each.count + count)
            return tuple(cells)
    return (*cells, Quota(chain=chain, level=level, count=count))


def _fewer(
    vc: VirtualCluster, name: str, chain_name: str, chain: Chain, count: int
) -> tuple[Quota, ...]:
    cells = []
    had = 0
    for each in vc.cells:
        if (each.chain, each.level) == (chain_name, chain.node_level):
            had = each.count
            if had > count:
                cells.append(msgspec.structs.replace(each, count=had - count))
        else:
            cells.append(each)
    if had < count:
        reason = f"--what-if {name}.nodes-={count}: {name} owns {_nodes_text(had)} as whole cells"
        raise WrongError(reason)
    return tuple(cells)
