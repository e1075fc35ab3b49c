"""`skep vc`: what is asked of the gateway, what is printed, and what is refused."""

from __future__ import annotations

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
  v100: {gpu: v100, levels: {node: 2, rack: 2}, nodes: "a-[1-2]"}
pinned: {mine: v100/node/a-1}
vcs:
  nlp: {cells: {v100/node: 1}, weight: 2}
  vision: {pinned: [mine]}
"""

KIND = {
    "chain": "v100",
    "level": "node",
    "pin": "",
    "gpus": 4,
    "owned": 2,
    "bound": 1,
    "free": 1,
    "bad": 1,
}
CELL = {
    "chain": "v100",
    "level": "node",
    "address": "left/a-1",
    "pin": "",
    "gpus": 4,
    "idle": 1,
    "bad": 1,
    "doomed": False,
    "jobs": [
        {"job": "j1", "vc": "nlp", "gpus": 2, "borrowed": False, "reserved": False},
        {"job": "j2", "vc": "vision", "gpus": 1, "borrowed": True, "reserved": False},
        {"job": "j3", "vc": "nlp", "gpus": 1, "borrowed": False, "reserved": True},
    ],
}
VC = {
    "vc": "nlp",
    "gpus": 8,
    "asked": 10,
    "weight": 2.0,
    "jobs_max": 100,
    "policy": "fifo",
    "options": {},
    "used": 2,
    "borrowed": 4,
    "running": 2,
    "suspended": 1,
    "queued": 3,
    "cells": [KIND, {**KIND, "pin": "mine", "bad": 0}],
    "bound": [CELL, {**CELL, "pin": "mine", "doomed": True, "jobs": [], "bad": 0}],
    "borrowers": [{"job": "j9", "gpus": 4, "nodes": ["a-2", "b-1"]}],
}
SIDE = {"gpus": 2, "cells": {"v100/node": 1}, "pinned": ["mine"], "weight": 2.0, "jobs_max": 9}
PLAN = {
    "jobs": [
        {"job": "j1", "vc": "nlp", "fate": "kept", "gpus": 2, "place": "a-1:0,1", "astray": []},
        {
            "job": "j2",
            "vc": "nlp",
            "fate": "demoted",
            "gpus": 2,
            "place": "a-2:0,1",
            "astray": ["a-2:1"],
        },
        {"job": "j3", "vc": "old", "fate": "released", "gpus": 1, "place": "", "astray": []},
    ],
    "vcs": [
        {"vc": "nlp", "before": None, "after": SIDE, "changes": True, "asked": 4},
        {"vc": "old", "before": SIDE, "after": None, "changes": True, "asked": 0},
    ],
    "missing": ["a-9"],
}


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
    Path("cluster.yaml").write_text(FILE)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


# --- showing --------------------------------------------------------------------------------------


def test_the_virtual_clusters_and_their_cells_are_listed(gateway: FakeGateway, run: Run) -> None:
    other = {**VC, "vc": "x", "gpus": 10, "cells": []}
    gateway.on("GET /v1/usage", {"vcs": [VC, other]})
    lines = run("vc", "ls")[1].splitlines()
    assert lines[1].split()[:8] == ["nlp", "8", "of", "10", "2", "4", "2", "1"]
    assert lines[1].endswith("1/2 v100/node (1 bad), 1/2 mine")
    assert lines[2].split() == ["x", "10", "2", "4", "2", "1", "3", "fifo", "2", "100", "-"]
    assert json.loads(run("vc", "ls", "--json")[1])["vcs"] == [VC, other]
    gateway.on("GET /v1/usage", {"vcs": []})
    assert "no virtual clusters" in run("vc", "ls")[2]


def test_a_virtual_cluster_is_shown_with_who_is_inside(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/vcs/nlp/usage", VC)
    out = run("vc", "show", "nlp")[1]
    head = (
        "nlp: 8 GPUs (10 asked for), weight 2; 2 used in its cells, 4 borrowed; "
        "2 running, 1 suspended, 3 queued"
    )
    assert out.splitlines()[0] == head
    assert "j1 (j2) →j3" in out
    assert "[mine] borne by this VC: bad" in out
    assert out.splitlines()[-1] == "j9 borrows 4 GPUs on a-2 b-1"
    assert json.loads(run("vc", "show", "nlp", "--json")[1]) == VC
    bare = {**VC, "asked": 8, "cells": [], "bound": [], "borrowers": []}
    gateway.on("GET /v1/vcs/nlp/usage", bare)
    assert len(run("vc", "show", "nlp")[1].splitlines()) == 1
    assert run("vc", "show", "x")[0] == 3


def test_usage_says_by_which_right_jobs_hold_gpus(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/usage", {"vcs": [VC]})
    gateway.on("GET /v1/vcs/nlp/usage", VC)
    assert [line.split() for line in run("vc", "usage")[1].splitlines()[1:]] == [
        ["nlp", "j1", "2", "owned", "left/a-1"],
        ["nlp", "j3", "1", "reserved", "left/a-1"],
        ["nlp", "j9", "4", "borrowed", "a-2", "b-1"],
    ]
    assert json.loads(run("vc", "usage", "nlp", "--json")[1]) == {"vcs": [VC]}
    gateway.on("GET /v1/usage", {"vcs": []})
    assert "no job holds GPUs" in run("vc", "usage")[2]


def test_the_tree_is_written_as_a_picture(gateway: FakeGateway, run: Run) -> None:
    tree: dict[str, Any] = {"chains": []}
    gateway.on("GET /v1/cells", tree)
    gateway.on("GET /v1/cells.svg", "<svg/>")
    assert json.loads(run("vc", "tree", "--json", "--chain", "a b")[1]) == tree
    assert gateway.last("GET /v1/cells").query == {"chain": "a b"}
    assert run("vc", "tree")[1] == '"<svg/>"\n'
    code, out, err = run("vc", "tree", "--out", "cells.svg")
    assert (code, out, err) == (0, "", "written to cells.svg\n")
    assert Path("cells.svg").read_text() == '"<svg/>"'
    assert run("vc", "tree", "--out", "no/such/folder")[0] == 1


# --- changing -------------------------------------------------------------------------------------


def test_a_plan_tells_what_becomes_of_whom(gateway: FakeGateway, run: Run) -> None:
    gateway.on("POST /v1/cells/plan", PLAN)
    code, out, err = run("vc", "plan", "cluster.yaml")
    assert code == 0
    sent = gateway.last("POST /v1/cells/plan").json()
    assert sent["vcs"]["nlp"]["cells"] == [{"chain": "v100", "level": "node", "count": 1}]
    assert sent["pins"] == {"mine": {"chain": "v100", "level": "node", "index": 0}}
    assert [node["node"] for node in sent["chains"]["v100"]["nodes"]] == ["a-1", "a-2"]
    assert "goes on as opportunistic, on a-2:1 outside its cells" in out
    assert "gets other cells reserved" in out
    assert "j1" not in out
    assert "1×v100/node mine" in out
    assert "gone" in out
    assert "nlp asks for 4 GPUs and gets 2 until more nodes join" in err
    assert "not joined yet, and bad until then: a-9" in err
    assert "2 jobs affected, 1 stay as they are, none is stopped" in err
    assert json.loads(run("vc", "plan", "--json", "cluster.yaml")[1]) == PLAN
    gateway.on("POST /v1/cells/plan", {"jobs": [], "vcs": [], "missing": []})
    assert run("vc", "plan", "cluster.yaml")[1] == ""


def test_what_is_applied_is_planned_first(gateway: FakeGateway, run: Run) -> None:
    gateway.on("POST /v1/cells/plan", PLAN)
    gateway.on("POST /v1/admin/vcs", {})
    code, out, err = run("vc", "apply", "cluster.yaml")
    assert code == 0
    assert "goes on as opportunistic" in out
    assert "asked for" in err
    assert [one.path for one in gateway.asked] == ["/v1/cells/plan", "/v1/admin/vcs"]
    assert gateway.asked[0].json() == gateway.asked[1].json()
    Path("short.yaml").write_text("research: 6\nproduction: {gpus: 2, jobs_max: 5}\n")
    told = json.loads(run("vc", "apply", "--json", "short.yaml")[1])
    assert told["asked"] == {
        "vcs": {"research": {"gpus": 6}, "production": {"gpus": 2, "weight": 1.0, "jobs_max": 5}}
    }
    assert told["jobs"] == PLAN["jobs"]


def test_a_mistake_in_the_file_is_told_and_nothing_asked(gateway: FakeGateway, run: Run) -> None:
    Path("wrong.yaml").write_text(FILE.replace("v100/node: 1", "v100/node: 3"))
    for verb in ("plan", "apply", "check"):
        code, _, err = run("vc", verb, "wrong.yaml")
        assert (code, "infeasible" in err) == (1, True)
    assert gateway.asked == []
    gateway.on("POST /v1/cells/plan", PLAN)
    gateway.refuse("POST /v1/admin/vcs", 403, "forbidden", "only an operator may do this")
    assert run("vc", "apply", "cluster.yaml")[0] == 1


def test_words_that_make_no_sense_are_refused(run: Run) -> None:
    for words in (
        ("ls", "file"),
        ("tree", "file"),
        ("show",),
        ("check",),
        ("plan",),
        ("apply",),
        ("ls", "--out", "x"),
        ("show", "nlp", "--chain", "c"),
        ("set", "file"),
    ):
        assert run("vc", *words)[0] == 2
