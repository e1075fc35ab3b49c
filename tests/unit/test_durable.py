"""What is written durably is synced before it gets its name, and its name before anybody relies."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from skep_services import durable
from skep_services.agent.__main__ import _identity


def test_contents_are_synced_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        done.append("folder" if is_folder else Path(f"/proc/self/fd/{descriptor}").read_text())
        sync(descriptor)

    def renamed(old: str, new: str) -> None:
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    path = tmp_path / "marker"
    durable.write(str(path), b"1")
    durable.write(str(path), b"22", 0o640)
    assert done == ["1", "name", "folder", "22", "name", "folder"]
    assert path.read_text() == "22"
    assert [entry.name for entry in tmp_path.iterdir()] == ["marker"]


def test_a_disk_without_room_is_told_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "marker"
    durable.write(str(path), b"1")

    durable.write(str(path), b"1", sync=False)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*marker'"):
        durable.write(str(path), b"22")
    assert path.read_text() == "1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["marker"]


def test_an_identity_is_for_ever_and_a_lost_one_is_replaced(tmp_path: Path) -> None:
    first = _identity(tmp_path)
    assert _identity(tmp_path) == first
    # What a power failure leaves of a file that was not synced.
    (tmp_path / "identity").write_text("")
    second = _identity(tmp_path)
    assert second not in {"", first}
    assert _identity(tmp_path) == second
