"""A process that gives its connection up for a while, so that an image of it can be made.

The agent says when (`apart`), and in a file as what the process connects again: the process may by
then be another attempt of its job, which goes on from the image.
"""

from __future__ import annotations

import json
import os
import time

from skep_job.link.settings import Settings

LOOK_S = 0.05
APART_S_MAX = 600.0
"""Without a word in the file the process connects as what it was."""
FILE_BYTES_MAX = 4096


class Apart:
    """One such while."""

    def __init__(self, path: str, within_s: float) -> None:
        """Wait for the file `path`, at most so long (seconds)."""
        self._path = path
        self._until = time.monotonic() + min(max(within_s, 0.0), APART_S_MAX)

    def back(self, settings: Settings) -> Settings | None:
        """Return as what to connect again, or None: not yet.

        Args:
            settings: What the process was before.
        """
        told = self._read(settings)
        return settings if told is None and time.monotonic() >= self._until else told

    def _read(self, settings: Settings) -> Settings | None:
        try:
            if os.path.getsize(self._path) > FILE_BYTES_MAX:
                return None
            with open(self._path, "rb") as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
            attempt, secret, path = found["attempt"], found["secret"], found["path"]
            if isinstance(attempt, int) and isinstance(secret, str) and isinstance(path, str):
                return settings._replace(attempt=attempt, secret=secret, socket_path=path)
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
