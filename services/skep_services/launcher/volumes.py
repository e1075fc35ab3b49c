"""The volumes of a run: shown in its own mounts where it wants them, and nowhere else.

Each path is walked by descriptors from the root, name by name, and a link on the way is an error:
who can write to a folder above a place cannot turn root to another one. Standard library only.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from skep_services.launcher import kernel
from skep_services.launcher.accounts import Reason
from skep_services.launcher.policy import READ

Shown = tuple[str, str, str, str, bool]
"""A volume of a run: its name, path, place and mode, and whether something is mounted there."""

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOUNTS = "/proc/self/mountinfo"
OCTAL = re.compile(rb"\\([0-7]{3})")
NODEV_RELATED = os.ST_RDONLY | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME
"""Flags of a mount that one of the same file system keeps; their numbers are those of mount(2)."""


class VolumeError(Exception):
    """A run cannot have its volumes; `of_node`: another node may have them."""

    def __init__(self, text: str, *, of_node: bool) -> None:
        super().__init__(f"{Reason.NO_VOLUME}: {text}")
        self.of_node = of_node


def opened(shown: Sequence[Shown]) -> list[int]:
    """Return descriptors of the folders of volumes, as root sees them.

    Raises:
        VolumeError: One is not there, leads through a link, or nothing is mounted there.
    """
    if not shown:
        return []
    points = mount_points()
    found: list[int] = []
    for name, path, _, _, mounted in shown:
        if mounted and path not in points:
            text = f"volume {name}: nothing is mounted at {path} on this node"
            raise VolumeError(text, of_node=True)
        try:
            found.append(_walked(path))
        except OSError as error:
            text = f"volume {name}: {path} {_said(error)} on this node"
            raise VolumeError(text, of_node=True) from None
    return found


def hide(paths: Sequence[str], shown: Sequence[Shown]) -> None:
    """Leave nothing at the paths of volumes that the run does not have at that very place.

    What is mounted there is taken away, which asks no file server.

    Raises:
        OSError: It cannot be hidden.
    """
    kept = {place for _, path, place, _, _ in shown if path == place}
    away = [path for path in paths if path not in kept]
    points = mount_points() if away else {}
    for path in away:
        for _ in range(points.get(path, 0)):
            kernel.unmount(path)
        if os.path.isdir(path):
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
            kernel.mount("none", path, "tmpfs", flags, "size=4k,mode=0")


def show(sources: Sequence[int], shown: Sequence[Shown]) -> None:
    """Mount volumes at their places.

    Args:
        sources: What `opened` returned.
        shown: The volumes.

    Raises:
        VolumeError: A place is not there, or a link leads to it.
        OSError: The kernel does not mount one.
    """
    for source, (name, _, place, mode, _) in zip(sources, shown, strict=True):
        try:
            target = _walked(place)
        except OSError as error:
            text = (
                f"volume {name} cannot be at {place}: it {_said(error)} on this node; make the "
                "folder on the node, or name no place"
            )
            raise VolumeError(text, of_node=False) from None
        flags = os.fstatvfs(source).f_flag & NODEV_RELATED
        if mode == READ:
            flags |= kernel.MS_RDONLY
        _bind(source, target, name, place, flags)


def _bind(source: int, target: int, name: str, place: str, flags: int) -> None:
    """Mount one folder over another, and bound what may be done there.

    Raises:
        VolumeError: The place was made into another one meanwhile.
        OSError: The kernel does not mount it.
    """
    kernel.mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", "", kernel.MS_BIND)
    os.close(target)
    # `target` was the folder below the mount. Walked again: the place may be a link by now.
    top = _walked(place)
    if not os.path.samestat(os.fstat(source), os.fstat(top)):
        text = f"volume {name}: {place} was made into another place meanwhile"
        raise VolumeError(text, of_node=False)
    flags |= kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", f"/proc/self/fd/{top}", "", flags)
    os.close(top)


def _walked(path: str) -> int:
    """Return a descriptor of a folder that no link leads to.

    Raises:
        OSError: There is no such folder, or a link is on the way.
    """
    folder = os.open("/", FOLDER)
    for name in path.strip("/").split("/"):
        try:
            inner = os.open(name, FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _said(error: OSError) -> str:
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return "is a link or no folder, or leads through one"
    if error.errno == errno.ENOENT:
        return "does not exist"
    return f"cannot be used ({error.strerror})"


def mount_points() -> dict[str, int]:
    """Return the places where something is mounted, and how many times one over the other."""
    found: dict[str, int] = {}
    with open(MOUNTS, "rb") as file:
        for line in file:
            raw = OCTAL.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ")[4])
            place = os.fsdecode(raw)
            found[place] = found.get(place, 0) + 1
    return found
