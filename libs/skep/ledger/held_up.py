"""What ranks that hold their gangs up say against the nodes that they run on.

Each is a *sign* against its node, kept by node and job, with one *finding* for each attempt: all
ranks of an attempt on a node may be slow for one reason, and at one time. A job whose ranks were
slow on several nodes says nothing about any of them: it is the script.
`machines.allocator.slow_nodes` decides what is blamed; here it is only taken over.
"""

from __future__ import annotations

from collections.abc import Mapping

from skep.ledger.state import ClusterState
from skep.units import Instant
from skep.wire.facts import GpuQuarantined
from skep.wire.held_up import JOBS_MAX, PLACES_MAX, TIMES_MAX, GangHeldUp, PlaceBlamed, Sign


def apply(state: ClusterState, fact: GangHeldUp) -> None:
    """Take over that a rank holds its gang up, or no more."""
    known = state.held_up
    if fact.over:
        ranks = known.now.get(fact.job, {})
        ranks.pop(fact.rank, None)
        if not ranks:
            known.now.pop(fact.job, None)
        return
    known.now.setdefault(fact.job, {})[fact.rank] = fact
    jobs = known.signs[fact.node] = known.signs.pop(fact.node, {})
    jobs[fact.job] = _with(jobs.pop(fact.job, None), fact)
    while len(jobs) > JOBS_MAX:
        del jobs[next(iter(jobs))]
    while len(known.signs) > PLACES_MAX:
        del known.signs[next(iter(known.signs))]


def _with(sign: Sign | None, fact: GangHeldUp) -> Sign:
    """Return a sign with one finding more, or with a later one of the same attempt."""
    times, devices = list(sign.times) if sign is not None else [], list(fact.devices)
    if sign is not None and sign.attempt == fact.attempt:
        times.pop()
        devices = sorted({*sign.devices, *devices})
    times = [*times, fact.at][-TIMES_MAX:]
    return Sign(fact.tenant, times, devices, fact.attempt, fact.vc)


def apply_blame(state: ClusterState, fact: PlaceBlamed) -> None:
    """Take over that a node or a GPU is blamed, or no more: then nothing speaks against it."""
    known = state.held_up
    known.blamed.pop(fact.place, None)
    if not fact.blamed:
        known.signs.pop(fact.node, None)
        return
    known.blamed = {place: each for place, each in known.blamed.items() if each.until > fact.at}
    known.blamed[fact.place] = fact
    while len(known.blamed) > PLACES_MAX:
        del known.blamed[next(iter(known.blamed))]


def over(state: ClusterState, job: str) -> None:
    """Take it that an attempt is over: it holds nothing up."""
    state.held_up.now.pop(job, None)


def taken_back(state: ClusterState, fact: GpuQuarantined) -> None:
    """Take in that a GPU counts as good again: what spoke against its node does so no more."""
    if not fact.quarantine:
        known = state.held_up
        known.signs.pop(fact.node, None)
        for place in (fact.node, f"{fact.node}/{fact.device}"):
            known.blamed.pop(place, None)


def holding(state: ClusterState, job: str) -> tuple[GangHeldUp, ...]:
    """Return the ranks that hold a job's gang up and are still where they were found."""
    ranks, known = state.held_up.now.get(job), state.jobs.get(job)
    if not ranks or known is None:
        return ()
    return tuple(
        each
        for rank, each in sorted(ranks.items())
        if each.attempt == known.attempt
        and each.node in known.members
        and rank in known.members[each.node].numbers
    )


def blamed(state: ClusterState, now: Instant) -> dict[str, PlaceBlamed]:
    """Return what is blamed now, by place."""
    return {place: each for place, each in state.held_up.blamed.items() if each.until > now}


def signs_of(state: ClusterState, node: str, since: Instant, until: Instant) -> Mapping[str, Sign]:
    """Return what speaks against a node, by job, without what scripts cause.

    Args:
        state: Read.
        node: The node.
        since: Earlier findings are left out.
        until: Later findings are left out. A job with a finding elsewhere, even a later one, says
            nothing.
    """
    signs = state.held_up.signs
    found = {}
    for job, sign in signs.get(node, {}).items():
        times = [at for at in sign.times if since <= at <= until]
        if times and not any(job in jobs for other, jobs in signs.items() if other != node):
            found[job] = Sign(sign.tenant, times, sign.devices, sign.attempt, sign.vc)
    return found


def found_last(state: ClusterState, node: str) -> Instant:
    """Return when something was found last that speaks against a node; 0: nothing does."""
    signs = state.held_up.signs.get(node, {}).values()
    return max((sign.times[-1] for sign in signs), default=Instant(0))
