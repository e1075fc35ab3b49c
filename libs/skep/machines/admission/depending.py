"""What a submission may wait for: jobs and arrays of its VC, unfinished or ended recently.

A name means the one unfinished job or array of the VC that has it; if none is unfinished, the one
that ended recently. The jobs of an array's tasks have no name here. How something ended makes no
difference here: the allocator judges it, so that it makes none either how fast the jobs of a
pipeline are submitted.
"""

from __future__ import annotations

import msgspec

from skep.ids import job_sequence
from skep.wire.array import task_of
from skep.wire.reasons import Reason
from skep.wire.spec import After, JobSpec, Problem

ENDED_KEPT = 5000
"""Ended jobs that a submission may name. The allocator keeps the ends of twice as many."""
NAMED_MAX = 3
"""Jobs of one name that a refusal names."""
VcName = tuple[str, str]
"""A VC, and a name in it."""


class Known:
    """The jobs and arrays that can be named: each with its VC and name."""

    def __init__(self) -> None:
        """Start with none."""
        self.unfinished: dict[str, VcName] = {}
        self.ended: dict[str, VcName] = {}
        """Those that ended recently, oldest first."""
        self._named: dict[VcName, dict[str, None]] = {}
        self._named_ended: dict[VcName, dict[str, None]] = {}

    def add(self, job: str, vc: str, name: str) -> None:
        """Take in an unfinished job."""
        self.unfinished[job] = vc, name
        self._named.setdefault((vc, name), {})[job] = None

    def again(self, array: str, vc: str, name: str) -> None:
        """Take in that an array that has ended is unfinished again."""
        named = self.ended.pop(array, None)
        if named is not None:
            _drop(self._named_ended, named, array)
        self.add(array, vc, name)

    def over(self, job: str) -> None:
        """Take in that a job is over."""
        named = self.unfinished.pop(job)
        _drop(self._named, named, job)
        self.end(job, *named)

    def end(self, job: str, vc: str, name: str) -> None:
        """Take in a job that is over; the oldest is forgotten."""
        self.ended[job] = vc, name
        self._named_ended.setdefault((vc, name), {})[job] = None
        if len(self.ended) > ENDED_KEPT:
            oldest = next(iter(self.ended))
            _drop(self._named_ended, self.ended.pop(oldest), oldest)

    def resolved(self, spec: JobSpec) -> JobSpec | list[Problem]:
        """Return a spec with ids in the place of names, or what is wrong with its `after`."""
        if spec.after is None:
            return spec
        jobs: dict[str, list[str]] = {"ok": [], "any": [], "fail": []}
        seen: dict[str, None] = {}
        problems: list[Problem] = []
        for kind, at, name in spec.after.named():
            path = f"$.after.{kind}[{at}]"
            found = self._find(spec.vc, path, name)
            if found in seen:
                found = _twice(path, name)
            if isinstance(found, Problem):
                problems.append(found)
                continue
            seen[found] = None
            jobs[kind].append(found)
        if problems:
            return problems
        after = After(ok=tuple(jobs["ok"]), any=tuple(jobs["any"]), fail=tuple(jobs["fail"]))
        return msgspec.structs.replace(spec, after=after)

    def _find(self, vc: str, path: str, name: str) -> str | Problem:
        """Return the id of a job that is named by its id or name."""
        if job_sequence(name) is not None:
            return self._by_id(vc, path, name)
        if task_of(name) is not None:
            return _a_task(path, name)
        found = self._named.get((vc, name)) or self._named_ended.get((vc, name)) or {}
        if len(found) == 1:
            return next(iter(found))
        if found:
            first = sorted(found, key=lambda job: job_sequence(job) or 0)[:NAMED_MAX]
            shown = ", ".join(first)
            more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
            return Problem(
                path=path,
                reason=Reason.AMBIGUOUS_NAME,
                text=f"{len(found)} jobs of `{vc}` have the name `{name}`: {shown}{more}",
                suggestion="give the id of one",
            )
        return Problem(
            path=path,
            reason=Reason.UNKNOWN_JOB,
            text=f"`{vc}` has no job with the name `{name}`",
            suggestion="submit that job first, or give an id",
        )

    def _by_id(self, vc: str, path: str, job: str) -> str | Problem:
        known = self.unfinished.get(job) or self.ended.get(job)
        if known is not None and known[0] == vc:
            return job
        # Another tenant's job looks the same from here, which tells its end to no one.
        return Problem(
            path=path,
            reason=Reason.UNKNOWN_JOB,
            text=f"`{vc}` has no job {job} that is unfinished or ended recently",
            suggestion="`skep ps -a` lists the jobs that there are",
        )

    def summary(self) -> tuple[list[tuple[str, VcName]], list[tuple[str, VcName]]]:
        """Return what the facts tell of them, to be compared; what ended in its order."""
        return sorted(self.unfinished.items()), list(self.ended.items())

    def check(self) -> None:
        """Assert that the indexes are of these jobs.

        Raises:
            AssertionError: They are not.
        """
        for jobs, index in ((self.unfinished, self._named), (self.ended, self._named_ended)):
            named: dict[VcName, dict[str, None]] = {}
            for job, known in jobs.items():
                named.setdefault(known, {})[job] = None
            assert named == index


def _a_task(path: str, name: str) -> Problem:
    return Problem(
        path=path,
        reason=Reason.NOT_BUILT,
        text=f"{name} is a task: to wait for one task of an array is not built",
        suggestion=f"name the whole array, or the job that the task is: `skep show {name}`",
    )


def _twice(path: str, name: str) -> Problem:
    return Problem(
        path=path,
        reason=Reason.BAD_VALUE,
        text=f"`after` names the job {name} twice",
        suggestion="name each job once",
    )


def _drop(index: dict[VcName, dict[str, None]], named: VcName, job: str) -> None:
    jobs = index[named]
    del jobs[job]
    if not jobs:
        del index[named]
