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


def refused(error: BadTraceError) -> CommandError:
    """Return the end of a command: every kind of problem with its rows, and what to do."""
    lines = [f"{error.name}:", *(f"  {line}" for line in shown(error.problems))]
    rows = sum(problem.row > 0 for problem in error.problems)
    if error.jobs and not rows:
        lines.append(f"with --lenient what is there runs: {render.plural(error.jobs, 'job')}")
    elif error.jobs:
        left = f"with --lenient they are left out, and the other {error.jobs:,} jobs run"
        lines.append(
            f"{render.plural(rows, 'row')} cannot be used (they count from 1, "
            f"after the header); {left}"
        )
    return CommandError(
        exits.FAILED,
        "\n".join(lines),
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
