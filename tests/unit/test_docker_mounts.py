"""What a container sees of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep_services.adapters.docker_engine import Mounts
from skep_services.adapters.docker_plans import mounts_of
from skep_services.ports import RunPlan


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "state"
    folder.mkdir(parents=True)
    return folder


def plan(state: Path, workdir: Path, *folders: Path) -> RunPlan:
    return RunPlan(
        token="j1.1.0",
        argv=("true",),
        env={},
        workdir=str(workdir),
        log_path=str(state / "logs" / "j1" / "1" / "rank0.log"),
        log_bytes_max=1,
        folders=tuple(map(str, folders)),
        folders_to_read=("/lib",),
    )


def test_of_the_state_folder_only_what_is_the_jobs_own_is_mounted(state: Path) -> None:
    checkpoints = state / "checkpoints" / "j1"
    said = state / "containers" / "j1.1.0.said"
    found = mounts_of(plan(state, Path("/w"), checkpoints, checkpoints / "best"), state, said)
    logs = str(state / "logs" / "j1" / "1")
    assert found == Mounts(("/w", str(checkpoints), str(said), logs), ("/lib",), ())


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_around_the_state_folder_shows_it_empty(
    state: Path, tmp_path: Path, link: bool
) -> None:
    around = state.parent
    if link:
        around = tmp_path / "link"
        around.symlink_to(state.parent)
    found = mounts_of(plan(state, around), state, state / "containers" / "j1.1.0.said")
    assert found.folders[0] == str(around)
    assert found.hidden == (str(around / "state"),)
