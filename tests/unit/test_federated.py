"""The mean of models: exact, of one form only, and by rounds nearer to what all clusters need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skep.learn import modelfile
from skep.learn.modelfile import Header, Model, Ranges, dump, load
from skep.learn.net import Sizes, random_weights
from skep_lab.learn.federated import average
from skep_lab.learn.observed import Window
from skep_lab.learn.progress import UnfitError
from skep_services.cli.main import main
from tests import fast_env_kit  # noqa: F401  before the fast environment

from skep_lab.learn import tune  # isort: skip

Run = Callable[..., tuple[int, str, str]]


def model(seed: int, width: int = 8, **header: Any) -> Model:
    weights = random_weights(seed, Sizes(width, width))
    return load(dump(weights, Header(job=width, head=width, seeds=(seed,), **header)))


def test_the_mean_is_that_of_all_weights() -> None:
    ranges = [
        Ranges(job=((low, 1.0),) * 38, cluster=((0.0, 1.0),) * 16, candidate=((0.0, 1.0),) * 27)
        for low in (-1.0, 0.5)
    ]
    models = [model(seed, parent="a" * 64, ranges=ranges[seed]) for seed in range(2)]
    made = load(average(models, [3.0, 1.0]))
    for name, mean in made.net.weights.items():
        wanted = 0.75 * models[0].net.weights[name] + 0.25 * models[1].net.weights[name]
        assert mean == pytest.approx(wanted, abs=1e-6), name
    assert made.header.parent == "a" * 64
    assert made.header.seeds == (0, 1)
    assert made.header.ranges.job[0] == (-1.0, 1.0)
    assert made.header.learner == f"average of {models[0].name}, {models[1].name}"
    assert average(models, [3.0, 1.0]) == average(models, [30.0, 10.0])
    assert average(models, [1e308, 1e308]) == average(models)
    same = load(average([models[0]] * 3))
    assert all(
        np.array_equal(same.net.weights[k], models[0].net.weights[k]) for k in same.net.weights
    )
    plain = load(average([models[0], model(1)]))
    assert (plain.header.parent, plain.header.ranges.job) == ("", ())


@pytest.mark.parametrize(
    "models, parts, why",
    [
        ([model(1)], [], "two models or more"),
        ([model(1), model(2)], [1.0], "1 parts are given for 2 models"),
        ([model(1), model(2)], [1.0, 0.0], "above 0"),
        ([model(1), model(2)], [1.0, float("nan")], "above 0"),
        ([model(1), model(2, 16)], [], "has job 16, and .* has 8: only models of one form"),
    ],
)
def test_what_cannot_be_averaged_is_said_in_one_line(
    models: list[Model], parts: list[float], why: str
) -> None:
    with pytest.raises(UnfitError, match=why) as error:
        average(models, parts)
    assert "\n" not in str(error.value)


def test_the_command_writes_the_mean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = []
    for seed, width in ((1, 8), (2, 8), (3, 16)):
        weights = random_weights(seed, Sizes(width, width))
        data = dump(weights, Header(job=width, head=width))
        files.append(tmp_path / f"{seed}.safetensors")
        files[-1].write_bytes(data)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["learn", "average", *words])
        out, err = capfd.readouterr()
        return code, out, err

    out = tmp_path / "mean.safetensors"
    code, told, _ = run(*map(str, files[:2]), "--parts", "1,3", "--out", str(out), "--json")
    assert code == 0
    assert json.loads(told)["model"] == modelfile.name_of(out.read_bytes())
    for words, why in (
        ([*map(str, files), "--out", str(out)], "only models of one form"),
        ([str(files[0]), str(files[1])], "needs --out"),
        ([str(files[0]), str(files[1]), "--parts", "x,1", "--out", str(out)], "write a number"),
        ([str(files[0]), str(tmp_path / "none"), "--out", str(out)], "no model"),
    ):
        code, _, err = run(*words)
        assert code != 0
        assert why in err
        assert "Traceback" not in err
    assert modelfile.load(out.read_bytes())


def test_parts_are_not_blamed_for_what_is_wrong_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> bytes:
        raise ValueError("broken")

    file = tmp_path / "1.safetensors"
    file.write_bytes(dump(random_weights(1, Sizes(8, 8)), Header(job=8, head=8)))
    monkeypatch.setattr("skep_lab.learn.federated.average", broken)
    words = [str(file), str(file), "--out", str(tmp_path / "mean")]
    with pytest.raises(ValueError, match="broken"):
        main(["learn", "average", *words])


def test_by_rounds_of_averaging_clusters_come_nearer_to_what_all_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cluster's jobs ask for other weights; no environment is played: only the rounds are."""
    rng = np.random.default_rng(7)
    asks = [np.ones(len(tune.COLUMNS) + 1) + rng.normal(0, 1.0, 1) for _ in range(3)]

    def wrong(weights: Any, cluster: int) -> float:
        return float(np.square(tune.numbers_in(weights) - asks[cluster]).mean())

    def play(window: Any, traces: Any, weights: Any, _seen: Any = None) -> list[Any]:
        return [each.run / 1e9 * (1 + wrong(weights, window.untold)) for each in traces]

    monkeypatch.setattr(tune, "_play", play)
    settings = tune.Settings(generations=8, population=8, traces=1, sigma=0.3, tuning=1, blocks=3)

    def window(cluster: int) -> Window:
        count, ones = 24, np.ones(24, np.int64)
        at = np.arange(count) * 10**9
        curves = np.ones((count, 2)), np.ones((count, 4))
        return Window(at, ones * 10**10, ones, ones, ones, ones, *curves, 8, 8, cluster, 0.0)

    def tuned(start: tune.Start, cluster: int, round_: int) -> Model:
        last = [*tune.train(settings, round_, window=window(cluster), start=start)][-1]
        weights = tune.weights_of(start.weights, last.save().tensors["mean"])
        return load(dump(weights, Header(job=8, head=8)))

    def over_all(weights: Any) -> float:
        return float(np.mean([wrong(weights, cluster) for cluster in range(3)]))

    begin = tune.start_of(model(3))
    shared, alone = begin, [begin] * 3
    for round_ in range(6):
        made = [tuned(shared, cluster, round_) for cluster in range(3)]
        shared = tune.start_of(load(average(made)))
        alone = [tune.start_of(tuned(each, at, round_)) for at, each in enumerate(alone)]
    found = [over_all(each.weights) for each in alone]
    assert over_all(shared.weights) < over_all(begin.weights)
    assert over_all(shared.weights) < min(found), found
