"""GENIE's experiments: small queues under every reading, and what its profile knows and costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from skep_lab.experiments import deadlinefigures, genie, geniefigures, genieprofile
from skep_lab.experiments.catalogue import EXPERIMENTS
from skep_lab.experiments.genie import Check, Queue, play, profile
from skep_lab.experiments.geniefigures import ALL, BOTH, DECIDES, ORACLE, OURS, PRINTED
from skep_lab.outcome import RunResult
from skep_lab.traces.generators import genie as tasks
from skep_lab.traces.generators import k80, k80measured
from skep_lab.traces.generators.k80measured import Row, measured
from skep_services.experiments import keep
from skep_services.experiments import measured as measurements
from skep_services.experiments.play import Task
from skep_services.experiments.play import tasks as todo
from tests.workload_kit import GAVEL

SMALL = replace(tasks.DEFAULT, per_hour=20.0, hours=1.0, latency_h=0.5)
ARMS = {**ALL, **DECIDES}


def small(name: str, **more: Any) -> Queue:
    return Queue(name, ARMS[name], SMALL, **more)


def ran(queue: Queue, seed: int = 0) -> RunResult:
    return genie.played(queue, seed, None)


@pytest.mark.parametrize("name", ARMS)
def test_every_reading_runs_all_tasks_on_symmetric_placements(name: str) -> None:
    result = ran(small(name))
    for each in result.jobs:
        (span,) = each.spans
        assert len(set(span.spread)) == 1, each
        assert span.gpus <= each.job.batch_size
    figures = play(small(name), 0).figures
    assert figures["tasks"] == len(result.jobs) > 10
    assert figures["urgent"] == 0  # By equation 9 none can be in time.


def test_a_seed_is_one_outcome() -> None:
    assert play(small(PRINTED), 3) == play(small(PRINTED), 3)
    assert play(small(PRINTED), 3) != play(small(PRINTED), 4)


def test_all_free_gpus_are_all_where_an_end_is_one_event() -> None:
    waits = [each for each in ran(small("FIFO")).jobs if each.began != each.job.at]
    assert waits
    assert {each.spans[0].spread for each in waits} == {(4, 4, 4, 4)}
    pieces = ran(small("FIFO", at_once=False))
    assert min(each.spans[0].gpus for each in pieces.jobs) <= 4


def test_tasks_start_in_half_a_minute_and_run_as_fast_as_the_curves_say() -> None:
    for each in ran(small(BOTH, noise=0.0)).jobs:
        (span,) = each.spans
        step_s = k80.step_s(each.job.model, each.job.batch_size, span.spread)
        alone_s = k80.step_s(each.job.model, each.job.batch_size)
        took = each.job.run_time * step_s / alone_s / 1e9 + 30
        assert (span.ended - span.began) / 1e9 == pytest.approx(took, abs=1)


ROWS = k80measured.rows_of(
    [
        Row("resnet50", False, 1, 16.0, 0.5),
        Row("resnet50", False, 1, 32.0, 0.9),
        Row("resnet50", False, 2, 16.0, 0.6),
        Row("resnet50", False, 4, 16.0, 0.7),
        Row("resnet50", True, 2, 16.0, 0.8),
        Row("lm", False, 2, 16.0, 0.8),
        Row("a3c", False, 1, 16.0, 0.8),
    ]
)


@pytest.mark.parametrize(
    "kind, batch, spread, seconds",
    [
        ("resnet50/training", 16, (1,), 0.5),
        ("resnet50/training", 24, (1,), 0.7),
        ("resnet50/training", 8, (1,), 0.3),
        ("resnet50/training", 64, (1,), 1.7),
        ("resnet50/training", 32, (2,), 0.6),
        ("resnet50/training", 64, (4,), 0.7),
        ("resnet50/training", 128, (8,), 0.8),
        ("resnet50/training", 32, (1, 1), 0.8),
        ("resnet50/training", 64, (1, 1, 1, 1), 1.1),
        ("resnet50/inference", 64, (2, 2), 0.5 / 3),
        ("resnet50/training", 0.001, (1,), 0.1),
    ],
)
def test_mini_batches_are_as_measured_and_on_lines_between(
    kind: str, batch: float, spread: tuple[int, ...], seconds: float
) -> None:
    assert measured(ROWS).step_s(kind, batch, spread) == pytest.approx(seconds, abs=1e-4)


def test_what_was_not_measured_is_as_the_curves_say() -> None:
    assert {row.model for row in ROWS} == {"resnet50"}  # The language model has no single GPU.
    for kind in ("alexnet/training", "regularized-lstm/training"):
        assert measured(ROWS).step_s(kind, 64, (2, 2)) == k80.step_s(kind, 64, (2, 2))


def test_tasks_profiles_and_attempts_go_by_what_was_measured() -> None:
    queue = small(BOTH, noise=0.0, measured=ROWS)
    seen = 0
    for each in ran(queue).jobs:
        (span,) = each.spans
        real_s = measured(ROWS).step_s(each.job.model, each.job.batch_size, span.spread)
        took = each.job.mini_batches * real_s + 30
        assert (span.ended - span.began) / 1e9 == pytest.approx(took, abs=2)
        seen += each.job.model.startswith("resnet50")
    assert seen
    assert genie.knowledge(queue, 0) != genie.knowledge(small(BOTH, noise=0.0), 0)


def test_measurements_are_read_and_travel_with_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = EXPERIMENTS["genie-measured"]
    monkeypatch.setenv("SKEP_SHARED_DATA", str(tmp_path))
    with pytest.raises(measurements.MissingError, match="needs measurements"):
        measurements.rows_for(experiment)
    (tmp_path / "gavel").mkdir()
    (tmp_path / "gavel/isolated_throughput.csv").write_text(GAVEL)
    rows = measurements.rows_for(experiment)
    # Rates are those of all workers together: 2 and 4 GPUs take as long as one.
    assert rows == tuple(Row("resnet50", False, gpus, 64.0, 1.0) for gpus in (1, 2, 4))
    assert measurements.rows_for(EXPERIMENTS["genie-fig13"]) == ()
    task = todo(experiment, [4], None, rows)[0]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task) == task
    setting = task.setting_of()
    assert isinstance(setting, Queue)
    assert setting.measured == rows


def test_a_profile_is_as_large_as_the_papers_and_right_where_it_was_made() -> None:
    found = profile(0, noise=0.0)
    assert found.gpu_s == (10 + (2 + 3 + 4) + (2 + 3 + 4)) * 30  # 14 GPU-minutes for each type.
    rows = {row[0]: row for row in found.models}
    assert len(rows) == 12
    assert all(rows[kind][4:] == (0.0, 0.0) for kind in rows if kind.endswith("inference"))
    # AlexNet has the most gradients for its computing: it loses the most GPUs.
    assert max(rows, key=lambda kind: rows[kind][4]) == "alexnet/training"
    assert profile(1) != profile(2)


def test_who_is_told_the_real_rates_does_as_well_with_any_profile() -> None:
    queue = small(ORACLE, predictor="oracle", noise=0.0)
    known = genie.knowledge(queue, 0)
    assert known == genie.knowledge(queue, 1)
    assert len(known["measured"]) == 12 * (16 + 16 + 16 + 16)


def test_predictions_are_worse_where_gpus_have_few_samples() -> None:
    figures = play(Check("inception3", ("inception3",)), 0).figures
    by_batch = [figures[f"error at batch size {batch}"] for batch in tasks.BATCHES]
    assert by_batch == sorted(by_batch, reverse=True)


def test_outcomes_are_kept(tmp_path: Path) -> None:
    queue = small(PRINTED)
    assert keep.get(tmp_path, queue, 1) is None
    keep.put(tmp_path, queue, 1, play(queue, 1))
    assert keep.get(tmp_path, queue, 1) == play(queue, 1)
    assert keep.get(tmp_path, queue._replace(noise=0.5), 1) is None


def test_gains_are_over_the_best_of_the_papers_baselines() -> None:
    results = {
        f"5 tasks an hour, {name}": [play(Queue(name, arm, SMALL), seed) for seed in (0, 1)]
        for name, arm in {**ALL, **OURS}.items()
    }
    lines = geniefigures._compared("p", "q")(results)
    (gain,) = (line for line in lines if f"{BOTH}: in time, points" in line.what)
    best = max(ALL, key=lambda name: sum(_qos(results, name)))
    assert gain.what.endswith(best)
    pairs = zip(_qos(results, BOTH), _qos(results, best), strict=True)
    assert gain.ours == [ours - theirs for ours, theirs in pairs]


def _qos(results: dict[str, Any], name: str) -> list[float]:
    return [each.figures["qos"] for each in results[f"5 tasks an hour, {name}"]]


def test_a_profile_that_is_stopped_costs_less_and_tells_as_much() -> None:
    printed, stopped = (
        genieprofile.play(each, 1).figures
        for each in genieprofile.SETTINGS
        if each.which == "b+n+g" and each.form == "genie"
    )
    assert printed["runs"] == stopped["runs"] == 16
    assert printed["gpu_min"] > 14.0, "the last mini-batch of a run is made to its end"
    assert stopped["gpu_min"] < printed["gpu_min"] / 2
    assert abs(stopped["error"] - printed["error"]) < 3
    passive = next(each for each in genieprofile.SETTINGS if each.which == "passive-few")
    assert genieprofile.play(passive, 1).figures["gpu_min_starts"] == 0


# --- Skep's own policy ----------------------------------------------------------------------------


def own(**more: Any) -> Queue:
    return Queue("Skep", deadlinefigures.POLICY, SMALL, classes=False, **more)


def test_skeps_policy_knows_no_classes_but_is_judged_by_them() -> None:
    queue = own(predictor="oracle")
    result = ran(queue)
    assert {each.job.priority for each in result.jobs} == {0, 1, 2}
    assert all(len(set(each.spans[0].spread)) == 1 for each in result.jobs)
    figures = play(queue, 0).figures
    assert figures["urgent"] == 0 < figures["prior"]
    late = play(small(PRINTED, predictor="oracle"), 0).figures
    assert figures["qos"] >= late["qos"]


def test_skeps_predictions_come_from_the_same_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("resnet50/training", "inception3/training", "googlenet/training")
    monkeypatch.setattr(genie, "KINDS", kinds)
    rows = genie.predicted(991, 2, 0.0)
    assert {row[0] for row in rows} == set(kinds)
    real = {row[:4]: row[4] for row in genie.curves(2) if row[0] in kinds}
    near = [row for row in rows if row[2] == row[3] == 1]
    assert near
    for row in near:  # Measured, but for noise.
        assert row[4] == pytest.approx(real[row[:4]], rel=0.1)
    assert set(real) == {row[:4] for row in rows}


def test_differences_are_told_with_their_intervals() -> None:
    played = [play(own(predictor="oracle"), seed) for seed in range(5)]
    other = [play(small(PRINTED), seed) for seed in range(5)]
    lines = deadlinefigures.compared({"5 x, Skep": played, "5 x, other": other})
    (points,) = (line for line in lines if line.what == "5 x, Skep less other: tasks in time")
    assert points.ours == [
        a.figures["qos"] - b.figures["qos"] for a, b in zip(played, other, strict=True)
    ]
    assert "95 % interval" in points.note
