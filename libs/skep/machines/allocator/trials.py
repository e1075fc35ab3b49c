"""Trials: changes that a policy wants to be kept only if rates say that they were worth it.

    act --> TrialBegun (in the record of the change) --> Trials, repeated --> the introspector
    Judged --> TrialOver (kept, undone);   until passed, a job gone or changed --> TrialOver (void)

One writer per kind of truth: the introspector may be dead, late or wrong about what is open, and a
trial still has one verdict, because whoever records it is who began it. What is undone or void is
put back: the guest of a pack leaves the GPUs that it shares, once nothing else is under way with
it. `Trials` is kept in snapshots; what the introspector was told is soft.

Trials are limited, so that a policy that tries too much costs a bounded part: one at a time for
each job, a cool-down for what was not worth it, and so many begun within an hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from skep.machines.allocator import changing, paces, packs, pairs
from skep.machines.allocator.jobs import JobState, State
from skep.machines.base import Send
from skep.units import Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.changes import Goal
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.trials import (
    Before,
    Judged,
    Kind,
    OpenTrial,
    TrialBegun,
    TrialFact,
    TrialOver,
    Trials,
    Verdict,
)

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

LASTS = seconds(600.0)
"""How long a trial may go without a verdict: twice what the test's last look takes of jobs whose
mini-batches are shorter than its samples."""
REPEAT = seconds(2.0)
"""As often as any command is repeated."""
COOLS = seconds(3600.0)
"""How long what was not worth it is not tried again between jobs of the same families."""
COOLS_VOID = seconds(600.0)
HOUR = seconds(3600.0)
JOB_MAX = 6
VC_MAX = 60
"""Trials begun within an hour that touch one job, or are of one VC: a pack that is undone costs its
guest some seconds, so this bounds what a policy can waste at about a per cent."""
OPEN_MAX = 500
"""Open trials: about 300 bytes each in one message."""
COOLING_MAX = 10_000
"""What is remembered of failures, the latest."""

Refusal = tuple[Reason, str]


class Tries(msgspec.Struct):
    """What is known of trials: durable."""

    latest: int = 0
    open: dict[int, TrialBegun] = {}
    of_job: dict[str, int] = {}
    """The open trial of each job that is in one."""
    cooling: dict[str, Instant] = {}
    """By kind and families: until when it is not tried again."""
    begun: dict[str, list[Instant]] = {}
    """By job, and by `vc:` and VC: when trials were begun, oldest first, of the last hour."""
    solo: dict[str, int] = {}
    """By unfinished job of a trial: its rate on GPUs of its own."""
    leaving: dict[str, int] = {}
    """Guests of packs that are to leave, and the attempt that is to."""


# --- begin ---------------------------------------------------------------------------------------


def refusal(
    machine: AllocatorMachine, kind: Kind, jobs: Sequence[JobState], now: Instant
) -> Refusal | None:
    """Return why a trial with these jobs is not to be begun now, None if it may."""
    tries = machine.tries
    for job in jobs:
        if job.job in tries.of_job or job.job in tries.leaving:
            return Reason.TRIAL_OPEN, job.job
    until = tries.cooling.get(key(kind, families(jobs)))
    if until is not None and now < until:
        return Reason.TRIAL_COOLS, " ".join(families(jobs))
    for name, most in _counted(jobs):
        if sum(now - HOUR < at for at in tries.begun.get(name, ())) >= most:
            return Reason.TRIALS_ENOUGH, name
    if len(tries.open) >= OPEN_MAX:
        return Reason.TRIALS_ENOUGH, f"{OPEN_MAX} are open"
    for job in jobs:
        if machine.trials_measured and not solo(machine, job):
            return Reason.NOT_MEASURED, job.job
    return None


def pack(
    machine: AllocatorMachine, guest: JobState, host: JobState, needed_milli: int, now: Instant
) -> TrialBegun | None:
    """Return what is to be recorded with a pack that is tried; None if it may not be now.

    It is made before the pack: of who shares GPUs nobody knows how fast he is alone. Beside a host
    that shares its GPUs already nothing is tried: whose doing a loss is could not be told.
    """
    jobs = guest, host
    if packs.shares(machine, host) or refusal(machine, Kind.PACK, jobs, now) is not None:
        return None
    # A guest that was suspended goes on with its attempt; one in the queue begins its next.
    numbers = guest.attempt if guest.released else guest.following, host.attempt
    befores = tuple(_before(machine, *pair) for pair in zip(jobs, numbers, strict=True))
    return TrialBegun(trial=machine.tries.latest + 1, kind=Kind.PACK, vc=guest.spec.vc,
                      jobs=befores, families=families(jobs), at=now, until=after(now, LASTS),
                      needed_milli=needed_milli, why=Reason.BY_POLICY)  # fmt: skip


def _before(machine: AllocatorMachine, job: JobState, attempt: int) -> Before:
    told = machine.soft.paces.get(job.job)
    return Before(job=job.job, attempt=attempt, gpus=job.size * job.spec.resources.gpus,
                  rate_milli=told[0].rate_milli if told is not None else 0,
                  solo_milli=solo(machine, job))  # fmt: skip


def solo(machine: AllocatorMachine, job: JobState) -> int:
    """Return a job's rate on GPUs of its own, in thousandths; 0: nobody knows.

    It was measured where the attempt has shared none, or before it was first packed on trial.
    """
    known = machine.tries.solo.get(job.job)
    if known:
        return known
    told = machine.soft.paces.get(job.job)
    if told is not None and not job.mixed and told[0].attempt == job.attempt:
        return told[0].rate_milli
    rates: tuple[tuple[int, int], ...] = paces.shown(machine, job).get("rates", ())
    return dict(rates).get(job.size, 0)


def families(jobs: Sequence[JobState]) -> tuple[str, ...]:
    """Return what jobs are alike by, each's family or else its name and VC, in order."""
    return tuple(sorted(job.spec.size.family or f"{job.spec.vc}/{job.spec.name}" for job in jobs))


