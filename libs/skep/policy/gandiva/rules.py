"""What the parts of the introspective mode share: options, bounds, and tests of jobs."""

from __future__ import annotations

from typing import NamedTuple

from skep.perf.judge import slices_give
from skep.policy.plan import Plan
from skep.policy.view import JobView, Phase, VcView
from skep.units import Duration, seconds

ACTIONS_MAX = 4
"""Trials of one kind in a plan: each trial makes earlier measurements less valid for the next."""
MILLI = 1000
TURNS_KEEP = 980
"""What turns give together at least, in thousandths of one job alone: to suspend and resume in
place costs 2 % of a slice or less (section 4.1), whatever it costs to move a job."""
PACKS_NEED = 1050
"""What a pack has to make to be kept, in thousandths of one job alone: somewhat more than turns
give. With a gain of a few per cent the whole is only a little faster, and one of its jobs may end
later."""


class Rules(NamedTuple):
    """The policy's options, in nanoseconds and thousandths."""

    slice_ns: Duration
    grow_after: Duration = seconds(60)
    defrag_free: float = 0.75
    stalled: Duration = seconds(600)
    idle: Duration = Duration(0)


def profiled(job: JobView) -> bool:
    """Return whether a job's rate, utilisation and GPU memory were measured."""
    return job.rate_milli > 0 and job.utilisation >= 0 and job.memory > 0


def movable(job: JobView, how: str = "migrate") -> bool:
    """Return whether a job can be changed now: it runs, alone, and is in no trial.

    Args:
        job: The job.
        how: The change, one of `JobView.can`.
    """
    free = not (job.trial or job.partners or job.proven_milli or job.borrows)
    return free and job.phase is Phase.RUNNING and how in job.can


def family(job: JobView) -> str:
    """Return the family of a job, or else its VC and name, as trials know it."""
    return job.spec.alike


def families(*jobs: JobView) -> tuple[str, ...]:
    """Return the sorted families of jobs, by which trials are known."""
    return tuple(sorted(family(job) for job in jobs))


def cooling(view: VcView, kind: str) -> set[tuple[str, ...]]:
    """Return the families between which a kind of trial cools down.

    Args:
        view: The VC.
        kind: A `skep.wire.trials.Kind`.
    """
    return {
        each.families
        for each in view.cooling
        if each.kind == kind and view.now < each.until and not each.jobs
    }


def tired(view: VcView) -> set[frozenset[str]]:
    """Return the pairs of jobs that were tried together often enough for now."""
    return {frozenset(each.jobs) for each in view.cooling if each.jobs and view.now < each.until}


def spent(view: VcView, job: JobView, kind: str) -> bool:
    """Return whether no trial may begin with a job now, after too many recent ones.

    A policy that proposed it again and again would keep all later ones from being tried.

    Args:
        view: The VC.
        job: The job.
        kind: A `skep.wire.trials.Kind`.
    """
    until = max(view.trial_after, job.trial_after)
    if kind in ("migrate", "defrag"):
        until = max(until, view.move_after, job.move_after)
    return view.now < until


def turns_give(job: JobView, rules: Rules) -> int:
    """Return what turns give jobs on the same GPUs together, in thousandths of one job alone.

    A turn loses at most what a move was measured to cost (`JobView.pause`). The loss is bounded, as
    nothing leaves its server. An unknown cost counts as 0.

    Args:
        job: One of the jobs.
        rules: The length of a slice.
    """
    return max(TURNS_KEEP, round(MILLI * slices_give(job.pause, rules.slice_ns)))


def named(plan: Plan) -> set[str]:
    """Return the jobs that a plan changes or places."""
    return {each.job for each in (*plan.turns, *plan.actions)}


def on_them(guest: JobView, host: JobView) -> bool:
    """Return whether the ranks of a suspended job can resume on the GPUs of another job.

    Args:
        guest: The suspended job.
        host: The job that has the GPUs.
    """
    if guest.nodes != host.nodes or len(host.nodes) != 1:
        return False
    if "rebind" in guest.can:
        return True
    had, has = dict(guest.devices), dict(host.devices)
    return bool(had) and all(set(gpus) <= set(has.get(node, ())) for node, gpus in had.items())
