"""The reactive plan, and what is tried beside it (Gandiva, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from skep.policies.introspective import growing, health, migrating, packing
from skep.policies.introspective.rules import Rules
from skep.policies.introspective.units import Units
from skep.view.plan import Action, Plan
from skep.view.view import VcView

React = Callable[[VcView], Plan]


def improve(view: VcView, rules: Rules, react: React) -> Plan:
    """Return a plan of turns with what is to be tried beyond it.

    Turns come first: nothing is tried with a job that they place, or take GPUs from. Before them
    comes only what spares somebody from being suspended: what others have grown by. Of the rest one
    kind of change is begun at a time, so that what it frees is not promised twice. What is no trial
    comes first, and what would not be begun is not proposed: it would keep the others from it.
    """
    units = Units(view, rules)
    less, seen = growing.shrink(units.view)
    units.view = seen
    plan = react(units.turning(seen))
    idle, look_at = health.idle(seen, plan, rules)
    more: list[Action] = [*idle]
    rests = [each.until for each in view.cooling]
    rests += [view.trial_after, view.move_after]
    rests += [at for job in view.jobs for at in (job.trial_after, job.move_after)]
    looks = [plan.look_at, look_at, min((at for at in rests if view.now < at), default=None)]
    more = more or [*packing.part(units, plan, rules)] or [*packing.pack(units, plan, rules)]
    if not (more or less):
        apart, look_at = packing.spread(units, plan, rules)
        looks.append(look_at)
        more = [*apart] or [*migrating.gather(seen, plan)] or [*migrating.defrag(seen, plan, rules)]
    if not (more or less):
        grown, look_at = growing.grow(seen, plan, rules)
        looks.append(look_at)
        more = [*grown]
    plan = units.unfold(plan)
    look_at = min((at for at in looks if at is not None), default=None)
    return replace(plan, actions=(*less, *plan.actions, *more), look_at=look_at)
