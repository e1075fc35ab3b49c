"""Worlds whose jobs wait for others, for a time, or are held: what must hold of them holds."""

from __future__ import annotations

import pytest

from skep.machines.allocator import deferring
from skep.sim.history import run_seed
from skep.sim.workload import PIPELINES_FROM, WAITS_FROM
from skep.sim.world import Settings
from skep.wire.facts import End


@pytest.mark.parametrize("seed", [WAITS_FROM + 1, WAITS_FROM + 3])
def test_every_invariant_holds(seed: int) -> None:
    result = run_seed(seed, Settings(check_every=10))

    assert not result.violation, (seed, result.violation)


@pytest.mark.slow
def test_jobs_that_start_after_a_failure_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deferring.FULFILLED, "ok", (End.SUCCEEDED, End.FAILED, End.CANCELLED))
    looked = range(WAITS_FROM, WAITS_FROM + 12)

    for seed in looked:
        violation = run_seed(seed, Settings(check_every=100)).violation
        if violation:
            assert violation.startswith("I22"), (seed, violation)
            return
    pytest.fail(f"no world of {looked} has seen it")


@pytest.mark.parametrize("seed", [PIPELINES_FROM + 3])
def test_pipelines_keep_to_their_bounds(seed: int) -> None:
    result = run_seed(seed, Settings(check_every=50))

    assert not result.violation, (seed, result.violation)
    assert result.crashes


@pytest.mark.slow
def test_pipelines_beyond_their_bounds_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferring, "_crowded", lambda *_: "")
    looked = range(PIPELINES_FROM, PIPELINES_FROM + 6)

    for seed in looked:
        violation = run_seed(seed, Settings(check_every=100)).violation
        if violation:
            assert violation.startswith("I22"), (seed, violation)
            return
    pytest.fail(f"no world of {looked} has seen it")
