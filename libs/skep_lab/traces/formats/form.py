"""A published format of traces: its columns, and how a row becomes a job."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import RowProblem, TraceJob

Numbered = tuple[int, TraceJob]
"""A job and the row that it is from."""

Merge = Callable[[list[Numbered], Set[str]], tuple[list[Numbered], list[RowProblem], int]]
"""Combines rows into jobs, and drops jobs of which a row is a problem (the set: their ids).

Returns jobs, problems, and how many rows were added to other rows' jobs."""


class Form(NamedTuple):
    """A table with one row for each job, separated by commas or tabs."""

    name: str
    about: str
    """The authors and the place of publication, on one line."""
    columns: tuple[str, ...]
    """Columns that the format needs; in this order if there is no header."""
    job: Callable[[Row], TraceJob]
    optional: tuple[str, ...] = ()
    """Columns that are read if they exist."""
    layouts: tuple[tuple[str, ...], ...] = ()
    """Columns of tables without a header, distinguished by their number."""
    known: Callable[[list[str]], bool] | None = None
    """Whether the values of the first row are those of a table without header."""
    tabs: bool = False
    from_first: bool = False
    """Its clock began at another time: times are counted from the first job."""
    no_lengths: bool = False
    """It contains the work of a job, not its run time, which is looked up."""
    merge: Merge | None = None


def layout_of(
    form: Form, first: list[str], *, sure: bool = False
) -> tuple[tuple[str, ...], bool] | str:
    """Return a table's columns by its first row, or why it is not in a format.

    Args:
        form: The format.
        first: The values of the first row.
        sure: Whether the format is certain: without a header only the number of columns counts
            then.

    Returns:
        The columns, and whether the row is a header; or a message.
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
