"""Worlds with people, limits and windows: what must hold of them holds, and is seen where not."""

from __future__ import annotations

import pytest

from skep.machines.allocator.placement import kept_nodes, person_limits
from skep.policy import fair
from skep.sim.history import run_seed
from skep.sim.workload import PEOPLE_FROM
from skep.sim.world import Settings

LOOKED = range(PEOPLE_FROM, PEOPLE_FROM + 12)


@pytest.mark.parametrize("seed", [PEOPLE_FROM, PEOPLE_FROM + 44])
def test_every_invariant_holds(seed: int) -> None:
    result = run_seed(seed, Settings(check_every=10))

    assert not result.violation, (seed, result.violation)


@pytest.mark.slow
def test_limits_that_are_not_asked_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person_limits, "above", lambda *_: "")
    monkeypatch.setattr(fair, "offered", lambda view: (view, ()))

    _found("I20")


@pytest.mark.slow
def test_jobs_that_run_into_windows_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_nodes, "kept_from", lambda *_: {})

    _found("I21")


def _found(invariant: str) -> None:
    for seed in LOOKED:
        violation = run_seed(seed, Settings(check_every=100)).violation
        if violation:
            assert str(violation).startswith(invariant), (seed, violation)
            return
    pytest.fail(f"no world of {LOOKED} has seen it")
