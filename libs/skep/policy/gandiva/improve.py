"""The reactive plan, and the trials beside it (Gandiva, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skep.policy.gandiva import grow, health, migrate, pack
from skep.policy.gandiva.packs import Units
from skep.policy.incremental import Change
from skep.policy.plan import Action, Plan
from skep.policy.view import VcView

React = Callable[[VcView, Sequence[Change]], Plan]
"""Plans the turns of units. Units differ from the jobs of the view, so it also gets their
changes."""


def improve(view: VcView, units: Units, react: React) -> Plan:
    """Return a plan of turns, extended by changes to try.

    Turns come first: no change is tried with a job that they place, or take GPUs from. The one
    exception spares jobs from being suspended: other jobs give back what they have grown by. Of the
    rest one kind of change is begun at a time, so that GPUs that it frees are not promised twice.
    Actions that are no trials come first. An action that would have no effect is not proposed, as
    it would keep the others from being tried.

    Args:
        view: The VC.
        units: Its packs and jobs; updated.
        react: Plans turns.
    """
    units.follow(view)
    known, rules = units.known, units.rules
    hidden = grow.asked(known)
    less, smaller = grow.shrink(view, known) if not hidden else ([], hidden)
    were, seen = {name: known.jobs[name] for name in hidden}, view
    if smaller:
        seen = grow.freed(view, known, smaller)
        units.lessen(smaller)
    plan = react(seen, [*units.changes.values()])
    if hidden:
        units.restore(were)
        less = grow.give(view, known, plan, hidden)
    else:
        view = seen
    plan = replace(plan, actions=(*less, *plan.actions))
    idle, look_at = health.idle(known, plan, rules)
    more: list[Action] = [*idle]
    rests = [view.trial_after, view.move_after, *units.rests()]
    rests += [each.until for each in view.cooling]
    looks = [plan.look_at, look_at, min((at for at in rests if view.now < at), default=None)]
    more = more or [*pack.part(units, plan, view.now)] or [*pack.pack(view, known, plan, rules)]
    if not (more or less):
        apart, look_at = pack.spread(view, units, plan)
        looks.append(look_at)
        more = [*apart] or [*migrate.gather(view, known, plan)]
        more = more or [*migrate.defrag(view, known, plan, rules)]
    if not (more or less):
        grown, look_at = grow.grow(view, known, plan, rules)
        looks.append(look_at)
        more = [*grown]
    plan = units.unfold(plan)
    look_at = min((at for at in looks if at is not None), default=None)
    return replace(plan, actions=(*plan.actions, *more), look_at=look_at)
