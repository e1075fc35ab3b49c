"""A gang with DistributedDataParallel on two nodes goes on elsewhere, to the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until
from tests.support.ports import free_port

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

DEADLINE_S = 120.0
ALONE_S = 600.0
"""It has no pauses: it waits for the processor alone, which a busy machine gives it little of."""
SCRIPT = Path(__file__).parent / "jobs" / "gang_mover.py"


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Embedded]:
    """Four nodes with one slot each, so that a gang of two is on two of them."""
    cluster = Embedded(tmp_path / "home")
    try:
        cluster.up("--nodes", "4", "--gpus", "1", "--vc", "nlp=4", "--port", "0")
        yield cluster
    finally:
        cluster.down()


def ask(cluster: Embedded, *words: str) -> dict[str, Any]:
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
    answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
    assert done.returncode == 0, (answer, done.stderr)
    return answer


def made(notes: Path, rank: int) -> list[tuple[int, int, str]]:
    """Return attempt, number and loss of each mini-batch of a rank."""
    path = Path(f"{notes}.{rank}")
    text = path.read_text() if path.exists() else ""
    words = [line.split() for line in text.splitlines() if line.count(" ") == 2]
    return [(int(attempt), int(step), loss) for attempt, step, loss in words]


def alone(notes: Path, steps: int) -> None:
    """Do the same training outside Skep, moved by nobody."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("SKEP_")}
    own |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own |= {"STEPS_FILE": str(notes), "STEPS": str(steps)}
    with ExitStack() as stack:
        ranks = [
            subprocess.Popen([sys.executable, str(SCRIPT)], env={**own, "RANK": str(rank)})
            for rank in range(2)
        ]
        for rank in ranks:
            stack.enter_context(rank)
        assert [rank.wait(ALONE_S) for rank in ranks] == [0, 0]


@pytest.mark.nightly
def test_a_gang_on_two_nodes_goes_on_elsewhere(roomy: Embedded, tmp_path: Path) -> None:
    notes, whole = tmp_path / "steps", tmp_path / "whole"
    nlp = Tenant(roomy, "nlp")
    job = nlp.accepted(
        {
            "name": "gang",
            "vc": "nlp",
            "script": str(SCRIPT),
            "resources": {"workers": 2, "gpus": 1},
            "env": {"STEPS_FILE": str(notes)},
        }
    )

    def row() -> dict[str, Any]:
        found: dict[str, Any] = roomy.get(f"/v1/jobs/{job}")
        return found

    def nodes() -> set[str]:
        return {part.partition(":")[0] for part in row()["place"].split()}

    def trains() -> None:
        counts = [len(made(notes, rank)) for rank in range(2)]
        until(
            lambda: all(len(made(notes, rank)) > counts[rank] + 10 for rank in range(2)),
            "both ranks to train",
            DEADLINE_S,
        )

    until(lambda: "migrate" in row()["can"], "it to be able to migrate", DEADLINE_S)
    trains()
    first = nodes()
    assert len(first) == 2
    assert ask(roomy, "migrate", job)["state"] == "running"
    assert row()["attempt"] == 2
    assert not nodes() & first
    trains()

    # Suspended, its GPUs given back: it goes from memory to memory, and stands there. One part
    # stays on its node, on the same slot.
    assert ask(roomy, "suspend", job, "--release")["state"] == "suspended"
    stood = len(made(notes, 0))
    there = {min(nodes()), min(first)}
    assert ask(roomy, "migrate", job, "--to", ",".join(there))["state"] == "suspended"
    assert (row()["attempt"], nodes(), len(made(notes, 0))) == (3, there, stood)
    assert ask(roomy, "resume", job)["state"] == "running"
    trains()
    until(lambda: row()["steps"] > stood, "its steps to be told", DEADLINE_S)
    Path(f"{notes}.stop").touch()
    assert roomy.ended(job)["state"] == "succeeded"
    alone(whole, len(made(notes, 0)))
    for rank in range(2):
        mine, theirs = made(notes, rank), made(whole, rank)
        assert [step for _, step, _ in mine] == list(range(1, len(mine) + 1)), "each once"
        assert {attempt for attempt, _, _ in mine} == {1, 2, 3}
        assert [loss for _, _, loss in mine] == [loss for _, _, loss in theirs]
