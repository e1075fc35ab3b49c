"""Trials: changes that a policy wants to be kept only if rates say that they were worth it.

    act --> TrialBegun (in the record of the change) --> Trials, repeated --> the introspector
    Judged --> TrialOver (kept, undone);   until passed, a job gone or changed --> TrialOver (void)

One writer per kind of truth: the introspector may be dead, late or wrong about what is open, and a
trial still has one verdict, because the service that began it records it. What is undone is put
back: the guest of a pack leaves the GPUs that it shares and a gang is as small as before once
nothing else is under way with them, and a job that moved goes back, if its place is idle still. So
is what is void, but for moves: to go back costs another pause, and it is not known to be worth it.

Whatever a policy does to a job while it is tried is done as ever, and makes the trial void: a gang
that has grown on trial shrinks at once when its GPUs are wanted.

Trials are limited, so that a policy that tries too much costs a bounded part: one at a time for
each job, a cool-down for what was not worth it, and so many begun within an hour.

Source: Gandiva, section 4.2.2 (what is tried).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skep.ledger import sharing, trial_facts
from skep.ledger.job_state import JobState, State
from skep.ledger.records import Undo
from skep.ledger.state import ClusterState
from skep.ledger.trial_facts import MOVES, SIZES, counted, families, key
from skep.machines.allocator import caches
from skep.machines.allocator.changes import (
    making_room,
    migration,
    requests,
    resizing,
    resizing_across_nodes,
)
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.policies import job_rates
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Send
from skep.perf.progress import WINDOW
from skep.policy.plan import Migrate, Resize
from skep.units import Instant, after, seconds
from skep.wire import subjects
from skep.wire.advice import JobPace
from skep.wire.changes import AskMigrate, Goal
from skep.wire.reasons import Reason
from skep.wire.trials import Before, Judged, Kind, OpenTrial, TrialBegun, TrialOver, Trials, Verdict

SETTLES = seconds(30.0)
"""After so long a rate that is another one than before has been told: it is measured over ten
seconds, and has to be steady."""
OPEN_MAX = 500
"""Open trials: about 300 bytes each in one message."""
DEFRAG_MILLI = 980
"""What a job that is moved for others must keep of its rate, in thousandths."""

MILLI = 1000
DOES = {Kind.MIGRATE: "move", Kind.DEFRAG: "move", Kind.GROW: "grow", Kind.PROBE: "change its size"}
"""By kind: what a job in such a trial is to do."""

NO_PACE = JobPace(job="", attempt=0, steps=0, rate_milli=0)


# --- begin ---------------------------------------------------------------------------------------


def refusal(
    tx: Transaction,
    kind: Kind,
    jobs: Sequence[JobState],
    now: Instant,
    known_of: Sequence[JobState] | None = None,
) -> Refused | None:
    """Return why a trial with these jobs is not to be begun now, None if it may.

    Args:
        tx: Its trials and rates are read.
        kind: The kind of the trial.
        jobs: The jobs that would be measured, of one VC.
        now: The time of the decision.
        known_of: Of which of them the rate has to be known; None: of all.

    Returns:
        Why not; None: it may begin.
    """
    known = tx.state.tries
    for job in jobs:
        if job.job in known.of_job or job.job in known.undoing:
            return Refused(Reason.TRIAL_OPEN, job.job)
    vc, cooling = jobs[0].spec.vc, cools(tx, kind, jobs, now)
    if cooling is not None:
        return cooling
    for name in counted(kind, [job.job for job in jobs], vc):
        if now < trial_facts.full(tx.state, name):
            return Refused(Reason.TRIALS_ENOUGH, name)
    if len(known.open) >= OPEN_MAX:
        return Refused(Reason.TRIALS_ENOUGH, f"{OPEN_MAX} are open")
    compared = jobs if known_of is None else known_of
    for job in compared if tx.settings.trial_rules.measured else ():
        if not (job_rates.solo if kind is Kind.PACK else _rate)(tx, job):
            return Refused(Reason.NOT_MEASURED, job.job)
        if kind is not Kind.PACK and _unsure(tx, job, now):
            return Refused(Reason.NOT_MEASURED, f"{job.job}: something has just changed")
    return None


def cools(tx: Transaction, kind: Kind, jobs: Sequence[JobState], now: Instant) -> Refused | None:
    """Return that jobs like these were not worth such a trial lately, or None."""
    named = families(jobs)
    known = tx.state.tries.cooling.get(jobs[0].spec.vc, {}).get(key(kind, named))
    if known is not None and now < known.until:
        return Refused(Reason.TRIAL_COOLS, " ".join(named))
    return None


def _unsure(tx: Transaction, job: JobState, now: Instant) -> bool:
    """Return whether a job's rate may be of before something changed; its policy is asked again."""
    until = tx.soft.telling.unsure.get(job.job, now)
    planned = tx.soft.planned.get(job.spec.vc)
    if until > now and planned is not None:
        planned.look_at = min(planned.look_at or until, until)
    return until != now


