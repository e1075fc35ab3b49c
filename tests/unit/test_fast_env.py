"""The fast environment against the production simulator, and its rules one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from skep.units import seconds
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.traces.job import TraceJob
from tests import fast_env_kit  # noqa: F401  before the fast environment

from skep_lab.fast_env import __main__ as command  # isort: skip
from skep_lab.fast_env import engine, equality  # isort: skip
from skep_lab.fast_env.arrays import JOB, NEVER, NODE, NUM, PHASE, WHAT  # isort: skip
from skep_lab.fast_env.play import play, prepare, rule_for, rule_of  # isort: skip

if TYPE_CHECKING:
    from skep_lab.fast_env.arrays import State

CASES = equality.cases()
QUICK = (
    "fifo",
    "sif",
    "sif skips",
    "spf skips, split",
    "packing, split",
    "packing skips",
    "sif skips, costs of start",
    "sif skips, noisy hints",
    "backfill, types and speeds",
    "backfill, instants at once",
)


def job(name: str, gpus: int, run_s: float, at_s: float = 0.0, **fields: Any) -> TraceJob:
    return TraceJob(id=name, at=seconds(at_s), run_time=seconds(run_s), gpus=gpus, **fields)


def started(jobs: list[TraceJob], **settings: Any) -> list[float]:
    found = play(jobs, uniform(2, 8), Settings(**settings), "backfill")
    return [int(each) / 1e9 for each in found.first]


@pytest.mark.parametrize("name", QUICK)
def test_jobs_start_and_end_as_in_the_production_simulator(name: str) -> None:
    found = equality.compare(CASES[name], seed=11, jobs=100)
    assert (found.starts, found.ends) == (found.jobs, found.jobs), found


@pytest.mark.nightly
def test_every_case_of_the_suite_is_equal_with_compiled_kernels() -> None:
    words = [sys.executable, "-m", "skep_lab.fast_env", "--seeds", "1", "--jobs", "200", "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["cases"]
    assert list(rows) == list(CASES)
    assert {row["same_ends_percent"] for row in rows.values()} == {100.0}


def test_a_gang_gives_its_nodes_back_one_by_one() -> None:
    """The reason for which a model that frees a gang at once is not equal where jobs skip."""
    jobs = [job("gang", 16, 100), job("whole", 16, 10, 1), job("small", 4, 10, 2)]
    # When the gang has left its first node, only the small job fits.
    assert started(jobs) == [0.0, 110.0, 100.0]
    state = prepare(jobs, uniform(2, 8), Settings())
    rule = rule_of("backfill")._replace(by_node=False)
    engine.run_all(state, rule)
    assert [int(each) / 1e9 for each in state.jobs[0, :, JOB.first]] == [0.0, 100.0, 110.0]


def test_costs_of_start_hold_gpus_and_a_fault_loses_what_was_not_stored() -> None:
    costs = Costs(start_s=5.0, stop_s=2.0, checkpoint_every_s=30.0)
    state = prepare([job("j", 8, 100)], uniform(1, 8), Settings(costs=costs))
    rule = rule_of("fifo")
    engine.push(state, 0, seconds(5.0 + 70.0), WHAT.fault, 0, 0)
    engine.run_all(state, rule)
    # 70 s of work, 60 of them stored; then 2 s to stop, 5 s to start, and 40 s of work.
    assert int(state.jobs[0, 0, JOB.lost]) == seconds(10.0)
    assert int(state.jobs[0, 0, JOB.ended]) == seconds(75.0 + 2.0 + 5.0 + 40.0)
    assert int(state.jobs[0, 0, JOB.overhead]) == seconds(5.0 + 2.0 + 5.0)


def test_a_prediction_that_comes_late_orders_the_queue_from_then_on() -> None:
    jobs = [job("now", 8, 100), job("long", 8, 50, 1), job("short", 8, 10, 2)]
    rule = rule_of("sif")

    def order(told_after_s: float) -> list[float]:
        state = prepare(jobs, uniform(1, 8), Settings(), told_after=seconds(told_after_s))
        engine.run_all(state, rule)
        return [int(each) / 1e9 for each in state.jobs[0, :, JOB.first]]

    assert order(0.0) == order(60.0) == [0.0, 110.0, 100.0]
    assert order(500.0) == [0.0, 100.0, 150.0]


def _running(jobs: list[TraceJob], until_s: float, costs: Costs) -> State:
    state = prepare(jobs, uniform(2, 8), Settings(costs=costs))
    engine.run_until(state, 0, rule_of("fifo"), seconds(until_s))
    state.num[0, NUM.now] = seconds(until_s)
    return state


def _end(state: State) -> float:
    engine.run_all(state, rule_of("fifo"))
    return int(state.jobs[0, 0, JOB.ended]) / 1e9


def test_a_suspended_job_goes_on_where_it_was() -> None:
    state = _running([job("j", 8, 100)], 40.0, Costs(suspend_s=3.0, resume_s=4.0))
    assert engine.suspend(state, 0, 0)
    engine.run_until(state, 0, rule_of("fifo"), seconds(60.0))
    state.num[0, NUM.now] = seconds(60.0)
    assert state.nodes[0, :, NODE.free].tolist() == [8, 8]
    assert engine.resume(state, 0, 0)
    assert _end(state) == 60.0 + 4.0 + 60.0


def test_a_job_that_grows_is_faster_after_the_cost_of_that() -> None:
    state = _running([job("j", 4, 100, workers=4)], 20.0, Costs(resize_s=5.0))
    assert engine.resize(state, 0, 0, 8)
    assert state.nodes[0, :, NODE.free].sum() == 8
    assert _end(state) == 20.0 + 5.0 + 40.0
    state = _running([job("j", 4, 100, workers=4)], 20.0, Costs(resize_s=5.0))
    assert engine.resize(state, 0, 0, 2)
    assert state.nodes[0, :, NODE.free].sum() == 14
    assert _end(state) == 20.0 + 5.0 + 160.0


def test_a_job_migrates_to_the_nodes_that_are_named() -> None:
    state = _running([job("j", 8, 100)], 40.0, Costs(migrate_s=6.0))
    here = int(state.held[0, 0, 0, 0])
    state.nodes[0, :, NODE.only] = [int(node != here) for node in range(2)]
    assert engine.migrate(state, 0, 0)
    assert int(state.held[0, 0, 0, 0]) == 1 - here
    assert state.nodes[0, here, NODE.free] == 8
    assert _end(state) == 40.0 + 6.0 + 60.0


def test_what_fits_no_cluster_is_refused_and_what_is_not_known_is_said() -> None:
    found = play([job("j", 17, 1, workers=17)], uniform(2, 8), Settings(), "fifo")
    assert found.first.tolist() == found.ended.tolist() == [NEVER]
    with pytest.raises(ValueError, match="job c: the fast environment does not know `cpus`"):
        play([job("c", 1, 1, cpus=2)], uniform(2, 8), Settings(), "fifo")
    with pytest.raises(ValueError, match="job b comes before a: sort jobs"):
        play([job("a", 1, 1, 2), job("b", 1, 1, 1)], uniform(2, 8), Settings(), "fifo")
    with pytest.raises(ValueError, match="no policy 'las'"):
        rule_of("las")
    with pytest.raises(ValueError, match="no option 'gpus'"):
        rule_of("sif", {"gpus": 1})
    with pytest.raises(ValueError, match="no levels but GPU and node"):
        play([], uniform(2, 8, racks=1), Settings(), "fifo")
    with pytest.raises(ValueError, match="one VC, which owns every node"):
        play([], uniform(2, 8, vcs={"a": 1, "b": 1}), Settings(), "fifo")
    with pytest.raises(ValueError, match="no switch 'first-node'"):
        rule_for(Settings(compat=frozenset({"first-node"})), "fifo")


def test_a_node_that_is_down_takes_no_job() -> None:
    state = prepare([job("a", 8, 10), job("b", 8, 10)], uniform(2, 8), Settings())
    state.nodes[0, 0, NODE.up] = 0
    engine.run_until(state, 0, rule_of("fifo"), 0)
    assert state.jobs[0, :, JOB.phase].tolist() == [PHASE.running, PHASE.waiting]
    assert state.held[0, 0, 0, 0] == 1


def test_the_command_prints_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "1", "--jobs", "20", "--case", "fifo", "--json"]) == 0
    assert '"same_starts_percent": 100.0' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["--case", "nothing"])
    assert "no case 'nothing'; there are: fifo;" in capsys.readouterr().err
