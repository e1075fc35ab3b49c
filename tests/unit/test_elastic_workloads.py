"""Statistical efficiency, batch sizes that adapt, and traces whose jobs become elastic."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.units import Duration, seconds
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads import efficiency, pollux
from skep_lab.workloads.elastic import elastic
from skep_lab.workloads.models import Models
from skep_lab.workloads.situation import STAGES, Situation
from skep_lab.workloads.table import Limits, Place, Work

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,1.0,0.0
1,16,2.0,0.0
2,8,1.2,0.2
2,16,2.2,0.2
11,8,1.5,0.5
11,16,2.5,0.5
"""
HEAD = "progress,iteration,metric,grad_sqr,grad_var\n"
VALIDATION = {
    8: HEAD + "100,100,0,1,0\n200,200,0,1,3\n",
    16: HEAD + "100,100,0,1,0\n200,150,0,1,3\n",
    32: HEAD + "100,100,0,1,0\n200,140,0,1,3\n",
}
"""No noise in the first half: larger batches are worth nothing. Then phi is 3 batches of m0."""


def table() -> pollux.Pollux:
    lines = {size: text.splitlines() for size, text in VALIDATION.items()}
    return pollux.parse({"bert": PLACEMENTS.splitlines()}, {}, {"bert": lines})


def test_a_gain_is_that_of_the_papers_equation() -> None:
    """phi = 3 m0: a batch of 4 m0 has an efficiency of (3 + 1) / (3 + 4)."""
    assert efficiency.gain(3.0, 4.0) == pytest.approx(4 * 4 / 7)
    assert efficiency.gain(3.0, 1.0) == 1.0
    assert efficiency.gain(0.0, 8.0) == 1.0


def test_gains_follow_the_epochs_of_a_run() -> None:
    training = table().training["bert"]
    assert (training.base, training.most) == (8, 32)
    assert training.gain(32, 0) == pytest.approx(1.0)
    assert training.gain(32, STAGES - 1) == pytest.approx(4 * 4 / 7)
    assert training.steps(8) == pytest.approx(200)
    assert training.steps(32) == pytest.approx(100 + 100 / (16 / 7))
    assert training.steps(32) == pytest.approx(200 / training.mean(32))


def test_a_job_that_adapts_goes_at_its_best_batch_size_in_each_part_of_its_run() -> None:
    work, two = Work("bert", 8, 1), Place("t4", (2,), 2)
    early = table().adapted(work, two, 32, 0)
    late = table().adapted(work, two, 32, STAGES - 1)
    assert early == pytest.approx(1.0), "more samples are worth nothing yet: its own batch is best"
    # 16 samples take as long as 8 on two GPUs, and are worth 2 * 4 / 5 mini-batches of 8; 32 are
    # worth 16 / 7, and take 2.2 s instead of 1.2 s.
    assert late == pytest.approx(1.6)
    assert table().adapted(Work("gan", 8, 1), two, 32, 0) is None


def test_a_fixed_batch_size_goes_as_before() -> None:
    models = Models([table()], node_gpus=4)
    job = TraceJob(id="a", at=Duration(0), run_time=seconds(100), gpus=2, batch_size=16)
    bert = msgspec.structs.replace(job, model="bert")
    there = Situation("t4", (1, 1), 2)
    assert models.speed(bert, there) == pytest.approx(1.2 / 1.5)
    adapting = msgspec.structs.replace(bert, batch_max=32)
    assert models.speed(adapting, there._replace(stage=STAGES - 1)) > models.speed(bert, there)


def test_limits_come_from_the_smallest_measured_batch_of_a_gpu() -> None:
    assert table().limits(Work("bert", 16, 1)) == Limits(2, 4, 32)
    assert table().limits(Work("gan")) is None
    alone = pollux.parse({"ncf": PLACEMENTS.splitlines()}, {})
    assert alone.limits(Work("ncf", 16, 1)) == Limits(1, 1)


def made(**changes: Any) -> Trace:
    fields: dict[str, Any] = {"gpus": 2, "batch_size": 16, "model": "bert"} | changes
    job = TraceJob(id="a", at=Duration(0), run_time=seconds(120), **fields)
    return Trace(name="t", jobs=(job,))


def test_jobs_with_limits_become_elastic_and_others_are_told_of() -> None:
    models = Models([table()], node_gpus=4)
    found = elastic(made(), models.limits, models.own_mini_batch_s, 64, batch=False).jobs[0]
    assert (found.workers, found.workers_min, found.workers_max) == (2, 1, 2)
    assert (found.batch_max, found.mini_batches) == (0, 100), "120 s of 1.2 s each"
    found = elastic(made(), models.limits, models.own_mini_batch_s, 64, batch=True).jobs[0]
    assert (found.workers_max, found.batch_max) == (4, 32)
    found = elastic(made(), models.limits, models.own_mini_batch_s, 3, batch=True).jobs[0]
    assert found.workers_max == 3
    left = elastic(made(model="gan"), models.limits, models.own_mini_batch_s, 64, batch=True)
    assert left.jobs == made(model="gan").jobs
    assert "1 jobs are not elastic" in left.notes[0].text


def played(policy: str, trace: Trace, **more: Any) -> RunResult:
    models = Models([table()], node_gpus=4)
    settings = Settings(policies={"all": (policy, {})}, **more)
    return run(trace, uniform(2, 4, "t4"), settings, models)


def test_pollux_plays_an_adapting_job_to_its_end() -> None:
    models = Models([table()], node_gpus=4)
    long = made()
    jobs = tuple(
        msgspec.structs.replace(long.jobs[0], id=name, run_time=seconds(6000)) for name in "abc"
    )
    trace = elastic(
        Trace(name="t", jobs=jobs), models.limits, models.own_mini_batch_s, 8, batch=True
    )
    costs = Costs(start_s=30, resize_s=30)
    grown = played("pollux", trace, costs=costs)
    assert all(each.ended for each in grown.jobs)
    assert sum(each.resized for each in grown.jobs) >= 3
    assert played("pollux", trace, costs=costs) == grown


def test_policies_decide_at_ticks_only() -> None:
    result = played("las", made(), tick_s=60.0)
    (outcome,) = result.jobs
    begin = 1_700_000_000  # The trace's beginning is 20 s after a full minute.
    assert outcome.began == seconds(60 - begin % 60)
    assert played("fifo", made(), tick_s=60.0).jobs[0].began == 0
    assert outcome.ended == outcome.began + seconds(120)
