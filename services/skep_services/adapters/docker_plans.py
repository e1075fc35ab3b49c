"""What keeps a plan from being a container, and why one said nothing: in words, no engine asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from skep.wire.reasons import Reason
from skep.wire.volumes import inside
from skep_services.adapters.docker_engine import Container, Mounts, sdk_missing
from skep_services.adapters.docker_entry import NOT_FOUND, UNUSABLE
from skep_services.agent.runner_launch import workdir_trouble
from skep_services.ports import RunPlan

EXEC_TEXT_BYTES_MAX = 128 * 1024
ENTRY_BYTES = 1024
"""Linux's bound of one argument or variable, and room for a variable's name. The engine says of a
longer one only that the container ended.
"""


def trouble_of(plan: RunPlan, private: Sequence[Path], *, entered: bool = True) -> str:
    """Return what keeps a plan from being a container, or an empty text; see `mounts_of`.

    Args:
        plan: The run.
        private: Folders that no container sees.
        entered: This process may enter the workdir if the container may.
    """
    sdk = sdk_missing()
    if sdk:
        return f"image {plan.image}: {sdk}"
    texts = (*plan.argv, plan.workdir, *plan.env, *plan.env.values())
    if any("\0" in text or not _is_utf8(text) for text in texts):
        return "the command, its environment or workdir cannot be passed to exec: NUL or no UTF-8"
    if any(not name or "=" in name for name in plan.env):
        return "the environment cannot be passed to exec: a name that is empty or has a `=`"
    if max(len(os.fsencode(text)) for text in texts) >= EXEC_TEXT_BYTES_MAX - ENTRY_BYTES:
        return "the arguments and the environment are together too large to execute"
    if Path(plan.workdir) == Path("/"):
        return "workdir / cannot be the folder of a container: name another"
    workdir = _real(plan.workdir)
    if plan.workdir not in plan.folders and any(workdir.is_relative_to(_real(p)) for p in private):
        return f"workdir {plan.workdir} is in a state folder of Skep: name another"
    if trouble := _volumes_trouble(plan, private):
        return trouble
    if not entered or _in_volume(plan):
        return ""
    return workdir_trouble(plan.workdir) or ""


def _volumes_trouble(plan: RunPlan, private: Sequence[Path]) -> str:
    """Return why a container cannot have its volumes where it wants them, or an empty text.

    None may be in the place of what Skep mounts, or show what no container sees.
    """
    places = (*plan.folders, *plan.folders_to_read, str(Path(plan.log_path).parent))
    for one in plan.mounts:
        text = f"{Reason.NO_MOUNTS}: volume {one.name} cannot be at {one.target}"
        if any(inside(each, one.target) for each in places) or any(
            inside(one.target, str(folder)) for folder in private
        ):
            return f"{text}: Skep's own folders are there, or in it"
        if any(_below(one.path, folder) or inside(one.path, str(folder)) for folder in private):
            text = f"volume {one.name} ({one.path}) has a folder of Skep's in it, or is in one"
            return f"{Reason.NO_VOLUME}: {text}"
    return ""


def _in_volume(plan: RunPlan) -> bool:
    """Return whether the workdir is in a volume, which shows it as the volume's mode allows."""
    return any(inside(plan.workdir, one.target) for one in plan.mounts)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def mounts_of(plan: RunPlan, private: Sequence[Path], said: Path) -> Mounts:
    """Return the mounts of a run on a node with these `private` folders.

    Of those, which have secrets of the cluster and files of other jobs, it sees what the plan
    names, its log's folder and the file `said`, wherever else a folder around one is mounted.
    """
    workdir = () if _in_volume(plan) else (plan.workdir,)
    wanted = (*workdir, *plan.folders, str(Path(plan.log_path).parent), str(said))
    inside = [each for each in wanted if any(Path(each).is_relative_to(p) for p in private)]
    outside = _outermost(each for each in wanted if each not in inside)
    return Mounts(
        (*outside, *_outermost(inside)),
        tuple(plan.folders_to_read),
        _outermost(hidden for each in outside for one in private if (hidden := _below(each, one))),
        plan.mounts,
    )


def _outermost(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return these folders without those that are within another one."""
    paths = sorted({Path(each) for each in wanted})
    return tuple(str(path) for path in paths if not any(above in path.parents for above in paths))


def _real(path: str | Path) -> Path:
    """Return a path without links; `Path.resolve` raises RuntimeError at a link to itself."""
    return Path(os.path.realpath(path))


def _below(folder: str, private: Path) -> str:
    """Return where a folder shows a private one, empty if it does not."""
    around, inner = _real(folder), _real(private)
    return str(Path(folder, inner.relative_to(around))) if inner.is_relative_to(around) else ""


def silence_of(plan: RunPlan, found: Container | None) -> str:
    """Return in words why a container ended before it came to its command."""
    if found is None:
        return f"the container of {plan.image} was removed before it came to its command"
    if found.code == NOT_FOUND:
        return f"image {plan.image} has no /bin/sh, which starts the command"
    if found.code == UNUSABLE:
        return (
            f"the container of {plan.image} cannot write its log {plan.log_path}: "
            "its folder needs the same path for the agent and for the engine"
        )
    detail = f": {found.error}" if found.error else ""
    return f"the container of {plan.image} ended with status {found.code} at once{detail}"
