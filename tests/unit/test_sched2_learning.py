"""SCHED²: its learner, its baselines, and both in the production simulator as in the fast one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests import needs

needs.require("torch")

from tests import fast_env_kit  # noqa: E402, F401  before the fast environment

from skep_lab.fast_env import sched2_rules  # isort: skip  # noqa: E402
from skep_lab.fast_env.sched2 import Batch, Options  # isort: skip  # noqa: E402
from skep_lab.learn import dqn, sched2_figures, sched2_judge  # isort: skip  # noqa: E402
from skep_lab.learn import sched2_clone, sched2_clone_main  # isort: skip  # noqa: E402
from skep_lab.learn import sched2_teachers, sched2_why  # isort: skip  # noqa: E402
from skep_lab.learn import sched2_play, sched2_policy  # isort: skip  # noqa: E402
from skep_lab.learn.progress import Saved  # isort: skip  # noqa: E402
from skep_lab.learn.sched2_protocol import Setting  # isort: skip  # noqa: E402
from skep_lab.simulator.build import ALL  # isort: skip  # noqa: E402
from skep_lab.simulator.run import run  # isort: skip  # noqa: E402
from skep_lab.outcome import JobOutcome, RunResult, Span  # isort: skip  # noqa: E402
from skep_lab.simulator.settings import Settings  # isort: skip  # noqa: E402
from skep_lab.traces.job import TraceJob  # isort: skip  # noqa: E402
from skep.units import seconds  # isort: skip  # noqa: E402
import torch  # isort: skip  # noqa: E402

TIGHT = Options(
    jobs=60,
    window=4,
    nodes=(3,),
    node_gpus=4,
    interval_s=260.0,
    sizes=(1, 2, 4, 8),
    size_weights=(0.5, 0.2, 0.2, 0.1),
)
"""Jobs wait, and gangs are spread: each rule has jobs start at other times."""
SMALL = dqn.Settings(
    environment=TIGHT._replace(jobs=12),
    traces=(0, 1, 2),
    episodes=6,
    envs=2,
    decisions=4,
    batch=8,
    memory=64,
    ahead=2,
    target_every=5,
    tells=10,
)


def in_production(jobs: Any, policy: Any) -> np.ndarray[Any, Any]:
    trace = sched2_policy.trace_of(jobs, "tight")
    found = run(
        trace,
        sched2_policy.cluster_of(TIGHT),
        Settings(),
        sched2_policy.table_of(TIGHT),
        policies={ALL: policy},
    )
    assert not found.cut
    return np.array([[job.began or 0, job.ended or 0] for job in found.jobs]) / 1e9


def assert_equal(played: sched2_rules.Played, policy: Any, seed: int) -> None:
    jobs = sched2_rules.jobs_of(Batch(1, TIGHT), np.array([seed]))[0]
    found = in_production(jobs, policy)
    wrong = np.flatnonzero(np.abs(found[:, 0] - played.first[0]) > 1e-6)
    assert not len(wrong), (seed, wrong, found[wrong, 0], played.first[0, wrong])
    assert np.abs(found[:, 1] - played.ended[0]).max() < 1e-6


@pytest.mark.parametrize("window", [4, 0])
@pytest.mark.parametrize("skips", [False, True])
def test_rules_start_the_same_jobs_at_the_same_times_in_production(
    window: int, skips: bool
) -> None:
    starts = set()
    for name, each in sched2_rules.NAMES.items():
        if name == "random" or (name == "hold" and not skips):
            continue
        rule = each._replace(window=window, skips=skips)
        played = sched2_rules.play(rule, np.array([3]), TIGHT)
        assert_equal(played, sched2_policy.rule_policy(TIGHT, rule), 3)
        starts.add(played.first.tobytes())
    assert len(starts) >= 5, "rules differ"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_network_starts_the_same_jobs_at_the_same_times_in_production(seed: int) -> None:
    torch.manual_seed(seed)
    model = dqn.network(TIGHT)
    weights = dqn.weights_of(model)
    weights["values.2.bias"][-1] -= 1.0  # It rarely holds: else there are thousands of decisions.
    act = sched2_play.greedy(TIGHT, weights)
    played = sched2_play.play(act, np.array([seed]), TIGHT)
    assert_equal(played, sched2_policy.sched2_policy(TIGHT, act), seed)


def weights_after(settings: dqn.Settings, seed: int, saved: Saved | None = None) -> list[Any]:
    return [progress.save() for progress in dqn.train(settings, seed, saved)]


def assert_same(left: Saved, right: Saved) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    for name, each in left.tensors.items():
        np.testing.assert_array_equal(each, right.tensors[name], err_msg=name)
    assert left.numbers == right.numbers


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "double": True,
            "horizon_s": 3600.0,
            "reward": "waiting",
            "traces": (),
            "gap": 0.5,
            "sorts": True,
        },
    ],
    ids=["paper", "all options"],
)
def test_equal_seeds_give_equal_weights_stopped_and_resumed_or_not(more: dict[str, Any]) -> None:
    settings = msgspec.structs.replace(SMALL, **more)
    once = weights_after(settings, 5)
    assert len(once) >= 3
    assert_same(once[-1], weights_after(settings, 5)[-1])
    middle = once[len(once) // 2 - 1]
    assert_same(once[-1], weights_after(settings, 5, middle)[-1])
    other = weights_after(settings, 6)[-1].tensors
    assert (other["model/jobs.0.weight"] != once[-1].tensors["model/jobs.0.weight"]).any()


def test_places_are_drawn_by_their_weights() -> None:
    tree = dqn.SumTree(5)
    tree.put(np.arange(5), np.array([1.0, 0.0, 2.0, 0.0, 1.0]))
    tree.put(np.array([0, 4]), np.array([3.0, 5.0]))
    assert tree.total == 10.0
    found = tree.find(np.linspace(0.5, 9.5, 10))
    assert found.tolist() == [0, 0, 0, 2, 2, 4, 4, 4, 4, 4]


def test_a_return_adds_the_rewards_ahead_up_to_the_end_of_an_episode() -> None:
    settings = msgspec.structs.replace(SMALL, ahead=3, envs=1, decisions=1, memory=16, alpha=1.0)
    memory = dqn.Memory(settings, 1, 2)
    over = 4
    for step in range(12):
        memory.see(np.full((1, 1), step, np.float32), np.ones((1, 2), np.bool_))
        keeps = np.array([0.0 if step == over else 0.5])
        memory.add(np.array([0]), np.array([1.0]), keeps)
    drawn = memory.draw(40, 1.0, np.random.default_rng(0))
    by_step = {int(seen[0]): at for at, seen in enumerate(drawn.seen)}
    assert sorted(by_step) == list(range(9)), "the latest three have no return yet"
    assert drawn.reward[by_step[0]] == 1.75
    assert drawn.keeps[by_step[0]] == 0.125
    assert drawn.then[by_step[0]][0] == 3.0
    assert (drawn.reward[by_step[3]], drawn.keeps[by_step[3]]) == (1.5, 0.0)


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("decisions", 3, "multiple of envs"),
        ("gamma", 1.5, "gamma is from 0 to 1"),
        ("memory", 4, "memory has room"),
        ("episodes", 0, "1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        msgspec.structs.replace(SMALL, **{field: value})


def ran(began: float, ended: float, **on: int) -> JobOutcome:
    """One job and its GPUs on each node."""
    span = Span(
        began=seconds(began),
        ended=seconds(ended),
        gpus=sum(on.values()),
        spread=tuple(on.values()),
        nodes=tuple(on),
    )
    job = TraceJob(id="j", at=seconds(0), run_time=seconds(ended - began), gpus=span.gpus)
    return JobOutcome(job=job, spans=(span,), began=span.began, ended=span.ended)


def result(*jobs: JobOutcome) -> RunResult:
    return RunResult(
        trace="t",
        cluster="c",
        policy="p",
        seed=0,
        gpus=8,
        node_gpus=4,
        jobs=jobs,
        nodes={"a": 4, "b": 4},
    )


def test_kept_rules_are_made_anew_for_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(TIGHT, (1, 2))
    monkeypatch.setattr(sched2_judge, "settings", lambda: {"single 68": setting})
    jobs, made = sched2_play.drawn(setting), list[Setting]()

    def play() -> dict[str, sched2_rules.Played]:
        made.append(setting)
        return {"single 68|fifo|whole queue": jobs}

    monkeypatch.setattr(sched2_figures, "play_rules", play)
    file = tmp_path / "rules.npz"
    for _ in range(2):
        found = sched2_judge._rules(file)["single 68|fifo|whole queue"]
        assert np.array_equal(found.ended, jobs.ended)
    assert len(made) == 1
    setting = Setting(TIGHT, (1, 3))
    sched2_judge._rules(file)
    assert len(made) == 2


def test_fragmentation_is_the_equation_of_the_paper() -> None:
    # Node a: two GPUs with 100 s to run, one with 50 s, one free; node b is free.
    points = sched2_figures.fragmentation(result(ran(0, 100, a=2), ran(0, 50, a=1)), 1.0)
    assert [at for at, _ in points] == [0.0]
    assert points[0][1] == pytest.approx((1 - 250**2 / (4 * (2 * 100**2 + 50**2))) / 2)


@pytest.mark.parametrize(
    "name, jobs, wanted",
    [
        ("the first has no one's", [ran(0, 10, a=4)], 0.0),
        ("it is left whole", [ran(0, 10, a=4), ran(10, 20, a=4)], 0.5),
        ("a part of a block is reused", [ran(0, 10, a=4), ran(10, 20, a=2)], 0.5),
        ("a smaller job had some", [ran(0, 10, a=4), ran(10, 15, a=1), ran(15, 20, a=4)], 0.0),
        ("a small job goes beside", [ran(0, 10, a=3), ran(1, 15, a=1), ran(11, 20, a=3)], 0.5),
        ("it is on more nodes than necessary", [ran(0, 9, a=2, b=2), ran(9, 12, a=2, b=2)], 0.0),
        ("a block on each node", [ran(0, 9, a=4, b=4), ran(9, 12, a=4, b=4)], 0.5),
    ],
)
def test_locality_is_reused_where_no_smaller_job_was_between(
    name: str, jobs: list[JobOutcome], wanted: float
) -> None:
    assert sched2_figures.reuse(result(*jobs)) == wanted, name


@pytest.mark.parametrize("name, rule", [("hold", "hold"), ("saf", "saf")])
def test_a_teacher_sees_enough_to_do_as_its_rule(name: str, rule: str) -> None:
    seeds = np.array([3, 4])
    wanted = sched2_rules.play(sched2_rules.NAMES[rule]._replace(window=4), seeds, TIGHT)
    found = sched2_play.play(
        lambda seen, _: sched2_teachers.choose(name, seen, TIGHT), seeds, TIGHT
    )
    np.testing.assert_array_equal(found.first, wanted.first)


def test_a_clone_does_as_its_teacher_and_a_learner_goes_on_from_it() -> None:
    cloning = sched2_clone.Cloning(
        environment=SMALL.environment, traces=(0, 1, 2), rounds=2, updates=60, batch=64, sorts=True
    )
    rounds = list(sched2_clone.clone(cloning, 5))
    again = list(sched2_clone.clone(cloning, 5))[-1]
    for name, each in rounds[-1].items():
        np.testing.assert_array_equal(each, again[name], err_msg=name)
    same, act = [], sched2_play.greedy(cloning.environment, rounds[-1])

    def compared(seen: Any, may: Any) -> Any:
        chosen = act(seen, may)
        real = may.sum(1) > 1
        same.extend((chosen == sched2_teachers.choose("hold", seen, cloning.environment))[real])
        return chosen

    sched2_play.play(compared, np.array([0, 1, 2]), cloning.environment)
    assert np.mean(same) > 0.9, (np.mean(same), len(same))
    still = msgspec.structs.replace(SMALL, rate=0.0)
    kept = [each.save() for each in dqn.train(still, 5, begins=rounds[-1])][-1].tensors
    for name, each in rounds[-1].items():
        np.testing.assert_array_equal(kept[f"model/{name}"], each, err_msg=name)


def test_a_network_that_sorts_nodes_has_no_place_for_each() -> None:
    torch.manual_seed(1)
    seen = np.random.default_rng(2).random((5, 12 + 4 * 6 + 4)).astype(np.float32)
    seen[:, :12] *= seen[:, :12] > 0.4
    moved = seen.copy()
    moved[:, :12] = seen[:, :12].reshape(5, 3, 4)[:, [2, 0, 1]].reshape(5, 12)
    for sorts in (True, False):
        weights = dqn.weights_of(dqn.network(TIGHT, sorts=sorts))
        model = dqn.with_weights(TIGHT, weights)
        with torch.no_grad():
            same = torch.equal(model(torch.from_numpy(seen)), model(torch.from_numpy(moved)))
        assert same is sorts


def test_a_state_is_worth_the_starts_that_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sched2_why, "HORIZONS_H", (1.0, 1e9))
    batch, rule = Batch(2, TIGHT), sched2_rules.NAMES["hold"]._replace(window=4)
    batch.reset(np.array([3, 4]))
    played = sched2_rules.play(rule, np.array([3, 4]), TIGHT)
    every = (played.run / (played.ended - played.at)).sum(1)
    rest = sched2_why.returns(batch, rule)
    np.testing.assert_allclose(rest[:, 1], every)
    act, earned = sched2_why.noisy(0.0, np.random.default_rng(0), batch), np.zeros(2)
    for _ in range(40):
        earned += batch.step(act(batch.sight.observation, batch.sight.mask)).reward
    np.testing.assert_allclose(sched2_why.returns(batch, rule)[:, 1] + earned, every)
    assert (sched2_why.returns(batch, rule)[:, 0] < every - earned).all()
    batch.reset(np.array([3, 4]))
    assert sched2_why.spread_instead(batch, act, 60, 1), "there are such decisions"


def test_networks_are_judged_against_rules_trace_by_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = SMALL.environment
    monkeypatch.setattr(sched2_clone_main, "REALISTIC", few)
    monkeypatch.setattr(sched2_clone_main, "JUDGED", tuple(range(6)))
    files = [tmp_path / f"{seed}.npz" for seed in (1, 2)]
    for seed, file in enumerate(files):
        torch.manual_seed(seed)
        weights: dict[str, Any] = dqn.weights_of(dqn.network(few))
        np.savez(file, **weights)
    assert sched2_clone_main.main(["judge", *map(str, files)]) == 0
    report = json.loads(capsys.readouterr().out)
    for measure in ("jct_s", "makespan_s", "effectiveness"):
        rule = report[measure]["hold, first 10"]
        assert rule["less"] == pytest.approx(np.mean(report[measure]["networks"]) - rule["base"])
        assert rule["interval"][0] <= rule["less"] <= rule["interval"][1]
