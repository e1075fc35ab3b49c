"""What each person, project and type of GPU had, day by day: sums of ended jobs, for reports.

A job is counted where its time was spent: GPU time on the day (UTC) on which it was held, and by
the type of GPU that it was of. All sums are integers, so they come to those of the jobs exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skep.ledger.blame.causes import BEFORE_GPUS, TRAINING, Cause
from skep.ledger.blame.lives import DAY_NS, Life, Stretch, Sum, by_day
from skep.wire.facts import End

GROUPS_MAX = 100_000
"""Different sums that are kept. Labels are free text: of further ones those of a VC are one, whose
project is OTHERS."""
OTHERS = "(others)"
FIRST_BUCKET_NS = 1_000_000_000
"""Waits up to this are in the first bucket; each further one is up to twice as long."""


class Group(msgspec.Struct, frozen=True, order=True, gc=False):
    """What a sum is of. Empty: not known, or not told by the job."""

    vc: str
    user: str = ""
    """The person: the owner of the job, else its label `user`."""
    project: str = ""
    """The job's label `project`."""
    kind: str = ""
    """The type of GPU."""


class Tally(msgspec.Struct, omit_defaults=True, gc=False):
    """What jobs come to on one day.

    `useful_ns` made mini-batches that survive, as far as the facts tell; `lost_ns` made some that
    do not; `cancelled_ns` trained in jobs that were cancelled. They and the time in which nothing
    trained (starts, stops, suspensions that keep GPUs) come to `held_ns`. All four are GPU time.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    held_ns: int = 0
    useful_ns: int = 0
    lost_ns: int = 0
    cancelled_ns: int = 0
    waited_ns: int = 0
    """Time of jobs without GPUs: not GPU time."""
    started: int = 0
    """Jobs that got GPUs for the first time."""
    start_wait_ns: int = 0
    """How long those had waited by then, together."""
    start_waits: dict[int, int] = {}
    """How many of them waited how long: the count by `bucket_of`."""

    def add(self, more: Tally) -> None:
        """Add another one."""
        self.submitted += more.submitted
        self.completed += more.completed
        self.failed += more.failed
        self.cancelled += more.cancelled
        self.held_ns += more.held_ns
        self.useful_ns += more.useful_ns
        self.lost_ns += more.lost_ns
        self.cancelled_ns += more.cancelled_ns
        self.waited_ns += more.waited_ns
        self.started += more.started
        self.start_wait_ns += more.start_wait_ns
        for bucket, jobs in more.start_waits.items():
            self.start_waits[bucket] = self.start_waits.get(bucket, 0) + jobs


Usage = dict[Group, dict[int, Tally]]
"""By day: days since 1970 (UTC)."""


def bucket_of(wait_ns: int) -> int:
    """Return which bucket a wait is in: bucket b is of waits up to 2^b seconds."""
    return (max(0, wait_ns - 1) // FIRST_BUCKET_NS).bit_length()


def count(
    usage: Usage, life: Life, stretches: Iterable[Stretch], sums: Iterable[Sum], end: str = ""
) -> None:
    """Add what a job had.

    Args:
        usage: Changed.
        life: The job. It is not changed.
        stretches: Its latest time, by cause.
        sums: What is older, by cause and day.
        end: How it ended; empty: it has not.
    """
    kind = life.kind or life.gpu_type
    cancelled = end == End.CANCELLED

    def tally(of: str, day: int) -> Tally:
        group = Group(life.vc, life.user, life.project, of or kind)
        if group not in usage and len(usage) >= GROUPS_MAX:
            group = Group(life.vc, "", OTHERS)
        return usage.setdefault(group, {}).setdefault(day, Tally())

    for stretch in stretches:
        for part in by_day(stretch):
            _spend(tally(part.kind, part.day), part, cancelled=cancelled)
    for one in sums:
        _spend(tally(one.kind, one.day), one, cancelled=cancelled)
    tally("", life.begin // DAY_NS).submitted += 1
    if life.bound_at:
        waited = life.bound_at - life.begin
        at = tally("", life.bound_at // DAY_NS)
        at.started += 1
        at.start_wait_ns += waited
        bucket = bucket_of(waited)
        at.start_waits[bucket] = at.start_waits.get(bucket, 0) + 1
    if end:
        at = tally("", life.at // DAY_NS)
        at.cancelled += cancelled
        at.failed += end == End.FAILED
        at.completed += not cancelled and end != End.FAILED


def merged(usage: Usage, more: Usage) -> None:
    """Add sums to others."""
    for group, days in more.items():
        known = usage.setdefault(group, {})
        for day, tally in days.items():
            known.setdefault(day, Tally()).add(tally)


def _spend(tally: Tally, part: Sum, *, cancelled: bool) -> None:
    tally.held_ns += part.gpu_ns
    if part.cause in TRAINING:
        tally.useful_ns += 0 if cancelled else part.gpu_ns
        tally.cancelled_ns += part.gpu_ns if cancelled else 0
    elif part.cause is Cause.WORK_LOST:
        tally.lost_ns += part.gpu_ns
    elif part.cause in BEFORE_GPUS and not part.gpu_ns:
        tally.waited_ns += part.length
