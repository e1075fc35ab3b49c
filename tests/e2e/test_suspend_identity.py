"""A job that was suspended computes, to the last bit, what it computes when nobody touches it."""

import random
from pathlib import Path

import pytest

from tests import needs
from tests.support.suspend_kit import JOBS, Driver, driver

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

SCRIPT = JOBS / "train_everything.py"
SEED = 20
SUSPENSIONS = 6
STEPS = 80


def devices() -> list[str]:
    """Return what this machine can train on."""
    if needs.missing("torch"):
        return ["cpu"]
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def disturb(job: Driver, steps: int) -> int:
    """Suspend the job at random mini-batches, every second time with its memory given back.

    Returns how many bytes moved at the most.
    """
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    job.wait_for_boundaries()
    moved = 0
    for number, after in enumerate(sorted(chance.sample(range(5, steps * 7 // 8), SUSPENSIONS))):
        stopped = job.suspend(after)
        if number % 2:
            for answer in job.ask("release"):
                assert answer["type"] == "released", answer
                moved = max(moved, answer["moved"])
        resumed = job.ask("resume")
        assert [answer["type"] for answer in resumed] == ["resumed"] * job.ranks
        assert [answer["step"] for answer in resumed] == [answer["step"] for answer in stopped]
        assert all(answer["pause_ns"] > 0 for answer in resumed)
    return moved


@pytest.mark.slow
@pytest.mark.parametrize("device", devices())
def test_one_process_with_everything(device: str) -> None:
    more = {"DEVICE": device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with driver() as job:
        job.start([SCRIPT, STEPS, 0, 2, 0, 2], **more)
        control = job.ends()[0].splitlines()
    assert len(control) == 4
    assert control[:2] == control[2:], "the job itself is not deterministic"
    with driver() as job:
        job.start([SCRIPT, STEPS, 0, 2], **more)
        # Weights, gradients, both moments, the averages, two tables.
        assert disturb(job, 2 * STEPS) > 3_000_000
        assert job.ends()[0].splitlines() == control[:2]


@pytest.mark.nightly
def test_two_ranks_stop_after_the_same_mini_batch(tmp_path: Path) -> None:
    with driver(ranks=2) as job:
        job.start([SCRIPT, 2 * STEPS, 0, 0], MEET=str(tmp_path / "undisturbed"))
        control = [printed.splitlines() for printed in job.ends()]
    assert all(first == second for first, second in control), "the job is not deterministic"
    with driver(ranks=2) as job:
        job.start([SCRIPT, 2 * STEPS, 0], MEET=str(tmp_path / "disturbed"))
        assert disturb(job, STEPS) > 3_000_000
        assert [printed.splitlines() for printed in job.ends()] == [c[:1] for c in control]
