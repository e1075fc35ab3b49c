"""What a policy may learn from the past of its VC: what moving cost, and when a job last came.

Durable, as it follows from facts alone. How long a job makes nothing while it is moved is taken
from when its ranks are told to stop until its successor goes on, by the allocator's clock: so it
holds the rest of a mini-batch, the state's way to the other hosts, and every round of a gang.
"""

from __future__ import annotations

from statistics import median

from skep.ledger.delta import MoveCost
from skep.ledger.job_state import JobState, OpenChange, State
from skep.ledger.state import ClusterState
from skep.units import Duration, Instant
from skep.wire.changes import Goal, JobChanged, Result

KEPT = 5
"""Pauses of which the middle one counts, the latest: one that was held up says little."""
KEYS_MAX = 10_000
"""Jobs, families and VCs of which pauses are kept, the latest moved."""


def came(state: ClusterState, job: JobState) -> None:
    """Take over that a job has come."""
    vc = job.spec.vc
    if not job.spec.opportunistic:
        known = state.move_costs.came
        known[vc] = max(known.get(vc, Instant(0)), job.submitted_at)


def changed(state: ClusterState, job: JobState, change: OpenChange, fact: JobChanged) -> None:
    """Take over how long a move took, if that is what has ended."""
    moved = fact.goal is Goal.MIGRATE and fact.result is Result.DONE
    if not (moved and change.stops_at and job.state is State.RUNNING):
        return
    pause, pauses = max(0, fact.at - change.stops_at), state.move_costs.pauses
    for name in known_under(job):
        kept = pauses.pop(name, [])
        pauses[name] = [*kept[1 - KEPT :], pause]
        if not kept or median(kept) != median(pauses[name]):
            state.delta.views += (MoveCost(name),)
    while len(pauses) > KEYS_MAX:
        name = next(iter(pauses))
        del pauses[name]
        state.delta.views += (MoveCost(name),)


def pause(state: ClusterState, job: JobState) -> Duration:
    """Return how long a job makes nothing when it is moved.

    Returns:
        Nanoseconds: the median of the latest moves of the job, else of its family in its VC, else
        of its VC; 0: none of them was moved.
    """
    pauses = state.move_costs.pauses
    if not pauses:
        return Duration(0)
    known = next((pauses[name] for name in known_under(job) if name in pauses), None)
    return Duration(int(median(known)) if known else 0)


def ended(state: ClusterState, name: str) -> None:
    """Forget a job that is over."""
    state.move_costs.pauses.pop(name, None)


def known_under(job: JobState) -> tuple[str, ...]:
    """Return under which names what a job takes to be moved is kept, the closest first."""
    family, vc = job.spec.size.family, job.spec.vc
    return job.job, *((f"{vc} {family}",) if family else ()), f"vc:{vc}"
