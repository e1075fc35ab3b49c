"""What holds of the allocator between two events, for tests and the simulator: O(cluster)."""

from __future__ import annotations

from msgspec.structs import replace

from skep.ledger import invariants
from skep.machines.allocator.policies import policy_views, trials
from skep.machines.allocator.policies.node_views import Seats
from skep.machines.allocator.transaction import Transaction


def check(tx: Transaction) -> None:
    """Assert what holds of the state, and that every view of a policy is as the jobs say.

    Raises:
        AssertionError: One of them does not hold.
    """
    invariants.check(tx.state)
    trials.check(tx.state)
    for planned in tx.soft.planned.values():
        if planned.sights is not None:
            planned.sights.check()
        shown = {
            name: policy_views.of_job(tx, job) if name not in planned.misfits else None
            for name, job in tx.state.jobs.items()
            if (job.spec.vc, job.spec.opportunistic) == (planned.vc, False)
        }
        stale = tx.soft.touched
        if tx.soft.planned_for is tx.state.cells.cluster and not stale:
            made = {name: view and replace(view, held=0) for name, view in planned.views.items()}
            assert list(made.items()) == list(shown.items()), planned.vc
            assert planned.jobs() == tuple(filter(None, planned.views.values())), planned.vc
            anew = Seats()
            for name, view in planned.views.items():
                anew.move(name, None, view)
            nodes = policy_views.nodes_of(tx, planned)
            assert nodes == anew.views(tx.state, planned.vc), planned.vc
