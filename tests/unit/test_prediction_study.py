"""Public measurements as points, profiles of them, and the table of errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skep.perf.model.placement import Placement, Point, Stratum
from skep.units import Duration
from skep_lab.measures import measured, profiles
from skep_lab.measures.profiles import PROFILES, profile
from skep_lab.measures.protocol import judged_on, tuned_on
from skep_lab.studies.prediction import Case, came_to, cases, text
from skep_lab.workloads import deepshare, dl2, elasticflow, gavel, pollux
from skep_services.cli.main import main
from tests import workload_kit as kit

Run = Callable[..., tuple[int, str, str]]

TABLES = (
    pollux.parse({"bert": kit.PLACEMENTS.splitlines()}, {"bert": kit.SCALABILITY.splitlines()}),
    elasticflow.parse({("a100", "gpt2"): kit.ELASTICFLOW.splitlines()}),
    gavel.parse(kit.GAVEL.splitlines()),
    deepshare.parse(kit.ISOLATED.splitlines()),
    dl2.parse(kit.DL2.splitlines()),
)


def step_s(points: list[Point], place: Placement) -> float:
    return next(each.step_ns for each in points if each.placement == place) / 1e9


def test_each_source_is_read_in_its_own_units() -> None:
    found = measured.families(TABLES)
    assert step_s(found["pollux-t4"]["bert"], Placement("t4", 4, 2, 8)) == 3.0
    assert step_s(found["pollux-t4"]["bert"], Placement("t4", 8, 6, 16)) == 3.5
    a100 = found["elasticflow-a100"]["gpt2"]
    assert step_s(a100, Placement("a100", 4, 1, 64.0)) == pytest.approx(1 / 12)
    v100 = found["gavel-v100"]["resnet50"]
    # Rates are of all workers together: 12 mini-batches of a worker are 3 of the gang.
    assert step_s(v100, Placement("v100", 4, 1, 64)) == pytest.approx(1 / 3)
    assert step_s(v100, Placement("v100", 4, 2, 64)) == pytest.approx(4 / 3)
    assert not any(each.placement.gpus == 1 and each.placement.nodes == 2 for each in v100)


def test_families_that_leave_nothing_to_predict_are_passed_over() -> None:
    found = measured.families(TABLES)
    assert found["deepshare"] == {}
    assert found["dl2"] == {}
    assert found["gavel-k80"] == {}


def test_workers_and_servers_have_a_node_each() -> None:
    more = kit.DL2 + "seq2seq,dist_sync,64,2,4,300\n"
    points = measured.families([dl2.parse(more.splitlines())])["dl2"]["seq2seq"]
    assert step_s(points, Placement("dl2", 4, 6, 16.0, 4, 2)) == pytest.approx(64 / 300)


GRID = [
    Point(Placement("t4", gpus, nodes, batch), Duration(10**9))
    for gpus, nodes in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (16, 4))
    for batch in (8, 16, 32)
]


@pytest.mark.parametrize(
    "name, places",
    [
        ("k1", [(1, 1, 16)]),
        ("k2", [(1, 1, 16), (2, 1, 16)]),
        ("k3", [(1, 1, 16), (2, 1, 16), (2, 2, 16)]),
        ("k4", [(1, 1, 16), (2, 1, 16), (2, 2, 16), (1, 1, 8)]),
        ("k6", [(1, 1, 16), (2, 1, 16), (2, 2, 16), (1, 1, 8), (4, 1, 16), (16, 4, 16)]),
        ("bng", [(1, 1, 16), (1, 1, 8), (1, 1, 32), (2, 1, 16), (4, 1, 8), (2, 2, 16), (16, 4, 8)]),
    ],
)
def test_profiles_measure_what_they_say(name: str, places: list[tuple[int, int, float]]) -> None:
    found = [GRID[at].placement for at in profile(GRID, name)]
    assert [(each.gpus, each.nodes, each.batch) for each in found] == places


def test_a_profile_never_measures_a_point_twice() -> None:
    for name in PROFILES:
        for points in (GRID[:2], GRID[3:6], GRID):
            chosen = profile(points, name)
            assert len(chosen) == len(set(chosen)) <= len(points)
    with pytest.raises(ValueError, match="k9"):
        profiles.profile(GRID, "k9")


def test_every_model_is_tuned_on_or_judged_and_none_is_both() -> None:
    models = ["b", "a", "d", "c", "e"]
    assert (tuned_on(models), judged_on(models)) == (("a", "c", "e"), ("b", "d"))


def case(model: str, error: float, blend: float, *, held: bool) -> Case:
    errors = {form: [error] for form in ("genie", "optimus", "theta", "prior", "process")}
    within = [(Stratum.NEAR, held), (Stratum.MORE_NODES, True)]
    return Case("pollux-t4", "k4", model, 4, {**errors, "blend": [blend]}, within, 1.5)


def test_figures_are_means_over_models_and_the_bar_is_one_point() -> None:
    found = came_to([case("a", 10, 12, held=True), case("b", 20, 19, held=False)])
    assert found.figures[0].mean["blend"] == 15.5
    assert found.figures[0].close
    assert found.coverage == 75
    assert found.strata == {Stratum.NEAR: (50.0, 2), Stratum.MORE_NODES: (100.0, 2)}
    assert found.worst[0].model == "b"
    assert not found.reached  # One data set of the six that it takes.
    far = came_to([case("a", 10, 11.1, held=True)])
    assert not far.figures[0].close
    assert "NOT close" in text(far, "x")


def test_the_study_leaves_the_predicted_model_out() -> None:
    """A model that all others say nothing about is predicted as if it had never been seen."""
    families = measured.families(TABLES)
    points = families["pollux-t4"]["bert"]
    slow = [
        Point(each.placement, Duration(each.step_ns * 3 + each.placement.gpus * 10**8))
        for each in points
    ]
    data = {"pollux-t4": {"bert": points, "slow": slow}}
    before = list(cases(data, ("k4",), lambda _: ["bert"]))
    changed = [
        each if at in profile(points, "k4") else Point(each.placement, Duration(each.step_ns * 9))
        for at, each in enumerate(points)
    ]
    after = list(
        cases({"pollux-t4": {**data["pollux-t4"], "bert": changed}}, ("k4",), lambda _: ["bert"])
    )
    assert len(before) == len(after) == 1
    assert before[0].points == 4
    told = [100 - each for each in after[0].errors["blend"]]
    was = [100 + each for each in before[0].errors["blend"]]
    assert told
    assert len(told) == len(was)
    # What is predicted is the same; only what it is compared with is nine times as long.
    for one, nine in zip(before[0].errors["prior"], after[0].errors["prior"], strict=True):
        assert any(abs(abs((1 + sign * one / 100) / 9 - 1) * 100 - nine) < 1e-6 for sign in (1, -1))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("SKEP_SHARED_DATA", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["speeds", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_the_command_prints_and_draws_the_table(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data/elasticflow/throughputs_A100"
    folder.mkdir(parents=True)
    for name, factor in (("bert", 1), ("gpt2", 2)):
        rows = [f"{batch},{factor * 8},{factor * 12},{factor * 16}" for batch in (64, 128)]
        (folder / f"{name}.csv").write_text("\n".join(["global_batch_size,1,2,4", *rows]))
    drawn = tmp_path / "errors.svg"
    code, out, err = run("--data", str(tmp_path / "data"), "--errors", "all", "--svg", str(drawn))
    assert code == 0
    assert "elasticflow-a100  k4" in out
    assert "nominal 80 %" in out
    assert "elasticflow-a100, k4" in err
    assert drawn.read_text().startswith("<svg")


def test_the_command_says_what_is_missing(run: Run) -> None:
    assert run("--errors", "judged")[0] == 2
    assert "SKEP_SHARED_DATA" in run("--errors", "judged")[2]
    code, _, err = run("bert", "--errors", "judged")
    assert code == 2
    assert "leave the model out" in err
