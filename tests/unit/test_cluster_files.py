"""The text of a cluster file: what is wrong with it and where, and that it comes back as it was."""

from __future__ import annotations

import pytest

from skep.cells.clustertext import to_yaml
from skep.wire.cluster import Cluster, FairShare, PersonLimits, Template, VirtualCluster
from skep_services.cluster_files import check


def test_a_cluster_comes_back_with_all_that_its_tenants_have() -> None:
    spec = {"resources": {"gpus": 2}, "env": {"A": "x: y # z"}}
    nlp = VirtualCluster(
        gpus=4,
        fair_share=FairShare(half_life=3600, weights={"ann b": 2.0}),
        limits=PersonLimits(gpus=2),
        templates={
            "small": Template(spec=spec, fixed=("resources.gpus",), about="one"),
            "t": Template(spec={}),
        },
    )
    cluster = Cluster(vcs={"nlp": nlp, "vision": VirtualCluster(gpus=2)})
    checked = check(to_yaml(cluster))
    assert (checked.problems, checked.cluster) == ((), cluster)


@pytest.mark.parametrize(
    "text, line, part",
    [
        ("vcs:\n  nlp: {gpu: 4}\n", 2, "gpu"),
        ("version: 1\nvcs:\n  nlp:\n    gpus: -1\n", 4, "gpus"),
        ("nlp: {gpus: 4}\nnlp: {gpus: 5}\n", 2, "given twice"),
        ("vcs: [\n", 2, "not YAML"),
        ("vcs: {}\n---\nvcs: {}\n", 3, "2 documents"),
        ("a: &x [*x]", 1, "contains itself"),
        ("- 1", 1, "object"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, part: str) -> None:
    checked = check(text)
    assert checked.cluster is None
    first = checked.problems[0]
    assert (first.line, part in f"{first.path} {first.text}") == (line, True), first


def test_a_list_of_hosts_without_quotes_is_explained() -> None:
    [problem] = check("chains:\n  v100: {nodes: [a-[1-8], b]}\n").problems
    assert "needs quotes" in problem.suggestion


def test_an_empty_text_asks_for_nothing() -> None:
    assert check("# nothing\n").cluster == Cluster()