def pack(
    tx: Transaction,
    guest: JobState,
    host: JobState,
    needed_milli: int,
    now: Instant,
    *,
    why: Reason = Reason.BY_POLICY,
) -> TrialBegun | None:
    """Return what is to be recorded with a pack that is tried; None if it may not be now.

    It is made before the pack: it is not known of a job that shares GPUs how fast it is alone.
    Beside a host that shares its GPUs already nothing is tried: whose doing a loss is could not be
    told.

    Args:
        tx: Its trials and rates are read.
        guest: The job that is to join the other.
        host: The job that has the GPUs.
        needed_milli: What the sum of their rates, each in parts of its rate alone, must come to, in
            thousandths.
        now: The time of the decision.
        why: Why they are put together. If each asked for a share of a GPU, the rate of the guest
            alone need not be known: it counts if it is.
    """
    jobs = guest, host
    known_of = (host,) if why is Reason.SHARES_FIT else None
    if sharing.shares(tx.state, host):
        return None
    if refusal(tx, Kind.PACK, jobs, now, known_of) is not None:
        return None
    # A guest that was suspended goes on with its attempt; one in the queue begins its next.
    numbers = guest.attempt if guest.released else guest.following, host.attempt
    befores = tuple(_before(tx, *pair, Kind.PACK) for pair in zip(jobs, numbers, strict=True))
    return TrialBegun(
        trial=tx.state.tries.latest + 1,
        kind=Kind.PACK,
        vc=guest.spec.vc,
        jobs=befores,
        families=families(jobs),
        at=now,
        until=after(now, tx.settings.trial_rules.lasts),
        needed_milli=needed_milli,
        why=why,
    )


def move(tx: Transaction, job: JobState, action: Migrate, now: Instant) -> TrialBegun | None:
    """Return what is to be recorded with a move that is tried; None if it may not be now.

    It is made before the move, and its successor is measured. A job that shared GPUs has no way
    back to them: others are there.
    """
    kind = Kind.DEFRAG if action.defrag else Kind.MIGRATE
    if job.state is not State.RUNNING or refusal(tx, kind, (job,), now) is not None:
        return None
    needed = min(action.needed_milli, DEFRAG_MILLI) if action.defrag else action.needed_milli
    place = () if sharing.shares(tx.state, job) else tuple(job.live)
    return TrialBegun(
        trial=tx.state.tries.latest + 1,
        kind=kind,
        vc=job.spec.vc,
        jobs=(_before(tx, job, job.following, kind),),
        families=families((job,)),
        at=now,
        until=after(now, tx.settings.trial_rules.lasts_made_ready),
        needed_milli=needed,
        why=Reason.BY_POLICY,
        nodes=place,
    )


