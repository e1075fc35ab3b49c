"""Real jobs go on with other devices of their node, and compute to the last bit what they would."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_job.devices import fake_gpus
from skep_job.devices.device_binding import tree
from skep_job.devices.fake_gpus import Accelerator, FakeLoad
from tests import needs
from tests.support.suspend_kit import JOBS, Driver, driver

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

SCRIPT = JOBS / "train_everything.py"
STEPS = 80
GIB = 2**30
DEVICES = 4


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for device in range(DEVICES):
        fake_gpus.create(str(tmp_path), device, 8 * GIB)
    return str(tmp_path)


@pytest.fixture
def job() -> Iterator[Driver]:
    with driver() as it:
        yield it


def start(job: Driver, folder: str, cpus: str = "", *phases: int) -> None:
    """Start the job on fake device 0, with 6 of its 8 GiB."""
    load = json.dumps({"step_ms": 1, "utilisation": 0.5, "memory": 6 * GIB})
    more = {"SKEP_CPUS": cpus} if cpus else {}
    job.start(
        [SCRIPT, STEPS, *(phases or (0,))],
        SKEP_FAKE_GPUS=folder,
        SKEP_DEVICES="0",
        SKEP_FAKE_LOAD=load,
        **more,
    )
    job.wait_for_boundaries()


def held(folder: str) -> list[int]:
    """Return the bytes that processes hold on each device."""
    views = [fake_gpus.view(folder, device) for device in range(DEVICES)]
    return [sum(one.memory for one in view.processes) for view in views]


def undisturbed() -> list[str]:
    with driver() as control:
        control.start([SCRIPT, STEPS, 0])
        return control.ends()[0].splitlines()


def away(job: Driver, after: int) -> None:
    job.suspend(after)
    (released,) = job.ask("release")
    assert released["type"] == "released", released


@pytest.mark.nightly
def test_memory_and_contention_follow_and_the_training_does_not_notice(
    job: Driver, folder: str
) -> None:
    start(job, folder)
    assert "rebind" in job.agent.of_type("can")[0]["can"]
    for after, device in ((10, 1), (25, 3), (40, 0)):
        away(job, after)
        assert held(folder) == [0] * DEVICES, "others may use all of what it had"
        (resumed,) = job.ask("resume", devices=[device])
        assert resumed["type"] == "resumed"
        assert held(folder) == [6 * GIB if one == device else 0 for one in range(DEVICES)]
        busy = fake_gpus.view(folder, device).busy_ns
        job.suspend(after + 5)
        assert fake_gpus.view(folder, device).busy_ns > busy
        job.ask("resume", devices=[device])
    assert job.ends()[0].splitlines() == undisturbed()


@pytest.mark.slow
def test_a_device_that_is_full_leaves_it_as_it_was(job: Driver, folder: str) -> None:
    start(job, folder)
    away(job, 10)
    neighbour = Accelerator(folder, 2, FakeLoad(0.001, memory=4 * GIB))
    (failed,) = job.ask("resume", devices=[2])
    assert (failed["type"], "fake GPU out of memory" in failed["error"]) == ("failed", True)
    assert held(folder) == [0, 0, 4 * GIB, 0]
    (resumed,) = job.ask("resume", devices=[0])
    assert resumed["type"] == "resumed"
    assert held(folder) == [6 * GIB, 0, 4 * GIB, 0]
    neighbour.close()
    assert job.ends()[0].splitlines() == undisturbed()


def test_every_process_of_a_rank_changes_its_processors(job: Driver, folder: str) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        needs.skip("this machine has one processor")
    first, other = mine[:2]
    # Loaders' workers are processes of their own.
    start(job, folder, str(first), 2)
    job.suspend(10)
    processes = list(tree(job.processes[0].pid))
    assert len(processes) >= 3
    job.ask("resume", devices=[1], cpus=[other])
    threads = [
        int(thread) for process in processes for thread in os.listdir(f"/proc/{process}/task")
    ]
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({other})}
    away(job, 20)
    (failed,) = job.ask("resume", devices=[2], cpus=[4000])
    assert failed["type"] == "failed", failed
    assert held(folder) == [0] * DEVICES
    (resumed,) = job.ask("resume")
    assert resumed["type"] == "resumed"
    assert held(folder) == [0, 6 * GIB, 0, 0], "named none, it goes on with what it had"
    assert os.sched_getaffinity(processes[0]) == {other}
    job.ends()
