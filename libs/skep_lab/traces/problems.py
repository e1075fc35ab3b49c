"""Problems of a trace, reported in groups, and jobs of it that do not suit a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from skep_lab.traces.job import RowProblem, Trace, TraceJob

ROWS_SHOWN = 5
"""The rows that are named for each kind of problem; the rest are counted."""
NAMES_SHOWN = 8


class BadTraceError(ValueError):
    """A trace that cannot be used as it is, with everything that is wrong with it."""

    def __init__(self, name: str, problems: Sequence[RowProblem], jobs: int = 0) -> None:
        self.name = name
        self.problems = tuple(problems)
        self.jobs = jobs
        """How many of its rows are jobs."""
        super().__init__("\n".join([f"{name}:", *(f"  {line}" for line in told(problems))]))


class Group(msgspec.Struct, frozen=True):
    """Problems of one kind in one column: how many, the first rows, and the text of one of them."""

    text: str
    column: str
    count: int
    rows: tuple[int, ...]
    hint: str = ""

    def __str__(self) -> str:
        """Return the group on one line."""
        if self.rows == (0,):
            where = ""
        else:
            shown = ", ".join(map(str, self.rows))
            more = self.count - len(self.rows)
            where = f" (row {shown})" if self.count == 1 else f" ({self.count} rows: {shown}"
            where += "" if self.count == 1 else f" and {more} more)" if more else ")"
        about = f"{self.column}: " if self.column else ""
        return f"{about}{self.text}{where}{f'; {self.hint}' if self.hint else ''}"


def grouped(problems: Sequence[RowProblem]) -> list[Group]:
    """Return the problems by kind: the same column, and the same text up to its colon.

    Kinds are in the order of their first row. Problems of the source as a whole are not grouped.
    """
    kinds: dict[tuple[str, str], list[RowProblem]] = {}
    for number, problem in enumerate(problems):
        kind = problem.text.split(": ")[0] if problem.row else f"{number}"
        kinds.setdefault((problem.column, kind), []).append(problem)
    return [
        Group(
            each[0].text,
            each[0].column,
            len(each),
            tuple(problem.row for problem in each[:ROWS_SHOWN]),
            each[0].hint,
        )
        for each in kinds.values()
    ]


def told(problems: Sequence[RowProblem]) -> list[str]:
    """Return the problems in readable form, one line for each kind."""
    return [str(group) for group in grouped(problems)]


def suit(
    trace: Trace,
    *,
    gpus: int = 0,
    vcs: Mapping[str, int] | None = None,
    unknown: Mapping[str, int] | None = None,
    lenient: bool = False,
) -> Trace:
    """Return a trace with the jobs that a cluster can run; the others become problems.

    Problems have the rows of the source; for jobs without rows, their places in the order of
    submission.

    Args:
        trace: What was read or generated.
        gpus: The GPUs of the cluster; 0: not checked.
        vcs: Its virtual clusters and their GPUs; None: not checked. An opportunistic job may
            have more GPUs than its virtual cluster.
        unknown: The models that the workload model does not know (`Speeds.unknown`).
        lenient: Report unsuitable jobs as problems instead of raising.

    Raises:
        BadTraceError: A job does not suit and it is not `lenient`, or no job suits.
    """
    found = [
        problem
        for row, job in zip(rows_of(trace), trace.jobs, strict=True)
        if (problem := _unfit(row, job, gpus, vcs, unknown or {})) is not None
    ]
    if not found:
        return trace
    left = without(trace, found)
    if not lenient or not left.jobs:
        raise BadTraceError(trace.name, found, len(left.jobs))
    return left


def rows_of(trace: Trace) -> Sequence[int]:
    """Return the number by which problems name each job."""
    return trace.rows or range(1, len(trace.jobs) + 1)


def without(trace: Trace, found: Sequence[RowProblem]) -> Trace:
    """Return a trace with some of its jobs turned into problems.

    Args:
        trace: The trace.
        found: The problems, by the rows of `rows_of`.
    """
    bad = {problem.row for problem in found}
    left = [
        (row, job) for row, job in zip(rows_of(trace), trace.jobs, strict=True) if row not in bad
    ]
    return msgspec.structs.replace(
        trace,
        jobs=tuple(job for _, job in left),
        rows=tuple(row for row, _ in left),
        problems=tuple(sorted([*trace.problems, *found], key=lambda problem: problem.row)),
    )


def _unfit(
    row: int, job: TraceJob, gpus: int, vcs: Mapping[str, int] | None, unknown: Mapping[str, int]
) -> RowProblem | None:
    if gpus and job.gpus > gpus:
        text = f"is larger than the cluster of {gpus} GPUs: {job.id!r} asks for {job.gpus}"
        return RowProblem(row, text, "gpus", "it could never run")
    if vcs is not None and job.vc not in vcs:
        text = f"is no virtual cluster of it: {job.vc!r}"
        names = [*list(vcs)[:NAMES_SHOWN], *(["and others"] if len(vcs) > NAMES_SHOWN else [])]
        return RowProblem(row, text, "vc", f"there are {', '.join(names)}")
    if vcs is not None and job.gpus > vcs[job.vc] and not job.opportunistic:
        own = f"{job.vc!r} with {vcs[job.vc]} GPUs"
        text = f"is larger than its virtual cluster: {job.id!r} asks {job.gpus} of {own}"
        return RowProblem(row, text, "gpus", "it could only borrow, and is not opportunistic")
    if job.model in unknown:
        text = f"is not known to the workload model: {job.model!r}"
        return RowProblem(row, text, "model", "`skep speeds` lists what is; --models steady")
    return None
