"""A gang on two nodes loses a rank, and goes on from copies in the nodes' memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Tenant
from tests.e2e.test_migrate_gang import DEADLINE_S, SCRIPT, alone, made
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Embedded]:
    """Two nodes with one slot each."""
    cluster = Embedded(tmp_path / "home")
    try:
        cluster.up("--nodes", "2", "--gpus", "1", "--vc", "nlp=2", "--port", "0")
        yield cluster
    finally:
        cluster.down()


@pytest.mark.nightly
def test_a_gang_that_loses_a_rank_goes_on_from_memory(pair: Embedded, tmp_path: Path) -> None:
    notes, whole = tmp_path / "steps", tmp_path / "whole"
    nlp = Tenant(pair, "nlp")
    job = nlp.accepted(
        {
            "name": "gang",
            "vc": "nlp",
            "script": str(SCRIPT),
            "resources": {"workers": 2, "gpus": 1},
            "limits": {"retries": 2},
            "env": {"STEPS_FILE": str(notes), "COPIES": "0.2s"},
        }
    )

    def said(rank: int, attempt: int) -> list[str]:
        path = Path(f"{notes}.{rank}.{attempt}")
        return path.read_text().split() if path.exists() else []

    def copies() -> list[Path]:
        return [path for path in folders[0].glob("*.safetensors") if path.stat().st_size]

    until(lambda: len(said(0, 1)) == len(said(1, 1)) == 2, "both ranks to begin", DEADLINE_S)
    folders = [Path(said(rank, 1)[1]) for rank in range(2)]
    assert folders[0] != folders[1]
    assert {path.name for path in folders} == {job}
    until(lambda: len(copies()) >= 4, "two boundaries to be whole", DEADLINE_S)
    os.kill(int(said(1, 1)[0]), signal.SIGKILL)

    def again() -> bool:
        return all(made(notes, rank)[-1:] and made(notes, rank)[-1][0] == 2 for rank in range(2))

    until(again, "the next attempt to train", DEADLINE_S)
    Path(f"{notes}.stop").touch()
    assert pair.ended(job)["state"] == "succeeded"
    for rank in range(2):
        first = [step for attempt, step, _ in made(notes, rank) if attempt == 1]
        later = [step for attempt, step, _ in made(notes, rank) if attempt == 2]
        # Mini-batches take a tenth of a second here, and copies are made five times in one.
        assert 1 < later[0] <= first[-1] + 1, "from a copy: nothing is on disk"
        assert later == list(range(later[0], later[-1] + 1))
    alone(whole, max(step for _, step, _ in made(notes, 0)))
    for rank in range(2):
        expected = {step: loss for _, step, loss in made(whole, rank)}
        assert all(loss == expected[step] for _, step, loss in made(notes, rank)), "to the bit"
    assert not any(folder.exists() for folder in folders), "they go with its success"
