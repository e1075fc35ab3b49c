"""Write a cluster as the text of a cluster file; `parse_cluster` reads it as the same cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from skep.cells.hostlist import compress
from skep.cells.levels import cells_by_level, gpus_by_level, gpus_per_node, level_names
from skep.wire.cluster import FIFO, JOBS_MAX, Chain, Cluster, Pin, QuarantineRule, VirtualCluster
from skep.wire.volumes import Volume

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
PLAIN_HOSTS = re.compile(r"[A-Za-z][A-Za-z0-9_.\-,\[\]]*")
NUMERIC = re.compile(r"[0-9a-fA-FxXoOtTzZ_.-]*")
"""What YAML might read as a number or a date, and some more."""
WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")

HEAD = (
    # tidy: allow word because tenants own the parts
    "# A cluster of Skep's: what it consists of, and person owns which part of it.\n"
    "# `skep cluster check FILE` names every mistake in it.\n"
)
LEVELS_NOTE = """\
    # From the lowest level up, each made of so many of the level below: a {first} is {count} GPUs.
    # Write what the hardware is, and add levels above `{node}` (rack: 4) to own and ask for racks.
"""
NODES_NOTE = """\
    # In the order of the tree: the first so many nodes make up the first top cell.
    # GPUs of a node are 0, 1, ... in the order of the tree unless `devices` says otherwise:
    #   devices: {{{node}: [0, 2, 1, 3]}}
"""
VCS_NOTE = (
    # tidy: allow word because tenants own the cells
    "# Who owns what. Cells are guaranteed with their shape; what is idle is shared by `weight`:\n"
    """\
