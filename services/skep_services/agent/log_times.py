"""When what was written to jobs' logs: so that a reader may ask for the last ten minutes.

Processes write to their logs themselves, and no line says when it was written. So the agent looks
now and then how large each log is, and keeps what it saw: an instant and a size, 16 bytes, where
the size has changed. What was written since an instant begins at the size that was seen last before
it, which is a few seconds too early at most, and never too late.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from skep.units import NS_PER_SECOND
from skep_services.agent.environment import log_path
from skep_services.agent.runner_log import LOG_TAIL_BYTES

LOOK_EVERY_S = 2.0
"""How exact it is to know when a line was written."""
PRUNE_EVERY = 1_800
"""Looks between two removals of what belongs to logs that are gone: an hour."""
SEEN = struct.Struct("<QQ")
"""Wall-clock nanoseconds, and bytes."""
SEEN_MAX = 65_536
"""Sizes kept of one log (1 MiB): when there are more, every second one is dropped."""
NOTE_BYTES = 4096
"""More than the note that stands where a log was cut."""


class LogTimes:
    """The sizes of logs over time.

    Args:
        logs: The state folder that has the logs.
        folder: Where what was seen is kept.
    """

    def __init__(self, logs: Path, folder: Path) -> None:
        self._logs, self._folder = logs, folder
        self._sizes: dict[Path, int] = {}

    async def watch(self, living: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """Look at the logs of living attempts now and then, until cancelled.

        Args:
            living: Returns the jobs and attempts that have processes here.
        """
        looks = 0
        while True:
            attempts = list(living())
            await asyncio.to_thread(self.look, attempts, time.time_ns())
            if looks % PRUNE_EVERY == 0:
                await asyncio.to_thread(self.prune)
            looks += 1
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, attempts: Iterable[tuple[str, int]], now_ns: int) -> None:
        """Keep how large the logs of attempts are."""
        sizes: dict[Path, int] = {}
        for job, attempt in attempts:
            folder = log_path(self._logs, job, attempt, 0).parent
            for name, size in _sizes(folder):
                path = self._folder / job / str(attempt) / name
                sizes[path] = size
                if (known := self._sizes.get(path)) != size:
                    cut = known is not None and size < known
                    begin = max(0, size - LOG_TAIL_BYTES - NOTE_BYTES) if cut else size
                    _append(path, now_ns, begin)
        self._sizes = sizes

    def begin(self, job: str, attempt: int, rank: int, since_ns: int) -> int:
        """Return where in a rank's log begins what was written since an instant (bytes).

        Args:
            job: The job's id.
            attempt: The number of its attempt.
            rank: The rank.
            since_ns: The instant, by this machine's wall clock.
        """
        path = log_path(self._logs, job, attempt, rank)
        try:
            found = path.lstat()
        except OSError:
            return 0
        if found.st_mtime_ns <= since_ns:
            return found.st_size
        seen = _seen(self._folder / job / str(attempt) / path.name)
        place = bisect_right(seen, since_ns, key=lambda one: one[0])
        begin = seen[place - 1][1] if place else 0
        # Where the log was cut since, what is left of that time stands further forward.
        after = [(since_ns, begin), *seen[place:]]
        cuts = [later for (_, size), (_, later) in pairwise(after) if later < size]
        return min([begin, found.st_size, *cuts])

    def prune(self) -> None:
        """Remove what belongs to logs that are gone."""
        for job in _folders(self._folder):
            for attempt in _folders(job):
                if not (self._logs / "logs" / job.name / attempt.name).is_dir():
                    shutil.rmtree(attempt, ignore_errors=True)
            if not _folders(job):
                shutil.rmtree(job, ignore_errors=True)


def _sizes(folder: Path) -> list[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            return [
                (one.name, one.stat(follow_symlinks=False).st_size)
                for one in entries
                if one.name.startswith("rank") and one.is_file(follow_symlinks=False)
            ]
    except OSError:
        return []


def _append(path: Path, at_ns: int, size: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(SEEN.pack(at_ns, size))
            full = file.tell() >= SEEN_MAX * SEEN.size
        if full:
            kept = b"".join(SEEN.pack(*one) for one in _seen(path)[1::2])
            fresh = path.with_suffix(".new")
            fresh.write_bytes(kept)
            fresh.replace(path)
    except OSError:
        pass  # A full disk costs exactness: what is asked for begins earlier.


def _seen(path: Path) -> list[tuple[int, int]]:
    try:
        raw = path.read_bytes()
    except OSError:
        return []
    whole = len(raw) - len(raw) % SEEN.size
    return [(at_ns, size) for at_ns, size in SEEN.iter_unpack(raw[:whole])]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def since(ago_s: int) -> int:
    """Return the instant that was some seconds ago (wall-clock ns)."""
    return time.time_ns() - ago_s * NS_PER_SECOND
