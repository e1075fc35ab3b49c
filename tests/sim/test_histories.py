"""Whole histories: the services' machines under faults, until everything has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.sim.faults import CRASHES_MIN, EVENTS_MIN, FAULTS_MIN
from skep.sim.history import Result, run_seed
from skep.sim.run import read_seeds
from skep.sim.world import Settings

SEEDS = 60
SEEDS_CI = 20
REGRESSIONS = Path(__file__).parent / "regressions.txt"


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(5, SEEDS_CI, 5)),
        *(pytest.param(first, marks=pytest.mark.nightly) for first in range(SEEDS_CI, SEEDS, 5)),
    ],
)
def test_every_invariant_holds_in_every_history(first: int) -> None:
    for seed in range(first, first + 5):
        whole(run_seed(seed, Settings()))


@pytest.mark.parametrize("seed", read_seeds(REGRESSIONS))
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    whole(run_seed(seed, Settings()))


def whole(result: Result) -> None:
    assert not result.violation, f"seed {result.seed}: {result.violation}"
    assert result.events >= EVENTS_MIN, result.seed
    assert result.faults >= FAULTS_MIN, result.seed
    assert result.crashes >= CRASHES_MIN, result.seed
    assert result.breaches == 0, result.seed


def test_without_faults_everything_ends_at_the_first_attempt_it_deserves() -> None:
    for seed in range(6):
        result = run_seed(seed, Settings(faults=False))
        assert not result.violation, f"seed {seed}: {result.violation}"
        assert result.faults == result.crashes == 0


def test_without_the_fence_it_is_noticed() -> None:
    broken = [result for result in unfenced(20) if result.violation]
    assert len(broken) >= 10
    assert any(result.breaches for result in broken)


def unfenced(seeds: int) -> Iterator[Result]:
    for seed in range(seeds):
        yield run_seed(seed, Settings(fence=False, check_every=8))


def test_the_same_seed_tells_the_same_story_in_every_process() -> None:
    first, second = story("1"), story("2")
    assert first == second
    assert "every invariant held" in first
    assert first.count("\n") > 1000


def story(hash_seed: str) -> str:
    command = [sys.executable, "-m", "skep.sim.run", "--story", "7"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_other_seeds_tell_other_stories() -> None:
    one, two = (run_seed(seed, Settings(story=True, check_every=8)) for seed in (1, 2))
    assert one.digest != two.digest
