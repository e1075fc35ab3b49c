"""The devices that a process trains on, and how it goes on with others of its node.

Which ones it has is told by its environment (SKEP_DEVICES), and by its agent whenever it resumes.
On machines without GPUs a device is a slot: a process goes on with another one by having its
processors (SKEP_CPUS, where slots are pinned) and its place on the fake accelerator changed. A
process that has used CUDA keeps its devices for life: the driver fixes them with
CUDA_VISIBLE_DEVICES before the first call, and a tensor's device cannot be changed under it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, MutableMapping

from skep_job.devices import fake_gpus


class Stuck(Exception):  # noqa: N818  a name for what happened
    """This process cannot go on with other devices; the text says why."""


class Place:
    """Where one process trains. For its training thread."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Read from `environ` what the process was started with."""
        self._environ = environ
        self.devices = numbers(environ.get("SKEP_DEVICES", ""))

    def movable(self) -> bool:
        """Return whether the process could go on with other devices."""
        return not uses_cuda()

    def enter(
        self, devices: tuple[int, ...] = (), cpus: tuple[int, ...] = ()
    ) -> Callable[[], None]:
        """Be on other devices, or on the same ones again.

        After an exception everything is as it was.

        Args:
            devices: Their numbers on this node; empty: those that it has.
            cpus: The processors that belong to them, for processes that are kept on some at all.

        Returns:
            A function that undoes the change.

        Raises:
            Stuck: The process has used CUDA, so it keeps its devices.
            OSError: A processor is not there, or not for this process.
            OutOfMemoryError: A fake device has no room.
        """
        before, wanted = self.devices, devices or self.devices
        if before and wanted != before and not self.movable():
            reason = (
                f"this process keeps CUDA devices {_text(before)} for life and cannot go on with "
                f"{_text(wanted)}: the driver fixes them at its start"
            )
            raise Stuck(reason)
        undo_devices = fake_gpus.go(wanted)
        kept = self._environ.get("SKEP_CPUS", "")
        try:
            if kept and cpus:
                keep_on(cpus, self._environ.get("SKEP_RUN", ""))
        except OSError:
            undo_devices()
            raise
        self._note(wanted, cpus if kept else ())

        def undo() -> None:
            if kept and cpus:
                keep_on(numbers(kept), self._environ.get("SKEP_RUN", ""))
            undo_devices()
            self._note(before, numbers(kept))

        return undo

    def _note(self, devices: tuple[int, ...], cpus: tuple[int, ...]) -> None:
        """Have this process and those that it starts later know where they are."""
        self.devices = devices
        if devices:
            self._environ["SKEP_DEVICES"] = _text(devices)
        if cpus:
            self._environ["SKEP_CPUS"] = _text(cpus)


def uses_cuda() -> bool:
    """Return whether this process has begun to use CUDA, without importing anything."""
    cuda = sys.modules.get("torch.cuda")
    is_initialized = vars(cuda).get("is_initialized") if cuda is not None else None
    return is_initialized is not None and bool(is_initialized())


def numbers(value: object) -> tuple[int, ...]:
    """Return what a variable or a message lists, in its order.

    Args:
        value: Text such as "0,1", or a list.

    Returns:
        Empty if it is no list of whole numbers from 0.
    """
    if isinstance(value, str):
        value = [
            int(each) if each.isascii() and each.isdecimal() else -1 for each in value.split(",")
        ]
    if not isinstance(value, list | tuple):
        return ()
    good = all(isinstance(each, int) and each >= 0 for each in value)
    return tuple(value) if good else ()


def keep_on(cpus: tuple[int, ...], run: str) -> None:
    """Have every thread of every process of this rank run on these processors from here on.

    Args:
        cpus: The numbers of the processors.
        run: The rank's run (SKEP_RUN): processes above this one that name another are not of the
            rank. Empty: the rank begins with this process.

    Raises:
        OSError: A processor is not there, or not for this process.
    """
    own = os.getpid()
    os.sched_setaffinity(own, cpus)  # First here: what is wrong with them is then told.
    for process in tree(_root(own, run)):
        for thread in _listed(f"/proc/{process}/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except (ProcessLookupError, PermissionError):
                pass  # It ended meanwhile, or is another user's.


def tree(root: int) -> Iterator[int]:
    """Yield a process and all below it, as far as they can be seen.

    Args:
        root: The id of the process.
    """
    yield root
    for thread in _listed(f"/proc/{root}/task"):
        for child in _words(f"/proc/{root}/task/{thread}/children"):
            yield from tree(int(child))


def _root(process: int, run: str) -> int:
    """Return the topmost process above this one that is of the same rank."""
    mark = f"SKEP_RUN={run}".encode()
    while run:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                above = int(file.read().rsplit(b")", 1)[1].split()[1])
            with open(f"/proc/{above}/environ", "rb") as file:
                if mark not in file.read().split(b"\0"):
                    break
        except (OSError, IndexError, ValueError):
            break
        process = above
    return process


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # It ended meanwhile.


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []  # It ended meanwhile, or the kernel does not tell.


def _text(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
