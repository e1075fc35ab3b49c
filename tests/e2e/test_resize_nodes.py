"""A gang of real ranks grows onto another node and leaves it again, while it trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.e2e.test_resize import DEADLINE_S, held, resize
from tests.support.embedded import Embedded, until
from tests.support.job_agent import environment, python

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

SCRIPT = Path(__file__).parent / "jobs" / "elastic_nodes.py"
LOSS_TOLERANCE = 1e-6
"""Relative. Sums over ranks are added in another order than sums within one process."""


def notes(path: Path) -> dict[int, list[tuple[int, int, list[int]]]]:
    """Return what the ranks noted of each mini-batch: rank, ranks of the gang, samples."""
    found: dict[int, list[tuple[int, int, list[int]]]] = {}
    for file in path.parent.glob(f"{path.name}.steps-*"):
        *whole, _ = file.read_text().split("\n")  # The last line may not be written yet.
        for line in whole:
            step, rank, world, samples = json.loads(line)
            found.setdefault(step, []).append((rank, world, samples))
    return found


def order_of(path: Path) -> dict[int, list[int]]:
    """Return the samples of each mini-batch in the order of ranks, having checked those."""
    order = {}
    for step, ranks in notes(path).items():
        worlds = {world for _, world, _ in ranks}
        assert [rank for rank, _, _ in sorted(ranks)] == list(range(max(worlds))), step
        assert len(worlds) == 1, step
        order[step] = [sample for _, _, samples in sorted(ranks) for sample in samples]
    return order


@pytest.mark.nightly
def test_a_gang_grows_onto_another_node_and_leaves_it_again(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    job = nlp.accepted(
        {
            "name": "spanning",
            "vc": nlp.vc,
            "script": str(SCRIPT),
            "elastic": {"min": 1, "max": 3},
            "resources": {"workers": 2, "gpus": 2},
            "service_class": "opportunistic",
            "env": {"NOTES": str(path)},
        }
    )
    until(lambda: "resize" in cluster.get(f"/v1/jobs/{job}")["can"], f"{job} to resize", DEADLINE_S)
    here = {node for node, _ in held(cluster, job)}
    assert resize(cluster, job, 3)["state"] == "running"
    until(lambda: len(held(cluster, job)) == 6, "all GPUs to be its", DEADLINE_S)
    assert (len(here), len({node for node, _ in held(cluster, job)})) == (1, 2)
    row = cluster.get(f"/v1/jobs/{job}")
    assert (row["workers"], row["gpus"], row["attempt"]) == (3, 6, 1)
    until(lambda: 3 in {len(ranks) for ranks in notes(path).values()}, "three ranks", DEADLINE_S)

    assert resize(cluster, job, 2)["state"] == "running"
    until(lambda: {node for node, _ in held(cluster, job)} == here, "one node", DEADLINE_S)
    Path(f"{path}.stop").touch()
    assert cluster.ended(job)["state"] == "succeeded"

    worlds = [len(ranks) for _, ranks in sorted(notes(path).items())]
    assert [world for i, world in enumerate(worlds) if worlds[i - 1 : i] != [world]] == [2, 3, 2]
    assert len(set(Path(f"{path}.pids").read_text().split())) == 3, "nobody was started again"
    whole = uninterrupted(len(worlds), tmp_path)
    assert order_of(path) == order_of(tmp_path / "whole")
    loss = json.loads(Path(f"{path}.loss").read_text())
    assert loss == pytest.approx(whole, rel=LOSS_TOLERANCE)


def uninterrupted(steps: int, folder: Path) -> Any:
    """Train so many mini-batches in one process that no agent knows; return the loss."""
    more = {"NOTES": str(folder / "whole"), "STEPS": str(steps)}
    outcome = python([SCRIPT], environment() | more)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads((folder / "whole.loss").read_text())
