"""What the policy of a VC is shown of it, made of the machine's state and kept up to date.

Everything here is soft: after a restart it is made anew. A job's view is made again when a fact
about the job was applied or the advisor said something new of it, so a plan costs what changed and
the length of its queue. What never can run as things are, and what its owner keeps suspended, is no
policy's business and is not shown.
"""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from skep import ids
from skep.access.person import person_of
from skep.cells.chain import ChainState
from skep.cells.pools import Pool
from skep.ledger import move_costs, pairs, sharing, trial_facts
from skep.ledger.accounts import Account, VcPeople
from skep.ledger.job_state import ASKS_BACK, GIVES_WAY, JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.policies import cell_views, job_rates, trial_limits
from skep.machines.allocator.policies.policy_memory import NO_SHARING, Planned, sharing_of
from skep.machines.allocator.transaction import Transaction
from skep.policy.registry import NoPolicy, make
from skep.policy.view import QUEUED, JobView, NodeView, PersonView, Phase, PinView, VcView
from skep.units import Duration, Instant, seconds
from skep.wire.advice import JobAdvice
from skep.wire.changes import AskResume, Goal
from skep.wire.cluster import FIFO
from skep.wire.commands import Resume, Suspend
from skep.wire.spec import JobSpec

FITS_MAX = 1000
"""Shapes of jobs of which it is kept whether a VC's cells would hold them: few to keep, more than a
queue has. To find out again costs one attempt."""


def rules(tx: Transaction, vc: str) -> bool:
    """Return whether a VC's guaranteed jobs are placed by its policy alone."""
    planned = tx.soft.planned.get(vc)
    return planned is not None and not planned.fallen


def borrowing(state: ClusterState, job: JobState) -> bool:
    """Return whether a guaranteed job has GPUs for now, and yet waits for its VC's cells.

    Its policy decides about it as about any that waits, so borrowing changes no order. What
    its tenant has suspended, or is sharing or moving, is left as it is.
    """
    if job.state is State.RESERVED:
        hold = state.cells.holds[ids.attempt_id(job.job, job.following)]
        return not hold.guaranteed and not job.spec.opportunistic
    runs = job.state in (State.BOUND, State.RUNNING, State.STOPPING)
    shares = job.mixed and sharing.shares(state, job)
    return runs and job.job in state.borrowed and job.successor is None and not shares


def comes_anew(tx: Transaction, job: JobState) -> bool:
    """Return whether a job that makes room had better store its state, and be placed anywhere.

    One that has only ever borrowed would go back, suspended, to nodes that are none of its VC's.
    """
    only = rules(tx, job.spec.vc) and borrowing(tx.state, job) and not job.began_at
    return (only or lent(tx, job)) and job.state is State.RUNNING and "checkpoint" in job.can


def lent(tx: Transaction, job: JobState) -> bool:
    """Return whether a job of a VC without a policy has idle GPUs until its turn, by default.

    So it is too while it stands without GPUs, or is stopped, as others needed them. What its
    tenant has suspended, or is changing, is left as it is.
    """
    if not job.lends:
        return False
    if job.cancelled or rules(tx, job.spec.vc):
        return False
    change = job.change
    if job.state is State.STOPPING:
        return job.stopped_why in GIVES_WAY
    if job.state is State.SUSPENDED:
        returns = change is not None and change.goal is Goal.RESUME
        return goes_on(job) and (job.away if change is None else returns)
    return (change is None or change.why in GIVES_WAY) and borrowing(tx.state, job)


