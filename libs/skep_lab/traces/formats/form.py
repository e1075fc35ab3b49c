"""What a published form of trace is: its columns, and how a row of it becomes a job."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import RowProblem, TraceJob

Numbered = tuple[int, TraceJob]
"""A job and the row that it is from."""

Merge = Callable[[list[Numbered], Set[str]], tuple[list[Numbered], list[RowProblem], int]]
"""Makes one job of several rows, and none of a job of which a row is a problem (the set: their
ids). Returns jobs, problems, and how many rows went into others' jobs."""


class Form(NamedTuple):
    """A table of one row for each job, separated by commas or tabs."""

    name: str
    about: str
    """Whose it is and where it was published, on one line."""
    columns: tuple[str, ...]
    """Columns without which it is not this form; in this order where there is no header."""
    job: Callable[[Row], TraceJob]
    optional: tuple[str, ...] = ()
    """Columns that are read where they are there."""
    layouts: tuple[tuple[str, ...], ...] = ()
    """Columns of tables without a header, told apart by how many there are."""
    known: Callable[[list[str]], bool] | None = None
    """Whether the values of the first row are those of a table without header."""
    tabs: bool = False
    from_first: bool = False
    """Its clock began elsewhere: times are counted from the first job."""
    no_lengths: bool = False
    """It says how much a job does, not how long that takes: run times are looked up."""
    merge: Merge | None = None


def layout_of(
    form: Form, first: list[str], *, sure: bool = False
) -> tuple[tuple[str, ...], bool] | str:
    """Return a table's columns by its first row, and whether that is a header; or why it is not.

    `sure`: it is of this form, so without a header its columns only have to be as many.
    """
    stripped = tuple(each.strip() for each in first)
    if set(form.columns) <= set(stripped):
        return stripped, True
    if form.known is not None:
        for layout in form.layouts:
            if len(layout) == len(first) and (sure or form.known(first)):
                return layout, False
        counts = " or ".join(str(len(layout)) for layout in form.layouts)
        by = "tabs" if form.tabs else "commas"
        return f"its first row is not {counts} values between {by} as this form has them"
    missing = [column for column in form.columns if column not in stripped]
    return f"no column {', '.join(missing)}"
