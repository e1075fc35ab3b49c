"""Jobs that have GPUs and make no use of them, by measurements.

They are suspended while other jobs wait, and not killed: a job that hangs can be examined, and
continues later.
"""

from __future__ import annotations

from skep.policy.gandiva.rules import ACTIONS_MAX, Rules, named
from skep.policy.gandiva.shares import OWED_SLICES_MAX
from skep.policy.gandiva.state import UnitIndex
from skep.policy.plan import Plan, Suspend
from skep.units import Instant


def idle(known: UnitIndex, plan: Plan, rules: Rules) -> tuple[list[Suspend], Instant | None]:
    """Return which jobs are suspended for jobs without a place, and when to look again.

    Args:
        known: The jobs of the VC.
        plan: The plan of turns; jobs that it names stay as they are.
        rules: Options.
    """
    if not known.waiting or not (rules.stalled or rules.idle):
        return [], None
    gone = named(plan)
    found, look_at = known.hung(known.pins(gone), gone)
    # It gets the lowest deficit, so that it returns when no other job has a larger one.
    least = -OWED_SLICES_MAX * rules.slice_ns
    return [Suspend(job.job, why, least) for job, why in found[:ACTIONS_MAX]], look_at
