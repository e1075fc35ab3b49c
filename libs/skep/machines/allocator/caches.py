"""What the allocator keeps beside its state, and which changes of the state it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skep.ledger import move_costs
from skep.ledger.delta import Delta, MoveCost
from skep.machines.allocator import paces
from skep.units import Instant

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def follow(machine: AllocatorMachine, delta: Delta) -> None:
    """Take over what a fact changed.

    Args:
        machine: Its soft state is changed.
        delta: What the fold of the fact returned.
    """
    soft, telling = machine.soft, machine.soft.telling
    soft.changes += delta.freed
    if delta.claims:
        soft.ripe.update(dict.fromkeys(delta.claims))
    for name in delta.partners:
        soft.reshare[name] = None
        telling.unsure[name] = Instant(0)
    for name in delta.disturbed:
        paces.disturbed(machine, machine.state.jobs[name])
    for name in delta.remeasured:
        telling.unsure[name] = Instant(0)
        telling.alone.pop(name, None)
        telling.settled.pop(name, None)
        if machine.state.jobs[name].mixed:
            telling.unsettled[name] = Instant(0), Instant(0)
    if delta.trials:
        telling.touched = telling.stale = True
    if delta.ended:
        soft.uncovered.pop(delta.ended, None)
    if delta.views and soft.planned:
        _show(machine, delta.views)


def _show(machine: AllocatorMachine, changed: tuple[str | MoveCost, ...]) -> None:
    """Have policies see these jobs anew, and those for which a cost of moving is another."""
    soft, jobs = machine.soft, machine.state.jobs
    for each in changed:
        if not isinstance(each, MoveCost):
            soft.touched[each] = None
            continue
        name = each.name
        if name in jobs:
            soft.touched[name] = None
        for planned in soft.planned.values():
            seen = name.startswith((f"vc:{planned.vc}", planned.vc))
            for other in planned.views if seen else ():
                if other in jobs and name in move_costs.known_under(jobs[other]):
                    soft.touched[other] = None
