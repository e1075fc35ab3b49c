"""Optuna over a search: what it is told, and what its pruner does. The cluster is a made-up one."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest

from skep.machines.searches.state import Search
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep_services.ask_tell.client import SearchClient
from skep_services.ask_tell.space import suggest
from skep_services.ask_tell.study import SkepStudy
from skep_services.cli.exits import CommandError
from tests.search_kit import World, tree

SPACE = {
    "lr": {"log": [0.001, 1.0]},
    "layers": {"integer": [1, 3]},
    "drop": {"uniform": [0.0, 0.5]},
    "kind": {"choice": ["a", "b"]},
}
STEPS = 100


class Cluster(SearchClient):
    """The searches' machine, asked directly; trials make ten mini-batches at every look.

    Their accuracies are the first parameter: the larger `lr`, the better.
    """

    def __init__(self) -> None:
        self.world = World()
        self.world.driver.thorough = False
        self.found: Search | None = None
        self.calls: list[tuple[str, int]] = []

    def begin(self, spec: Any, key: str = "") -> str:
        return self.world.begin(key, **{k: v for k, v in spec.items() if k != "vc"})

    def ask(self, search: str, params: Any = None, *, outside: bool = False, key: str = "") -> Any:
        told = self.world.ask(key=key, do="ask", search=search, params=dict(params))
        if not told.accepted:
            assert told.reason is not None
            raise CommandError(1, told.problems[0].text, told.reason)
        self.world.settle()
        return told.trial, told.params

    def demote(self, search: str, trial: int) -> None:
        self._rank("demote", search, trial)

    def promote(self, search: str, trial: int) -> None:
        self._rank("promote", search, trial)

    def _rank(self, do: str, search: str, trial: int) -> None:
        assert self.world.ask(do=do, search=search, trial=trial).accepted
        self.calls.append((do, trial))
        self.world.settle()

    def show(self, search: str) -> Any:
        self._train()
        self.found = found = self.world.machine.searches.get(search, self.found)
        assert found is not None
        rows = [
            {
                "trial": trial.number,
                "stand": trial.stand,
                "end": trial.end,
                "best": trial.best,
                "points": [*zip(trial.steps, trial.values, strict=True)],
            }
            for trial in found.trials.values()
        ]
        ending = "active" if found.ending is None else "ending"
        state = "over" if search in self.world.over() else ending
        return {"search": search, "state": state, "rows": rows}

    def _train(self) -> None:
        for job in self.world.running():
            value = float(job.spec.args[0].partition("=")[2])
            self.world.measure(job, job.step + 10, value)
            if job.step >= STEPS:
                self.world.end(job, End.SUCCEEDED, Reason.SUCCEEDED)
        self.world.pass_time(2)


def spec(**changes: Any) -> dict[str, Any]:
    return tree(sampler="client", turn="4s", **changes)


def run(cluster: Cluster, pruner: optuna.pruners.BasePruner, **changes: Any) -> SkepStudy:
    sampler = optuna.samplers.RandomSampler(seed=3)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    made = SkepStudy(study, spec(**changes), cluster)
    shown = made.run(sleep=lambda seconds: None)
    assert shown["state"] == "over"
    return made


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_every_trial_is_told_to_optuna_with_its_curve() -> None:
    made = run(Cluster(), optuna.pruners.NopPruner(), space={"lr": SPACE["lr"]})
    trials = made.study.trials
    assert len(trials) == 6
    assert {trial.state for trial in trials} == {optuna.trial.TrialState.COMPLETE}
    assert all(trial.value == trial.params["lr"] for trial in trials)
    assert made.study.best_value == max(trial.params["lr"] for trial in trials)
    assert all(len(trial.intermediate_values) > 3 for trial in trials)


def test_what_the_pruner_would_stop_is_demoted_and_goes_on_later() -> None:
    cluster = Cluster()
    pruner = optuna.pruners.ThresholdPruner(lower=0.05)
    made = run(cluster, pruner, space={"lr": SPACE["lr"]})
    bad = {number for number, trial in made.trials.items() if trial.params["lr"] < 0.05}
    assert bad
    assert len(bad) < 6
    assert {trial for do, trial in cluster.calls if do == "demote"} == bad
    # Nothing was killed: with the places that were left, they too came to their end.
    states = {trial.state for trial in made.study.trials}
    assert states == {optuna.trial.TrialState.COMPLETE}


class Moody(optuna.pruners.BasePruner):
    """Would stop every trial after its second point, and none after its third."""

    def prune(self, study: Any, trial: Any) -> bool:
        return len(trial.intermediate_values) == 2


def test_a_pruner_that_thinks_better_of_it_promotes() -> None:
    cluster = Cluster()
    run(cluster, Moody(), space={"lr": SPACE["lr"]})
    demoted = [trial for do, trial in cluster.calls if do == "demote"]
    promoted = [trial for do, trial in cluster.calls if do == "promote"]
    assert sorted(demoted) == sorted(promoted) == [1, 2, 3, 4, 5, 6]


def test_at_the_target_what_is_left_is_pruned() -> None:
    made = run(Cluster(), optuna.pruners.NopPruner(), space={"lr": SPACE["lr"]}, target=0.001)
    states = [trial.state for trial in made.study.trials]
    assert optuna.trial.TrialState.RUNNING not in states
    assert made.study.trials[0].params["lr"] >= 0.001


def test_a_space_is_said_to_optuna() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    drawn = suggest(SPACE)(study.ask())
    assert 0.001 <= drawn["lr"] <= 1
    assert drawn["layers"] in {1, 2, 3}
    assert drawn["kind"] in {"a", "b"}
    with pytest.raises(ValueError, match="`lr` has `logg`"):
        suggest({"lr": {"logg": [1, 2]}})(study.ask())


def test_a_study_and_a_spec_that_disagree_are_refused() -> None:
    study = optuna.create_study(direction="minimize")
    with pytest.raises(ValueError, match="the study is to minimize, the search to maximize"):
        SkepStudy(study, spec(), Cluster())
    with pytest.raises(ValueError, match="sampler: client"):
        SkepStudy(optuna.create_study(direction="maximize"), tree(), Cluster())


def test_parameters_outside_the_space_are_refused_with_a_reason() -> None:
    study = optuna.create_study(direction="maximize")
    made = SkepStudy(study, spec(), Cluster())
    with pytest.raises(CommandError, match="lr") as refused:
        made.run(lambda trial: {"lr": 7.0})
    assert refused.value.error["reason"] == "bad-value"


def test_a_value_that_is_no_number_is_not_told() -> None:
    study = optuna.create_study(direction="maximize")
    made = SkepStudy(study, spec(), Cluster())
    made.trials[1] = study.ask()
    row = {
        "trial": 1,
        "stand": "running",
        "end": None,
        "best": 0.5,
        "points": [(10, math.nan), (20, 0.5)],
    }
    made.take({"state": "active", "rows": [row]})
    assert study.trials[0].intermediate_values == {20: 0.5}


class Ending(Cluster):
    """A cluster whose search is cancelled by somebody after so many trials were asked for."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def ask(self, search: str, params: Any = None, *, outside: bool = False, key: str = "") -> Any:
        self.left -= 1
        if self.left < 0:
            self.world.ask(do="cancel", search=search)
        return super().ask(search, params, outside=outside, key=key)


@pytest.mark.parametrize("after", [0, 3])
def test_a_search_that_ends_while_trials_are_asked_for_ends_the_study(after: int) -> None:
    made = run(Ending(after), optuna.pruners.NopPruner(), space={"lr": SPACE["lr"]})
    states = [trial.state for trial in made.study.trials]
    assert len(made.trials) == after
    assert len(states) == after + 1
    assert states[-1] is optuna.trial.TrialState.FAIL
    assert optuna.trial.TrialState.RUNNING not in states
