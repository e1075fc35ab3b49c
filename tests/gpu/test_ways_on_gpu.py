"""Today's ways to train on a real GPU: compiled, split, several ranks; and what packing gains."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from skep_services.supervisor.home import service_log_path
from tests.gpu import kit
from tests.gpu.conftest import Record
from tests.gpu.kit import Cluster, Driver, Job, Reference

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

STEPS = 600
WIDTHS = (64,) if kit.CPU else (2048, 8192)
"""Of layers whose state is 268 MB and 4.3 GB."""
NARROW, WIDE = (64, 64) if kit.CPU else (512, 2048)
PAIRS = (
    ("layers", "transformer", NARROW),
    ("layers", "convolutions", NARROW),
    ("transformer", "convolutions", NARROW),
    ("transformer", "transformer", NARROW),
    *((("transformer", "transformer", WIDE), ("transformer", "convolutions", WIDE))[kit.CPU * 2 :]),
)
"""Models that are trained side by side, as in Gandiva's Table 1: narrow ones leave a large GPU idle
most of the time, wide ones keep it busy alone."""


@pytest.mark.parametrize("way, ranks", [("compiled", 1), ("split", 1), ("nccl", 1), ("ranks", 2)])
def test_it_stands_gives_its_memory_back_and_goes_on(
    way: str, ranks: int, cluster: Cluster, folder: Path, driver: Driver, record: Record
) -> None:
    words = ["--way", way]
    own = folder / way
    own.mkdir()
    reference = Reference(own, words, STEPS, ranks)
    try:
        losses = reference.losses()
    finally:
        reference.close()
    job = Job(cluster, folder, way, words=words, ranks=ranks)
    first = job.trains()[0]
    job.can("suspend")
    release = ["--release"] if "release" in job.row["can"] else []
    before = driver.look().memory
    suspend_s = job.ask("suspend", *release)
    stood = len(job.steps())
    freed = before - driver.look().memory
    resume_s = job.ask("resume")
    job.trains()
    job.ends()
    found = [step.loss for step in job.steps()][: len(losses)]
    record(first_step_s=first.at - job.began, suspend_s=suspend_s, resume_s=resume_s)
    record(can=job.row["can"], released=bool(release), bytes_freed=freed, compared=len(found))
    assert len(found) > stood
    assert found == losses[: len(found)]


@pytest.mark.parametrize("width", WIDTHS)
def test_how_long_a_suspension_takes_that_gives_memory_back(
    width: int, cluster: Cluster, folder: Path, driver: Driver, record: Record
) -> None:
    """Measured, not judged: the first one takes page-locked memory of the host, which is kept."""
    job = Job(cluster, folder, f"wide-{width}", words=["--width", str(width)])
    job.can("release")
    job.trains(10)
    took: dict[str, list[float]] = {"suspend": [], "resume": []}
    freed = []
    for _ in range(3):
        before = driver.look().memory
        job.ask("suspend", "--release")
        took["suspend"].append(round(job.took(), 3))
        freed.append(before - driver.look().memory)
        job.ask("resume")
        took["resume"].append(round(job.took(), 3))
        job.trains(10)
    record(state_bytes=4 * 4 * 4 * width**2, freed=freed, **took)
    job.ends()
    assert kit.CPU or min(freed) >= 4 * 4 * 4 * width**2


def test_how_soon_a_job_trains_whose_imports_are_made_already(
    cluster: Cluster, folder: Path, record: Record
) -> None:
    """Measured, not judged: a warm process makes the imports of the first job for later ones."""
    first_step_s, forked, said = [], [], ""
    for number in range(4):
        name = f"soon-{number}"
        args = [str(folder / f"{name}.notes"), str(folder / f"{name}.end")]
        job = Job(cluster, folder, name, script=str(kit.JOBS / "soon.py"), args=args)
        first_step_s.append(round(job.trains(20)[0].at - job.began, 3))
        job.ends()
        agent = Path(service_log_path(str(cluster.home), "node-1")).read_text().splitlines()
        said = " ".join(line for line in agent if f"run {job.job}.1." in line)
        forked.append("forked from a warm process" in said)
    record(first_step_s=first_step_s, forked=forked, said=said[-300:])
    assert first_step_s


@pytest.mark.parametrize("width", WIDTHS)
def test_how_long_a_checkpoint_holds_up_the_training(
    width: int, cluster: Cluster, folder: Path, record: Record
) -> None:
    """Measured, not judged: the longest time between two mini-batches while one is written."""
    words = ["--width", str(width)]
    job = Job(cluster, folder, f"stored-{width}", words=words, cooperative=True)
    job.can("checkpoint")
    usual, stalls, took = longest(job.trains(50)), [], []
    for _ in range(3):
        before = len(job.steps())
        job.ask("checkpoint")
        took.append(round(job.took(), 3))
        stalls.append(longest(job.trains(10) and job.steps()[before:]))
    record(weights_and_sums_bytes=3 * 4 * 4 * width**2, usual_s=usual, stalls_s=stalls, took_s=took)
    job.ends()


def longest(steps: list[kit.Step]) -> float:
    """Return the longest time between two mini-batches, in seconds."""
    return round(max(b.at - a.at for a, b in itertools.pairwise(steps)), 3)


def test_a_split_state_is_stored_and_goes_on_after_a_crash(
    cluster: Cluster, folder: Path, record: Record
) -> None:
    limits = {"retries": 1, "retry_on": ["exit", "signal"]}
    words = ["--way", "split"]
    job = Job(cluster, folder, "stored", words=words, cooperative=True, limits=limits)
    job.can("checkpoint")
    job.trains()
    checkpoint_s = job.ask("checkpoint")
    kit.kill(job.trains()[-1].pid)
    job.until(lambda: job.steps()[-1].attempt == 2, "go on from its checkpoint")
    job.ends()
    again = [step.loss for step in job.steps() if step.attempt == 2]
    before = [step.loss for step in job.steps() if step.attempt == 1]
    record(checkpoint_s=checkpoint_s, stored_at=before.index(again[0]))
    known = before[before.index(again[0]) :]
    assert again[: len(known)] == known[: len(again)]


@pytest.mark.parametrize("models", PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def test_what_two_trainings_on_one_gpu_gain(
    models: tuple[str, str, int], cluster: Cluster, folder: Path, record: Record
) -> None:
    """Measured, not judged: `gain` is the sum of both rates, each against that of the job alone."""
    *both, width = models
    words = [["--model", str(model), "--pause", "0", "--width", str(width)] for model in both]
    alone = []
    for name, each in zip(("first", "second"), words, strict=True):
        job = Job(cluster, folder, name, words=each)
        job.trains()
        alone.append(job.rate())
        job.ends()
    host = Job(cluster, folder, "host", words=words[0], over_quota="wait")
    host.trains()
    guest = Job(cluster, folder, "guest", words=words[1], over_quota="wait")
    guest.ask("pack", "--with", host.job, "--share", "0.5")
    guest.trains()
    together = [host.rate(), guest.rate()]
    for job in (guest, host):
        job.ends()
    gain = sum(one / other for one, other in zip(together, alone, strict=True))
    record(alone=[round(each, 1) for each in alone], together=[round(each, 1) for each in together])
    record(gain=round(gain, 3))
    assert gain > 0
