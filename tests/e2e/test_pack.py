"""Two real training jobs on one fake GPU: what each may use, how fast each is, and what is left."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skep.perf.interference import Load, slowdowns
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.torch]

DEADLINE_S = 120.0
SCRIPT = Path(__file__).parent / "jobs" / "packable.py"
GIB = 2**30
MEMORY = 16 * GIB
STEP_S = 0.1
"""Far longer than what a mini-batch computes, also on a busy machine: the rest is the device's."""
WINDOW = 15
"""Mini-batches that a speed is taken from."""
LOADS = {
    "rough": Load(0.6, demand=0.8, pressure=1.0),
    "gentle": Load(0.3, demand=0.3, sensitivity=0.5),
}


class Note(NamedTuple):
    """One mini-batch."""

    at: float
    loss: str
    allowed: int
    word: str


class Job:
    """A job on the fake GPU, and what it noted."""

    def __init__(self, cluster: Embedded, folder: Path, name: str, seed: int) -> None:
        self.cluster, self.name, self.seed = cluster, name, seed
        self.file, self.end = folder / f"{name}.notes", folder / f"{name}.end"
        load = LOADS[name]
        told = {
            "step_ms": 1000 * STEP_S,
            "utilisation": load.utilisation,
            "demand": load.demand,
            "sensitivity": load.sensitivity,
            "pressure": load.pressure,
            "memory": 2 * GIB,
        }
        spec = {
            "name": name,
            "vc": "nlp",
            "script": str(SCRIPT),
            "args": [str(self.file), "--seed", str(seed), "--until", str(self.end)],
            "env": {"SKEP_FAKE_LOAD": json.dumps(told)},
        }
        self.job = asyncio.run(self._submit(spec))

    async def _submit(self, spec: dict[str, Any]) -> str:
        async with bare_client(self.cluster.about, "vc-nlp") as client:
            return (await client.submit(spec)).job

    def notes(self) -> list[Note]:
        text = self.file.read_text() if self.file.exists() else ""
        lines = [line.split() for line in text.splitlines() if line.count(" ") == 3]
        return [Note(float(at), loss, int(allowed), word) for at, loss, allowed, word in lines]

    @property
    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = self.cluster.get(f"/v1/jobs/{self.job}")
        return row

    def trains(self, more: int = WINDOW + 2) -> list[Note]:
        """Return its next mini-batches, once it has made them."""
        before = len(self.notes())
        until(lambda: len(self.notes()) >= before + more, f"{self.name} to train", DEADLINE_S)
        return self.notes()[before : before + more]

    def step_s(self) -> float:
        """Return how long its next mini-batches take, by their median."""
        times = [note.at for note in self.trains()]
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    def may_use(self, size: int) -> None:
        """Return once it has heard of its share, having been refused a byte more than that."""

        def heard() -> bool:
            return any(note.allowed == size for note in self.notes()[-3:])

        until(heard, f"{self.name} to have {size} bytes", DEADLINE_S)
        asked = [note.word for note in self.notes() if note.word != "-"]
        assert set(asked) == {"refused"}, asked

    def is_in(self, state: str) -> None:
        until(lambda: self.row["state"] == state, f"{self.job} to be {state}", DEADLINE_S)

    def ask(self, *words: str) -> None:
        """Have something done on the command line."""
        command = [sys.executable, "-m", "skep_services", words[0], "--wait", "--json"]
        done = subprocess.run(
            [*command, *words[1:], self.job],
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
        assert answer["result"] == "done", (answer, done.stderr)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Embedded]:
    """One node with one fake GPU."""
    cluster = Embedded(tmp_path / "home", {"SKEP_GPU_MEMORY": str(MEMORY)})
    try:
        cluster.up(
            "--nodes", "1", "--gpus", "1", "--device", "fake", "--vc", "nlp=1", "--port", "0"
        )
        yield cluster
    finally:
        cluster.down()


def test_two_jobs_share_a_device_and_part_again(cluster: Embedded, tmp_path: Path) -> None:
    rough = Job(cluster, tmp_path, "rough", seed=1)
    rough.trains()
    rough.may_use(MEMORY)
    alone = {"rough": rough.step_s()}
    gentle = Job(cluster, tmp_path, "gentle", seed=2)
    until(lambda: gentle.row["state"] == "queued", "gentle to wait", DEADLINE_S)

    gentle.ask("pack", "--with", rough.job)
    gentle.trains(2)
    assert {note.allowed for note in gentle.notes()} == {MEMORY // 2}, "it began with its share"
    rough.may_use(MEMORY // 2)
    gentle.may_use(MEMORY // 2)
    until(lambda: rough.row["rate_milli"] and gentle.row["rate_milli"], "rates of both", DEADLINE_S)
    together = {"rough": rough.step_s(), "gentle": gentle.step_s()}

    gentle.ask("unpack")
    stood = len(gentle.notes())
    rough.may_use(MEMORY)
    after = rough.step_s()
    assert len(gentle.notes()) == stood, "it waits for a GPU of its own"
    # Its speed alone is measured around that together: what else the machine does is in all.
    said = dict(zip(LOADS, slowdowns(list(LOADS.values())), strict=True))
    assert together["rough"] / statistics.mean((alone["rough"], after)) == pytest.approx(
        said["rough"], rel=0.2
    )

    rough.end.touch()
    assert cluster.ended(rough.job)["state"] == "succeeded"
    gentle.is_in("running")
    gentle.may_use(MEMORY)
    assert together["gentle"] / gentle.step_s() == pytest.approx(said["gentle"], rel=0.2)
    gentle.end.touch()
    assert cluster.ended(gentle.job)["state"] == "succeeded"
    for job in (rough, gentle):
        losses = [note.loss for note in job.notes()]
        assert losses == undisturbed(tmp_path, job, len(losses))


def undisturbed(folder: Path, job: Job, steps: int) -> list[str]:
    """Return the losses of the same training alone, outside of everything."""
    notes = folder / f"{job.name}.alone"
    command = [
        sys.executable,
        str(SCRIPT),
        str(notes),
        "--seed",
        str(job.seed),
        "--steps",
        str(steps),
    ]
    subprocess.run(command, check=True, timeout=DEADLINE_S, env={"OMP_NUM_THREADS": "1"})
    return [line.split()[1] for line in notes.read_text().splitlines()]
