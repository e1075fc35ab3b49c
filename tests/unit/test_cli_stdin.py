"""What `skep run` does with its standard input, and notebooks that are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from skep_job import notebook
from skep_services.cli import code, stdin
from skep_services.cli.exits import CommandError
from skep_services.cli.main import main


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return what has bytes be standard input, in a pipe that has ended."""
    kept = os.dup(0)

    def give(data: bytes) -> None:
        path = tmp_path / "given"
        path.write_bytes(data)
        with open(path, "rb") as file:
            os.dup2(file.fileno(), 0)
        monkeypatch.setattr(sys, "stdin", open(0, closefd=False))  # noqa: SIM115

    yield give
    os.dup2(kept, 0)
    os.close(kept)


def test_only_what_is_asked_for_is_read(given: Any) -> None:
    given(b"data")
    assert stdin.wanted(None, ["python", "train.py", "-"])
    assert stdin.wanted(None, ["cat", "/dev/stdin"])
    assert not stdin.wanted(None, ["python", "train.py"])
    assert stdin.wanted(True, ["wc"])
    assert not stdin.wanted(False, ["wc", "-"])
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    assert not stdin.wanted(None, ["python", "train.py", "-"])
    master, slave = os.openpty()
    os.dup2(slave, 0)
    assert not stdin.wanted(None, ["python", "train.py", "-"])
    with pytest.raises(CommandError, match="standard input is a terminal: pipe something in"):
        stdin.wanted(True, ["wc"])
    os.close(0)
    with pytest.raises(CommandError, match="this command has no standard input"):
        stdin.wanted(True, ["wc"])
    for number in (master, slave):
        os.close(number)


def test_it_travels_alone_or_beside_the_code(given: Any, tmp_path: Path) -> None:
    given(b"data")
    tree: dict[str, Any] = {"workdir": "/data"}
    arguments = Namespace(stdin=None, command=["wc", "-"], code=None, snapshots=None)
    with stdin.kept(tree, arguments):
        assert code.settle(tree, arguments)
        [taken] = arguments.snapshots.values()
        assert (taken.paths, taken.digest) == ({stdin.NAME}, tree["code"])
        assert taken.chunk(taken.snapshot.chunks[1].digest) == b"data"
    assert tree == {"workdir": "/data", "code": taken.digest, "stdin": stdin.NAME}

    given(b"data")
    project = tmp_path / "project"
    project.mkdir()
    (project / "x").write_text("x")
    (project / stdin.NAME).write_text("an earlier one")
    tree = {"workdir": str(project)}
    arguments = Namespace(stdin=True, command=["wc"], code=str(project), snapshots=None)
    with stdin.kept(tree, arguments):
        assert code.settle(tree, arguments)
        [taken] = arguments.snapshots.values()
        assert taken.paths == {"x", stdin.NAME}
        assert taken.chunk(taken.snapshot.chunks[1].digest) == b"datax"


def test_too_much_is_refused_in_one_line(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin, "BYTES_MAX", 1024 * 1024)
    given(b"x" * (1024 * 1024 + 1))
    arguments = Namespace(stdin=True, command=["wc"], code=None, snapshots=None)
    with (
        pytest.raises(CommandError, match="has more than 1 MiB") as refused,
        stdin.kept({}, arguments),
    ):
        pass
    assert (refused.value.error["reason"], "\n" in refused.value.text) == ("too-large", False)


@pytest.mark.parametrize(
    "words, said",
    [
        (["--pull"], "--pull: name what to fetch: --image IMAGE"),
        (["--idle", "5s"], "--idle 5s: at least 60s"),
        (["--idle", "soon"], "--idle soon: a length of time"),
        (["--local", "99999"], "--local 99999: a port from 1 to 65535"),
    ],
)
def test_bad_notebooks_are_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKEP_API", "http://127.0.0.1:9")
    monkeypatch.setenv("SKEP_VC", "nlp")
    assert main(["notebook", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"skep notebook: {said}")
    assert error.count("\n") == 1


def test_a_notebook_says_what_it_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skep_job.notebook"]
    env = {**os.environ, "SKEP_RUN": f"j1.{os.getpid()}.0"}
    bare = subprocess.run(
        [*command, "--python", "/bin/sh"], env=env, capture_output=True, text=True, check=False
    )
    assert bare.returncode == 1
    assert bare.stderr.startswith("skep_job.notebook: /bin/sh has neither jupyterlab nor")
    gone = subprocess.run(
        [*command, "--python", "/nowhere"], env=env, capture_output=True, text=True, check=False
    )
    assert gone.stderr == "skep_job.notebook: /nowhere: No such file or directory\n"
    env.pop("SKEP_RUN")
    alone = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert alone.returncode == 2


def test_where_a_notebook_is_waits_until_it_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(notebook, "folder", lambda: str(tmp_path / "own"))
    monkeypatch.setenv("SKEP_RUN", "j1.1.0")
    assert notebook.where(0.0) == notebook.NOT_YET
    notebook.own_folder()
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        about = {"port": link.getsockname()[1], "token": "t", "page": "lab"}
        notebook.write(notebook.place_of("j1.1.0"), about)
        assert notebook.where(0.0) == notebook.NOT_YET
        link.listen()
        assert notebook.where(1.0) == 0
    assert capsys.readouterr().out.startswith('{"port": ')
    assert os.stat(notebook.place_of("j1.1.0")).st_mode & 0o777 == 0o600
    (tmp_path / "own").chmod(0o755)
    with pytest.raises(OSError, match="not a folder of this account alone"):
        notebook.own_folder()
