"""What facts about trials change: what is open, cools down, or has to be put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from skep.cells.levels import gpus_owned
from skep.ledger import move_costs, pairs, probes, records, sharing
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.units import Duration, Instant, after, seconds
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.trials import Kind, TrialBegun, TrialFact, TrialOver, Verdict

MOVES = (Kind.MIGRATE, Kind.DEFRAG)
DOUBLED_MAX = 4
"""So often at most that time doubles: each time that it is no success again when it may be."""
HURTS = -250
"""Thousandths: what is worse than was needed by so much counts as if it had failed twice. What is
hardly worse may be better another time."""
COOLS_VOID = seconds(600.0)
"""Likewise what was disturbed. Not what ran its time without a verdict: a job that makes nothing
any more gives no samples, so the worst there is ends like that."""
HOUR = seconds(3600.0)
PAIR_MAX = 3
"""Packs of the same two jobs that are tried within an hour: what goes well together comes apart
when there are GPUs for both, and is not brought together anew for each job that comes for a
while."""
JOB_MAX = 6
JOB_MOVES_MAX = 3
"""Trials begun within an hour that touch one job, and of these moves, each of which costs its job
one pause, or two. A pack that is undone costs its guest some seconds."""
GPU_MAX, VC_LEAST, VC_MOST = 3, 60, 2000
"""Likewise of a VC: so many for each of its GPUs, between bounds, and half as many moves. What a
policy can waste is about a per cent, whatever the VC's size."""
COOLING_MAX = 200
"""What is remembered of a VC's failures: the latest."""
SHRINKS_MAX = 3
"""How often ranks are asked to be as few as before; then the gang keeps its size."""
SIZES = (Kind.GROW, Kind.PROBE)
MATTER = frozenset((GpusShared, TrialBegun, TrialOver))
"""Facts after which open trials are looked at again, whatever jobs they are about."""
FOLLOWED = MATTER | {JobChanged}
"""Facts that may mean something for trials also while none is open, and nothing is put back."""
PAIR = "pair"
GONE = (State.QUEUED, State.DEFERRED, State.RESERVED, State.BOUND, State.STOPPING)
"""States of a job of which nothing is left that a trial has changed."""


def families(jobs: Sequence[JobState]) -> tuple[str, ...]:
    """Return what jobs are alike by, each's family or else its name and VC, in order.

    The replicas of a service (`llm-1`, `llm-2`) are alike.

    Returns:
        Names, sorted.
    """
    return tuple(sorted(job.spec.alike for job in jobs))


def key(kind: Kind, named: Sequence[str]) -> str:
    """Return what a cool-down is of: no two lists of families share one, blanks or not.

    Args:
        kind: The kind of the trial.
        named: What `families` returns.
    """
    return msgspec.json.encode((kind, *named)).decode()


def key_by_rules_1(kind: Kind, named: Sequence[str]) -> str:
    """Return what a cool-down is of in logs by rules 1, where families with blanks can coincide.

    Args:
        kind: The kind of the trial.
        named: What `families` returns.
    """
    return " ".join((kind, *named))


def raise_rules(tries: records.Tries) -> None:
    """Name the cool-downs that earlier rules left as they are named now."""
    for vc, known in tries.cooling.items():
        tries.cooling[vc] = {key(each.kind, each.families): each for each in known.values()}


def counted(kind: Kind, jobs: Sequence[str], vc: str) -> tuple[str, ...]:
    """Return under what names a trial is counted: all of a job and VC, and what moves.

    Args:
        kind: The kind of the trial.
        jobs: The names of its jobs.
        vc: The VC of the jobs.

    Returns:
        Names for `full`.
    """
    names = *jobs, f"vc:{vc}"
    if kind is Kind.PACK:
        return *names, " ".join((PAIR, vc, *sorted(jobs)))
    return *names, *((f"moves {name}" for name in names) if kind in MOVES else ())


def full(state: ClusterState, name: str) -> Instant:
    """Return until when no trial is begun that is counted under a name.

    Args:
        state: Read: when trials were begun, and the GPUs of the VC.
        name: One of those that `counted` returns.

    Returns:
        The instant; one that is past means that a trial may begin.
    """
    begun, moves = state.tries.begun.get(name, ()), name.startswith("moves ")
    if name.startswith(f"{PAIR} "):
        most = PAIR_MAX
    elif "vc:" in name:
        most = _most_of_vc(state, name.partition("vc:")[2]) // (2 if moves else 1)
    else:
        most = JOB_MOVES_MAX if moves else JOB_MAX
    return after(begun[-most], HOUR) if len(begun) >= most else Instant(0)


