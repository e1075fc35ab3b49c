"""Checks a backup as its restore would use it: all hashes, the streams made aside, their chains."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from skep.wire import subjects
from skep_services.adapters.archive import Archive
from skep_services.adapters.nats_read import read_each
from skep_services.backups.aside import bus_aside
from skep_services.backups.restoring import Told, Verified, restore_streams, verify, write_files
from skep_services.examining import Examined, examine_all
from skep_services.ports import Delivery

ARCHIVE = "archive"
"""Where the archive is in a state folder."""


class Checked(NamedTuple):
    """What a backup holds, and what its fact logs are."""

    verified: Verified
    logs: list[Examined]

    @property
    def well(self) -> bool:
        """Return whether every log is whole."""
        return not any(log.broken for log in self.logs)


async def check(
    path: Path, passphrase: str = "", told: Told = lambda _what, _part: None
) -> Checked:
    """Return what a backup holds, having restored its streams into a folder that is removed again.

    Args:
        path: The file.
        passphrase: Of an encrypted one.
        told: Is told how far it is.

    Raises:
        BackupError: It is no backup, or not a good one.
        RefusedError: A bus does not take one of its streams.
        RuntimeError: The bus server does not start.
        OSError: The file cannot be read, or there is no room.
    """
    verified = verify(path, passphrase, told)
    with tempfile.TemporaryDirectory(prefix="skep-check-") as folder:
        # Logs whose beginning was archived are checked from the archive on, if it is in the backup.
        write_files(path, Path(folder), passphrase, told, below=ARCHIVE)
        archive = Archive(Path(folder, ARCHIVE))
        async with bus_aside(Path(folder)) as bus:
            await restore_streams(bus, path, verified, passphrase=passphrase, told=told)
            logs: dict[str, list[Delivery]] = {}
            for name in verified.streams:
                if name in subjects.FACT_STREAMS:
                    whole = archive.last(name) >= verified.streams[name].first - 1
                    bus.archive = archive if whole else None
                    after = 0 if whole else verified.streams[name].first - 1
                    await read_each(bus, name, after, logs.setdefault(name, []).append)
    return Checked(verified, [log for log in examine_all(logs) if log.stream in logs])
