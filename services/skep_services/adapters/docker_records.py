"""What a node remembers of its containers: one small file each, written before the container is.

    STATE/containers/owner          the name of this state folder, in every container's labels
    STATE/containers/TOKEN.run      one JSON object, replaced whole: `Kept`
    STATE/containers/TOKEN.said     written once, from inside: what became of the command

A container sees its own `said`, and no other file of these. It can write what it wants there, but
not put something else in its place.

`said` is written only if it is empty and before the command is executed, so that a command never
runs twice, and one that ran is known to have run after its container is gone. The files are not
synced: the page cache survives the agent, and what kills the page cache kills the containers.
"""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import msgspec

from skep.units import Instant
from skep_services.adapters.docker_entry import EXECUTED

TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""What can be part of a container's name, and of a file's."""

FOLDER_MODE, SAID_MODE = 0o700, 0o600

SAID_BYTES_MAX = 4096
"""What is read of `said`: its first line counts, whatever the command adds."""


class End(msgspec.Struct, frozen=True):
    """How a container ended, see `RunExited`."""

    code: int | None
    at: Instant
    asked: bool


class Kept(msgspec.Struct, kw_only=True):
    """One container. Times are wall-clock ns, 0 for what has not happened.

    `boot`: in which boot of the machine it began. `started_at` is 0 until its start was told,
    `pid`, `ticks` and `uid` as in `RunStarted`.
    """

    token: str
    boot: str
    log: str
    log_bytes_max: int
    began_at: Instant
    pid: int = 0
    ticks: int = 0
    started_at: Instant = Instant(0)
    asked_at: Instant = Instant(0)
    frozen: bool = False
    end: End | None = None
    uid: int = -1
    signalled: int = 0
    """The order of the latest signal that it was given; 0: of none."""


_DECODER = msgspec.json.Decoder(Kept)


class Records:
    """The files of the node whose state folder is `state`. Raises OSError as the files do."""

    def __init__(self, state: Path) -> None:
        """Read nothing yet."""
        self.folder = state / "containers"

    def open(self) -> str:
        """Create what is missing; return the name of this state folder."""
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        path = self.folder / "owner"
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            _replace(path, uuid.uuid4().hex.encode())
        return path.read_text(encoding="ascii").strip()

    def every(self) -> list[Kept]:
        """Return what is remembered, in the order it began."""
        names = sorted(os.listdir(self.folder)) if self.folder.exists() else []
        tokens = [name.removesuffix(".run") for name in names if name.endswith(".run")]
        found = [kept for token in tokens if (kept := self.read(token)) is not None]
        return sorted(found, key=lambda kept: kept.began_at)

    def read(self, token: str) -> Kept | None:
        """Return what is remembered of a container; a file that says nothing is as none."""
        try:
            return _DECODER.decode((self.folder / f"{token}.run").read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write(self, kept: Kept) -> None:
        """Remember a container as it is now."""
        _replace(self.folder / f"{kept.token}.run", msgspec.json.encode(kept))

    def drop(self, token: str) -> None:
        """Forget a container."""
        (self.folder / f"{token}.run").unlink(missing_ok=True)
        self._said_path(token).unlink(missing_ok=True)

    def provide(self, token: str, *, shared: bool = False) -> Path:
        """Make the empty file in which a container says what becomes of its command.

        Args:
            token: The run.
            shared: The container is of another account; the folder above keeps all others out.
        """
        path = self._said_path(token)
        path.touch(SAID_MODE)
        if shared:
            path.chmod(0o666)
        return path

    def _said_path(self, token: str) -> Path:
        return self.folder / f"{token}.said"

    def said(self, token: str) -> str:
        """Return what a container said of its command, empty before it did."""
        try:
            with self._said_path(token).open("rb") as file:
                head = file.read(SAID_BYTES_MAX)
        except FileNotFoundError:
            return ""
        line, end, _ = head.partition(b"\n")
        whole = end or len(head) == SAID_BYTES_MAX
        return line.decode("utf-8", "replace").strip() if whole else ""

    def executed(self, kept: Kept) -> bool:
        """Return whether the command may have run."""
        return kept.started_at > 0 or self.said(kept.token) == EXECUTED


def has_containers(state: Path) -> bool:
    """Return whether a container of this state folder has begun and is not known to have ended."""
    return any(kept.end is None for kept in Records(state).every())


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".tmp")
    aside.write_bytes(content)
    aside.replace(path)
