"""The cluster file: what can be written, and every kind of mistake with its path and text."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
import yaml

from skep.cells import hostlist
from skep.cells.clustercheck import PROBLEMS_MAX, cluster_problems, cluster_remarks
from skep.cells.clusterfile import parse_cluster
from skep.cells.clustertext import to_yaml
from skep.policy import check
from skep.wire.cluster import (
    Chain,
    Cluster,
    Level,
    NodeCell,
    Pin,
    QuarantineRule,
    Quota,
    VirtualCluster,
)
from skep.wire.spec import Problem

GOOD = """
version: 1
chains:
  v100:
    gpu: v100
    levels: {switch: 2, socket: 2, node: 2, rack: 2}
    cells:
      r1: a-[1-2]
      r2: [b1, b2]
    devices:
      b1: [0, 2, 1, 3, 4, 6, 5, 7]
  k80:
    gpu: k80
    levels: {node: 2}
    nodes: b[1-3]
    devices: [8, 9]
pinned:
  big: v100/rack/r1
  half: v100/socket/b1/1
  one: k80/gpu/b3/9
vcs:
  nlp: {cells: {v100/socket: 1, rack: 0}, pinned: [big], weight: 2, jobs_max: 10}
  vision: {cells: {switch: 2, k80/node: 1}, pinned: [half]}
  rest: 3