#   vcs:
#     research: {{cells: {{{cell}: 1}}, weight: 2}}
#     production: {{gpus: 4}}          # that many, in the largest cells that make it up
# A particular cell is owned by a name given to it:
#   pinned: {{mine: {pin}}}
#   vcs:
#     research: {{pinned: [mine]}}
"""
)


def to_yaml(cluster: Cluster, *, explain: bool = False) -> str:
    """Return a cluster as the text of a cluster file.

    Args:
        cluster: The cluster.
        explain: Whether comments say what to write.
    """
    lines = [HEAD] if explain else []
    lines.append("version: 1\n")
    if cluster.chains:
        lines.append("\nchains:\n")
    for number, (name, chain) in enumerate(cluster.chains.items()):
        lines += _chain(name, chain, explain=explain and number == 0)
    if cluster.pins:
        lines.append("\npinned:\n")
        lines += [
            f"  {_quoted(name)}: {_quoted(cell_path(cluster.chains[pin.chain], pin))}\n"
            for name, pin in cluster.pins.items()
        ]
    if explain and cluster.chains:
        chain_name, chain = next(iter(cluster.chains.items()))
        cell = f"{chain_name}/{chain.node_level}"
        lines.append("\n" + VCS_NOTE.format(cell=cell, pin=f"{cell}/{chain.nodes[0].node}"))
    if cluster.vcs:
        lines.append("\nvcs:\n")
        for name, vc in cluster.vcs.items():
            lines += _vc(name, vc)
    if cluster.quarantine != QuarantineRule():
        lines.append(_quarantine(cluster.quarantine))
    if cluster.volumes:
        lines.append("\nvolumes:\n")
        lines += [f"  {_quoted(name)}: {_volume(one)}\n" for name, one in cluster.volumes.items()]
    return "".join(lines)


def _volume(one: Volume) -> str:
    given = {"path": one.path, "nfs": one.nfs, "s3": one.s3, "mount": one.mount}
    parts = [f"{key}: {_quoted(text)}" for key, text in given.items() if text]
    parts.append(f"mode: {one.mode}")
    if one.vcs:
        vcs = ", ".join(f"{_quoted(vc)}: {mode}" for vc, mode in one.vcs.items())
        parts.append(f"vcs: {{{vcs}}}")
    return f"{{{', '.join(parts)}}}"


def _quarantine(rule: QuarantineRule) -> str:
    numbers = f"jobs: {rule.jobs}, within: {rule.within}, window: {rule.window}"
    signs = f"share: {rule.share!r}, signs: [{', '.join(rule.signs)}]"
    acts = "true" if rule.quarantine_slow else "false"
    slow = f"slow: {rule.slow}, quarantine_slow: {acts}"
    return f"\nquarantine: {{{numbers}, {signs}, {slow}}}\n"


def cell_path(chain: Chain, pin: Pin) -> str:
    """Return a cell in readable form: `v100/rack/r1`, `v100/node/a-1`, `v100/socket/a-1/0`.

    Args:
        chain: The chain of the cell.
        pin: The cell.
    """
    levels = level_names(chain)
    level, node = levels.index(pin.level), levels.index(chain.node_level)
    called = chain.names.get(f"{pin.level}/{pin.index}", str(pin.index))
    if level <= node:
        inside = gpus_per_node(chain) // gpus_by_level(chain)[level]
        cell = chain.nodes[pin.index // inside]
        place = pin.index % inside
        if level == 0 and cell.devices:
            place = cell.devices[place]
        called = cell.node if level == node else f"{cell.node}/{place}"
        if level == node and cell.node.isdecimal():
            called = str(pin.index)
    return f"{pin.chain}/{pin.level}/{called}"


# --- chains ---------------------------------------------------------------------------------------


def _chain(name: str, chain: Chain, *, explain: bool) -> Iterator[str]:
    yield f"  {_quoted(name)}:\n"
    yield f"    gpu: {_quoted(chain.gpu)}\n"
    if chain.leaf != "gpu":
        yield f"    leaf: {_quoted(chain.leaf)}\n"
    if explain:
        first = chain.levels[0]
        yield LEVELS_NOTE.format(first=first.name, count=first.fanout, node=chain.node_level)
    levels = ", ".join(f"{_quoted(level.name)}: {level.fanout}" for level in chain.levels)
    yield f"    levels: {{{levels}}}\n"
    if chain.node_level != "node":
        yield f"    node: {_quoted(chain.node_level)}\n"
    if explain:
        yield NODES_NOTE.format(node=chain.nodes[0].node)
    nodes = [cell.node for cell in chain.nodes]
    lowest = _lowest_named(chain)
    if lowest is None:
        yield from _hosts("    nodes:", compress(nodes), 6)
        if chain.names:
            yield "    names:\n"
            for cell, called in chain.names.items():
                yield f"      {_quoted(cell)}: {_quoted(called)}\n"
    else:
        yield "    cells:\n"
        yield from _cells(chain, nodes, len(chain.levels), lowest, (0, len(nodes)), 6)
    yield from _devices(chain)


def _lowest_named(chain: Chain) -> int | None:
    """Return the lowest level with names if every cell from there up has one, else None."""
    levels = level_names(chain)
    counts = cells_by_level(chain)
    named = [
        level
        for level in range(levels.index(chain.node_level) + 1, len(levels))
        if any(cell.rpartition("/")[0] == levels[level] for cell in chain.names)
    ]
    if not named:
        return None
    lowest = named[0]
    full = all(
        f"{levels[level]}/{at}" in chain.names
        for level in range(lowest, len(levels))
        for at in range(counts[level])
    )
    return lowest if full else None


def _cells(
    chain: Chain, nodes: list[str], level: int, lowest: int, span: tuple[int, int], indent: int
) -> Iterator[str]:
    """Yield the cells of a level among some of the nodes, by name."""
    per_cell = gpus_by_level(chain)[level] // gpus_per_node(chain)
    title = level_names(chain)[level]
    for start in range(*span, per_cell):
        head = f"{' ' * indent}{_quoted(chain.names[f'{title}/{start // per_cell}'])}:"
        if level == lowest:
            yield from _hosts(head, compress(nodes[start : start + per_cell]), indent + 2)
        else:
            yield f"{head}\n"
            yield from _cells(
                chain, nodes, level - 1, lowest, (start, start + per_cell), indent + 2
            )


def _hosts(head: str, lists: list[str], indent: int) -> Iterator[str]:
    if len(lists) == 1:
        yield f"{head} {_quoted(lists[0], PLAIN_HOSTS)}\n"
        return
    yield f"{head}\n"
    for hosts in lists:
        yield f"{' ' * indent}- {_quoted(hosts, PLAIN_HOSTS)}\n"


def _devices(chain: Chain) -> Iterator[str]:
    """Yield the GPU indices where they are not 0, 1, ...; nodes with the same ones together."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for cell in chain.nodes:
        if cell.devices:
            groups.setdefault(cell.devices, []).append(cell.node)
    if not groups:
        return
    first = next(iter(groups))
    if len(groups[first]) == len(chain.nodes):
        yield f"    devices: {list(first)}\n"
        return
    yield "    devices:\n"
    for devices, nodes in groups.items():
        for hosts in compress(nodes):
            yield f"      {_quoted(hosts, PLAIN_HOSTS)}: {list(devices)}\n"


