"""What holds of the allocator between two events, for tests and the simulator: O(cluster)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from skep.ledger import invariants
from skep.machines.allocator import trials, views

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def check(machine: AllocatorMachine) -> None:
    """Assert what holds of the state, and that every view of a policy is as the jobs say."""
    invariants.check(machine.state)
    trials.check(machine)
    for planned in machine.soft.planned.values():
        shown = {
            name: views.of_job(machine, job) if name not in planned.misfits else None
            for name, job in machine.state.jobs.items()
            if (job.spec.vc, job.spec.opportunistic) == (planned.vc, False)
        }
        stale = machine.soft.touched
        if machine.soft.planned_for is machine.state.cells.cluster and not stale:
            made = {name: view and replace(view, held=0) for name, view in planned.views.items()}
            assert list(made.items()) == list(shown.items()), planned.vc
