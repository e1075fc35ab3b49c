"""Volumes in a cluster file: reading and checking what an operator wrote.

    volumes:
      datasets: /mnt/datasets                               # to read, for every VC
      scratch: {path: /mnt/scratch, mode: rw, nfs: "filer:/export/scratch"}
      models: {path: /mnt/models, vcs: {nlp: rw, vision: ro}}
      bucket: {path: /mnt/bucket, s3: "s3://acme/data", mount: rclone, vcs: [nlp]}

Nodes have a volume at `path`. Skep mounts nothing there: an operator does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from skep.ids import is_token
from skep.wire.parse import kind_of, nearest
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep.wire.volumes import (
    MODES,
    VOLUMES_MAX,
    Volume,
    overlapping,
    path_problem,
    system_folder,
    variable,
)

KEYS = ("path", "mode", "vcs", "nfs", "s3", "mount")
RCLONE = "rclone"
TEXTS = ("mode", "nfs", "s3", "mount")
OPERATORS = ("/var", "/tmp")  # noqa: S108
"""Of the folders of the system those in which an operator may keep a volume."""


def read_volumes(value: Any) -> tuple[dict[str, Volume], list[Problem]]:
    """Return the volumes of a cluster file that can be read, and what is wrong with the others.

    Args:
        value: What the file has under `volumes`; of any type.
    """
    if value is None:
        return {}, []
    if not isinstance(value, dict):
        return {}, [_wrong_type("$.volumes", "volumes by name", value)]
    found: dict[str, Volume] = {}
    problems: list[Problem] = []
    for name, entry in value.items():
        made = _volume(f"$.volumes.{name}", entry)
        if not isinstance(name, str):
            text = f"the key `{name}` must be text, not {kind_of(name)}"
            problems.append(_problem(f"$.volumes.{name}", text, "put it in quotes"))
        elif isinstance(made, Volume):
            found[name] = made
        else:
            problems += made
    return found, problems


def _volume(path: str, entry: Any) -> Volume | list[Problem]:
    if isinstance(entry, str):
        return Volume(path=entry)
    if not isinstance(entry, dict):
        return [_wrong_type(path, "a path, or an object such as {path: /mnt/data}", entry)]
    problems = [
        Problem(
            path=f"{path}.{key}",
            reason=Reason.UNKNOWN_KEY,
            text=f"unknown key `{key}`",
            suggestion=nearest(str(key), list(KEYS)) or f"known are {', '.join(KEYS)}",
        )
        for key in entry
        if key not in KEYS
    ]
    problems += [
        _wrong_type(f"{path}.{key}", "text", entry[key])
        for key in ("path", *TEXTS)
        if key in entry and not isinstance(entry[key], str)
    ]
    if "path" not in entry:
        text = "`path` is required: where the nodes have it"
        if entry.get("s3") and not entry.get("mount"):
            problems.append(_only_mounted(path))
        else:
            problems.append(Problem(path=f"{path}.path", reason=Reason.MISSING_KEY, text=text))
    vcs = entry.get("vcs", {})
    if isinstance(vcs, list) and all(isinstance(vc, str) for vc in vcs):
        vcs = dict.fromkeys(vcs, entry.get("mode", "ro"))
        if not vcs:
            text = "`vcs` is empty: no virtual cluster could use it"
            problems.append(_problem(f"{path}.vcs", text, "leave it out for every VC"))
    elif not isinstance(vcs, dict) or not all(
        isinstance(vc, str) and isinstance(mode, str) for vc, mode in vcs.items()
    ):
        wanted = "a list of virtual clusters, or modes by virtual cluster"
        problems.append(_wrong_type(f"{path}.vcs", wanted, vcs))
    if problems:
        return problems
    return Volume(path=entry["path"], vcs=vcs, **{key: entry[key] for key in TEXTS if key in entry})


def volume_problems(volumes: Mapping[str, Volume], vcs: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what is wrong with volumes whose types are right.

    Args:
        volumes: The volumes by name.
        vcs: The virtual clusters that there are, by name.
    """
    if len(volumes) > VOLUMES_MAX:
        yield _problem("$.volumes", f"{len(volumes)} volumes; at most {VOLUMES_MAX}")
        return
    variables: dict[str, str] = {}
    for name, one in volumes.items():
        path = f"$.volumes.{name}"
        if not is_token(name):
            text = f"{name!r} is no name for a volume (letters, digits, _, -; 63 at most)"
            yield _problem("$.volumes", text)
            continue
        other = variables.setdefault(variable(name), name)
        if other != name:
            yield _problem(path, f"`{name}` and `{other}` would both be ${variable(name)}")
        yield from _place(path, one)
        yield from _rights(path, one, vcs)
    both = overlapping({name: one.path for name, one in volumes.items()})
    if both is not None:
        text = (
            f"{volumes[both[1]].path} is {volumes[both[0]].path}, or in it, which is volume "
            f"`{both[0]}`"
        )
        yield Problem(
            path=f"$.volumes.{both[1]}.path",
            reason=Reason.PLACES_OVERLAP,
            text=text,
            suggestion="name folders beside one another: rights could not be told apart",
        )


