"""The program that copies into a job's folder and out of it, run as an agent runs it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skep.wire.terminal import Open, read_open
from skep_job.terminal import copy

CONTENT = os.urandom(700_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a job's folder, beside which is what it must not reach."""
    (tmp_path / "outside").write_text("outside")
    made = tmp_path / "job"
    (made / "sub").mkdir(parents=True)
    (made / "file").write_text("before")
    (made / "link").symlink_to("../outside")
    (made / "up").symlink_to("..")
    os.mkfifo(made / "pipe")
    return made


class Program:
    """The program in a job's folder, in this process; `ran` returns the lines that it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said = b""
        self._given = io.BytesIO()
        monkeypatch.setattr(copy, "put_bytes", self._say)
        monkeypatch.setattr(copy, "read_some", self._take)

    def _say(self, data: bytes) -> None:
        self.said += data

    def _take(self, most: int) -> bytes:
        return self._given.read(most)

    def ran(self, *words: str, given: bytes = b"") -> list[dict[str, Any]]:
        self.said, self._given = b"", io.BytesIO(given)
        copy.came.clear()
        copy.main(list(words))
        return [json.loads(line) for line in self.said.splitlines() if line.startswith(b"{")]


@pytest.fixture
def program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(folder)
    return Program(monkeypatch)


def head(path: str = "", size: int = len(CONTENT), digest: str = DIGEST) -> bytes:
    return (
        json.dumps({"path": path, "size": size, "mode": 0o755, "sha256": digest}).encode() + b"\n"
    )


def test_a_file_takes_its_place_when_it_is_whole_and_goes_on_where_it_was(folder: Path) -> None:
    put = [sys.executable, "-I", "-S", copy.__file__, "put", "new/deep/", "model", "file"]

    def ran(given: bytes) -> list[dict[str, Any]]:
        done = subprocess.run(put, input=given, cwd=folder, capture_output=True, check=False)
        assert done.stderr == b""
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert ran(head() + CONTENT[:300_000]) == [{"place": "new/deep/model"}, {"have": 0}]
    (part,) = (folder / "new" / "deep").iterdir()
    assert part.read_bytes() == CONTENT[:300_000]
    assert ran(head() + CONTENT[300_000:])[1:] == [{"have": 300_000}, {"done": 700_000}]
    (made,) = (folder / "new" / "deep").iterdir()
    assert (made.name, made.read_bytes()) == ("model", CONTENT)
    assert made.stat().st_mode & 0o777 == 0o755 & ~_umask()


def test_folders_and_existing_files(folder: Path, program: Program) -> None:
    two = head("a/1", 1, hashlib.sha256(b"x").hexdigest()) + b"x"
    lines = program.ran(
        "put", "sub", "dir", "folder", given=two + head().replace(b'""', b'"b"') + CONTENT
    )
    assert [each.get("place", each.get("done")) for each in lines] == [
        "sub/dir",
        None,
        1,
        None,
        700_000,
    ]
    assert (folder / "sub" / "dir" / "a" / "1").read_bytes() == b"x"
    lines = program.ran("put", "file", "x", "file", given=head() + CONTENT)
    assert (folder / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "place, name, given, text",
    [
        ("link", "x", head(), "link is a link, which is not followed"),
        ("up/outside", "x", head(), "up is a link or no folder"),
        ("file/x", "x", head(), "file is a link or no folder"),
        ("pipe", "x", head(), "pipe is there, and is no file"),
        ("../outside", "x", head(), "is no path in the job's folder"),
        ("/etc/x", "x", head(), "is no path in the job's folder"),
        ("a/./b", "x", head(), "is no path in the job's folder"),
        ("sub", "..", head(), "is no path in the job's folder"),
        ("sub", "n" * 256, head(), "longer than Linux takes"),
        ("new", "x", head(size=65 << 30), "bytes, and a file at most"),
        ("new", "x", head(size=1 << 30), "cannot be written: No space left on device"),
        ("new", "x", head(digest="0" * 64) + CONTENT, "came corrupt, or changed while"),
        ("new", "x", b"x" * 20_000, "a line is too long"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_changes_nothing(
    folder: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    name: str,
    given: bytes,
    text: str,
) -> None:
    monkeypatch.setattr(copy, "free_bytes", lambda handle: 1 << 20)
    before = sorted(folder.rglob("*"))
    lines = program.ran("put", place, name, "file", given=given)
    assert text in lines[-1]["error"]
    assert sorted(folder.rglob("*")) == before
    assert (folder / "file").read_text() == "before"
    assert (folder.parent / "outside").read_text() == "outside"


def test_files_come_out_with_their_digests(folder: Path, program: Program) -> None:
    (folder / "sub" / "one").write_bytes(b"{1")
    (folder / "sub" / "in").mkdir()
    (folder / "sub" / "in" / "two").write_bytes(b"")
    (folder / "sub" / "link").symlink_to("/etc/passwd")
    lines = program.ran("get", "sub")
    assert [each[:2] for each in lines[0]["files"]] == [["one", 2], ["in/two", 0]]
    assert lines[0]["folder"] is True
    assert struct.pack(">I", 2) + b"{1" + struct.pack(">I", 0) in program.said


@pytest.mark.parametrize(
    "path, text",
    [
        ("link", "link is a link or no folder"),
        ("up/outside", "up is a link or no folder"),
        ("pipe", "pipe is no file"),
        ("nope", "the job's folder has no nope"),
        ("../outside", "is no path in the job's folder"),
        ("/etc/passwd", "is no path in the job's folder"),
    ],
)
def test_nothing_outside_comes_out(program: Program, path: str, text: str) -> None:
    lines = program.ran("get", path)
    assert text in lines[-1]["error"]
    assert b"outside" not in program.said.replace(b"up/outside", b"").replace(b"../outside", b"")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("put", "x"),
        ("get",),
        ("rm", "x"),
        ("put", "../x", "n", "file"),
        ("put", "x", "../n", "file"),
        ("put", "x", "", "file"),
        ("put", "x", "n", "pipe"),
        ("get", "/etc/passwd"),
    ],
)
def test_a_gateway_takes_no_other_words(argv: tuple[str, ...]) -> None:
    assert isinstance(read_open(json.dumps({"what": "copy", "argv": argv}).encode()), str)
    fine = read_open(b'{"what":"copy","argv":["get","ckpt/x"]}')
    assert isinstance(fine, Open)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