def key(kind: Kind, named: Sequence[str]) -> str:
    """Return what a cool-down is of."""
    return " ".join((kind, *named))


def _counted(jobs: Sequence[JobState]) -> Iterator[tuple[str, int]]:
    for job in jobs:
        yield job.job, JOB_MAX
    yield f"vc:{jobs[0].spec.vc}", VC_MAX


# --- verdicts ------------------------------------------------------------------------------------


def judged(machine: AllocatorMachine, event: Judged, now: Instant) -> None:
    """Take a verdict: the first one that comes of an open trial is the trial's."""
    trial = machine.tries.open.get(event.trial)
    if trial is None or not _since(machine, trial):
        return
    _over(machine, trial, Verdict.KEPT if event.kept else Verdict.UNDONE,
          Reason.TRIAL_GAINS if event.kept else Reason.TRIAL_LOSES, now, event)  # fmt: skip


def review(machine: AllocatorMachine, now: Instant) -> None:
    """End trials that can have no verdict any more, and put back what is to be."""
    tries, soft = machine.tries, machine.soft
    due = soft.telling.at is not None and soft.telling.at <= now
    looks, soft.telling.touched = due or soft.telling.touched, False
    for trial in list(tries.open.values()) if looks else ():
        disturbed = _disturbed(machine, trial)
        if disturbed:
            _over(machine, trial, Verdict.VOID, Reason.TRIAL_DISTURBED, now, detail=disturbed)
        elif trial.until <= now:
            _over(machine, trial, Verdict.VOID, Reason.NO_VERDICT, now)
    for name in list(tries.leaving):
        job = machine.jobs[name]
        calm = job.change is None and job.asked is None and job.successor is None
        if calm and job.state in (State.RUNNING, State.SUSPENDED):
            changing.leave(machine, job, None, now, "after a trial")


def _over(
    machine: AllocatorMachine, trial: TrialBegun, verdict: Verdict, why: Reason, now: Instant,
    found: Judged | None = None, detail: str = "",
) -> None:  # fmt: skip
    machine.record(TrialOver(trial=trial.trial, jobs=tuple(each.job for each in trial.jobs),
                             verdict=verdict, why=why, at=now, detail=detail,
                             gain_milli=found.gain_milli if found is not None else 0,
                             low_milli=found.low_milli if found is not None else 0,
                             high_milli=found.high_milli if found is not None else 0,
                             after=found.after if found is not None else ()))  # fmt: skip


def _disturbed(machine: AllocatorMachine, trial: TrialBegun) -> str:
    """Return what makes a trial worthless; empty: nothing does."""
    for each in trial.jobs:
        job = machine.jobs.get(each.job)
        if job is None or job.attempt != each.attempt:
            return f"{each.job} is over"
        if job.state not in (State.BOUND, State.RUNNING) and not _resumes(job):
            return f"{each.job} is {job.state}"
    guest, others = trial.jobs[0], {(each.job, each.attempt) for each in trial.jobs[1:]}
    live = machine.jobs[guest.job].live
    if set(packs.partners(machine, live, (guest.job, guest.attempt))) != others:
        return "others came to those GPUs, or left them"
    for name, attempt in sorted(others):
        beside = set(packs.partners(machine, machine.jobs[name].live, (name, attempt)))
        if not beside <= {(each.job, each.attempt) for each in trial.jobs}:
            return f"others came to the GPUs of {name}"
    return ""


def _resumes(job: JobState) -> bool:
    """Return whether a suspended guest is about to go on."""
    return job.state is State.SUSPENDED and job.change is not None and not job.released


