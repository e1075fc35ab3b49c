"""`skep cluster` and `skep vc check`: what is printed, written and refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli.main import main
from tests.cli_kit import FakeGateway, fake_gateway

Run = Callable[..., tuple[int, str, str]]

FILE = """\
chains:
  v100:
    gpu: v100
    levels: {pair: 2, node: 2, rack: 2}
    nodes: a-[1-4]
pinned: {mine: v100/node/a-1}
vcs:
  nlp: {cells: {v100/pair: 1}, pinned: [mine], weight: 2}
  vision: 3
"""

HIVED = """\
webServerAddress: ":9096"
physicalCluster:
  cellTypes:
    NODE: {childCellType: V100, childCellNumber: 4, isNodeLevel: true}
  physicalCells: [{cellType: NODE, cellAddress: a-1}]
virtualClusters:
  nlp: {virtualCells: [{cellType: NODE, cellNumber: 1}]}
"""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def write(text: str, name: str = "cluster.yaml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def gpu(node: str, index: int, kind: str = "v100") -> dict[str, Any]:
    return {"node": node, "index": index, "type": kind, "memory": 2**30, "job": None, "vc": None}


# --- init -----------------------------------------------------------------------------------------


def test_init_proposes_what_joined(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/gpus", {"gpus": [gpu(f"a{at}", 0) for at in (10, 9)]})
    code, out, err = run("cluster", "init")
    assert (code, err) == (0, "")
    assert "    nodes: a[9-10]\n" in out
    assert out.startswith("# A cluster of Skep's")
    code, out, err = run("cluster", "init", "--out", "made.yaml")
    assert (code, out) == (0, "")
    assert "skep cluster check made.yaml" in err
    assert run("cluster", "check", "made.yaml")[0] == 0
    code, out, err = run("cluster", "init", "--out", "made.yaml")
    assert (code, out) == (1, "")
    assert "is there already" in err
    assert run("cluster", "init", "--out", "no/folder")[0] == 1
    answer = json.loads(run("cluster", "init", "--json")[1])
    assert answer["cluster"]["chains"]["v100x1"]["nodes"] == [{"node": "a9"}, {"node": "a10"}]
    assert answer["yaml"].startswith("# A cluster")


def test_init_without_nodes_or_cluster(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/gpus", {"gpus": []})
    code, _, err = run("cluster", "init")
    assert code == 1
    assert "no node with a GPU has joined" in err


def test_init_without_a_cluster(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKEP_API", raising=False)
    assert run("cluster", "init")[0] == 4


def test_wrong_use(run: Run) -> None:
    assert run("cluster", "init", "file")[0] == 2
    assert run("cluster", "check")[0] == 2
    assert run("cluster", "import")[0] == 2
    assert run("cluster", "check", "a", "--out", "b")[0] == 2
    assert run("cluster", "check", "missing.yaml")[0] == 2
    assert run("cluster", "check", write("a: 1\n---\nb: 2\n"))[0] == 2
    assert run("vc", "check")[0] == 2


# --- check ----------------------------------------------------------------------------------------


def test_a_good_file_is_summed_up(run: Run) -> None:
    for command in (("cluster", "check"), ("vc", "check")):
        code, out, err = run(*command, write(FILE))
        assert (code, err) == (0, "no mistake: 9 of 16 GPUs owned\n")
        rows = [line.split() for line in out.splitlines()]
        assert rows == [
            ["CHAIN", "GPU", "LEVEL", "CELLS", "OWNED", "LEFT"],
            ["v100", "v100", "rack", "2", "0", "0"],
            ["v100", "v100", "node", "4", "0", "1"],
            ["v100", "v100", "pair", "8", "2", "3"],
            ["v100", "v100", "gpu", "16", "1", "7"],
            [],
            ["VC", "GPUS", "WEIGHT", "POLICY", "CELLS"],
            ["nlp", "6", "2", "fifo", "1×v100/pair", "mine"],
            ["vision", "3", "1", "fifo", "1×v100/pair", "1×v100/gpu"],
        ]
    answer = json.loads(run("cluster", "check", "--json", "cluster.yaml")[1])
    assert answer["ok"] is True
    assert answer["vcs"]["nlp"]["pinned"] == ["mine"]
    assert answer["chains"]["v100"]["levels"][1] == {
        "level": "pair",
        "cells": 8,
        "owned": 2,
        "left": 3,
    }


def test_mistakes_are_told_with_file_and_line(run: Run) -> None:
    text = FILE.replace("rack: 2}", "rack: 3}").replace("weight", "weigth")
    code, out, err = run("cluster", "check", write(text))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "skep cluster: cluster.yaml is wrong:",
        "  cluster.yaml:5: $.chains.v100.nodes: 4 nodes do not fill cells of level 'rack', "
        "which have 3 nodes each (cells-not-full): add 2 or take 1 out",
        "  cluster.yaml:8: $.vcs.nlp.weigth: unknown key `weigth` (unknown-key): "
        "did you mean `weight`?",
    ]
    error = json.loads(run("cluster", "check", "cluster.yaml", "--json")[1])["error"]
    assert [one["path"] for one in error["problems"]] == ["$.chains.v100.nodes", "$.vcs.nlp.weigth"]
    assert error["problems"][0]["where"] == "cluster.yaml:5"
    code, _, err = run("vc", "check", write(FILE.replace("vision: 3", "vision: 11")))
    assert code == 1
    assert "own 11 GPUs by `gpus` where there are 10 after `cells` and `pinned`: 1 short" in err


def test_remarks_are_warnings(run: Run) -> None:
    code, _, err = run("cluster", "check", write(FILE.replace("a-[1-4]", "a.b,a-[1-3]")))
    assert code == 0
    assert "no agent can have this name: a.b" in err
    answer = json.loads(run("cluster", "check", "cluster.yaml", "--json")[1])
    assert [one["path"] for one in answer["warnings"]] == ["$.chains.v100.nodes"]


def test_host_lists_between_brackets_need_quotes(run: Run) -> None:
    code, _, err = run("cluster", "check", write(FILE.replace("a-[1-4]", "[a-[1-4]]")))
    assert code == 1
    assert 'needs quotes: nodes: ["a-[1-8]", b1]' in err
    assert "needs quotes" not in run("cluster", "check", write("a: [1\nb: 2"))[2]
    assert run("cluster", "check", write(""))[0] == 1


def test_a_file_on_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in ((FILE, 0), ("a: [b[1]]", 1)):
        stream = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr("sys.stdin", stream)
        assert run("cluster", "check", "-")[0] == code


def test_quotas_alone_are_measured_by_what_joined(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/gpus", {"gpus": [gpu("a", at) for at in range(4)]})
    code, out, err = run("vc", "check", write("nlp: {gpus: 3}\nrest: 1\n"))
    assert (code, err) == (0, "no mistake: 4 of 4 GPUs owned\n")
    assert out.splitlines()[-2].split() == [
        "nlp",
        "3",
        "1",
        "fifo",
        "1×v100x4/pair",
        "1×v100x4/gpu",
    ]
    code, _, err = run("vc", "check", write("vcs:\n  nlp: {gpus: 5}\n"))
    assert code == 1
    assert "cluster.yaml:1: $.vcs: the virtual clusters own 5 GPUs; 4 have joined: 1 short" in err
    gateway.refuse("GET /v1/gpus", 403, "forbidden", "not yours")
    assert run("vc", "check", "cluster.yaml")[0] == 1


def test_quotas_alone_without_a_cluster(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKEP_API", raising=False)
    code, _, err = run("vc", "check", write("vcs: {nlp: 5}"))
    assert code == 0
    assert "quotas are not checked" in err
    assert err.endswith("no mistake: 5 GPUs owned\n")


# --- import ---------------------------------------------------------------------------------------


def test_import(run: Run) -> None:
    code, out, err = run("cluster", "import", write(HIVED, "hived.yaml"))
    assert code == 0
    assert "nlp: {cells: {NODE/NODE: 1}}" in out
    assert err == (
        "hived.yaml:1: $.webServerAddress: `webServerAddress` is ignored: "
        "`skep up` says where the gateway listens (ignored-key)\n"
    )
    assert run("cluster", "import", "hived.yaml", "--out", "made.yaml")[0] == 0
    assert run("cluster", "check", "made.yaml")[0] == 0
    answer = json.loads(run("cluster", "import", "hived.yaml", "--json")[1])
    assert [one["reason"] for one in answer["warnings"]] == ["ignored-key"]
    code, _, err = run("cluster", "import", write(HIVED.replace("er: 1", "er: 2"), "hived.yaml"))
    assert code == 1
    assert "hived.yaml:6: $.virtualClusters: chain 'NODE', level 'NODE'" in err
    code, _, err = run("cluster", "check", "hived.yaml")
    assert "skep cluster import" in err
    assert run("cluster", "import", write("# nothing"))[1] == "version: 1\n"


def test_policies_are_listed_with_their_options_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["policies", "--json"]) == 0
    known = {one["policy"]: one for one in json.loads(capsys.readouterr().out)["policies"]}
    assert known["fifo"]["options"] == {}
    assert known["tiresias-l"]["options"]["thresholds"] == [3250]
    assert all(one["source"] and one["does"] for one in known.values())
    assert main(["policies", "tiresias-l"]) == 0
    assert "thresholds: [3250]" in capsys.readouterr().out
    assert main(["policies", "tiresia"]) != 0
    assert "did you mean tiresias-l?" in capsys.readouterr().err