def _most_of_vc(state: ClusterState, vc: str) -> int:
    gpus = gpus_owned(state.cells.cluster, vc) if vc in state.cells.cluster.vcs else 0
    return min(max(GPU_MAX * gpus, VC_LEAST), VC_MOST)


# --- for policies --------------------------------------------------------------------------------


def number(state: ClusterState, job: JobState) -> int:
    """Return the open trial of a job, or the one whose change is being put back; 0: none."""
    undo = state.tries.undoing.get(job.job)
    return state.tries.of_job.get(job.job, undo.trial if undo is not None else 0)


# --- facts ---------------------------------------------------------------------------------------


def apply(state: ClusterState, fact: TrialFact) -> None:
    """Take over one fact."""
    tries = state.tries
    match fact:
        case TrialBegun():
            tries.latest = fact.trial
            tries.open[fact.trial] = fact
            for each in fact.jobs:
                tries.of_job[each.job] = fact.trial
                if fact.kind is Kind.PACK:
                    tries.solo[each.job] = each.solo_milli
            probes.begun(state, fact)
            for name in counted(fact.kind, [each.job for each in fact.jobs], fact.vc):
                recent = [at for at in tries.begun.get(name, ()) if fact.at - HOUR < at]
                tries.begun[name] = [*recent, fact.at]
            _prune(tries, fact.at)
        case TrialOver():
            trial = tries.open.pop(fact.trial)
            measured = tries.done.pop(fact.trial, None) is not None
            if trial.kind is Kind.PACK:
                pairs.judged(state, fact, trial.needed_milli)
            for each in trial.jobs:
                del tries.of_job[each.job]
                if each.job not in state.jobs:
                    _forget(tries, each.job)
            probes.over(state, fact)
            fails = fact.verdict is not Verdict.KEPT or fact.why is Reason.TRIAL_STAYS
            if fails and trial.kind is not Kind.PROBE:
                _cool(tries, trial, fact, key if state.rules > 1 else key_by_rules_1)
            if fact.verdict is not Verdict.KEPT:
                _put_back(state, trial, fact, measured=measured)


def concerns(tries: records.Tries, fact: object) -> bool:
    """Return whether a fact may mean something for trials; most facts do not."""
    return bool(tries.of_job or tries.undoing) or type(fact) in FOLLOWED


def follow(state: ClusterState, fact: object) -> None:
    """Take over what any fact means for trials: what is measured by now, what is put back."""
    tries = state.tries
    if type(fact) in MATTER or (tries.of_job and getattr(fact, "job", "") in tries.of_job):
        state.delta.trials = True
    if isinstance(fact, JobChanged):
        if fact.goal in (Goal.MIGRATE, Goal.RESIZE):
            _changed(state, fact)
        elif fact.goal is Goal.RESUME and state.jobs[fact.job].mixed:
            state.delta.disturbed += (fact.job,)  # It may be alone from now on.
    if tries.undoing:
        for other, undo in list(tries.undoing.items()):
            if not _owed(state, other, undo):
                del tries.undoing[other]
                state.delta.views += (other,)
    if state.probes.open:
        probes.follow(state, fact)


def _changed(state: ClusterState, fact: JobChanged) -> None:
    """Take over that a job was moved, or has another size, or that it came to nothing."""
    tries, undo = state.tries, state.tries.undoing.get(fact.job)
    if fact.result is not Result.DONE:
        if undo is not None and fact.goal is Goal.RESIZE:
            undo.refused += 1
        return
    state.delta.remeasured += (fact.job,)
    tries.solo.pop(fact.job, None)  # Its rate may be another elsewhere, or with other workers.
    opened = tries.of_job.get(fact.job, 0)
    trial = tries.open.get(opened)
    if trial is None or trial.kind is Kind.PACK or opened in tries.done:
        return
    job = state.jobs[fact.job]
    moved = fact.goal is Goal.MIGRATE and trial.kind in MOVES
    if job.attempt == trial.jobs[0].attempt and (moved or job.size == trial.grown):
        tries.done[opened] = fact.at


