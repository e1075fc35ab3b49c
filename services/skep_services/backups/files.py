"""Which files of a state folder a backup has: all but those of a class that is left out.

So the files of what is added to a state folder later are in it without a word here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

STORE: Final = "store"
"""The folder of a bus server's streams, below the server's own."""


class Kind(StrEnum):
    """What a file is."""

    KEPT = "kept"
    CHECKPOINT = "checkpoint"
    JOB_LOG = "job-log"
    LEFT_OUT = "left-out"


LEFT_OUT: Final = (
    "*.log",
    "*.log.*",
    "*.sock",
    "*.draft",
    "*.ports",
    "*.pid",
    "lock",
    "*/lock",
    "*.lock",
    "pids.json",
    "kept.json",
    "backup.json",
    "*/log-end",
    "*/undecided",
    "gateway/read-model.sqlite*",
    "backups/*",
    "nats/nats-server.conf",
)
"""Logs, what belongs to processes that live, how far logs were known to reach, and the gateway's
view, which is made of the streams. `undecided` is of messages that a process failed on."""
CHECKPOINTS: Final = "checkpoints/*"
NODE_SIGNS: Final = ("runner.jsonl", "runner.lock", "journal", "containers")
"""What only the folder of a node has: its processes are not in a backup, so nor is what it knows of
them."""
JOB_LOGS: Final = ("logs",)


def files(home: Path, wanted: frozenset[Kind]) -> Iterator[tuple[str, Path, int]]:
    """Yield the files of a state folder: the name below it, the path, and the permissions.

    Args:
        home: The state folder.
        wanted: Which kinds.
    """
    nodes = {entry.name for entry in os.scandir(home) if entry.is_dir() and is_node(entry.path)}
    for folder, names, found in os.walk(home):
        names.sort()
        below = os.path.relpath(folder, home)
        names[:] = [one for one in names if not _is_store(home, Path(folder, one))]
        for name in sorted(found):
            path = Path(folder, name)
            relative = name if below == "." else f"{below}/{name}"
            try:
                about = path.lstat()
            except FileNotFoundError:
                continue  # It was replaced or removed meanwhile.
            if stat.S_ISREG(about.st_mode) and kind_of(relative, nodes) in wanted:
                yield relative, path, stat.S_IMODE(about.st_mode)


def kind_of(name: str, nodes: set[str]) -> Kind:
    """Return what a file is, by its name below the state folder.

    Args:
        name: The name.
        nodes: The folders of nodes.
    """
    first, _, rest = name.partition("/")
    if first in nodes:
        of_jobs = rest.partition("/")[0] in JOB_LOGS
        return Kind.JOB_LOG if of_jobs and not name.endswith(".sock") else Kind.LEFT_OUT
    if fnmatch(name, CHECKPOINTS):
        return Kind.CHECKPOINT
    if any(fnmatch(name, pattern) for pattern in LEFT_OUT):
        return Kind.LEFT_OUT
    return Kind.KEPT


def is_node(path: str) -> bool:
    """Return whether a folder is the state folder of a node."""
    return any(os.path.exists(os.path.join(path, sign)) for sign in NODE_SIGNS)


def _is_store(home: Path, path: Path) -> bool:
    """Return whether a folder holds the streams, which are taken otherwise."""
    return path.name == STORE and path != home and (path / "jetstream").is_dir()


def account_of(home: Path) -> tuple[str, str]:
    """Return the folder of the streams, below the state folder, and the account that has them.

    Two empty texts: there is none, or more than one.
    """
    found = [
        (str(streams.parents[2].relative_to(home)), streams.parent.name)
        for streams in sorted(home.glob(f"*/{STORE}/jetstream/*/streams"))
        if any(streams.iterdir())
    ]
    return found[0] if len(found) == 1 else ("", "")
