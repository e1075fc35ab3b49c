"""Turns in cells: who goes on has its VC's own, and who stands borrows what others leave idle."""

from __future__ import annotations

from typing import Literal

import pytest

from skep.machines.allocator.policies.policy_memory import Planned
from skep.units import in_seconds, seconds
from skep.wire.changes import AskResume, AskSuspend
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING, Costs, Settings
from skep_lab.simulator.world import News
from skep_lab.traces.generators import hived
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

COSTS = Costs(suspend_s=0.5, resume_s=0.5, migrate_s=3.5, checkpoint_every_s=1)
SLICE_S = 600.0


def waits(
    jobs: list[tuple[str, float, float, int]],
    cells: dict[str, dict[str, int]],
    nodes: int,
    beyond: Literal["wait", "opportunistic"],
    *news: tuple[float, News],
    slice_s: float = SLICE_S,
) -> list[float]:
    """Return for how long jobs (VC, begin, length, GPUs) had no GPUs: all VCs go by turns."""
    trace = Trace(
        name="turns",
        jobs=tuple(
            TraceJob(id=f"{vc}@{at:g}", vc=vc, at=seconds(at), run_time=seconds(length), gpus=gpus)
            for vc, at, length, gpus in jobs
        ),
    )
    settings = Settings(
        costs=COSTS,
        over_quota=beyond,
        can=EVERYTHING,
        policies=dict.fromkeys(cells, ("gandiva", {"slice_s": slice_s})),
    )
    result = run(
        trace,
        hived.cluster(nodes, cells),
        settings,
        Steady(),
        news=[(seconds(at), each) for at, each in news],
    )
    assert all(each.ended is not None for each in result.jobs)
    return [in_seconds(each.waited) for each in result.jobs]


@pytest.mark.parametrize("beyond", ["wait", "opportunistic"])
def test_turns_in_less_than_a_node_go_round(beyond: Literal["wait", "opportunistic"]) -> None:
    """Else one went on with a GPU that is not its VC's, and the other stood until its end."""
    jobs = [("a", 0.0, 100_000.0, 1), ("a", 20_000.0, 3_000.0, 1)]
    if beyond == "opportunistic":
        jobs = [("b", 0.0, 200_000.0, 1)] * 7 + jobs
    first, second = waits(jobs, {"a": {"gpu": 1}, "b": {"gpu": 7}}, 1, beyond)[-2:]
    assert 3_000 <= first < 3_000 + 4 * SLICE_S
    assert second < 3_000 + 4 * SLICE_S


def test_who_stands_borrows_what_is_idle_and_leaves_it_to_its_owner() -> None:
    cells = {"a": {"node": 1}, "b": {"node": 1}}
    jobs = [("a", 0.0, 20_000.0, 8), ("a", 100.0, 20_000.0, 8)]
    assert max(waits(jobs, cells, 2, "opportunistic")) < 400  # In 33 turns.
    assert min(waits(jobs, cells, 2, "wait")) > 9_000
    jobs.append(("b", 5_000.0, 3_000.0, 8))
    assert waits(jobs, cells, 2, "opportunistic")[2] < 60


def test_who_loses_what_it_borrows_again_and_again_has_its_turns() -> None:
    """Each time that somebody else took it, its wait had begun anew: it never had one."""
    cells = {"a": {"node": 1}, "b": {"node": 1}}
    jobs = [("a", 0.0, 9_000.0, 8), ("a", 100.0, 9_000.0, 8)]
    jobs += [("b", 650.0 + 300 * each, 250.0, 8) for each in range(40)]
    first, second = waits(jobs, cells, 2, "opportunistic")[:2]
    assert abs(first - second) < 3 * SLICE_S


def test_what_others_leave_for_a_job_that_moves_is_nobody_elses() -> None:
    """The next that borrowed had had it, and nobody asked again; who can store its state, but has
    never had cells of its own, had stored it again and again, and gone on."""
    cells = {"a": {"node": 2}, "b": {"node": 1}}
    jobs = [
        ("a", 0.0, 9_000.0, 8),
        ("a", 0.1, 300.0, 8),
        ("b", 0.2, 9_000.0, 8),
        ("a", 100.0, 9_000.0, 8),
        ("b", 150.0, 6_000.0, 8),
        ("b", 151.0, 6_000.0, 8),
    ]
    asked = (50, AskSuspend(job="j1", release=True)), (400, AskResume(job="j1"))
    assert waits(jobs, cells, 3, "opportunistic", *asked, slice_s=100_000)[0] < 400


def test_who_may_not_move_yet_keeps_nobody_from_what_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ask for as much, and it was taken for granted that neither would find it."""
    monkeypatch.setattr(Planned, "try_elsewhere", lambda *_: False)
    cells = {"a": {"node": 1}, "b": {"node": 1}}
    jobs = [
        ("b", 0.0, 700.0, 8),
        ("a", 0.0, 9_000.0, 8),
        ("a", 100.0, 9_000.0, 8),
        ("a", 610.0, 300.0, 8),
    ]
    assert waits(jobs, cells, 2, "opportunistic")[3] < 100
