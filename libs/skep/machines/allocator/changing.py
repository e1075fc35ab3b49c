"""How running attempts are suspended, resumed and stored: requests, rounds, and victims.

A gang on several nodes must stop after the same mini-batch, else some of its ranks wait for others
in the middle of an exchange. No clock is shared, so a mini-batch S is named to all: a rank that is
past it answers `unchanged` and where it is, the others are resumed, and a later S is tried (the
two-phase clock; DL2, section 4.2, scales at such a common step). Whatever fails, an attempt is in
the end suspended in every part or runs in every part; one that can be brought to neither is stopped
and repeated.
"""

from __future__ import annotations

from skep import ids
from skep.ledger import sharing
from skep.ledger.job_state import GIVES_WAY, JobState, OpenChange, Part, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import (
    changes,
    moving,
    outbox,
    packing,
    resize_ends,
    resizing,
    returns,
    rounds,
    servers,
    settings,
    spanning,
    timers,
    views,
)
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after
from skep.wire.changes import (
    Ask,
    AskCheckpoint,
    AskMigrate,
    AskPack,
    AskResize,
    AskResume,
    AskSuspend,
    AskTaken,
    AskUnpack,
    ChangeAsked,
    Goal,
    GpusRegained,
    JobChanging,
    MemberAnswered,
    MemberLearned,
    Result,
)
from skep.wire.commands import Change, Checkpoint, Resize, Resume, Share, Suspend
from skep.wire.facts import JobWaits
from skep.wire.node import Manner, MemberChanged, MemberKnown, MemberLoaded, MemberReady
from skep.wire.reasons import Reason

RETURNS_MAX = 150
"""Suspended attempts looked at in one decision: what follows for each takes 700 bytes of a record,
and each further node of a gang 100."""
MAKES_ROOM = (Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY, Reason.TO_OWN_CELLS)
"""Why an attempt has to be without its GPUs in the end, if not suspended then stopped."""
RANKS_TOLD = 16
"""Ranks whose GPUs, where they are others than before, take what an attempt does in a record."""
RESUMES_MAX = 3
"""How often a part is asked to go on before its attempt is given up."""


# --- requests ----------------------------------------------------------------------------------


def ask(tx: Transaction, fact: ChangeAsked, now: Instant) -> None:
    """Take a request that admission passed on. The latest one waits for the end of a change."""
    if fact.number <= tx.state.last_asked:
        return  # Read again after a restart.
    job = tx.state.jobs.get(fact.ask.job)
    taken = AskTaken(job=fact.ask.job, number=fact.number, ask=fact.ask)
    if job is None:
        changes.over(tx, taken, Result.REFUSED, now, Reason.ALREADY_ENDED)
        return
    waits = job.state in (State.QUEUED, State.RESERVED)
    if waits and isinstance(fact.ask, AskPack):
        changes.over(tx, taken, *packing.answer(tx, job, fact.ask, now))
        return
    if waits or job.state is State.STOPPING:
        changes.over(tx, taken, Result.REFUSED, now, Reason.NOT_RUNNING, f"it is {job.state}")
        return
    if job.asked is not None:
        changes.over(tx, job.asked, Result.OVERTAKEN, now, Reason.OVERTAKEN)
    tx.record(taken)
    follow(tx, job, now)


def follow(tx: Transaction, job: JobState, now: Instant) -> None:
    """Begin what was asked for last, if nothing else is under way."""
    if packing.lower(tx, job, now):
        return
    asked = job.asked
    if asked is None or job.change is not None or job.state not in (State.RUNNING, State.SUSPENDED):
        return
    wish = asked.ask
    if _depends(wish) and not job.known:
        return  # Its ranks have yet to say what they can, or their nodes to say that they do not.
    against = refusal(tx.state, job, wish)
    if against is not None:
        changes.over(tx, asked, Result.REFUSED, now, *against)
        return
    refused = _carry_out(tx, job, asked, now)
    if refused is not None:
        changes.over(tx, asked, Result.REFUSED, now, *refused)


