"""The folder in one node's memory that has copies of a job's state, as one attempt uses it.

    a00003-s000000001200-r0of4.safetensors  of a rank of this node, or of one of another node
    *.part                                  being written

Files have the form and the names of checkpoints. The folder is on tmpfs and outlives the job's
processes; the agent makes it, names its bound, and removes it. Every file is reserved before it is
written, so that a full memory is an error and no signal; the folder and the one above it, which is
that of all jobs on the node, are locked meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skep_job.state import checkpoint_file
from skep_job.state.checkpoint_folder import Entry, Superseded, entries_of, file_name
from skep_job.state.snapshot import Snapshot

MODE = 0o600
HEADER_SLACK = 1024 * 1024
"""Bytes reserved for a header beside 256 for each tensor."""
KEPT_FREE = 8
"""One part in so many of the memory that is available stays free."""
LOCK_S = 5.0
"""Seconds to wait for the lock while no memory is taken or given back: the process that has it is
frozen, or never gives it back. Else it may take a second for each GB."""
LOCK_MOST_S = 120.0
"""Seconds to wait for the lock at all."""
LOCK_AGAIN_S = 0.02
"""Seconds between two tries: a wait in the kernel has no deadline."""


class Key(NamedTuple):
    """One boundary of one attempt: its files belong together."""

    attempt: int
    step: int
    world: int

    def __str__(self) -> str:
        """Return how messages name it."""
        return f"the state in memory after mini-batch {self.step} of attempt {self.attempt}"


def key_of(entry: Entry) -> Key:
    """Return the boundary that a file is of."""
    return Key(entry.attempt, entry.step, entry.world)


class Memory:
    """The folder. All methods may be called on any thread."""

    def __init__(
        self,
        folder: Path,
        job: str,
        attempt: int,
        limit: int,
        free: Callable[[], int] | None = None,
    ) -> None:
        """Make the folder if it is not there.

        Args:
            folder: The folder.
            job: The job's id.
            attempt: The attempt that writes.
            limit: Bytes that all files in this folder and those beside it may have: of all jobs on
                the node, where they can be seen.
            free: Returns the bytes of memory that are available; None: asks the kernel.

        Raises:
            OSError: The folder cannot be made, is another account's, or is where others can put
                another in its place.
        """
        _require_own(folder.parent, {os.geteuid(), 0})  # Root's in a container.
        folder.mkdir(mode=0o700, exist_ok=True)
        _require_own(folder, {os.geteuid()})
        self.folder, self.limit = folder, limit
        self._job, self._attempt = job, attempt
        self._free = free or available

    def identity(self) -> tuple[int, int]:
        """Return numbers that tell this folder from those of other nodes of the same kernel."""
        found = self.folder.stat()
        return found.st_dev, found.st_ino

    def entries(self) -> list[Entry]:
        """Return the files by their names. Raises OSError if they cannot be listed."""
        return entries_of(self.folder)

    def path(self, key: Key, rank: int) -> Path:
        """Return where a rank's file is."""
        return self.folder / file_name(key.attempt, key.step, rank, key.world)

    def store(self, snapshot: Snapshot, key: Key, rank: int) -> tuple[Path, int]:
        """Write this rank's file; return its path and bytes.

        Args:
            snapshot: The state, which nothing changes meanwhile.
            key: The boundary.
            rank: This rank.

        Raises:
            Superseded: A later attempt has written here.
            OSError: There is no room, or another process keeps the lock.
        """
        most = snapshot.bytes + HEADER_SLACK + 256 * len(snapshot.tensors)
        most += checkpoint_file.plain_bytes(snapshot)
        about = {
            "job": self._job,
            "attempt": key.attempt,
            "rank": rank,
            "world": key.world,
            "step": key.step,
        }

        def write(path: Path) -> None:
            with open(path, "r+b", buffering=0) as file:
                file.truncate(checkpoint_file.write_to(file, snapshot, about))

        return self.take_in(key, rank, most, write)

    def take_in(
        self, key: Key, rank: int, size: int, write: Callable[[Path], Any]
    ) -> tuple[Path, int]:
        """Have a file written that has its name only once it is whole; return path and bytes.

        Args:
            key: The boundary.
            rank: The rank whose part it is.
            size: The bytes to reserve.
            write: Fills the file that is reserved.

        Raises:
            Superseded: A later attempt has written here.
            OSError: There is no room, or another process keeps the lock.
        """
        path = self.path(key, rank)
        # Of this call alone: containers have the same process ids, and a put may come twice.
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
        try:
            with self._locked():
                self._check(key, size)
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
                try:
                    if size:
                        os.posix_fallocate(descriptor, 0, size)
                finally:
                    os.close(descriptor)
            write(part)
            part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return path, path.stat().st_size

    def prune(self, keep: set[Key]) -> None:
        """Remove what is of no use any more; nothing of a later attempt.

        Args:
            keep: The boundaries that stay.
        """
        kept = tuple(file_name(*key).split("-r")[0] + "-r" for key in _seats(keep))
        with contextlib.suppress(OSError):
            for entry in self.entries():
                if entry.attempt <= self._attempt and key_of(entry) not in keep:
                    entry.path.unlink(missing_ok=True)
            for part in self.folder.glob("*.part"):
                if not part.name.startswith(kept):
                    part.unlink(missing_ok=True)

    def _check(self, key: Key, size: int) -> None:
        newest = max((each.attempt for each in self.entries()), default=0)
        if newest > self._attempt:
            reason = f"attempt {newest} of this job has trained; attempt {self._attempt} is over"
            raise Superseded(reason)
        used = sum(_size(path) for path in self.folder.parent.glob("*/*.safetensors*"))
        if used + size > self.limit:
            reason = (
                f"{size} bytes do not fit beside {used}: jobs may keep {self.limit} bytes in "
                f"this node's memory (SKEP_REPLICA_BYTES)"
            )
            raise OSError(errno.ENOSPC, reason)
        free = self._free()
        if size > free - free // KEPT_FREE:
            reason = f"{size} bytes do not fit: this node has {free} bytes of free memory"
            raise OSError(errno.ENOSPC, reason)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only process of all jobs on the node that takes room.

        In a container the folder above is one of its own: there it is so for this job alone.

        Raises:
            OSError: Another process has kept the lock for too long.
        """
        until = time.monotonic() + LOCK_MOST_S
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        parent = self.folder.parent
        ours = parent.lstat().st_uid == os.geteuid()
        with contextlib.ExitStack() as stack:
            for each in (parent, self.folder) if ours else (self.folder,):
                descriptor = os.open(each, flags)
                stack.callback(os.close, descriptor)
                _lock(descriptor, each, until)
            yield


def _lock(descriptor: int, folder: Path, until: float) -> None:
    """Lock a folder; it is open.

    Args:
        descriptor: Of the folder. It has the lock until it is closed.
        folder: What the error names.
        until: Seconds of the monotonic clock.

    Raises:
        OSError: Another process has kept the lock until then, or for LOCK_S without any change of
            the memory that is free in the file system.
    """
    since = changed = time.monotonic()
    free = -1
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now, before, free = time.monotonic(), free, os.fstatvfs(descriptor).f_bfree
            if free != before:
                changed = now
            if now >= min(until, changed + LOCK_S):
                reason = f"another process has kept its lock for {now - since:.1f} s"
                text = f"{reason}: no copy this time"
                raise OSError(errno.ETIMEDOUT, text, str(folder)) from None
        time.sleep(LOCK_AGAIN_S)


def _require_own(folder: Path, accounts: set[int]) -> None:
    """Require a folder that no other account can change.

    Args:
        folder: The folder; it is no link.
        accounts: The accounts that it may be of.

    Raises:
        OSError: It is another one.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in accounts:
        reason = "it is of another account, or no folder: remove it"
        raise OSError(errno.EACCES, reason, str(folder))
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = "other accounts may write to it: chmod go-w"
        raise OSError(errno.EACCES, reason, str(folder))