def grow(tx: Transaction, job: JobState, action: Resize, now: Instant) -> TrialBegun | None:
    """Return what is to be recorded with a growth that is tried; None if it may not be now."""
    if job.state is not State.RUNNING or refusal(tx, Kind.GROW, (job,), now) is not None:
        return None
    return TrialBegun(
        trial=tx.state.tries.latest + 1,
        kind=Kind.GROW,
        vc=job.spec.vc,
        jobs=(_before(tx, job, job.attempt, Kind.GROW),),
        families=families((job,)),
        at=now,
        until=after(now, tx.settings.trial_rules.lasts_made_ready),
        needed_milli=action.needed_milli,
        why=Reason.BY_POLICY,
        workers=job.size,
        servers=job.servers,
        grown=action.workers,
    )


def probe(
    tx: Transaction, job: JobState, before: int, workers: int, nodes: Sequence[str], now: Instant
) -> TrialBegun:
    """Return what is to be recorded with a probe, once it has begun.

    Args:
        tx: Its rates are read.
        job: It is about to have another number of workers.
        before: How many it had.
        workers: How many are measured.
        nodes: On which nodes.
        now: The time of the decision.
    """
    told = _before(tx, job, job.attempt, Kind.PROBE)
    return TrialBegun(
        trial=tx.state.tries.latest + 1,
        kind=Kind.PROBE,
        vc=job.spec.vc,
        jobs=(msgspec.structs.replace(told, gpus=before * job.spec.resources.gpus),),
        families=families((job,)),
        at=now,
        until=after(now, tx.settings.trial_rules.lasts_probe),
        needed_milli=MILLI,
        why=Reason.PROBING,
        nodes=tuple(nodes),
        workers=before,
        servers=job.servers,
        grown=workers,
    )


def call_off(tx: Transaction, trial: TrialBegun, for_whom: str, now: Instant) -> None:
    """End a probe whose GPUs another job could have.

    Args:
        tx: The verdict is recorded; what the gang was not told of yet is withdrawn.
        trial: The probe.
        for_whom: The job that waits.
        now: The time of the decision.
    """
    _over(tx, trial, Verdict.VOID, Reason.GPUS_NEEDED, now, detail=for_whom)
    job = tx.state.jobs.get(trial.jobs[0].job)
    change = job.change if job is not None else None
    if job is not None and change is not None and change.why is Reason.PROBING:
        resizing_across_nodes.give_up(tx, job, now, f"for {for_whom}")


def _before(tx: Transaction, job: JobState, attempt: int, kind: Kind) -> Before:
    """Return the rate of a job before a trial, as the trial records it."""
    told, alone = tx.soft.paces.get(job.job), job_rates.solo(tx, job)
    rate = caches.best(told[0]) if told is not None else 0
    # What is compared is the rate alone of a packed job; of it no more may be known.
    told_of = told is not None and (kind is not Kind.PACK or rate == alone)
    pace = told[0] if told is not None and told_of else NO_PACE
    return Before(
        job=job.job,
        attempt=attempt,
        gpus=job.size * job.spec.resources.gpus,
        rate_milli=rate,
        solo_milli=alone,
        spread_milli=pace.spread_milli,
        samples=pace.samples,
    )


def _rate(tx: Transaction, job: JobState) -> int:
    """Return the rate that a running attempt was measured at, in thousandths; 0: it was not."""
    told = tx.soft.paces.get(job.job)
    return caches.best(told[0]) if told is not None and told[0].attempt == job.attempt else 0


# --- verdicts ------------------------------------------------------------------------------------