def _carry_out(tx: Transaction, job: JobState, asked: AskTaken, now: Instant) -> Refused | None:
    """Begin a change that nothing speaks against, or return why it cannot begin."""
    suspended = job.state is State.SUSPENDED
    match asked.ask:
        case AskSuspend(release=release):
            if suspended and (job.released or not release):
                changes.over(tx, asked, Result.DONE, now)
            else:
                suspend(tx, job, now, Reason.REQUESTED, release=release)
        case AskResume():
            if not suspended:
                changes.over(tx, asked, Result.DONE, now)
            elif not job.released:
                begin(tx, job, Goal.RESUME, Resume(), now, why=Reason.REQUESTED)
            # Else it waits until its GPUs are idle: `come_back`.
        case AskCheckpoint():
            begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=Reason.REQUESTED)
        case AskMigrate(to=to):
            refused = moving.begin(tx, job, to, now)
            # Without GPUs it waits for some there: `come_back`.
            return None if job.released else refused
        case AskResize(workers=workers, servers=count) if servers.same(job, workers, count):
            changes.over(tx, asked, Result.DONE, now)
        case AskResize(workers=workers, servers=count):
            return resizing.begin(tx, job, workers, now, servers=count)
        case AskPack() as wish:
            return packing.begin(tx, job, wish, now)
        case AskUnpack():
            leave(tx, job, asked, now)
    return None


def _depends(wish: Ask) -> bool:
    """Return whether a request needs something of the job's own side."""
    return isinstance(wish, AskCheckpoint | AskMigrate | AskResize | AskUnpack) or (
        isinstance(wish, AskSuspend) and wish.release
    )


def refusal(state: ClusterState, job: JobState, wish: Ask) -> Refused | None:
    """Return why what is asked for cannot be done, or None."""
    match wish:
        case AskUnpack() if not sharing.shares(state, job):
            return Refused(Reason.NOT_PACKED)
        case AskResize() if sharing.shares(state, job):
            return Refused(Reason.PACKED, "unpack it first")
        case AskSuspend(release=True) if "release" not in job.can:
            return Refused(Reason.CANNOT, "release (`skep show` tells what it can)")
        case AskCheckpoint() | AskResize() if job.state is State.SUSPENDED:
            return Refused(Reason.NOT_RUNNING, "it is suspended: resume it first")
        case AskCheckpoint() if "checkpoint" not in job.can:
            return Refused(Reason.CANNOT, "checkpoint (`skep show` tells what it can)")
        case AskMigrate() if "migrate" not in job.can:
            return Refused(Reason.CANNOT, "migrate (`skep show` tells what it can)")
        case AskMigrate() if len(job.live) < len(job.members):
            return Refused(Reason.NOT_RUNNING, "a part of it has ended")
        case AskResize(workers=workers, servers=count):
            return servers.refusal(job, count) or resizing.refusal(job, workers)
        case _:
            return None


# --- what nodes say ----------------------------------------------------------------------------


def heard(
    tx: Transaction, event: MemberKnown | MemberReady | MemberLoaded | MemberChanged, now: Instant
) -> None:
    """Take what a node says about its part of an attempt."""
    job = tx.state.jobs.get(event.job)
    if job is None:
        return
    if job.attempt != event.attempt:
        if not isinstance(event, MemberChanged):
            moving.heard(tx, job, event, now)
            if job.change is None:
                follow(tx, job, now)
        return
    member = job.members.get(event.node)
    if member is None or member.identity != event.identity:
        return
    if job.parts[event.node] is Part.GONE:
        return
    match event:
        case MemberKnown():
            learned = MemberLearned(
                job=job.job, attempt=job.attempt, node=event.node, tier=event.tier, can=event.can
            )
            if job.learned.get(event.node) != learned:
                tx.record(learned)
                _yield(tx, job, now)
                follow(tx, job, now)
        case MemberChanged():
            _answer(tx, job, event, now)
        case MemberReady():
            spanning.ready(tx, job, event, now)
            after_change(tx, job, now)
        case MemberLoaded():
            pass  # Said again, of a successor that has taken over.


def _answer(tx: Transaction, job: JobState, event: MemberChanged, now: Instant) -> None:
    change = job.change
    if change is None or event.order != change.order:
        return
    if change.answers.get(event.node, event) is not None:
        return  # It was not asked, or has answered.
    tx.record(
        MemberAnswered(
            job=job.job,
            attempt=job.attempt,
            node=event.node,
            order=event.order,
            manner=event.manner,
            step=event.step,
            moved=event.moved,
            residue=event.residue,
            pause_ns=event.pause_ns,
            detail=event.detail,
            released=event.released,
        )
    )
    conclude(tx, job, now)