def lines(tx: Transaction) -> dict[str, list[JobState]]:
    """Return the jobs that were lent GPUs by VC, the one whose turn is next at the end.

    Returns:
        By VC its jobs in the order of their turns, from the last to the next; VCs without any are
        not among them.
    """
    found: dict[str, list[JobState]] = {}
    anew = tx.soft.anew
    if not (anew or tx.state.lent or tx.state.away):
        return found
    for name in list(anew):
        if name not in tx.state.jobs or tx.state.jobs[name].state is not State.STOPPING:
            del anew[name]
    begins_anew = [tx.state.jobs[name] for name in anew if name not in tx.state.borrowed]
    stand = [
        tx.state.away_of[vc, opportunistic].values()
        for vc, opportunistic in sorted(tx.state.away_of)
        if not opportunistic and not rules(tx, vc)
    ]
    for job in itertools.chain(tx.state.lent.values(), *stand, begins_anew):
        if lent(tx, job):
            found.setdefault(job.spec.vc, []).append(job)
    for line in found.values():
        line.sort(key=lambda job: job.entry, reverse=True)
    return found


def waits(tx: Transaction, vc: str) -> bool:
    """Return whether a job waits that the VC's policy would have placed."""
    return tx.soft.planned[vc].open


def behind(tx: Transaction, job: JobState, lent_jobs: dict[str, list[JobState]]) -> bool:
    """Return whether another job of its VC waits for the VC's cells, and comes before this one.

    Args:
        tx: Its queues are read.
        job: It borrows, or is suspended.
        lent_jobs: Those of `lines`: they wait for these cells too, and are in no queue.
    """
    if rules(tx, job.spec.vc):
        return waits(tx, job.spec.vc)
    line = lent_jobs.get(job.spec.vc)
    if line and line[-1].entry < job.entry:
        return True
    queue = tx.state.queues.get((job.spec.vc, False))
    head = queue.head() if queue is not None else None
    return head is not None and head.claim < job.entry


# --- what happened -------------------------------------------------------------------------------


def predicted(tx: Transaction, job: JobState, advice: JobAdvice) -> None:
    """Take over how long a job still has to run, as the advisor sees it."""
    soft = tx.soft
    if advice.remaining is None or job.spec.vc not in soft.planned:
        return
    told = advice.remaining, job.served
    if soft.left.get(job.job) != told:
        soft.left[job.job] = told
        soft.touched[job.job] = None


def bring_up(tx: Transaction, now: Instant | None) -> None:
    """Make the views again of jobs about which something is new.

    Args:
        tx: The views in its soft state are changed.
        now: The time of the decision, if what is new asks for a plan; None: it does not.
    """
    soft = tx.soft
    if soft.planned_for is not tx.state.cells.cluster:
        _take_up(tx)
    if not soft.planned or not soft.touched:
        return
    touched, soft.touched = soft.touched, {}
    for name in touched:
        job = tx.state.jobs.get(name)
        if job is None:
            soft.left.pop(name, None)
            job_rates.forget(tx, name)
            for planned in soft.planned.values():
                if name in planned.views:
                    planned.forget(name)
                    planned.due = planned.due or now is not None
        elif job.spec.vc in soft.planned and not job.spec.opportunistic:
            planned = soft.planned[job.spec.vc]
            if job.state is State.QUEUED:
                job_rates.forget(tx, name)
            news = _show(tx, planned, job) or name in planned.named
            if now is not None and (news or planned.vain != (now, soft.changes, soft.stirred)):
                planned.due = True  # Else the same plan would come to nothing again.


def _take_up(tx: Transaction) -> None:
    """Follow the cluster: a VC whose policy is another than before begins anew."""
    soft, cluster, given = tx.soft, tx.state.cells.cluster, tx.settings.policies
    soft.planned_for = cluster
    before, soft.planned, soft.unmade = soft.planned, {}, {}
    for name, vc in cluster.vcs.items():
        plain = sharing_of(vc) == NO_SHARING
        if vc.policy == FIFO and plain and name not in given:
            continue
        try:
            policy = given[name] if name in given else make(vc.policy, vc.options)
        except NoPolicy as error:
            # What another version took: its queue is served, and everybody is told.
            soft.unmade[name] = str(error)
            continue
        known = before.get(name)
        if known is None or (known.policy, known.sharing) != (policy, sharing_of(vc)):
            soft.planned[name] = Planned(name, policy, vc)
        else:
            soft.planned[name] = known
            known.due = True
            known.fits.clear()
    for job in tx.state.jobs.values() if soft.planned else ():
        planned = soft.planned.get(job.spec.vc)
        if planned is not None and not job.spec.opportunistic:
            _show(tx, planned, job)


