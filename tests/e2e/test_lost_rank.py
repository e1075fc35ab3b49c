"""A gang on two nodes loses a rank or a node, and goes on from copies in the nodes' memory."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Tenant
from tests.e2e.test_migrate_gang import DEADLINE_S, SCRIPT, alone, made
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]


LOST_WITHIN_S = 180.0
"""A silent node is lost after 40 s; then the gang begins anew."""


class Gang:
    """Two ranks, each on a node with one slot; both copy their state five times a second."""

    def __init__(self, cluster: Embedded, folder: Path) -> None:
        self.cluster, self.notes, self.whole = cluster, folder / "steps", folder / "whole"
        self.job = Tenant(cluster, "nlp").accepted(
            {
                "name": "gang",
                "vc": "nlp",
                "script": str(SCRIPT),
                "resources": {"workers": 2, "gpus": 1},
                "limits": {"retries": 2},
                "env": {"STEPS_FILE": str(self.notes), "COPIES": "0.2s"},
            }
        )
        until(
            lambda: all(len(self.said(rank, 1)) == 2 for rank in range(2)),
            "both ranks to begin",
            DEADLINE_S,
        )
        self.folders = [Path(self.said(rank, 1)[1]) for rank in range(2)]
        assert self.folders[0] != self.folders[1]
        assert {path.name for path in self.folders} == {self.job}
        until(lambda: len(self.copies()) >= 4, "two boundaries to be whole", DEADLINE_S)

    def said(self, rank: int, attempt: int) -> list[str]:
        """Return the process id and the folder of a rank."""
        path = Path(f"{self.notes}.{rank}.{attempt}")
        return path.read_text().split() if path.exists() else []

    def copies(self) -> list[Path]:
        """Return the copies on the node of rank 0."""
        return [path for path in self.folders[0].glob("*.safetensors") if path.stat().st_size]

    def place(self) -> list[str]:
        """Return the nodes of the ranks."""
        place: str = self.cluster.get(f"/v1/jobs/{self.job}")["place"]
        return [part.split(":")[0] for part in place.split()]

    def went_on(self, within_s: float) -> None:
        """Wait for the second attempt, end the job, and see that it went on from a copy."""

        def again() -> bool:
            latest = [made(self.notes, rank)[-1:] for rank in range(2)]
            return all(each and each[0][0] == 2 for each in latest)

        until(again, "the next attempt to train", within_s)
        Path(f"{self.notes}.stop").touch()
        assert self.cluster.ended(self.job)["state"] == "succeeded"
        for rank in range(2):
            first = [step for attempt, step, _ in made(self.notes, rank) if attempt == 1]
            later = [step for attempt, step, _ in made(self.notes, rank) if attempt == 2]
            # Mini-batches take a tenth of a second here, and copies are made five times in one.
            assert 1 < later[0] <= first[-1] + 1, "from a copy: nothing is on disk"
            assert later == list(range(later[0], later[-1] + 1))
        alone(self.whole, max(step for _, step, _ in made(self.notes, 0)))
        for rank in range(2):
            expected = {step: loss for _, step, loss in made(self.whole, rank)}
            losses = made(self.notes, rank)
            assert all(loss == expected[step] for _, step, loss in losses), "to the bit"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Embedded]:
    """Three nodes with one slot each."""
    made = Embedded(tmp_path / "home")
    try:
        made.up("--nodes", "3", "--gpus", "1", "--vc", "nlp=3", "--port", "0")
        yield made
    finally:
        made.down()


@pytest.mark.nightly
def test_a_gang_that_loses_a_rank_goes_on_from_memory(cluster: Embedded, tmp_path: Path) -> None:
    gang = Gang(cluster, tmp_path)
    os.kill(int(gang.said(1, 1)[0]), signal.SIGKILL)
    gang.went_on(DEADLINE_S)
    assert not any(folder.exists() for folder in gang.folders), "they go with its success"


@pytest.mark.nightly
def test_a_gang_that_loses_a_node_goes_on_from_the_memory_of_the_other(
    cluster: Embedded, tmp_path: Path
) -> None:
    gang = Gang(cluster, tmp_path)
    kept, lost = gang.place()
    agent = cluster.entry(lost)["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        os.kill(int(gang.said(1, 1)[0]), signal.SIGKILL)
        shutil.rmtree(gang.folders[1])
        until(lambda: len(gang.said(1, 2)) == 2, "the next attempt to begin", LOST_WITHIN_S)
        assert sorted(gang.place()) == sorted({"node-1", "node-2", "node-3"} - {lost})
        assert kept in gang.place()
        gang.went_on(DEADLINE_S)
    finally:
        os.kill(agent, signal.SIGCONT)
