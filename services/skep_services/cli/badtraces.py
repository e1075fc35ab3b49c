"""How a command that cannot use a trace says so: `skep traces` and `skep sim` alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError

if TYPE_CHECKING:
    from skep_lab.traces.job import RowProblem, Trace
    from skep_lab.traces.problems import BadTraceError

KINDS_SHOWN = 20


def refused(error: BadTraceError, *, whole: bool = False) -> CommandError:
    """Return the end of a command, in one line: the first kind of problem, and what to do.

    Args:
        error: What is wrong.
        whole: Whether every kind of problem has a line of its own.
    """
    from skep_lab.traces.problems import told

    first, *others = told(error.problems)
    rows = sum(problem.row > 0 for problem in error.problems)
    said = f"{error.name}: {first}"
    if whole and others:
        said = "\n".join([f"{error.name}:", *(f"  {line}" for line in shown(error.problems))])
    elif others:
        more = render.plural(len(others), "more kind")
        said += f"; {more} of problem (`skep traces check` lists them)"
    if error.jobs:
        jobs = render.plural(error.jobs, "job")
        left = "the row is" if rows == 1 else f"{rows:,} rows are"
        rest = f"{left} left out, and the other {jobs} {'runs' if error.jobs == 1 else 'run'}"
        mark = "" if said.endswith("?") else ";"
        said += f"{mark} with --lenient {rest if rows else f'what is there runs: {jobs}'}"
    return CommandError(
        exits.FAILED,
        said,
        "bad-trace",
        jobs=error.jobs,
        rows=rows,
        problems=as_data(error.problems),
    )


def shown(problems: Sequence[RowProblem]) -> list[str]:
    """Return a line for each kind of problem, as many as are read; the others are counted."""
    from skep_lab.traces.problems import told

    lines = told(problems)
    left = len(lines) - KINDS_SHOWN
    return [*lines[:KINDS_SHOWN], *([f"and {left} more kinds"] if left > 0 else [])]


def as_data(problems: Sequence[RowProblem]) -> list[dict[str, Any]]:
    """Return every kind of problem, for JSON."""
    import msgspec

    from skep_lab.traces.problems import grouped

    found: list[dict[str, Any]] = msgspec.to_builtins(grouped(problems))
    return found


def rows_told(trace: Trace) -> str:
    """Return how the rows of a trace add up."""
    bad = sum(problem.row > 0 for problem in trace.problems)
    parts = f" + {trace.parts:,} parts of those" if trace.parts else ""
    return (
        f"{len(trace.jobs) + bad + trace.parts:,} rows = {len(trace.jobs):,} jobs{parts} + "
        f"{bad:,} that cannot be used"
    )