# --- virtual clusters -----------------------------------------------------------------------------


def _vc(name: str, vc: VirtualCluster) -> Iterator[str]:
    """Yield a VC on one line; one with templates has a line for each part and template."""
    parts = _vc_parts(vc)
    if not vc.templates:
        yield f"  {_quoted(name)}: {{{', '.join(parts)}}}\n"
        return
    yield f"  {_quoted(name)}:\n"
    yield from (f"    {part}\n" for part in parts)
    yield "    templates:\n"
    for called, template in vc.templates.items():
        # JSON values are also YAML.
        told = {"spec": template.spec, "fixed": list(template.fixed), "about": template.about}
        given = {key: value for key, value in told.items() if value}
        yield f"      {_quoted(called)}: {json.dumps(given, ensure_ascii=False)}\n"


def _vc_parts(vc: VirtualCluster) -> list[str]:
    parts: list[str] = []
    if vc.cells:
        cells = ", ".join(
            f"{_quoted(f'{quota.chain}/{quota.level}')}: {quota.count}" for quota in vc.cells
        )
        parts.append(f"cells: {{{cells}}}")
    if vc.pinned:
        parts.append(f"pinned: [{', '.join(map(_quoted, vc.pinned))}]")
    if vc.gpus or not (vc.cells or vc.pinned):
        parts.append(f"gpus: {vc.gpus}")
    if vc.weight != 1.0:
        parts.append(f"weight: {int(vc.weight) if vc.weight == int(vc.weight) else vc.weight!r}")
    if vc.jobs_max != JOBS_MAX:
        parts.append(f"jobs_max: {vc.jobs_max}")
    if vc.priorities:
        limits = ", ".join(f"{role}: {most}" for role, most in vc.priorities.items())
        parts.append(f"priorities: {{{limits}}}")
    if vc.policy != FIFO or vc.options:
        parts.append(f"policy: {_policy(vc)}")
    parts += _people(vc)
    if vc.idle is not None:
        parts.append(f"idle: {{suspend_after: {vc.idle.suspend_after}s}}")
    return parts


def _people(vc: VirtualCluster) -> Iterator[str]:
    """Yield how a VC's people share, and what each may have."""
    fair, limits = vc.fair_share, vc.limits
    if fair is not None:
        weights = [f"{_quoted(person)}: {weight!r}" for person, weight in fair.weights.items()]
        rest = f", weights: {{{', '.join(weights)}}}" if weights else ""
        yield f"fair_share: {{half_life: {fair.half_life}s{rest}}}"
    if limits is not None:
        given = {key: getattr(limits, key) for key in ("running", "gpus", "queued")}
        text = ", ".join(f"{key}: {value}" for key, value in given.items() if value is not None)
        yield f"limits: {{person: {{{text}}}}}"


def _policy(vc: VirtualCluster) -> str:
    name = _quoted(vc.policy)
    if not vc.options:
        return name
    # JSON values are also YAML inside brackets.
    options = [f"{_quoted(key)}: {json.dumps(value)}" for key, value in vc.options.items()]
    return f"{{{', '.join([f'name: {name}', *options])}}}"


def _quoted(text: str, plain: re.Pattern[str] = PLAIN) -> str:
    """Return a text as YAML that is read as that text, in quotes only where they are needed.

    PLAIN_HOSTS is for block context alone: between brackets its brackets would mean lists.
    """
    if plain.fullmatch(text.replace("/", "")) and text[0] != "/" and text.lower() not in WORDS:
        number = NUMERIC.fullmatch(text) and not text[0].isalpha()
        return json.dumps(text, ensure_ascii=False) if number else text
    return json.dumps(text, ensure_ascii=False)