"""


def good() -> Any:
    return yaml.safe_load(GOOD)


def read(tree: Any) -> Cluster:
    found = parse_cluster(tree)
    assert isinstance(found, Cluster), found
    return found


def problems(tree: Any) -> list[Problem]:
    found = parse_cluster(tree)
    assert isinstance(found, list), "nothing was found"
    return found


def test_everything_that_can_be_written() -> None:
    levels = tuple(Level(name=name, fanout=2) for name in ("switch", "socket", "node", "rack"))
    swapped = (0, 2, 1, 3, 4, 6, 5, 7)
    v100 = Chain(
        gpu="v100",
        levels=levels,
        node_level="node",
        nodes=(
            NodeCell(node="a-1"),
            NodeCell(node="a-2"),
            NodeCell(node="b1", devices=swapped),
            NodeCell(node="b2"),
        ),
        names={"rack/0": "r1", "rack/1": "r2"},
    )
    k80 = Chain(
        gpu="k80",
        levels=(Level(name="node", fanout=2),),
        node_level="node",
        nodes=tuple(NodeCell(node=f"b{at}", devices=(8, 9)) for at in (1, 2, 3)),
    )
    assert read(good()) == Cluster(
        chains={"v100": v100, "k80": k80},
        pins={
            "big": Pin(chain="v100", level="rack", index=0),
            "half": Pin(chain="v100", level="socket", index=5),
            "one": Pin(chain="k80", level="gpu", index=5),
        },
        vcs={
            "nlp": VirtualCluster(
                cells=(Quota(chain="v100", level="socket", count=1),),
                pinned=("big",),
                weight=2.0,
                jobs_max=10,
            ),
            "vision": VirtualCluster(
                cells=(
                    Quota(chain="v100", level="switch", count=2),
                    Quota(chain="k80", level="node", count=1),
                ),
                pinned=("half",),
            ),
            "rest": VirtualCluster(gpus=3),
        },
    )


def test_text_is_read_back_and_names_cells_as_people_do() -> None:
    text = to_yaml(read(good()))
    assert read(yaml.safe_load(text)) == read(good())
    for line in (
        "      r1: a-[1-2]",
        "      b1: [0, 2, 1, 3, 4, 6, 5, 7]",
        "    devices: [8, 9]",
        "  big: v100/rack/r1",
        "  half: v100/socket/b1/1",
        "  one: k80/gpu/b3/9",
        "  rest: {gpus: 3}",
    ):
        assert line in text.splitlines()
    assert read(yaml.safe_load(to_yaml(read(good()), explain=True))) == read(good())


def test_cells_nest_as_deep_as_there_are_levels() -> None:
    tree = {
        "chains": {
            "c": {
                "gpu": "g",
                "levels": {"node": 1, "rack": 2, "row": 2, "hall": 1},
                "cells": [{"east": {"r1": "a[1-2]", "r2": ["a3", "a4"]}}, [["b1,b2", "b[3-4]"]]],
                "names": {"row/1": "west"},
            }
        }
    }
    chain = read(tree).chains["c"]
    assert [cell.node for cell in chain.nodes] == ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"]
    assert chain.names == {"row/0": "east", "rack/0": "r1", "rack/1": "r2", "row/1": "west"}
    assert read(yaml.safe_load(to_yaml(read(tree)))) == read(tree)
    tree["chains"]["c"]["cells"] = {
        "h1": {"east": {"r1": "a[1-2]", "r2": "a[3-4]"}, "mid": {"r3": "b[1-2]", "r4": "b[3-4]"}},
        "h2": {"west": {"r5": "c[1-2]", "r6": "c[3-4]"}, "far": {"r7": "d[1-2]", "r8": "d[3-4]"}},
    }
    tree["chains"]["c"]["levels"] = {"node": 1, "rack": 2, "row": 2, "hall": 2}
    del tree["chains"]["c"]["names"]
    text = to_yaml(read(tree))
    assert "          r8: d[3-4]" in text
    assert read(yaml.safe_load(text)) == read(tree)


def test_a_pinned_cell_is_told_by_index_name_or_node() -> None:
    tree = good()
    tree["vcs"] = {}
    for told, index in [
        ("v100/rack/1", 1),
        ("v100/rack/r2", 1),
        ("v100/node/b1", 2),
        ("v100/node/3", 3),
        ("v100/switch/a-2/3", 7),
        ("v100/gpu/b1/2", 17),
        ("v100/gpu/31", 31),
    ]:
        tree["pinned"] = {"p": told}
        assert read(tree).pins["p"].index == index, told


def test_without_chains_there_are_gpus_only() -> None:
    assert read({"vcs": {"a": 6, "b": {"gpus": 2, "weight": 0.5}}}).vcs["a"].gpus == 6
    assert read({}) == Cluster()
    (found,) = problems({"vcs": {"a": {"cells": {"node": 1}}}})
    assert found.path == "$.vcs.a.cells.node"
    assert "give `gpus`" in found.suggestion
    (found,) = problems({"vcs": {"a": {"cells": {"v100/node": 1}}}})
    assert "give `gpus`" in found.suggestion


# --- mistakes -------------------------------------------------------------------------------------

V = "chains.v100"

MISTAKES: list[tuple[str, Any, str, str, str]] = [
    # where, what is put there, path of the problem, reason, part of text and suggestion
    ("version", 2, "$.version", "wrong-version", "use version 1"),
    ("chain", {}, "$.chain", "unknown-key", "did you mean `chains`?"),
    ("chains", [1], "$.chains", "wrong-type", "must be chains by name, not a list"),
    ("physicalCluster", {}, "$", "wrong-version", "skep cluster import"),
    (V, 3, "$.chains.v100", "wrong-type", "must be an object"),
    (f"{V}.level", {}, "$.chains.v100.level", "unknown-key", "did you mean `levels`?"),
    (f"{V}.gpu", None, "$.chains.v100.gpu", "missing-key", "`gpu` is required"),
    (f"{V}.gpu", 100, "$.chains.v100.gpu", "wrong-type", "put it in quotes"),
    (f"{V}.gpu", "", "$.chains.v100.gpu", "bad-value", "as agents tell it"),
    (f"{V}.leaf", "a/b", "$.chains.v100.leaf", "bad-value", "no name for a level"),
    (f"{V}.leaf", "node", "$.chains.v100.levels.node", "duplicate-name", "`node` is one GPU"),
    (f"{V}.levels", None, "$.chains.v100.levels", "missing-key", "from the lowest up"),
    (f"{V}.levels", {}, "$.chains.v100.levels", "bad-value", "levels: {node: 4}"),
    (f"{V}.levels", [2], "$.chains.v100.levels", "wrong-type", "not a list"),
    (f"{V}.levels.node", 0, "$.chains.v100.levels.node", "wrong-fanout", "of 0 cells"),
    (f"{V}.levels.rack", -1, "$.chains.v100.levels.rack", "wrong-fanout", "1 or more"),
    (f"{V}.levels.rack", 2.5, "$.chains.v100.levels.rack", "wrong-type", "whole number"),
    (f"{V}.levels.rack", 10**6, "$.chains.v100.levels", "wrong-fanout", "at most 1000000"),
    ("chains.k80.levels.node", 1025, "$.chains.k80.levels.node", "wrong-fanout", "at most 1024"),
    ("chains.k80.levels.node", 10**30, "$.chains.k80.levels", "wrong-fanout", "at most 1000000"),
    (f"{V}.levels.a/b", 1, "$.chains.v100.levels.a/b", "bad-value", "without `/`"),
    (f"{V}.node", "nod", "$.chains.v100.node", "unknown-level", "did you mean `node`?"),
    (f"{V}.node", "gpu", "$.chains.v100.node", "unknown-level", "say which level is one machine"),
    (f"{V}.nodes", ["x"], "$.chains.v100.nodes", "wrong-place", "exactly one of"),
    (f"{V}.cells", None, "$.chains.v100.nodes", "missing-key", "exactly one of"),
    (f"{V}.cells", "a", "$.chains.v100.cells", "wrong-type", "cells by name"),
    (f"{V}.cells.r2", "b1", "$.chains.v100.cells.r2", "cells-not-full", "has 2 nodes, not 1"),
    (f"{V}.cells.r2", [3, "b1"], "$.chains.v100.cells.r2[0]", "wrong-type", "put it in quotes"),
    (f"{V}.cells.r2", {"x": "b1"}, "$.chains.v100.cells.r2", "wrong-type", "as deep as"),
    (f"{V}.cells.r2", "b[1-", "$.chains.v100.cells.r2", "bad-value", "no list of nodes"),
    (f"{V}.cells.r2", "b[2-1]", "$.chains.v100.cells.r2", "bad-value", "no list of numbers"),
    (f"{V}.cells.r2", "b[1-99999]", "$.chains.v100.cells.r2", "bad-value", "more nodes than"),
    (f"{V}.cells.r2", "b 1,b2", "$.chains.v100.cells.r2", "bad-value", "no name for a node"),
    (f"{V}.cells.r2", "b1,a-1", "$.chains.v100.cells", "duplicate-node", "node 'a-1' is twice"),
    (f"{V}.cells.3", "c[1-2]", "$.chains.v100.cells", "bad-value", "a number is its place"),
    ("chains.k80.nodes", [], "$.chains.k80.nodes", "cells-not-full", "not 0"),
    ("chains.k80.levels.rack", 2, "$.chains.k80.nodes", "cells-not-full", "add 1 or take 1 out"),
    ("chains.k80.cells", {}, "$.chains.k80.nodes", "wrong-place", "exactly one of"),
    (
        f"{V}.devices",
        [0, 1],
        "$.chains.v100.devices",
        "wrong-fanout",
        "node 'a-1' and 3 more with 2 devices; the levels say 8",
    ),
    (f"{V}.devices", "0-7", "$.chains.v100.devices", "wrong-type", "a list of GPU indices"),
    (f"{V}.devices.c", [0], "$.chains.v100.devices.c", "unknown-node", "no node 'c'"),
    (
        f"{V}.devices.b[1-2]",
        [*range(8)],
        "$.chains.v100.devices.b[1-2]",
        "duplicate-node",
        "given twice",
    ),
    (f"{V}.devices.b[", [0], "$.chains.v100.devices.b[", "bad-value", "no list of nodes"),
    ("chains.k80.devices", [8, 8], "$.chains.k80.devices", "duplicate-device", "device 8 more"),
    ("chains.k80.devices", [8, 5000], "$.chains.k80.devices", "bad-value", "0 to 1023"),
    (
        "chains.k80.devices",
        [7, 9],
        "$.chains.k80.devices",
        "overlapping-devices",
        "GPU 7 of node 'b1' and 1 more is in chain 'v100' too",
    ),
    (f"{V}.names.rak/0", "x", "$.chains.v100.cells", "unknown-level", "did you mean `rack`?"),
    (f"{V}.names.rack/2", "x", "$.chains.v100.cells", "unknown-cell", "cells 0 to 1"),
    (f"{V}.names.rack/0", 7, "$.chains.v100.names.rack/0", "wrong-type", "put it in quotes"),
    (f"{V}.names.rack/0", "r2", "$.chains.v100.cells", "duplicate-name", "are called 'r2'"),
    ("pinned.big", 3, "$.pinned.big", "wrong-type", "a cell such as"),
    ("pinned.big", "v10/rack/0", "$.pinned.big", "unknown-chain", "did you mean `v100`?"),
    ("pinned.big", "v100/rock/0", "$.pinned.big", "unknown-level", "did you mean `rack`?"),
    ("pinned.big", "v100/rack", "$.pinned.big", "bad-value", "names no cell"),
    ("pinned.big", "v100/rack/2", "$.pinned.big", "unknown-cell", "cells 0 to 1"),
    ("pinned.big", "v100/rack/r21", "$.pinned.big", "unknown-cell", "did you mean `r2`?"),
    ("pinned.big", "v100/rack/b1/0", "$.pinned.big", "unknown-cell", "not inside a node"),
    ("pinned.big", "v100/socket/zzz/0", "$.pinned.big", "unknown-cell", "no node 'zzz'"),
    ("pinned.big", "v100/socket/a-1/2", "$.pinned.big", "unknown-cell", "cells 0 to 1"),
    ("pinned.big", "k80/gpu/b1/0", "$.pinned.big", "unknown-cell", "has GPUs 8, 9"),
    ("pinned.two", "v100/rack/0", "$.pinned.two", "duplicate-pin", "pinned as 'big'"),
    ("pinned.in", "v100/gpu/a-1/0", "$.pinned.in", "overlapping-pins", "inside the pinned cell"),
    ("pinned.a/b", "v100/gpu/b2/0", "$.pinned.a/b", "bad-value", "no name for a pinned cell"),
    ("vcs.a b", 1, "$.vcs.a b", "bad-value", "no name for a virtual cluster"),
    ("vcs.nlp", "x", "$.vcs.nlp", "wrong-type", "or a number of GPUs"),
    ("vcs.nlp.gpu", 3, "$.vcs.nlp.gpu", "unknown-key", "did you mean `gpus`?"),
    ("vcs.rest", -1, "$.vcs.rest.gpus", "bad-value", "0 to 1000000"),
    ("vcs.nlp.gpus", "3", "$.vcs.nlp.gpus", "wrong-type", "whole number"),
    ("vcs.nlp.jobs_max", -2, "$.vcs.nlp.jobs_max", "bad-value", "0 to 1000000"),
    ("vcs.nlp.weight", 0, "$.vcs.nlp.weight", "bad-value", "more than 0"),
    ("vcs.nlp.weight", float("nan"), "$.vcs.nlp.weight", "bad-value", "more than 0"),
    ("vcs.nlp.weight", "two", "$.vcs.nlp.weight", "wrong-type", "a number, not text"),
    ("vcs.nlp.policy", 3, "$.vcs.nlp.policy", "wrong-type", "a policy's name, or an object"),
    ("vcs.nlp.policy", {}, "$.vcs.nlp.policy.name", "missing-key", "`name` is required"),
    ("vcs.nlp.cells", [1], "$.vcs.nlp.cells", "wrong-type", "numbers by chain/level"),
    ("vcs.nlp.cells.v10/node", 1, "$.vcs.nlp.cells.v10/node", "unknown-chain", "`v100`"),
    ("vcs.nlp.cells.v100/nod", 1, "$.vcs.nlp.cells.v100/nod", "unknown-level", "`node`"),
    ("vcs.nlp.cells.rak", 1, "$.vcs.nlp.cells.rak", "unknown-level", "did you mean `rack`?"),
    ("vcs.nlp.cells.node", 1, "$.vcs.nlp.cells.node", "unknown-chain", "write v100/node"),
    ("vcs.nlp.cells.socket", 1, "$.vcs.nlp.cells.socket", "duplicate-name", "given twice"),
    ("vcs.nlp.cells.v100/socket", -1, "$.vcs.nlp.cells.v100/socket", "bad-value", "-1 cells"),
    ("vcs.nlp.cells.v100/socket", "1", "$.vcs.nlp.cells.v100/socket", "wrong-type", "number"),
    ("vcs.nlp.pinned", "big", "$.vcs.nlp.pinned", "wrong-type", "a list of names"),
    ("vcs.nlp.pinned", ["bog"], "$.vcs.nlp.pinned[0]", "unknown-pin", "did you mean `big`?"),
    (
        "vcs.vision.pinned",
        ["half", "big"],
        "$.vcs.vision.pinned[1]",
        "duplicate-pin",
        "owned by 'nlp' too",
    ),
    ("vcs.nlp.pinned", ["big", "big"], "$.vcs.nlp.pinned[1]", "duplicate-pin", "owned twice"),
    (
        "vcs.vision.cells.rack",
        1,
        "$.vcs",
        "infeasible",
        "chain 'v100', level 'rack': the virtual clusters own 1 cells (vision 1) where there are 0",
    ),
    (
        "vcs.vision.cells.switch",
        5,
        "$.vcs",
        "infeasible",
        "chain 'v100', level 'switch': the virtual clusters own 5 cells (vision 5) "
        "where there are 4",
    ),
    ("vcs.rest", 13, "$.vcs", "infeasible", "own 13 GPUs by `gpus` where there are 8"),
]


@pytest.mark.parametrize("where, value, path, reason, text", MISTAKES)
def test_each_mistake_is_named_with_its_path(
    where: str, value: Any, path: str, reason: str, text: str
) -> None:
    tree = good()
    level = tree
    *outer, last = where.split(".")
    for key in outer:
        level = level.setdefault(key, {})
    if value is None:
        del level[last]
    else:
        level[last] = value
    found = problems(tree)
    assert [(one.path, str(one.reason)) for one in found] == [(path, reason)], found
    assert text in f"{found[0].text}; {found[0].suggestion}"


def test_all_mistakes_are_told_together() -> None:
    tree = good()
    tree["chains"]["v100"]["levels"]["node"] = 0
    tree["chains"]["k80"]["nodes"] = ["b1", "b[1-2]"]
    tree["chains"]["k80"]["gpu"] = 80
    tree["pinned"]["more"] = "k81/node/0"
    tree["vcs"]["nlp"]["weigth"] = 1
    tree["vcs"]["nlp"]["pinned"] = ["nothing"]
    tree["colour"] = "green"
    assert [one.path for one in problems(tree)] == [
        "$.colour",
        "$.chains.v100.levels.node",
        "$.chains.k80.gpu",
        "$.chains.k80.nodes",
        "$.pinned.more",
        "$.vcs.nlp.weigth",
        "$.vcs.nlp.pinned[0]",
    ]
    tree = {"chains": {f"c{at}": 1 for at in range(2 * PROBLEMS_MAX)}}
    assert len(problems(tree)) == PROBLEMS_MAX


@pytest.mark.parametrize("size", [10**9, 10**30])
def test_a_level_of_any_size_is_refused_before_anything_is_made_of_it(size: int) -> None:
    tree = good()
    tree["chains"]["k80"]["levels"]["node"] = size
    cluster = read(good())
    chain = cluster.chains["k80"]
    levels = tuple(msgspec.structs.replace(level, fanout=size) for level in chain.levels)
    asked = msgspec.structs.replace(
        cluster, chains={"k80": msgspec.structs.replace(chain, levels=levels)}
    )
    tracemalloc.start()
    try:
        of_file, of_message = parse_cluster(tree), cluster_problems(asked)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(of_file, list)
    for problems in (of_file, of_message):
        assert problems[0].path == "$.chains.k80.levels"
        assert "at most 1000000" in problems[0].text
    assert peak < 10 * 2**20


def test_one_wrong_level_is_told_of_each_cell_it_does_not_fit() -> None:
    tree = good()
    tree["chains"]["v100"]["levels"]["rack"] = 3
    assert [(one.path, one.text) for one in problems(tree)] == [
        ("$.chains.v100.cells.r1", "a cell of level 'rack' has 3 nodes, not 2"),
        ("$.chains.v100.cells.r2", "a cell of level 'rack' has 3 nodes, not 2"),
    ]


def test_cells_stand_above_nodes() -> None:
    tree = {"chains": {"c": {"gpu": "g", "levels": {"node": 2}, "cells": {"r1": "a"}}}}
    (found,) = problems(tree)
    assert (found.path, found.suggestion) == ("$.chains.c.cells", "list them under `nodes`")


def test_what_is_no_object_at_all() -> None:
    for tree, text in [(None, "not null"), ([1], "not a list"), ({3: 1}, "must be text")]:
        assert text in problems(tree)[0].text
    assert problems({"chains": {3: 1}})[0].path == "$.chains.3"


def test_a_cluster_from_the_wire_is_checked_as_a_whole() -> None:
    cluster = read(good())
    assert cluster_problems(cluster) == []
    bare = Chain(gpu="k80", levels=(), node_level="node", nodes=(NodeCell(node="x"),))
    many = {"k80": bare, "a/b": cluster.chains["k80"]}
    pins = {
        "x": Pin(chain="no", level="node", index=0),
        "y": Pin(chain="a/b", level="rack", index=0),
    }
    found = cluster_problems(Cluster(chains=many, pins=pins))
    assert [(one.path, str(one.reason)) for one in found] == [
        ("$.chains.k80.levels", "bad-value"),
        ("$.chains.a/b", "bad-value"),
        ("$.pinned.x", "unknown-chain"),
    ]
    good_chain = cluster.chains["k80"]
    named = Chain(
        gpu="k80", levels=good_chain.levels, node_level="node", nodes=(NodeCell(node="a b"),)
    )
    pins = {
        "level": Pin(chain="k80", level="rack", index=0),
        "index": Pin(chain="k80", level="node", index=-1),
        "beyond": Pin(chain="k80", level="gpu", index=6),
    }
    found = cluster_problems(Cluster(chains={"k80": good_chain, "x": named}, pins=pins))
    assert [(one.path, str(one.reason)) for one in found] == [
        ("$.chains.x.nodes", "bad-value"),
        ("$.pinned.level", "unknown-level"),
        ("$.pinned.index", "unknown-cell"),
        ("$.pinned.beyond", "unknown-cell"),
    ]


def test_what_is_hardly_meant_is_remarked() -> None:
    tree = good()
    assert [one.path for one in cluster_remarks(read(tree))] == ["$.pinned.one"]
    tree["chains"]["k80"]["nodes"] = "10.0.0.[1-5]"
    del tree["pinned"]["one"]
    (remark,) = cluster_remarks(read(tree))
    assert remark.text.startswith("no agent can have this name: 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2")


# --- host lists -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, names",
    [
        ("a", ["a"]),
        ("a-[1-3]", ["a-1", "a-2", "a-3"]),
        ("a[08-10],b", ["a08", "a09", "a10", "b"]),
        ("r[1-2]n[1,3]x", ["r1n1x", "r1n3x", "r2n1x", "r2n3x"]),
        (" a , b[7] ", ["a", "b7"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert hostlist.expand(text, 100) == names


@pytest.mark.parametrize("text", ["", "a,,b", "a[", "a]", "a[]", "a[2-1]", "a[x]", "a[[1]]", "a b"])
def test_what_is_no_host_list(text: str) -> None:
    assert isinstance(hostlist.expand(text, 100), str)


def test_huge_host_lists_are_refused_without_being_made() -> None:
    for text in ("a[0-999999999]", "a[1-99][1-99][1-99][1-99][1-99]", "a[1-60],b[1-60]"):
        assert "more nodes" in hostlist.expand(text, 100)


def test_compressed_lists_expand_to_the_same() -> None:
    for names, lists in [
        (["a1", "a2", "a3"], ["a[1-3]"]),
        (["a9", "a10", "a11", "b"], ["a[9-11]", "b"]),
        (["a08", "a09", "a10"], ["a[08-10]"]),
        (["a099", "a100", "a0101"], ["a[099-100]", "a0101"]),
        (["a2", "a1", "a3"], ["a2", "a1", "a3"]),
        (["7", "8"], ["[7-8]"]),
    ]:
        assert hostlist.compress(names) == lists
        assert hostlist.expand(",".join(lists), 100) == names


def test_names_sort_as_people_sort_them() -> None:
    assert sorted(["a10", "a2", "a", "b1"], key=hostlist.natural) == ["a", "a2", "a10", "b1"]


def test_the_rule_of_quarantine_has_defaults_and_names_its_mistakes() -> None:
    assert parse_cluster({}) == Cluster(quarantine=QuarantineRule())
    acts: dict[str, Any] = {"slow": 5, "quarantine_slow": True}
    own = QuarantineRule(jobs=2, within=30, share=0.05, signs=("exit",), **acts)
    tree = {"quarantine": {"jobs": 2, "within": 30, "share": 0.05, "signs": ["exit"], **acts}}
    read = parse_cluster(tree)
    assert isinstance(read, Cluster)
    assert read == Cluster(quarantine=own)
    assert parse_cluster(yaml.safe_load(to_yaml(read))) == read
    wrong = {
        "quarantine": {"job": 2, "within": "5m", "share": 2, "signs": ["signals"]}
        | {"slow": 1001, "quarantine_slow": "yes"}
    }
    found = parse_cluster(wrong)
    assert isinstance(found, list)
    told = [(one.path, one.reason.value, one.suggestion) for one in found]
    assert told == [
        ("$.quarantine.job", "unknown-key", "did you mean `jobs`?"),
        ("$.quarantine.within", "wrong-type", ""),
        ("$.quarantine.quarantine_slow", "wrong-type", ""),
        ("$.quarantine.share", "bad-value", ""),
        ("$.quarantine.slow", "bad-value", ""),
        ("$.quarantine.signs", "bad-value", "did you mean `signal`?"),
    ]


@pytest.mark.parametrize(
    "wrote",
    ["backfill", {"name": "tiresias-l", "thresholds": [100, 3250]}, {"name": "drf", "by": "vc"}],
)
def test_policies_are_read_back(wrote: Any) -> None:
    tree = {"vcs": {"nlp": {"gpus": 4, "policy": wrote}}}
    cluster = read(tree)
    assert check.parse_cluster(tree) == cluster
    assert read(yaml.safe_load(to_yaml(cluster))) == cluster


@pytest.mark.parametrize(
    "wrote, path, reason, text",
    [
        ("tiresias", "$.vcs.nlp.policy", "unknown-policy", "did you mean tiresias-l?"),
        (
            {"name": "tiresias-l", "threshold": [3]},
            "$.vcs.nlp.policy.threshold",
            "bad-option",
            "did you mean thresholds?",
        ),
        (
            {"name": "tiresias-l", "thresholds": "x"},
            "$.vcs.nlp.policy.thresholds",
            "bad-option",
            "",
        ),
    ],
)
def test_wrong_policies_are_told(wrote: Any, path: str, reason: str, text: str) -> None:
    found = check.parse_cluster({"vcs": {"nlp": {"gpus": 4, "policy": wrote}}})
    assert isinstance(found, list)
    (one,) = found
    assert (one.path, one.reason) == (path, reason)
    assert one.suggestion == text


def test_priorities_have_limits_for_all_virtual_clusters_or_for_one() -> None:
    tree = {
        "priorities": {"submitter": 5, "manager": 50},
        "vcs": {"nlp": 8, "cv": {"gpus": 8, "priorities": {"submitter": 9}}, "web": {"gpus": 1}},
    }
    found = parse_cluster(tree)
    assert isinstance(found, Cluster)
    usual = {"submitter": 5, "manager": 50}
    assert {name: vc.priorities for name, vc in found.vcs.items()} == {
        "nlp": usual,
        "cv": {"submitter": 9},
        "web": usual,
    }


@pytest.mark.parametrize(
    "given, path",
    [
        ({"priorities": {"viewer": 5}}, "$.priorities.viewer"),
        ({"priorities": {"submitter": "5"}}, "$.priorities.submitter"),
        ({"priorities": 5}, "$.priorities"),
        ({"vcs": {"nlp": {"gpus": 8, "priorities": {"submitter": -1}}}}, "$.vcs.nlp.priorities"),
        ({"vcs": {"nlp": {"gpus": 8, "priorities": {"manager": 1001}}}}, "$.vcs.nlp.priorities"),
        (
            {"vcs": {"nlp": {"gpus": 8, "priorities": {"submitter": 9, "manager": 5}}}},
            "$.vcs.nlp.priorities",
        ),
    ],
)
def test_what_is_no_limit_of_priorities_is_said(given: Any, path: str) -> None:
    found = parse_cluster({"vcs": {"nlp": 8}, **given})
    assert isinstance(found, list)
    assert [one.path.startswith(path) for one in found] == [True]
