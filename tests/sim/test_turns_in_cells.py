"""Turns in cells: who goes on has its VC's own, and who stands borrows what others leave idle."""

from __future__ import annotations

from typing import Literal

import pytest

from skep.sim.cluster.run import run
from skep.sim.cluster.settings import EVERYTHING, Costs, Settings
from skep.traces.generators import hived
from skep.traces.job import Trace, TraceJob
from skep.units import in_seconds, seconds
from skep.workloads.situation import Steady

COSTS = Costs(suspend_s=0.5, resume_s=0.5, migrate_s=3.5, checkpoint_every_s=1)
SLICE_S = 600.0


def waits(
    jobs: list[tuple[str, float, float, int]],
    cells: dict[str, dict[str, int]],
    nodes: int,
    beyond: Literal["wait", "opportunistic"],
) -> list[float]:
    """Return for how long jobs (VC, begin, length, GPUs) had no GPUs: all VCs go by turns."""
    trace = Trace(name="turns", jobs=tuple(
        TraceJob(id=f"{vc}@{at:g}", vc=vc, at=seconds(at), run_time=seconds(length), gpus=gpus)
        for vc, at, length, gpus in jobs))  # fmt: skip
    settings = Settings(costs=COSTS, over_quota=beyond, can=EVERYTHING,
                        policies=dict.fromkeys(cells, ("gandiva", {"slice_s": SLICE_S}))
                        )  # fmt: skip
    result = run(trace, hived.cluster(nodes, cells), settings, Steady())
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
