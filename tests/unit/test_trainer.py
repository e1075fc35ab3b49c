"""The trainer: jobs out of a log, rounds as files, kills at any moment, and what may be wrong."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import structlog

from skep.learn import modelfile
from skep.learn.candidates import A
from skep.learn.features import F, G
from skep.learn.net import Sizes, random_weights
from skep.policy.sight import job_sight
from skep.wire.facts import AllocatorFact
from skep_lab.learn.progress import UnfitError
from skep_lab.learn.protocol import Setting
from skep_services import durable
from skep_services.adapters.records import Chain
from skep_services.cli.main import main
from skep_services.learning import registry
from skep_services.learning.problems import LearningError, Why
from skep_services.ports import Delivery, MissingStreamError, RefusedError
from tests import (
    fast_env_kit,  # noqa: F401  before the fast environment
    trainer_kit,
)

from skep_lab.learn import observed, protocol, tune  # isort: skip
from skep_services.trainer import __main__ as command  # isort: skip
from skep_services.trainer import rounds  # isort: skip

SETTING = Setting("both", load=1.0, error=0.2, nodes=6)
ALL = "all"
QUICK = {"generations": 5, "population": 4, "traces": 2, "tuning": 2, "every": 2, "blocks": 3}
ASKED = rounds.Asked(vcs=(ALL,), every=40, settings=QUICK)
Fake = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def log() -> list[Delivery]:
    return trainer_kit.simulated(SETTING, 3, {ALL: ("look-ahead", {})})


@pytest.fixture(scope="module")
def short() -> list[Delivery]:
    return trainer_kit.simulated(SETTING, 3, {ALL: ("look-ahead", {})}, jobs=40)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have networks be as good as one of their weights says, without any environment."""
    plays: list[int] = []

    def play(_window: Any, traces: Sequence[Any], weights: Any, seen: Any = None) -> list[Any]:
        plays.append(len(traces))
        wrong = float(np.square(tune.numbers_in(weights) - 1.0).sum())
        if seen is not None:
            seen[0], seen[1] = -2.0, 2.0
        return [each.run / 1e9 * (1.0 + 0.01 * wrong) for each in traces]

    monkeypatch.setattr(tune, "_play", play)
    return plays


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Take back what the command says of logs: its standard error is a test's."""
    yield
    structlog.reset_defaults()


class Killed(BaseException):
    """What no code catches: as good as a kill."""


def trainer(folder: Path, log: Sequence[Delivery], asked: rounds.Asked = ASKED) -> rounds.Trainer:
    made = rounds.Trainer(folder / "state", folder / "models", asked)
    for one in log:
        made.take(one)
    made.check_end()
    return made


def trained(made: rounds.Trainer, goes_on: Callable[[], bool] = lambda: True) -> list[rounds.Done]:
    ticks = itertools.count(0, 31)  # So a checkpoint is written at each progress.
    return list(made.rounds(lambda: float(next(ticks)), goes_on))


def observer_of(log: Sequence[Delivery]) -> observed.Observer:
    made = observed.Observer()
    chain = Chain("log", AllocatorFact)
    for one in log:
        record = chain.read_at(one.payload, one.sequence)
        assert not isinstance(record, str)
        list(made.take(record))
    return made


# --- the jobs ------------------------------------------------------------------------------------


def test_jobs_are_those_that_came_with_the_run_times_that_they_had(log: list[Delivery]) -> None:
    drawn = protocol.draw(SETTING, 3)
    made = observer_of(log)
    window = made.window(ALL, 1000)
    assert made.counts == {ALL: len(drawn.at)}
    assert window.at.tolist() == (drawn.at - drawn.at[0]).tolist()
    assert (window.gpus, window.node_gpus, window.untold) == (48, 8, 0)
    for name in ("workers", "most", "least"):  # Of the first one nothing was known when it came.
        assert getattr(window, name)[1:].tolist() == getattr(drawn, name)[1:].tolist(), name
    assert window.told_run == pytest.approx(drawn.told_run)
    # Elastic jobs ran in many sizes: stated speeds give back what each would have taken.
    off = window.run / drawn.run
    assert np.quantile(off, 0.1) > 0.99
    assert np.quantile(off, 0.9) < 1.05
    growth, spread = drawn.pool.growth[drawn.model], drawn.pool.spread[drawn.model]
    assert window.told_growth[1:] == pytest.approx(growth[1:], rel=0.02)
    assert window.told_spread[1:] == pytest.approx(spread[1:], rel=0.02)


def test_a_window_has_the_latest_jobs_and_its_file_is_the_same(log: list[Delivery]) -> None:
    window = observer_of(log).window(ALL, 30)
    assert len(window.at) == 30
    again = rounds.unpacked(rounds.packed(window))
    assert rounds.packed(again) == rounds.packed(window)
    with pytest.raises(UnfitError, match="none of the jobs of VC other"):
        observer_of(log).window("other", 30)