def judged(tx: Transaction, event: Judged, now: Instant) -> None:
    """Take a verdict: the first one that comes of an open trial is the trial's."""
    trial = tx.state.tries.open.get(event.trial)
    if trial is None or not _since(tx.state, trial):
        return
    if trial.kind in MOVES and tx.state.jobs[trial.jobs[0].job].change is not None:
        return  # It is told its share; the verdict comes again.
    if trial.kind is Kind.PROBE:
        _over(tx, trial, Verdict.UNDONE, Reason.PROBED, now, found=event)
        return
    if event.kept:
        _over(tx, trial, Verdict.KEPT, Reason.TRIAL_GAINS, now, found=event)
        return
    against = _goes_back(tx, trial, now) if trial.kind in MOVES else ""
    if against:
        _over(tx, trial, Verdict.KEPT, Reason.TRIAL_STAYS, now, found=event, detail=against)
    else:
        _over(tx, trial, Verdict.UNDONE, Reason.TRIAL_LOSES, now, found=event)


def part(tx: Transaction, leaves: JobState, stays: JobState, now: Instant, detail: str) -> bool:
    """Have a job leave the GPUs that it shares with another, by a measure that is no rate.

    Without an open trial of the two one is recorded with its verdict: their kinds cool down, and
    the job leaves, as after every trial.

    Args:
        tx: The verdict is recorded; what follows is done by `review`.
        leaves: It shares GPUs with the other.
        stays: The other.
        now: The time of the decision.
        detail: What was measured, in words.

    Returns:
        Whether that was done: not while one of them is in another trial.
    """
    known, jobs = tx.state.tries, (leaves, stays)
    opened = {known.of_job[job.job] for job in jobs if job.job in known.of_job}
    trial = known.open[min(opened)] if opened else None
    if trial is None:
        trial = TrialBegun(
            trial=known.latest + 1,
            kind=Kind.PACK,
            vc=leaves.spec.vc,
            jobs=tuple(_before(tx, job, job.attempt, Kind.PACK) for job in jobs),
            families=families(jobs),
            at=now,
            until=now,
            needed_milli=0,
            why=Reason.LATENCY_ABOVE,
        )
        tx.record(trial)
    if trial.kind is not Kind.PACK or {each.job for each in trial.jobs} != {
        job.job for job in jobs
    }:
        return False
    _over(tx, trial, Verdict.UNDONE, Reason.LATENCY_ABOVE, now, detail=detail, leaves=leaves.job)
    return True


def _goes_back(tx: Transaction, trial: TrialBegun, now: Instant) -> str:
    """Have a job that moved go back to its nodes; return why it cannot, empty if that begins."""
    job, to = tx.state.jobs[trial.jobs[0].job], ",".join(trial.nodes)
    if not trial.nodes:
        return "it shared its GPUs there"
    if job.asked is not None or not job.known:
        return "something else is asked of it"
    against = requests.refusal(tx.state, job, AskMigrate(job=job.job, to=to))
    if against is None:
        against = migration.begin(tx, job, to, now, Reason.TRIAL_LOSES)
    return "" if against is None else f"{against.why}: {against.detail}"


def is_due(tx: Transaction, now: Instant) -> bool:
    """Return whether `review` or `tell` have anything to do."""
    telling = tx.soft.telling
    news = telling.touched or telling.stale or telling.unsure or telling.unsettled
    late = telling.at is not None and telling.at <= now
    return bool(news or late or tx.state.tries.undoing)


def review(tx: Transaction, now: Instant) -> None:
    """End trials that can have no verdict any more, and put back what is to be."""
    known, soft = tx.state.tries, tx.soft
    telling = soft.telling
    if telling.unsure and telling.unsure_at <= now:
        told = {name: at or after(now, SETTLES) for name, at in telling.unsure.items()}
        telling.unsure = {
            name: at for name, at in told.items() if at > now and name in tx.state.jobs
        }
        telling.unsure_at = min(telling.unsure.values(), default=now)
    if telling.unsettled and telling.unsettled_at <= now:
        _settle(tx, now)
    due = soft.telling.at is not None and soft.telling.at <= now
    looks, soft.telling.touched = due or soft.telling.touched, False
    for trial in list(known.open.values()) if looks else ():
        disturbed = _disturbed(tx.state, trial)
        if disturbed:
            _over(tx, trial, Verdict.VOID, Reason.TRIAL_DISTURBED, now, detail=disturbed)
        elif trial.until <= now:
            # Those that asked to share do so unless it was seen to hurt.
            stays = trial.why is Reason.SHARES_FIT and bool(_since(tx.state, trial))
            verdict = Verdict.KEPT if stays else Verdict.VOID
            _over(tx, trial, verdict, Reason.NO_VERDICT, now)
    for name, undo in list(known.undoing.items()):
        job = tx.state.jobs[name]
        if job.change is None and job.asked is None and job.successor is None:
            _put_back(tx, job, undo, now)


