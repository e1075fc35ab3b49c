"""Jobs that have GPUs and make nothing of them, told by what is measured of them.

They are suspended while others wait, and not killed: what hangs may be looked at, and goes on.
"""

from __future__ import annotations

from skep.policies.introspective.rules import ACTIONS_MAX, Rules, movable, named, waits
from skep.policies.turns import OWED_SLICES_MAX
from skep.units import Instant, after
from skep.view.plan import Plan, Suspend
from skep.view.view import JobView, VcView
from skep.wire.reasons import Reason

UNUSED = 20
"""Thousandths of its GPUs' time below which a job does not use them."""


def idle(view: VcView, plan: Plan, rules: Rules) -> tuple[list[Suspend], Instant | None]:
    """Return who is to stand back for those without a place in a plan, and when to look again."""
    gone = named(plan)
    waiting = [job for job in waits(view) if job.job not in gone]
    if not waiting or not (rules.stalled or rules.idle):
        return [], None
    pins = {job.pin for job in waiting}
    found, looks = list[Suspend](), list[Instant]()
    for job in view.jobs:
        if job.job in gone or job.pin not in pins or not movable(job, "release"):
            continue
        known = _why(job, rules)
        if known is None:
            continue
        why, at = known
        if view.now < at:
            looks.append(at)
        elif len(found) < ACTIONS_MAX:
            # It has had its share, and comes back when nobody is owed more.
            found.append(Suspend(job.job, why, -OWED_SLICES_MAX * rules.slice_ns))
    return found, min(looks, default=None)


def _why(job: JobView, rules: Rules) -> tuple[Reason, Instant] | None:
    """Return why a job will not deserve its GPUs, and when, if all stays so; None: it does.

    What is told of a job was so when it was told last, and has been since, or it would be told
    again.
    """
    since = max(job.since, job.steps_at)
    if not job.steps or not job.steps_at:
        return None
    if rules.stalled and not job.rate_milli:
        return Reason.NO_PROGRESS, after(since, rules.stalled)
    if rules.idle and 0 <= job.utilisation < UNUSED:
        return Reason.GPUS_UNUSED, after(since, rules.idle)
    return None
