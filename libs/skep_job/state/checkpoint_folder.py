"""The folder with the durable checkpoints of one job, and which attempt may write to it.

    fence                                   the highest attempt that has trained, as text
    lock                                    held while the fence is read or raised for a write
    a00003-s000000001200-r0of1.safetensors  attempt 3, after mini-batch 1200, rank 0 of 1
    *.part                                  being written; of no use to anybody else

An attempt raises the fence before it trains. One that finds a higher number there was succeeded
while it slept, and writes nothing any more. The newest checkpoint is that of the highest attempt,
and in it of the highest step: a later attempt began from the best that could be read then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from skep_job.state import checkpoint_file
from skep_job.state.checkpoint_file import Stored, Unreadable
from skep_job.state.snapshot import Snapshot
from skep_job.state.unchanged import FILE, Known

KEEP = 2
"""Checkpoints kept per rank: the newest, and the one before in case the newest is damaged."""

FENCE_BYTES_MAX = 64


class Superseded(Exception):  # noqa: N818  a name for what happened
    """A later attempt of the job has trained: this one must not write any more."""


class Entry(NamedTuple):
    """One file, as its name tells."""

    attempt: int
    step: int
    rank: int
    world: int
    path: Path


class Checkpoints:
    """The folder, as one rank of one attempt uses it."""

    def __init__(
        self,
        folder: Path,
        job: str,
        attempt: int,
        rank: int,
        world: int,
        keep: int = KEEP,
        *,
        incremental: bool = False,
    ) -> None:
        """Use a folder.

        Args:
            folder: The folder.
            job: The job's id.
            attempt: The attempt.
            rank: The rank.
            world: How many ranks there are.
            keep: How many checkpoints stay.
            incremental: Whether a file refers to an older one for tensors that did not change.
        """
        self.folder = folder
        self._job = job
        self._attempt, self._rank, self._world = attempt, rank, world
        self._keep = keep
        self._incremental = incremental
        self._refers: dict[str, set[str]] = {}  # by file, which others it needs

    def of_part(self, rank: int, world: int) -> Checkpoints:
        """Return the folder as it is used by a rank that has a part of the state.

        Args:
            rank: The rank.
            world: How many ranks have a part.
        """
        found = Checkpoints(
            self.folder,
            self._job,
            self._attempt,
            rank,
            world,
            self._keep,
            incremental=self._incremental,
        )
        found._refers = self._refers
        return found

    def save(self, snapshot: Snapshot, step: int, folder: Path | None = None) -> tuple[Path, int]:
        """Write a checkpoint durably, then remove the oldest; return its path and bytes.

        Whatever happens, the one before is still there.

        Args:
            snapshot: The state.
            step: The mini-batches that are done.
            folder: The folder to write to; None: that of the job.

        Raises:
            Superseded: A later attempt has trained.
            OSError: The folder cannot be written to.
        """
        folder = folder or self.folder
        for each in (folder, self.folder):
            each.mkdir(parents=True, exist_ok=True)
        name = file_name(self._attempt, step, self._rank, self._world)
        about = {
            "job": self._job,
            "attempt": self._attempt,
            "rank": self._rank,
            "world": self._world,
            "step": step,
        }
        self.check_fence()  # Before the work; what counts is the look before the renaming.
        part = folder / f"{name}.{os.getpid()}.part"
        part.unlink(missing_ok=True)
        try:
            known = self._known(folder) if self._incremental else None
            size = checkpoint_file.write(part, snapshot, about, known)
            with self._locked():
                self.check_fence()
                part.rename(folder / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno and error.filename is None:
                # Of a write: a full disk does not say which one it is.
                raise OSError(error.errno, error.strerror, str(folder)) from error
            raise
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync(folder)
        self._prune(folder)
        return folder / name, size

    def raise_fence(self) -> None:
        """Say that this attempt trains.

        Raises:
            Superseded: A later attempt has trained.
            OSError: The folder cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self.check_fence()
            part = self.folder / f"fence.{os.getpid()}.part"
            with open(part, "w", encoding="ascii") as file:
                file.write(f"{self._attempt}\n")
                file.flush()
                os.fsync(file.fileno())
            part.rename(self.folder / "fence")
        _sync(self.folder)

    def steps(self, complain: Callable[[str], None]) -> list[Entry]:
        """Return this rank's files by their names, the newest first, whole or not.

        Args:
            complain: It is told if the folder has files of other ranks only.

        Raises:
            OSError: The folder cannot be read.
        """
        entries = entries_of(self.folder)
        ours = [each for each in entries if (each.rank, each.world) == (self._rank, self._world)]
        if entries and not ours:
            complain(
                f"{self.folder} has checkpoints, but none of rank {self._rank} of {self._world}; "
                "a checkpoint is continued by as many ranks as wrote it, unless the script says "
                "how its data are shared: skep_job.init(elastic=...)"
            )
        return sorted(ours, key=lambda each: (each.attempt, each.step), reverse=True)

    def is_whole(self, entry: Entry) -> bool:
        """Return whether every rank's file of a gang's checkpoint is in this folder."""
        ranks = {
            each.rank
            for each in entries_of(self.folder)
            if (each.attempt, each.step, each.world) == (entry.attempt, entry.step, entry.world)
        }
        return len(ranks) == entry.world

    def wholes(
        self, folder: Path | None = None, complain: Callable[[str], None] | None = None
    ) -> list[list[Entry]]:
        """Return the files of every checkpoint that is whole, by rank, the newest first.

        Args:
            folder: The folder to look in; None: that of the job.
            complain: It is told of each that is not whole.

        Raises:
            OSError: The folder cannot be read.
        """
        found: dict[tuple[int, int, int], list[Entry]] = {}
        for each in entries_of(folder or self.folder):
            found.setdefault((each.attempt, each.step, each.world), []).append(each)
        wholes = []
        for (attempt, step, world), files in sorted(found.items(), reverse=True):
            have = {entry.rank for entry in files}
            if len(have) == world:
                wholes.append(sorted(files, key=lambda entry: entry.rank))
            elif complain is not None:
                missing = next(rank for rank in range(world) if rank not in have)
                complain(
                    f"the checkpoint after mini-batch {step} of attempt {attempt} is passed over: "
                    f"the file of rank {missing} of {world} is not there"
                )
        return wholes

    def files_of(self, entry: Entry) -> dict[int, Entry]:
        """Return the files of one checkpoint by rank, of the ranks whose files are there.

        Args:
            entry: A file of it.

        Raises:
            OSError: The folder cannot be read.
        """
        which = (entry.attempt, entry.step, entry.world)
        return {
            each.rank: each
            for each in entries_of(self.folder)
            if (each.attempt, each.step, each.world) == which
        }

    def read(self, entry: Entry) -> Stored:
        """Return a file's header.

        Raises:
            Unreadable: The header is damaged, or another job's, attempt's, rank's or step's.
            OSError: The file cannot be read.
        """
        header = checkpoint_file.read_header(entry.path)
        about = header.about
        theirs = tuple(about.get(name) for name in ("job", "attempt", "rank", "world", "step"))
        if theirs != (self._job, entry.attempt, entry.rank, entry.world, entry.step):
            job, attempt, rank, world, step = theirs
            reason = (
                f"its header says job {job}, attempt {attempt}, rank {rank} of {world}, step {step}"
            )
            raise Unreadable(reason)
        return header

    def _prune(self, folder: Path) -> None:
        """Remove what is older than the newest `keep`, and what other processes left half done."""
        # A file of a higher attempt cannot be here: this one would have been refused above.
        remove = self._old(folder)
        if remove:
            going = {path.name for path in remove}
            needed = self._needed(folder, going)
            remove = [path for path in remove if path.name not in needed]
        remove += [path for path in folder.glob(f"*-r{self._rank}of*.part") if path.is_file()]
        for path in remove:
            try:
                path.unlink()
            except OSError:
                pass  # It is tried again after the next checkpoint.

    def _known(self, folder: Path) -> dict[str, Known]:
        """Return where the tensors of this rank's newest file are; none if it cannot be read."""
        ours = [e for e in entries_of(folder) if (e.rank, e.world) == (self._rank, self._world)]
        newest = max(ours, key=lambda each: (each.attempt, each.step), default=None)
        if newest is None:
            return {}
        try:
            return self.read(newest).known(newest.path.name)
        except (Unreadable, OSError):
            return {}

    def _needed(self, folder: Path, going: set[str]) -> set[str]:
        """Return the names of files that those need which stay."""
        needed: set[str] = set()
        for entry in entries_of(folder):
            name = entry.path.name
            if name in going:
                continue
            if name not in self._refers:
                try:
                    self._refers[name] = checkpoint_file.read_header(entry.path).files
                except (Unreadable, OSError):
                    continue  # Nothing can go on from it.
            needed |= self._refers[name]
        return needed

    def _old(self, folder: Path) -> list[Path]:
        """Return the files that no attempt would go on from.

        The newest `keep` that are whole stay, as another rank may fail to write newer ones, and so
        do the newest `keep` files of this rank: none is whole in a folder that not all nodes share.
        Of other ranks only what is older than all that goes.
        """
        entries = entries_of(folder)
        wholes = self.wholes(folder)[: self._keep]
        ours = sorted((e.attempt, e.step, e.path) for e in entries if e.rank == self._rank)
        kept = {entry.path for files in wholes for entry in files}
        kept |= {path for *_, path in ours[-self._keep :]}
        old = {path for *_, path in ours} - kept
        if len(wholes) == self._keep:
            oldest = (wholes[-1][0].attempt, wholes[-1][0].step)
            old |= {each.path for each in entries if (each.attempt, each.step) < oldest}
        return sorted(old)

    def check_fence(self) -> None:
        """Check that this attempt may write.

        Raises:
            Superseded: A later attempt of the job has trained.
            OSError: The fence cannot be read.
        """
        try:
            highest = _read_fence(self.folder / "fence")
        except FileNotFoundError:
            return
        except ValueError:
            return  # Damaged by others; it is raised anew by the attempt that trains next.
        if highest > self._attempt:
            reason = f"attempt {highest} of this job has trained; attempt {self._attempt} is over"
            raise Superseded(reason)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def file_name(attempt: int, step: int, rank: int, world: int) -> str:
    """Return the name of a checkpoint's file."""
    return f"a{attempt:05}-s{step:012}-r{rank}of{world}.safetensors"


def entries_of(folder: Path) -> list[Entry]:
    """Return the files of a folder whose names are those of checkpoints; none if it is not there.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        match = FILE.fullmatch(name)
        if match is not None:
            attempt, step, rank, world = map(int, match.groups())
            if rank < world and name == file_name(attempt, step, rank, world):
                found.append(Entry(attempt, step, rank, world, folder / name))
    return found


def _read_fence(path: Path) -> int:
    """Return the attempt in a fence; it is no link, and reading it never waits.

    Raises:
        ValueError: There is no attempt in it.
        OSError: It is not there, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        reason = "a link"
        raise ValueError(reason) from None
    try:
        return int(os.read(descriptor, FENCE_BYTES_MAX))
    except BlockingIOError as error:
        raise ValueError(str(error)) from None
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
