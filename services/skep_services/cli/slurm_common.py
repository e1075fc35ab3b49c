"""What the commands of Slurm share: errors in one line, jobs by number, records of jobs."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Iterable
from typing import Any

from skep.slurm import arrays
from skep.slurm.listing import Record, job_record
from skep.wire.array import task_of
from skep_services.cli import exits
from skep_services.cli.client import Client, find_target, query, quote
from skep_services.cli.exits import CommandError

FAILED = 1
LISTED_MAX = 20_000
WHOLE_MAX = 2_000
"""Jobs that are looked at one by one for fields that no list has: a millisecond or two each."""


def complain(program: str, lines: Iterable[str]) -> int:
    """Say what is wrong as Slurm does, a line for each reason; return the exit code."""
    for line in lines:
        told = line if line.startswith(f"{program}: ") else f"{program}: error: {line}"
        print(told, file=sys.stderr, flush=True)
    return FAILED


def note(program: str, lines: Iterable[str]) -> None:
    """Say what a person should know; nothing is wrong."""
    for line in lines:
        print(f"{program}: {line}", file=sys.stderr, flush=True)


def client() -> Client:
    """Return a client of the cluster that the environment names."""
    return Client(find_target(None))


def user() -> str:
    """Return the name of whoever gives the command."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def told(at_ns: int) -> str:
    """Return an instant as Slurm writes it: local, without a zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_ns // 10**9))


def rows(gateway: Client, state: str, **filters: Any) -> list[dict[str, Any]]:
    """Return jobs as the gateway lists them."""
    answer = gateway.get(query("/v1/jobs", state=state, limit=LISTED_MAX, **filters))
    # What was refused at submission is no job of Slurm's.
    return [one for one in answer["jobs"] if one["state"] != "refused"]


def expanded(
    gateway: Client, found: list[dict[str, Any]], state: str, *, apart: bool
) -> list[dict[str, Any]]:
    """Return jobs, with lines of their own for what arrays consist of.

    Args:
        gateway: The gateway.
        found: Jobs and arrays as it lists them.
        state: Which jobs of an array are wanted.
        apart: Tasks that wait have a line each.
    """
    shown = []
    for each in found:
        if not each.get("tasks"):
            shown.append(each)
            continue
        jobs = rows(gateway, state, array=each["job"])
        latest = {job["task"]: job for job in sorted(jobs, key=lambda job: job["submitted_at"])}
        shown += arrays.rows_of(each, list(latest.values()), apart=apart)
    # A task may be named by the id of its array and by its own.
    return list(
        {one.get("slurm_id") or one.get("task") or one["job"]: one for one in shown}.values()
    )


def named(gateway: Client, job: str) -> dict[str, Any] | None:
    """Return a job or an array, or a task that need be no job; None: there is none of this id.

    Raises:
        CommandError: The gateway cannot be reached, or refuses.
    """
    found = row(gateway, job)
    task = task_of(job)
    if found is not None or task is None:
        return found if found is None or task is None else {**found, "task": job}
    array = row(gateway, task[0])
    return None if array is None or not array.get("tasks") else arrays.row_of(array, task[1])


def row(gateway: Client, job: str) -> dict[str, Any] | None:
    """Return a whole job; None: there is none of this id.

    Raises:
        CommandError: The gateway cannot be reached, or refuses.
    """
    try:
        found: dict[str, Any] = gateway.get(f"/v1/jobs/{quote(job)}")
    except CommandError as error:
        if error.code == exits.NOT_FOUND:
            return None
        raise
    return found


def records(gateway: Client, found: list[dict[str, Any]], *, whole: bool) -> list[Record]:
    """Return what there is to show of jobs.

    Args:
        gateway: The gateway.
        found: The jobs as it lists them.
        whole: Fields are wanted that no list has; of more than WHOLE_MAX jobs the last have them.
    """
    now_ns, me, first = time.time_ns(), user(), len(found) - WHOLE_MAX
    shown = []
    for at, each in enumerate(found):
        full = row(gateway, each["job"]) if whole and at >= first and "spec" not in each else None
        shown.append(job_record({**(full or {}), **each}, me, now_ns, told))
    return shown
