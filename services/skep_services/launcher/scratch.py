"""How much of the node's disk jobs hold, and which of them holds too much.

    limits.scratch, scratch_files    a job with more than that in its /tmp is ended
    limits.disk_free_percent         below it, the job that holds most of the disk is ended

The kernel counts for a launcher only where file systems have project quotas, and those need options
of mkfs and mount. So files are counted here, some at a time, between two looks at the runs: late by
seconds. A /tmp in memory (`tmp_in`) is bounded by the kernel and is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from skep_services.launcher import folders, policy
from skep_services.launcher.accounts import Reason
from skep_services.launcher.policy import Policy

ENTRIES_PER_LOOK = 2000
"""Files whose size is asked for between two looks at the other runs: some milliseconds."""

HELD_PERCENT_MIN = 1
"""A job that holds less of a full disk has not filled it."""


class Scratch:
    """The scratch space, below `root`, of the jobs of a launcher with this policy."""

    def __init__(self, chosen: Policy, root: str) -> None:
        self._root = root
        self._limits = chosen.limits
        self._is_counted = chosen.private_tmp and chosen.tmp_in == policy.DISK
        self._walk: Iterator[tuple[str, str]] | None = None

    def overdrawn(self, jobs: Iterable[str]) -> tuple[str, str] | None:
        """Return a job that holds more than it may, and why it is ended; called now and then.

        Args:
            jobs: Those that have runs here.
        """
        if self._walk is None:
            full = self._is_full()
            bounded = self._is_counted and (self._limits.scratch or self._limits.scratch_files)
            if not (full or bounded):
                return None
            self._walk = self._over(sorted(jobs), full=full)
        found = next(self._walk, None)
        if found is None:
            self._walk = None
        return found if found and found[0] else None

    def about(self) -> str:
        """Return in words how the /tmp of a job is bounded."""
        limits = self._limits
        if self._is_counted and not (limits.scratch or limits.scratch_files):
            own = "no bound of its own ([limits] scratch)"
        elif self._is_counted:
            bounds = [f"{limits.scratch} bytes"] * bool(limits.scratch)
            bounds += [f"{limits.scratch_files} files"] * bool(limits.scratch_files)
            own = f"{' and '.join(bounds)}, counted now and then"
        else:
            own = f"{limits.scratch} bytes in memory, kept by the kernel"
        most = limits.disk_free_percent
        free = f"below {most} % free the job that holds most is ended" if most else "disk not kept"
        return f"{own}; {free}"

    def _is_full(self) -> bool:
        most = self._limits.disk_free_percent
        found = os.statvfs(self._root)
        return found.f_bavail * 100 < found.f_blocks * most

    def _over(self, jobs: list[str], *, full: bool) -> Iterator[tuple[str, str]]:
        """Yield once in a while, with a job that is over or without one."""
        held = {}
        for job in jobs:
            size = 0
            if self._is_counted:
                for size, count in self._pieces(folders.SCRATCH, job, "tmp"):
                    why = self._too_much(size, count)
                    if why or count % ENTRIES_PER_LOOK == 0:
                        yield (job if why else ""), why
                    if why:
                        break
            held[job] = size
            if full:
                for more, count in self._pieces(folders.CHECKPOINTS, job, ""):
                    held[job] = size + more
                    if count % ENTRIES_PER_LOOK == 0:
                        yield "", ""
        if full and held and self._is_full():
            job = max(held, key=lambda each: held[each])
            disk = os.statvfs(self._root)
            if held[job] * 100 >= disk.f_blocks * disk.f_frsize * HELD_PERCENT_MIN:
                yield (
                    job,
                    f"{Reason.DISK_FULL}: less than {self._limits.disk_free_percent} % of the "
                    f"node's disk is free, and this job holds most of it ({held[job]} bytes in "
                    "its /tmp and checkpoints)",
                )

    def _pieces(self, kind: str, job: str, below: str) -> Iterator[tuple[int, int]]:
        return folders.usage(os.path.join(self._root, kind, job, below))

    def _too_much(self, size: int, count: int) -> str:
        limits = self._limits
        if limits.scratch and size > limits.scratch:
            return f"{Reason.SCRATCH_EXCEEDED}: /tmp holds more than {limits.scratch} bytes"
        if limits.scratch_files and count > limits.scratch_files:
            return f"{Reason.SCRATCH_EXCEEDED}: /tmp holds more than {limits.scratch_files} files"
        return ""
