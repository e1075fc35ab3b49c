"""Read traces: recognise the format, turn rows into jobs, and count everything that is wrong."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, pairwise

import msgspec

from skep.units import NS_PER_SECOND, Duration, seconds
from skep_lab.traces.formats import skep
from skep_lab.traces.formats.alibaba import ALIBABA_2020, ALIBABA_2023
from skep_lab.traces.formats.chronus import CHRONUS
from skep_lab.traces.formats.elasticflow import ELASTICFLOW
from skep_lab.traces.formats.form import Form, Numbered, layout_of
from skep_lab.traces.formats.gavel import GAVEL
from skep_lab.traces.formats.helios import HELIOS
from skep_lab.traces.formats.muri import MURI
from skep_lab.traces.formats.philly import PHILLY
from skep_lab.traces.formats.pollux import POLLUX
from skep_lab.traces.formats.row import Row, RowError, near
from skep_lab.traces.formats.tiresias import TIRESIAS
from skep_lab.traces.job import RowProblem, Trace, TraceJob
from skep_lab.traces.problems import BadTraceError

FORMS = {
    form.name: form
    for form in (
        PHILLY,
        HELIOS,
        ALIBABA_2020,
        ALIBABA_2023,
        TIRESIAS,
        MURI,
        POLLUX,
        GAVEL,
        ELASTICFLOW,
        CHRONUS,
    )
}
"""Every format of tables, by name. Skep's own is separate (`formats.skep`)."""

FORMATS = {name: form.about for name, form in FORMS.items()} | {skep.NAME: skep.ABOUT}
"""All formats that can be read, with a line about each."""

TIME_MAX = seconds(3e9)
"""A larger time is a mistake. Two times up to this, counted from now, fit into 63 bits."""
COUNT_MAX = 2**62
"""A larger number cannot be sent to another process."""

WALL_S = 10**9
"""A clock that shows at least so many seconds since 1970 is a wall clock (September 2001)."""

Lengths = Callable[[TraceJob], float]
"""Returns how many seconds a job ran by its trace; 0.0: unknown."""


def read(
    lines: Iterable[str],
    name: str,
    format: str | None = None,  # noqa: A002 - the word of the command line
    *,
    lenient: bool = False,
    lengths: Lengths | None = None,
) -> Trace:
    """Return the trace of a file's lines, its jobs in the order of submission.

    Every row is a job or a problem (or, if jobs have several rows, counted in a note), so jobs +
    problems of rows = rows.

    Args:
        lines: The lines.
        name: The name of the trace, for messages.
        format: The name of a format; None: the first line decides.
        lenient: Return problems in the result instead of raising.
        lengths: Run times for formats without them.

    Raises:
        BadTraceError: With all problems. If `lenient`, only if nothing can be read: no such
            format, columns missing, no job at all.
    """
    iterator = iter(lines)
    first = next((line for line in iterator if line.strip()), "").lstrip("\ufeff")
    chosen = recognise(first, name, format)
    whole = chain([first], iterator)
    if chosen is None:
        head, jobs, problems = skep.rows(whole)
        trace = _checked(head.name, jobs, problems, [RowProblem(0, text) for text in head.notes])
    else:
        layout = layout_of(chosen, _first(chosen, first), sure=format is not None)
        assert not isinstance(layout, str), layout
        trace = _table(chosen, layout, whole, name, lengths)
    if trace.problems and (not lenient or not trace.jobs):
        raise BadTraceError(name, trace.problems, len(trace.jobs))
    return trace


