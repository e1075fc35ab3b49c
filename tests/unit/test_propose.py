"""What is proposed of the nodes that joined, and cells in place of a number of GPUs."""

from __future__ import annotations

import yaml

from skep.cells.clustercheck import cluster_problems
from skep.cells.clusterfile import parse_cluster
from skep.cells.clustertext import to_yaml
from skep.cells.propose import propose, resolve
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.node import Gpu, NodeJoined


def joined(node: str, gpus: int, kind: str = "v100", first: int = 0) -> NodeJoined:
    return made(node, [(first + at, kind) for at in range(gpus)])


def made(node: str, gpus: list[tuple[int, str]]) -> NodeJoined:
    return NodeJoined(
        node=node,
        identity=node,
        incarnation=1,
        address="127.0.0.1",
        ports=(1, 2),
        gpus=tuple(Gpu(index=index, type=kind) for index, kind in gpus),
        cpus=1,
        memory=1,
    )


def levels(chain: Chain) -> dict[str, int]:
    return {level.name: level.fanout for level in chain.levels}


def owned(cluster: Cluster, vc: str) -> dict[str, int]:
    return {f"{one.chain}/{one.level}": one.count for one in cluster.vcs[vc].cells}


def quotas(**gpus: int) -> Cluster:
    return Cluster(vcs={name: VirtualCluster(gpus=count) for name, count in gpus.items()})


# --- propose --------------------------------------------------------------------------------------


def test_one_chain_for_each_kind_of_node() -> None:
    nodes = [
        joined("a10", 8),
        joined("a2", 8),
        made("b", [(3, "k80"), (0, "v100"), (1, "v100"), (2, "k80"), (4, "k80"), (5, "k80")]),
        joined("none", 0),
    ]
    cluster = propose(nodes)
    assert {name: levels(chain) for name, chain in cluster.chains.items()} == {
        "v100x8": {"pair": 2, "quad": 2, "node": 2},
        "v100x2": {"node": 2},
        "k80x4": {"pair": 2, "node": 2},
    }
    assert [cell.node for cell in cluster.chains["v100x8"].nodes] == ["a2", "a10"]
    assert cluster.chains["v100x2"].nodes == (NodeCell(node="b"),)
    assert cluster.chains["k80x4"].nodes == (NodeCell(node="b", devices=(2, 3, 4, 5)),)
    assert cluster_problems(cluster) == []


def test_levels_double_where_that_comes_out_even() -> None:
    for gpus, wanted in [
        (1, {"node": 1}),
        (3, {"node": 3}),
        (6, {"node": 6}),
        (16, {"pair": 2, "quad": 2, "octet": 2, "node": 2}),
        (64, {"pair": 2, "quad": 2, "octet": 2, "sixteen": 2, "node": 4}),
    ]:
        (chain,) = propose([joined("a", gpus)]).chains.values()
        assert levels(chain) == wanted


def test_types_keep_their_names_and_chains_get_names_of_their_own() -> None:
    cluster = propose(
        [joined("a", 1, "A100 80GB"), joined("b", 1, "A100/80GB"), joined("c", 1, "")]
    )
    assert {name: chain.gpu for name, chain in cluster.chains.items()} == {
        "A100-80GBx1": "A100 80GB",
        "A100-80GBx1-2": "A100/80GB",
        "gpux1": "",
    }


def test_the_proposal_explains_itself_and_is_read_back() -> None:
    cluster = propose([joined("7", 8), joined("a", 4, "k80")])
    text = to_yaml(cluster, explain=True)
    assert "a pair is 2 GPUs" in text
    assert "research: {cells: {v100x8/node: 1}, weight: 2}" in text
    assert parse_cluster(yaml.safe_load(text)) == cluster
    assert "chains" not in to_yaml(propose([]), explain=True).split("version: 1")[1]


# --- resolve --------------------------------------------------------------------------------------


