"""What holds of the state between two facts, for tests and the simulator: O(cluster)."""

from __future__ import annotations

from skep import ids
from skep.cells.check import check_cells
from skep.ledger import cell_facts, deferral_facts, people, trial_facts
from skep.ledger.job_state import Part, State
from skep.ledger.state import ClusterState


def check(state: ClusterState) -> None:
    """Assert that every GPU, queue and count is as the jobs say, and sharing safety.

    Raises:
        AssertionError: One of them is not.
    """
    people.check(state)
    deferral_facts.check(state)
    held = {name: dict(node.ghosts) for name, node in state.nodes.items()}
    waiting = 0
    for job in state.jobs.values():
        idle = job.state in (State.QUEUED, State.DEFERRED, State.RESERVED)
        assert idle == (not job.members), job
        assert idle == (job.job not in state.placed), job
        shares = bool(job.spec.resources.share)
        assert shares == (job.job in (state.unshared if idle else state.sharers)), job
        assert (job.state is State.RESERVED) == (job.job in state.reserved), job
        if job.state is State.QUEUED:
            assert state.queue(job).holds(job.entry) != (job.job in state.parked), job
            waiting += job.job not in state.parked
        assert job.change is None or job.state in (State.RUNNING, State.SUSPENDED), job
        assert job.away == (job.job in state.away), job
        assert job.away == (job.job in state.away_of.get(job.queue, ())), job
        assert not job.away or ids.attempt_id(job.job, job.attempt) not in state.cells.holds, job
        if idle:
            continue
        assert not job.over, f"{job.job}: an attempt that is over was not judged"
        if job.change is None and job.state in (State.RUNNING, State.SUSPENDED):
            # What a change of size claimed, or what is left behind, is not held any longer.
            assert sum(len(one.devices) for one in job.members.values()) == job.size, job
        for name, part in job.parts.items():
            if part is not Part.GONE:
                theirs = state.nodes[name].holdings[job.job, job.attempt].member
                assert theirs == job.members[name], (job, name)
                held[name][job.job, job.attempt] = 0
        for name in job.successor.members if job.successor is not None else ():
            assert job.change is not None, job
            held[name][job.job, job.following - 1] = 0
    assert waiting == sum(len(queue) for queue in state.queues.values())
    assert [*state.lent] == [name for name, job in state.borrowed.items() if job.lends]
    for name, node in state.nodes.items():
        node.check()
        assert sorted(node.holdings) == sorted(held[name]), name
        for attempt in node.open_orders:
            assert attempt in node.holdings, (name, attempt)
    held_by = {ids.attempt_id(*attempt) for each in held.values() for attempt in each}
    claims = {ids.attempt_id(job.job, job.following) for job in state.reserved.values()}
    assert set(state.cells.holds) | set(state.cells.off_chain) <= held_by | claims
    assert set(state.cells.sets) <= held_by
    assert not cell_facts.uncovered(state)
    check_cells(state.cells)
    trial_facts.check(state)