def recognise(first: str, name: str, format: str | None = None) -> Form | None:  # noqa: A002
    """Return the format of a table by its first line, None for Skep's own.

    If several fit, it is the one that needs most columns. A given format without a header is
    accepted, whatever is wrong with the first row.

    Args:
        first: The first line.
        name: The name of the trace, for messages.
        format: The name of a format; None: unknown.

    Raises:
        BadTraceError: No such format, or the line is not of it; it says why for each one tried.
    """
    if not first.strip():
        raise BadTraceError(name, (RowProblem(0, "is empty: no header and no rows"),))
    if format is not None and format not in FORMATS:
        hint = near(format, list(FORMATS)) or f"formats: {', '.join(FORMATS)}"
        raise BadTraceError(name, (RowProblem(0, f"no format {format!r}", "", hint),))
    if format in (None, skep.NAME):
        reason = skep.is_head(first) if format or first.lstrip().startswith("{") else "no JSON"
        if not reason:
            return None
        if format:
            raise BadTraceError(name, (RowProblem(0, f"is not in the format skep: {reason}"),))
    tried = [FORMS[format]] if format else list(FORMS.values())
    found = {
        form.name: layout_of(form, _first(form, first), sure=format is not None) for form in tried
    }
    fitting = [form for form in tried if not isinstance(found[form.name], str)]
    if fitting:
        return max(fitting, key=lambda form: len(form.columns))
    reasons = tuple(
        RowProblem(0, f"is not in the format {each}: {why}") for each, why in found.items()
    )
    if format is None and (nearest := _nearest(first)):
        text = f"is in no format that is read; the nearest is {nearest.name}"
        reasons = (RowProblem(0, text, "", "the columns must have these names"), *reasons)
    if format is None and first.lstrip().startswith("{"):
        reasons = (RowProblem(0, f"is not in the format skep: {skep.is_head(first)}"), *reasons)
    raise BadTraceError(name, reasons)


def _nearest(first: str) -> Form | None:
    """Return the format with most columns in a header; None if none has half of its columns."""

    def there(form: Form) -> float:
        names = {each.strip() for each in _first(form, first)}
        return len(names & set(form.columns)) / len(form.columns)

    nearest = max(FORMS.values(), key=there)
    return nearest if there(nearest) >= 0.5 else None


def _first(form: Form, line: str) -> list[str]:
    return next(_values(form, [line]), [])


def _values(form: Form, lines: Iterable[str]) -> Iterator[list[str]]:
    if form.tabs:
        return csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return csv.reader(lines)


def _table(
    form: Form,
    layout: tuple[tuple[str, ...], bool],
    lines: Iterable[str],
    name: str,
    lengths: Lengths | None,
) -> Trace:
    columns, header = layout
    jobs: list[Numbered] = []
    problems: list[RowProblem] = []
    notes: list[RowProblem] = []
    bad: set[str] = set()
    empty = merged = 0
    whole = _Whole(lines)
    for number, values in enumerate(_values(form, _unbroken(whole)), 0 if header else 1):
        if number == 0:
            continue
        if not any(each.strip() for each in values):
            empty += 1
            continue
        try:
            jobs.append((number, _row(form, columns, number, values)))
        except RowError as error:
            problems.append(whole.judge(error.at(number)))
            bad.update(
                each.strip()
                for name, each in zip(columns, values, strict=False)
                if name == form.columns[0]
            )
    if form.merge is not None:
        jobs, more, merged = form.merge(jobs, bad)
        problems += more
        if merged:
            notes.append(RowProblem(0, f"{merged} rows are parts of jobs that other rows began"))
    if form.no_lengths:
        jobs = _with_lengths(jobs, problems, lengths)
    if empty:
        notes.append(RowProblem(0, f"{empty} empty lines"))
    unread = [each for each in columns if each not in (*form.columns, *form.optional)]
    if unread and header:
        notes.append(RowProblem(0, f"columns that are not read: {', '.join(unread)}"))
    return _checked(name, jobs, problems, notes, from_first=form.from_first, parts=merged)


class _Whole:
    """The lines of a file, which may end within one."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._ahead = next(self._lines, None)
        self.last = False
        """The line that was read last is the file's last, and has no end."""

    def __iter__(self) -> Iterator[str]:
        while (line := self._ahead) is not None:
            self._ahead = next(self._lines, None)
            self.last = self._ahead is None and not line.endswith("\n")
            yield line

    def judge(self, problem: RowProblem) -> RowProblem:
        """Return a problem of the line that was read last, with what may have caused it."""
        if not self.last or problem.hint:
            return problem
        return msgspec.structs.replace(problem, hint="the file ends within it: is it cut off?")


def _unbroken(lines: Iterable[str]) -> Iterator[str]:
    """Return the lines without what stops the csv module: NUL bytes, and quotes that span lines."""
    for line in lines:
        clean = line.replace("\0", "\ufffd")
        yield clean if clean.count('"') % 2 == 0 else clean.replace('"', "'")


