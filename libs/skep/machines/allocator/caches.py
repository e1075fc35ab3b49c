"""How what the allocator keeps beside its state follows the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.ledger import move_costs
from skep.ledger.delta import Delta, MoveCost
from skep.ledger.job_state import JobState
from skep.machines.allocator.soft import Soft
from skep.wire.advice import JobPace
from skep.wire.changes import JobChanging, MemberAnswered, MemberLearned
from skep.wire.facts import GhostGone
from skep.wire.following import AdviceFollowed
from skep.wire.moves import SuccessorLoaded, SuccessorReady
from skep.wire.trials import TrialBegun, TrialOver

QUIET = frozenset(
    {JobChanging, MemberAnswered, MemberLearned, SuccessorLoaded, SuccessorReady, AdviceFollowed}
)
"""Facts about a job that change nothing else: no cell, and nothing that a node has free. What they
mean for a policy is in the job's view."""


def touch(soft: Soft, fact: Any) -> None:
    """Note which jobs a fact is about. Called only where some VC has a policy.

    Args:
        soft: Changed.
        fact: Any fact of the allocator, or a piece of a snapshot.
    """
    if type(fact) not in QUIET:
        soft.stirred += 1
    if isinstance(fact, AdviceFollowed):
        return  # It is what the plan that is being carried out says of itself.
    job = getattr(fact, "job", None)
    if isinstance(fact, TrialBegun):
        soft.touched.update((each.job, None) for each in fact.jobs)
        return
    if isinstance(fact, TrialOver):
        soft.touched.update(dict.fromkeys(fact.jobs))
        return
    if job is not None:
        soft.touched[job] = None
    if job is None or isinstance(fact, GhostGone):
        # Nodes, cells and what is left on nodes: what comes free by them may serve any VC.
        for planned in soft.planned.values():
            planned.due = True


def follow(jobs: Mapping[str, JobState], soft: Soft, delta: Delta) -> None:
    """Take over what a fact changed.

    Args:
        jobs: The jobs as they are after the fact.
        soft: Changed.
        delta: What the fold of the fact returned.
    """
    telling = soft.telling
    soft.changes += delta.freed
    if delta.claims:
        soft.ripe.update(dict.fromkeys(delta.claims))
    for name in delta.partners:
        soft.reshare[name] = None
        telling.be_unsure(name)
    for name in delta.disturbed:
        _disturb(soft, jobs[name])
    for name in delta.remeasured:
        telling.be_unsure(name)
        telling.alone.pop(name, None)
        telling.settled.pop(name, None)
        if jobs[name].mixed:
            telling.unsettle(name)
    if delta.trials:
        telling.touched = telling.stale = True
    if delta.ended:
        soft.uncovered.pop(delta.ended, None)
        soft.out_of_reach.pop(delta.ended, None)
        soft.moved_for.pop(delta.ended, None)
        soft.passed.pop(delta.ended, None)
        soft.pairs.pop(delta.ended, None)
        soft.paces.pop(delta.ended, None)
    if delta.resolves:
        soft.resolving.update(dict.fromkeys(delta.resolves))
    if delta.pipelines:
        soft.room.update(dict.fromkeys(delta.pipelines))
    if delta.views and soft.planned:
        _show(jobs, soft, delta.views)


def best(pace: JobPace) -> int:
    """Return the best there is of a rate: the mean of many windows, else that of the latest.

    Returns:
        Thousandths of a mini-batch per second; 0: it was not measured.
    """
    return pace.mean_milli if pace.samples else pace.rate_milli


def _disturb(soft: Soft, job: JobState) -> None:
    """Take over that a job shares GPUs from now on, or goes on after it stood.

    What is told of it next says nothing of it alone: how it went is kept.
    """
    told, telling = soft.paces.get(job.job), soft.telling
    if telling.settled.pop(job.job, 0) == job.attempt and told is not None and best(told[0]):
        telling.alone[job.job] = job.attempt, best(told[0])
    telling.unsettle(job.job)


def _show(jobs: Mapping[str, JobState], soft: Soft, changed: tuple[str | MoveCost, ...]) -> None:
    """Have policies see these jobs anew, and those for which a cost of moving is another."""
    for each in changed:
        if not isinstance(each, MoveCost):
            soft.touched[each] = None
            continue
        name = each.name
        if name in jobs:
            soft.touched[name] = None
        for planned in soft.planned.values():
            seen = name.startswith((f"vc:{planned.vc}", planned.vc))
            for other in planned.views if seen else ():
                if other in jobs and name in move_costs.known_under(jobs[other]):
                    soft.touched[other] = None
