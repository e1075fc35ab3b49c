"""How facts change what the people of VCs have and have used: for fair shares and limits.

It is followed only for VCs whose entry in the cluster file has `fair_share` or `limits`. A job uses
GPUs from the fact that binds it to the one by which it is over or waits again, but not while it is
suspended without GPUs. What it borrows counts as what is its VC's, and GPUs that jobs share count
for each of them.
"""

from __future__ import annotations

from typing import Any

from skep.access.person import person_of
from skep.ids import attempt_id
from skep.ledger.accounts import Account, Share, VcPeople
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.units import Instant
from skep.wire.changes import GpusRegained, JobChanged
from skep.wire.facts import CellsReserved, JobBound, JobEnded, JobRequeued, ReservationDropped
from skep.wire.moves import JobMoved
from skep.wire.resizes import GangNarrowed, GangWidened

CONCERNED = frozenset(
    {
        CellsReserved,
        GangNarrowed,
        GangWidened,
        GpusRegained,
        JobBound,
        JobChanged,
        JobEnded,
        JobMoved,
        JobRequeued,
        ReservationDropped,
    }
)
"""The facts that may change what a person has."""


def follow(state: ClusterState, fact: Any) -> None:
    """Take over what a fact changed for the people of a VC; it has been applied already.

    Args:
        state: Its `people` are changed.
        fact: Any fact.
    """
    people = state.people
    at: Instant = getattr(fact, "at", Instant(0))
    people.now = max(people.now, at)
    if type(fact) not in CONCERNED:
        return
    job = state.jobs.get(fact.job)
    if job is not None:
        of_vc = people.of_vc.get(job.spec.vc)
        if of_vc is not None:
            of_vc.take(job.job, share_of(state, job), people.now)
        return
    for of_vc in people.of_vc.values():
        of_vc.take(fact.job, None, people.now)


def share_of(state: ClusterState, job: JobState) -> Share | None:
    """Return what a job adds to its person's account; None: it has no GPUs and claims none."""
    if job.state in (State.QUEUED, State.DEFERRED):
        return None
    person = person_of(job.owner, job.spec.labels)
    if job.state is State.RESERVED:
        return Share(person, 0, state.cells.holds[attempt_id(job.job, job.following)].gpus)
    gpus = sum(len(device) for each in job.members.values() for device in each.devices)
    return Share(person, 0 if job.released else gpus, gpus)


def install(state: ClusterState) -> None:
    """Follow the cluster that is in force: which VCs share by person, and how.

    In a VC that does so from now on the jobs that run count since they were bound.
    """
    people, before = state.people, state.people.of_vc
    people.of_vc = {}
    for name, vc in state.cells.cluster.vcs.items():
        if vc.fair_share is None and vc.limits is None:
            continue
        known = before.get(name)
        people.of_vc[name] = known = VcPeople() if known is None else known
        known.set(vc)
    if not people.of_vc:
        people.now = Instant(0)
    for of_vc in people.of_vc.values():
        for job in [name for name in of_vc.shares if name in state.jobs]:
            of_vc.take(job, share_of(state, state.jobs[job]), people.now)  # Claims may be gone.
    fresh = [name for name in people.of_vc if name not in before]
    if fresh:
        _count(state, fresh)


def _count(state: ClusterState, vcs: list[str]) -> None:
    """Open the accounts of VCs with the jobs that have GPUs, or claim some."""
    having = [*state.placed.values(), *state.reserved.values()]
    for job in sorted(having, key=lambda each: (each.bound_at, each.sequence)):
        if job.spec.vc in vcs:
            people = state.people
            people.now = max(people.now, job.bound_at)
            people.of_vc[job.spec.vc].take(job.job, share_of(state, job), job.bound_at)


def kept(state: ClusterState, vc: str, now: Instant, accounts: dict[str, Account]) -> None:
    """Take over accounts of one VC from a snapshot."""
    state.people.now = now
    of_vc = state.people.of_vc.get(vc)
    if of_vc is not None:
        of_vc.accounts.update(accounts)


def restored(state: ClusterState) -> None:
    """Work out again what each job adds to an account that was kept (the end of a snapshot)."""
    for job in (*state.placed.values(), *state.reserved.values()):
        of_vc = state.people.of_vc.get(job.spec.vc)
        share = share_of(state, job) if of_vc is not None else None
        if of_vc is not None and share is not None:
            of_vc.shares[job.job] = share


def check(state: ClusterState) -> None:
    """Assert that accounts have what their jobs have.

    Raises:
        AssertionError: One has not.
    """
    for vc, of_vc in state.people.of_vc.items():
        sums: dict[str, list[int]] = {}
        for job in (*state.placed.values(), *state.reserved.values()):
            share = share_of(state, job) if job.spec.vc == vc else None
            if share is not None:
                assert of_vc.shares.get(job.job) == share, (vc, job.job, share)
                had = sums.setdefault(share.person, [0, 0, 0])
                had[0] += share.gpus
                had[1] += 1
                had[2] += share.held
        for person, each in of_vc.accounts.items():
            found = [each.gpus, each.jobs, each.held]
            assert found == sums.pop(person, [0, 0, 0]), (vc, person, found)
            assert each.used >= 0, (vc, person, each)
        assert not sums, (vc, sums)
