"""What holds of the allocator between two events, for tests and the simulator: O(cluster)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from skep.cells.check import check_cells
from skep.machines.allocator import cellwork, trials, views
from skep.machines.allocator.jobs import Part, State

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


def check(machine: AllocatorMachine) -> None:
    """Assert that every GPU, queue and count is as the jobs say, and sharing safety."""
    held = {name: dict(node.ghosts) for name, node in machine.nodes.items()}
    waiting = 0
    for job in machine.jobs.values():
        idle = job.state in (State.QUEUED, State.RESERVED)
        assert idle == (not job.members), job
        assert idle == (job.job not in machine.placed), job
        assert (job.state is State.RESERVED) == (job.job in machine.reserved), job
        if job.state is State.QUEUED:
            assert machine.queue(job).holds(job.entry) != (job.job in machine.parked), job
            waiting += job.job not in machine.parked
        assert job.change is None or job.state in (State.RUNNING, State.SUSPENDED), job
        assert job.away == (job.job in machine.away), job
        assert not job.away or cellwork.holder(job.job, job.attempt) not in machine.cells.holds, job
        if idle:
            continue
        assert not job.over, f"{job.job}: an attempt that is over was not judged"
        if job.change is None and job.state in (State.RUNNING, State.SUSPENDED):
            # What a change of size claimed, or what is left behind, is not held any longer.
            assert sum(len(one.devices) for one in job.members.values()) == job.size, job
        for name, part in job.parts.items():
            if part is not Part.GONE:
                theirs = machine.nodes[name].holdings[job.job, job.attempt].member
                assert theirs == job.members[name], (job, name)
                held[name][job.job, job.attempt] = 0
        for name in job.successor.members if job.successor is not None else ():
            assert job.change is not None, job
            held[name][job.job, job.following - 1] = 0
    assert waiting == sum(len(queue) for queue in machine.queues.values())
    for name, node in machine.nodes.items():
        node.check()
        assert sorted(node.holdings) == sorted(held[name]), name
        for attempt in node.open_orders:
            assert attempt in node.holdings, (name, attempt)
    held_by = {cellwork.holder(*attempt) for each in held.values() for attempt in each}
    claims = {cellwork.holder(job.job, job.following) for job in machine.reserved.values()}
    assert set(machine.cells.holds) | set(machine.cells.off_chain) <= held_by | claims
    assert set(machine.cells.sets) <= held_by
    assert not cellwork.uncovered(machine)
    check_cells(machine.cells)
    trials.check(machine)
    for planned in machine.soft.planned.values():
        shown = {
            name: views.of_job(machine, job) if name not in planned.misfits else None
            for name, job in machine.jobs.items()
            if (job.spec.vc, job.spec.opportunistic) == (planned.vc, False)
        }
        stale = machine.soft.touched
        if machine.soft.planned_for is machine.cells.cluster and not stale:
            made = {name: view and replace(view, held=0) for name, view in planned.views.items()}
            assert list(made.items()) == list(shown.items()), planned.vc
