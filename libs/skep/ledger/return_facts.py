"""How a suspended attempt that gave its GPUs back gets GPUs again."""

from __future__ import annotations

import msgspec

from skep.cells.holds import OPPORTUNISTIC, CellHold
from skep.ledger import attempts, sharing
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.wire.changes import GpusRegained
from skep.wire.facts import Member

# --- facts ---------------------------------------------------------------------------------------


def apply_regained(state: ClusterState, job: JobState, fact: GpusRegained) -> None:
    """Take over that an attempt has GPUs again."""
    attempt = job.job, job.attempt
    if fact.members:
        job.stood_on = {member.node: job.members[member.node] for member in fact.members}
        job.rebound = True
        _have(state, job, fact.members)
    live = [job.members[name] for name in job.live]
    if sharing.decided(job, fact.attempt) is not None:
        sharing.enter(state, job, fact.attempt, fact.chain, live)
    else:
        asked = attempts.request(job, job.attempt, guaranteed=not job.spec.opportunistic)
        hold = CellHold(asked, attempts.placement(state, fact.chain, live))
        hold.have(hold.levelled(0 for _, spots in hold.portions for _ in spots))
        hold.priority = OPPORTUNISTIC
        state.cells.enter(hold)
    for name in job.live:
        state.nodes[name].suspend(attempt, suspended=False)
    job.released, job.chain = False, fact.chain
    state.note_away(job, away=False)
    state.note_borrowed(job)


def apply_refused(state: ClusterState, job: JobState) -> None:
    """Take over that an attempt stands as before, on none of the GPUs it was to go on with.

    Its processes know only those that they had: it returns to them, and to no others.
    """
    _have(state, job, tuple(job.stood_on[name] for name in job.live))
    job.tied, job.stood_on = True, {}


def _have(state: ClusterState, job: JobState, members: tuple[Member, ...]) -> None:
    attempt = job.job, job.attempt
    for member in members:
        node = state.nodes[member.node]
        node.alter(attempt, msgspec.structs.replace(node.holdings[attempt], member=member))
    job.members = {**job.members, **{member.node: member for member in members}}