def test_the_largest_cells_that_make_it_up() -> None:
    nodes = [joined(f"n{at}", 8) for at in range(3)]
    cluster = resolve(quotas(a=15, b=4, c=0), nodes)
    assert owned(cluster, "a") == {
        "v100x8/node": 1,
        "v100x8/quad": 1,
        "v100x8/pair": 1,
        "v100x8/gpu": 1,
    }
    assert owned(cluster, "b") == {"v100x8/quad": 1}
    assert owned(cluster, "c") == {}
    assert [vc.gpus for vc in cluster.vcs.values()] == [0, 0, 0]
    assert cluster_problems(cluster) == []
    assert resolve(cluster, nodes) == cluster


def test_a_further_node_changes_nothing_once_all_is_there() -> None:
    nodes = [joined("n0", 8), joined("n1", 4, "k80"), joined("n2", 8), joined("n3", 4, "k80")]
    before = resolve(quotas(a=12, b=4, c=4), nodes)
    assert owned(before, "a") == {"v100x8/node": 1, "v100x8/quad": 1}
    assert owned(before, "b") == {"k80x4/node": 1}
    assert owned(before, "c") == {"v100x8/quad": 1}
    for further in ([joined("m", 8)], [joined("m", 4, "k80")], [joined("m", 16, "h100")]):
        assert resolve(quotas(a=12, b=4, c=4), nodes + further).vcs == before.vcs


def test_what_is_too_little_is_shared_fairly() -> None:
    assert resolve(quotas(a=8, b=4), []).vcs["a"].cells == ()
    cluster = resolve(quotas(a=8, b=2, c=8), [joined("n0", 8)])
    assert owned(cluster, "b") == {"v100x8/pair": 1}
    assert owned(cluster, "a") == owned(cluster, "c") == {"v100x8/pair": 1, "v100x8/gpu": 1}
    assert cluster_problems(cluster) == []
    cluster = resolve(quotas(a=8, b=2, c=8), [joined(f"n{at}", 8) for at in range(3)])
    assert owned(cluster, "a") == owned(cluster, "c") == {"v100x8/node": 1}
    assert owned(cluster, "b") == {"v100x8/pair": 1}


def test_gpus_come_from_several_chains_only_where_no_single_one_has_them() -> None:
    nodes = [joined("n0", 4), joined("n1", 8, "k80")]
    assert owned(resolve(quotas(a=6), nodes), "a") == {"k80x8/quad": 1, "k80x8/pair": 1}
    assert owned(resolve(quotas(a=10), nodes), "a") == {
        "v100x4/node": 1,
        "k80x8/quad": 1,
        "k80x8/pair": 1,
    }


def test_smaller_cells_are_given_where_pinned_ones_split_the_larger() -> None:
    (chain,) = propose([joined("n", 4)]).chains.values()
    cluster = Cluster(
        chains={"c": chain},
        pins={at: Pin(chain="c", level="gpu", index=int(at)) for at in ("0", "2")},
        vcs={"a": VirtualCluster(pinned=("0", "2")), "b": VirtualCluster(gpus=2)},
    )
    assert owned(resolve(cluster, []), "b") == {"c/gpu": 2}


def test_in_chains_that_are_described_cells_and_pins_come_first() -> None:
    chain = Chain(
        gpu="v100",
        levels=(Level(name="node", fanout=4), Level(name="rack", fanout=2)),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{at}") for at in range(4)),
    )
    cluster = Cluster(
        chains={"v100": chain},
        pins={"p": Pin(chain="v100", level="gpu", index=0)},
        vcs={
            "a": VirtualCluster(
                cells=(Quota(chain="v100", level="node", count=1),), pinned=("p",), gpus=1
            ),
            "b": VirtualCluster(gpus=8),
        },
    )
    resolved = resolve(cluster, [joined("n3", 4)])
    assert owned(resolved, "a") == {"v100/node": 1, "v100/gpu": 1}
    assert owned(resolved, "b") == {"v100/rack": 1}
    assert cluster_problems(resolved) == []
    assert resolve(cluster, []) == resolved
