"""Sees before a start that this node has the volumes of a job, and that something is mounted there.

A folder that is only the place of a mount is never used: what a job wrote there would be on the
node's own disk, and hidden by the next mount. A file server may hang, and whatever asks it hangs
with it. So a thread of its own asks, one for each place, and only that job's start waits for it.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from skep.wire.commands import BindJob
from skep.wire.reasons import Reason
from skep.wire.volumes import Mount, inside
from skep_services.agent.runner_launch import NotStarted

ANSWER_S = 5.0
"""What a file server may take to say that a folder is there."""
MOUNTS = "/proc/self/mountinfo"
OCTAL = re.compile(rb"\\([0-7]{3})")


class Volumes:
    """Looks for volumes on the node of the agent whose state folder is `state`.

    `accounts`: a launcher starts the processes of jobs, and mounts volumes by its own policy.
    """

    def __init__(self, state: Path, *, accounts: bool) -> None:
        self._state, self._accounts = os.path.realpath(state), accounts
        self._asked: dict[str, asyncio.Future[str]] = {}

    async def trouble(self, command: BindJob) -> NotStarted | None:
        """Return why a part of a job cannot have its volumes on this node, or None."""
        mounts = self._accounts or bool(command.image)
        for one in command.mounts:
            if not mounts and one.target != one.path:
                text = (
                    f"volume {one.name} cannot be at {one.target} on {command.node}, which starts "
                    f"plain processes: name no place, and use the variable that says {one.path}"
                )
                return NotStarted(f"{Reason.NO_MOUNTS}: {text}")
        for one in command.mounts:
            text = await self._missing(one)
            if text:
                said = f"{Reason.NO_VOLUME}: volume {one.name}: {text} on {command.node}"
                return NotStarted(said, of_node=True)
        return None

    async def _missing(self, one: Mount) -> str:
        """Return why a volume is not to be had here, or an empty text."""
        if inside(self._state, one.path):
            return f"{one.path} has the folder of Skep's agent in it"
        if one.mounted and one.path not in mount_points():
            return f"nothing is mounted at {one.path}"
        asked = self._asked.get(one.path)
        if asked is None:
            asked = self._asked[one.path] = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._ask, args=(one.path, asked), daemon=True).start()
        done, _ = await asyncio.wait((asked,), timeout=ANSWER_S)
        return asked.result() if done else f"{one.path} did not answer within {ANSWER_S:.0f} s"

    def _ask(self, path: str, asked: asyncio.Future[str]) -> None:
        text = looked_at(path)
        if self._accounts and text.startswith(CLOSED):
            text = ""  # The launcher may go where the agent may not.

        def tell() -> None:
            del self._asked[path]
            asked.set_result(text)

        try:
            asked.get_loop().call_soon_threadsafe(tell)
        except RuntimeError:
            return  # The agent has ended.


CLOSED = "the agent's user may not enter"


def looked_at(path: str) -> str:
    """Return why a path is no folder that can be used as it is, or an empty text."""
    try:
        found = os.lstat(path)
        linked = os.path.realpath(path) != path
    except PermissionError:
        return f"{CLOSED} {path}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if linked:
        return f"{path} leads through a link, and the cluster file needs the real path"
    return "" if stat.S_ISDIR(found.st_mode) else f"{path} is no folder"


def mount_points() -> dict[str, None]:
    """Return the places where something is mounted, as this process sees them."""
    return dict.fromkeys(_read())


def _read() -> Iterator[str]:
    with open(MOUNTS, "rb") as file:
        for line in file:
            place = line.split(b" ")[4]
            yield os.fsdecode(OCTAL.sub(lambda found: bytes([int(found[1], 8)]), place))
