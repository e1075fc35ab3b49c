"""Jobs that `skep down` keeps in memory: suspended, with live processes, until the next `skep up`.

    skep down: suspend jobs ──> kept.json ──> stop everything but the runs of those jobs
    skep up:   start everything ──> resume the jobs, open the nodes ──> no kept.json

`kept.json` lies in the state folder. Nodes are in it before they are closed. A run belongs to a job
by its token, which begins with the job's id.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from skep.ids import job_of_run
from skep_services.supervisor import home as folder


class Kept(NamedTuple):
    """Which jobs keep their processes, and what `up` has to undo.

    `jobs`: ids of all jobs whose processes stay. `resume`: those of them that `down` suspended.
    `undrain`: the nodes that `down` closed to further work.
    """

    jobs: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()


def kept_path(home: str) -> str:
    """Return where the jobs that are kept are noted."""
    return os.path.join(home, "kept.json")


def read(home: str) -> Kept:
    """Return what is kept; nothing if the file is not there or cannot be read."""
    try:
        found = folder.read_json(kept_path(home)) or {}
        return Kept(*(tuple(map(str, found[name])) for name in Kept._fields))
    except (OSError, ValueError, TypeError, LookupError):
        return Kept()


def write(home: str, kept: Kept) -> None:
    """Note what is kept.

    Raises:
        OSError: The note cannot be written.
    """
    folder.write_json(kept_path(home), kept._asdict())


def forget(home: str) -> None:
    """Note that nothing is kept."""
    try:
        os.unlink(kept_path(home))
    except FileNotFoundError:
        pass  # Nothing was.


def is_kept(token: str, jobs: Collection[str]) -> bool:
    """Return whether a run (by its token) belongs to one of the jobs."""
    return job_of_run(token) in jobs
