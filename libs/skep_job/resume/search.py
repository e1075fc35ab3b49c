"""Looks for the checkpoints of earlier attempts in the folders of a job, and chooses one.

The newest whole one is taken, by when its last file was written. What was last written before the
job first ran is of another run, and is never taken. No link is followed.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from skep_job.resume import layouts
from skep_job.resume.layouts import Files

ENTRIES_MAX = 50_000
"""Names that are looked at in all: some seconds on slow shared storage."""
CANDIDATES_MAX = 256
DEPTH_MAX = 8
CLOCKS_APART_NS = 2_000_000_000
"""How far the clocks of a node and of the allocator may be apart."""
FRESH_NS = 5_000_000_000
"""What was written so shortly ago may still be being written: by an attempt on a node that the
cluster has lost sight of, on storage that both nodes share."""
SETTLES_S = 0.5
PASSED_MAX = 3
"""Of what is passed over, so much is said in the log."""
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})


class Place(NamedTuple):
    """A folder to look in, what people call it, and what to look for: patterns, or folders.

    `now` is where the running attempt has the same: an earlier attempt had its own folder.
    `patterns` are as `ckpt/step_*`; without any, checkpoints of known kinds below `starts`.
    """

    path: str
    label: str
    now: str
    patterns: tuple[str, ...] = ()
    starts: tuple[str, ...] = (".",)


class Found(NamedTuple):
    """A whole checkpoint: where it is, where this attempt would have it, what it is."""

    path: str
    now: str
    label: str
    kind: str
    step: int


class Outcome(NamedTuple):
    """What was found, and what was passed over: each with the reason."""

    found: Found | None
    passed: tuple[str, ...]


class _Candidate(NamedTuple):
    path: str
    place: Place
    within: str
    files: Files


class _Budget:
    """How many names may still be looked at."""

    def __init__(self) -> None:
        self.left = ENTRIES_MAX

    def spend(self, count: int) -> bool:
        self.left -= count
        return self.left >= 0


def newest(
    places: Sequence[Place],
    since_ns: int,
    uid: int,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    settle: Callable[[float], object] = time.sleep,
) -> Outcome:
    """Return the newest whole checkpoint.

    Args:
        places: Where to look.
        since_ns: When the job first ran (Unix, ns).
        uid: The user of the job.
        now_ns: The time.
        settle: Waits so many seconds.
    """
    passed: list[str] = []
    budget = _Budget()
    candidates = _candidates(places, since_ns, uid, budget)
    if budget.left < 0:
        passed.append(f"only the first {ENTRIES_MAX} names were looked at")
    for at, one in enumerate(candidates):
        judged = layouts.judge(one.path, one.files)
        trouble = judged.trouble or _unlike_earlier(one, candidates[at + 1 :])
        if not trouble and now_ns() - one.files.newest_ns < FRESH_NS:
            settle(SETTLES_S)
            if layouts.files_of(one.path, uid) != one.files:
                trouble = "it is still being written"
        if not trouble:
            here = os.path.join(one.place.now, one.within)
            found = Found(one.path, here, f"{one.within} in {one.place.label}", *judged[:2])
            return Outcome(found, tuple(passed[:PASSED_MAX]))
        passed.append(f"{one.within} in {one.place.label}: {trouble}")
    return Outcome(None, tuple(passed[:PASSED_MAX]))


def _candidates(
    places: Sequence[Place], since_ns: int, uid: int, budget: _Budget
) -> list[_Candidate]:
    """Return what may be a checkpoint of this job, the newest first."""
    found: dict[str, _Candidate] = {}
    for place in places:
        for path in _looked_up(place, budget):
            if path in found or len(found) >= CANDIDATES_MAX or os.path.islink(path):
                continue
            files = layouts.files_of(path, uid)
            if files.newest_ns >= since_ns - CLOCKS_APART_NS:
                within = os.path.relpath(path, place.path)
                found[path] = _Candidate(path, place, within, files)
    return sorted(found.values(), key=_order)


def _order(one: _Candidate) -> tuple[int, int, str]:
    """Return the place of a candidate: the newest first, by step where a clock tells no more."""
    return -one.files.newest_ns, -layouts.step_of(one.path), one.path


def _unlike_earlier(one: _Candidate, older: Sequence[_Candidate]) -> str:
    """Return that a checkpoint lacks a file that the whole one before it has; empty: it does not.

    What a library writes last is not always a file of its own: accelerate writes custom objects
    after what it is known by.
    """
    for earlier in older:
        alike = _without_numbers(earlier.path) == _without_numbers(one.path)
        if alike and not layouts.judge(earlier.path, earlier.files).trouble:
            missing = layouts.lacks(one.files, earlier.files)
            name = os.path.basename(earlier.path)
            return f"{missing} is missing, which {name} has" if missing else ""
    return ""


def _without_numbers(path: str) -> tuple[str, str]:
    folder, name = os.path.split(path)
    return folder, re.sub(r"\d+", "#", name)


def _looked_up(place: Place, budget: _Budget) -> Iterator[str]:
    if not place.patterns:
        for start in place.starts:
            yield from _known(os.path.normpath(os.path.join(place.path, start)), 0, budget)
    for pattern in place.patterns:
        yield from _matching(place.path, tuple(pattern.strip("/").split("/")), 0, budget)


def _names(path: str, budget: _Budget) -> list[os.DirEntry[str]]:
    """Return what is in a folder, no link; nothing where it cannot be read."""
    try:
        with os.scandir(path) as entries:
            found = [one for one in entries if budget.spend(1)]
            return sorted((one for one in found if not one.is_symlink()), key=lambda one: one.name)
    except OSError:
        return []


def _known(path: str, depth: int, budget: _Budget) -> Iterator[str]:
    """Yield the checkpoints of known libraries in a folder and below, themselves by their names."""
    if depth > DEPTH_MAX or os.path.islink(path):
        return
    entries = _names(path, budget)
    names = {one.name for one in entries}
    base = os.path.basename(path)
    markers = layouts.TRAINER_STATE in names and base.startswith("checkpoint")
    if markers or layouts.RANDOM_STATES in names or base.startswith("checkpoint-"):
        yield path
        return
    for one in entries:
        if one.name.endswith(".ckpt"):
            yield one.path
        elif one.is_dir(follow_symlinks=False) and not _is_skipped(one.name):
            yield from _known(one.path, depth + 1, budget)


def _is_skipped(name: str) -> bool:
    return name in SKIPPED or name.startswith(".")


def _matching(path: str, parts: tuple[str, ...], depth: int, budget: _Budget) -> Iterator[str]:
    """Yield what a pattern names below a folder; `**` stands for any number of folders."""
    if depth > DEPTH_MAX or os.path.islink(path):
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _matching(path, rest or ("*",), depth, budget)
        for one in _names(path, budget):
            if one.is_dir(follow_symlinks=False):
                yield from _matching(one.path, parts, depth + 1, budget)
        return
    for one in _names(path, budget):
        if not fnmatch.fnmatchcase(one.name, part):
            continue
        if not rest:
            yield one.path
        elif one.is_dir(follow_symlinks=False):
            yield from _matching(one.path, rest, depth + 1, budget)
