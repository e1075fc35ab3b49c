"""What a container sees of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep_services.adapters.docker_engine import Mounts
from skep_services.adapters.docker_plans import mounts_of, trouble_of
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
    found = mounts_of(plan(state, Path("/w"), checkpoints, checkpoints / "best"), [state], said)
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
    found = mounts_of(plan(state, around), [state], state / "containers" / "j1.1.0.said")
    assert found.folders[0] == str(around)
    assert found.hidden == (str(around / "state"),)


def test_a_folder_around_the_clusters_home_shows_the_home_empty(
    state: Path, tmp_path: Path
) -> None:
    """It has the credentials, the other nodes and all checkpoints; the job's own stay."""
    home = state.parent
    own, said = home / "checkpoints" / "j1", state / "containers" / "j1.1.0.said"
    found = mounts_of(plan(state, tmp_path, own), [state, home], said)
    logs = str(state / "logs" / "j1" / "1")
    assert found == Mounts((str(tmp_path), str(own), str(said), logs), ("/lib",), (str(home),))


def test_a_working_folder_that_is_a_link_to_itself_is_refused(state: Path) -> None:
    loop = state.parent / "loop"
    loop.symlink_to(loop)
    assert trouble_of(plan(state, loop), [state]) == f"workdir {loop} does not exist on this node"
