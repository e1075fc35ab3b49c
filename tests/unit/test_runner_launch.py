"""The words for what exec refuses, where a test cannot bring the refusal about."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep_services.agent.runner_holder import Holder
from skep_services.agent.runner_launch import NotStarted, explain, launch


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


@pytest.mark.parametrize(
    "number, of_node",
    [
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EIO, True),
        (errno.EROFS, True),
        (errno.EMFILE, True),
        (errno.ENOTDIR, False),  # A job may have put that in its place.
        (errno.EACCES, False),
    ],
)
@pytest.mark.parametrize("opening", [1, 2])  # By the runner, and for the process.
def test_whose_fault_a_log_is_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, of_node: bool, opening: int
) -> None:
    holder, path, opened = Holder(str(tmp_path)), str(tmp_path / "log"), []
    really = os.open

    def fails(name: str, *arguments: int, **more: int) -> int:
        if name == path:
            opened.append(name)
            if len(opened) == opening:
                raise OSError(number, os.strerror(number), name)
        return really(name, *arguments, **more)

    monkeypatch.setattr(os, "open", fails)
    plan = {
        "token": "j1.1.0",
        "argv": ["true"],
        "env": {"PATH": "/bin"},
        "workdir": "/",
        "script": "",
        "log_path": path,
        "log_bytes_max": 1 << 20,
    }
    answer = holder.start(plan)
    named = f"log {path}" if opening == 1 else path
    expected = {"not_started": f"{named} cannot be written: {os.strerror(number)}"}
    assert answer == (expected | {"fault": "node"} if of_node else expected)
    assert (holder.runs(), len(opened)) == ([], opening), "the token is free"


@pytest.mark.parametrize(
    "number, of_node",
    [(errno.EAGAIN, True), (errno.ENOMEM, True), (errno.EIO, True), (errno.E2BIG, False)],
)
def test_whose_fault_it_is_that_nothing_is_executed(
    monkeypatch: pytest.MonkeyPatch, number: int, of_node: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", fails)
    outcome = launch(["true"], {"PATH": "/bin"}, "/", 0, 1)
    assert isinstance(outcome, NotStarted)
    assert outcome.of_node is of_node


def test_what_a_job_names_wrongly_is_its_own_fault(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for argv, workdir in (([gone], "/"), (["true"], gone), (["true", "a\0b"], "/")):
        outcome = launch(argv, {"PATH": "/bin"}, workdir, 0, 1)
        assert isinstance(outcome, NotStarted)
        assert not outcome.of_node, outcome


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
