"""Changes of running jobs in the read model: what was asked, what is under way, how jobs stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skep.wire.changes import (
    AskOver,
    AskTaken,
    ChangeAsked,
    ChangeFact,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    MemberAnswered,
    MemberLearned,
    Result,
    name_of,
)
from skep_services.gateway.rows import Changing, Job, State

if TYPE_CHECKING:
    from skep_services.gateway.fold import Fold


def asked(job: Job, fact: ChangeAsked) -> None:
    """Take over a request that admission passed on."""
    one = job.asked(fact.number)
    one.ask, one.asked_at = name_of(fact.ask), fact.at


def apply(fold: Fold, job: Job, fact: ChangeFact) -> None:
    """Take over what the allocator says about a change."""
    match fact:
        case AskTaken():
            job.asked(fact.number).ask = name_of(fact.ask)
        case AskOver():
            one = job.asked(fact.number)
            one.ask, one.result, one.ended_at = name_of(fact.ask), fact.result, fact.at
            one.why, one.detail = fact.why, fact.detail
        case MemberLearned():
            part = job.attempt(fact.attempt).part(fact.node)
            part.tier, part.can = fact.tier, fact.can
        case JobChanging():
            since = job.changing.since if job.changing is not None else fact.at
            job.changing = Changing(goal=fact.goal, why=fact.why, since=since, round=fact.round,
                                    undoing=fact.undoing, waits_for=fact.nodes)  # fmt: skip
        case MemberAnswered():
            if job.changing is not None:
                left = tuple(one for one in job.changing.waits_for if one != fact.node)
                job.changing.waits_for = left
        case JobChanged():
            job.changing = None
            if fact.result is Result.DONE:
                _changed(fold, job, fact)
        case GpusRegained():
            job.released = False
            fold.holdings.regain(job, fact.attempt)


def _changed(fold: Fold, job: Job, fact: JobChanged) -> None:
    row, attempt = job.row, job.attempt(fact.attempt)
    if fact.goal is Goal.SUSPEND:
        if row.state is State.RUNNING:
            row.why, row.needs = fact.why, ""
            row.rate_milli = row.eta_s = row.stalled_since = None
            attempt.suspended_at = fact.at
            fold.enter(job, State.SUSPENDED)
        if fact.released:
            job.released = True
            row.class_in_force = ""
            for part in attempt.members:
                fold.free(part.node, row.job, fact.attempt)
    elif fact.goal is Goal.RESUME and row.state is State.SUSPENDED:
        row.why, row.needs = attempt.why, ""
        if attempt.suspended_at is not None:
            attempt.suspended_ns += max(0, fact.at - attempt.suspended_at)
            attempt.suspended_at = None
        fold.enter(job, State.RUNNING)
