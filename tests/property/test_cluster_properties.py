"""Feasibility is what trying finds, files are read back, and shares of GPUs are always there."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skep.cells import hostlist
from skep.cells.clustercheck import cluster_problems, is_name
from skep.cells.clusterfile import parse_cluster
from skep.cells.clustertext import to_yaml
from skep.cells.feasible import shortages, stocks
from skep.cells.levels import cells_by_level, gpus_by_level, level_names
from skep.cells.propose import propose, resolve
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.node import Gpu, NodeJoined
from skep_services.cli import specs
from tests.effort import examples

GPUS_TRIED_MAX = 12

Cell = tuple[int, int]
"""Level and index."""


# --- feasibility against trying -------------------------------------------------------------------


@st.composite
def small(draw: st.DrawFn) -> Cluster:
    """One chain of at most twelve GPUs, pinned cells that do not overlap, any quota."""
    fanouts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    sizes = list(accumulate(fanouts, mul, initial=1))
    tops = draw(st.integers(1, max(1, GPUS_TRIED_MAX // sizes[-1])))
    # With one GPU per node every level is one of nodes: how many there are is free.
    chain = Chain(
        gpu="g",
        levels=(
            Level(name="node", fanout=1),
            *(Level(name=f"l{at}", fanout=fanout) for at, fanout in enumerate(fanouts)),
        ),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{at}") for at in range(tops * sizes[-1])),
    )
    counts, spans = cells_by_level(chain), gpus_by_level(chain)
    pins: list[Cell] = []
    covered = 0
    for _ in range(draw(st.integers(0, 3))):
        level = draw(st.integers(0, len(counts) - 1))
        index = draw(st.integers(0, counts[level] - 1))
        mask = mask_of((level, index), spans)
        if not mask & covered:
            covered |= mask
            pins.append((level, index))
    names = level_names(chain)
    # Quotas up to a little more than there is, at a few levels.
    chosen = draw(st.lists(st.integers(0, len(counts) - 1), max_size=3, unique=True))
    quotas = tuple(
        Quota(chain="c", level=names[level], count=draw(st.integers(1, counts[level] + 1)))
        for level in chosen
    )
    owned = draw(st.integers(0, len(pins)))
    return Cluster(
        chains={"c": chain},
        pins={
            f"p{at}": Pin(chain="c", level=names[level], index=index)
            for at, (level, index) in enumerate(pins)
        },
        vcs={"a": VirtualCluster(cells=quotas, pinned=tuple(f"p{at}" for at in range(owned)))},
    )


def mask_of(cell: Cell, spans: tuple[int, ...]) -> int:
    level, index = cell
    return ((1 << spans[level]) - 1) << (index * spans[level])


def placed(chain: Chain, wanted: list[int], covered: int, first: int = 0) -> bool:
    """Return whether cells of these levels, in descending order, fit beside what is covered."""
    if not wanted:
        return True
    level, rest = wanted[0], wanted[1:]
    spans = gpus_by_level(chain)
    for index in range(first, cells_by_level(chain)[level]):
        mask = mask_of((level, index), spans)
        if not mask & covered:
            follow = index + 1 if rest and rest[0] == level else 0
            if placed(chain, rest, covered | mask, follow):
                return True
    return False


def tried(cluster: Cluster, counts: dict[str, int]) -> bool:
    """Return whether so many cells of each level can be had beside the owned pinned cells."""
    chain = cluster.chains["c"]
    names, spans = level_names(chain), gpus_by_level(chain)
    covered = 0
    for name in cluster.vcs["a"].pinned:
        pin = cluster.pins[name]
        covered |= mask_of((names.index(pin.level), pin.index), spans)
    wanted = sorted((names.index(level) for level, n in counts.items() for _ in range(n)))
    total = sum(spans[level] for level in wanted)
    if total > len(chain.nodes) - covered.bit_count():
        return False
    return placed(chain, wanted[::-1], covered)


@settings(max_examples=examples(600), deadline=None)
@given(small())
def test_feasibility_is_what_trying_finds(cluster: Cluster) -> None:
    counts = {quota.level: quota.count for quota in cluster.vcs["a"].cells}
    shorts = list(shortages(cluster))
    assert tried(cluster, counts) == (not shorts)
    assert (cluster_problems(cluster) == []) == (not shorts)
    # What is told to be short is enough to take away, and not too much.
    fitting = {**counts, **{short.level: short.there for short in shorts}}
    assert tried(cluster, fitting)
    if shorts:
        names = level_names(cluster.chains["c"])
        above = {
            level: count
            for level, count in counts.items()
            if names.index(level) >= names.index(shorts[0].level)
        }
        assert not tried(cluster, {**above, shorts[0].level: shorts[0].there + 1})


@settings(max_examples=examples(300), deadline=None)
@given(small())
def test_what_is_left_of_each_level_can_be_taken_and_no_more(cluster: Cluster) -> None:
    if next(shortages(cluster), None) is not None:
        return
    counts = {quota.level: quota.count for quota in cluster.vcs["a"].cells}
    stock = stocks(cluster)["c"]
    for level, name in enumerate(level_names(cluster.chains["c"])):
        usable = stock.usable(level)
        assert tried(cluster, {**counts, name: counts.get(name, 0) + usable})
        assert not tried(cluster, {**counts, name: counts.get(name, 0) + usable + 1})


# --- files ----------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(
        ["node", "yes", "1e3", "2024-01-01", "~", "<<", "0x1F", "a: b", "#a", "3-V100"]
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
).filter(lambda name: is_name(name) and not name.isdecimal())
HOSTS = st.one_of(
    st.builds(
        lambda stem, at: f"{stem}{at}",
        st.sampled_from(["a", "b-", "10.0.0.", ""]),
        st.integers(0, 40),
    ),
    st.builds(lambda at: f"n{at:03}", st.integers(0, 120)),
    st.from_regex(hostlist.NODE_NAME, fullmatch=True).map(lambda name: name[:20]),
)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Any chain without problems, with names for some of its cells."""
    depth = draw(st.integers(1, 4))
    titles = draw(st.lists(NAMES, min_size=depth + 1, max_size=depth + 1, unique=True))
    fanouts = draw(st.lists(st.integers(1, 3), min_size=depth, max_size=depth))
    node = draw(st.integers(0, depth - 1))
    leaf, titles = (titles[0], titles[1:]) if draw(st.booleans()) else ("gpu", titles[1:])
    if leaf in titles:
        leaf = "one GPU of the chain"
    levels = tuple(Level(name=n, fanout=f) for n, f in zip(titles, fanouts, strict=True))
    per_top, per_node = 1, 1
    for fanout in fanouts[node + 1 :]:
        per_top *= fanout
    for fanout in fanouts[: node + 1]:
        per_node *= fanout
    count = per_top * draw(st.integers(1, 3))
    hosts = draw(st.lists(HOSTS, min_size=count, max_size=count, unique=True))
    if draw(st.booleans()):
        hosts.sort(key=hostlist.natural)
    devices = st.one_of(st.just(()), st.permutations(range(per_node)).map(tuple))
    names: dict[str, str] = {}
    lowest = draw(st.integers(node + 1, depth))
    full = draw(st.booleans())
    for level in range(lowest, depth):
        cells = count // per_top * (per_top if level < depth - 1 else 1)
        span = 1
        for fanout in fanouts[node + 1 : level + 1]:
            span *= fanout
        cells = count // span
        given_names = draw(st.lists(NAMES, min_size=cells, max_size=cells, unique=True))
        for at, called in enumerate(given_names):
            if full or draw(st.booleans()):
                names[f"{titles[level]}/{at}"] = called
    return Chain(
        gpu=draw(NAMES),
        leaf=leaf,
        levels=levels,
        node_level=titles[node],
        nodes=tuple(NodeCell(node=host, devices=plain(draw(devices), per_node)) for host in hosts),
        names=names,
    )


