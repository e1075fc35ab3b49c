"""HiveD's configuration: the original's examples, what it infers, and every kind of mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from skep.cells import hived
from skep.cells.clusterfile import parse_cluster
from skep.cells.clustertext import to_yaml
from skep.cells.hived import import_hived
from skep.cells.levels import cells_by_level
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota
from skep.wire.spec import Problem
from tests import needs

GOOD = """
kubeApiServerAddress: http://10.10.10.10:8080
physicalCluster:
  cellTypes:
    SWITCH: {childCellType: V100, childCellNumber: 2}
    NODE: {childCellType: SWITCH, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
    OLD: {childCellType: K80, childCellNumber: 2, isNodeLevel: true}
  physicalCells:
  - cellType: RACK
    pinnedCellId: mine
    cellChildren:
    - cellAddress: n1
    - cellAddress: n2
      cellChildren:
      - cellAddress: 1
        cellChildren: [{cellAddress: 3}, {cellAddress: "1"}]
      - cellAddress: 0
        cellChildren: [{cellAddress: 0}, {cellAddress: 2, pinnedCellId: one}]
  - cellType: OLD
    cellAddress: n1
    cellChildren: [{cellAddress: 8}, {cellAddress: 9}]
  - cellType: RACK
    cellAddress: second
    cellChildren: [{cellAddress: n3}, {cellAddress: 4}]
virtualClusters:
  a:
    virtualCells:
    - {cellType: RACK.NODE, cellNumber: 1}
    - {cellType: RACK.NODE.SWITCH, cellNumber: 1}
    - {cellType: RACK.NODE, cellNumber: 0}
    pinnedCells: [{pinnedCellId: mine}]
  b:
    virtualCells: [{cellType: OLD, cellNumber: 1}, {cellType: RACK.NODE.SWITCH.V100, cellNumber: 1}]
"""


def good() -> Any:
    tree = yaml.safe_load(GOOD)
    # Only one of the two may be pinned: they overlap.
    del tree["physicalCluster"]["physicalCells"][0]["cellChildren"][1]["cellChildren"][1][
        "cellChildren"
    ][1]["pinnedCellId"]
    return tree


def imported(tree: Any) -> tuple[Cluster, list[Problem]]:
    found = import_hived(tree)
    assert isinstance(found, tuple), found
    return found


def problems(tree: Any) -> list[Problem]:
    found = import_hived(tree)
    assert isinstance(found, list), "nothing was found"
    return found


def test_what_is_written_and_what_is_inferred() -> None:
    cluster, warnings = imported(good())
    assert cluster.chains["RACK"] == Chain(
        gpu="V100",
        leaf="V100",
        levels=(
            Level(name="SWITCH", fanout=2),
            Level(name="NODE", fanout=2),
            Level(name="RACK", fanout=2),
        ),
        node_level="NODE",
        nodes=(
            NodeCell(node="n1"),
            NodeCell(node="n2", devices=(3, 1, 0, 2)),
            NodeCell(node="n3"),
            NodeCell(node="4"),
        ),
        names={"RACK/1": "second"},
    )
    assert cluster.chains["OLD"].nodes == (NodeCell(node="n1", devices=(8, 9)),)
    assert cluster.pins == {"mine": Pin(chain="RACK", level="RACK", index=0)}
    assert cluster.vcs["a"].cells == (
        Quota(chain="RACK", level="NODE", count=1),
        Quota(chain="RACK", level="SWITCH", count=1),
    )
    assert cluster.vcs["a"].pinned == ("mine",)
    assert cluster.vcs["b"].cells == (
        Quota(chain="OLD", level="OLD", count=1),
        Quota(chain="RACK", level="V100", count=1),
    )
    assert [one.path for one in warnings] == ["$.kubeApiServerAddress"]


def test_a_pinned_cell_may_be_on_any_level() -> None:
    tree = good()
    rack = tree["physicalCluster"]["physicalCells"][0]
    del rack["pinnedCellId"]
    rack["cellChildren"][0]["pinnedCellId"] = "node"
    rack["cellChildren"][1]["cellChildren"][0]["pinnedCellId"] = "switch"
    rack["cellChildren"][1]["cellChildren"][1]["cellChildren"][1]["pinnedCellId"] = 7
    tree["virtualClusters"]["a"] = {"pinnedCells": [{"pinnedCellId": 7}]}
    cluster, warnings = imported(tree)
    assert cluster.pins == {
        "node": Pin(chain="RACK", level="NODE", index=0),
        "switch": Pin(chain="RACK", level="SWITCH", index=2),
        "7": Pin(chain="RACK", level="V100", index=7),
    }
    assert [one.path for one in warnings[1:]] == [
        "$.physicalCluster.physicalCells[0].cellChildren[0].pinnedCellId",
        "$.physicalCluster.physicalCells[0].cellChildren[1].cellChildren[0].pinnedCellId",
    ]


def test_names_of_cells_are_unique_in_their_level() -> None:
    types = {
        "NODE": {"childCellType": "G", "childCellNumber": 1, "isNodeLevel": True},
        "RACK": {"childCellType": "NODE", "childCellNumber": 1},
        "ROW": {"childCellType": "RACK", "childCellNumber": 2},
    }

    def row(name: str, *nodes: str) -> Any:
        racks = [
            {"cellAddress": rack, "cellChildren": [{"cellAddress": node}]}
            for rack, node in zip(("r1", "r2"), nodes, strict=True)
        ]
        return {"cellType": "ROW", "cellAddress": name, "cellChildren": racks}

    cells = [row("east", "a", "b"), row("west", "c", "d")]
    cluster, _ = imported({"physicalCluster": {"cellTypes": types, "physicalCells": cells}})
    assert cluster.chains["ROW"].names == {
        "ROW/0": "east",
        "RACK/0": "r1",
        "RACK/1": "r2",
        "ROW/1": "west",
        "RACK/2": "west-r1",
        "RACK/3": "west-r2",
    }


def test_what_the_original_ignores_is_told() -> None:
    tree = good()
    tree["webServerAdress"] = ":9096"
    tree["forcePodBindThreshold"] = 3
    tree["physicalCluster"]["skuTypes"] = {}
    tree["physicalCluster"]["cellTypes"]["NODE"]["isNodelevel"] = True
    tree["physicalCluster"]["physicalCells"][0]["cellAdress"] = "x"
    tree["virtualClusters"]["b"]["virtualCells"][1]["cellType"] = "RACK.SWITCH.NODE.V100"
    _, warnings = imported(tree)
    assert [(one.path, str(one.reason)) for one in warnings] == [
        ("$.webServerAdress", "unknown-key"),
        ("$.kubeApiServerAddress", "ignored-key"),
        ("$.forcePodBindThreshold", "ignored-key"),
        ("$.physicalCluster.skuTypes", "ignored-key"),
        ("$.physicalCluster.cellTypes.NODE.isNodelevel", "unknown-key"),
        ("$.physicalCluster.physicalCells[0].cellAdress", "unknown-key"),
        ("$.virtualClusters.b.virtualCells[1].cellType", "unknown-cell-type"),
    ]
    assert warnings[0].suggestion == "did you mean `webServerAddress`?"
    assert warnings[-1].suggestion == "write RACK.NODE.SWITCH.V100"


def test_an_empty_configuration_is_a_cluster_of_what_joins() -> None:
    for tree in (None, {}, {"physicalCluster": None}):
        cluster, (warning,) = imported(tree)
        assert cluster == Cluster()
        assert "the nodes that join" in warning.text


# --- mistakes -------------------------------------------------------------------------------------

TYPES = "physicalCluster.cellTypes"
CELLS = "physicalCluster.physicalCells"
VC = "virtualClusters.a"
IN = "$.physicalCluster.physicalCells"

MISTAKES: list[tuple[str, Any, str, str, str]] = [
    # where, what is put there, path of the problem, reason, part of text and suggestion
    ("physicalCluster", None, "$.physicalCluster", "missing-key", "is required"),
    ("physicalCluster", 3, "$.physicalCluster", "wrong-type", "must be an object"),
    (f"{TYPES}.NODE", 1, f"$.{TYPES}.NODE", "wrong-type", "must be an object"),
    (f"{TYPES}.NODE.childCellType", None, f"$.{TYPES}.NODE.childCellType", "missing-key", ""),
    (f"{TYPES}.NODE.childCellType", [1], f"$.{TYPES}.NODE.childCellType", "wrong-type", "name"),
    (f"{TYPES}.NODE.childCellNumber", None, f"$.{TYPES}.NODE.childCellNumber", "missing-key", ""),
    (f"{TYPES}.NODE.childCellNumber", "2", f"$.{TYPES}.NODE.childCellNumber", "wrong-type", ""),
    (
        f"{TYPES}.NODE.childCellNumber",
        0,
        f"$.{TYPES}.NODE.childCellNumber",
        "wrong-fanout",
        "made of 0 children",
    ),
    (
        f"{TYPES}.RACK.childCellNumber",
        10**6,
        f"$.{TYPES}.RACK",
        "wrong-fanout",
        "one RACK would have 4000000 GPUs",
    ),
    (
        f"{CELLS}.0.cellChildren.1.pinnedCellId",
        "a/b",
        f"{IN}[0].cellChildren[1].pinnedCellId",
        "bad-value",
        "no name for a pinned cell",
    ),
    (f"{TYPES}.NODE.isNodeLevel", "yes", f"$.{TYPES}.NODE.isNodeLevel", "wrong-type", "true or"),
    (
        f"{TYPES}.NODE.isNodeLevel",
        False,
        f"$.{TYPES}.RACK",
        "bad-value",
        "0 of the levels RACK > NODE > SWITCH > V100 have isNodeLevel",
    ),
    (f"{TYPES}.RACK.isNodeLevel", True, f"$.{TYPES}.RACK", "bad-value", "2 of the levels"),
    (
        f"{TYPES}.RACK.childCellType",
        "NOD",
        f"$.{TYPES}.RACK",
        "bad-value",
        "`NOD` has no entry in cellTypes: did you mean `NODE`?",
    ),
    (
        f"{TYPES}.SWITCH.childCellType",
        "RACK",
        f"$.{TYPES}.SWITCH.childCellType",
        "bad-value",
        "made of itself: RACK > NODE > SWITCH > RACK",
    ),
    (f"{CELLS}.1", 3, f"{IN}[1]", "wrong-type", "must be an object"),
    (f"{CELLS}.1.cellType", None, f"{IN}[1].cellType", "missing-key", "is required"),
    (f"{CELLS}.1.cellType", [1], f"{IN}[1].cellType", "wrong-type", "the name of a cell type"),
    (f"{CELLS}.1.cellAddress", None, f"{IN}[1].cellAddress", "missing-key", "the node's name"),
    (f"{CELLS}.1.cellAddress", 10.1, f"{IN}[1].cellAddress", "wrong-type", "put it in quotes"),
    (f"{CELLS}.1.cellAddress", "a b", f"{IN}[1]", "bad-value", "no name for a node"),
    (f"{CELLS}.1.cellAddress", "n1", "", "", ""),
    (f"{CELLS}.1.pinnedCellId", [1], f"{IN}[1].pinnedCellId", "wrong-type", "must be text"),
    (
        f"{CELLS}.1.pinnedCellId",
        "mine",
        f"{IN}[1].pinnedCellId",
        "duplicate-pin",
        f"another cell's too: {IN}[0].pinnedCellId",
    ),
    (
        f"{CELLS}.0.cellChildren.0.pinnedCellId",
        "in",
        f"{IN}[0].cellChildren[0].pinnedCellId",
        "overlapping-pins",
        "inside the pinned cell 'mine'",
    ),
    (
        f"{CELLS}.1.cellChildren",
        [{}],
        f"{IN}[1].cellChildren",
        "wrong-fanout",
        "1 children; its type has 2",
    ),
    (
        f"{CELLS}.1.cellChildren",
        None,
        f"{IN}[1]",
        "overlapping-devices",
        "GPU 0, 1 of node 'n1' is in chain 'RACK' too",
    ),
    (
        f"{CELLS}.1.cellChildren.1.cellAddress",
        8,
        f"{IN}[1].cellChildren[1]",
        "duplicate-device",
        "GPU 8 is twice in this node",
    ),
    (
        f"{CELLS}.1.cellChildren.1.cellAddress",
        "x",
        f"{IN}[1].cellChildren[1].cellAddress",
        "bad-value",
        "its index on the node, not 'x'",
    ),
    (
        f"{CELLS}.1.cellChildren.1.cellChildren",
        [{}],
        f"{IN}[1].cellChildren[1].cellChildren",
        "wrong-fanout",
        "a GPU has no children",
    ),
    (
        f"{CELLS}.1.cellChildren.1.cellType",
        "SWITCH",
        f"{IN}[1].cellChildren[1].cellType",
        "bad-value",
        "is a K80 by its place, not a SWITCH",
    ),
    (f"{CELLS}.0.cellChildren", None, f"{IN}[0].cellChildren", "missing-key", "are not told"),
    (
        f"{CELLS}.0.cellChildren.1.cellAddress",
        "n1",
        f"{IN}[0].cellChildren[1]",
        "duplicate-node",
        "node 'n1' is twice in chain 'RACK'",
    ),
    (
        f"{CELLS}.2.cellChildren.1.cellAddress",
        "n2",
        f"{IN}[2].cellChildren[1]",
        "duplicate-node",
        "node 'n2' is twice in chain 'RACK'",
    ),
    (
        f"{CELLS}.0.cellChildren.1.cellChildren.0.cellAddress",
        0,
        f"{IN}[0].cellChildren[1].cellChildren[1].cellAddress",
        "duplicate-name",
        "address '0'",
    ),
    ("virtualClusters.a b", {}, "$.virtualClusters.a b", "bad-value", "no name for"),
    (VC, [1], "$.virtualClusters.a", "wrong-type", "must be an object"),
    (f"{VC}.virtualCells", 1, "$.virtualClusters.a.virtualCells", "wrong-type", "a list"),
    (
        f"{VC}.virtualCells.0.cellType",
        None,
        "$.virtualClusters.a.virtualCells[0].cellType",
        "missing-key",
        "is required",
    ),
    (
        f"{VC}.virtualCells.0.cellType",
        "RAC.NODE",
        "$.virtualClusters.a.virtualCells[0].cellType",
        "unknown-chain",
        "did you mean `RACK`?",
    ),
    (
        f"{VC}.virtualCells.0.cellType",
        "SWITCH",
        "$.virtualClusters.a.virtualCells[0].cellType",
        "unknown-chain",
        "such as RACK.SWITCH",
    ),
    (
        f"{VC}.virtualCells.0.cellType",
        "RACK.NOD",
        "$.virtualClusters.a.virtualCells[0].cellType",
        "unknown-cell-type",
        "did you mean `NODE`?",
    ),
    (
        f"{VC}.virtualCells.0.cellNumber",
        -1,
        "$.virtualClusters.a.virtualCells[0].cellNumber",
        "bad-value",
        "-1 cells",
    ),
    (
        f"{VC}.virtualCells.0.cellNumber",
        2,
        "$.virtualClusters",
        "infeasible",
        "level 'SWITCH': the virtual clusters own 1 cells (a 1) where there are 0",
    ),
    (
        f"{VC}.virtualCells.0.cellNumber",
        5,
        "$.virtualClusters",
        "infeasible",
        "level 'NODE': the virtual clusters own 5 cells (a 5) where there are 2 after pinned "
        "and larger cells: 3 short",
    ),
    (
        f"{VC}.virtualCells.0.pinnedCells",
        [{"pinnedCellId": "mine"}],
        "$.virtualClusters.a.virtualCells[0].pinnedCells",
        "wrong-place",
        "move it to $.virtualClusters.a.pinnedCells",
    ),
    (
        f"{VC}.virtualCells.2",
        {"pinnedCells": []},
        "$.virtualClusters.a.virtualCells[2].pinnedCells",
        "wrong-place",
        "beside virtualCells",
    ),
    (
        f"{VC}.pinnedCells.0",
        {},
        "$.virtualClusters.a.pinnedCells[0].pinnedCellId",
        "missing-key",
        "is required",
    ),
    (
        f"{VC}.pinnedCells.0.pinnedCellId",
        "mina",
        "$.virtualClusters.a.pinnedCells[0].pinnedCellId",
        "unknown-pin",
        "did you mean `mine`?",
    ),
    (
        "virtualClusters.b.pinnedCells",
        [{"pinnedCellId": "mine"}],
        "$.virtualClusters.b.pinnedCells[0].pinnedCellId",
        "duplicate-pin",
        "owned by 'a' too",
    ),
]


@pytest.mark.parametrize("where, value, path, reason, text", MISTAKES)
def test_each_mistake_is_named_with_its_path(
    where: str, value: Any, path: str, reason: str, text: str
) -> None:
    tree = good()
    level = tree
    *outer, last = (int(key) if key.isdecimal() else key for key in where.split("."))
    for key in outer:
        level = level[key]
    if value is None:
        del level[last]
    else:
        level[last] = value
    if not path:
        assert imported(tree)
        return
    found = problems(tree)
    assert (found[0].path, str(found[0].reason)) == (path, reason), found
    assert text in f"{found[0].text}; {found[0].suggestion}"
    if reason != "infeasible" and value != "a/b":
        assert len(found) == 1, found


def test_an_undefined_type_is_named_once() -> None:
    tree = good()
    for cell in (0, 2):
        tree["physicalCluster"]["physicalCells"][cell]["cellType"] = "RAK"
    found = problems(tree)
    assert (found[0].path, found[0].suggestion) == (f"{IN}[0].cellType", "did you mean `RACK`?")
    assert sum(one.reason == "unknown-cell-type" for one in found) == 1


def test_more_gpus_than_one_chain_may_have_are_not_spelled_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hived, "GPUS_MAX", 3)
    tree = good()
    tree["physicalCluster"]["physicalCells"] = [
        {"cellType": "OLD", "cellAddress": f"o{at}"} for at in range(2)
    ]
    tree["virtualClusters"] = {}
    assert [(one.path, str(one.reason)) for one in problems(tree)] == [(f"{IN}[1]", "too-large")]
    types = {f"T{at}": {"childCellType": f"T{at + 1}", "childCellNumber": 1} for at in range(20)}
    types["T3"]["isNodeLevel"] = True
    cells = [{"cellType": "T0", "pinnedCellId": "p"}]
    tree = {"physicalCluster": {"cellTypes": types, "physicalCells": cells}}
    assert [one.text for one in problems(tree)] == ["more than 16 levels"]


def test_all_mistakes_are_told_together() -> None:
    tree = good()
    tree["physicalCluster"]["physicalCells"][1]["cellChildren"].pop()
    tree["physicalCluster"]["physicalCells"][2]["cellChildren"][1]["cellAddress"] = "n2"
    tree["virtualClusters"]["a"]["virtualCells"][0]["cellNumber"] = -1
    tree["virtualClusters"]["b"]["pinnedCells"] = [{"pinnedCellId": "x"}]
    assert [str(one.reason) for one in problems(tree)] == [
        "wrong-fanout",
        "bad-value",
        "duplicate-node",
        "unknown-pin",
    ]


# --- the original's examples ----------------------------------------------------------------------


def example(name: str) -> Any:
    path = needs.data_file(f"hived/{name}_hivedscheduler.yaml")
    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["basic", "default", "design"])
def test_the_examples_import_and_their_text_is_read_back(name: str) -> None:
    cluster, warnings = imported(example(name))
    assert parse_cluster(yaml.safe_load(to_yaml(cluster))) == cluster
    assert {str(one.reason) for one in warnings} <= {"ignored-key", "bad-value", "missing-key"}


def test_the_example_of_all_features() -> None:
    cluster, _ = imported(example("design"))
    assert {name: cells_by_level(chain)[0] for name, chain in cluster.chains.items()} == {
        "CT1-NODE": 6,
        "3-DGX1-P100-NODE": 24,
        "DGX2-V100-NODE": 32,
        "3-DGX2-V100-NODE": 48,
        "4-DGX2-V100-NODE": 128,
        "2-IB-DGX2-V100-NODE": 32,
    }
    nodes = {cell.node: cell for cell in cluster.chains["3-DGX1-P100-NODE"].nodes}
    assert list(nodes) == ["1.0.0.2", "1.0.0.1", "1.0.0.0"]
    assert nodes["1.0.0.1"].devices == ()
    assert nodes["1.0.0.0"].devices == (1, 3, 4, 7, 0, 2, 6, 5)
    assert cluster.chains["CT1-NODE"].nodes[2] == NodeCell(node="1.0.0.2", devices=(8, 9))
    assert cluster.pins == {
        "VC1-YQW-CT1": Pin(chain="CT1-NODE", level="CT1", index=4),
        "VC1-YQW-DGX2": Pin(chain="4-DGX2-V100-NODE", level="2-DGX2-V100-NODE", index=0),
        "VC1-YQW-IB-DGX2": Pin(chain="2-IB-DGX2-V100-NODE", level="2-IB-DGX2-V100-NODE", index=0),
    }
    assert cluster.vcs["VC1"].cells[0] == Quota(
        chain="4-DGX2-V100-NODE", level="DGX2-V100-NODE", count=2
    )
    assert cluster.vcs["VC2"].cells[1] == Quota(
        chain="3-DGX1-P100-NODE", level="DGX1-P100-CPU-SOCKET", count=2
    )
