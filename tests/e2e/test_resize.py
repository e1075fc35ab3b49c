"""A gang of real ranks grows and shrinks while it trains, on a cluster of real processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

DEADLINE_S = 120.0
SCRIPT = Path(__file__).parent / "jobs" / "growing.py"


def resize(cluster: Embedded, job: str, workers: int) -> dict[str, Any]:
    """Ask for a size on the command line, and return what came of it."""
    return ask(cluster, "resize", job, "--workers", str(workers))


def ask(cluster: Embedded, *words: str) -> dict[str, Any]:
    """Ask for a change on the command line, and return what came of it."""
    done = subprocess.run(
        [sys.executable, "-m", "skep_services", *words, "--wait", "--json"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
    assert done.returncode == (0 if answer.get("result") == "done" else 1), (answer, done.stderr)
    return answer


def held(cluster: Embedded, job: str) -> list[tuple[str, int]]:
    """Return the GPUs that a job holds."""
    gpus = cluster.get("/v1/gpus")["gpus"]
    return [(gpu["node"], gpu["index"]) for gpu in gpus if gpu["taken"] and gpu["job"] == job]


def steps(notes: Path, rank: int) -> list[tuple[int, int]]:
    """Return each mini-batch of a rank, and how many ranks made it."""
    path = Path(f"{notes}.{rank}")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), int(world)) for _, step, world in map(str.split, lines)]


def trains_on(notes: Path, job: str) -> None:
    """Return once rank 0 has made some more mini-batches."""
    count = len(steps(notes, 0))
    until(lambda: len(steps(notes, 0)) > count + 20, f"{job} to train on", DEADLINE_S)


@pytest.mark.nightly
def test_a_gang_grows_and_shrinks_while_it_trains(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    notes = tmp_path / "steps"
    job = nlp.accepted(
        {
            "name": "growing",
            "vc": nlp.vc,
            "script": str(SCRIPT),
            "elastic": {"min": 1, "max": 2},
            "env": {"STEPS_FILE": str(notes)},
        }
    )

    def can() -> bool:
        return "resize" in cluster.get(f"/v1/jobs/{job}")["can"]

    until(can, f"{job} to be able to resize", DEADLINE_S)
    trains_on(notes, job)
    (first,) = held(cluster, job)
    assert resize(cluster, job, 3)["error"]["reason"] == "bad-value"

    assert resize(cluster, job, 2)["state"] == "running"
    until(lambda: len(steps(notes, 1)) > 20, "the newcomer to train", DEADLINE_S)
    until(lambda: len(held(cluster, job)) == 2, "both GPUs to be its", DEADLINE_S)
    row = cluster.get(f"/v1/jobs/{job}")
    assert (row["workers"], row["gpus"], row["attempt"]) == (2, 2, 1)

    for workers in (1, 2, 1):  # The same rank leaves, joins again, and leaves again.
        assert resize(cluster, job, workers)["state"] == "running"
        assert held(cluster, job)[:1] == [first]
        assert len(held(cluster, job)) == workers
        trains_on(notes, job)
    # It moves with the size it has, and changes that where it is then.
    grown = resize(cluster, job, 2)
    assert grown["result"] == "done", grown
    moved = ask(cluster, "migrate", job)
    assert (moved["result"], moved["state"]) == ("done", "running"), moved
    row = cluster.get(f"/v1/jobs/{job}")
    assert (row["workers"], row["gpus"], row["attempt"]) == (2, 2, 2)
    trains_on(notes, job)
    assert resize(cluster, job, 1)["state"] == "running"
    assert [node for node, _ in held(cluster, job)] != [first[0]]
    trains_on(notes, job)
    Path(f"{notes}.stop").touch()
    assert cluster.ended(job)["state"] == "succeeded"
    made = steps(notes, 0)
    assert [step for step, _ in made] == list(range(1, len(made) + 1)), "each once"
    assert [world for world, _ in itertools.groupby(world for _, world in made)] == [
        1,
        2,
        1,
        2,
        1,
        2,
        1,
    ]
