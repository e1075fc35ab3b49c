"""The reactive plan, and what is tried beside it (Gandiva, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from skep.policies.introspective import packing
from skep.policies.introspective.rules import Rules
from skep.policies.introspective.units import Units
from skep.view.plan import Action, Plan
from skep.view.view import VcView

React = Callable[[VcView], Plan]


def improve(view: VcView, rules: Rules, react: React) -> Plan:
    """Return a plan of turns with what is to be tried beyond it.

    Turns come first: nothing is tried with a job that they place, or take GPUs from.
    """
    units = Units(view)
    plan = react(units.view)
    more: list[Action] = [*packing.pack(units, plan, rules)]
    apart, look_at = packing.part(units, plan, rules)
    more += apart
    plan = units.unfold(plan)
    looks = [at for at in (plan.look_at, look_at) if at is not None]
    return replace(plan, actions=(*plan.actions, *more), look_at=min(looks, default=None))
