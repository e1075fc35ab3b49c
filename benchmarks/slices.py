"""Six equal jobs take turns on four fake GPUs, and what that is worth to each.

    python -m benchmarks slices                    quanta of 10 s
    python -m benchmarks slices --quantum 2

Every turn is the mechanism at work: who gives way is suspended at a boundary and its memory
released; who comes is resumed, with `rebind` on whichever device is free, without it (`own_slot`)
only on the one where it began. Each job needs more than half of a device's memory, so two on one
would end with an error. Progress is counted in mini-batches; `jain` is Jain's index of it (1: all
alike) and `min_over_max` what the last has of the first. `undisturbed` are four of the jobs, for
as long: `cost_percent` is what all six together made less than those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._sample import extremes
from benchmarks.suspend import TRAIN, only
from skep_job.devices import fake_gpus
from tests.support.slices import Shift, counts, jain, spread, turns
from tests.support.suspend_kit import Driver, driver

GIB = 2**30
JOBS, SLOTS = 6, 4
DEVICE_BYTES, JOB_BYTES = 8 * GIB, 5 * GIB
KINDS = ("undisturbed", "rebind", "own_slot")
STEP_MS = 40.0
"""A mini-batch on the device: long beside what it computes, so that few cores serve all."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--quantum", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--quanta", type=int, default=6, help="a multiple of 3 is fair to six")
    parser.add_argument("--state-mb", type=int, default=12, help="tensors of each job")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return what each job made of its turns, and what switching cost."""
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        with jobs_on(script, given.state_mb) as jobs:
            rounds = {kind: measure(jobs, given, kind) for kind in KINDS}
    total = rounds["undisturbed"].pop("total")
    for kind in ("rebind", "own_slot"):
        rounds[kind]["cost_percent"] = round(100 * (1 - rounds[kind].pop("total") / total), 2)
    return {"jobs": JOBS, "slots": SLOTS, "step_ms": STEP_MS, **rounds}


def shifts_of(kind: str, quanta: int) -> list[Shift]:
    """Return who runs where in each quantum."""
    if kind == "undisturbed":
        return [{job: job for job in range(SLOTS)}] * quanta
    return turns(JOBS, SLOTS, quanta, rebind=kind == "rebind")


def measure(jobs: Jobs, given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Let the jobs take turns; return what each made, and how fair that is."""
    shifts = shifts_of(kind, given.quanta)
    before = list(jobs.steps)
    switches = jobs.run(shifts, given.quantum)
    made = [after - began for began, after in zip(before, jobs.steps, strict=True)]
    ran = [each for each, had in zip(made, counts(shifts, JOBS), strict=True) if had]
    return {
        "quanta_given": counts(shifts, JOBS),
        "mini_batches": made,
        "total": sum(made),
        "jain": round(jain(ran), 4),
        "min_over_max": round(spread(ran), 4),
        "switch_ms": extremes(switches, 2) if switches else None,
    }


class Jobs:
    """Six jobs, of which at most four run."""

    def __init__(self, jobs: list[Driver], folder: str) -> None:
        self.jobs, self._folder = jobs, folder
        self.steps = [0] * len(jobs)
        self._pool = ThreadPoolExecutor(len(jobs))

    def stop(self, which: Sequence[int]) -> None:
        """Suspend these at the same time and have them give back their memory."""

        def one(number: int) -> None:
            self.steps[number] = only(self.jobs[number].ask("suspend"), "suspended")["step"]
            only(self.jobs[number].ask("release"), "released")

        list(self._pool.map(one, which))

    def go(self, shift: Shift, which: Sequence[int]) -> None:
        """Have these go on, each with its device."""

        def one(number: int) -> None:
            only(self.jobs[number].ask("resume", devices=[shift[number]]), "resumed")

        list(self._pool.map(one, which))

    def run(self, shifts: Sequence[Shift], quantum_s: float) -> list[float]:
        """Run every shift for a quantum; return how long each switch took (ms)."""
        running: Shift = {}
        took: list[float] = []
        end = time.monotonic()
        for shift in shifts:
            begin = time.monotonic()
            stay = {job for job, slot in shift.items() if running.get(job) == slot}
            self.stop([job for job in running if job not in stay])
            self.go(shift, [job for job in shift if job not in stay])
            if running and len(stay) < len(shift):
                took.append((time.monotonic() - begin) * 1e3)
            running = shift
            self._alone_on_its_device(running)
            end += quantum_s
            time.sleep(max(0.0, end - time.monotonic()))
        self.stop(list(running))
        return took

    def _alone_on_its_device(self, shift: Shift) -> None:
        """Assert that the devices are in use as the shift says: by one job each."""
        for slot in range(SLOTS):
            there = [one.memory for one in fake_gpus.view(self._folder, slot).processes]
            assert [each for each in there if each] == [JOB_BYTES] * (slot in shift.values())


@contextlib.contextmanager
def jobs_on(script: Path, state_mb: int) -> Iterator[Jobs]:
    """Yield six jobs that have begun and stand, their state in the host's memory.

    Each began on a device of its own, as two do not fit on one; from here on there are four.
    """
    load = json.dumps({"step_ms": STEP_MS, "utilisation": 0.9, "memory": JOB_BYTES})
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="skep-gpus-"))
        for device in range(JOBS):
            fake_gpus.create(folder, device, DEVICE_BYTES)
        made = Jobs([stack.enter_context(driver()) for _ in range(JOBS)], folder)
        for number, job in enumerate(made.jobs):
            # One after the other: a busy machine is long about importing PyTorch six times.
            job.start(
                [script, state_mb],
                SKEP_FAKE_GPUS=folder,
                SKEP_FAKE_LOAD=load,
                SKEP_DEVICES=str(number),
            )
            job.wait_for_boundaries()
            made.stop([number])
        yield made