def _place(path: str, one: Volume) -> Iterator[Problem]:
    """Yield what is wrong with where a volume is, and with what is said to be mounted there."""
    trouble, within = path_problem(one.path), system_folder(one.path)
    if trouble:
        text = f"{one.path[:200]!r} is no path of a folder: {trouble}"
        yield _problem(f"{path}.path", text, "write the full path, such as /mnt/data")
    elif ":" in one.path:
        yield _problem(f"{path}.path", f"{one.path!r} has a colon, and no path of a volume may")
    elif within and (within not in OPERATORS or within == one.path):
        yield _problem(f"{path}.path", f"{one.path} is in {within}, which is the system's")
    if one.nfs and one.s3:
        yield _problem(path, "it is on NFS or on S3, not both", "leave out `nfs` or `s3`")
    if one.nfs and not _names_export(one.nfs):
        text = f"`nfs` is {one.nfs[:200]!r}: it must be SERVER:/EXPORT"
        yield _problem(f"{path}.nfs", text)
    if one.s3 and not (one.s3.startswith("s3://") and len(one.s3) > 5 and one.s3.isprintable()):
        yield _problem(f"{path}.s3", f"`s3` is {one.s3[:200]!r}: it must be s3://BUCKET/PREFIX")
    if one.s3 and one.mount != RCLONE:
        yield _only_mounted(path)
    elif one.mount and not one.s3:
        yield _problem(f"{path}.mount", "`mount` says how a bucket is mounted: `s3` names none")


def _names_export(text: str) -> bool:
    server, mark, export = text.rpartition(":/")
    return bool(server and mark) and text.isprintable() and " " not in text and export != "/"


def _rights(path: str, one: Volume, vcs: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what is wrong with which virtual cluster may use a volume how."""
    for key, mode in (("mode", one.mode), *((f"vcs.{vc}", each) for vc, each in one.vcs.items())):
        if mode not in MODES:
            text = f"{mode[:64]!r} is no mode: `ro` (to read) or `rw` (to write)"
            yield _problem(f"{path}.{key}", text)
    for vc in one.vcs:
        if vc not in vcs:
            yield Problem(
                path=f"{path}.vcs",
                reason=Reason.UNKNOWN_VC,
                text=f"there is no virtual cluster `{vc}`",
                suggestion=nearest(vc, sorted(vcs)),
            )


def _only_mounted(path: str) -> Problem:
    return Problem(
        path=path,
        reason=Reason.NOT_BUILT,
        text="buckets that are not mounted on the nodes are not built yet",
        suggestion="mount it with rclone, and write `path: /mnt/...` and `mount: rclone`",
    )


def _problem(path: str, text: str, suggestion: str = "") -> Problem:
    return Problem(path=path, reason=Reason.BAD_VALUE, text=text, suggestion=suggestion)


def _wrong_type(path: str, wanted: str, value: Any) -> Problem:
    name = path.rpartition(".")[2]
    text = f"`{name}` must be {wanted}, not {kind_of(value)}"
    return Problem(path=path, reason=Reason.WRONG_TYPE, text=text)
