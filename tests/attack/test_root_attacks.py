"""What a taken-over account of a server or a node would have root do, the next time root comes.

The account has the state folder and puts links into it; then an administrator uses `skep` as root.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_services import durable
from skep_services.servers import install

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters]

ACCOUNT = "nobody"


class Taken:
    """A state folder whose account was taken over; `outside` is root's own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.outside = folder / "home", folder / "outside"
        self.uid = pwd.getpwnam(ACCOUNT).pw_uid
        for place in (self.home, self.outside):
            place.mkdir()
        os.chown(self.home, self.uid, -1)
        self.shadow = self.outside / "own.pem"
        self.shadow.write_text("root's")

    def link(self, name: str, target: Path) -> None:
        """Put a link into the folder, as the account."""
        (self.home / name).symlink_to(target)
        os.chown(self.home / name, self.uid, -1, follow_symlinks=False)

    def check(self) -> None:
        """Assert that nothing of root's was touched."""
        assert self.shadow.read_text() == "root's"
        found = [self.outside, *self.outside.iterdir()]
        assert found == [self.outside, self.shadow]
        assert [each.stat().st_uid for each in found] == [0, 0]


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Taken]:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    one = Taken(tmp_path)
    yield one
    one.check()


@pytest.mark.parametrize("command", ["server ports", "node renew"])
def test_a_link_to_a_folder_of_roots(taken: Taken, command: str) -> None:
    """Root gave all that it saw of itself in the folder to the account, behind links as well."""
    taken.link("tls", taken.outside)
    (taken.home / "node.json").write_bytes(
        b'{"cluster":"c","name":"n","address":"a","bus":"tls://127.0.0.1:1",'
        b'"gateways":"https://127.0.0.1:1"}'
    )
    words = [sys.executable, "-m", "skep_services", *command.split(), "--home", str(taken.home)]
    subprocess.run(words, check=False, capture_output=True, timeout=60)


def test_a_folder_that_becomes_a_link_while_it_is_given_away(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    (taken.home / "tls").mkdir()
    (taken.home / "tls" / "own.pem").touch()
    give = os.chown

    def swapped(path: str, uid: int, gid: int, **more: object) -> None:
        if os.path.basename(path) == "own.pem" and not (taken.home / "before").exists():
            (taken.home / "tls").rename(taken.home / "before")
            (taken.home / "tls").symlink_to(taken.outside)
        give(path, uid, gid, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "chown", swapped)
    install.own(str(taken.home), ACCOUNT)
    assert (taken.home / "before" / "own.pem").stat().st_uid == taken.uid


def test_a_link_where_a_file_is_drafted(taken: Taken) -> None:
    """`skep node install` writes `node.json` as root, by way of a name that can be guessed."""
    path = taken.home / "node.json"
    taken.link(f"node.json.{os.getpid()}.draft", taken.shadow)
    durable.write(str(path), b"{}")
    assert path.read_bytes() == b"{}"
    assert not path.is_symlink()
