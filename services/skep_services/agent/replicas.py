"""The folders in this node's memory in which gangs keep copies of their state.

    /dev/shm/skep-replicas-<user>-<node>/<job>/

A copy outlives the processes of an attempt, so that the next one goes on from it. It goes with the
success of the job's part on this node, with the end of the job, with `skep down`, and else once no
process of the job was here for KEEP_S. An agent does not hear of a job's end: it says of which jobs
it has copies, and is told which of them have ended. Where jobs have accounts of their own, the
launcher makes and removes the folders (`AccountReplicas`):

    JOBS/copies/<job>/
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from skep.ids import job_sequence
from skep.wire.commands import BindJob
from skep_services.agent.memory import bytes_said

log = logging.getLogger(__name__)

VARIABLE = "SKEP_REPLICA_BYTES"
SHARE = 4
"""One part in so many of the node's memory may have copies, unless the operator says otherwise."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of this node's own is made in it
KEEP_S = 900.0
"""Seconds for which a job may wait for its next attempt before its copies are removed."""
LOOK_EVERY_S = 5.0
MODE = 0o700


def replica_bytes(environment: Mapping[str, str], memory: int) -> int:
    """Return the bytes that copies of jobs' state may take in this node's memory; 0: none are kept.

    Args:
        environment: The agent's environment.
        memory: The node's memory (bytes).

    Raises:
        ConfigurationError: SKEP_REPLICA_BYTES is no number, or is more than there is.
    """
    return bytes_said(environment, VARIABLE, memory // SHARE, memory, "; 0 is for none")


class Replicas:
    """The folders of one node's jobs."""

    def __init__(self, state: Path, limit: int, within: Path = MEMORY) -> None:
        """Take the place; nothing is made yet.

        Args:
            state: The agent's state folder, after which the folder in memory is named.
            limit: Bytes that all of them may have; 0: there are to be none.
            within: Where memory is a file system.
        """
        name = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]
        self.root = within / f"skep-replicas-{os.getuid()}-{name}"
        self.limit = limit
        self._seen: dict[str, float] = {}  # by job, when it was last seen to have processes here
        self._told: tuple[str, ...] = ()
        self.tell: Callable[[tuple[str, ...]], Awaitable[None]] = _to_nobody
        """Hears which jobs have copies here, whenever these are others."""

    def wanted(self, command: BindJob) -> bool:
        """Return whether a job's part may keep copies: other nodes have parts, or may come to."""
        several = command.nodes > 1 or bool(command.joins) or bool(command.awaits)
        return self.limit > 0 and (several or command.world > 1)

    def variables(self, command: BindJob, host: str) -> dict[str, str]:
        """Return what tells a rank where copies are kept.

        Args:
            command: The job's part on this node.
            host: Where other nodes reach this one.
        """
        if not self.wanted(command):
            return {}
        return {
            "SKEP_REPLICAS": str(self.root / command.job),
            "SKEP_REPLICA_BYTES": str(self.limit),
            "SKEP_HOST": host,
        }

    async def prepare(self, command: BindJob, *, fresh: bool) -> tuple[str, ...]:
        """Have a folder made for a job that may keep copies; as `provide`."""
        return self.provide(command, fresh=fresh)

    def provide(self, command: BindJob, *, fresh: bool = False) -> tuple[str, ...]:
        """Make the folder of a job; return what a container has to see, nothing where it cannot.

        Args:
            command: The job's part on this node.
            fresh: What is in it is of another job, which had the id before a restore.
        """
        if not self.wanted(command):
            return ()
        folder = self.root / command.job
        if fresh:
            self.remove(command.job)
        try:
            self.root.mkdir(mode=MODE, exist_ok=True)
            if not self._is_ours():
                log.warning("%s: no copies are kept in memory: remove it", self.root)
                return ()
            self.root.chmod(MODE)
            folder.mkdir(mode=MODE, exist_ok=True)
        except OSError as error:
            log.warning("%s: no copies are kept in memory: %s", folder, error.strerror)
            return ()
        self._seen[command.job] = time.monotonic()
        return (str(folder),)

    def remove(self, job: str) -> None:
        """Remove what a job has in this node's memory."""
        self._seen.pop(job, None)
        if self._is_ours():
            shutil.rmtree(self.root / job, ignore_errors=True)
            with contextlib.suppress(OSError):  # Others have theirs there.
                self.root.rmdir()

    def remove_all(self, keep: Collection[str]) -> None:
        """Remove what jobs have in this node's memory.

        Args:
            keep: The jobs whose copies stay.
        """
        for name in self._names():
            if name not in keep:
                self.remove(name)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root)) if self._is_ours() else []
        except FileNotFoundError:
            return []  # The last job's went meanwhile.

    def _is_ours(self) -> bool:
        """Return whether the folder is there and this user's: all users may write beside it."""
        try:
            found = self.root.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()

    async def watch(self, lives: Callable[[str], bool]) -> None:
        """Remove what is not needed any more, now and then, until cancelled.

        Args:
            lives: Says whether a job has processes here.
        """
        while True:
            for job in self.unneeded(await self.names(), lives, time.monotonic()):
                if not lives(job):  # It may have begun again while others' copies were removed.
                    await self.drop(job)
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def drop(self, job: str) -> None:
        """Remove what a job has in this node's memory, if anything, beside what else is done here.

        One that has nothing costs and says nothing.
        """
        if job not in await self.names():
            self._seen.pop(job, None)
            return
        await self.discard(job)
        log.info("copies of the state of %s are removed from memory", job)
        await self.look()

    async def discard(self, job: str) -> None:
        """Remove what a job has in this node's memory, and say nothing of it."""
        # Some GB of memory take a while to be given back.
        await asyncio.to_thread(self.remove, job)

    async def names(self) -> list[str]:
        """Return the jobs with copies here."""
        return [name for name in self._names() if job_sequence(name) is not None]

    async def look(self) -> None:
        """Tell which jobs have copies here, if these are others than were told."""
        jobs = tuple(sorted(await self.names(), key=lambda job: (len(job), job)))
        if jobs != self._told:
            self._told = jobs
            await self.tell(jobs)

    def unneeded(self, jobs: list[str], lives: Callable[[str], bool], now: float) -> list[str]:
        """Return the jobs with copies here that had no processes here for long.

        Args:
            jobs: Those with copies here.
            lives: Says whether a job has processes here.
            now: Seconds of a monotonic clock.
        """
        gone = []
        for job in jobs:
            if lives(job):
                self._seen[job] = now
            elif now - self._seen.setdefault(job, now) > KEEP_S:
                gone.append(job)
        return gone


