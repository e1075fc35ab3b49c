"""Keeps what torch's Flight Recorder has of a rank that stands, as a file of the job.

    FOLDER/hang-a<attempt>-r<rank>.json      beside the job's checkpoints

One file for a rank of an attempt: a later standstill takes its place. It is written by a thread of
its own, since storage that hangs may be what the rank waits for, and its reports must go on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

BYTES_MAX = 64 * 1024 * 1024
"""What torch keeps of 2000 collectives, with their stacks, is a few MiB."""


class FlightRecord:
    """The file of one rank."""

    def __init__(self, folder: str, attempt: int, rank: int) -> None:
        """Prepare; nothing is written before `keep`.

        Args:
            folder: Where the job's checkpoints are; empty: nothing is kept.
            attempt: The job's attempt.
            rank: The rank of this process.
        """
        self._folder = folder
        self._name = f"hang-a{attempt:05}-r{rank}.json"
        self._thread: threading.Thread | None = None
        self._open = True  # This standstill has not been kept.
        self.path = ""
        """The file, once it is written."""

    def keep(self, text: str) -> None:
        """Write what the recorder has, once in a standstill. Never raises, never waits.

        Args:
            text: JSON; what is empty or has more than BYTES_MAX is not kept.
        """
        if not self._open or not self._folder or not 0 < len(text) <= BYTES_MAX:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._open = False
        self._thread = threading.Thread(
            target=self._write, args=(text,), name="skep-flight-record", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # No more threads can be had.
            self._thread.start()

    def over(self) -> None:
        """Take it that mini-batches are made again: the next standstill is another one."""
        self._open = True

    def wait(self) -> None:
        """Return once what is being written is."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, text: str) -> None:
        path = Path(self._folder).absolute() / self._name
        part = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text)
            part.replace(path)
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                part.unlink(missing_ok=True)
            return
        self.path = str(path)
