"""Arrays as Slurm lists them: a line for each task that has begun, and one for all that wait.

7_[4-9%2]   PD     tasks that wait, whether they are jobs yet or not
7_3         R      a task that is a job, by its index
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skep.slurm.listing import number_of
from skep.wire.array import as_ranges, from_ranges, task_of, tasks_of
from skep.wire.reasons import Reason

WAITS = "queued"
AT_LIMIT = "JobArrayTaskLimit"
"""What Slurm says of tasks that wait because of `%N`."""

GATES = (Reason.WAITS_FOR_JOBS, Reason.WAITS_FOR_TIME, Reason.HELD)
"""Why a whole array waits."""

Row = Mapping[str, Any]


def rows_of(array: Row, jobs: Sequence[Row], *, apart: bool) -> list[dict[str, Any]]:
    """Return the lines of an array: rows like those of jobs, with the id that Slurm would show.

    Args:
        array: The array as the gateway lists it.
        jobs: Its jobs as the gateway lists them; of one task only the latest.
        apart: Tasks that wait have a line each.
    """
    counts = array["tasks"]
    queued = [job for job in jobs if job["state"] == WAITS]
    waiting = sorted([*map(index_of, queued), *to_come(counts)])
    skipped = sorted(from_ranges(counts.get("skipped", "")))
    found = [{**job, "slurm_id": number_of(job["task"])} for job in jobs if job["state"] != WAITS]
    array = {**array, "tasks": None, "place": None}
    wait = {**array, "state": WAITS, "why": _why(array["why"], counts, queued)}
    most = f"%{counts['most']}" if counts.get("most") else ""
    for row, indices, bound in (
        ({**wait, "started_at": None, "ended_at": None}, waiting, most),
        ({**array, "state": "cancelled", "why": None, "started_at": None}, skipped, ""),
    ):
        texts = [str(each) for each in indices] if apart else [f"[{as_ranges(indices)}{bound}]"]
        found += [
            {**row, "slurm_id": f"{number_of(array['job'])}_{text}"}
            for text in (texts if indices else ())
        ]
    return found


def row_of(array: Row, index: int) -> dict[str, Any] | None:
    """Return the line of one task that is no job; None: there is no such task.

    Args:
        array: The array as the gateway lists it.
        index: The task's index.
    """
    for row in rows_of(array, (), apart=True):
        if row["slurm_id"] == f"{number_of(array['job'])}_{index}":
            return row
    return None


def to_come(counts: Row) -> list[int]:
    """Return the indices of the tasks that are to become jobs: they do so in their order."""
    if not counts.get("indices"):
        return []
    skipped = dict.fromkeys(from_ranges(counts.get("skipped", "")))
    order = [each for each in tasks_of(counts["indices"]).indices() if each not in skipped]
    kinds = ("queued", "running", "succeeded", "failed", "cancelled")
    waiting = max(0, counts["total"] - sum(counts.get(kind, 0) for kind in kinds))
    return order[len(order) - waiting :] if waiting else []


def index_of(job: Row) -> int:
    """Return the index of the task that a job is."""
    found = task_of(job["task"])
    assert found is not None, job["task"]
    return found[1]


def _why(why: str | None, counts: Row, queued: Sequence[Row]) -> str | None:
    """Return why tasks wait: with the whole array, for their turn, or for the bound of `%N`."""
    if why in GATES:
        return why
    if queued:
        return str(queued[0].get("why") or "") or None
    if counts.get("most") and counts.get("queued", 0) + counts.get("running", 0) >= counts["most"]:
        return AT_LIMIT
    return None