def _row(form: Form, columns: Sequence[str], number: int, values: list[str]) -> TraceJob:
    if len(values) != len(columns):
        raise RowError(column="", text=f"has {len(values)} values, not {len(columns)}")
    job = form.job(Row(number, dict(zip(columns, values, strict=True))))
    if not job.id:
        raise RowError(form.columns[0], "is empty")
    return job


def _with_lengths(
    jobs: list[Numbered], problems: list[RowProblem], lengths: Lengths | None
) -> list[Numbered]:
    """Return the jobs with their run times looked up; jobs of unknown run time become problems."""
    known: list[Numbered] = []
    for number, job in jobs:
        run_s = job.run_time / NS_PER_SECOND or (lengths(job) if lengths is not None else 0.0)
        if run_s > 0:
            known.append((number, msgspec.structs.replace(job, run_time=seconds(run_s))))
        elif lengths is None:
            hint = "give measured speeds (--measured)"
            problems.append(RowProblem(number, "says no run time", "", hint))
        else:
            # tidy: allow word because messages about traces keep their text
            text = f"nobody measured how long it runs: {job.model} on {job.gpus} GPUs"
            problems.append(RowProblem(number, text))
    return known


def _checked(
    name: str,
    jobs: list[Numbered],
    problems: list[RowProblem],
    notes: list[RowProblem],
    *,
    from_first: bool = False,
    parts: int = 0,
) -> Trace:
    """Return a trace of the jobs that can run, in order, each id once."""
    seen: dict[str, int] = {}
    good: list[Numbered] = []
    for number, job in jobs:
        if job.id in seen:
            text = f"is there twice: {job.id!r} is row {seen[job.id]}"
            problems.append(RowProblem(number, text, "id", "the first one counts"))
        elif too_large := _too_large(job):
            seen[job.id] = number
            problems.append(too_large.at(number))
        elif job.run_time <= 0:
            seen[job.id] = number
            less = "is negative" if job.run_time < 0 else "runs for no time"
            problems.append(RowProblem(number, less, "run time"))
        else:
            seen[job.id] = number
            good.append((number, job))
    if not good and not problems:
        problems.append(RowProblem(0, "has no rows"))
    unsorted = [now for (_, before), now in pairwise(good) if now[1].at < before.at]
    if unsorted:
        text = f"{len(unsorted)} of {len(good)} rows are earlier than the row before; sorted"
        notes.append(RowProblem(unsorted[0][0], text))
    good.sort(key=lambda each: each[1].at)
    ordered = [job for _, job in good]
    if from_first and ordered and ordered[0].at:
        begin = ordered[0].at
        notes.append(RowProblem(0, f"times are counted from the first job, {_clock(begin)}"))
        ordered = [_earlier(job, begin) for job in ordered]
    problems.sort(key=lambda problem: problem.row)
    return Trace(
        name=name,
        jobs=tuple(ordered),
        problems=tuple(problems),
        notes=tuple(notes),
        rows=tuple(number for number, _ in good),
        parts=parts,
    )


def _too_large(job: TraceJob) -> RowError | None:
    """Return which number of a job is too large for any run; None: none is."""
    for what, time in (
        ("submission", job.at),
        ("run time", job.run_time),
        ("deadline", job.deadline or 0),
    ):
        if abs(time) > TIME_MAX:
            text = f"is too large: {time / NS_PER_SECOND:.3g} s"
            return RowError(what, text, f"{TIME_MAX / NS_PER_SECOND:.0e} s (95 years) at the most")
    for what in ("gpus", "mini_batches", "memory"):
        count = getattr(job, what)
        if count > COUNT_MAX:
            return RowError(what, f"is too large: {count:.3g}")
    return None


def _clock(begin: Duration) -> str:
    if begin < WALL_S * NS_PER_SECOND:
        return f"{begin / NS_PER_SECOND:.0f} s on the trace's clock"
    wall = datetime.fromtimestamp(begin / NS_PER_SECOND, UTC)
    return f"{wall:%Y-%m-%d %H:%M:%S} on the cluster's clock"


def _earlier(job: TraceJob, begin: Duration) -> TraceJob:
    deadline = None if job.deadline is None else Duration(job.deadline - begin)
    return msgspec.structs.replace(job, at=Duration(job.at - begin), deadline=deadline)
