"""What runs before the command of a later attempt: the search for a library's own checkpoint.

It is a part of the job's process, with the rights of the job: what lies in a job's folders is read
by nothing that has more. Pure.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skep.wire.commands import BindJob, ResumeOrder
from skep.wire.resuming import split
from skep.wire.volumes import Mount

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from skep_job.resume.before import main; main(sys.argv[1:])"
)
"""Gets the folder of the jobs' libraries, what to look for, and the command."""
IN_IMAGE = (
    "/bin/sh",
    "-c",
    "command -v python3 >/dev/null 2>&1 && "
    'exec python3 -I -S -c "$0" "$@"; shift 2; '
    'echo "[skep] resume: the image has no python3, which looks for checkpoints" >&2; '
    'exec "$@"',
)
"""An image need not have a Python: its command then begins from the start, and the log says so."""
SEVERAL_NODES = "several nodes go on only from a volume, or from SKEP_CHECKPOINTS on shared storage"
NOTHING_HERE = "no earlier attempt left a folder on this node, and nothing is in volumes"


class Folders(NamedTuple):
    """Where a job on this node may have checkpoints.

    `works` are the folders of earlier attempts by number, if the job has such. `shared`: the folder
    of checkpoints is on storage that nodes share.
    """

    workdir: str
    checkpoints: str
    shared: bool
    works: Mapping[int, str]
    library: Path


def before(
    command: BindJob, order: ResumeOrder, argv: tuple[str, ...], folders: Folders
) -> tuple[str, ...]:
    """Return a command line that looks for a checkpoint, and becomes `argv`.

    Args:
        command: The job's part on this node.
        order: What is looked for.
        argv: The job's own command line.
        folders: Where it may be.
    """
    asked = json.dumps(
        {
            "attempt": command.attempt,
            "since": order.since,
            "args": order.args,
            "auto": order.auto,
            "places": _places(command, order, folders),
            "hint": _hint(command, folders),
        }
    )
    words = (PROGRAM, str(folders.library), asked, *argv)
    if command.image:
        return (*IN_IMAGE, *words)
    # Isolated, and without site: neither the job's variables nor its environment have a say.
    return (os.path.realpath(sys.executable), "-I", "-S", "-c", *words)


def _places(command: BindJob, order: ResumeOrder, folders: Folders) -> list[dict[str, Any]]:
    """Return the folders to look in: every rank of a gang has to find the same there."""
    mounts = {mount.name: mount for mount in command.mounts}
    asked = [split(pattern, dict.fromkeys(mounts, "")) for pattern in order.find]
    own = [pattern for volume, pattern in asked if not volume]
    found = []
    alone = command.nodes == 1
    if own or not order.find:
        here = folders.workdir or "."
        starts = {"starts": list(command.outputs)} if command.outputs else {}
        more = {"patterns": own} if own else starts
        if command.code and alone:
            for number, work in sorted(folders.works.items(), reverse=True):
                path = os.path.normpath(os.path.join(work, command.workdir))
                found.append({"path": path, "label": f"attempt {number}", "now": here, **more})
        elif alone:
            found.append({"path": here, "label": here, "now": here, **more})
        if alone or folders.shared:
            place, patterns = folders.checkpoints, {"patterns": own} if own else {}
            found.append({"path": place, "label": "SKEP_CHECKPOINTS", "now": place, **patterns})
    for name in dict.fromkeys(volume for volume, _ in asked if volume):
        patterns = {"patterns": [pattern for volume, pattern in asked if volume == name]}
        found.append(_in_volume(mounts, name, patterns))
    return found


def _in_volume(mounts: Mapping[str, Mount], name: str, more: dict[str, Any]) -> dict[str, Any]:
    place = mounts[name].target if name in mounts else "/nonexistent"
    return {"path": place, "label": f"volume {name}", "now": place, **more}


def _hint(command: BindJob, folders: Folders) -> str:
    """Return why nothing may be found, so that people know what to change."""
    if command.nodes > 1 and not (folders.shared or command.mounts):
        return SEVERAL_NODES
    if command.code and not folders.works:
        return NOTHING_HERE
    return ""
