"""A store keeps the newest version of the server that opened it, and older ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep_services.adapters import nats_version
from skep_services.adapters.nats_version import ServerVersionError, accept, version_of


def server(folder: Path, words: str) -> Path:
    """Return a program that says these words of its version."""
    path = folder / "server"
    path.write_text(f"#!/bin/sh\necho '{words}'\n")
    path.chmod(0o755)
    return path


def test_the_newest_version_is_kept_and_only_an_older_minor_one_is_refused(tmp_path: Path) -> None:
    note = tmp_path / nats_version.NOTE
    steps = (("2.14.6", "2.14.6"), ("2.15.1", "2.15.1"), ("2.15.0", "2.15.1"), ("3.0.0", "3.0.0"))
    for run, kept in steps:
        assert nats_version.shown(accept(server(tmp_path, f"nats-server: v{run}"), tmp_path)) == run
        assert note.read_text() == f"{kept}\n"
    with pytest.raises(
        ServerVersionError, match=r"opened by nats-server 3\.0\.0.*2\.99\.9.*backup"
    ):
        accept(server(tmp_path, "nats-server: v2.99.9"), tmp_path)
    assert note.read_text() == "3.0.0\n"


def test_a_note_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    note = tmp_path / nats_version.NOTE
    note.write_bytes(b"\xff\x00 torn")
    accept(server(tmp_path, "nats-server: v2.15.1-beta.2"), tmp_path)
    assert note.read_text() == "2.15.1\n"


def test_servers_that_do_not_tell_or_are_too_old(tmp_path: Path) -> None:
    with pytest.raises(ServerVersionError, match="does not tell its version, but 'hello'"):
        version_of(server(tmp_path, "hello"))
    with pytest.raises(ServerVersionError, match="does not tell its version"):
        version_of(tmp_path / "absent")
    with pytest.raises(ServerVersionError, match=r"2\.12\.8 .* is too old: Skep needs 2\.14\.0"):
        accept(server(tmp_path, "nats-server: v2.12.8"), tmp_path)
    assert not (tmp_path / nats_version.NOTE).exists()
