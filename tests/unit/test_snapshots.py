"""Snapshots of folders: what is in them, what is read again, and what is refused."""

import os
import subprocess
from pathlib import Path

import pytest

from skep.units import MIB
from skep.wire import snapshot as wire
from skep_services.cli import ignoring, snapshots
from skep_services.cli.exits import CommandError
from skep_services.cli.snapshots import Taken, take


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def write(folder: Path, path: str, content: bytes = b"x") -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


def taken(folder: Path) -> Taken:
    return take(str(folder), str(folder.parent / "cache.json"))


def refusal(folder: Path) -> str:
    with pytest.raises(CommandError) as raised:
        taken(folder)
    return raised.value.text


def contents(one: Taken) -> bytes:
    return b"".join(one.chunk(chunk.digest) for chunk in one.snapshot.chunks)


def test_equal_folders_have_equal_digests_and_the_chunks_are_index_and_contents(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, "m.py", b"print()")
        write(tmp_path / name, "big", b"\0" * (2 * wire.CHUNK_BYTES_MAX + 5))
        (tmp_path / name / "empty").mkdir()
    first, second = (take(str(tmp_path / name), "") for name in ("a", "b"))
    assert first.digest == second.digest == wire.digest_of(first.raw)
    assert wire.decode(first.raw) == first.snapshot
    assert contents(first)[first.snapshot.index_bytes :] == (
        b"\0" * (2 * wire.CHUNK_BYTES_MAX + 5) + b"print()"
    )


def test_what_changed_a_moment_ago_is_read_again(folder: Path) -> None:
    """It might change once more within the tick of its file system's clock."""
    write(folder, "m.py")
    assert [taken(folder).bytes_read for _ in range(2)] == [1, 1]


def test_a_settled_file_is_known_by_its_state_and_a_changed_one_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "UNSETTLED_NS", -(10**12))
    large = [write(folder, f"{n}.bin", bytes([n]) * (200 * 1024)) for n in range(4)]
    first = taken(folder)
    assert taken(folder).bytes_read == 0
    large[2].write_bytes(b"y" * (200 * 1024))
    second = taken(folder)
    assert second.bytes_read == 200 * 1024
    before = {chunk.digest for chunk in first.snapshot.chunks}
    assert sum(chunk.digest not in before for chunk in second.snapshot.chunks) == 1


def test_a_new_small_file_changes_the_chunks_around_it_alone(folder: Path) -> None:
    for n in range(3000):
        write(folder, f"f{n:04}", b"%d" % n * 100)
    first = take(str(folder), "")
    write(folder, "f1500x", b"new")
    second = take(str(folder), "")
    before = {chunk.digest for chunk in first.snapshot.chunks}
    new = [chunk for chunk in second.snapshot.chunks if chunk.digest not in before]
    assert len(second.snapshot.chunks) > 20
    assert len(new) <= 3  # One or two of files, and one of the index.


def test_a_file_that_changes_before_it_is_sent_is_refused(folder: Path) -> None:
    place = write(folder, "m.py", b"one")
    one = taken(folder)
    place.write_bytes(b"two")
    with pytest.raises(CommandError, match="changed while the snapshot was taken"):
        contents(one)


def test_what_is_too_large_names_the_largest_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "BYTES_MAX", 3 * MIB)
    write(folder, "data/train.bin", b"\0" * (3 * MIB))
    write(folder, "m.py", b"\0" * MIB)
    text = refusal(folder)
    assert "has 4 MiB, and a snapshot at most 3 MiB" in text
    assert "data/train.bin (3 MiB), m.py (1 MiB)" in text
    assert ".skepignore" in text
    assert "\n" not in text


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "a/../../outside", "l/.."])
def test_a_link_out_of_the_folder_is_refused(folder: Path, target: str) -> None:
    (folder / "link").symlink_to(target)
    assert "is a link out of the folder" in refusal(folder)


def test_links_inside_travel_and_sockets_do_not(folder: Path) -> None:
    write(folder, "a/m.py")
    (folder / "a" / "link").symlink_to("../b")
    os.mkfifo(folder / "pipe")
    one = taken(folder)
    assert one.paths == {"a/m.py", "a/link"}
    assert one.skipped == 1


def test_what_is_no_folder_or_has_a_bad_name_is_refused(folder: Path) -> None:
    with pytest.raises(CommandError, match="is no folder"):
        take(str(folder / "none"), "")
    (folder / os.fsdecode(b"bad\xff")).write_bytes(b"")
    assert "is no UTF-8" in refusal(folder)


def test_a_broken_cache_is_passed_over(folder: Path) -> None:
    write(folder, "m.py")
    (folder.parent / "cache.json").write_text('{"x": 1')
    assert taken(folder).bytes_read == 1


PATTERNS = """
# a comment
*.log
!keep.log
/top
build/
a/**/z
**/deep
docs/*.txt
[ab]x
[!c]y
\\#name
trailing\\\040
x?z
!/build/sub
"""
PATHS = [
    "m.log",
    "keep.log",
    "sub/keep.log",
    "sub/m.log",
    "top",
    "sub/top",
    "build/x",
    "build/sub/y",
    "sub/build/z",
    "a/z",
    "a/b/z",
    "a/b/c/z",
    "q/deep/x",
    "deep",
    "docs/a.txt",
    "docs/s/a.txt",
    "ax",
    "sub/bx",
    "cx",
    "dy",
    "cy",
    "xaz",
    "x/z",
    "#name",
    "trailing ",
]


def test_rules_leave_out_what_git_would(folder: Path) -> None:
    """Every path is judged as `git check-ignore` judges it."""
    (folder / ".gitignore").write_text(PATTERNS)
    (folder / ignoring.FILE).write_text(PATTERNS)
    for path in PATHS:
        write(folder, path)
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    said = subprocess.run(
        [*git, "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(PATHS).encode(),
        capture_output=True,
        check=False,
    )
    ignored = {each.decode() for each in said.stdout.split(b"\0") if each}
    assert set(PATHS) - ignored == set(taken(folder).paths) & set(PATHS)
    assert 8 < len(ignored) < len(PATHS) - 4


def test_the_usual_folders_stay_here_unless_a_rule_takes_them_in(folder: Path) -> None:
    for path in (".git/config", "__pycache__/m.pyc", ".venv/bin/python", "m.py"):
        write(folder, path)
    assert taken(folder).paths == {"m.py"}
    (folder / ignoring.FILE).write_text("!.venv\n")
    assert ".venv/bin/python" in taken(folder).paths


def test_a_rule_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / ignoring.FILE).write_text("ok\n[z-a]\n")
    assert "line 2 is no pattern of gitignore" in refusal(folder)