def _settle(tx: Transaction, now: Instant) -> None:
    """Take over of which jobs what is told is of them alone by now.

    It is once something was told after they were: that is late where mini-batches are slow. As long
    as nothing is, or something is done to one, it is looked again. Nothing is told of jobs of VCs
    without a policy.
    """
    left, telling = dict[str, tuple[Instant, Instant]](), tx.soft.telling
    for name, (since, at) in telling.unsettled.items():
        job = tx.state.jobs.get(name)
        if at > now:
            left[name] = since, at
        elif not at:
            left[name] = now, after(now, SETTLES)
        elif job is None or job.spec.vc not in tx.soft.planned:
            pass
        elif job.state is State.RUNNING and not sharing.shares(tx.state, job):
            pace = tx.soft.paces.get(name)
            if job.change is None and pace is not None and pace[1] > after(since, WINDOW):
                telling.settled[name] = job.attempt
                tx.soft.touched[name] = None
            else:
                left[name] = since, after(now, WINDOW)
        elif job.state is State.BOUND:
            left[name] = since, after(now, SETTLES)
    telling.unsettled = left
    telling.unsettled_at = min((at for _, at in left.values()), default=now)


def _put_back(tx: Transaction, job: JobState, undo: Undo, now: Instant) -> None:
    """Have a guest leave the GPUs that it shares, or a gang be as small as before, if it can now.

    One that stands without being asked to is left alone until it runs.
    """
    if undo.kind is Kind.PACK and job.state in (State.RUNNING, State.SUSPENDED):
        late = undo.why is Reason.LATENCY_ABOVE
        detail = "requests to the replica beside it took too long" if late else "after a trial"
        making_room.leave(tx, job, None, now, detail)
    ready = undo.kind in SIZES and job.state is State.RUNNING and job.known
    if ready and not (resizing.refusal(job, undo.workers) or sharing.shares(tx.state, job)):
        resizing.begin(tx, job, undo.workers, now, servers=undo.servers or None, why=undo.why)


def _over(
    tx: Transaction,
    trial: TrialBegun,
    verdict: Verdict,
    why: Reason,
    now: Instant,
    *,
    found: Judged | None = None,
    detail: str = "",
    leaves: str = "",
) -> None:
    """Record the verdict on a trial."""
    tx.record(
        TrialOver(
            trial=trial.trial,
            jobs=tuple(each.job for each in trial.jobs),
            verdict=verdict,
            why=why,
            at=now,
            detail=detail,
            leaves=leaves,
            gain_milli=found.gain_milli if found is not None else 0,
            low_milli=found.low_milli if found is not None else 0,
            high_milli=found.high_milli if found is not None else 0,
            after=found.after if found is not None else (),
        )
    )


def check(state: ClusterState) -> None:
    """Assert that no job is left as a trial left it.

    Raises:
        AssertionError: One is.
    """
    for name, undo in state.tries.undoing.items():
        job = state.jobs[name]
        calm = job.change is None and job.asked is None and job.successor is None
        stands = undo.kind is Kind.PACK and job.state in (State.RUNNING, State.SUSPENDED)
        assert not (calm and stands), (name, undo)


def _disturbed(state: ClusterState, trial: TrialBegun) -> str:
    """Return what makes a trial worthless; empty: nothing does."""
    return _split(state, trial) if trial.kind is Kind.PACK else _strays(state, trial)


