"""`skep search`: what it sends, what it shows, and its picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from skep_services.cli.main import main
from skep_services.cli.searchplot import TRIALS_SHOWN, picture
from tests.cli_kit import FakeGateway, fake_gateway
from tests.search_kit import tree

Run = Callable[..., tuple[int, str, str]]

SVG = "{http://www.w3.org/2000/svg}"
SPEC = """\
name: find
vc: nlp
metric: accuracy
direction: maximize
job: {script: train.py, args: ["--lr={lr}"]}
space:
  lr: {log: [0.001, 1.0]}
budget: {trials: 6}
parallel: 2
"""


def trial(number: int, **changes: Any) -> dict[str, Any]:
    points = [[10 * at, 0.1 * at + 0.01 * number] for at in range(1, 4)]
    given = {
        "trial": number,
        "job": f"j{number + 10}",
        "params": {"lr": 0.01234567, "kind": "a"},
        "stand": "running",
        "end": None,
        "why": "first-feedback",
        "wanted": True,
        "since": 0,
        "ran_ns": 5_000_000_000,
        "step": 30,
        "value": points[-1][1],
        "best": points[-1][1],
        "best_step": 30,
        "promise": 0.87654,
        "spread": 0.01,
        "chance": 0.5,
        "bracket": 0,
        "rung": 1,
        "rungs": [10, 30, 90],
        "reached": [0.1, 0.3],
        "points": points,
    }
    return {**given, **changes}


def shown(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    best = {"trial": 1, "job": "j11", "value": 0.31, "step": 30, "params": {"lr": 0.01234567}}
    given = {
        "search": "s3",
        "name": "find & see",
        "vc": "nlp",
        "state": "active",
        "why": None,
        "method": "curves",
        "metric": "accuracy",
        "direction": "maximize",
        "target": 0.9,
        "began_at": 0,
        "ended_at": None,
        "trials": len(rows),
        "trials_max": 6,
        "stands": {"running": len(rows)},
        "gpu_ns": 60_000_000_000,
        "gpu_time_s": 3600,
        "best": best if rows else None,
        "rows": rows,
        "spec": {**tree(), "exclusive": 1},
    }
    return {**given, **changes}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))
    Path("search.yaml").write_text(SPEC)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_a_search_is_submitted_with_the_folder_it_is_from(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    gateway.on("POST /v1/searches", {"search": "s3", "accepted": True, "repeated": False})
    words = ("search", "submit", "search.yaml", "--set", "budget.trials=7", "--key", "k")
    assert run(*words) == (0, "s3 find submitted\n", "")
    sent = gateway.asked[-1]
    assert sent.headers["idempotency-key"] == "k"
    assert sent.json()["budget"] == {"trials": 7}
    assert sent.json()["job"]["workdir"] == str(tmp_path)
    assert json.loads(run(*words, "--json")[1])["search"] == "s3"


def test_a_wrong_search_is_not_sent(gateway: FakeGateway, run: Run) -> None:
    Path("search.yaml").write_text(SPEC.replace("trials: 6", "trails: 6"))
    code, out, err = run("search", "submit", "search.yaml", "--json")
    assert code == 1
    assert "search.yaml:8: $.budget" in err
    assert json.loads(out)["error"]["problems"]
    assert not gateway.asked


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("list", "s3"),
        ("tell", "s3"),
        ("cancel", "s3", "--step", "3"),
        ("tell", "s3", "1"),
        ("ask", "s3", "--param", "lr"),
        ("submit", "no.yaml"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    gateway: FakeGateway, run: Run, words: tuple[str, ...]
) -> None:
    assert run("search", *words)[0] == 2
    assert not gateway.asked


def test_all_trials_of_a_search_are_shown(gateway: FakeGateway, run: Run) -> None:
    other = trial(2, job="", stand="over", end="given-up", why="no-promise", promise=None, rungs=[])
    gateway.on("GET /v1/searches/s3", shown([trial(1), other]))
    lines = run("search", "show", "s3")[1].splitlines()
    assert lines[0] == "s3  find & see  active"
    assert "1m00s of 1h00m" in "\n".join(lines)
    assert "the 1 best keep their GPUs" in "\n".join(lines)
    assert lines[-2].split() == [
        "1",
        "j11",
        "running",
        "first-feedback",
        "30",
        "0.31",
        "0.31",
        "0.8765",
        "2/3",
        "5.0s",
        "lr=0.01235",
        "kind=a",
    ]
    assert lines[-1].split()[:10] == [
        "2",
        "-",
        "given-up",
        "no-promise",
        "30",
        "0.32",
        "0.32",
        "-",
        "-",
        "5.0s",
    ]
    assert json.loads(run("search", "show", "s3", "--json")[1])["search"] == "s3"
    assert run("search", "show", "s4")[0] == 3


def test_searches_are_listed(gateway: FakeGateway, run: Run) -> None:
    one = {key: value for key, value in shown([trial(1)]).items() if key not in ("rows", "spec")}
    gateway.on("GET /v1/searches", {"searches": [one]})
    line = run("search", "list", "--state", "active", "--vc", "nlp")[1].splitlines()[1]
    assert line.split() == [
        "s3",
        "find",
        "&",
        "see",
        "nlp",
        "active",
        "-",
        "1/6",
        "1",
        "accuracy",
        "0.31",
        "1",
        "1m00s",
    ]
    assert gateway.asked[-1].query == {"vc": "nlp", "state": "active"}
    gateway.on("GET /v1/searches", {"searches": []})
    assert "no searches" in run("search", "list")[2]


def test_trials_are_asked_for_told_of_and_cancelled(gateway: FakeGateway, run: Run) -> None:
    answer = {"search": "s3", "trial": 4, "params": {"lr": 0.5, "kind": "adam"}}
    gateway.on("POST /v1/searches/s3/trials", answer)
    out = run("search", "ask", "s3", "--outside", "--param", "lr=0.5", "--param", "kind=adam")[1]
    assert out == "trial 4 of s3: lr=0.5 kind=adam\n"
    assert gateway.asked[-1].json() == {"outside": True, "params": {"lr": 0.5, "kind": "adam"}}
    gateway.on("POST /v1/searches/s3/trials/4", {"search": "s3", "trial": 4, "accepted": True})
    run("search", "tell", "s3", "4", "--step", "10", "--value", "0")
    assert gateway.asked[-1].json() == {"step": 10, "value": 0.0, "over": ""}
    run("search", "tell", "s3", "4", "--over", "done")
    assert gateway.asked[-1].json() == {"step": 0, "value": None, "over": "done"}
    for verb, where in (("demote", "behind all others"), ("promote", "among the others again")):
        told = {"search": "s3", "trial": 4, "accepted": True}
        gateway.on(f"POST /v1/searches/s3/trials/4/{verb}", told)
        assert where in run("search", verb, "s3", "4")[1]
    gateway.on("DELETE /v1/searches/s3", {"search": "s3", "accepted": True})
    assert "every trial" in run("search", "cancel", "s3")[1]


def test_the_picture_has_every_curve_and_rung(gateway: FakeGateway, run: Run) -> None:
    rows = [trial(1), trial(2, step=80), trial(3, points=[], reached=[], step=0, value=None)]
    gateway.on("GET /v1/searches/s3", shown(rows))
    assert run("search", "plot", "s3", "-o", "out.svg")[0] == 0
    drawn = ElementTree.fromstring(Path("out.svg").read_text())
    assert len(drawn.findall(f"{SVG}polyline")) == 2
    words = [each.text for each in drawn.iter(f"{SVG}text")]
    assert {"10", "30", "target 0.9"} <= set(words)
    assert "s3 find & see: 3 trials, active, best accuracy 0.31" in words


def test_a_picture_of_nothing_and_of_very_many_trials_is_well_formed() -> None:
    for rows in ([], [trial(number) for number in range(1, TRIALS_SHOWN + 50)]):
        drawn = ElementTree.fromstring(picture(shown(rows, target=None)))
        assert len(list(drawn.iter(f"{SVG}polyline"))) == len(rows)