def conclude(tx: Transaction, job: JobState, now: Instant) -> None:
    """Go on with a change once every node it was told to, and that is still there, has answered."""
    change = job.change
    if change is None or job.state is State.STOPPING:
        return
    if moving.concludes(change):
        moving.conclude(tx, job, now)
        if job.change is None:
            follow(tx, job, now)
        return
    if spanning.spans(change):
        spanning.conclude(tx, job, now)
        after_change(tx, job, now)
        return
    answers = {name: answer for name, answer in change.answers.items() if name in job.live}
    if not answers or None in answers.values():
        return
    told = {name: answer for name, answer in answers.items() if answer is not None}
    match change.change:
        case Suspend(release=release):
            _suspended(tx, job, told, now, release=release)
        case Resume():
            _resumed(tx, job, told, now)
        case Share():
            detail = "; ".join(_refusals(told).values())
            changes.close(
                tx, job, Result.UNDONE if detail else Result.DONE, change.why, now, detail=detail
            )
        case Resize():
            resize_ends.conclude(tx, job, "; ".join(_refusals(told).values()), now)
        case _:
            _stored(tx, job, told, now)
    after_change(tx, job, now)


def after_change(tx: Transaction, job: JobState, now: Instant) -> None:
    """Do what waits for the end of a change: first make room, then what was asked for."""
    _yield(tx, job, now)
    if job.change is None:
        follow(tx, job, now)


def _yield(tx: Transaction, job: JobState, now: Instant) -> None:
    """Have a job make room that was waited for, as it changed its size or was about to go on."""
    deadline = timers.YieldDeadline(job.job, job.attempt)
    if deadline not in tx.soft.timers.due or job.change is not None:
        return
    if job.released:
        return  # It has made room.
    claimers = tx.state.cells.claimers(ids.attempt_id(job.job, job.attempt))
    other = ids.job_of(claimers[0]) if claimers else returns.waits_for(tx, job)
    if other:
        give_way(tx, job, now, f"for {other}", memory=False)


def _refusals(told: dict[str, MemberAnswered]) -> dict[str, str]:
    return {
        name: f"{name}: {answer.detail}" if answer.detail else name
        for name, answer in told.items()
        if answer.manner is Manner.UNCHANGED
    }


def _suspended(
    tx: Transaction, job: JobState, told: dict[str, MemberAnswered], now: Instant, *, release: bool
) -> None:
    change = job.change
    assert change is not None, job
    refused = _refusals(told)
    took = tuple(name for name in told if name not in refused)
    if refused and took and job.state is State.RUNNING:
        _go_on(tx, job, change, took, now, undoing=True)
    elif refused:
        _again(tx, job, change, now, "; ".join(refused.values()))
    else:
        whole = all(answer.released for answer in told.values())
        why = change.why
        changes.close(
            tx, job, Result.DONE, why, now, released=release and whole, detail=change.detail
        )
        if why in MAKES_ROOM and not job.released:
            outbox.stop(tx, job, why, now, change.detail)
        elif why is Reason.UNPACKED and not job.released:
            _stay_or_stop(tx, job, now, change.detail)


def _again(tx: Transaction, job: JobState, change: OpenChange, now: Instant, detail: str) -> None:
    """Name a later mini-batch, or give the suspension up."""
    if change.goal is Goal.MIGRATE:
        moving.again(tx, job, now, detail)
        return
    gang = isinstance(change.change, Suspend) and change.change.step > 0
    gang = gang or change.undoing
    later = rounds.later(change)
    if change.goal is Goal.SUSPEND and gang and later is not None and job.state is State.RUNNING:
        step = later if len(job.live) > 1 else 0
        release = "release" in job.can and _wants_release(change)
        _round(
            tx,
            job,
            change,
            Suspend(release=release, step=step),
            tuple(job.live),
            now,
            number=change.round + 1,
        )
        return
    why, for_whom = change.why, change.detail
    changes.close(tx, job, Result.UNDONE, Reason.NOT_TAKEN, now, detail=detail)
    if _owes_room(tx, job, why):
        outbox.stop(tx, job, why, now, for_whom)
    elif why is Reason.UNPACKED:
        _stay_or_stop(tx, job, now, detail)


def _wants_release(change: OpenChange) -> bool:
    asked = change.asked.ask if change.asked is not None else None
    leaves = change.why in GIVES_WAY
    return asked.release if isinstance(asked, AskSuspend) else leaves


