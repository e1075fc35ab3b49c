"""Specs of one file that name one another: their order, and how `skep submit` sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.wire.pipeline import Misfit, Order, order_of, resolved
from skep.wire.reasons import Reason
from skep_services.cli.main import main
from skep_services.cli.run import after_of
from tests.cli_kit import FakeGateway, Told, fake_gateway

Run = Callable[..., tuple[int, str, str]]


def job(name: str, **after: list[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {"name": name, "vc": "nlp", "command": "true"}
    return {**tree, "after": after} if after else tree


def misfits(*trees: Any) -> list[tuple[int, str, Reason, str]]:
    found = order_of(trees)
    assert isinstance(found, list)
    assert all(isinstance(each, Misfit) for each in found)
    return [
        (each.spec, each.problem.path, each.problem.reason, each.problem.text) for each in found
    ]


def test_specs_come_after_those_that_they_name() -> None:
    trees = [
        job("eval", ok=["train", "j7"], any=["prepare"]),
        job("train", ok=["prepare"]),
        job("prepare", any=["nightly"]),  # A job of the cluster.
        job("other"),
    ]
    order = order_of(trees)
    assert isinstance(order, Order)
    assert order.specs == (2, 1, 0, 3)
    assert resolved(trees[0], order.named[0], {1: "j12", 2: "j11"})["after"] == {
        "ok": ["j12", "j7"],
        "any": ["j11"],
    }
    assert resolved(trees[2], order.named[2], {}) is trees[2]


def test_cycles_are_told_with_their_jobs() -> None:
    assert misfits(job("a", ok=["c"]), job("b", ok=["a"]), job("c", any=["j1", "b"]), job("d")) == [
        (
            0,
            "$.after.ok[0]",
            Reason.DEPENDENCY_CYCLE,
            "these jobs wait for one another: a -> c -> b -> a",
        )
    ]
    assert misfits(job("a", ok=["a"])) == [
        (0, "$.after.ok[0]", Reason.DEPENDENCY_CYCLE, "`a` waits for itself")
    ]
    # What only leads to a cycle is not told, and of a long one a part.
    ring = [job(f"n{number}", ok=[f"n{(number + 1) % 9}"]) for number in range(9)]
    ((spec, _, _, text),) = misfits(job("before", ok=["n3"]), *ring)
    assert spec == 4
    assert text == ("these jobs wait for one another: n3 -> n4 -> n5 -> n6 -> n7 -> 4 more -> n3")


def test_a_name_of_several_specs_is_told() -> None:
    assert misfits(job("a"), job("a"), job("b", fail=["a"])) == [
        (2, "$.after.fail[0]", Reason.AMBIGUOUS_NAME, "2 jobs of this file have the name `a`")
    ]


def test_what_is_no_spec_names_nothing() -> None:
    wrong: list[Any] = [None, [], {"name": 3}, {"after": 5}, {"after": {"ok": "a"}}]
    order = order_of([*wrong, {"after": {"ok": [3, {}]}}])
    assert isinstance(order, Order)
    assert order.specs == tuple(range(6))


def test_a_long_line_is_ordered_at_once() -> None:
    order = order_of([job(f"n{n}", ok=[f"n{n + 1}"]) for n in range(5000)])
    assert isinstance(order, Order)
    assert order.specs[:2] == (4999, 4998)


# --- skep submit ---------------------------------------------------------------------------------

FILE = """
name: eval
vc: nlp
command: echo
after: {ok: [train], any: [j3]}
---
name: train
vc: nlp
command: echo
"""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.chdir(tmp_path)
        numbers = iter(range(11, 100))
        made.on(
            "POST /v1/jobs", lambda _: Told(201, {"job": f"j{next(numbers)}", "accepted": True})
        )
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_a_pipeline_is_submitted_in_its_order(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE)
    code, out, _ = run("submit", str(path), "--key", "k")
    assert (code, out) == (0, "j12 eval submitted\nj11 train submitted\n")
    first, second = [asked for asked in gateway.asked if asked.method == "POST"]
    assert (first.json()["name"], first.headers["idempotency-key"]) == ("train", "k-1")
    assert second.json()["after"] == {"ok": ["j11"], "any": ["j3"]}
    assert second.headers["idempotency-key"] == "k"


def test_a_cycle_is_refused_with_its_line(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE.rstrip() + "\nafter: {any: [eval]}\n")
    code, _, err = run("submit", str(path))
    assert code == 1
    assert f"{path}:5: $.after.ok[0]: these jobs wait for one another: eval -> train -> eval" in err
    assert not gateway.asked


def test_of_a_pipeline_all_or_nothing_is_submitted(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE)
    problem = {"path": "$.after.any[0]", "reason": "unknown-job", "text": "no job j3"}
    answers = iter(
        (
            Told(201, {"job": "j11", "accepted": True}),
            Told(422, {"error": {"reason": "unknown-job", "text": "no", "problems": [problem]}}),
        )
    )
    gateway.on("POST /v1/jobs", lambda _: next(answers))
    gateway.on("DELETE /v1/jobs/j11", {"job": "j11", "accepted": True})
    code, _, err = run("submit", str(path))
    assert code == 1
    assert "$.after.any[0]: no job j3 (unknown-job)" in err
    assert "`eval` of the same file was refused: j11 is cancelled" in err
    assert [asked.path for asked in gateway.asked if asked.method == "DELETE"] == ["/v1/jobs/j11"]


def test_words_of_the_command_line() -> None:
    assert after_of(["j3", "any:train", "fail:j4", "ok:j5", "odd:name"]) == {
        "ok": ["j3", "j5", "odd:name"],
        "any": ["train"],
        "fail": ["j4"],
    }


# --- max_parallel ---------------------------------------------------------------------------------

HEAD = "max_parallel: 2\n---"


def sent(gateway: FakeGateway) -> list[Any]:
    return [asked.json().get("pipeline") for asked in gateway.asked if asked.method == "POST"]


def test_the_jobs_of_a_file_have_one_bound(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(HEAD + FILE)
    code, out, _ = run("submit", str(path), "--key", "k")
    first, second = sent(gateway)
    assert code == 0
    assert first == second == {"name": first["name"], "max_parallel": 2}
    assert first["name"].startswith("eval-")
    told = f"pipeline {first['name']}: at most 2 of the 2 jobs of {path} at the same time"
    assert out.splitlines()[-1] == told

    gateway.asked.clear()
    run("submit", str(path), "--key", "k")  # The same key: the same pipeline.
    assert sent(gateway) == [first, first]
    gateway.asked.clear()
    run("submit", str(path))
    assert sent(gateway)[0] != first

    path.write_text("pipeline: nightly\nmax_parallel: 3\n---\nname: one\nvc: nlp\ncommand: echo\n")
    code, out, _ = run("submit", str(path), "--json")
    assert (code, sent(gateway)[-1]) == (0, {"name": "nightly", "max_parallel": 3})
    assert '"pipelines"' in out


@pytest.mark.parametrize(
    "head, text",
    [
        ("max_parallel: 0", "$.max_parallel: `max_parallel` must be 1 to 10000, not 0"),
        ("max_parallel: -3", "$.max_parallel: `max_parallel` must be 1 to 10000, not -3"),
        ("max_parallel: 10001", "$.max_parallel: `max_parallel` must be 1 to 10000, not 10001"),
        (f"max_parallel: {'9' * 40}", "$.max_parallel: `max_parallel` must be 1 to 10000"),
        ("max_parallel: many", "$.max_parallel: `max_parallel` must be a number, not 'many'"),
        ("max_parallel: 1.5", "$.max_parallel: `max_parallel` must be a number, not 1.5"),
        ("max_parallel: yes", "$.max_parallel: `max_parallel` must be a number, not True"),
        ("pipeline: a", "$: `max_parallel` is required beside `pipeline`, such as 4"),
        ("pipeline: a b\nmax_parallel: 1", "$.pipeline: `name` must be a name of letters"),
        ("pipeline: {}\nmax_parallel: 1", "$.pipeline: `pipeline` must be a name, not {}"),
        ("max_parallel: 1\n---\nmax_parallel: 2", "$: the file has one such document already"),
    ],
)
def test_a_wrong_bound_is_refused(
    head: str, text: str, gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"{head}\n---{FILE}")
    code, _, err = run("submit", str(path))
    assert code == 1
    assert f"{path}:" in err
    assert text in err
    assert not gateway.asked


def test_a_bound_of_one_job_is_refused(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for content, text in (
        ("max_parallel: 2", "$: it bounds the jobs of its file, and there is none"),
        (
            "max_parallel: 2\n---\nname: a\nvc: nlp\ncommand: echo\n",
            "`max_parallel` bounds the jobs of a pipeline, and the file has one job (leave it out",
        ),
        (
            "name: a\nvc: nlp\ncommand: echo\nmax_parallel: 2\n",
            "`max_parallel` bounds the jobs of a pipeline, and this is one job (unknown-key): put",
        ),
    ):
        path.write_text(content)
        code, _, err = run("submit", str(path))
        assert (code, text in err) == (1, True), err
    assert not gateway.asked
