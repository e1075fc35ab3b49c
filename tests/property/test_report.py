"""Reports add up: to what each job's time says, over any lines, days and pieces of a log."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from skep.ledger.blame import fold, lives, usage
from skep.ledger.blame.told import Told
from skep.ledger.blame.usage import Tally, Usage
from skep.ledger.report import By, ReportLine, ReportTable, report
from skep.units import Instant
from skep.wire.facts import End, JobQueued
from tests.blame_kit import At, Folded, live_like

DAY_S = 700
"""Of a run of some hours: jobs go on over several days."""
JOBS, SEED = 200, 1
PEOPLE, PROJECTS = ("ada", "bo", ""), ("lm", "rl", "")
EARLY, LATE = 0, 2_900_000
FIGURES = tuple(
    name for name in ReportLine.__struct_fields__ if name not in ("name", "vc", "start_wait_s")
)


@pytest.fixture
def short_days(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lives, usage):
        monkeypatch.setattr(module, "DAY_NS", DAY_S * 10**9)
    # Most of a job's time is then in sums.
    monkeypatch.setattr(lives, "STRETCHES_MAX", 3)


def owned(records: list[At]) -> list[At]:
    """Return records whose jobs have owners and labels."""
    rng = random.Random(SEED)

    def with_owner(fact: Any) -> Any:
        if not isinstance(fact, JobQueued):
            return fact
        labels = {"user": rng.choice(PEOPLE), "project": rng.choice(PROJECTS)}
        spec = msgspec.structs.replace(fact.spec, labels=labels)
        return msgspec.structs.replace(fact, spec=spec, owner=rng.choice(PEOPLE))

    return [At(one.at, tuple(map(with_owner, one.facts))) for one in records]


def checked(made: ReportTable) -> ReportTable:
    """Return a report whose lines add up to its total, and whose parts add up."""
    for figure in FIGURES:
        whole = sum(getattr(line, figure) for line in made.lines)
        assert whole == getattr(made.total, figure), (made.by, figure)
    for line in (*made.lines, made.total):
        parts = (line.useful_gpu_ns, line.lost_gpu_ns, line.cancelled_gpu_ns, line.idle_gpu_ns)
        assert min(parts) >= 0, line
        assert sum(parts) == line.held_gpu_ns, line
    return made


def matches(made: ReportTable, told: list[Told]) -> None:
    """Assert that a total is what jobs' own time comes to."""
    total, over = made.total, [one for one in told if one.end]
    cancelled = [one for one in told if one.end == End.CANCELLED]
    assert total.submitted == len(told)
    assert total.completed + total.failed + total.cancelled == len(over)
    assert total.cancelled == len(cancelled)
    assert total.held_gpu_ns == sum(one.held_gpu_ns for one in told)
    assert total.lost_gpu_ns == sum(one.lost_gpu_ns for one in told)
    assert total.cancelled_gpu_ns == sum(one.useful_gpu_ns for one in cancelled)
    trained = sum(one.useful_gpu_ns for one in told)
    assert total.useful_gpu_ns == trained - total.cancelled_gpu_ns


@pytest.mark.usefixtures("short_days")
@pytest.mark.parametrize("part", [1.0, 0.4])
def test_a_report_is_the_sum_of_the_jobs_however_it_is_cut(part: float) -> None:
    records = owned(live_like(JOBS, SEED)[0])
    records = records[: int(len(records) * part)]
    folded = Folded().take(records)
    now, unended = Instant(folded.blame.clock + 10**10), Usage()
    told = list(folded.told.values())
    for job in folded.blame.lives:
        fold.count_unended(folded.blame, unended, job, now)
        one = fold.told_of(folded.blame, job, now)
        assert one is not None
        told.append(one)
    both = (folded.blame.usage, unended)
    wholes = [checked(report(both, by, EARLY, LATE)) for by in By]
    for whole in wholes:
        matches(whole, told)
        assert whole.total == wholes[0].total
    assert len(wholes[1].lines) > len(PEOPLE)
    for vc in ("nlp", "vision", "lab"):
        of_it = checked(report(both, By.USER, EARLY, LATE, vc))
        matches(of_it, [one for one in told if one.vc == vc])
    days = [checked(report(both, By.VC, day, day)) for day in days_in(both)]
    assert len(days) > 5
    for figure in FIGURES:
        whole_days = sum(getattr(day.total, figure) for day in days)
        assert whole_days == getattr(wholes[0].total, figure), figure


@pytest.mark.usefixtures("short_days")
def test_no_day_has_more_gpu_time_than_the_gpus_have() -> None:
    folded = Folded().take(live_like(JOBS, SEED)[0])
    gpus = 5 * 8
    for day in days_in((folded.blame.usage,)):
        made = report((folded.blame.usage,), By.VC, day, day)
        assert made.total.held_gpu_ns <= gpus * DAY_S * 10**9, day


@pytest.mark.usefixtures("short_days")
def test_a_report_from_pieces_of_a_log_is_that_of_the_whole() -> None:
    records = owned(live_like(JOBS, SEED)[0])
    whole, parts = Folded().take(records), Folded()
    for first in range(0, len(records), 500):
        parts = parts.take(records[first : first + 500]).again()
    assert parts.blame.usage == whole.blame.usage


def test_labels_without_end_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "GROUPS_MAX", 4)
    folded = Folded().take(owned(live_like(JOBS, SEED)[0]))
    made = checked(report((folded.blame.usage,), By.PROJECT, EARLY, LATE))
    assert usage.OTHERS in {line.name for line in made.lines}
    assert len(folded.blame.usage) <= 4 + 3
    matches(made, list(folded.told.values()))


@pytest.mark.parametrize("wait_s", [0, 1, 1.5, 2, 3, 4, 4.1, 1000])
def test_a_wait_is_within_the_bound_of_its_bucket(wait_s: float) -> None:
    bound = 2 ** usage.bucket_of(int(wait_s * 10**9))
    assert wait_s <= bound
    assert bound == 1 or bound < 2 * wait_s


def days_in(usages: tuple[Usage, ...]) -> list[int]:
    return sorted({day for one in usages for days in one.values() for day in days})


def test_tallies_add_every_figure() -> None:
    figures = [name for name in Tally.__struct_fields__ if name != "start_waits"]

    def tally(step: int, waits: dict[int, int]) -> Tally:
        made = Tally(start_waits=waits)
        for number, figure in enumerate(figures, 1):
            setattr(made, figure, number * step)
        return made

    one = tally(1, {3: 1, 5: 2})
    one.add(tally(10, {5: 1}))
    assert one == tally(11, {3: 1, 5: 3})
