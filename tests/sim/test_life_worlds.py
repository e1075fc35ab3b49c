"""Worlds whose jobs want a signal before their limit: a process gets it once, whatever fails."""

from __future__ import annotations

import pytest

from skep.sim.history import live, run_seed
from skep.sim.workload import LIFE_FROM
from skep.sim.world import Settings, World


def test_processes_are_warned_once_whatever_is_killed() -> None:
    world = World(LIFE_FROM, Settings(check_every=10))
    live(world)
    told = world.roles["allocator"].log
    assert told is not None
    done = [raw for raw in told.payloads if b'"goal":"warn","result":"done"' in raw]
    assert done, "no job came so near to its limit"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(LIFE_FROM + 1, LIFE_FROM + 4))
def test_every_invariant_holds(seed: int) -> None:
    result = run_seed(seed, Settings(check_every=50))
    assert not result.violation, (seed, result.violation)
