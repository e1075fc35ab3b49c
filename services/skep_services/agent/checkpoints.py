"""The folders in which jobs keep durable checkpoints: where they are, and when they go.

    STATE/checkpoints/<job>/       unless SKEP_CHECKPOINTS_DIR names another place for `<job>`

What is in them is the job's own (`skep_job`). A later attempt finds the newest complete checkpoint
there, so a folder outlives the attempt. It goes with the job's success where one node has all of
it; else once nothing was written for KEEP_SECONDS, as an agent does not hear of a job's end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from skep.ids import job_sequence
from skep_services.service import ConfigurationError

log = logging.getLogger(__name__)

VARIABLE = "SKEP_CHECKPOINTS_DIR"
KEEP_SECONDS = 7 * 24 * 3600.0
"""A job that waits this long for its next attempt begins anew: disks are not for ever."""

MODE = 0o700


def checkpoints_dir(environment: Mapping[str, str]) -> Path | None:
    """Return the folder an operator named, None if none is.

    Args:
        environment: The agent's environment.

    Raises:
        ConfigurationError: What is named is no folder by its full path, or cannot be written to.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute() or not path.is_dir() or not os.access(path, os.W_OK):
        message = f"{VARIABLE} is {text!r}: it must be a folder, by its full path, that is writable"
        raise ConfigurationError(message)
    return path


class Checkpoints:
    """The folders of one node's jobs."""

    def __init__(self, state: Path, environment: Mapping[str, str]) -> None:
        """Use the folder an operator named in `environment`, else one in `state`."""
        named = environment.get(VARIABLE, "")
        self._shared = bool(named)
        self._root = Path(named) if named else state / "checkpoints"
        self._whole: dict[str, None] = {}

    def path(self, job: str) -> Path:
        """Return the folder of a job."""
        return self._root / job

    def provide(
        self, job: str, *, whole: bool = False, make: bool = True, fresh: bool = False
    ) -> None:
        """Make the folder of a job.

        Args:
            job: The job's id.
            whole: All of the job runs on this node: its success then removes the folder.
            make: It is not a launcher that makes it.
            fresh: What is in it is of another job, which had the id before a restore.

        Raises:
            OSError: The folder cannot be made.
        """
        if fresh and make and not self._shared:
            _remove(self.path(job))
        if make:
            self.path(job).mkdir(mode=MODE, parents=True, exist_ok=True)
        if whole:
            self._whole[job] = None

    def succeeded(self, job: str) -> None:
        """Remove the folder of a job that needs no other attempt, if its end is known here."""
        if self.forget(job):
            _remove(self.path(job))

    def forget(self, job: str) -> bool:
        """Return whether the folder of a job that succeeded is to be removed."""
        return self._whole.pop(job, False) is None

    def sweep(self, lives: Callable[[str], bool]) -> list[str]:
        """Remove what was not written to for long.

        Not from a folder that other nodes use: a job may run there.

        Args:
            lives: Says whether a job has processes here; its folder stays.

        Returns:
            The ids of the jobs whose folders are removed.
        """
        if self._shared or not self._root.is_dir():
            return []
        gone = []
        for entry in sorted(self._root.iterdir()):
            ours = job_sequence(entry.name) is not None and not lives(entry.name)
            if ours and time.time() - _latest(entry) > KEEP_SECONDS:
                _remove(entry)
                log.info("checkpoints of %s are removed: none was written for long", entry.name)
                gone.append(entry.name)
        return gone


def _remove(folder: Path) -> None:
    """Remove a folder as far as that is allowed; a job may nest folders too deep for `shutil`."""
    subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def _latest(folder: Path) -> float:
    """Return when something in a folder was last written, or the folder itself."""
    times = [folder.lstat().st_mtime]
    with contextlib.suppress(OSError):  # The job may have closed it.
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # A job on this node is at work after all.
                times.append(entry.lstat().st_mtime)
    return max(times)
