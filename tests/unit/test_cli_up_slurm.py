"""`skep up --on slurm`: what is asked for wrongly is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep_services.cli import exits
from skep_services.cli.main import main

ON = ["--on", "slurm"]


@pytest.mark.parametrize(
    "words, text",
    [
        ([*ON, "--nodes", "0"], "--nodes 0: a number from 1 to 1000"),
        ([*ON, "--nodes-min", "9"], "--nodes-min 9: at most --nodes 2"),
        ([*ON, "--gpus", "auto"], "--gpus auto: a number from 1 to 64"),
        ([*ON, "--margin", "soon"], "--margin soon: a time such as 90s, 15m"),
        ([*ON, "--idle=-3"], "--idle -3: a time such as 90s, 15m"),
        ([*ON, "--vc", "team=4"], "--vc does not go with --on slurm"),
        ([*ON, "--secrets"], "--secrets does not go with --on slurm"),
        (["--partition", "gpu"], "--partition goes with --on slurm"),
        (["--nodes-min", "1"], "--nodes-min goes with --on slurm"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--home", str(tmp_path), *words]) == exits.USAGE
    assert capsys.readouterr().err == f"skep up: {text}\n"
    assert list(tmp_path.iterdir()) == []