# --- a job ---------------------------------------------------------------------------------------


def _show(tx: Transaction, planned: Planned, job: JobState) -> bool:
    """Take over how a job is to be seen; return whether that is otherwise than before."""
    name, view = job.job, of_job(tx, job)
    planned.misfits.pop(name, None)
    planned.strays.pop(name, None)
    if view is not None and view.phase in (Phase.WAITING, Phase.AWAY):
        if not _fits(tx, planned, job, ()):
            planned.misfits[name], view = None, None
        elif view.at_home and not _fits(tx, planned, job, view.nodes):
            planned.strays[name] = None
    if view is not None and name in planned.held:
        view = replace(view, held=planned.held[name][0])
    if view is None or view.phase is Phase.RUNNING:
        planned.tried.pop(name, None)
    planned.unsaid[name] = None
    if view is not None and view.phase is Phase.RUNNING and _may_probe(planned, job.spec):
        planned.probable[name] = None
    else:
        planned.probable.pop(name, None)
    if planned.borrows(job):
        planned.borrowers[name] = None
    if view is not None and (view.phase is Phase.AWAY or borrowing(tx.state, job)):
        planned.demand.come(name, None)  # Where it is or was matters: no shape tells.
    elif view is not None and view.phase is Phase.WAITING:
        # What is idle is lent in the order of a plan: that is to be of now.
        lends = planned.borrows(job)
        asks = job.spec.resources, job.spec.over_quota, ()
        planned.demand.come(name, None if lends else asks)
    else:
        planned.demand.leave(name)
    planned.seats.move(name, planned.views.get(name), view)
    return planned.show(name, view)


def _fits(
    tx: Transaction, planned: Planned, job: JobState, home: tuple[tuple[str, int], ...]
) -> bool:
    """Return whether a VC's cells would hold a job if nothing else ran; with `home`, there."""
    shape = job.spec.resources, job.size, home
    if shape not in planned.fits:
        if len(planned.fits) >= FITS_MAX:
            planned.fits.clear()
        there = job_cells.fits_there if home else job_cells.fits_own
        planned.fits[shape] = there(tx, job)
    return planned.fits[shape]


def _may_probe(planned: Planned, spec: JobSpec) -> bool:
    """Return whether a job may be measured with other sizes, by its spec and its VC's policy.

    One that was promised to be on time is left alone, and what is learned needs a family.
    """
    if spec.elastic is None or not spec.size.family:
        return False
    promised = spec.promise is not None and spec.promise.answer == "accepted"
    return not promised and (planned.policy.probes or spec.willing.profile == "allowed")


