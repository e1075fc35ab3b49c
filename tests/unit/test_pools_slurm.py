"""Slurm's own commands, played by scripts: what they are told, and what their answers mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep.pools import Allocation
from skep_services.pools.slurm import SHIM, Queue, find
from skep_services.pools.source import SourceError

SQUEUE = """
echo '7|RUNNING|1:30'; echo '8|PENDING|2:00:00'; echo '9|COMPLETING|0:00'
echo '10|RUNNING|UNLIMITED'; echo '11|RUNNING|0:00'
"""


def put(folder: Path, name: str, body: str, mark: str = "") -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n# {mark}\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    theirs = tmp_path / "bin"
    put(theirs, "sbatch", f'echo "$@" > {tmp_path}/told; cat > {tmp_path}/script; echo "12;here"')
    put(theirs, "squeue", SQUEUE)
    put(theirs, "scancel", f'echo "$@" > {tmp_path}/ended')
    put(tmp_path / "shims", "sbatch", "exit 9", SHIM)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{theirs}:/usr/bin:/bin")
    return tmp_path


def queue(folder: Path) -> Queue:
    return Queue("skep-1", folder, ["--partition=gpu"], ["python3", "-m", "inside", "a b"])


def test_an_allocation_is_asked_for_by_slurms_own_command(folder: Path) -> None:
    assert queue(folder).ask() == "12"
    told = (folder / "told").read_text().split()
    assert {"--job-name=skep-1", "--partition=gpu", "--nodes=1", "--exclusive"} < set(told)
    assert (folder / "script").read_text().splitlines()[-1].endswith("exec python3 -m inside 'a b'")


def test_allocations_are_listed_without_those_that_are_over(folder: Path) -> None:
    assert queue(folder).allocations() == [
        Allocation("7", "slurm-7", "RUNNING", 90),
        Allocation("8", "slurm-8", "PENDING", 7200),
        Allocation("10", "slurm-10", "RUNNING", None),
        Allocation("11", "slurm-11", "RUNNING", 0),
    ]


def test_allocations_are_handed_back(folder: Path) -> None:
    queue(folder).end()
    assert not (folder / "ended").exists()
    queue(folder).end("7", "8")
    assert (folder / "ended").read_text() == "7 8\n"


def test_what_slurm_has_against_it_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(
        folder / "bin", "sbatch", "echo usage >&2; echo 'sbatch: error: no partition x' >&2; exit 1"
    )
    with pytest.raises(SourceError, match=r"^sbatch: error: no partition x$"):
        queue(folder).ask()
    monkeypatch.setenv("PATH", str(folder / "shims"))
    with pytest.raises(SourceError, match="there is no `sbatch` of Slurm's in PATH"):
        find("sbatch")
