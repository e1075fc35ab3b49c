"""What a judgement comes to: the better rule is chosen afterwards; gains are paired by trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skep.units import seconds
from skep_lab.fast_env.queue import NEVER_ENDS_S
from skep_lab.learn import beat_main, evolve, judge, protocol, verdict
from skep_lab.learn.protocol import Setting
from skep_lab.learn.verdict import Row
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.traces.job import TraceJob
from skep_services.learning import rollouts
from skep_services.learning.problems import LearningError

BURSTS = Setting("both", bursts=True)


def rows(scenario: Setting, **means: list[float]) -> list[Row]:
    return [
        Row(scenario, policy.replace("_", "-"), number, mean)
        for policy, each in means.items()
        for number, mean in enumerate(each)
    ]


def test_the_better_rule_is_that_with_the_lower_mean_over_the_traces_that_all_have_played() -> None:
    played = rows(BURSTS, look_ahead=[10.0, 10.0, 1.0], hold=[8.0, 9.0], learned=[4.0, 9.0])
    found = verdict.compared(played, BURSTS)
    assert found is not None
    assert (found.rule, found.rule_s, found.learned_s) == ("hold", 8.5, 6.5)
    assert found.gains == {0: 0.5, 1: 0.0}
    assert verdict.compared(played, Setting("elastic")) is None


def test_a_bar_pools_the_traces_of_its_scenarios_and_families_are_told_apart() -> None:
    both = rows(BURSTS, look_ahead=[10.0] * 6, hold=[20.0] * 6, learned=[8.0] * 6)
    fixed = Setting("locality", bursts=True)
    worse = rows(fixed, look_ahead=[20.0] * 6, hold=[10.0] * 6, learned=[10.5] * 6)
    found = verdict.all_compared([*both, *worse])
    bars = verdict.bars(found)
    whole, one = bars["bursts"], bars["bursts, both"]
    assert whole is not None
    assert one is not None
    assert whole.mean == pytest.approx((0.2 - 0.05) / 2)
    assert one.low == pytest.approx(0.2)
    assert one.high == pytest.approx(0.2)
    assert bars["30 % error"] is None
    assert [each.scenario for each in verdict.worse(found)] == [fixed]
    assert "| both, load 0.9, bursts, 15 nodes | 6 | 10 | 20 | 8 | +20.0 %" in verdict.table(found)


def test_traces_with_the_same_jobs_count_once() -> None:
    learned = [8.0, 9.0, 7.0, 10.0, 8.5]
    alone = verdict.compared(
        rows(BURSTS, look_ahead=[10.0] * 5, hold=[20.0] * 5, learned=learned), BURSTS
    )
    lighter = Setting("both", load=0.7, bursts=True)
    again = verdict.compared(
        rows(lighter, look_ahead=[10.0] * 5, hold=[20.0] * 5, learned=learned), lighter
    )
    assert alone is not None
    assert again is not None
    assert verdict.pooled([alone, again]) == verdict.pooled([alone])


def test_a_job_that_never_ends_counts_as_in_the_fast_environment() -> None:
    ended = JobOutcome(
        job=TraceJob(id="t0", at=seconds(5), run_time=seconds(1), gpus=1), ended=seconds(15)
    )
    never = JobOutcome(job=TraceJob(id="t1", at=seconds(9), run_time=seconds(1), gpus=1))
    result = RunResult(
        trace="t", cluster="c", policy="p", seed=0, gpus=8, node_gpus=8, jobs=(ended, never)
    )
    played = judge.played(result)
    assert played.mean_jct_s == (10.0 + NEVER_ENDS_S) / 2
    assert played.unfinished == 1


def test_every_scenario_of_a_bar_is_judged() -> None:
    assert {each for group in protocol.BARS.values() for each in group} <= {*protocol.SCENARIOS}
    assert len(protocol.SCENARIOS) == 42


SMALL = Setting("elastic", load=0.5, nodes=1)


def test_baselines_are_played_once_and_told_beside_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        beat_main, "works", lambda names: [(name, SMALL, protocol.TUNING[0]) for name in names]
    )
    monkeypatch.setattr(beat_main, "MARGIN_S", 0.0)
    words = ["--out", str(tmp_path), "--processes", "1", "--policies", "fifo", "random:window"]
    assert beat_main.main(words) == 0
    assert capsys.readouterr().out.startswith("2 of 2 traces judged")
    assert beat_main.main([*words, "optimus:exact"]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 traces judged")
    rows = json.loads((tmp_path / "beat.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["fifo", "random:window", "optimus:exact"]
    assert len({row["mean_jct_s"] for row in rows}) == 3
    assert beat_main.main(["--judge", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("No trace was played by all of look-ahead, hold, learned.")
    assert f"| {SMALL.name} | random:window | 1 | {rows[1]['mean_jct_s']:,.0f} | " in told


def test_a_folder_without_judged_traces_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert beat_main.main(["--judge", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("\n") == 1


def test_every_baseline_can_be_made() -> None:
    model = beat_main.model_of(evolve.starts())
    models = dict.fromkeys(beat_main.LEARNED, model)
    made = {name: beat_main.policy_of(name, models) for name in beat_main.NAMES}
    assert {*protocol.RULES, *protocol.BASELINES} <= {*made}
    windowed = made["fifo:window"]
    assert isinstance(windowed, judge.Windowed)
    assert (windowed.inner, windowed.window) == (made["fifo"], protocol.WINDOW)
    assert made["seed:3"] == judge.Network(model=model, compiled=True)


def test_a_report_says_whether_a_bar_is_reached_and_by_how_many_traces() -> None:
    def row(scenario: Setting, policy: str, number: int, mean: float) -> dict[str, Any]:
        measured = dict.fromkeys(verdict.FIELDS, mean) | {"unfinished": 0}
        return {"scenario": scenario._asdict(), "policy": policy, "number": number, **measured}

    means = {"look-ahead": 10.0, "hold": 20.0, "learned": 8.0}
    group = protocol.BARS["bursts"]
    played = [
        row(each, policy, number, mean)
        for each in group
        for policy, mean in means.items()
        for number in protocol.HELD_OUT
    ]
    told = verdict.report(played)
    assert "| bursts | 180 of 180 | +20.0 % (20.0 to 20.0) | yes |" in told
    assert "| bursts, both | 60 of 60 | +20.0 % (20.0 to 20.0) | yes |" in told
    assert "| 30 % error | 0 of 180 | - | not all traces were played |" in told
    assert "Of 42 scenarios 6 were played; worse by more than 2%: none." in told
    assert f"| {group[0].name} | hold | 30 | 20 | 20 | 20 | 20 | 20.000 | 0 |" in told
    few = verdict.report([each for each in played if each["number"] != protocol.HELD_OUT[0]])
    assert "| bursts | 174 of 180 | +20.0 % (20.0 to 20.0) | not all traces were played |" in few


def test_a_training_of_which_no_seed_came_to_an_end_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beat_main, "_warm", lambda: None)
    words = ["--out", str(tmp_path), "--seeds", "0", "--processes", "0", "--generations", "1"]
    assert beat_main.main(words) == 1
    assert "no seed came to an end: there are no weights" in capsys.readouterr().out
    assert not (tmp_path / "beat.npz").exists()


def test_rows_of_several_models_are_not_judged_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = protocol.TUNING[0]
    monkeypatch.setattr(beat_main, "works", lambda names: [(name, SMALL, case) for name in names])
    monkeypatch.setattr(beat_main, "MARGIN_S", 0.0)
    other = tmp_path / "other.safetensors"
    other.write_bytes(evolve.file_of(evolve.starts(), "evolve"))
    words = ["--out", str(tmp_path), "--processes", "1", "--policies", "learned"]
    for more, played in (([], 1), ([], 0), (["--model", str(other)], 1)):
        assert beat_main.main([*words, *more]) == 0
        assert capsys.readouterr().out.startswith(f"{played} of {played} traces judged")
    assert beat_main.main(["--judge", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("rows of learned are by 2 models (")
    assert told.count("\n") == 1


def test_a_run_in_which_no_job_ends_has_measures() -> None:
    job = TraceJob(id="t1", at=seconds(9), run_time=seconds(1), gpus=1)
    never = (JobOutcome(job=job),)
    found = judge.played(
        RunResult(trace="t", cluster="c", policy="p", seed=0, gpus=8, node_gpus=8, jobs=never)
    )
    assert (found.unfinished, found.makespan_s, found.effectiveness) == (1, 0.0, 0.0)


@pytest.mark.parametrize("learner", ["evolve", "ppo"])
def test_seeds_without_a_tuning_trace_are_refused_in_a_line(learner: str) -> None:
    count = len(protocol.TUNING)
    assert rollouts.of_run(learner, {}, {}, range(count)).label == learner
    with pytest.raises(LearningError, match=f"seeds 0 to {count - 1}, and none for {count}"):
        rollouts.of_run(learner, {}, {}, [3, count])
