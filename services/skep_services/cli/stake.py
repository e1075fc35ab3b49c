"""What of a job's work is lost when it is stopped, as far as it can be told before."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.render import clock_time, duration

JOBS_ASKED = 64
"""For how many jobs a gateway is asked what is at stake: a person reads no more."""
STANDS = ("running", "suspended", "stopping")


def at_stake(row: dict[str, Any], now_ns: int) -> str:
    """Return what becomes of a running job's work when it is stopped for others.

    Args:
        row: The job, as the gateway tells it.
        now_ns: The time.

    Returns:
        One sentence; empty for a job that has not begun, or has ended.
    """
    if row["state"] not in STANDS or not row.get("started_at"):
        return ""
    can, spec = row.get("can") or (), row.get("spec")
    if "checkpoint" in can and row.get("tier") == "cooperative":
        return "its state is stored before it is stopped for another job"
    if "checkpoint" in can:
        return (
            "an image of its processes is stored before it is stopped for another job; "
            "`skep checkpoint` stores one now"
        )
    if isinstance(spec, dict) and spec.get("resume") is not None:
        return "it begins again from the library's own checkpoint, if one is found"
    return f"{_since(row, now_ns)} is lost: nothing stores it (docs/how-to/resume.md)"


def at_stake_of(client: Client, jobs: Iterable[str]) -> dict[str, str]:
    """Return for each of some jobs what becomes of its work when it is stopped.

    Args:
        client: The gateway. Jobs that it does not show to the caller are left out.
        jobs: Their names; those after the first `JOBS_ASKED` are left out.
    """
    found = {}
    for job in list(dict.fromkeys(jobs))[:JOBS_ASKED]:
        try:
            text = at_stake(client.get(f"/v1/jobs/{quote(job)}"), time.time_ns())
        except (CommandError, KeyError):
            continue  # What was asked is as true without it.
        if text:
            found[job] = text
    return found


def lost_by_cancel(row: dict[str, Any], now_ns: int) -> str:
    """Return what the end of a job now loses, or an empty text: it keeps its own files."""
    if row["state"] not in STANDS or not row.get("started_at"):
        return ""
    spec = row.get("spec")
    if "checkpoint" in (row.get("can") or ()) or (
        isinstance(spec, dict) and spec.get("resume") is not None
    ):
        return ""
    return f"{_since(row, now_ns)} is lost but for the files that it wrote"


def _since(row: dict[str, Any], now_ns: int) -> str:
    last: dict[str, Any] = next(reversed(row.get("attempts") or []), {})
    at = last.get("started_at") or row["started_at"]
    return f"its work since {clock_time(at)} ({duration(max(now_ns - at, 0))})"
