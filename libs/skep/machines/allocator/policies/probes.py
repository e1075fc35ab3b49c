"""Probes: an elastic job is measured with another number of workers, and then has its own again.

    a place was not measured, GPUs are idle, no job could have them --> TrialBegun (probe), Resize
    Judged (measured), or a job could have the GPUs --> TrialOver --> put back

A probe is a trial (`trials`): the introspector measures it until its rule says that it was long
enough, one service records its one verdict, and the gang is put back whatever dies meanwhile. What
was measured reaches the advisor as it does of any job.

It takes nothing from other jobs. It has free GPUs of its own VC's cells only, while no job waits
that could have them, and is called off when one comes. All probes of a VC take a fiftieth of its
GPU time at most (`ledger.probes`), and there is one at a time. A job that was promised to be on
time is left alone: each probe stops it twice, for some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from skep.cells.levels import gpus_owned
from skep.ledger import probes, sharing
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator.changes import resizing
from skep.machines.allocator.placement import quota
from skep.machines.allocator.policies import policy_views, trials
from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.allocator.transaction import Transaction
from skep.policy import probing
from skep.policy.probing import Place
from skep.units import Instant, after
from skep.wire.reasons import Reason
from skep.wire.spec import suits
from skep.wire.trials import Kind

WAITING_MAX = 1000
"""Where more jobs wait than are worth looking through, some job is taken to want the GPUs."""
OTHERS = "others"
"""What a probe makes way for then: it is not known which job it is."""
LOOKED_MAX = 100
"""Jobs of a VC that are looked at in one look, at some 30 us each; the others come next."""
PLACES_MAX = 3
"""Sizes of one job that are tried to be had in one look: each costs a search of the cells."""


def is_due(tx: Transaction, now: Instant) -> bool:
    """Return whether `review` may have anything to do."""
    if tx.state.probes.open:
        return True
    at = tx.soft.probe_at
    return (at is None or at <= now) and any(each.probable for each in tx.soft.planned.values())


def review(tx: Transaction, now: Instant) -> None:
    """Call off probes whose GPUs a waiting job could have; begin others.

    Args:
        tx: Facts and commands are added.
        now: The time of the decision, in which whatever could be placed has been placed.
    """
    for trial in sorted(tx.state.probes.open):
        begun = tx.state.tries.open.get(trial)
        job = tx.state.jobs.get(begun.jobs[0].job) if begun is not None else None
        if begun is None or job is None:
            continue
        waiting = wanting(tx.state, begun.vc, _type(tx.state, job))
        if waiting:
            trials.call_off(tx, begun, waiting, now)
    if tx.soft.probe_at is not None and tx.soft.probe_at > now:
        return
    tx.soft.probe_at = None
    if tx.soft.check_at == now:
        return  # There is more to be placed first.
    for planned in tx.soft.planned.values():
        if planned.probable:
            tx.soft.probe_at = after(now, tx.settings.trial_rules.probe_every)
            known = tx.state.probes.of_vc.get(planned.vc, ())
            if not planned.fallen and all(each.ended for each in known):
                _look(tx, planned, now)


def wanting(state: ClusterState, vc: str, gpu_type: str) -> str:
    """Return a waiting job that could have free GPUs of a VC; empty: there is none.

    Any job of the VC could, whatever its size: it may wait for more to come free. So could jobs of
    others that use what is idle.

    Args:
        state: Its queues are read.
        vc: The VC.
        gpu_type: The type of the GPUs.
    """
    seen = 0
    for (owner, _), queue in state.queues.items():
        for entry in queue.entries:
            seen += 1
            if seen > WAITING_MAX:
                return OTHERS
            job = state.jobs[entry.job]
            borrows = job.spec.opportunistic or quota.borrows(job) or quota.lends(job)
            if (owner == vc or borrows) and suits(job.spec.resources.gpu_type, gpu_type):
                return entry.job
    for job in state.reserved.values():
        if job.spec.vc == vc:
            return job.job
    for job in state.away.values():
        if policy_views.goes_on(job):
            return job.job
    for job in state.borrowed.values():
        if job.spec.vc == vc and not job.spec.opportunistic:
            return job.job  # Its VC's cells are due to it.
    return ""


def _look(tx: Transaction, planned: Planned, now: Instant) -> None:
    """Begin a probe of a VC, if there is one to be made: of the job that came first."""
    wanted: dict[str, str] = {}
    turns = len(planned.probable) > LOOKED_MAX
    for name in list(islice(planned.probable, LOOKED_MAX)):
        if turns:
            planned.probable[name] = planned.probable.pop(name)
        job = tx.state.jobs.get(name)
        if job is None or not _able(tx, planned, job, now):
            continue
        kind = _type(tx.state, job)
        if kind not in wanted:
            wanted[kind] = wanting(tx.state, planned.vc, kind)
        if wanted[kind]:
            continue
        for place in places(tx, job, now)[:PLACES_MAX]:
            if _affordable(tx, planned, job, place, now) and _begin(tx, job, place, now):
                return


def _able(tx: Transaction, planned: Planned, job: JobState, now: Instant) -> bool:
    """Return whether a job can be probed now: it runs, as its VC's, and nothing is under way."""
    calm = job.change is None and job.asked is None and job.successor is None
    if not calm or job.state is not State.RUNNING or not job.known or "resize" not in job.can:
        return False
    if job.servers or job.job in tx.state.borrowed or sharing.shares(tx.state, job):
        return False
    view = planned.views.get(job.job)
    left = view.remaining(now) if view is not None else None
    lasts = tx.settings.trial_rules.lasts_probe
    if view is None or (left is not None and left < 2 * lasts):
        return False
    return trials.refusal(tx, Kind.PROBE, (job,), now) is None


