"""The file of a backup: whatever is wrong with it, one line says what."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import pytest

from skep_services.backups import restoring
from skep_services.backups.container import FRAME_BYTES_MAX, BackupError, Reader, Writer
from skep_services.backups.files import Kind, files, kind_of
from skep_services.backups.restoring import verify

SEED = 7
SECRET = "correct horse"


def entries() -> dict[str, bytes]:
    rng = random.Random(SEED)
    return {
        "about.json": b"{}",
        "files/empty": b"",
        "streams/ALLOC": rng.randbytes(2 * FRAME_BYTES_MAX + 17),
        "files/cluster.json": b"{'secret': 1}",
    }


def written(path: Path, passphrase: str = "") -> Path:
    writer = Writer(path, passphrase)
    for name, data in entries().items():
        writer.add(name, data, mode=0o600)
    writer.close()
    return path


def read(path: Path, passphrase: str = "") -> dict[str, bytes]:
    reader = Reader(path, passphrase)
    try:
        return {entry.name: b"".join(data) for entry, data in reader.entries()}
    finally:
        reader.close()


def refusal(path: Path, passphrase: str = "") -> str:
    """Return the code of the refusal; its text is one line and names the file."""
    with pytest.raises(BackupError) as told:
        read(path, passphrase)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    return told.value.reason


@pytest.mark.parametrize("passphrase", ["", SECRET])
def test_what_is_written_is_read(tmp_path: Path, passphrase: str) -> None:
    path = written(tmp_path / "one.backup", passphrase)
    assert read(path, passphrase) == entries()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert (b"secret" in path.read_bytes()) == (not passphrase)


@pytest.mark.parametrize("passphrase", ["", SECRET])
def test_a_change_anywhere_is_refused(tmp_path: Path, passphrase: str) -> None:
    path = written(tmp_path / "one.backup", passphrase)
    whole = path.read_bytes()
    rng = random.Random(SEED)
    places = [*range(len(whole) - 40, len(whole)), *rng.sample(range(len(whole)), 10)]
    for place in places if not passphrase else rng.sample(places, 8):
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        assert refusal(path, passphrase), (SEED, place)


@pytest.mark.parametrize("passphrase", ["", SECRET])
def test_a_file_cut_short_is_refused(tmp_path: Path, passphrase: str) -> None:
    path = written(tmp_path / "one.backup", passphrase)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    rng = random.Random(SEED)
    for size in [first, len(whole) - 1, *rng.sample(range(first, len(whole)), 5)]:
        path.write_bytes(whole[:size])
        assert refusal(path, passphrase) == "backup-cut-short", (SEED, size)


def test_something_behind_the_end_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "one.backup")
    path.write_bytes(path.read_bytes() + b"x")
    assert refusal(path) == "backup-damaged"


def test_a_frame_cannot_be_left_out_of_an_encrypted_file(tmp_path: Path) -> None:
    path = written(tmp_path / "one.backup", SECRET)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    length = 4 + int.from_bytes(whole[first : first + 4], "big")
    path.write_bytes(whole[:first] + whole[first + length :])
    assert refusal(path, SECRET) == "wrong-passphrase"


def test_each_trouble_has_its_code(tmp_path: Path) -> None:
    path = written(tmp_path / "one.backup", SECRET)
    assert refusal(path, "wrong") == "wrong-passphrase"
    assert refusal(path) == "needs-passphrase"
    path.write_bytes(path.read_bytes().replace(b'"skep-backup":1', b'"skep-backup":9', 1))
    assert refusal(path, SECRET) == "backup-newer"
    path.write_bytes(b'{"jobs": []}\n')
    assert refusal(path) == "no-backup"
    path.write_bytes(b"")
    assert refusal(path) == "no-backup"


def test_a_backup_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "one.backup")
    before = path.read_bytes()
    writer = Writer(path)
    writer.add("about.json", b"{}")
    writer.drop()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("cluster.json", Kind.KEPT),
        ("gateway/tokens.json", Kind.KEPT),
        ("pki/authority.key", Kind.KEPT),
        ("models/a.safetensors", Kind.KEPT),
        ("archive/ALLOC/ALLOC-1.jsonl.gz", Kind.KEPT),
        ("gateway/read-model.sqlite-wal", Kind.LEFT_OUT),
        ("allocator/service.log", Kind.LEFT_OUT),
        ("allocator/log-end", Kind.LEFT_OUT),
        ("lock", Kind.LEFT_OUT),
        ("node-1/journal/1", Kind.LEFT_OUT),
        ("node-1/logs/j1/1/rank0.log", Kind.JOB_LOG),
        ("checkpoints/j1/1/rank0.safetensors", Kind.CHECKPOINT),
    ],
)
def test_files_are_of_a_kind(name: str, kind: Kind) -> None:
    assert kind_of(name, {"node-1"}) is kind


def test_the_streams_of_a_bus_server_are_no_files(tmp_path: Path) -> None:
    for name in ("nats/store/jetstream/SKEP/streams/ALLOC/msgs/1.blk", "nats/streams.json", "a/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert [name for name, _, _ in files(tmp_path, frozenset(Kind))] == ["a/b", "nats/streams.json"]


@pytest.mark.parametrize(
    "about, name, mode",
    [
        ({"store": "/etc/nats/store"}, "files/a", 0o600),
        ({"store": "../other/store"}, "files/a", 0o600),
        ({}, "files/../a", 0o600),
        ({}, "files//etc/a", 0o600),
        ({}, "files/a\0b", 0o600),
        ({}, "elsewhere/a", 0o600),
        ({}, "files/a", "rw"),
    ],
)
def test_nothing_of_a_backup_lies_outside(
    tmp_path: Path, about: dict[str, str], name: str, mode: object
) -> None:
    path = tmp_path / "one.backup"
    writer = Writer(path)
    told = {"skep": "1", "made_at": 1, "home": "/x", **about}
    writer.add("about.json", json.dumps(told).encode())
    writer.add("cuts.json", b"{}")
    writer.add(name, b"x", mode=mode)
    writer.close()
    with pytest.raises(BackupError) as found:
        verify(path)
    assert found.value.reason == "backup-damaged"


def test_what_should_be_small_and_is_not_is_not_kept_in_memory() -> None:
    tracemalloc.start()
    try:
        assert restoring._whole(iter([b"x" * (1 << 20)] * 64)) == b""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
