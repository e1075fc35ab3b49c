"""What a judgement comes to: the better rule is chosen afterwards; gains are paired by trace."""

from __future__ import annotations

import pytest

from skep.units import seconds
from skep_lab.fast_env.queue import NEVER_ENDS_S
from skep_lab.learn import judge, protocol, verdict
from skep_lab.learn.protocol import Setting
from skep_lab.learn.verdict import Row
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.traces.job import TraceJob

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
