"""Training runs on disk: they go on bit for bit, and say in one line what is wrong with them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skep_services.cli.main import main
from skep_services.learning import curves, learners, rollouts, runs
from skep_services.learning.problems import LearningError, Why
from tests import learner_kit as kit

Run = Callable[..., tuple[int, str, str]]
KIT = learners.About("tests.learner_kit", "walks towards a point", "tests.learner_kit:episode")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(learners.LEARNERS, "walk", KIT)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["learn", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir())}


def played(folder: Path, head: runs.Head, stop_at: int, *, resume: bool) -> runs.Trained:
    runs.begin(folder, head, resume=resume)
    learner = learners.find(head.learner)
    told: list[int] = []

    def tell(point: runs.Point) -> bool:
        told.append(point.step)
        return point.step != stop_at

    return runs.train(learner, head, folder, clock=lambda: 0.0, tell=tell)


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    head = runs.Head("walk", {"steps": 7, "rate": 0.25}, seed=3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = played(whole, head, 0, resume=False)
    assert done.result is not None
    assert played(parts, head, 2, resume=False) == (None, 2, 7)
    assert played(parts, head, 5, resume=True) == (None, 5, 7)
    assert played(parts, head, 0, resume=True) == done
    assert files(whole) == files(parts)
    assert played(parts, head, 0, resume=True).result == done.result  # Once more: it is done.
    assert files(whole) == files(parts)
    assert [point.step for point in runs.read_curve(parts)] == [1, 2, 3, 4, 5, 6, 7]


def test_points_after_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    head = runs.Head("walk", {"steps": 6}, seed=1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    played(whole, head, 0, resume=False)
    played(parts, head, 3, resume=False)
    with (parts / runs.CURVE).open("ab") as curve:
        curve.write(b'{"step":4,"of":6,"values":{"worst":9}}\n{"step":5,"of"')  # Killed here.
    played(parts, head, 0, resume=True)
    assert files(whole) == files(parts)


def test_points_before_the_first_checkpoint_are_made_again(tmp_path: Path) -> None:
    head = runs.Head("walk", {"steps": 3}, seed=1)
    runs.begin(tmp_path, head, resume=False)
    told = (b'{"step":%d,"of":3,"values":{"worst":9}}\n' % step for step in (-10, 0))
    (tmp_path / runs.CURVE).write_bytes(b"".join(told))  # Killed here.
    played(tmp_path, head, 0, resume=True)
    assert [point.step for point in runs.read_curve(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(
    "name, word", [("evolve", "every=0"), ("evolve", "population=1"), ("evolve", "tuning=201")]
)
def test_settings_that_make_no_sense_are_refused(name: str, word: str) -> None:
    with pytest.raises(LearningError, match=f"--set {word}: ") as caught:
        learners.chosen(learners.find(name).settings, [word])
    assert caught.value.why is Why.WRONG_SETTING


def test_equal_seeds_make_equal_models(run: Run) -> None:
    words = ("train", "walk", "--set", "steps=5", "--set", "sizes=2,2", "--json")
    models = [
        json.loads(run(*words, "--seed", seed, "--out", out)[1])["model"]
        for seed, out in (("4", "a"), ("4", "b"), ("5", "c"))
    ]
    assert models[0] == models[1] != models[2]
    scaled = (*words, "--seed", "4", "--set", "world.scale=2", "--out", "d")
    assert json.loads(run(*scaled)[1])["model"] not in models
    assert (Path("a") / f"{models[0]}.safetensors").is_file()


def test_it_trains_draws_and_lists(run: Run) -> None:
    code, out, _ = run("train", "walk", "--set", "fails_at=2", "--out", "r", "--tensorboard")
    model = out.split()[0]
    assert (code, len(model)) == (0, 64)
    assert next(Path("r/tensorboard").iterdir()).name.startswith("events.out.tfevents")
    assert "<svg" in Path("r/curves.svg").read_text(encoding="utf-8")
    assert json.loads(Path("r/result.json").read_bytes())["model"] == model
    points = json.loads(run("curves", "r", "--json")[1])["r"]
    assert points[1]["values"] == {"worst": None}  # It was no number.
    code, out, _ = run("curves", "r")
    assert (code, "WORST" in out) == (0, True)
    assert run("curves", "r", "--svg", "c.svg")[0] == 0
    assert "worst" in Path("c.svg").read_text(encoding="utf-8")
    listed = {row["learner"]: row for row in json.loads(run("list", "--json")[1])["learners"]}
    assert listed["walk"]["settings"]["sizes"] == [2, 3]
    assert "rate=0.5" in run("list", "walk")[1]


def test_what_training_refuses(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(code: int, *words: str) -> str:
        found, out, err = run(*words, "--json")
        assert (found, err.count("\n")) == (code, 1), err
        return str(json.loads(out)["error"]["reason"])

    assert reason(3, "train", "walc") == "no-learner"
    assert "did you mean walk?" in run("train", "walc")[2]
    assert reason(2, "train", "walk", "--set", "ratte=1") == "wrong-setting"
    assert "did you mean rate?" in run("train", "walk", "--set", "ratte=1")[2]
    assert reason(2, "train", "walk", "--set", "steps=many") == "wrong-setting"
    assert "--set world.scale=x: " in run("train", "walk", "--set", "world.scale=x")[2]
    assert reason(2, "train", "walk", "--set", "steps") == "wrong-setting"
    assert "'up': there are near, far" in run("train", "walk", "--set", "goal=up")[2]
    assert reason(2, "train", "walk", "--seed", "-1") == "usage"
    assert reason(2, "train", "walk", "--processes", "2") == "not-offered"
    assert reason(2, "list", "--seed", "0") == "usage"
    assert "--seed is of train and clone, not of list" in run("list", "--seed", "0")[2]
    assert reason(2, "train", "walk", "--models", "steady") == "usage"
    assert reason(3, "curves", "none") == "no-run"
    assert run("train", "walk", "--out", "r")[0] == 0
    assert reason(1, "train", "walk", "--out", "r") == "other-run"
    assert reason(1, "train", "walk", "--out", "r", "--resume", "--seed", "2") == "other-run"
    assert (
        "with seed 0, and not 2" in run("train", "walk", "--out", "r", "--resume", "--seed", "2")[2]
    )
    monkeypatch.setitem(learners.LEARNERS, "amble", KIT)
    assert "of walk, and not of amble" in run("train", "amble", "--out", "r", "--resume")[2]
    Path("file").touch()
    assert reason(1, "train", "walk", "--out", "file/r") == "cannot-write"
    Path("r/checkpoint.safetensors").write_bytes(b"no tensors")
    assert reason(1, "train", "walk", "--out", "r", "--resume") == "damaged-run"
    Path("r/run.json").write_bytes(b"{")
    assert reason(1, "train", "walk", "--out", "r", "--resume") == "damaged-run"


def test_figures_are_told_as_json_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    about = learners.About("tests.learner_kit", "a walk")
    monkeypatch.setitem(learners.FIGURES, "walk", about)
    code, out, err = run("figures", "walk", "--json", "--", "--fast")
    assert (code, err) == (3, "walked --fast\n")
    told = {"figures": "walk", "options": ["--fast"], "exit": 3, "lines": ["walked --fast"]}
    assert json.loads(out) == told
    assert run("figures", "walk")[:2] == (3, "walked\n")


def test_two_processes_do_not_train_in_one_folder(run: Run, tmp_path: Path) -> None:
    with runs.alone(tmp_path / "r"):
        code, out, err = run("train", "walk", "--out", "r", "--json")
        assert (code, json.loads(out)["error"]["reason"]) == (1, "other-run")
        assert err.count("\n") == 1
        assert "another process trains in r: " in err
        assert not (tmp_path / "r" / runs.RUN).exists()
    assert run("train", "walk", "--out", "r")[0] == 0


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = runs.Head("walk", {"steps": 6}, 1), runs.Head("walk", {"steps": 6}, 2)
    played(tmp_path / "one", one, 3, resume=False)
    runs.begin(tmp_path / "other", other, resume=False)
    data = (tmp_path / "one" / runs.CHECKPOINT).read_bytes()
    (tmp_path / "other" / runs.CHECKPOINT).write_bytes(data)
    with pytest.raises(LearningError, match="is of another run: with seed 1, and not 2") as found:
        runs.load_checkpoint(tmp_path / "other", other)
    assert found.value.why is Why.OTHER_RUN
    (tmp_path / "one" / runs.CHECKPOINT).write_bytes(data[:-5])
    with pytest.raises(LearningError, match="is damaged"):
        runs.load_checkpoint(tmp_path / "one", one)


def test_what_is_not_installed_is_said_in_a_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needy.py").write_text("import torch_of_another_world\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(learners.LEARNERS, "needy", learners.About("needy", "needs more"))
    monkeypatch.setitem(learners.LEARNERS, "none", learners.About(".none", "no"))
    code, out, err = run("train", "needy", "--json")
    assert (code, json.loads(out)["error"]["reason"]) == (2, "needs-extra")
    assert "pip install 'skep[learn]'" in err
    assert json.loads(run("train", "none", "--json")[1])["error"]["reason"] == "not-offered"
    assert "torch_of_another_world" in run("list")[1]  # The others are listed all the same.
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(LearningError, match="tensorboardX"):
        curves.tensorboard(tmp_path)


def test_every_learner_that_is_named_has_settings_that_come_back() -> None:
    for name, (module, *_) in learners.LEARNERS.items():
        if importlib.util.find_spec(module, learners.PACKAGE) is None:
            continue
        settings = learners.find(name).settings
        known = learners.fields(settings)
        assert learners.made(settings, known) == settings(), name
        assert learners.plain(learners.chosen(settings, [])) == known, name


def test_runs_are_played_here_or_in_processes(run: Run) -> None:
    for seed in ("1", "2"):
        words = ("--seed", seed, "--out", seed, "--set", "world.scale=2")
        assert run("train", "walk", *words)[0] == 0
    played = ("play", "1", "2", "--seeds", "3", "--json")
    here = run(*played, "--processes", "1")
    assert here[0] == 0
    assert run(*played, "--processes", "2") == here
    told = json.loads(here[1])
    saved = runs.finished(Path("1"))[1]
    assert told["runs"]["1"][2] == kit.play({"scale": 2.0}, saved.tensors, 2)
    code, out, _ = run("play", "1", "2", "--seeds", "3")
    assert (code, out.split()[:4]) == (0, ["RUN", "SEEDS", "SEED", "RETURN"])
    assert json.loads(run("play", "none", "--json")[1])["error"]["reason"] == "no-run"
    assert json.loads(run("play", "1", "--seeds", "x", "--json")[1])["error"]["reason"] == "usage"


def test_rollouts_come_to_the_same_here_and_in_processes() -> None:
    from skep_services.engines.deal import Ear
    from skep_services.engines.processes import Processes
    from skep_services.engines.stop import Stop

    saved = next(iter(kit.train(kit.Settings(), 1))).save()
    asked = [
        rollouts.Rollout(kit.PLAY, {"scale": scale}, saved.tensors, range(seeds))
        for scale, seeds in ((1.0, 3), (2.5, rollouts.SEEDS_MAX + 2))
    ]
    ear = Ear(lambda _place, _data: None, lambda _parts: None, lambda _text: None)
    here = rollouts.here(asked)
    assert rollouts.spread(Processes(2), ear, Stop())(asked) == here
    assert [len(each) for each in here] == [3, rollouts.SEEDS_MAX + 2]
    assert [each["seed"] for each in here[1]] == list(range(rollouts.SEEDS_MAX + 2))
    stopped = Stop()
    stopped.asked = True
    with pytest.raises(rollouts.StoppedError):
        rollouts.spread(Processes(1), ear, stopped)(asked)
