"""Unpacking snapshots: whole or not at all, and never outside."""

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skep.wire import snapshot as wire
from skep_services.agent import unpack
from skep_services.cli.snapshots import take

Entry = Sequence[Any]


def packed(path: Path, raw: bytes, chunks: Sequence[bytes]) -> str:
    path.write_bytes(struct.pack(">I", len(raw)) + raw + b"".join(chunks))
    return wire.digest_of(raw)


def hostile(path: Path, entries: Any, content: bytes = b"", **said: Any) -> str:
    """Write a snapshot that says anything; return its digest."""
    index = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    chunks = [each for each in (index, content) if each]
    root = {
        "v": 1,
        "index_bytes": len(index),
        "files": len(entries),
        "bytes": len(content),
        "chunks": [[wire.digest_of(each), len(each)] for each in chunks],
        **said,
    }
    return packed(path, json.dumps(root).encode(), chunks)


def refused(tmp_path: Path, digest: str) -> unpack.SnapshotError:
    folder = tmp_path / "work"
    with pytest.raises(unpack.SnapshotError) as raised:
        unpack.unpack(str(tmp_path / "code"), digest, str(folder))
    assert not folder.exists()
    return raised.value


def test_the_bounds_are_those_of_the_wire() -> None:
    assert unpack.FILES_MAX == wire.FILES_MAX
    assert unpack.BYTES_MAX == wire.BYTES_MAX
    assert unpack.INDEX_BYTES_MAX == wire.INDEX_BYTES_MAX


def test_what_was_taken_comes_out_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "big").write_bytes(os.urandom(1_300_000))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o750)
    (source / "nothing").touch()
    (source / "link").symlink_to("a/big")
    taken = take(str(source), "")
    chunks = [taken.chunk(one.digest) for one in taken.snapshot.chunks]
    digest = packed(tmp_path / "code", taken.raw, chunks)
    folder = tmp_path / "work"
    assert unpack.main([str(tmp_path / "code"), digest, str(folder)]) == 0
    assert take(str(folder), "").digest == taken.digest
    assert os.access(folder / "run.sh", os.X_OK)
    assert (folder / "link").read_bytes() == (source / "a" / "big").read_bytes()
    # What is there already is the attempt's: it is left as it is.
    (folder / "nothing").write_text("written by the job")
    assert unpack.main([str(tmp_path / "code"), digest, str(folder)]) == 0
    assert (folder / "nothing").read_text() == "written by the job"


def test_what_an_unpacking_that_was_killed_left_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "work.part").mkdir()
    (tmp_path / "work.part" / "half").touch()
    digest = hostile(tmp_path / "code", [["m", 0o644, 1]], b"x")
    unpack.unpack(str(tmp_path / "code"), digest, str(tmp_path / "work"))
    assert os.listdir(tmp_path / "work") == ["m"]
    assert not (tmp_path / "work.part").exists()


@pytest.mark.parametrize(
    "entry",
    [
        ["/etc/x", 0o644, 0],
        ["../x", 0o644, 0],
        ["a/../../x", 0o644, 0],
        ["a//x", 0o644, 0],
        ["", 0o644, 0],
        ["a\0b", 0o644, 0],
        [".", 0, 0],
        ["set-uid", 0o4755, 0],
        ["device", 0o20644, 0],
        ["negative", 0o644, -1],
        ["text", 0o644, "0"],
        ["truth", 0o644, True],
        ["link", -1, "/etc"],
        ["link", -1, "../up"],
        ["a/link", -1, "../../up"],
        ["link", -1, "down/.."],
        ["link", -1, ""],
        ["link", -1, 5],
        ["folder", 0, 7],
    ],
)
def test_a_path_that_leads_outside_or_is_no_file_is_refused(tmp_path: Path, entry: Entry) -> None:
    error = refused(tmp_path, hostile(tmp_path / "code", [entry]))
    assert error.status == unpack.UNSAFE
    assert "is refused" in str(error)


@pytest.mark.parametrize(
    "entries",
    [
        [["a", 0o644, 0], ["a", 0o644, 0]],
        [["a", 0o644, 0], ["a/b", 0o644, 0]],
        [["a", -1, "b"], ["a", 0o644, 0]],
        [["a", -1, "b"], ["a/c", 0o644, 0]],
    ],
)
def test_entries_in_one_anothers_way_are_refused(tmp_path: Path, entries: list[Entry]) -> None:
    assert "twice" in str(refused(tmp_path, hostile(tmp_path / "code", entries)))


@pytest.mark.parametrize(
    "said, text",
    [
        ({"files": 2}, "more or fewer files"),
        ({"bytes": 2}, "more or fewer bytes"),
        ({"bytes": 2**40}, "larger than one may be"),
        ({"index_bytes": 2**40}, "larger than one may be"),
        ({"index_bytes": "9"}, "larger than one may be"),
        ({"chunks": [["x"]]}, "cannot be read"),
    ],
)
def test_a_snapshot_that_says_too_much_or_too_little_is_refused(
    tmp_path: Path, said: dict[str, Any], text: str
) -> None:
    assert text in str(
        refused(tmp_path, hostile(tmp_path / "code", [["m", 0o644, 1]], b"x", **said))
    )


def test_bytes_beyond_the_files_are_refused(tmp_path: Path) -> None:
    digest = hostile(tmp_path / "code", [["m", 0o644, 1]], b"xy", bytes=1)
    assert "no file's" in str(refused(tmp_path, digest))


def test_a_file_that_ends_early_is_corrupt(tmp_path: Path) -> None:
    digest = hostile(tmp_path / "code", [["m", 0o644, 5]], b"x", bytes=5)
    assert "ends before" in str(refused(tmp_path, digest))


@pytest.mark.parametrize("at", [0, 2, 10, -1])
def test_any_byte_that_changed_on_the_disk_is_noticed(tmp_path: Path, at: int) -> None:
    digest = hostile(tmp_path / "code", [["m", 0o644, 3]], b"abc")
    raw = bytearray((tmp_path / "code").read_bytes())
    raw[at] ^= 1
    (tmp_path / "code").write_bytes(raw)
    assert refused(tmp_path, digest).status == unpack.CORRUPT


def test_a_full_disk_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = hostile(tmp_path / "code", [["m", 0o644, 3]], b"abc")
    place = tmp_path / "none" / "work"
    assert unpack.main([str(tmp_path / "code"), digest, str(place)]) == unpack.BROKEN
    assert capsys.readouterr().out.count("\n") == 1
