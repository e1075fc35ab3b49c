"""What the parts of the introspective mode have in common: options, bounds, and what is known."""

from __future__ import annotations

from typing import NamedTuple

from skep.perf.judge import slices_give
from skep.policy.plan import Plan
from skep.policy.view import JobView, Phase, VcView
from skep.units import Duration, seconds

ACTIONS_MAX = 4
"""Trials of one kind in a plan: what was measured before them tells less and less of the next."""
MILLI = 1000
TURNS_KEEP = 980
"""Thousandths of one alone that turns give together at least: to suspend and go on in place costs
2 % of a slice or less (section 4.1), whatever it takes to move a job."""
PACKS_NEED = 1050
"""Thousandths of one alone that a pack has to make to be kept, some beyond what turns give: of a
pack that gains a few per cent the whole is a little faster, and one of its jobs may end later."""


class Rules(NamedTuple):
    """The policy's options, in nanoseconds and thousandths."""

    slice_ns: Duration
    grow_after: Duration = seconds(60)
    defrag_free: float = 0.75
    stalled: Duration = seconds(600)
    idle: Duration = Duration(0)


def profiled(job: JobView) -> bool:
    """Return whether it was measured how a job goes: its rate, and what it uses of its GPUs."""
    return job.rate_milli > 0 and job.utilisation >= 0 and job.memory > 0


def movable(job: JobView, how: str = "migrate") -> bool:
    """Return whether something can be done to a job: it runs, alone, and nothing is tried."""
    free = not (job.trial or job.partners or job.mate_milli or job.borrows)
    return free and job.phase is Phase.RUNNING and how in job.can


def family(job: JobView) -> str:
    """Return what a job is like: its family, or else its name and VC."""
    return job.spec.size.family or f"{job.spec.vc}/{job.spec.name}"


def families(*jobs: JobView) -> tuple[str, ...]:
    """Return what a trial with these jobs is called by."""
    return tuple(sorted(family(job) for job in jobs))


def cooling(view: VcView, kind: str) -> set[tuple[str, ...]]:
    """Return between jobs of which families a kind of trial was not worth it a while ago."""
    return {
        each.families
        for each in view.cooling
        if each.kind == kind and view.now < each.until and not each.jobs
    }


def tired(view: VcView) -> set[frozenset[str]]:
    """Return which two jobs were tried beside one another often enough for now."""
    return {frozenset(each.jobs) for each in view.cooling if each.jobs and view.now < each.until}


def spent(view: VcView, job: JobView, kind: str) -> bool:
    """Return whether no trial of a kind is begun with a job now, as there were many lately.

    To propose it again and again would keep all that comes after it from being tried.
    """
    until = max(view.trial_after, job.trial_after)
    if kind in ("migrate", "defrag"):
        until = max(until, view.move_after, job.move_after)
    return view.now < until


def turns_give(job: JobView, rules: Rules) -> int:
    """Return what turns give jobs on the same GPUs together, in thousandths of one alone.

    What a turn loses by switching is at most what a move was measured to (`JobView.pause`), and is
    bounded, as nothing leaves its server; where that is not known, nothing.
    """
    return max(TURNS_KEEP, round(MILLI * slices_give(job.pause, rules.slice_ns)))


def named(plan: Plan) -> set[str]:
    """Return the jobs that a plan does something to, or for."""
    return {each.job for each in (*plan.turns, *plan.actions)}


def on_them(guest: JobView, host: JobView) -> bool:
    """Return whether the ranks of a suspended job can go on with GPUs that another one has."""
    if guest.nodes != host.nodes or len(host.nodes) != 1:
        return False
    if "rebind" in guest.can:
        return True
    had, has = dict(guest.devices), dict(host.devices)
    return bool(had) and all(set(gpus) <= set(has.get(node, ())) for node, gpus in had.items())