def _resumed(tx: Transaction, job: JobState, told: dict[str, MemberAnswered], now: Instant) -> None:
    change = job.change
    assert change is not None, job
    refused = _refusals(told)
    stays = all(told[name].released for name in refused) and len(refused) == len(told)
    if refused and job.stood_on and stays and len(told) == len(job.live):
        # Every rank stands where it stood, its state in the host's memory: nothing is lost.
        changes.close(
            tx,
            job,
            Result.UNDONE,
            Reason.NOT_TAKEN,
            now,
            released=True,
            detail="; ".join(refused.values()),
        )
    elif refused and change.round % RESUMES_MAX:
        _go_on(tx, job, change, tuple(refused), now, undoing=change.undoing)
    elif refused:
        # Some parts run and others cannot: nothing but another attempt puts that right.
        outbox.stop(tx, job, Reason.NOT_TAKEN, now, "; ".join(refused.values()))
    elif change.undoing:
        apart = "its parts could not stop after the same mini-batch"
        _again(tx, job, change, now, change.detail or apart)
    else:
        changes.close(tx, job, Result.DONE, change.why, now)
        outbox.limit(tx, job, now)


def _go_on(
    tx: Transaction,
    job: JobState,
    change: OpenChange,
    nodes: tuple[str, ...],
    now: Instant,
    *,
    undoing: bool,
) -> None:
    """Have some parts go on: those that stopped in vain, or did not go on when they were told."""
    again = isinstance(change.change, Resume) and not undoing
    number = change.round + 1 if again else change.round
    _round(tx, job, change, Resume(), nodes, now, number=number, undoing=undoing)


def _stored(tx: Transaction, job: JobState, told: dict[str, MemberAnswered], now: Instant) -> None:
    change = job.change
    assert change is not None, job
    refused = _refusals(told)
    result, why = (Result.UNDONE, Reason.NOT_TAKEN) if refused else (Result.DONE, change.why)
    changes.close(tx, job, result, why, now, detail="; ".join(refused.values()))
    if _owes_room(tx, job, change.why):
        outbox.stop(tx, job, change.why, now, change.detail)
    elif change.why is Reason.UNPACKED:
        _stay_or_stop(tx, job, now, change.detail)


def _owes_room(tx: Transaction, job: JobState, why: Reason) -> bool:
    """Return whether a job waits for the GPUs for which this one was to make room alive."""
    claimed = tx.state.cells.claimers(ids.attempt_id(job.job, job.attempt))
    wanted = why in (Reason.PREEMPTED_BY_POLICY, Reason.TO_OWN_CELLS)
    waits = bool(claimed) or bool(returns.waits_for(tx, job))
    return wanted or (why is Reason.PREEMPTED and waits)


# --- rounds ------------------------------------------------------------------------------------


def suspend(
    tx: Transaction,
    job: JobState,
    now: Instant,
    why: Reason,
    *,
    release: bool,
    detail: str = "",
    owed: int = 0,
) -> None:
    """Begin a suspension: of a gang on several nodes after the mini-batch that all can reach."""
    several = len(job.live) > 1 and job.state is State.RUNNING
    suspend = Suspend(release=release, step=rounds.FIRST_STEP if several else 0)
    begin(tx, job, Goal.SUSPEND, suspend, now, why=why, detail=detail, owed=owed)


def begin(
    tx: Transaction,
    job: JobState,
    goal: Goal,
    change: Change,
    now: Instant,
    *,
    why: Reason,
    detail: str = "",
    owed: int = 0,
) -> None:
    """Begin a change of every part of an attempt."""
    asks = why in (Reason.REQUESTED, Reason.UNPACKED)
    asked = job.asked.number if job.asked is not None and asks else 0
    _tell(
        tx,
        job,
        JobChanging(
            job=job.job,
            attempt=job.attempt,
            order=tx.state.order + 1,
            goal=goal,
            change=change,
            nodes=tuple(job.live),
            why=why,
            at=now,
            ask=asked,
            detail=detail,
            trace=job.trace,
            owed=owed,
        ),
        now,
    )


def _round(
    tx: Transaction,
    job: JobState,
    open_change: OpenChange,
    change: Change,
    nodes: tuple[str, ...],
    now: Instant,
    *,
    number: int,
    undoing: bool = False,
) -> None:
    """Go on with a change."""
    asked = open_change.asked.number if open_change.asked is not None else 0
    _tell(
        tx,
        job,
        JobChanging(
            job=job.job,
            attempt=job.attempt,
            order=tx.state.order + 1,
            goal=open_change.goal,
            change=change,
            nodes=nodes,
            why=open_change.why,
            at=now,
            round=number,
            undoing=undoing,
            ask=asked,
            detail=open_change.detail,
            trace=job.trace,
        ),
        now,
    )


