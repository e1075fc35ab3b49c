"""Tables of what jobs had: GPU hours by VC, person, project, type of GPU or day.

    usage of ended jobs + usage of the others so far --> select days, group --> lines and a total

Every figure of the total is the sum of those of the lines.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from skep.ledger.blame.usage import Tally, Usage, Who

QUANTILES = (50, 95)
"""Per cent of the jobs whose wait is told."""


class By(StrEnum):
    """What a line of a report is about."""

    VC = "vc"
    USER = "user"
    PROJECT = "project"
    GPU_TYPE = "gpu-type"
    DAY = "day"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs had. `*_gpu_ns` is time of one GPU, `waited_ns` and `start_wait_ns` of jobs.

    `vc` is told with persons and projects, whose names are a VC's own. `held_gpu_ns` is
    `useful_gpu_ns`, `lost_gpu_ns`, `cancelled_gpu_ns` and `idle_gpu_ns`, in which nothing trained.
    `start_wait_s` is within which wait so many per cent of the `started` jobs got their first GPUs:
    the bound of its bucket, a power of two.
    """

    name: str
    vc: str = ""
    submitted: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    held_gpu_ns: int = 0
    useful_gpu_ns: int = 0
    lost_gpu_ns: int = 0
    cancelled_gpu_ns: int = 0
    idle_gpu_ns: int = 0
    waited_ns: int = 0
    start_wait_ns: int = 0
    start_wait_s: dict[str, int] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in order of their names, and their sum. Days are since 1970 (UTC), both inclusive."""

    by: By
    first_day: int
    last_day: int
    lines: tuple[Line, ...]
    total: Line


def report(usage: Usage, by: By, first_day: int, last_day: int, vc: str = "") -> Report:
    """Return the table of some days.

    Args:
        usage: What jobs had.
        by: What each line is about.
        first_day: The first day (days since 1970, UTC).
        last_day: The last one.
        vc: The virtual cluster; empty: all.
    """
    whole, groups = Tally(), dict[tuple[str, str], Tally]()
    for who, days in usage.items():
        if vc not in ("", who.vc):
            continue
        for day, tally in days.items():
            if first_day <= day <= last_day:
                groups.setdefault(_key(who, day, by), Tally()).add(tally)
                whole.add(tally)
    lines = tuple(_line(name, of, groups[of, name]) for of, name in sorted(groups))
    return Report(
        by=by, first_day=first_day, last_day=last_day, lines=lines, total=_line("total", "", whole)
    )


def days_of(usage: Usage) -> tuple[int, int]:
    """Return the first and the last day of which anything is told; (0, -1): of none."""
    told = [day for days in usage.values() for day in days]
    return (min(told), max(told)) if told else (0, -1)


def daily(usage: Usage, by: By, first_day: int, last_day: int, vc: str = "") -> dict[str, Report]:
    """Return a table of each day (`by` is its lines), by the name of the day, for pictures."""
    return {
        day_text(day): report(usage, by, day, day, vc) for day in range(first_day, last_day + 1)
    }


def day_text(day: int) -> str:
    """Return a day as YYYY-MM-DD."""
    # The calendar by arithmetic (days to civil): proleptic Gregorian, eras of 400 years.
    shifted = day + 719_468
    era, of_era = divmod(shifted, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * of_year + 2) // 153
    of_month = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{of_month:02}"


def _key(who: Who, day: int, by: By) -> tuple[str, str]:
    match by:
        case By.VC:
            return "", who.vc
        case By.USER:
            return who.vc, who.user
        case By.PROJECT:
            return who.vc, who.project
        case By.GPU_TYPE:
            return "", who.kind
        case By.DAY:
            return "", day_text(day)


def _line(name: str, vc: str, tally: Tally) -> Line:
    trained = tally.useful_ns + tally.lost_ns + tally.cancelled_ns
    return Line(
        name=name,
        vc=vc,
        submitted=tally.submitted,
        started=tally.started,
        completed=tally.completed,
        failed=tally.failed,
        cancelled=tally.cancelled,
        held_gpu_ns=tally.held_ns,
        useful_gpu_ns=tally.useful_ns,
        lost_gpu_ns=tally.lost_ns,
        cancelled_gpu_ns=tally.cancelled_ns,
        idle_gpu_ns=tally.held_ns - trained,
        waited_ns=tally.waited_ns,
        start_wait_ns=tally.start_wait_ns,
        start_wait_s={f"p{each}": _quantile(tally, each) for each in QUANTILES},
    )


def _quantile(tally: Tally, per_cent: int) -> int:
    """Return within how many seconds so many per cent of jobs got GPUs; 0: none did."""
    left = tally.started * per_cent
    for bucket in sorted(tally.start_waits):
        left -= 100 * tally.start_waits[bucket]
        if left <= 0:
            return int(2**bucket)
    return 0
