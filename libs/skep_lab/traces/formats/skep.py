"""Skep's own form: a line of JSON about the trace, then one for each job (TraceJob's fields).

    {"skep_trace": 1, "name": "mine", "jobs": 2, "notes": []}
    {"id": "a", "at": 0, "run_time": 60000000000, "gpus": 1}
    {"id": "b", "at": 1500000000, "run_time": 60000000000, "gpus": 8, "vc": "nlp"}

Times are nanoseconds. What is 0, empty or false may be left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from skep_lab.traces.formats.form import Numbered
from skep_lab.traces.formats.row import NO_GPU, WHOLE, RowError, near
from skep_lab.traces.job import RowProblem, Trace, TraceJob

NAME, ABOUT = "skep", "Skep's own: JSON lines, `skep traces convert` writes it"
VERSION = 1
FIELDS = [field.name for field in msgspec.structs.fields(TraceJob)]


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line. `jobs` is how many lines follow, so that a truncated file is detected."""

    skep_trace: int
    name: str
    jobs: int
    notes: tuple[str, ...] = ()


def write(trace: Trace) -> Iterator[str]:
    """Yield the lines of a trace, each with its end.

    A reader gets the same jobs in the same order under the same name. Problems are not written
    (their rows are not in the trace); notes are, without their rows.
    """
    notes = tuple(note.text for note in trace.notes)
    head = Head(skep_trace=VERSION, name=trace.name, jobs=len(trace.jobs), notes=notes)
    yield msgspec.json.encode(head).decode() + "\n"
    encoder = msgspec.json.Encoder()
    for job in trace.jobs:
        yield encoder.encode(job).decode() + "\n"


def is_head(line: str) -> str:
    """Return why a line is not the first line of this format; "": it is."""
    try:
        head = msgspec.json.decode(line, type=Head)
    except msgspec.DecodeError as error:
        return f'its first line is not {{"skep_trace": {VERSION}, ...}}: {error}'
    if head.skep_trace != VERSION:
        return f"it is of version {head.skep_trace}; this Skep reads {VERSION}"
    return ""


def rows(lines: Iterable[str]) -> tuple[Head, list[Numbered], list[RowProblem]]:
    """Return the head, and jobs and problems of the lines after it. Empty lines are skipped.

    Raises:
        msgspec.DecodeError: The first line is no head.
    """
    iterator = iter(lines)
    head = msgspec.json.decode(next(iterator), type=Head)
    jobs: list[Numbered] = []
    problems: list[RowProblem] = []
    for number, line in enumerate(iterator, 1):
        if not line.strip():
            continue
        try:
            jobs.append((number, _job(line)))
        except RowError as error:
            problems.append(error.at(number))
    if len(jobs) + len(problems) != head.jobs:
        text = f"says that it has {head.jobs} jobs, and has {len(jobs) + len(problems)}"
        problems.append(RowProblem(0, text, "", "is the file cut off?"))
    return head, jobs, problems


def _job(line: str) -> TraceJob:
    try:
        tree = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise RowError(column="", text=f"is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise RowError(column="", text="is not a JSON object")
    for key in tree:
        if key not in FIELDS:
            raise RowError(key, f"is not a field of a job: {key!r}", near(key, FIELDS))
    if isinstance(tree.get("gpus"), float):
        text = f"asks for a fraction of a GPU: {tree['gpus']}"
        raise RowError(column="gpus", text=text, hint=WHOLE)
    try:
        job = msgspec.convert(tree, TraceJob)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise RowError(path.rstrip("`"), text) from None
    for column, least in (("at", 0), ("run_time", 0), ("gpus", 0), ("workers", 0)):
        value = getattr(job, column)
        if value < least:
            raise RowError(column, f"is negative: {value}")
    if job.gpus == 0:
        raise RowError(column="gpus", text="asks for no GPU", hint=NO_GPU)
    if job.workers and job.gpus % job.workers:
        raise RowError(
            column="workers", text=f"do not divide the GPUs: {job.workers} of {job.gpus}"
        )
    return job
