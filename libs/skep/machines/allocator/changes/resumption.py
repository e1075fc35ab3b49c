"""How suspended attempts get GPUs again: idle ones, or those that their VC's cells cover."""

from __future__ import annotations

from skep import ids
from skep.ledger.job_state import JobState
from skep.machines.allocator.changes import (
    change_ends,
    making_room,
    migration,
    requests,
    resume_places,
    rounds,
)
from skep.machines.allocator.placement import kept_nodes
from skep.machines.allocator.policies import policy_views
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import AskMigrate, AskResume, Goal, GpusRegained, Result
from skep.wire.commands import Resume
from skep.wire.facts import JobWaits
from skep.wire.reasons import Reason

RETURNS_MAX = 150
"""Suspended attempts looked at in one decision: what follows for each takes 700 bytes of a record,
and each further node of a gang 100."""

RANKS_TOLD = 16
"""Ranks whose GPUs, where they are others than before, take what an attempt does in a record."""


def come_back(tx: Transaction, now: Instant) -> None:
    """Give suspended attempts GPUs of their nodes again, where some are idle, and resume them.

    They have the very same, or others if their ranks can go on with those (`resume_places`). They
    run there opportunistically and are promoted once their VC's cells cover them, as jobs that
    borrow are. The tenant that asked for a suspension has to ask for its end; a job that a policy
    rules waits for the policy.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision.
    """
    soft = tx.soft
    looked = soft.changes, tx.state.last_asked
    if soft.looked == looked:
        return  # Nothing came free since, and no tenant asked.
    rule = {vc for vc in soft.planned if policy_views.rules(tx, vc)}
    able: list[JobState] = []
    for (vc, opportunistic), there in tx.state.away_of.items():
        if opportunistic or vc not in rule:
            able += there.values()
        else:
            able += [job for job in there.values() if job.asked is not None and _wants_away(job)]
    if not able:
        soft.looked = looked
        return
    room, kept, lent = RETURNS_MAX, resume_places.kept(tx), policy_views.lines(tx)
    for job in sorted(able, key=lambda job: job.entry):
        if job.change is not None or not (policy_views.goes_on(job) or _wants_away(job)):
            continue
        ruled = not job.spec.opportunistic and job.spec.vc in rule
        if room <= 0:
            soft.check_at = now  # Go on in the next decision.
            return
        if _wants_away(job):
            room -= len(job.live)
            if _goes_away(tx, job, now) or ruled or not policy_views.goes_on(job):
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

    Args:
        tx: Facts and commands are added.
        job: It is suspended, without GPUs.
        now: The time of the decision.

    Returns:
        What it takes of a decision; 0: no such GPUs are idle.
    """
    back = resume_places.find(tx.state, job)
    if back is None or kept_nodes.closed(tx, job, now):
        return 0
    tx.record(
        GpusRegained(
            job=job.job, attempt=job.attempt, chain=back.chain, at=now, members=back.members
        )
    )
    asked = job.asked is not None and isinstance(job.asked.ask, AskResume)
    why = Reason.REQUESTED if asked else Reason.WAITS_FOR_ITS_GPUS
    rounds.begin(tx, job, Goal.RESUME, Resume(), now, why=why)
    return len(job.live) + job.size // RANKS_TOLD if back.members else len(job.live)


def reclaim(
    tx: Transaction, job: JobState, now: Instant, lent: dict[str, list[JobState]]
) -> list[ids.AttemptId]:
    """Have opportunistic jobs leave GPUs that a suspended job's VC can cover it with.

    Until they have left, no other job is offered GPUs of its nodes (`soft.returning`). It does not
    go ahead of a job of its VC that waits before it.

    Args:
        tx: Facts and commands are added.
        job: It is suspended, without GPUs.
        now: The time of the decision.
        lent: The jobs that were lent GPUs, by VC (`policy_views.lines`).

    Returns:
        The attempts that leave, or are leaving already.
    """
    if job.spec.opportunistic or policy_views.behind(tx, job, lent):
        return []
    users = resume_places.lent(tx.state, job)
    for name in users:
        tx.soft.returning[job.job] = None
        other = tx.state.jobs.get(ids.job_of(name))
        if other is not None and ids.attempt_id(other.job, other.attempt) == name:
            making_room.give_way(tx, other, now, f"for {job.job}", memory=False)
        elif other is not None and other.succeeds(ids.number_of(name)):
            migration.undo(tx, other, now, Reason.NOT_TAKEN, f"{job.job} needed the GPUs")
    return users


def _wants_away(job: JobState) -> bool:
    """Return whether a job was asked to go on elsewhere."""
    return job.asked is not None and isinstance(job.asked.ask, AskMigrate)


def _goes_away(tx: Transaction, job: JobState, now: Instant) -> bool:
    """Begin to move a suspended job that has no GPUs to where some are; return whether it begins.

    One that only made room goes on at home as well, if that comes free first.
    """
    assert job.asked is not None, job
    assert isinstance(job.asked.ask, AskMigrate), job
    against = requests.refusal(tx.state, job, job.asked.ask)
    if against is not None:
        change_ends.over(tx, job.asked, Result.REFUSED, now, *against)
        return False
    refused = migration.begin(tx, job, job.asked.ask.to, now)
    if refused is None:
        return True
    needs = refused.detail
    if not policy_views.goes_on(job) and job.waits != (Reason.WAITS_FOR_GPUS, needs):
        tx.record(JobWaits(job=job.job, why=Reason.WAITS_FOR_GPUS, needs=needs))
    return False


def _wait(tx: Transaction, job: JobState) -> bool:
    """Say what a job waits for; return whether that is news."""
    needs = resume_places.needs(job)
    news = job.waits != (Reason.WAITS_FOR_ITS_GPUS, needs)
    if news:
        tx.record(JobWaits(job=job.job, why=Reason.WAITS_FOR_ITS_GPUS, needs=needs))
    return news
