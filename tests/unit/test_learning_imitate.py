"""Behaviour cloning from pairs: the same seed, the same model; and it learns what was done."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from skep.learn import modelfile
from skep.learn.candidates import candidates
from skep.learn.features import cluster_features, holding, job_features, queued
from skep.units import seconds
from skep_lab.learn.pairs import Mark, Pairs
from skep_lab.learn.progress import UnfitError
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.settings import Settings as Simulated
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
from skep_services.cli.main import main
from skep_services.learning import cloning, judging, learners, runs

imitate = pytest.importorskip("skep_lab.learn.imitate")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """Return what `sif` does with 60 jobs that come faster than they go."""
    rng = np.random.default_rng(3)
    jobs = tuple(
        TraceJob(
            id=f"t{number}",
            at=seconds(20.0 * number),
            run_time=seconds(float(rng.integers(10, 400))),
            gpus=int(rng.choice([1, 2, 4])),
        )
        for number in range(60)
    )
    settings = Simulated(policies={ALL: ("sif", {})})
    return cloning.of_policy(Trace(name="made", jobs=jobs), uniform(2, 4), settings, Steady())


SMALL = {"steps": 6, "batch": 8, "job": 8, "head": 8, "every": 2}


def test_stopped_or_not_the_same_seed_makes_the_same_model(pairs: Pairs, tmp_path: Path) -> None:
    learner = learners.find("imitate")
    models = []
    for name, stops in (("whole", [0]), ("parts", [2, 4, 0]), ("again", [0])):
        head = runs.Head("imitate", dict(SMALL), 5, cloning.digest(pairs))
        for stop_at in stops:
            folder = tmp_path / name
            runs.begin(folder, head, resume=stop_at != stops[0])
            runs.train(
                learner,
                head,
                folder,
                clock=lambda: 0.0,
                tell=lambda point, stop_at=stop_at: point.step != stop_at,  # type: ignore[misc]
                given={"pairs": pairs},
            )
        result = runs.read_result(tmp_path / name)
        assert result is not None
        models.append(result.model)
    assert len(set(models)) == 1
    one, two = (tmp_path / name / runs.CHECKPOINT for name in ("whole", "parts"))
    assert one.read_bytes() == two.read_bytes()


def test_the_network_that_is_trained_is_the_one_that_decides(pairs: Pairs) -> None:
    cloner = imitate.Cloner(imitate.Settings(**SMALL), 1, pairs)
    places = cloner.used[:5]
    logs = cloner.net(cloner.batch(places)).detach().numpy()
    cloner.learn()
    cloner = imitate.Cloner(imitate.Settings(**SMALL), 1, pairs)
    cloner.learn()
    model = modelfile.load(imitate.model_of(cloner.save(), imitate.Settings(**SMALL), 1))
    trained = cloner.net(cloner.batch(places)).detach().numpy()
    assert not np.allclose(logs, trained)
    for number, place in enumerate(places):
        pair = pairs.pair(int(place))
        there = candidates(pair.raw, pair.cluster, pair.at)
        scores, hold = model.net.forward(
            job_features(pair.raw, pair.cluster, pair.at),
            cluster_features(pair.cluster),
            there.features,
            queued(pair.raw),
            holding(pair.raw),
        )
        ours = np.append(scores[there.possible], hold)
        theirs = trained[number][: there.possible.size][there.possible.ravel()]
        theirs = np.append(theirs, trained[number][-1])
        assert np.allclose(ours - ours[-1], theirs - theirs[-1], atol=1e-4)  # Up to a constant.


def test_it_comes_to_do_what_was_done(pairs: Pairs) -> None:
    settings = imitate.Settings(steps=120, batch=32, job=16, head=16, every=60, rate=0.01)
    first, last = list(imitate.train(settings, 1, pairs=pairs))
    assert last.values["loss"] < first.values["loss"]
    model = modelfile.load(imitate.model_of(last.save(), settings, 1))
    assert judging.decisions(pairs, model).wanted.mean() > 0.75
    assert model.header.trained_on == "simulation made"
    assert model.header.ranges.job


def test_marked_pairs_are_left_out_unless_all_are_asked_for(pairs: Pairs) -> None:
    marked = pairs._replace(mark=np.full_like(pairs.mark, Mark.FALLBACK))
    with pytest.raises(UnfitError, match="--set marked=true"):
        imitate.Cloner(imitate.Settings(**SMALL), 1, marked)
    assert len(imitate.Cloner(imitate.Settings(**SMALL, marked=True), 1, marked).used)


def test_the_command_needs_pairs(
    pairs: Pairs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reason(*words: str) -> str:
        assert main(["learn", "train", *words, "--json", "--out", str(tmp_path / "r")]) > 0
        return str(json.loads(capsys.readouterr().out)["error"]["reason"])

    folder = str(tmp_path / "p")
    cloning.keep(pairs._replace(mark=np.full_like(pairs.mark, Mark.DIFFERS)), tmp_path / "p")
    assert reason("imitate") == "not-offered"
    assert reason("dqn", "--pairs", folder) == "not-offered"
    assert reason("imitate", "--pairs", folder) == "unfit-input"
    cloning.keep(pairs, tmp_path / "p")
    assert reason("imitate", "--pairs", folder, "--resume") == "other-run"