def _split(state: ClusterState, trial: TrialBegun) -> str:
    """Return why the jobs of a pack are not together any more, or not alone."""
    for each in trial.jobs:
        job = state.jobs.get(each.job)
        if job is None or job.attempt != each.attempt:
            return f"{each.job} is over"
        if job.state not in (State.BOUND, State.RUNNING) and not _resumes(job):
            return f"{each.job} is {job.state}"
    guest, others = trial.jobs[0], {(each.job, each.attempt) for each in trial.jobs[1:]}
    live = state.jobs[guest.job].live
    if set(sharing.partners(state, live, (guest.job, guest.attempt))) != others:
        return "others came to those GPUs, or left them"
    for name, attempt in sorted(others):
        beside = set(sharing.partners(state, state.jobs[name].live, (name, attempt)))
        if not beside <= {(each.job, each.attempt) for each in trial.jobs}:
            return f"others came to the GPUs of {name}"
    return ""


def _resumes(job: JobState) -> bool:
    """Return whether a suspended guest is about to go on."""
    return job.state is State.SUSPENDED and job.change is not None and not job.released


def _strays(state: ClusterState, trial: TrialBegun) -> str:
    """Return why a job is not, and is not about to be, as it was moved or grown to be."""
    each, moves = trial.jobs[0], trial.kind in MOVES
    job = state.jobs.get(each.job)
    if job is None:
        return f"{each.job} is over"
    goal = job.change.goal if job.change is not None else None
    if trial.trial not in state.tries.done:
        mine = job.attempt == each.attempt or job.succeeds(each.attempt)
        if mine and goal is (Goal.MIGRATE if moves else Goal.RESIZE):
            return ""
        return f"{each.job} did not {DOES[trial.kind]}"
    if job.attempt != each.attempt or job.state is not State.RUNNING:
        return f"{each.job} is {job.state}, with attempt {job.attempt}"
    if goal in (Goal.SUSPEND, Goal.MIGRATE, Goal.RESIZE):
        return f"{each.job} is changed again: {goal}"
    if trial.grown and job.size != trial.grown:
        return f"{each.job} has {job.size} workers"
    if sharing.shares(state, job):
        return f"others came to the GPUs of {each.job}"
    return ""


def _since(state: ClusterState, trial: TrialBegun) -> Instant:
    """Return when all jobs of a trial began to run as they are; 0: some have yet to."""
    jobs = [state.jobs[each.job] for each in trial.jobs]
    if any(job.state is not State.RUNNING for job in jobs):
        return Instant(0)
    if any(job.change is not None and job.change.goal is not Goal.SHARE for job in jobs):
        return Instant(0)
    if trial.kind is not Kind.PACK:
        return state.tries.done.get(trial.trial, Instant(0))
    return max(trial.at, *(job.since for job in jobs))


# --- what the introspector is told ---------------------------------------------------------------


def tell(tx: Transaction, now: Instant) -> None:
    """Say what is open, if that is something else than was said last, or it is time to repeat."""
    soft = tx.soft
    if not soft.telling.stale and (soft.telling.at is None or now < soft.telling.at):
        return
    soft.telling.stale = False
    opened = tuple(
        OpenTrial(
            trial=trial.trial,
            kind=trial.kind,
            since=_since(tx.state, trial),
            until=trial.until,
            needed_milli=trial.needed_milli,
            jobs=trial.jobs,
            workers=trial.grown if trial.kind is Kind.PROBE else 0,
        )
        for trial in tx.state.tries.open.values()
    )
    if opened != soft.telling.told or (opened and soft.telling.again <= now):
        tx.effects.append(Send(subjects.TRIALS_OPEN, Trials(at=now, open=opened)))
        soft.telling.told, soft.telling.again = opened, after(now, tx.settings.trial_rules.repeated)
    soft.telling.at = (
        min((soft.telling.again, *(each.until for each in opened))) if opened else None
    )
