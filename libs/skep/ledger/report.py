"""Tables of what jobs had: GPU hours by VC, person, project, type of GPU or day.

    usage of ended jobs + usage of the others so far --> select days, group --> lines and a total

Every figure of the total is the sum of those of the lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from enum import StrEnum

import msgspec

from skep.ledger.blame.usage import Group, Tally, Usage

EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
QUANTILES = (50, 95)
"""Per cent of the jobs whose wait is told."""


class By(StrEnum):
    """What a line of a report is about."""

    VC = "vc"
    USER = "user"
    PROJECT = "project"
    GPU_TYPE = "gpu-type"
    DAY = "day"


class ReportLine(msgspec.Struct, frozen=True, kw_only=True):
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


class ReportTable(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in order of their names, and their sum. Both days (UTC) are included."""

    by: By
    first_day: str
    last_day: str
    lines: tuple[ReportLine, ...]
    total: ReportLine


class Table:
    """A report that is made piece by piece."""

    def __init__(self, by: By, first_day: int, last_day: int, vc: str = "") -> None:
        """Begin with nothing.

        Args:
            by: What each line is about.
            first_day: The first day that counts (days since 1970, UTC).
            last_day: The last one.
            vc: The virtual cluster; empty: all.
        """
        self._by, self._first, self._last, self._vc = by, first_day, last_day, vc
        self._whole = Tally()
        self._groups: dict[tuple[str, str], Tally] = {}

    def take(self, group: Group, days: Mapping[int, Tally]) -> None:
        """Add what jobs had on some days; what is not asked for changes nothing."""
        if self._vc not in ("", group.vc):
            return
        for day, tally in days.items():
            if self._first <= day <= self._last:
                self._groups.setdefault(_key(group, day, self._by), Tally()).add(tally)
                self._whole.add(tally)

    def report(self) -> ReportTable:
        """Return what was added."""
        return ReportTable(
            by=self._by,
            first_day=day_text(self._first),
            last_day=day_text(self._last),
            lines=tuple(
                _line(name, of, self._groups[of, name]) for of, name in sorted(self._groups)
            ),
            total=_line("total", "", self._whole),
        )


def report(
    usages: Iterable[Usage], by: By, first_day: int, last_day: int, vc: str = ""
) -> ReportTable:
    """Return the table of some days of usages that are added up; arguments as of `Table`."""
    table = Table(by, first_day, last_day, vc)
    for usage in usages:
        for group, days in usage.items():
            table.take(group, days)
    return table.report()


def days_of(usages: Iterable[Usage], vc: str = "") -> tuple[int, int] | None:
    """Return the first and the last day of which anything is told; None: of none."""
    told = {
        day
        for usage in usages
        for group, days in usage.items()
        if vc in ("", group.vc)
        for day in days
    }
    return (min(told), max(told)) if told else None


def day_text(day: int) -> str:
    """Return a day as YYYY-MM-DD."""
    return date.fromordinal(EPOCH_ORDINAL + day).isoformat()


def day_of(text: str) -> int:
    """Return the day of YYYY-MM-DD.

    Raises:
        ValueError: It is no such day.
    """
    return date.fromisoformat(text).toordinal() - EPOCH_ORDINAL


def _key(group: Group, day: int, by: By) -> tuple[str, str]:
    match by:
        case By.VC:
            return "", group.vc
        case By.USER:
            return group.vc, group.user
        case By.PROJECT:
            return group.vc, group.project
        case By.GPU_TYPE:
            return "", group.kind
        case By.DAY:
            return "", day_text(day)


def _line(name: str, vc: str, tally: Tally) -> ReportLine:
    trained = tally.useful_ns + tally.lost_ns + tally.cancelled_ns
    return ReportLine(
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