def _tell(tx: Transaction, job: JobState, fact: JobChanging, now: Instant) -> None:
    tx.record(fact)
    for name in fact.nodes:
        outbox.command(tx, name, job.job, job.attempt, now)


# --- making room, and coming back --------------------------------------------------------------


def give_way(
    tx: Transaction,
    job: JobState,
    now: Instant,
    detail: str,
    *,
    memory: bool,
    why: Reason = Reason.PREEMPTED,
) -> bool:
    """Have a victim leave its GPUs; return whether that begins with this.

    It is suspended with its state in the host's memory if it can be, else it stores its state and
    is stopped, else it is stopped. If it is the host's `memory` that is needed, it is stopped.
    """
    if job.state not in (State.BOUND, State.RUNNING, State.SUSPENDED):
        return False
    if job.change is not None and isinstance(job.change.change, Share):
        changes.close(tx, job, Result.OVERTAKEN, Reason.OVERTAKEN, now)
    change, can = job.change, job.can
    if change is not None and change.why in MAKES_ROOM and not memory:
        return False  # It is under way.
    if not memory and (awaits_size(job) or _goes_on(job)):
        return _yield_later(tx, job, now, detail)
    free = change is None and not memory and job.state is not State.BOUND
    if free and "release" in can and not views.comes_anew(tx, job):
        suspend(tx, job, now, why, release=True, detail=detail)
    elif free and "checkpoint" in can and job.state is State.RUNNING:
        begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=why, detail=detail)
    else:
        outbox.stop(tx, job, why, now, detail)
    return True


def awaits_size(job: JobState) -> bool:
    """Return whether a gang changes its size, or has, and can make room alive once that is over."""
    if job.state is not State.RUNNING:
        return False
    if job.change is None:
        return job.resized > 0 and not job.known
    can = "release" in job.can or "checkpoint" in job.can
    return job.change.goal is Goal.RESIZE and can


def _goes_on(job: JobState) -> bool:
    """Return whether an attempt is about to go on, and can make room alive once it does."""
    return job.change is not None and job.change.goal is Goal.RESUME and "release" in job.can


def _yield_later(tx: Transaction, job: JobState, now: Instant, detail: str) -> bool:
    """Have a victim make room once what it changes is over or undone, within YIELDS_WITHIN."""
    soft, deadline = tx.soft, timers.YieldDeadline(job.job, job.attempt)
    begins = deadline not in soft.timers.due
    if begins:
        soft.set_timer(deadline, after(now, settings.YIELDS_WITHIN))
    change = job.change
    if change is not None and spanning.spans(change) and not change.undoing:
        spanning.give_up(tx, job, now, detail)
        if job.change is None:
            give_way(tx, job, now, detail, memory=False)
    return begins


def leave(
    tx: Transaction, job: JobState, asked: AskTaken | None, now: Instant, detail: str = ""
) -> None:
    """Have a job leave GPUs that it shares, with as little lost as it can."""
    if "release" in job.can:
        suspend(tx, job, now, Reason.UNPACKED, release=True, detail=detail)
    elif "checkpoint" in job.can and job.state is State.RUNNING:
        begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=Reason.UNPACKED, detail=detail)
    else:
        if asked is not None:
            changes.over(tx, asked, Result.DONE, now)
        outbox.stop(tx, job, Reason.UNPACKED, now, detail)


def _stay_or_stop(tx: Transaction, job: JobState, now: Instant, detail: str) -> None:
    """Stop a job that could not leave its GPUs alive, unless all others have left them."""
    if sharing.shares(tx.state, job):
        outbox.stop(tx, job, Reason.UNPACKED, now, detail)
    elif job.state is State.SUSPENDED and job.held is Reason.UNPACKED:
        begin(tx, job, Goal.RESUME, Resume(), now, why=Reason.ALONE)