def test_a_log_that_says_no_run_times_is_refused_in_one_line() -> None:
    told = trainer_kit.simulated(SETTING, 3, {ALL: ("look-ahead", {})}, jobs=20, mute=True)
    with pytest.raises(UnfitError, match="of 20 jobs of VC all only 0 say how long"):
        observer_of(told).window(ALL, 1000)


def test_remade_traces_are_blocks_of_the_jobs_and_of_no_others(log: list[Delivery]) -> None:
    window = observer_of(log).window(ALL, 1000)
    jobs = np.arange(tune.held_from(window))
    made = tune.remade(window, jobs, 8, np.random.default_rng(1))
    assert len(made.at) == len(jobs)
    assert (np.diff(made.at) >= 0).all()
    places = {int(run): place for place, run in enumerate(window.run)}
    drawn = [places[int(run)] for run in made.run]
    assert max(drawn) < tune.held_from(window)
    assert all(drawn[k + 1] == drawn[k] + 1 for k in range(len(drawn) - 1) if (k + 1) % 8)


def test_stated_speeds_and_sizes_without_bounds_are_bounded(
    short: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = tuple((size, 1 if size == 1 else 2**62) for size in range(1, 17))

    def stated(view: Any) -> Any:
        more = {"rates": wild, "most": 10**6, "least": 1, "each": 1, "left": 2**62}
        return msgspec.structs.replace(job_sight(view), **more)

    monkeypatch.setattr(observed, "job_sight", stated)
    monkeypatch.setattr(observed, "WORKERS_MAX", 16)
    window = observer_of(short).window(ALL, 1000)
    assert window.most.max() == 16
    assert window.told_growth.shape[1] == 17
    assert window.told_growth.max() == 16
    assert window.told_run.max() == observed.RUN_MAX
    monkeypatch.setattr(observed, "_speed", lambda *_: 2.0**62)
    assert observer_of(short).window(ALL, 1000).run.max() == observed.RUN_MAX


# --- rounds --------------------------------------------------------------------------------------


def test_a_better_model_becomes_a_candidate_with_what_it_comes_from(
    log: list[Delivery], played: list[int], tmp_path: Path
) -> None:
    (done,) = trained(trainer(tmp_path, log))
    assert played
    assert done.outcome is rounds.Outcome.CANDIDATE
    entry = registry.read_registry(tmp_path / "models")[done.model]
    assert (entry.state, entry.why) == (registry.State.CANDIDATE, "trainer: VC all, from the rule")
    model = modelfile.load(registry.read_model(tmp_path / "models", done.model))
    header = model.header
    assert header.seeds == (0,)
    assert header.report == done.report
    assert header.report["present_low_milli"] > 0
    records = json.loads(log[done.sequence - 1].payload)["n"]
    assert header.trained_on.startswith(f"jobs of VC all, records 1 to {records} of")
    assert not (tmp_path / "state" / "round").exists()
    # The latest round alone: an older one of the same VC is of no use any more.
    assert done.report["jobs"] == 80
    assert trained(trainer(tmp_path, log)) == []


def test_a_model_that_is_no_better_is_no_candidate(
    log: list[Delivery], played: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = {"present_low_milli": 0.0, "rule_low_milli": 5.0}
    assert not tune.is_better(flat)
    assert not tune.is_better({"present_low_milli": 5.0, "rule_low_milli": -1.0})
    monkeypatch.setattr(tune, "is_better", lambda _report: False)
    (done,) = trained(trainer(tmp_path, log))
    assert done.outcome is rounds.Outcome.NOT_BETTER
    assert done.model
    assert done.model not in registry.read_registry(tmp_path / "models")
    assert len(played) > 0


def test_killed_at_any_write_and_begun_again_it_comes_to_the_same_files(
    short: list[Delivery], played: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = durable.write, [0]

    def fall(*words: Any, **more: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        write(*words, **more)

    def files(folder: Path) -> dict[str, bytes]:
        found = {each.name: each for each in (folder / "models").glob("*.safetensors")}
        return {name: each.read_bytes() for name, each in found.items()}

    (whole,) = trained(trainer(tmp_path / "whole", short))
    monkeypatch.setattr(durable, "write", fall)
    for at in range(1, 40):
        folder, left[0] = tmp_path / str(at), at
        try:
            trained(trainer(folder, short))
        except Killed:
            left[0] = -1
            assert trained(trainer(folder, short)) in ([whole], []), at
        assert rounds.read_kept(folder / "state").rounds == (whole,), at
        assert files(folder) == files(tmp_path / "whole"), at
        assert [each.name for each in (folder / "state").iterdir()] == ["trainer.json"], at
        if left[0] > 0:
            break
    assert 12 < at < 39
    assert played


def test_asked_to_stop_it_stops_and_goes_on_where_it_was(
    short: list[Delivery], played: list[int], tmp_path: Path
) -> None:
    (whole,) = trained(trainer(tmp_path / "whole", short))
    full, looks = len(played), [0]

    def twice() -> bool:
        looks[0] += 1
        return looks[0] < 5

    played.clear()
    assert trained(trainer(tmp_path / "stopped", short), twice) == []
    assert trained(trainer(tmp_path / "stopped", short)) == [whole]
    assert len(played) < full + 2 + QUICK["tuning"]  # Only what it begins with is played again.


def test_what_is_tuned_is_the_model_that_the_vc_names(played: list[int], tmp_path: Path) -> None:
    ranges = modelfile.Ranges(
        job=((0.0, 1.0),) * F, cluster=((0.0, 1.0),) * G, candidate=((0.0, 1.0),) * A
    )
    header = modelfile.Header(job=8, head=8, ranges=ranges)
    data = modelfile.dump(random_weights(5, Sizes(8, 8)), header)
    name = modelfile.name_of(data)
    policies = {ALL: ("learned", {"model": name})}
    log = trainer_kit.simulated(SETTING, 3, policies, jobs=40)
    asked = msgspec.structs.replace(ASKED, vcs=())  # Those of policy `learned` are meant.
    (missing,) = trained(trainer(tmp_path, log, asked))
    assert missing.outcome is rounds.Outcome.NO_MODEL
    assert "is missing" in missing.why
    registry.add(tmp_path / "models", data, 1)
    assert trained(trainer(tmp_path, log, asked)) == []  # That round is over.
    other = tmp_path / "other"
    registry.add(other / "models", data, 1)
    (done,) = trained(trainer(other, log, asked))
    model = modelfile.load(registry.read_model(other / "models", done.model))
    assert model.header.parent == name == done.parent
    assert model.header.ranges.job[0] == (-2.0, 2.0)
    tuned, before = model.net.weights, random_weights(5, Sizes(8, 8))
    changed = [each for each in before if not np.array_equal(tuned[each], before[each])]
    assert sorted(changed) == ["hold.2.bias", "skip.weight"]
    assert played


def test_old_candidates_are_retired_unless_a_vc_names_them(
    log: list[Delivery], played: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "ROUNDS_MAX", 1)  # A candidate outlives what is kept of its round.
    state, models, found = tmp_path / "state", tmp_path / "models", list[str]()

    def another(whole: bool = True) -> None:
        asked = msgspec.structs.replace(ASKED, seed=len(found), models=2)
        made = rounds.Trainer(state, models, asked)
        made.kept = msgspec.structs.replace(made.kept, done={})  # As if the log had gone on.
        for one in log:
            made.take(one)
        if whole:
            made.check_end()
        found.extend(done.model for done in trained(made))

    def candidates() -> set[str]:
        known = registry.read_registry(models)
        return {name for name in found if known[name].state is registry.State.CANDIDATE}

    def files() -> set[str]:
        return {each.stem for each in models.glob("*.safetensors")}

    for _ in range(4):
        another(whole=False)  # What VCs name is not known yet.
    assert len({*found}) == 4
    assert candidates() == files() == {*found}
    naming(monkeypatch, lambda: found[0])
    another()
    assert candidates() == files() == {found[0], *found[3:]}
    naming(monkeypatch, lambda: "")
    change = registry.change

    def fall(*words: Any) -> None:
        change(*words)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(registry, "change", fall)
        with pytest.raises(Killed):
            another()
    assert found[0] in files() - candidates()
    found.append(rounds.read_kept(state).rounds[-1].model)
    another()  # The round that was killed, once more.
    assert candidates() == files() == {*found[4:]}
    assert len(files()) == 2
    assert {*rounds.read_kept(state).candidates} >= files()
    assert played


def naming(monkeypatch: pytest.MonkeyPatch, model: Callable[[], str]) -> None:
    """Have a VC name a model."""
    vcs: Callable[[Any], dict[str, Any]] = vars(observed.Observer)["vcs"].fget

    def with_one(self: observed.Observer) -> dict[str, Any]:
        found = vcs(self)
        if ALL not in found:
            return found
        return found | {"one": msgspec.structs.replace(found[ALL], options={"model": model()})}

    monkeypatch.setattr(observed.Observer, "vcs", property(with_one))


# --- what may be wrong ---------------------------------------------------------------------------


def test_a_vc_that_was_removed_while_its_jobs_went_on_has_no_rounds(
    short: list[Delivery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed.Observer, "vcs", property(lambda _self: {}))
    assert trained(trainer(tmp_path, short)) == []


def test_an_odd_population_is_refused(tmp_path: Path) -> None:
    asked = msgspec.structs.replace(ASKED, settings={"population": 5})
    with pytest.raises(LearningError, match="multiple of 2") as error:
        rounds.Trainer(tmp_path / "state", tmp_path / "models", asked)
    assert error.value.why is Why.WRONG_SETTING


def test_what_cannot_be_read_now_is_tried_again_and_no_round_goes_on_meanwhile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[Callable[..., None]] = []
    errors: list[Exception | None] = [RefusedError("no"), MissingStreamError("ALLOC"), None]

    def none(*_: Any) -> Any:
        raise AssertionError

    async def follow(*_: Any) -> None:
        if len(errors) == 1:
            handlers[0]()
        error = errors.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(os, "nice", lambda _by: 0)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda _number, handler: handlers.append(handler))
    monkeypatch.setattr(command, "_follow", follow)
    monkeypatch.setattr(rounds.Trainer, "rounds", none)
    words = ["--home", str(tmp_path), "--poll", "0.001"]
    assert command.main(words) == 0
    told = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    again = "the log cannot be read now; trying again"
    assert [each["event"] for each in told] == ["ready", again, again, again, "stopped"]
    assert "is empty" in told[3]["why"]
    errors[:] = [RefusedError("no")]
    handlers.clear()
    monkeypatch.setattr(signal, "signal", lambda *_: handlers.append(lambda: None))
    assert command.main([*words, "--once"]) == 72


def test_another_log_is_refused_in_one_line(
    log: list[Delivery], played: list[int], tmp_path: Path
) -> None:
    assert trained(trainer(tmp_path, log))
    assert played
    other = trainer_kit.simulated(SETTING, 3, jobs=10, owner="other")
    with pytest.raises(LearningError, match="is of another cluster's log") as error:
        trainer(tmp_path, other)
    assert error.value.why is Why.OTHER_RUN
    with pytest.raises(LearningError, match="the log ends at 90, and a round up to"):
        trainer(tmp_path, log[:90])
    with pytest.raises(LearningError, match="the log ALLOC is empty"):
        trainer(tmp_path, [])


def test_a_damaged_state_or_round_is_said_in_one_line(
    log: list[Delivery], played: list[int], tmp_path: Path
) -> None:
    looks = iter((True, True, False, False))
    trained(trainer(tmp_path, log), lambda: next(looks))
    state = tmp_path / "state"
    window = state / "round" / "window.safetensors"
    whole = window.read_bytes()
    for damage in (b"", whole[:50], whole[:-8]):
        window.write_bytes(damage)
        with pytest.raises(LearningError, match="round is damaged") as error:
            trained(trainer(tmp_path, log))
        assert "\n" not in error.value.text
    window.write_bytes(whole)
    assert len(trained(trainer(tmp_path, log))) == 1
    assert played
    for damage in (b"", b"{", b"[]", b'{"version":2}', b'{"other":1}', b"\xff"):
        (state / "trainer.json").write_bytes(damage)
        with pytest.raises(LearningError, match=r"trainer\.json is"):
            trainer(tmp_path, log)


def test_the_command_follows_an_export_once(
    log: list[Delivery],
    played: list[int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "nice", lambda _by: 0)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    path = tmp_path / "log.jsonl.gz"
    trainer_kit.export(log, path)
    options = [f"--set={key}={value}" for key, value in QUICK.items()]

    def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
        capfd.readouterr()
        code = command.main(["--home", str(tmp_path), *words])
        return code, [json.loads(line) for line in capfd.readouterr().err.splitlines()]

    code, told = run("--from", str(path), "--vc", ALL, "--every", "40", *options)
    assert (code, [each["event"] for each in told]) == (0, ["ready", "a round is done", "stopped"])
    assert told[1]["outcome"] == "candidate"
    assert played
    assert main(["learn", "status", "--home", str(tmp_path), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["runs"], shown["round"]) == (False, None)
    assert shown["rounds"][0]["model"] == told[1]["model"]
    assert main(["learn", "status", "--home", str(tmp_path)]) == 0
    assert "candidate" in capfd.readouterr().out
    assert main(["learn", "status", "--home", str(tmp_path / "no")]) != 0
    assert "has no trainer's files" in capfd.readouterr().err
    code, told = run("--from", str(tmp_path / "none"))
    assert (code, told[-1]["event"]) == (72, "the log cannot be read")
    code, told = run("--once")
    assert (code, "no cluster runs in" in told[-1]["why"]) == (72, True)
    code, told = run("--set", "generation=1")
    assert (code, told[-1]["why"]) == (64, "wrong-setting")
