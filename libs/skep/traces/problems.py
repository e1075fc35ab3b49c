"""What is wrong with a trace, told in groups; and what of it does not suit a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from skep.traces.job import RowProblem, Trace, TraceJob

ROWS_SHOWN = 5
"""Rows named for each kind of problem; the rest are counted."""


class BadTraceError(ValueError):
    """A trace that cannot be used as it is, with everything that is wrong with it."""

    def __init__(self, name: str, problems: Sequence[RowProblem], jobs: int = 0) -> None:
        self.name = name
        self.problems = tuple(problems)
        self.jobs = jobs
        """How many of its rows are jobs."""
        super().__init__("\n".join([f"{name}:", *(f"  {line}" for line in told(problems))]))


class Group(msgspec.Struct, frozen=True):
    """Problems of one kind in one column: how many, the first rows, and one of them in words."""

    text: str
    column: str
    count: int
    rows: tuple[int, ...]
    hint: str = ""

    def __str__(self) -> str:
        """Return it on one line."""
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

    Kinds are in the order of their first row. What is wrong with the source as a whole is not
    grouped.
    """
    kinds: dict[tuple[str, str], list[RowProblem]] = {}
    for number, problem in enumerate(problems):
        kind = problem.text.split(": ")[0] if problem.row else f"{number}"
        kinds.setdefault((problem.column, kind), []).append(problem)
    return [
        Group(each[0].text, each[0].column, len(each),
              tuple(problem.row for problem in each[:ROWS_SHOWN]), each[0].hint)
        for each in kinds.values()
    ]  # fmt: skip


def told(problems: Sequence[RowProblem]) -> list[str]:
    """Return the problems for people, a line for each kind."""
    return [str(group) for group in grouped(problems)]


def suit(
    trace: Trace,
    *,
    gpus: int = 0,
    vcs: Mapping[str, int] | None = None,
    unknown: Mapping[str, int] | None = None,
    lenient: bool = False,
) -> Trace:
    """Return the jobs of a trace that a cluster can run, the others as problems.

    Problems are numbered by the place of a job in the order of submission.

    Args:
        trace: What was read or generated.
        gpus: The GPUs of the cluster; 0: not checked.
        vcs: Its virtual clusters and their GPUs; None: not checked. A job of more GPUs than its
            virtual cluster has is not a problem if it is opportunistic.
        unknown: The models that the workload model does not know (`Speeds.unknown`).
        lenient: Leave them out and say so, instead of raising.

    Raises:
        BadTraceError: Some job does not suit and it is not `lenient`, or none does.
    """
    jobs: list[TraceJob] = []
    found: list[RowProblem] = []
    for number, job in enumerate(trace.jobs, 1):
        reason = _unfit(job, gpus, vcs, unknown or {})
        if reason is None:
            jobs.append(job)
        else:
            column, text = reason
            found.append(RowProblem(number, text, column))
    if found and (not lenient or not jobs):
        raise BadTraceError(trace.name, found, len(jobs))
    return msgspec.structs.replace(
        trace, jobs=tuple(jobs), problems=(*trace.problems, *found)
    ) if found else trace  # fmt: skip


def _unfit(
    job: TraceJob, gpus: int, vcs: Mapping[str, int] | None, unknown: Mapping[str, int]
) -> tuple[str, str] | None:
    if gpus and job.gpus > gpus:
        return "gpus", f"is larger than the cluster of {gpus} GPUs: {job.id!r} asks for {job.gpus}"
    if vcs is not None and job.vc not in vcs:
        return "vc", f"is no virtual cluster of it: {job.vc!r}"
    if vcs is not None and job.gpus > vcs[job.vc] and not job.opportunistic:
        own = f"{job.vc!r} with {vcs[job.vc]} GPUs"
        return "gpus", f"is larger than its virtual cluster: {job.id!r} asks {job.gpus} of {own}"
    if job.model in unknown:
        return "model", f"is not known to the workload model: {job.model!r}"
    return None
