"""A mixed gang on a live cluster: four ranks on nodes of fake GPUs of two types and two sizes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.wire import subjects
from skep.wire.facts import CellsAlarm, JobBound
from skep.wire.reasons import Reason
from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.nightly]

DEADLINE_S = 120.0
LOST_WITHIN_S = 180.0
"""A silent node is lost after 40 s; then the gang begins anew."""
SCRIPT = Path(__file__).parent / "jobs" / "gang_mover.py"
CLUSTER = """
nodes:
  - {name: node-1, gpus: 3, device: fake, gpu_type: a100}
  - {name: node-2, gpus: 1, device: fake, gpu_type: h100}
  - {name: node-3, gpus: 1, device: fake, gpu_type: h100}
vcs:
  nlp: {gpus: 5}
"""
RANKS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Embedded]:
    """Three A100s on one node, and two nodes with one H100 each."""
    made = Embedded(tmp_path / "home")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    try:
        made.up("--cluster", str(tmp_path / "cluster.yaml"), "--port", "0")
        yield made
    finally:
        made.down()


def change(cluster: Embedded, *words: str) -> dict[str, Any]:
    """Ask for a change on the command line, and return what came of it."""
    command = [sys.executable, "-m", "skep_services", words[0], "--wait", "--json", *words[1:]]
    done = subprocess.run(
        command,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr or done.stdout
    answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
    return answer


def made(notes: Path, rank: int) -> list[tuple[int, int]]:
    """Return attempt and number of each mini-batch of a rank."""
    path = Path(f"{notes}.{rank}")
    words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(each[0]), int(each[1])) for each in words if len(each) == 3]


def test_a_gang_of_three_and_one_trains_stands_and_survives_its_node(
    cluster: Embedded, tmp_path: Path
) -> None:
    notes = tmp_path / "steps"
    nlp = Tenant(cluster, "nlp")
    gang: dict[str, Any] = {
        "name": "gang",
        "vc": "nlp",
        "script": str(SCRIPT),
        "resources": {"workers": RANKS, "gpus": 1, "gpu_type": "a100|h100", "mixed": True},
        "env": {"STEPS_FILE": str(notes)},
    }
    one_type = {**gang, "resources": {**gang["resources"], "mixed": False}}
    (problem,) = nlp.submit(one_type).verdict["problems"]
    assert problem["reason"] == "too-many-gpus", "no type alone holds four"
    job = nlp.accepted(gang)

    def row() -> dict[str, Any]:
        found: dict[str, Any] = cluster.get(f"/v1/jobs/{job}")
        return found

    def places() -> dict[str, str]:
        return dict(part.split(":") for part in row()["place"].split())

    def trains(attempt: int) -> None:
        before = [len(made(notes, rank)) for rank in range(RANKS)]
        until(
            lambda: all(
                len(made(notes, rank)) > before[rank] + 5 and made(notes, rank)[-1][0] == attempt
                for rank in range(RANKS)
            ),
            f"all ranks to train in attempt {attempt}",
            LOST_WITHIN_S,
        )

    trains(1)
    first = places()
    assert first["node-1"] == "0,1,2"
    (small,) = set(first) - {"node-1"}
    assert "ranks 0-2 a100, 3 h100" in cluster.skep("why", job) + cluster.skep("show", job)

    assert change(cluster, "suspend", job, "--release")["state"] == "suspended"
    stood = [len(made(notes, rank)) for rank in range(RANKS)]
    assert len(set(stood)) == 1, "all ranks stand after the same mini-batch"
    assert change(cluster, "resume", job)["state"] == "running"
    assert places() == first
    trains(1)

    change(cluster, "checkpoint", job)
    stored = row()["steps"]
    os.kill(cluster.entry(small)["pid"], signal.SIGSTOP)
    trains(2)
    after = places()
    (other,) = {"node-2", "node-3"} - {small}
    assert set(after) == {"node-1", other}
    begun = [step for attempt, step in made(notes, 3) if attempt == 2]
    assert begun[0] > 1, "it goes on from its checkpoint"
    assert begun[0] >= min(stored, stood[0]), (begun[0], stored, stood)
    os.kill(cluster.entry(small)["pid"], signal.SIGCONT)

    Path(f"{notes}.stop").touch()
    assert cluster.ended(job)["state"] == "succeeded"
    facts = [fact for _, fact in asyncio.run(cluster.facts(subjects.ALLOC))]
    bound = [fact for fact in facts if isinstance(fact, JobBound)]
    assert [fact.why for fact in bound] == [Reason.MIXED_GANG] * 2
    assert [
        [(part.gpu_type, part.first_rank, len(part.devices)) for part in fact.members]
        for fact in bound
    ] == [[("a100", 0, 3), ("h100", 3, 1)]] * 2
    assert not any(isinstance(fact, CellsAlarm) for fact in facts)
