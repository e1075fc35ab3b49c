"""Observed jobs that go on from an image of their processes, where a CRIU works here."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_services.adapters.process_checkpoint import open_process_checkpoints
from tests.support.embedded import Embedded
from tests.system import kill_images, process_images

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    base = tmp_path_factory.mktemp("images")
    wanted = process_images.environment()
    environment = {**os.environ, **wanted}
    made, why = asyncio.run(open_process_checkpoints(environment, base))
    if made is None:
        pytest.skip(why)
    found = Embedded(base / "home", wanted)
    try:
        found.up("--nodes", "2", "--gpus", "1", "--vc", "v=2", "--port", "0")
        yield found
    finally:
        found.down()


@pytest.mark.parametrize("how", process_images.WAYS)
def test_losses_are_those_of_a_run_that_was_not_interrupted(
    cluster: Embedded, tmp_path: Path, how: str
) -> None:
    nodes = json.loads(cluster.skep("node", "ls", "--json"))["nodes"]
    assert [node["images"] for node in nodes] == ["yes", "yes"]
    result = process_images.trial(cluster, tmp_path, how)
    assert result.pop("losses") == process_images.plain(tmp_path), result
    assert result["attempts"] > 1


@pytest.mark.usefixtures("cluster")  # It skips where no CRIU works.
def test_what_is_killed_around_an_image_leaves_the_job_whole(tmp_path: Path) -> None:
    rows = kill_images.kill_images("node-1/*", tmp_path)
    assert [row["ok"] for row in rows] == [True] * len(kill_images.PHASES), rows
