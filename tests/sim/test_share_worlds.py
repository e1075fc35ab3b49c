"""Worlds in which jobs ask for shares of GPUs: what must hold holds, or is seen not to."""

from __future__ import annotations

import pytest

from skep.machines.allocator.placement import gpu_shares
from skep.sim.history import run_seed
from skep.sim.workload import SHARES_FROM
from skep.sim.world import Settings


def test_every_invariant_holds() -> None:
    result = run_seed(SHARES_FROM + 3, Settings(check_every=10))
    assert not result.violation, result.violation


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SHARES_FROM + 10, SHARES_FROM + 20))
def test_every_invariant_holds_in_long_histories(seed: int) -> None:
    result = run_seed(seed, Settings(check_every=50))
    assert not result.violation, (seed, result.violation)


@pytest.mark.nightly
def test_jobs_that_yield_to_others_are_seen_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_shares, "_kin", lambda job: job.spec.vc)
    found = [run_seed(SHARES_FROM + number, Settings(check_every=100)) for number in range(8)]
    assert any(result.violation.startswith("I24") for result in found)