def _cool(
    tries: records.Tries,
    trial: TrialBegun,
    fact: TrialOver,
    name_of: Callable[[Kind, Sequence[str]], str],
) -> None:
    known, named = tries.cooling.get(trial.vc, {}), name_of(trial.kind, trial.families)
    before = known.get(named)
    times = before.times if before is not None and fact.at < before.known else 0
    if fact.why is Reason.TRIAL_DISTURBED:
        until = after(fact.at, COOLS_VOID)
    else:
        # Of several at a time each says the same; one that was void said nothing.
        again = not times or before is None or before.until <= fact.at
        hurts = again and fact.gain_milli <= HURTS
        times = min(times + again + hurts, DOUBLED_MAX)
        until = after(fact.at, Duration(records.COOLS << (times - 1)))
    if before is not None:  # One may be void: what another has shown stands.
        until = max(until, before.until)
    cools = {name: each for name, each in known.items() if fact.at < each.known and name != named}
    cools[named] = records.Cooling(trial.kind, trial.families, until, times)
    while len(cools) > COOLING_MAX:
        del cools[next(iter(cools))]
    tries.cooling[trial.vc] = cools


def _put_back(state: ClusterState, trial: TrialBegun, fact: TrialOver, *, measured: bool) -> None:
    """Note what of a job has to be put back; one that moved goes back at once or never.

    Args:
        state: What is owed is noted there.
        trial: The trial.
        fact: Its verdict.
        measured: Whether its change was done.
    """
    tried = next((each for each in trial.jobs if each.job == fact.leaves), trial.jobs[0])
    probe = trial.kind is Kind.PROBE
    undo = records.Undo(
        trial.trial, trial.kind, tried.attempt, fact.why, trial.workers, trial.servers
    )
    job = state.jobs.get(tried.job)
    resizes = job is not None and job.change is not None and job.change.goal is Goal.RESIZE
    # A change of size that was begun meanwhile is wanted; that of a probe itself is not.
    wanted = resizes and (measured or not probe)
    if trial.kind not in MOVES and not wanted and _owed(state, tried.job, undo):
        state.tries.undoing[tried.job] = undo


def _owed(state: ClusterState, name: str, undo: records.Undo) -> bool:
    """Return whether something is left to be put back."""
    job = state.jobs.get(name)
    if job is None or (job.state in GONE and undo.kind in SIZES):
        return False
    if undo.kind is Kind.PROBE:
        return undo.refused < SHRINKS_MAX and probes.remains(state, job, undo.trial)
    if undo.kind is Kind.GROW:
        return job.size > undo.workers and undo.refused < SHRINKS_MAX
    return job.attempt == undo.attempt and sharing.shares(state, job)


def ended(state: ClusterState, job: JobState) -> None:
    """Take over that a job is over: of one in an open trial, its verdict forgets it."""
    move_costs.ended(state, job.job)
    pairs.parted(state, job)
    if job.job not in state.tries.of_job:
        _forget(state.tries, job.job)


def _forget(tries: records.Tries, name: str) -> None:
    tries.solo.pop(name, None)
    tries.begun.pop(name, None)
    tries.begun.pop(f"moves {name}", None)


def _prune(tries: records.Tries, now: Instant) -> None:
    """Forget pairs of which nothing was tried for an hour: they may both be over."""
    old = [
        name
        for name, begun in tries.begun.items()
        if name.startswith(f"{PAIR} ") and begun[-1] <= now - HOUR
    ]
    for name in old:
        del tries.begun[name]


def check(state: ClusterState) -> None:
    """Assert that whatever is known of trials is of jobs that there are.

    Raises:
        AssertionError: Something is known of a job that is over.
    """
    tries = state.tries
    probes.check(state)
    assert tries.of_job == {
        each.job: number for number, trial in tries.open.items() for each in trial.jobs
    }
    assert all(number == trial.trial <= tries.latest for number, trial in tries.open.items())
    assert tries.done.keys() <= tries.open.keys()
    assert all(_owed(state, name, undo) for name, undo in tries.undoing.items())
    for name in tries.solo:
        assert name in state.jobs or name in tries.of_job, name
