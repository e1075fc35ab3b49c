"""Jobs that have GPUs and make nothing of them, told by what is measured of them.

They are suspended while others wait, and not killed: what hangs may be looked at, and goes on.
"""

from __future__ import annotations

from skep.policy.gandiva.rules import ACTIONS_MAX, Rules, named
from skep.policy.gandiva.shares import OWED_SLICES_MAX
from skep.policy.gandiva.state import Known
from skep.policy.plan import Plan, Suspend
from skep.units import Instant


def idle(known: Known, plan: Plan, rules: Rules) -> tuple[list[Suspend], Instant | None]:
    """Return who is to stand back for those without a place in a plan, and when to look again."""
    if not known.waiting or not (rules.stalled or rules.idle):
        return [], None
    gone = named(plan)
    found, look_at = known.hung(known.pins(gone), gone)
    # It has had its share, and comes back when nobody is owed more.
    least = -OWED_SLICES_MAX * rules.slice_ns
    return [Suspend(job.job, why, least) for job, why in found[:ACTIONS_MAX]], look_at