def places(tx: Transaction, job: JobState, now: Instant) -> list[Place]:
    """Return what is worth measuring of a job, first what tells most.

    Args:
        tx: What was told of its family is read, and what was tried.
        job: It runs.
        now: The time of the decision.
    """
    kind, family = _type(tx.state, job), job.spec.size.family or ""
    points = tx.soft.scales.get((family, kind), ())
    measured = {(each.gpus, each.nodes) for each in points}
    here = job.size * job.spec.resources.gpus, len(job.live)
    if here not in measured and tx.settings.trial_rules.measured:
        return []  # That comes for nothing, and first.
    known = probes.tried(tx.state.probes.of_vc.get(job.spec.vc, ()), family, kind, now)
    return probing.order(list(_possible(tx.state, job)), measured, known)


def _possible(state: ClusterState, job: JobState) -> Iterator[Place]:
    """Yield the other sizes that a gang may have, and on how many nodes each would be."""
    elastic, resources, each = job.spec.elastic, job.spec.resources, job.spec.resources.gpus
    assert elastic is not None, job
    chain = state.cells.chains[job.chain]
    room = sum(state.nodes[name].workers(resources) for name in job.live)
    whole = max(chain.topology.node_size // each, 1)
    for workers in probing.sizes(elastic.min, elastic.max):
        if job.sizes and workers not in job.sizes:
            continue
        if workers < job.size and job.spec.willing.shrink:
            stay = sum(min(part.numbers) < workers for part in job.members.values())
            yield Place(workers, workers * each, stay)
        elif workers > job.size:
            beyond = max(workers - job.size - room, 0)
            yield Place(workers, workers * each, len(job.live) - (-beyond // whole))


def _affordable(
    tx: Transaction, planned: Planned, job: JobState, place: Place, now: Instant
) -> bool:
    """Return whether the budget of a VC covers the longest that a probe may take."""
    known = tx.state.probes.of_vc.get(planned.vc, ())
    takes = max(place.workers, job.size) * job.spec.resources.gpus
    owned = gpus_owned(tx.state.cells.cluster, planned.vc)
    lasts = tx.settings.trial_rules.lasts_probe
    if probes.recent(known, now) >= probes.PROBES_MAX:
        return False
    return probes.fits(known, owned, takes, lasts, now)


def _begin(tx: Transaction, job: JobState, place: Place, now: Instant) -> bool:
    """Begin a probe; return False if the GPUs cannot be had."""
    before = job.size
    if resizing.refusal(job, place.workers) is not None:
        return False
    if resizing.begin(tx, job, place.workers, now, why=Reason.PROBING) is not None:
        return False
    nodes = [name for name, part in job.members.items() if min(part.numbers) < place.workers]
    tx.record(trials.probe(tx, job, before, place.workers, nodes, now))
    return True


def _type(state: ClusterState, job: JobState) -> str:
    chain = state.cells.chains.get(job.chain)
    return "" if chain is None else chain.topology.gpu