def come_back(tx: Transaction, now: Instant) -> None:
    """Give suspended attempts GPUs of their nodes again, where some are idle, and resume them.

    They have the very same, or others if their ranks can go on with those (`returns`). They run
    there opportunistically and are promoted once their VC's cells cover them, as jobs that borrow
    are. The tenant that asked for a suspension has to ask for its end; a job that a policy rules
    waits for the policy.
    """
    soft = tx.soft
    looked = soft.changes, tx.state.last_asked
    if soft.looked == looked:
        return  # Nothing came free since, and no tenant asked.
    rule = {vc for vc in soft.planned if views.rules(tx, vc)}
    able = [
        job
        for job in tx.state.away.values()
        if job.spec.opportunistic
        or job.spec.vc not in rule
        or (job.asked is not None and _wants_away(job))
    ]
    if not able:
        soft.looked = looked
        return
    room, kept, lent = RETURNS_MAX, returns.kept(tx), views.lines(tx)
    for job in sorted(able, key=lambda job: job.entry):
        if job.change is not None or not (views.goes_on(job) or _wants_away(job)):
            continue
        ruled = not job.spec.opportunistic and job.spec.vc in rule
        if room <= 0:
            soft.check_at = now  # Go on in the next decision.
            return
        if _wants_away(job):
            room -= len(job.live)
            if _goes_away(tx, job, now) or ruled or not views.goes_on(job):
                continue
        if kept and any(name in kept for name in job.live):
            continue
        cost = returns_now(tx, job, now)
        if not cost and not ruled and job.job not in soft.returning:
            cost = len(reclaim(tx, job, now, lent))
        room -= cost or _wait(tx, job)
    soft.looked = looked


def returns_now(tx: Transaction, job: JobState, now: Instant) -> int:
    """Have a suspended attempt go on, if GPUs that it can go on with are idle.

    Returns what it takes of a decision; 0: there are none.
    """
    back = returns.find(tx.state, job)
    if back is None:
        return 0
    tx.record(
        GpusRegained(
            job=job.job, attempt=job.attempt, chain=back.chain, at=now, members=back.members
        )
    )
    asked = job.asked is not None and isinstance(job.asked.ask, AskResume)
    why = Reason.REQUESTED if asked else Reason.WAITS_FOR_ITS_GPUS
    begin(tx, job, Goal.RESUME, Resume(), now, why=why)
    return len(job.live) + job.size // RANKS_TOLD if back.members else len(job.live)


def reclaim(
    tx: Transaction, job: JobState, now: Instant, lent: dict[str, list[JobState]]
) -> list[ids.AttemptId]:
    """Have opportunistic jobs leave GPUs that a suspended job's VC can cover it with.

    Until they have left, no other job is offered GPUs of its nodes (`soft.returning`). It does not
    go ahead of a job of its VC that waits before it; `lent` are those of `views.lines`.

    Returns:
        The attempts that leave, or are leaving already.
    """
    if job.spec.opportunistic or views.behind(tx, job, lent):
        return []
    users = returns.lent(tx.state, job)
    for name in users:
        tx.soft.returning[job.job] = None
        other = tx.state.jobs.get(ids.job_of(name))
        if other is not None and ids.attempt_id(other.job, other.attempt) == name:
            give_way(tx, other, now, f"for {job.job}", memory=False)
        elif other is not None and other.succeeds(ids.number_of(name)):
            moving.undo(tx, other, now, Reason.NOT_TAKEN, f"{job.job} needed the GPUs")
    return users


def _wants_away(job: JobState) -> bool:
    return job.asked is not None and isinstance(job.asked.ask, AskMigrate)


def _goes_away(tx: Transaction, job: JobState, now: Instant) -> bool:
    """Begin to move a suspended job that has no GPUs to where some are; return whether it begins.

    One that only made room goes on at home as well, if that comes free first.
    """
    assert job.asked is not None, job
    assert isinstance(job.asked.ask, AskMigrate), job
    against = refusal(tx.state, job, job.asked.ask)
    if against is not None:
        changes.over(tx, job.asked, Result.REFUSED, now, *against)
        return False
    refused = moving.begin(tx, job, job.asked.ask.to, now)
    if refused is None:
        return True
    needs = refused.detail
    if not views.goes_on(job) and job.waits != (Reason.WAITS_FOR_GPUS, needs):
        tx.record(JobWaits(job=job.job, why=Reason.WAITS_FOR_GPUS, needs=needs))
    return False


def _wait(tx: Transaction, job: JobState) -> bool:
    """Say what a job waits for; return whether that is news."""
    needs = returns.needs(job)
    news = job.waits != (Reason.WAITS_FOR_ITS_GPUS, needs)
    if news:
        tx.record(JobWaits(job=job.job, why=Reason.WAITS_FOR_ITS_GPUS, needs=needs))
    return news
