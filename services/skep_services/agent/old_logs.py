"""Removes the logs of attempts that ended long ago, where that is asked for."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skep.units import NS_PER_SECOND
from skep_services.service import ConfigurationError

DAYS_MAX = 36_500
DAY_NS = 86_400 * NS_PER_SECOND
LOOK_EVERY_S = 3600.0


def days_kept(environment: Mapping[str, str]) -> int:
    """Return for how many days logs are kept, as SKEP_JOB_LOG_DAYS says; 0: for ever.

    Raises:
        ConfigurationError: It is no number of days.
    """
    text = environment.get("SKEP_JOB_LOG_DAYS", "") or "0"
    if text.isascii() and text.isdecimal() and int(text) <= DAYS_MAX:
        return int(text)
    message = f"SKEP_JOB_LOG_DAYS is {text!r}: it must be a number of days (0: for ever)"
    raise ConfigurationError(message)


async def watch(state: Path, days: int, lives: Callable[[str, int], bool], log: Any) -> None:
    """Remove old logs now and then, until cancelled; returns at once if they are kept for ever.

    Args:
        state: The node's state folder.
        days: For how many days they are kept.
        lives: Whether an attempt has a process here.
        log: Told how many were removed.
    """
    while days:
        before = time.time_ns() - days * DAY_NS
        removed = 0
        for job, attempt, path in await asyncio.to_thread(old, state / "logs", before):
            if not lives(job, attempt):
                await asyncio.to_thread(remove, path)
                removed += 1
        if removed:
            log.info("old logs of jobs removed", attempts=removed, days=days)
        await asyncio.sleep(LOOK_EVERY_S)


def old(folder: Path, before: int) -> list[tuple[str, int, Path]]:
    """Return the attempts in whose folders nothing was written since an instant (wall-clock ns)."""
    return [
        (job.name, int(attempt.name), attempt)
        for job in _folders(folder)
        for attempt in _folders(job)
        if attempt.name.isascii() and attempt.name.isdecimal() and _latest(attempt) < before
    ]


def remove(path: Path) -> None:
    """Remove the folder of an attempt, and that of its job if nothing else is in it."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.parent.rmdir()
    except OSError:
        pass  # Another attempt has its logs there.


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _latest(folder: Path) -> int:
    latest = 0
    try:
        latest = folder.lstat().st_mtime_ns
        with os.scandir(folder) as entries:
            for one in entries:
                latest = max(latest, one.stat(follow_symlinks=False).st_mtime_ns)
    except OSError:
        pass  # It is being removed.
    return latest
