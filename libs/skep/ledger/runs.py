"""Which attempt of each job runs, and on which nodes: a small part of what the facts say.

    JobBound --> JobRequeued | JobEnded          SuccessorBound --> JobMoved | SuccessorDropped

`state.ClusterState` needs every fact of a log, from the first on, and fails at one that does not
fit. A program that only follows runs needs ten kinds of facts. It may begin anywhere in the log,
read a fact twice, or have a bound for the jobs that it follows. So nothing here fails: a fact about
a job that is not followed changes nothing. Where all facts were read, a `Run` says the same as
`ClusterState`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from skep.wire.bounds import ATTEMPT_MAX
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.facts import JobBound, JobEnded, JobRequeued
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.packs import GpusShared
from skep.wire.resizes import GangNarrowed, GangWidened

ALL_ATTEMPTS: Final = ATTEMPT_MAX
"""A job that ended has no further attempt."""


class Run(msgspec.Struct, gc=False):
    """The attempt of a job that runs. Only `apply` changes it."""

    attempt: int = 0
    """0: the job waits."""
    nodes: tuple[str, ...] = ()
    """Where it has ranks, in the order in which it came there."""
    successor: tuple[str, ...] = ()
    """The nodes of the attempt that is to take over."""
    shares: bool = False
    """The attempt has been on GPUs with others."""


class RunDelta(msgspec.Struct, frozen=True, gc=False):
    """What a fact says about runs. Of a job that is not followed: only what does not need one."""

    job: str = ""
    """The job that the fact names."""
    attempt: int = 0
    """The attempt that the fact names, if `suspended` is about one."""
    over: int = 0
    """Attempts up to this one are over. A move names none: its successor's first report does."""
    began: bool = False
    """The job waited until now."""
    waits: bool = False
    """The job waits from now on."""
    ended: bool = False
    """The job is over."""
    placed: bool = False
    """The attempt has its nodes, or other nodes, from now on."""
    suspended: bool | None = None
    """Whether the attempt was suspended (true) or resumed (false) by this."""
    shares: tuple[str, ...] = ()
    """Jobs whose attempts share GPUs from now on."""


NO_CHANGE = RunDelta()
"""What most facts say about runs."""

Runs = Mapping[str, Run]
"""The jobs that a program follows. It adds a job and removes it; none: it follows no places."""


def apply(runs: Runs, fact: object) -> RunDelta:
    """Take over one fact.

    Args:
        runs: The runs that it names are changed.
        fact: A fact of any log. Others than the allocator's change nothing.

    Returns:
        What it says about runs.
    """
    handler = HANDLERS.get(type(fact))
    return NO_CHANGE if handler is None else handler(runs, fact)


def _job_bound(runs: Runs, fact: JobBound) -> RunDelta:
    run, over = runs.get(fact.job), fact.attempt - 1
    if run is None:
        return RunDelta(job=fact.job, over=over)
    began = not run.attempt
    run.attempt, run.successor = fact.attempt, ()
    run.nodes = tuple(member.node for member in fact.members)
    return RunDelta(job=fact.job, over=over, began=began, placed=True)


def _job_requeued(runs: Runs, fact: JobRequeued) -> RunDelta:
    run = runs.get(fact.job)
    if run is None or not run.attempt:
        return RunDelta(job=fact.job, over=fact.attempt)
    run.attempt, run.nodes, run.successor, run.shares = 0, (), (), False
    return RunDelta(job=fact.job, over=fact.attempt, waits=True)


def _job_ended(_runs: Runs, fact: JobEnded) -> RunDelta:
    return RunDelta(job=fact.job, over=ALL_ATTEMPTS, ended=True)


def _job_changed(_runs: Runs, fact: JobChanged) -> RunDelta:
    if fact.result is not Result.DONE or fact.goal not in {Goal.SUSPEND, Goal.RESUME}:
        return NO_CHANGE
    return RunDelta(job=fact.job, attempt=fact.attempt, suspended=fact.goal is Goal.SUSPEND)


def _successor_bound(runs: Runs, fact: SuccessorBound) -> RunDelta:
    run = runs.get(fact.job)
    if run is not None and run.attempt:
        run.successor = tuple(member.node for member in fact.members)
    return NO_CHANGE


def _successor_dropped(runs: Runs, fact: SuccessorDropped) -> RunDelta:
    run = runs.get(fact.job)
    if run is not None:
        run.successor = ()
    return NO_CHANGE


def _job_moved(runs: Runs, fact: JobMoved) -> RunDelta:
    run = runs.get(fact.job)
    if run is None or not run.attempt:
        return NO_CHANGE
    run.attempt, run.nodes, run.successor = fact.attempt, run.successor, ()
    run.shares = False
    return RunDelta(job=fact.job, placed=True)


def _gang_widened(runs: Runs, fact: GangWidened) -> RunDelta:
    run, node = runs.get(fact.job), fact.member.node
    if run is None or node in run.nodes:
        return NO_CHANGE
    run.nodes = (*run.nodes, node)
    return RunDelta(job=fact.job, placed=True)


def _gang_narrowed(runs: Runs, fact: GangNarrowed) -> RunDelta:
    run = runs.get(fact.job)
    if run is None or fact.workers:
        return NO_CHANGE
    run.nodes = tuple(node for node in run.nodes if node != fact.node)
    return RunDelta(job=fact.job, placed=True)


def _gpus_shared(runs: Runs, fact: GpusShared) -> RunDelta:
    names = fact.job, *(name for name, _ in fact.beside)
    for name in names:
        run = runs.get(name)
        if run is not None:
            run.shares = True
    return RunDelta(job=fact.job, shares=names)


HANDLERS: Final[dict[type, Callable[[Runs, Any], RunDelta]]] = {
    GangNarrowed: _gang_narrowed,
    GangWidened: _gang_widened,
    GpusShared: _gpus_shared,
    JobBound: _job_bound,
    JobChanged: _job_changed,
    JobEnded: _job_ended,
    JobMoved: _job_moved,
    JobRequeued: _job_requeued,
    SuccessorBound: _successor_bound,
    SuccessorDropped: _successor_dropped,
}
"""By type of fact: what takes it over."""