def of_job(tx: Transaction, job: JobState) -> JobView | None:
    """Return what a policy sees of a job; None if there is nothing to be decided about it."""
    waits = borrowing(tx.state, job)
    phase = Phase.WAITING if waits else _phase(job)
    if phase is None or job.job in tx.state.parked:
        return None
    spec, gpus = job.spec, job.spec.resources.gpus
    expected = spec.size.run_time
    attempt = job.job, job.attempt
    partners = sharing.partners(tx.state, job.live, attempt) if job.mixed else ()
    since, served, pace = job.since, job.served, job_rates.shown(tx, job)
    if job.state is State.RUNNING and phase is not Phase.RUNNING and not waits:
        # It runs until its change is done; what it had when that began counts.
        assert job.change is not None, job.job
        since = max(since, job.change.begun_at)
        served += since - job.since
    of_vc = tx.state.people.of_vc.get(spec.vc)
    whose = _NOBODYS if of_vc is None else _person(of_vc, job)
    return JobView(
        job=job.job,
        sequence=job.sequence,
        spec=spec,
        submitted_at=job.submitted_at,
        phase=phase,
        gpus=job.size * gpus,
        workers=job.size,
        since=since,
        served=Duration(served),
        began_at=job.began_at,
        waiting_since=job.waiting_since,
        owed=job.owed,
        owed_at=job.owed_at,
        owed_ran=Duration(job.owed_ran),
        stood=job.stayed,
        starts=job.starts,
        expected=seconds(expected) if isinstance(expected, float | int) else None,
        left=_left(tx, job, served),
        nodes=() if phase is Phase.WAITING else _nodes(tx.state, job),
        devices=() if phase in (Phase.WAITING, Phase.RESERVED) else _devices(job),
        chain=job.chain,
        borrows=job.job in tx.state.borrowed and not waits,
        partners=tuple(dict.fromkeys(name for name, _ in partners)),
        can=tuple(each for each in job.can if each != "rebind" or not job.tied),
        sizes=job.sizes,
        pause=move_costs.pause(tx.state, job),
        trial=trial_facts.number(tx.state, job),
        measured=job_rates.solo(tx, job, pace) > 0,
        owner=job.owner,
        **trial_limits.limits(tx.state, job.job),
        **pairs.shown(tx.state, job),
        **pace,
        **whose,
    )


_NOBODYS: dict[str, Any] = {}


def _person(of_vc: VcPeople, job: JobState) -> dict[str, Any]:
    """Return what a policy sees of whose a job is."""
    person = person_of(job.owner, job.spec.labels)
    return {"person": person, "counted": job.job in of_vc.shares}


def _phase(job: JobState) -> Phase | None:
    """Return the phase of a job, as a policy sees it."""
    change = job.change
    match job.state:
        case State.QUEUED:
            return Phase.WAITING
        case State.DEFERRED:
            return None
        case State.RESERVED:
            return Phase.RESERVED
        case State.BOUND:
            return Phase.STARTING
        case State.STOPPING:
            return Phase.STOPPING
        case State.RUNNING:
            return Phase.STOPPING if _leaves(job) else Phase.RUNNING
        case State.SUSPENDED:
            pass
    if job.released and change is None:
        return Phase.AWAY if goes_on(job) else None
    if change is None:
        return Phase.SUSPENDED
    if _leaves(job):
        return Phase.STOPPING
    goes = isinstance(change.change, Resume) or change.goal is Goal.MIGRATE
    return Phase.STARTING if goes else Phase.SUSPENDED


def goes_on(job: JobState) -> bool:
    """Return whether a suspended attempt goes on once there are GPUs for it."""
    resumes = job.asked is not None and isinstance(job.asked.ask, AskResume)
    return resumes or job.held not in ASKS_BACK


def _leaves(job: JobState) -> bool:
    """Return whether an attempt is about to be without its GPUs."""
    change = job.change
    if change is None or change.goal not in (Goal.SUSPEND, Goal.CHECKPOINT):
        return False
    return change.why in GIVES_WAY or (isinstance(change.change, Suspend) and change.change.release)


def _left(tx: Transaction, job: JobState, served: int) -> Duration | None:
    """Return how long a job has still to run, if a prediction says it."""
    told = tx.soft.left.get(job.job)
    return None if told is None else Duration(max(0, told[0] - (served - told[1])))


def _nodes(state: ClusterState, job: JobState) -> tuple[tuple[str, int], ...]:
    """Return the nodes of a job, and how many of its GPUs are on each."""
    if job.state is not State.RESERVED:
        return tuple((name, sum(map(len, member.devices))) for name, member in job.members.items())
    hold = state.cells.holds[ids.attempt_id(job.job, job.following)]
    counts, each = dict[str, int](), job.spec.resources.gpus
    for node in state.cells.nodes_of(hold):
        counts[node] = counts.get(node, 0) + each
    return tuple(counts.items())


