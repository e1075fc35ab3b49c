"""Jobs that have GPUs and make nothing of them, told by what is measured of them.

They are suspended while others wait, and not killed: what hangs may be looked at, and goes on.
"""

from __future__ import annotations

from skep.policies.introspective.rules import ACTIONS_MAX, Rules, movable, named, waits
from skep.policies.turns import OWED_SLICES_MAX
from skep.view.plan import Plan, Suspend
from skep.view.view import JobView, VcView
from skep.wire.reasons import Reason

UNUSED = 20
"""Thousandths of its GPUs' time below which a job does not use them."""


def idle(view: VcView, plan: Plan, rules: Rules) -> list[Suspend]:
    """Return who is to stand back for those that have no place in a plan, as it makes nothing."""
    if not (rules.stalled or rules.idle):
        return []
    gone = named(plan)
    waiting = [job for job in waits(view) if job.job not in gone]
    if not waiting:
        return []
    pins = {job.pin for job in waiting}
    found = []
    for job in view.jobs:
        if job.job in gone or job.pin not in pins or not movable(job, "release"):
            continue
        why = _why(job, view, rules)
        if why is not None:
            # It has had its share, and comes back when nobody is owed more.
            found.append(Suspend(job.job, why, -OWED_SLICES_MAX * rules.slice_ns))
    return found[:ACTIONS_MAX]


def _why(job: JobView, view: VcView, rules: Rules) -> Reason | None:
    """Return why a job does not deserve its GPUs; None if it does, as far as anybody knows.

    What is told of a job was so when it was told last, and has been since, or it would be told
    again.
    """
    since = view.now - max(job.since, job.steps_at)
    if not job.steps or not job.steps_at:
        return None
    if rules.stalled and not job.rate_milli and since >= rules.stalled:
        return Reason.NO_PROGRESS
    if rules.idle and 0 <= job.utilisation < UNUSED and since >= rules.idle:
        return Reason.GPUS_UNUSED
    return None
