"""Fake GPUs: real processes that slow one another down, run out of memory, and are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from skep.perf.interference import Load, by_utilisation, normalised
from skep_job.devices import fake_gpus
from skep_job.devices.fake_gpus import Accelerator, FakeLoad, OutOfMemoryError, read_load
from skep_services.adapters.devices import CpuSlots, DeviceProcess, FakeGpus

STEP_S = 0.02
STEPS = 60
GIB = 2**30

WORKER = textwrap.dedent("""
    import json, sys, time
    from skep_job.devices.fake_gpus import Accelerator, FakeLoad
    folder, numbers, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    device = Accelerator(folder, 0, FakeLoad(*numbers))
    print("on", flush=True)
    sys.stdin.readline()
    device.mini_batch()
    # All are at work from here: what is timed ends while the partners still are.
    began = time.monotonic()
    for _ in range(steps):
        device.mini_batch()
    print(steps / (time.monotonic() - began), flush=True)
    while not sys.stdin.readline():
        device.mini_batch()
""")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    fake_gpus.create(str(tmp_path), 0, 16 * GIB)
    return str(tmp_path)


def rates(folder: str, loads: list[Load]) -> list[float]:
    """Return the mini-batches per second of processes that share device 0."""
    running = []
    for load in loads:
        numbers = (STEP_S, load.utilisation, load.demand, load.sensitivity, load.pressure, GIB)
        argv = [sys.executable, "-c", WORKER, folder, json.dumps(numbers), str(STEPS)]
        running.append(
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [float(process.stdout.readline()) for process in running if process.stdout]
    for process in running:
        process.kill()
        process.communicate()
    return told


@pytest.mark.parametrize("used", [0.2, 0.95])
def test_two_of_a_kind_share_as_the_model_says(folder: str, used: float) -> None:
    load = by_utilisation(used)
    (alone,) = rates(folder, [load])
    together = rates(folder, [load, load])
    # Of a slow machine both rates suffer; their relation is the device's.
    assert sum(together) / alone == pytest.approx(normalised([load, load]), rel=0.2)
    assert (sum(together) > alone) is (used < 0.9)


def test_memory_is_limited_and_comes_back_with_a_process_that_died(folder: str) -> None:
    argv = [sys.executable, "-c", WORKER, folder, json.dumps((STEP_S, 1, 1, 0, 0, 10 * GIB)), "1"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "on\n"
        with pytest.raises(OutOfMemoryError, match="tried to allocate"):
            Accelerator(folder, 0, FakeLoad(STEP_S, memory=7 * GIB))
        seen = fake_gpus.view(folder, 0)
        assert seen.processes == ((other.pid, 10 * GIB),)
        other.kill()
    mine = Accelerator(folder, 0, FakeLoad(STEP_S, memory=7 * GIB))
    mine.allocate(9 * GIB)
    with pytest.raises(OutOfMemoryError):
        mine.allocate(1)
    mine.free(16 * GIB)
    assert fake_gpus.view(folder, 0).processes == ((os.getpid(), 0),)
    mine.close()
    assert fake_gpus.view(folder, 0).processes == ()


def test_the_agent_sees_who_is_on_a_device_and_how_busy_it_is(tmp_path: Path) -> None:
    devices = FakeGpus(CpuSlots(2, "fake-p40"), tmp_path / "gpus", 8 * GIB)
    assert [(gpu.type, gpu.memory) for gpu in devices.gpus()] == [("fake-p40", 8 * GIB)] * 2
    where = devices.visible((1,))["SKEP_FAKE_GPUS"]
    devices.look()
    mine = Accelerator(where, 1, FakeLoad(STEP_S, utilisation=0.5, memory=GIB))
    for _ in range(20):
        mine.mini_batch()
    idle, busy = devices.look()
    assert (idle.utilisation, idle.memory, idle.processes) == (0, 0, ())
    assert 200 <= busy.utilisation <= 520
    assert busy.processes == (DeviceProcess(os.getpid(), GIB),)
    FakeGpus(CpuSlots(2, "fake-p40"), tmp_path / "gpus", 8 * GIB)  # An agent that comes back.
    assert devices.look()[1].processes == (DeviceProcess(os.getpid(), GIB),)
    mine.close()
    (tmp_path / "gpus" / "gpu1.trouble").write_text("XID 79\n")
    assert [each.trouble for each in devices.look()] == [(), ("XID 79",)]
    (tmp_path / "gpus" / "gpu0").write_bytes(b"x" * 4096)
    assert "no fake GPU" in devices.look()[0].trouble[0]


def test_a_job_that_was_away_begins_its_mini_batch_anew(folder: str) -> None:
    device = Accelerator(folder, 0, FakeLoad(STEP_S, memory=GIB))
    device.away()
    Event().wait(2 * STEP_S)
    device.back()
    began = time.monotonic()
    device.mini_batch()
    assert time.monotonic() - began > STEP_S / 2, "the time it was away is none of its work"
    device.close()


def test_every_slot_taken_is_no_memory(folder: str) -> None:
    held = [Accelerator(folder, 0, FakeLoad(STEP_S)) for _ in range(fake_gpus.SLOTS)]
    with pytest.raises(OutOfMemoryError, match="no more"):
        Accelerator(folder, 0, FakeLoad(STEP_S))
    for one in held:
        one.close()


@pytest.mark.parametrize(
    "text, says",
    [
        ("twenty", "no JSON object"),
        ("[20]", "no JSON object"),
        ("{}", "`step_ms` is missing"),
        ('{"step_ms": 20, "utilization": 0.5}', "`utilization` is not known; keys are step_ms"),
        ('{"step_ms": "20"}', "expected a number"),
        ('{"step_ms": NaN}', "expected a number"),
        ('{"step_ms": 20, "memory": -1}', "expected a number"),
    ],
)
def test_a_load_that_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_load(text)


@pytest.mark.nightly
def test_a_script_that_knows_nothing_of_it_is_slowed_down(folder: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import time, torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        began = time.monotonic()
        for _ in range({STEPS}):
            optimizer.step()
        print(time.monotonic() - began)
    """)
    )
    told: dict[str, Any] = {
        **os.environ,
        "SKEP_SOCK": str(tmp_path / "nobody.sock"),
        "SKEP_JOB": "j1",
        "SKEP_GEN": "1",
        "SKEP_FAKE_GPUS": folder,
        "SKEP_DEVICES": "0",
    }
    load = json.dumps({"step_ms": 1000 * STEP_S, "utilisation": 0.5, "memory": 4 * GIB})
    done = subprocess.run(
        [sys.executable, "-m", "skep_job", script],
        check=True,
        text=True,
        capture_output=True,
        env={**told, "SKEP_FAKE_LOAD": load},
    )
    assert float(done.stdout) >= STEP_S * (STEPS - 1)
    load = json.dumps({"step_ms": 1, "memory": 40 * GIB})
    done = subprocess.run(
        [sys.executable, "-m", "skep_job", script],
        check=False,
        text=True,
        capture_output=True,
        env={**told, "SKEP_FAKE_LOAD": load},
    )
    assert done.returncode == 1
    assert "fake GPU out of memory" in done.stderr
