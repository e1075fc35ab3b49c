"""Worlds in which gangs may lie in several chains: what must hold holds, or is seen not to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.sim.history import run_seed
from skep.sim.mixing import apart
from skep.sim.violation import ViolationError
from skep.sim.workload import MIXED_FROM
from skep.sim.world import Settings
from skep.units import NS_PER_SECOND, seconds
from skep.wire.facts import JobBound, JobEnded
from skep.wire.reasons import Reason
from skep_lab.simulator.build import of_types
from skep_lab.simulator.settings import Costs
from skep_lab.simulator.settings import Settings as Simulated
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady
from tests.kit import T0, cells_set, joined, member, spec

LENGTH = 1000
SPEED = {"a100": 1.0, "k80": 0.25}


def test_every_invariant_holds() -> None:
    result = run_seed(MIXED_FROM + 10, Settings(check_every=10))
    assert not result.violation, result.violation


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_every_invariant_holds_in_many_histories(part: int) -> None:
    for seed in range(MIXED_FROM + 100 + part, MIXED_FROM + 260, 8):
        result = run_seed(seed, Settings(check_every=50))
        assert not result.violation, (seed, result.violation)


@pytest.mark.parametrize("wrong", [{"mixed": False}, {"gpu_type": "a100"}])
def test_a_gang_that_must_not_be_mixed_is_seen(wrong: dict[str, Any]) -> None:
    nodes = joined("node-1", {"a100": 3}), joined("node-2", {"h100": 1})
    cluster = cells_set(*nodes).cluster
    parts = [
        member("node-1", (0,), (1,), (2,), levels=(1, 1, 1)),
        member("node-2", (0,), first_rank=3, levels=(1,)),
    ]
    homes = [("a100x3", "a100"), ("h100x1", "h100")]
    fact = JobBound(
        job="j1",
        attempt=1,
        order=1,
        members=tuple(
            msgspec.structs.replace(part, chain=chain, gpu_type=kind)
            for part, (chain, kind) in zip(parts, homes, strict=True)
        ),
        master_port=1,
        why=Reason.MIXED_GANG,
        at=T0,
        chain="a100x3",
    )
    asked: dict[str, Any] = {"workers": 4, "gpu_type": "a100|h100", "mixed": True}
    apart(cluster, spec(**asked), fact)
    with pytest.raises(ViolationError, match="I25"):
        apart(cluster, spec(**{**asked, **wrong}), fact)


class Typed(Steady):
    """A model that is four times as fast on one type as on the other."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        return SPEED[where.gpu_type or "a100"]


def test_a_mixed_gang_is_as_fast_as_its_slowest_type() -> None:
    """Two nodes of two GPUs each: a gang of three has a place only as it may be mixed."""
    job = TraceJob(id="t1", at=seconds(1), run_time=seconds(LENGTH), gpus=3, workers=3, mixed=True)
    facts: list[Any] = []

    def judge(world: World, decided: list[Any]) -> None:
        facts.extend(decided)
        world.allocator.check()

    world = World(
        Trace(name="one", jobs=(job,)),
        of_types({"a100": 1, "k80": 1}, gpus_per_node=2),
        Simulated(costs=Costs(start_s=0), noise=0.0, hints="none"),
        Typed(),
        judge=judge,
    )
    assert world.run()
    (bound,) = [fact for fact in facts if isinstance(fact, JobBound)]
    (ended,) = [fact for fact in facts if isinstance(fact, JobEnded)]
    assert [part.gpu_type for part in bound.members] == ["a100", "k80"]
    assert (ended.at - bound.at) / NS_PER_SECOND == pytest.approx(4 * LENGTH, abs=5)