def available(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return the bytes of memory that can be filled without swapping, 0 where not known.

    What is on tmpfs counts as the memory of the control groups of the process that wrote it: a job
    is not to be killed for its copies.
    """
    free = 0
    try:
        with open(f"{proc}/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return min([free, *_free_of_groups(proc, groups)])


def _free_of_groups(proc: str, groups: str) -> Iterator[int]:
    """Yield what each control group of this process may still fill (version 2), where bounded."""
    path = ""
    with contextlib.suppress(OSError):
        lines = Path(proc, "self", "cgroup").read_text(encoding="utf-8", errors="replace")
        path = next((line[3:] for line in lines.splitlines() if line.startswith("0::/")), "")
    for above in (Path(path), *Path(path).parents) if path else ():
        place = Path(groups, str(above).lstrip("/"))
        with contextlib.suppress(OSError, ValueError):  # It has no bound, or is not seen here.
            most = int((place / "memory.max").read_text())
            used = int((place / "memory.current").read_text())
            stat = (place / "memory.stat").read_text().split()
            reclaimed = int(stat[stat.index("inactive_file") + 1])
            yield max(0, most - used + reclaimed)


def _seats(keys: set[Key]) -> list[tuple[int, int, int, int]]:
    return [(key.attempt, key.step, 0, key.world) for key in keys]


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0
