"""Checkpoints that others have damaged or made up: each is refused in one line, and none hangs."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from skep_job.cooperate.cooperation import _read
from skep_job.shards.pieces import NotThere, copies
from skep_job.state import checkpoint_file, snapshot
from skep_job.state.checkpoint_file import Unreadable, read_header
from skep_job.state.checkpoint_folder import Checkpoints, Superseded, entries_of, file_name
from skep_job.state.piece import Piece
from skep_job.state.snapshot import Snapshot
from skep_job.state.state_tree import DTYPES

pytestmark = pytest.mark.torch


def folder(path: Path, rank: int = 0, world: int = 1, attempt: int = 1) -> Checkpoints:
    return Checkpoints(path, "j1", attempt, rank, world)


def state() -> Snapshot:
    values = {"steps": 4, "state": {"a": torch.ones(4), "b": torch.zeros(2, 3)}}
    return snapshot.take({}, values)


def stored(path: Path) -> Path:
    return folder(path).save(state(), 7)[0]


def remake(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the entries and Skep's own part of a header; its sum is right afterwards."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + size])
    ours = json.loads(entries.pop("__metadata__")["skep"])
    change(entries, ours)
    entries = {"__metadata__": {"header_crc32": "0" * 8, "skep": json.dumps(ours)}, **entries}
    text = json.dumps(entries).encode()
    text = text.replace(b"0" * 8, f"{zlib.crc32(text):08x}".encode(), 1)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "spoil, text",
    [
        (a_link, "it is a link or a socket, and only files are read: put the file itself there"),
        (a_pipe, "it is a folder, a pipe or a device, and only files are read: remove it"),
        (a_folder, "it is a folder, a pipe or a device"),
        (lambda path: path.write_bytes(b"\xff" * 8), "a header of 18446744073709551615 bytes"),
        (lambda path: path.write_bytes(b"\0\xe0\xf5\5" + b"\0" * 4), "it ends within its header"),
        (lambda path: path.write_bytes(b""), "a header of 0 bytes"),
    ],
)
def test_what_is_no_file_of_ours_is_not_read(
    tmp_path: Path, spoil: Callable[[Path], object], text: str
) -> None:
    path = stored(tmp_path)
    spoil(path)
    with pytest.raises(Unreadable, match=text):
        read_header(path)
    # It keeps nobody from storing, and goes with the older ones, or stays as it is.
    assert folder(tmp_path).save(state(), 8)[0].is_file()
    assert folder(tmp_path).save(state(), 9)[0].is_file()


PLACE = "place.state.a"


def offsets(begin: Any, end: Any) -> Callable[[Any, Any], None]:
    return lambda entries, _: entries[PLACE].update(data_offsets=[begin, end])


@pytest.mark.parametrize(
    "change, text",
    [
        (offsets(-16, 0), "offsets that are no counts"),
        (offsets(2**70, 2**70 + 16), "offsets that are no counts"),
        (offsets(0.0, 16.0), "offsets that are no counts"),
        (offsets("0", "16"), "offsets that are no counts"),
        (offsets(8, 24), "begins at 8, where 0 is expected"),
        (offsets(0, 8), "has 8 bytes, where its shape takes 16"),
        (lambda e, _: e["place.state.b"].update(data_offsets=[0, 24]), "begins at 0, where 16"),
        (lambda e, _: e[PLACE].update(shape=[2**40, 2**40]), "where its shape takes"),
        (lambda e, _: e[PLACE].update(shape=[-4]), "no counts"),
        (lambda e, _: e[PLACE].update(dtype="F7"), "of type 'F7', which is not known"),
        (lambda e, _: e.pop("place.state.b"), "name 'place.state.b', which is no tensor of it"),
        (lambda _, ours: ours["crcs"].pop(PLACE), "has no sum"),
        (lambda _, ours: ours.update(about=[1]), "not one of Skep's"),
        (lambda _, ours: ours.update(digests=[1]), "not one of Skep's"),
        (lambda _, ours: ours.update(plain=None), "it has no plain values"),
    ],
)
def test_an_index_that_cannot_be_is_refused(
    tmp_path: Path, change: Callable[[Any, Any], None], text: str
) -> None:
    path = stored(tmp_path)
    remake(path, change)
    with pytest.raises(Unreadable, match=text):
        read_header(path)


@pytest.mark.parametrize(
    "part",
    [
        [[8], [6], [4]],
        [[8], [-1], [4]],
        [[8], [0], [2]],
        [[8, 1], [0], [4]],
        [[2**60], [0], [4]],
        ["8", [0], [4]],
    ],
)
def test_a_part_that_is_not_in_its_whole_is_refused(tmp_path: Path, part: list[Any]) -> None:
    path = tmp_path / "x.safetensors"
    plain = {"tracked": {"model": {"shard": ["w", *part]}}}
    checkpoint_file.write(path, Snapshot(plain, {"w": torch.ones(4)}), {})
    with pytest.raises(Unreadable, match="w is a part that is not within its whole"):
        read_header(path)


def test_every_type_of_elements_is_read(tmp_path: Path) -> None:
    names = [*DTYPES.values()]
    tensors = {name: torch.ones(3, dtype=torch.float32).to(getattr(torch, name)) for name in names}
    path = tmp_path / "x.safetensors"
    checkpoint_file.write(path, Snapshot({}, tensors), {})
    read = checkpoint_file.read_tensors(path, read_header(path))
    assert {name: each.dtype for name, each in read.items()} == {
        name: each.dtype for name, each in tensors.items()
    }


def test_parts_that_overlap_make_up_nothing() -> None:
    def part(at: int) -> Piece:
        return Piece((8,), (at,), (4,))

    assert len(copies("w", [part(0), part(4)], Piece((8,), (0,), (8,)))) == 2
    with pytest.raises(NotThere, match="w has parts that overlap"):
        copies("w", [part(0), part(2)], Piece((8,), (0,), (8,)))


def test_no_memory_is_taken_for_bytes_that_an_older_file_has_not(tmp_path: Path) -> None:
    path = stored(tmp_path)

    def refer(entries: dict[str, Any], ours: dict[str, Any]) -> None:
        name = file_name(1, 6, 0, 1)
        ours["version"] = 4
        ours["elsewhere"] = {PLACE: ["U8", [2**50], name, 0, 2**50, "0" * 8]}
        ours["crcs"].pop(PLACE)
        entries["place.state.b"]["data_offsets"] = [0, 24]
        entries.pop(PLACE)

    remake(path, refer)
    content = path.read_bytes()
    path.write_bytes(content[:-16])
    (path.parent / file_name(1, 6, 0, 1)).write_bytes(b"x" * 100)
    with pytest.raises(Unreadable, match="are not those that were written"):
        checkpoint_file.read_tensor(path, read_header(path), PLACE)
    (path.parent / file_name(1, 6, 0, 1)).unlink()
    (path.parent / file_name(1, 6, 0, 1)).symlink_to("/dev/zero")
    with pytest.raises(Unreadable, match=r"are in a00001-.*: it is a link"):
        checkpoint_file.read_tensor(path, read_header(path), PLACE)


def test_whatever_a_file_says_it_is_passed_over(tmp_path: Path) -> None:
    path = stored(tmp_path)
    remake(path, lambda _, ours: ours.update(plain={"place": None}))
    run: Any = type("Run", (), {"tracked": {}})()
    (entry,) = entries_of(tmp_path)
    assert _read(run, folder(tmp_path), entry, None) == "KeyError: 'tracked'"


def test_names_that_no_checkpoint_has_are_left_alone(tmp_path: Path) -> None:
    for name in (
        "a00001-s000000000001-r0of999999999.safetensors",
        "a00001-s000000000001-r4of4.safetensors",
        "a00001-s000000000001-r0of0.safetensors",
        "a9999999999999999999-s000000000001-r0of1.safetensors",
        "a000001-s000000000001-r0of1.safetensors",
        "a\u0660\u0660\u0660\u0660\u0661-s000000000001-r0of1.safetensors",
    ):
        (tmp_path / name).write_bytes(b"")
    assert entries_of(tmp_path) == []
    told: list[str] = []
    (tmp_path / file_name(1, 1, 0, 999_999)).write_bytes(b"")
    assert folder(tmp_path).wholes(complain=told.append) == []
    assert "the file of rank 1 of 999999 is not there" in told[0]


@pytest.mark.parametrize("kind", ["pipe", "link", "endless"])
def test_a_fence_that_is_no_file_is_put_right(tmp_path: Path, kind: str) -> None:
    fence = tmp_path / "fence"
    if kind == "pipe":
        os.mkfifo(fence)
    elif kind == "link":
        fence.symlink_to("/dev/zero")
    else:
        fence.write_text("7" * 100_000)
    if kind == "endless":
        with pytest.raises(Superseded, match=r"attempt 7777"):
            folder(tmp_path).raise_fence()
        return
    folder(tmp_path).save(state(), 5)
    folder(tmp_path, attempt=3).raise_fence()
    assert fence.read_text() == "3\n"
    with pytest.raises(Superseded, match="attempt 3 of this job has trained"):
        folder(tmp_path, attempt=2).save(state(), 6)


def test_what_all_have_stays_while_one_rank_cannot_write(tmp_path: Path) -> None:
    one, other = folder(tmp_path, 0, 2), folder(tmp_path, 1, 2)
    for step in (5, 10):
        one.save(state(), step)
        other.save(state(), step)
    for step in (15, 20, 25):  # The file of the other rank does not fit on the disk.
        one.save(state(), step)
    assert [files[0].step for files in one.wholes()] == [10, 5]
    assert [entry.step for entry in one.steps(print)] == [25, 20, 10, 5]
    other.save(state(), 25)
    one.save(state(), 30)
    other.save(state(), 30)
    assert {entry.step for entry in entries_of(tmp_path)} == {25, 30}


def test_a_node_with_a_folder_of_its_own_keeps_two_of_each_rank(tmp_path: Path) -> None:
    ranks = [folder(tmp_path).of_part(rank, 4) for rank in (0, 1)]  # Two are on another node.
    for step in (5, 10, 15, 20):
        for each in ranks:
            each.save(state(), step)
    assert [(e.step, e.rank) for e in entries_of(tmp_path)] == [(15, 0), (15, 1), (20, 0), (20, 1)]
