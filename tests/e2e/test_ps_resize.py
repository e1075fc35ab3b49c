"""A job on parameter servers is resized through Skep: workers, servers, and both at once."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

DEADLINE_S = 120.0
SCRIPT = Path(__file__).parent / "jobs" / "on_servers.py"


class Step(NamedTuple):
    """One mini-batch of a rank."""

    pid: int
    step: int
    workers: int
    servers: int


class Job:
    """The job of a test."""

    def __init__(self, cluster: Embedded, tenant: Tenant, notes: Path, **spec: Any) -> None:
        self.cluster, self.notes = cluster, notes
        self.name = tenant.accepted(
            {
                "name": "on-servers",
                "vc": tenant.vc,
                "script": str(SCRIPT),
                "elastic": {"min": 1, "max": 3},
                "ps": {"servers": 1, "min": 1, "max": 3},
                "env": {"STEPS_FILE": str(notes)},
                **spec,
            }
        )
        until(self._can_resize, f"{self.name} to be able to resize", DEADLINE_S)

    def resize(self, *options: str, code: int = 0) -> dict[str, Any]:
        """Ask for a size on the command line, and return what came of it."""
        done = subprocess.run(
            [sys.executable, "-m", "skep_services", "resize", self.name, *options, "--json"],
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
        assert done.returncode == code, (answer, done.stderr, self.cluster.log(self.name, 0))
        return answer

    def steps(self, rank: int) -> list[Step]:
        """Return the mini-batches of a rank."""
        path = Path(f"{self.notes}.{rank}")
        lines = path.read_text().splitlines() if path.exists() else []
        return [Step(*map(int, line.split())) for line in lines]

    def trains_with(self, workers: int, servers: int) -> None:
        """Return once the first rank trains in that size."""

        def reached() -> bool:
            return self.steps(0)[-1][2:] == (workers, servers)

        until(reached, f"{workers} workers on {servers} servers", DEADLINE_S)

    def holds(self) -> int:
        """Return how many GPUs it has."""
        gpus = self.cluster.get("/v1/gpus")["gpus"]
        return sum(gpu["taken"] and gpu["job"] == self.name for gpu in gpus)

    def end(self) -> None:
        """Have it end by itself, and well."""
        Path(f"{self.notes}.stop").touch()
        ended = self.cluster.ended(self.name, DEADLINE_S)
        assert ended["state"] == "succeeded", self.cluster.log(self.name, 0)

    def _can_resize(self) -> bool:
        return "resize" in self.cluster.get(f"/v1/jobs/{self.name}")["can"]


@pytest.mark.nightly
def test_workers_and_servers_come_and_go_while_a_job_trains(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    job = Job(cluster, nlp, tmp_path / "steps")
    wrong = job.resize("--servers", "4", "--wait", code=1)
    assert wrong["error"]["reason"] == "bad-value"
    sizes = [(1, 2), (3, 1), (1, 2)]
    for workers, servers in sizes:
        before = job.steps(0)[-1][2:]
        asked = [
            *(("--workers", str(workers)) if workers != before[0] else ()),
            *(("--servers", str(servers)) if servers != before[1] else ()),
        ]
        assert job.resize(*asked, "--wait")["state"] == "running"
        assert job.holds() == workers
        job.trains_with(workers, servers)
    job.end()
    made = job.steps(0)
    assert len({step.pid for step in made}) == 1, "nobody who stays restarts"
    assert [step.step for step in made] == list(range(len(made))), "each once"
    # One thing after the other, and nothing but what leads from one size to the next.
    seen = [size for size, _ in itertools.groupby(step[2:] for step in made)]
    assert seen == [(1, 1), (1, 2), (2, 2), (3, 2), (3, 1), (3, 2), (2, 2), (1, 2)]
    row = cluster.get(f"/v1/jobs/{job.name}")
    assert (row["workers"], row["attempt"]) == (1, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["agent", "allocator"])
def test_a_change_that_a_crash_cuts_short_ends_in_one_size(
    cluster: Embedded, nlp: Tenant, tmp_path: Path, victim: str
) -> None:
    job = Job(cluster, nlp, tmp_path / "steps")
    job.resize("--workers", "2", "--servers", "2")
    until(lambda: "generation 2: add" in cluster.log(job.name, 0), "half of it", DEADLINE_S)
    (member,) = cluster.get(f"/v1/jobs/{job.name}")["attempts"][-1]["members"]
    cluster.kill(member["node"] if victim == "agent" else victim)

    def result() -> str:
        return cluster.get(f"/v1/jobs/{job.name}")["asks"][-1]["result"] or ""

    size = (2, 2) if until(result, "what came of it", DEADLINE_S) == "done" else (1, 1)
    job.trains_with(*size)
    until(lambda: job.holds() == size[0], "the GPUs of that size", DEADLINE_S)
    assert cluster.get(f"/v1/jobs/{job.name}")["workers"] == size[0]
    job.end()
    assert len({step.pid for step in job.steps(0)}) == 1