class Maker(Protocol):
    """What makes folders as their accounts' own: a launcher, as the plan of a run says."""

    async def copies(self) -> list[str]:
        """Return the jobs that have one."""
        ...

    async def remove_copies(self, job: str) -> None:
        """Remove a job's, unless the job has processes here."""
        ...


class AccountReplicas(Replicas):
    """The folders of jobs that have accounts of their own. Containers have none yet."""

    def __init__(self, maker: Maker, jobs: Path, limit: int) -> None:
        """Take the place.

        Args:
            maker: What makes and removes the folders.
            jobs: The folder that jobs, agent and launcher share.
            limit: Bytes that all of them may have; 0: there are to be none.
        """
        super().__init__(jobs, limit)
        self.root, self._maker = jobs / "copies", maker

    def wanted(self, command: BindJob) -> bool:
        return super().wanted(command) and not command.image

    async def prepare(self, command: BindJob, *, fresh: bool) -> tuple[str, ...]:
        if not self.wanted(command):
            return ()
        if fresh:
            await self.discard(command.job)
        self._seen[command.job] = time.monotonic()
        return (str(self.root / command.job),)

    async def discard(self, job: str) -> None:
        self._seen.pop(job, None)
        if self.limit:
            await self._maker.remove_copies(job)

    async def names(self) -> list[str]:
        return await self._maker.copies() if self.limit else []


async def _to_nobody(_jobs: tuple[str, ...]) -> None:
    pass
