"""The words for what exec refuses, where a test cannot bring the refusal about."""

import errno
import os
import sys
from pathlib import Path

import pytest

from skep_services.agent.runner_launch import explain


@pytest.mark.parametrize(
    "number, words",
    [
        (errno.EAGAIN, "too many processes"),
        (errno.ENOMEM, "out of memory"),
        (errno.EMFILE, "too many open files"),
        (errno.ENFILE, "too many open files"),
        (errno.E2BIG, "too large"),
        (errno.EIO, "executing prog failed: Input/output error"),
    ],
)
def test_limits_of_the_machine(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number))
    assert words in explain(error, "prog", {"PATH": "/bin"}, "/")


def test_folders_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    error = OSError(errno.EACCES, "Permission denied")
    words = explain(error, "true", {"PATH": "/bin"}, str(tmp_path))
    assert words == f"workdir {tmp_path} may not be entered by this user"


def test_refusal_without_visible_cause_keeps_the_systems_words(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    error = OSError(errno.EACCES, "Permission denied")
    words = explain(error, str(script), {}, "/")
    assert words == f"executing {script} failed: Permission denied"


def test_script_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    script.symlink_to(tmp_path / "gone")
    error = OSError(errno.ENOENT, "No such file or directory")
    words = explain(error, str(script), {}, "/")
    assert words == f"executable {script} does not exist on this node"
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    words = explain(error, str(script), {}, "/")
    assert words == f"{script} is not executable: chmod +x it, or name its interpreter first"
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    words = explain(error, str(script), {}, "/")
    assert words == f"executing {script} failed: No such file or directory"
