"""Volumes: folders of the nodes that an operator names, and that jobs ask for by those names.

An operator says where nodes have a volume, and which virtual cluster may read or write it. A job
says which volumes it wants, and perhaps where. Admission makes `Mount`s of the two.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from skep.wire.bounds import LISTED_MAX, Short, Words

READ, WRITE = "ro", "rw"
MODES = (READ, WRITE)
VOLUMES_MAX = 64
"""Volumes of a cluster: each is hidden from, or mounted for, each job of a node with a launcher."""
MOUNTS_MAX = 16
"""Volumes of one job."""
PLACE_CHARS_MAX = 1024
"""Characters of a place: a mount's place has to fit one line of the kernel's list of mounts."""
VARIABLES = "SKEP_VOLUME_"
"""What the variables begin with that say where a volume is."""

SYSTEM_FOLDERS = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    # tidy: allow machine-path because every Linux has it
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",  # noqa: S108 - a job has its own
    "/usr",
    "/var",
)
"""Nothing is mounted over these, or in them: programs trust what they find there."""
SHARED_FOLDERS = ("/home", "/media", "/mnt", "/opt", "/srv")
"""Nothing is mounted over these; in them it is."""


class Volume(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A folder that the nodes have at `path`.

    `mode` is `ro` or `rw`. Without `vcs` every virtual cluster may use it in that mode, else those
    that are named, each in its own. `nfs` and `s3` say what an operator has mounted there, `mount`
    by which program: then nodes use it only while something is mounted at `path`.
    """

    path: Words
    mode: Short = READ
    vcs: Annotated[dict[Words, Short], Meta(max_length=LISTED_MAX)] = {}
    nfs: Words = ""
    s3: Words = ""
    mount: Short = ""

    @property
    def mounted(self) -> bool:
        """Return whether something has to be mounted at its path."""
        return bool(self.nfs or self.mount)

    def mode_for(self, vc: str) -> str:
        """Return in which mode a virtual cluster may use it; empty: it may not."""
        return self.vcs.get(vc, "") if self.vcs else self.mode


class Mount(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A volume of one job, as admission decided: the nodes' `path` is seen at `target`.

    `mounted`: it is used only while something is mounted at `path`.
    """

    name: Short
    path: Words
    target: Words
    mode: Short = READ
    mounted: bool = False


def variable(name: str) -> str:
    """Return the variable that says where a volume is: `SKEP_VOLUME_NAME`."""
    return VARIABLES + name.upper().replace("-", "_")


def variables(mounts: tuple[Mount, ...]) -> dict[str, str]:
    """Return the variables that say where a job's volumes are."""
    return {variable(one.name): one.target for one in mounts}


def wanted(asked: Mapping[str, str] | tuple[str, ...]) -> dict[str, str]:
    """Return the volumes that a spec names, each with its place and mode, or an empty text."""
    return dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(asked, "")


def place_and_mode(text: str) -> tuple[str, str]:
    """Return the parts of `/data:ro`: each may be missing, and is then empty."""
    for mode in MODES:
        if text.endswith(f":{mode}"):
            return text[: -len(mode) - 1], mode
    return text, ""


def place_problem(place: str) -> str:
    """Return why nothing can be mounted at a place of a job, or an empty text."""
    if trouble := path_problem(place):
        return trouble
    if ":" in place:
        return "it has a colon: only `:ro` or `:rw` may end it"
    if place in SHARED_FOLDERS:
        return f"it would hide {place}: name a folder in it"
    within = system_folder(place)
    return f"{within} is the system's" if within else ""


def path_problem(path: str) -> str:
    """Return why a text is no plain full path of a folder below the root, or an empty text."""
    if not path.startswith("/"):
        return "it does not begin with `/`"
    if len(path) > PLACE_CHARS_MAX or not path.isprintable() or not _is_utf8(path):
        return f"it has more than {PLACE_CHARS_MAX} characters, or one that cannot be printed"
    if path == "/":
        return "it is the root of all folders"
    # `normpath` keeps two slashes at the beginning.
    if posixpath.normpath(path) != path or path.startswith("//"):
        return "it has `.`, `..`, or a slash too many"
    return ""


def system_folder(path: str) -> str:
    """Return which folder of the system's a path is, or is in; empty: none."""
    return next((each for each in SYSTEM_FOLDERS if inside(path, each)), "")


def inside(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or is in it, both without links."""
    return path == folder or path.startswith(folder + "/")


def overlapping(places: Mapping[str, str]) -> tuple[str, str] | None:
    """Return two of these names whose places are the same or in one another; None: there are none.

    Args:
        places: The places by names.
    """
    ordered = sorted((place + "/", name) for name, place in places.items())
    for (above, one), (below, other) in itertools.pairwise(ordered):
        if below.startswith(above):
            return one, other
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
