"""Elastic jobs give up workers for a job that has to begin, and have them back afterwards.

A job without a promise that is willing to shrink (`willing.shrink`) loses nothing but speed by it,
so it comes before stopping the job as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skep.policy.plan import Action, Plan, Preempt, Resize
from skep.policy.sizes import gpus_per_worker, offered, offers, resizable
from skep.policy.view import JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason


def shrink_first(view: VcView, made: Plan, wait_until: Instant) -> Plan:
    """Return a plan in which the jobs that it stops give up workers, if that is enough.

    The turns stay, and are carried out once there is room. If it has made none by then, since the
    workers were elsewhere or are still there, the jobs are stopped after all.

    Args:
        view: The VC.
        made: A plan.
        wait_until: How long the jobs that have turns can wait.
    """
    if wait_until <= view.now:
        return made
    jobs = {job.job: job for job in view.jobs}
    victims = [jobs[each.job] for each in made.actions if isinstance(each, Preempt)]
    spared = {job.job: job for job in victims if gives_up(job)}
    lacks = {pin: -free for pin, free in view.free_for().items()}
    for turn in made.turns:
        job = jobs[turn.job]
        lacks[job.pin] = lacks.get(job.pin, 0) + job.gpus
    stopping = [job for job in view.jobs if job.phase is Phase.STOPPING]
    for job in (*stopping, *(job for job in victims if job.job not in spared)):
        lacks[job.pin] = lacks.get(job.pin, 0) - job.gpus
    shrinks = _shrinks(list(spared.values()), lacks)
    if not shrinks or any(lack > 0 for lack in lacks.values()):
        return made
    kept = [each for each in made.actions if each.job not in spared]
    look_at = wait_until if made.look_at is None else min(made.look_at, wait_until)
    return msgspec.structs.replace(made, actions=(*kept, *shrinks), look_at=look_at)


def _shrinks(victims: Sequence[JobView], lacks: dict[str, int]) -> list[Action]:
    """Return which jobs give up workers, as few as need be; `lacks` is what is left to find."""
    found: list[Action] = []
    for job in victims:
        assert job.spec.elastic is not None, job
        each = gpus_per_worker(job)
        lack = lacks.get(job.pin, 0)
        most = job.workers - offered(job, job.spec.elastic.min, job.workers)[0]
        gives = min(most, -(-lack // each))
        while 0 < gives < most and not offers(job, job.workers - gives):
            gives += 1
        if gives > 0 and offers(job, job.workers - gives):
            lacks[job.pin] = lack - gives * each
            found.append(Resize(job.job, Reason.BY_DEADLINE, job.workers - gives))
    return found


def gives_up(job: JobView) -> bool:
    """Return whether a job gives up workers for others."""
    elastic, promise = job.spec.elastic, job.spec.promise
    accepted = promise is not None and promise.answer == "accepted"
    return (
        elastic is not None
        and job.spec.willing.shrink
        and not accepted
        and _sizeable(job)
        and job.workers > elastic.min
    )


def gave_up(job: JobView) -> int:
    """Return how many workers a job has fewer than its spec says; 0 if it never gives up any.

    Only sizes that it offers count.
    """
    if job.spec.elastic is None or not job.spec.willing.shrink or not _sizeable(job):
        return 0
    larger = offered(job, job.workers + 1, job.spec.resources.workers)
    return larger[-1] - job.workers if larger else 0


def _sizeable(job: JobView) -> bool:
    return resizable(job) and not job.trial