def _devices(job: JobState) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the GPUs of a job, by node."""
    return tuple(
        (name, tuple(each for devices in member.devices for each in devices))
        for name, member in job.members.items()
    )


# --- a VC ----------------------------------------------------------------------------------------


def freed(state: ClusterState, vc: str) -> int:
    """Return how often something of a VC's cells came free, whatever others did."""
    return sum(
        pool.freed
        for chain in state.cells.chains.values()
        for (owner, _), pool in chain.pools.items()
        if owner == vc
    )


def nodes_of(tx: Transaction, planned: Planned) -> tuple[NodeView, ...]:
    """Return the nodes of a VC as its policy sees them."""
    for name, node in tx.state.nodes.items():
        if node.changed:
            node.changed = False
            for each in tx.soft.planned.values():
                each.seats.node_changed(name)
    return planned.seats.views(tx.state, planned.vc)


def of_vc(tx: Transaction, planned: Planned, now: Instant) -> VcView:
    """Return a VC as its policy sees it."""
    whole = 0
    sees_nodes = planned.policy.sees_nodes or tx.settings.witness is not None
    parts: dict[str, PinView] = {}
    for chain in tx.state.cells.chains.values():
        for (vc, pin), pool in chain.pools.items():
            if vc != planned.vc:
                continue
            whole = max(whole, chain.topology.node_size)
            gpus, free = _of_pool(chain, pool)
            known = parts.get(pin)
            if known is not None:
                gpus, free = gpus + known.gpus, free + known.free
            parts[pin] = PinView(pin, gpus, free)
    return VcView(
        vc=planned.vc,
        now=now,
        jobs=planned.jobs(),
        gpus=sum(part.gpus for part in parts.values()),
        free=sum(part.free for part in parts.values()),
        pins=tuple(part for pin, part in parts.items() if pin),
        node_gpus=whole or 8,
        nodes=nodes_of(tx, planned) if sees_nodes else (),
        free_cells=cell_views.free_cells(tx.state, planned.vc) if planned.policy.sees_cells else {},
        changed=freed(tx.state, planned.vc),
        ended=tuple(tx.state.served.get(planned.vc, ())),
        cooling=trial_limits.cooling(tx.state, planned.vc, planned.pairs, now)
        if planned.policy.sees_rates
        else (),
        **trial_limits.limits(tx.state, f"vc:{planned.vc}"),
        quiet_since=tx.state.move_costs.came.get(planned.vc, Instant(0)),
        advised=planned.advised,
        unanswered=planned.sights.unanswered if planned.sights is not None else None,
        followed=tx.state.followed.get(planned.vc) if planned.sights is not None else None,
        **_people(tx, planned, now),
    )


def _people(tx: Transaction, planned: Planned, now: Instant) -> dict[str, Any]:
    """Return what a policy sees of the people whose jobs wait; nothing where they do not share."""
    of_vc = tx.state.people.of_vc.get(planned.vc)
    if of_vc is None:
        return {}
    names = dict.fromkeys(job.person for job in planned.jobs() if job.phase in QUEUED)
    nothing = Account()
    seen = []
    for name in names:
        account = of_vc.accounts.get(name, nothing)
        seen.append(
            PersonView(
                person=name,
                weight=of_vc.weight(name),
                used=account.used_by(now, of_vc.half_life),
                jobs=account.jobs,
                gpus=account.held,
            )
        )
    return {"people": tuple(seen), "fair": of_vc.half_life > 0, "limits": of_vc.limits}


def _of_pool(chain: ChainState, pool: Pool) -> tuple[int, int]:
    """Return the GPUs of a VC's cells whose hardware works, and those that none of its jobs has."""
    sizes = chain.topology.size
    gpus = sum(count * sizes[level] for level, count in enumerate(pool.total))
    for leaf in chain.bad:
        cell = chain.cell_of(leaf)
        gpus -= cell is not None and cell.pool is pool
    return gpus, pool.most_gpus(sizes)