def _since(machine: AllocatorMachine, trial: TrialBegun) -> Instant:
    """Return when all jobs of a trial began to run as they are; 0: some have yet to."""
    jobs = [machine.jobs[each.job] for each in trial.jobs]
    if any(job.state is not State.RUNNING for job in jobs):
        return Instant(0)
    if any(job.change is not None and job.change.goal is not Goal.SHARE for job in jobs):
        return Instant(0)
    return max(trial.at, *(job.since for job in jobs))


# --- what the introspector is told ---------------------------------------------------------------


def tell(machine: AllocatorMachine, now: Instant) -> None:
    """Say what is open, if that is something else than was said last, or it is time to repeat."""
    tries, soft = machine.tries, machine.soft
    if not soft.telling.stale and (soft.telling.at is None or now < soft.telling.at):
        return
    soft.telling.stale = False
    opened = tuple(
        OpenTrial(trial=trial.trial, kind=trial.kind, since=_since(machine, trial),
                  until=trial.until, needed_milli=trial.needed_milli, jobs=trial.jobs)
        for trial in tries.open.values()
    )  # fmt: skip
    if opened != soft.telling.told or (opened and soft.telling.again <= now):
        machine.effects.append(Send(subjects.TRIALS_OPEN, Trials(at=now, open=opened)))
        soft.telling.told, soft.telling.again = opened, after(now, machine.trials_repeated)
    soft.telling.at = (
        min((soft.telling.again, *(each.until for each in opened))) if opened else None
    )


# --- facts ---------------------------------------------------------------------------------------


def apply(machine: AllocatorMachine, fact: TrialFact) -> None:
    """Take over one fact."""
    tries = machine.tries
    match fact:
        case TrialBegun():
            tries.latest = fact.trial
            tries.open[fact.trial] = fact
            for each in fact.jobs:
                tries.of_job[each.job] = fact.trial
                tries.solo[each.job] = each.solo_milli
            for name in (*(each.job for each in fact.jobs), f"vc:{fact.vc}"):
                recent = [at for at in tries.begun.get(name, ()) if fact.at - HOUR < at]
                tries.begun[name] = [*recent, fact.at]
        case TrialOver():
            trial = tries.open.pop(fact.trial)
            pairs.judged(machine, fact, trial.needed_milli)
            for each in trial.jobs:
                del tries.of_job[each.job]
                if each.job not in machine.jobs:
                    _forget(tries, each.job)
            if fact.verdict is not Verdict.KEPT:
                _cool(tries, trial, fact)
                _leaves(machine, trial.jobs[0])


def follow(machine: AllocatorMachine, fact: Any) -> None:
    """Take over what any fact means for trials: who has left others need not leave any more."""
    tries, name = machine.tries, getattr(fact, "job", "")
    if name in tries.of_job or isinstance(fact, GpusShared | TrialBegun | TrialOver):
        machine.soft.telling.touched = machine.soft.telling.stale = True
    for guest, attempt in list(tries.leaving.items()):
        job = machine.jobs.get(guest)
        if job is None or job.attempt != attempt or not packs.shares(machine, job):
            del tries.leaving[guest]


def _cool(tries: Tries, trial: TrialBegun, fact: TrialOver) -> None:
    named = key(trial.kind, trial.families)
    rest: Duration = COOLS if fact.verdict is Verdict.UNDONE else COOLS_VOID
    tries.cooling.pop(named, None)
    tries.cooling[named] = after(fact.at, rest)
    if len(tries.cooling) > COOLING_MAX:
        del tries.cooling[next(iter(tries.cooling))]


def _leaves(machine: AllocatorMachine, guest: Before) -> None:
    job = machine.jobs.get(guest.job)
    if job is not None and job.attempt == guest.attempt and packs.shares(machine, job):
        machine.tries.leaving[guest.job] = guest.attempt


def ended(machine: AllocatorMachine, name: str) -> None:
    """Take over that a job is over: of one in an open trial, its verdict forgets it."""
    if name not in machine.tries.of_job:
        _forget(machine.tries, name)


def _forget(tries: Tries, name: str) -> None:
    tries.solo.pop(name, None)
    tries.begun.pop(name, None)


def check(machine: AllocatorMachine) -> None:
    """Assert that whatever is known of trials is of jobs that there are."""
    tries = machine.tries
    assert tries.of_job == {
        each.job: number for number, trial in tries.open.items() for each in trial.jobs
    }
    assert all(number == trial.trial <= tries.latest for number, trial in tries.open.items())
    for name, attempt in tries.leaving.items():
        job = machine.jobs[name]
        assert job.attempt == attempt, job
        assert packs.shares(machine, job), job
    for name in tries.solo:
        assert name in machine.jobs or name in tries.of_job, name
