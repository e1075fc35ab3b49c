"""The interpreter that `skep run` records, and files that are missing where they can be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skep_services.cli.exits import CommandError
from skep_services.cli.files import check_files, interpreter, missing
from skep_services.cli.specs import Document


def environment(folder: Path) -> str:
    """Return a folder that has a bin/python."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return str(folder)


def test_the_active_environment_in_a_stated_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv, conda = environment(tmp_path / "venv"), environment(tmp_path / "conda")
    both = {"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda, "PATH": f"{conda}/bin"}
    assert interpreter(None, both) == f"{venv}/bin/python"
    assert interpreter(None, {"CONDA_PREFIX": conda}) == f"{conda}/bin/python"
    assert interpreter(None, {"PATH": f"{conda}/bin"}) is None, "the cluster's own"
    assert interpreter("python", both) == f"{conda}/bin/python", "a name is looked up in PATH"
    monkeypatch.chdir(tmp_path)
    assert interpreter("venv/bin/python", {}) == f"{venv}/bin/python"
    with pytest.raises(CommandError, match="--python python9: no such program in PATH"):
        interpreter("python9", both)
    assert capsys.readouterr().err == ""
    assert interpreter(None, {"VIRTUAL_ENV": "/gone", "CONDA_PREFIX": conda}) is not None
    assert "VIRTUAL_ENV names /gone, which has no bin/python" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong, where, told",
    [
        ({"workdir": "/nowhere"}, "$.workdir", "workdir /nowhere is no folder on this machine"),
        ({"script": "typo.py"}, "$.script", "typo.py does not exist"),
        ({"python": "/nowhere/python"}, "$.python", "/nowhere/python is no program"),
        ({"workdir": "/nowhere", "runtime": {"image": "a"}}, "$.workdir", "is no folder"),
    ],
)
def test_a_missing_file_is_said_before_anything_is_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any], where: str, told: str
) -> None:
    (tmp_path / "train.py").touch()
    right = {"workdir": str(tmp_path), "script": "train.py", "python": "/bin/sh"}
    assert missing(right) == []
    assert missing({**right, "python": "python3.12"}) == [], "a name is looked up on the node"
    assert missing({**right, "script": "a.py", "runtime": {"image": "a"}}) == []
    document = Document("job.yaml", {**right, **wrong}, {where: 3})
    with pytest.raises(CommandError) as caught:
        check_files([document], local=True)
    assert caught.value.text.startswith("nothing was submitted, because a file is missing:")
    assert "job.yaml:3: " in caught.value.text
    assert told in caught.value.text
    assert "\n" not in caught.value.text.partition("\n")[2], "one line for one file"
    check_files([document], local=False)
    assert told in (said := capsys.readouterr().err)
    assert said.endswith("; the nodes have to have it\n")