def plain(devices: tuple[int, ...], count: int) -> tuple[int, ...]:
    return () if devices == tuple(range(count)) else devices


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Chains on nodes of their own, a pinned cell or two, and quotas that fit."""
    titles = draw(st.lists(NAMES, min_size=1, max_size=2, unique=True))
    made = {title: draw(chains()) for title in titles}
    if len(made) == 2 and {cell.node for cell in made[titles[0]].nodes} & {
        cell.node for cell in made[titles[1]].nodes
    }:
        del made[titles[1]]
    pins: dict[str, Pin] = {}
    for title, chain in made.items():
        names = level_names(chain)
        level = draw(st.integers(0, len(names) - 1))
        index = draw(st.integers(0, cells_by_level(chain)[level] - 1))
        if draw(st.booleans()):
            pins[draw(NAMES.filter(lambda name: name not in pins))] = Pin(
                chain=title, level=names[level], index=index
            )
    vcs = {"a": VirtualCluster(pinned=tuple(pins)), "b-2": VirtualCluster(gpus=0)}
    cluster = Cluster(chains=made, pins=pins, vcs=vcs)
    for title, stock in stocks(cluster).items():
        for level in range(stock.top, -1, -1):
            count = draw(st.integers(0, max(0, stock.usable(level))))
            stock.taken[level] += count
            if count:
                cells = cluster.vcs["a"].cells
                quota = Quota(chain=title, level=level_names(made[title])[level], count=count)
                vcs["a"] = VirtualCluster(
                    cells=(*cells, quota),
                    pinned=tuple(pins),
                    weight=draw(st.floats(0.001, 1000)),
                    jobs_max=draw(st.integers(0, 10**6)),
                )
                cluster = Cluster(chains=made, pins=pins, vcs=vcs)
    return cluster


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
@given(clusters(), st.booleans())
def test_every_cluster_is_read_back_from_its_text(cluster: Cluster, explain: bool) -> None:
    assert cluster_problems(cluster) == []
    text = to_yaml(cluster, explain=explain)
    (document,) = specs.parse(text, "test.yaml")
    assert parse_cluster(document.tree) == cluster, text


@given(st.lists(HOSTS, max_size=30))
def test_host_lists_expand_to_what_was_compressed(names: list[str]) -> None:
    lists = hostlist.compress(names)
    assert len(lists) <= len(names)
    assert [name for each in lists for name in hostlist.expand(each, 1000)] == names


# --- the shorthand --------------------------------------------------------------------------------


def node(name: str, kind: tuple[str, int]) -> NodeJoined:
    gpus = tuple(Gpu(index=at, type=kind[0]) for at in range(kind[1]))
    return NodeJoined(
        node=name,
        identity=name,
        incarnation=1,
        address="",
        ports=(1, 1),
        gpus=gpus,
        cpus=1,
        memory=1,
    )


KINDS = st.sampled_from([("v100", 8), ("v100", 4), ("k80", 6), ("k80", 1)])


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(KINDS, max_size=8),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 24), max_size=4),
)
def test_shares_are_there_fair_and_final(
    kinds: list[tuple[str, int]], want: dict[str, int]
) -> None:
    inventory = [node(f"n{at}", kind) for at, kind in enumerate(kinds)]
    cluster = Cluster(vcs={name: VirtualCluster(gpus=gpus) for name, gpus in want.items()})
    resolved = resolve(cluster, inventory)
    assert cluster_problems(resolved) == []
    assert resolve(resolved, inventory) == resolved
    got = {}
    for name, vc in resolved.vcs.items():
        got[name] = 0
        for quota in vc.cells:
            chain = resolved.chains[quota.chain]
            size = gpus_by_level(chain)[level_names(chain).index(quota.level)]
            got[name] += quota.count * size
    there = sum(count for _, count in kinds)
    assert sum(got.values()) == min(there, sum(want.values()))
    for name, gpus in got.items():
        assert gpus <= want[name]
        # Whoever is cut has as much as anybody else, up to the GPU that does not divide.
        assert gpus == want[name] or gpus >= max(got.values()) - 1
    assert cluster_problems(propose(inventory)) == []


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(KINDS, max_size=8), st.lists(st.integers(1, 16), max_size=4), KINDS)
def test_a_further_node_changes_nothing_that_is_whole(
    kinds: list[tuple[str, int]], want: list[int], further: tuple[str, int]
) -> None:
    inventory = [node(f"n{at}", kind) for at, kind in enumerate(kinds)]
    cluster = Cluster(vcs={f"v{at}": VirtualCluster(gpus=gpus) for at, gpus in enumerate(want)})
    before = resolve(cluster, inventory)
    if any(not whole(before, name, cluster.vcs[name].gpus) for name in cluster.vcs):
        return
    assert resolve(cluster, [*inventory, node("further", further)]).vcs == before.vcs


def whole(cluster: Cluster, vc: str, gpus: int) -> bool:
    """Return whether a virtual cluster has its GPUs in one chain, in the fewest cells."""
    cells = cluster.vcs[vc].cells
    if len({quota.chain for quota in cells}) != 1:
        return False
    chain = cluster.chains[cells[0].chain]
    fewest: dict[str, int] = {}
    for level, size in reversed(list(zip(level_names(chain), gpus_by_level(chain), strict=True))):
        count, gpus = divmod(gpus, size)
        if count:
            fewest[level] = count
    return {quota.level: quota.count for quota in cells} == fewest
