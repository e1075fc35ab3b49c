"""The picture of the cell tree: well-formed, and everybody in it is named."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from skep.wire.admin import QuarantineGpu, SetVcs
from skep.wire.cluster import Chain, Level, NodeCell, Pin, Quota, VirtualCluster
from skep_services.gateway.cells import cells_view
from skep_services.gateway.picture import CELLS_MAX, NODES_MAX, picture
from tests.gateway_kit import Cluster, job_of
from tests.kit import joined, spec

SVG = "{http://www.w3.org/2000/svg}"


def racks(nodes: int, per_rack: int = 2) -> SetVcs:
    """Return racks of 2-GPU nodes: one rack is vision's own by a pin, nlp owns half of the rest."""
    chain = Chain(
        gpu="cpu",
        levels=(Level(name="node", fanout=2), Level(name="rack", fanout=per_rack)),
        node_level="node",
        nodes=tuple(NodeCell(node=f"node-{at}") for at in range(1, nodes + 1)),
        names={"rack/0": "left & <first>"},
    )
    nlp = Quota(chain="c", level="node", count=per_rack)
    return SetVcs(
        vcs={"nlp": VirtualCluster(cells=(nlp,)), "vision": VirtualCluster(pinned=("mine",))},
        chains={"c": chain},
        pins={"mine": Pin(chain="c", level="rack", index=0)},
    )


def cluster_of(nodes: int, per_rack: int = 2) -> Cluster:
    cluster = Cluster()
    for number in range(1, nodes + 1):
        cluster.join(joined(f"node-{number}", 2))
    asked = racks(nodes, per_rack)
    cluster.heard(asked, 0)
    cluster._record("ADMISSION", "admission", cluster.admission(asked, 0), 0)
    return cluster


def drawn(cluster: Cluster, vc: str = "") -> ElementTree.Element:
    fold = cluster.fold
    chains = cells_view(fold.state.cells, vc)
    return ElementTree.fromstring(picture(chains, sorted(fold.state.cells.cluster.vcs)))


def words(svg: ElementTree.Element, kind: str = "text") -> list[str]:
    return [one.text or "" for one in svg.iter(f"{SVG}{kind}")]


def test_owners_holders_borrowers_and_bad_gpus_are_drawn() -> None:
    cluster = cluster_of(4)
    cluster.submit(spec(gpus=2, vc="vision", pinned="mine"))
    cluster.submit(spec(gpus=2))
    cluster.submit(spec(gpus=1, opportunistic=True))
    cluster.heard(QuarantineGpu(node="node-4", device=1), 2)
    svg = drawn(cluster)
    labels = words(svg)
    assert labels[:3] == ["nlp", "vision", "idle"]
    assert "c: 4 nodes, 8 GPUs (cpu)" in labels
    assert any(label.startswith("left & <first>") and "vision" in label for label in labels)
    for job, holder in (("j1", "j1"), ("j2", "j2"), ("j3", "(j3)")):
        node = job_of(cluster.fold, job).row.place.partition(":")[0]
        assert any(node in label and holder in label for label in labels), labels
    told = words(svg, "title")
    assert "rack left & <first>; of vision (pinned as mine)" in told
    assert sum(text.endswith("; j2 of nlp") for text in told) == 3  # The node and two GPUs.
    assert sum(text.endswith("; j3 of nlp, borrowed") for text in told) == 1
    assert any(text.endswith("node-4/gpu 1; bad") for text in told)
    fills = [one.get("fill") for one in svg.iter(f"{SVG}rect")]
    assert fills.count("url(#hatch-nlp)") == 1
    assert len([one for one in svg.iter(f"{SVG}path") if one.get("class") == "bad"]) == 1
    assert len([one for one in told if one.startswith("gpu ")]) == 8


def test_what_is_reserved_is_dashed_and_says_for_whom() -> None:
    cluster = cluster_of(4)
    for _ in range(4):
        cluster.submit(spec(gpus=2, opportunistic=True))
    cluster.submit(spec(gpus=2))
    svg = drawn(cluster)
    assert len([one for one in svg.iter(f"{SVG}rect") if one.get("stroke-dasharray")]) == 2
    assert sum("reserved for j5" in text for text in words(svg, "title")) >= 2
    assert any("→j5" in label for label in words(svg))


def test_a_tenant_does_not_see_who_the_others_are() -> None:
    cluster = cluster_of(4)
    cluster.submit(spec(gpus=2, vc="vision", pinned="mine"))
    cluster.submit(spec(gpus=2))
    told = " ".join([*words(drawn(cluster, "nlp"), "title"), *words(drawn(cluster, "nlp"))[3:]])
    assert "j2 of nlp" in told
    assert "j1" not in told
    assert "vision" not in told.replace("vision  idle", "")


def test_large_chains_are_told_by_a_bar_for_each_cell() -> None:
    cluster = cluster_of(NODES_MAX + 4, per_rack=4)
    cluster.submit(spec(gpus=2, vc="vision", pinned="mine"))
    cluster.submit(spec(gpus=1, opportunistic=True))
    svg = drawn(cluster)
    labels = words(svg)
    assert "left & <first>" in labels
    assert any("of 8 GPUs in use or bad" in label for label in labels)
    told = words(svg, "title")
    assert "vision uses 2 of 8 GPUs" in told
    assert "nlp borrows 1 of 8 GPUs" in told
    assert not any(text.startswith("gpu ") for text in told)


def test_very_large_chains_end_with_how_many_more_there_are() -> None:
    cells: list[dict[str, Any]] = [
        {"level": "node", "address": f"n{at}", "gpus": 2, "idle": 2} for at in range(CELLS_MAX + 5)
    ]
    levels = [{"level": "gpu", "gpus": 1}, {"level": "node", "gpus": 2}]
    chain = {"chain": "c", "gpu": "x", "node_level": "node", "levels": levels, "cells": cells}
    assert "and 5 more cells of level node" in picture([chain], [])


def test_a_cluster_without_nodes_has_a_picture_too() -> None:
    assert "no cells yet: no node has joined" in picture([], [])
