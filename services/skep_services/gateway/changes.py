"""Changes of running jobs in the read model: what was asked, what is under way, how jobs stand."""

from __future__ import annotations

from skep.wire.changes import (
    AskOver,
    AskTaken,
    ChangeAsked,
    ChangeFact,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    JobPrioritised,
    MemberAnswered,
    MemberLearned,
    Result,
    name_of,
)
from skep.wire.commands import Resume, Share
from skep.wire.moves import (
    JobMoved,
    MoveFact,
    SuccessorBound,
    SuccessorDropped,
    SuccessorLoaded,
    SuccessorReady,
)
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened, ResizeFact
from skep_services.gateway.rows import Attempt, Changing, Job, State
from skep_services.gateway.texts import place_of


def asked(job: Job, fact: ChangeAsked) -> None:
    """Note in a job a request that admission passed on."""
    one = job.asked(fact.number)
    one.ask, one.asked_at = name_of(fact.ask), fact.at


def apply(job: Job, fact: ChangeFact) -> State | None:
    """Take over what the allocator says about a change.

    Args:
        job: The job, which is changed.
        fact: What the allocator says.

    Returns:
        The state that the job enters; None: it stays in its state.
    """
    match fact:
        case AskTaken():
            one = job.asked(fact.number)
            one.ask, one.taken = name_of(fact.ask), True
        case AskOver():
            one = job.asked(fact.number)
            one.taken = True
            one.ask, one.result, one.ended_at = name_of(fact.ask), fact.result, fact.at
            one.why, one.detail = fact.why, fact.detail
        case JobPrioritised():
            job.row.priority = fact.priority
        case MemberLearned():
            part = job.attempt(fact.attempt).part(fact.node)
            part.tier, part.can, part.resumed = fact.tier, fact.can, fact.resumed
        case JobChanging():
            since = job.changing.since if job.changing is not None else fact.at
            job.changing = Changing(
                goal=fact.goal,
                why=fact.why,
                since=since,
                round=fact.round,
                undoing=fact.undoing,
                waits_for=fact.nodes,
                resumes=isinstance(fact.change, Resume),
            )
            if isinstance(fact.change, Share):
                job.row.share = fact.change.share or None
        case MemberAnswered():
            if job.changing is not None:
                left = tuple(one for one in job.changing.waits_for if one != fact.node)
                job.changing.waits_for = left
        case JobChanged():
            resumes = job.changing is not None and job.changing.resumes
            job.changing = None
            if fact.result is Result.DONE:
                return _changed(job, fact, resumes=resumes)
            if fact.goal is Goal.RESUME and fact.released:
                _gave_back(job, fact)
        case GpusRegained():
            _regained(job, fact)
    return None


def _regained(job: Job, fact: GpusRegained) -> None:
    """Take over that a suspended attempt has GPUs again: the same, or others of its nodes."""
    attempt = job.attempt(fact.attempt)
    job.released = False
    job.stood_on = {part.node: part.devices for part in attempt.members}
    for member in fact.members:
        attempt.part(member.node).devices = member.devices
    job.row.place = attempt.place = _place(attempt)


def _gave_back(job: Job, fact: JobChanged) -> None:
    """Take over that a suspended attempt has no GPUs again, and waits for those that it had."""
    attempt = job.attempt(fact.attempt)
    job.released, job.row.share = True, None
    for part in attempt.members:
        part.devices = job.stood_on.get(part.node, part.devices)
    job.row.place = attempt.place = _place(attempt)


def move(job: Job, fact: MoveFact) -> None:
    """Change a job by what the allocator says about an attempt that is to go on elsewhere."""
    match fact:
        case SuccessorBound():
            attempt = job.attempt(fact.attempt)
            attempt.place, attempt.bound_at = place_of(fact.members), fact.at
            attempt.why = Reason.REQUESTED
            for member in fact.members:
                part = attempt.part(member.node)
                part.first_rank, part.devices = member.first_rank, member.devices
        case JobMoved():
            before, row = job.attempt(fact.source), job.row
            before.outcome, before.ended_at = "moved", fact.at
            attempt = job.attempt(fact.attempt)
            attempt.started_at = fact.at
            row.attempt, row.place, row.bound_at = fact.attempt, attempt.place, attempt.bound_at
            row.why, row.share = attempt.why, None
            job.released = False
            attempt.suspended_at = fact.at if row.state is State.SUSPENDED else None
        case SuccessorDropped():
            attempt = job.attempt(fact.attempt)
            attempt.outcome, attempt.ended_at = "dropped", fact.at
            attempt.ended_why, attempt.detail = fact.why, fact.detail
        case SuccessorReady() | SuccessorLoaded():
            pass  # Steps of a move, shown as events.


def resize(job: Job, fact: ResizeFact) -> None:
    """Change a job whose attempt has further GPUs, or gives some back."""
    attempt = job.attempt(fact.attempt)
    match fact:
        case GangWidened(member=more):
            part = attempt.part(more.node)
            part.ranks = (*part.numbers, *more.numbers)
            part.first_rank, part.devices = part.ranks[0], part.devices + more.devices
            part.outcome = part.ended_at = None
        case GangNarrowed(node=node, workers=workers):
            part = attempt.part(node)
            part.ranks, part.devices = part.numbers[:workers], part.devices[:workers]
            if not workers:
                part.outcome, part.free = part.outcome or "left", True
                part.ended_at = part.ended_at or fact.at
            _count(job, attempt)


def _count(job: Job, attempt: Attempt) -> None:
    """Count the workers of a gang anew, after its size was changed."""
    row = job.row
    each = row.gpus // max(1, row.workers)
    job.begins_with = job.begins_with or row.workers
    row.workers = sum(len(part.devices) for part in attempt.members)
    row.gpus = each * row.workers
    row.place = attempt.place = _place(attempt)


def _place(attempt: Attempt) -> str:
    return " ".join(
        f"{part.node}:{','.join(str(one) for devices in part.devices for one in devices)}"
        for part in attempt.members
        if part.devices
    )


def begin_with(job: Job, workers: int) -> None:
    """Set a job's size to the workers of an attempt that its policy has begin with others.

    Args:
        job: Its attempt was bound.
        workers: The workers of the attempt.
    """
    row = job.row
    if job.spec_whole and workers != row.workers:
        job.begins_with = job.begins_with or row.workers
        row.gpus = row.gpus // max(1, row.workers) * workers
        row.workers = workers


def begin_again(job: Job) -> None:
    """Set a job's size to the workers of its spec."""
    row = job.row
    if job.begins_with:
        row.gpus = row.gpus // max(1, row.workers) * job.begins_with
        row.workers = job.begins_with


def _changed(job: Job, fact: JobChanged, *, resumes: bool) -> State | None:
    row, attempt, entered = job.row, job.attempt(fact.attempt), None
    if fact.goal is Goal.SUSPEND:
        if row.state is State.RUNNING:
            row.why, row.needs = fact.why, ""
            row.rate_milli = row.eta_s = row.stalled_since = row.estimate = None
            attempt.suspended_at = fact.at
            entered = State.SUSPENDED
        if fact.released:
            job.released, job.row.share = True, None
    elif fact.released:
        job.released, job.row.share = True, None
    elif resumes and row.state is State.SUSPENDED:
        row.why, row.needs = attempt.why, ""
        if attempt.suspended_at is not None:
            attempt.suspended_ns += max(0, fact.at - attempt.suspended_at)
            attempt.suspended_at = None
        entered = State.RUNNING
    elif fact.goal is Goal.RESIZE:
        _count(job, attempt)
    return entered
