"""What a policy does to the jobs of its VC: by the same machinery by which tenants ask for it.

Each returns what it took of a decision: 0 if nothing was begun, because it cannot be done now, or
is under way. A policy that wants it still says so again in its next plan.
"""

from __future__ import annotations

from skep.ledger import sharing
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator.changes import (
    making_room,
    migration,
    packing,
    requests,
    resizing,
    resume_places,
    resumption,
)
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.placement import job_cells, placing
from skep.machines.allocator.policies import policy_views, trials
from skep.machines.allocator.transaction import Transaction
from skep.policy.plan import Action, Migrate, Pack, Preempt, Resize, Suspend, Unpack
from skep.units import Instant
from skep.wire.changes import Ask, AskMigrate, AskPack, AskResize, AskSuspend, AskUnpack
from skep.wire.facts import ReservationDropped
from skep.wire.reasons import Reason

WHY = Reason.PREEMPTED_BY_POLICY
NO_MISTAKES = frozenset({Reason.NOT_RUNNING, Reason.SIZE_NOT_OFFERED})
"""Why an action that a policy may mean cannot be done."""


def act(tx: Transaction, job: JobState, action: Action, policy: str, now: Instant) -> int:
    """Take one action of a plan.

    What a job has borrowed is none of the policy's: for it the job waits.

    Args:
        tx: Facts and commands are added.
        job: A job that the policy may decide about.
        action: What the policy wants done.
        policy: The name of the policy, for the detail of the facts.
        now: The time of the decision.

    Returns:
        What it took of a decision; 0: nothing began.
    """
    if policy_views.borrowing(tx.state, job):
        return 0
    detail = f"{policy}, {action.why}"
    if isinstance(action, Preempt | Suspend):
        return _take(tx, job, action, detail, now)
    match action:
        case Pack():
            return _pack(tx, job, action, now)
        case Unpack():
            return _unpack(tx, job, detail, now)
        case Migrate():
            return _migrate(tx, job, action, now)
        case Resize():
            return _resize(tx, job, action, now)


def illegal(state: ClusterState, job: JobState, action: Action) -> Refused | None:
    """Return why an action can never be meant of a job as it is; None if it can.

    What only cannot be done now (no room, a change under way) is no mistake of the policy's. Nor is
    a size that the ranks of the job do not offer: they say so while it runs, and may say it anew.
    """
    wish: Ask
    match action:
        case Suspend(job=name):
            wish = AskSuspend(job=name, release=True)
        case Unpack(job=name):
            wish = AskUnpack(job=name)
        case Migrate(job=name):
            wish = AskMigrate(job=name)
        case Resize(job=name, workers=workers, servers=servers):
            wish = AskResize(job=name, workers=workers, servers=servers or None)
        case Pack(beside=beside):
            other = state.jobs.get(beside)
            if other is None or other.spec.vc != job.spec.vc or other is job:
                return Refused(Reason.NOT_ITS_JOB, f"beside {beside}")
            return None
        case Preempt():
            return None
    if not _calm(job) or job.state is not State.RUNNING or not job.known:
        return None
    refused = requests.refusal(state, job, wish)
    return None if refused is not None and refused.why in NO_MISTAKES else refused


def go_on(tx: Transaction, job: JobState, nodes: tuple[str, ...], now: Instant) -> int:
    """Have a suspended job without GPUs go on: where it was, else, if it can, on other nodes.

    Where it was, opportunistic jobs make room if those are GPUs that its VC's cells can cover.

    Args:
        tx: Facts and commands are added.
        job: It is suspended, without GPUs.
        nodes: Where the plan has it go on, if it can migrate; else it goes on at home. Empty:
            anywhere.
        now: The time of the decision.

    Returns:
        What it took of a decision; 0: nothing began.
    """
    if job.change is not None or job.successor is not None or _hopeless(tx, job):
        return 0
    if nodes and not all(name in nodes for name in job.live):
        awaited = tx.soft.planned[job.spec.vc].awaited
        home = awaited.keys().isdisjoint(job.live)  # Else it is being left for another.
        return _elsewhere(tx, job, nodes, now) or (_home(tx, job, now) if home else 0)
    return _home(tx, job, now) or _elsewhere(tx, job, nodes, now)


def borrow(tx: Transaction, job: JobState, now: Instant) -> int:
    """Have a suspended job go on with idle GPUs until it has its turn: where it was, or moving.

    Args:
        tx: Facts and commands are added.
        job: It is suspended, without GPUs.
        now: The time of the decision.

    Returns:
        What it took of a decision; 0: nothing began.
    """
    if job.change is not None or job.successor is not None or _hopeless(tx, job):
        return 0
    return resumption.returns_now(tx, job, now) or _elsewhere(tx, job, (), now, turn=False)


def _hopeless(tx: Transaction, job: JobState) -> bool:
    """Return whether too few GPUs for a suspended job are idle, and none are lent to any job.

    Then it can go on nowhere. One that may be moved again later is not told so: its policy is to
    be asked then.
    """
    if any(tx.state.cells.borrowed.values()) or job.job in tx.soft.planned[job.spec.vc].tried:
        return False
    live = (job.members[name] for name in job.live)
    there = sum(len(gpus) for each in live for gpus in each.devices)
    return job_cells.idle_gpus(tx.state) < min(there, job.size * job.spec.resources.gpus)


def _home(tx: Transaction, job: JobState, now: Instant) -> int:
    """Give a suspended job its GPUs again, or stop those that use them; return the cost."""
    cost = resumption.returns_now(tx, job, now)
    if cost:
        if not placing.promote(tx, job, now, home=True):
            tx.soft.planned[job.spec.vc].going[job.job] = None
        return cost
    users = resume_places.lent(tx.state, job)
    if users:
        tx.soft.planned[job.spec.vc].returning[job.job] = None
    return sum(placing.stop_victim(tx, name, job, now) for name in users)


def _elsewhere(
    tx: Transaction, job: JobState, nodes: tuple[str, ...], now: Instant, *, turn: bool = True
) -> int:
    """Have a suspended job move; at its `turn` opportunistic jobs leave its VC's cells for it."""
    to = ",".join(nodes)
    if job.change is not None or job.job in tx.soft.planned[job.spec.vc].returning:
        return 0
    if not job.known or requests.refusal(tx.state, job, AskMigrate(job=job.job, to=to)) is not None:
        return 0
    planned = tx.soft.planned[job.spec.vc]
    before = planned.tried.get(job.job)
    if not planned.try_elsewhere(job.job, now):
        return 0
    if migration.begin(tx, job, to, now, Reason.BY_POLICY) is None:
        return 2 * len(job.live)
    planned.tried.pop(job.job)  # There was no place: that costs nothing, and may be asked again.
    if before is not None:
        planned.tried[job.job] = before
    users = migration.lent(tx.state, job, to) if turn else []
    planned.leaving.update(dict.fromkeys(users, job.job))
    return sum(placing.stop_victim(tx, name, job, now) for name in users)


def _take(
    tx: Transaction, job: JobState, action: Preempt | Suspend, detail: str, now: Instant
) -> int:
    """Take a job's GPUs, unless they were taken before and it has hardly had others since."""
    planned = tx.soft.planned[job.spec.vc]
    if planned.rests(job, now, tx.settings.runs_least):
        return 0
    if isinstance(action, Suspend):
        cost = _suspend(tx, job, detail, now, action.owed)
    else:
        more = action.detail
        cost = _preempt(tx, job, f"{detail}: {more}" if more else detail, now)
    if cost:
        planned.taken[job.job] = now
    return cost


def _preempt(tx: Transaction, job: JobState, detail: str, now: Instant) -> int:
    """Have a job be without GPUs."""
    if job.state is State.RESERVED:
        tx.record(ReservationDropped(job=job.job, attempt=job.following, why=WHY))
        return 1
    resumes = job.state is State.SUSPENDED and job.change is not None
    if job.released or resumes or making_room.awaits_size(job):
        return 0  # It has none; or the plan after the change says it again.
    return len(job.live) * making_room.give_way(tx, job, now, detail, memory=False, why=WHY)


def _suspend(tx: Transaction, job: JobState, detail: str, now: Instant, owed: int) -> int:
    """Suspend a job with its state in the host's memory; a job that cannot goes on running."""
    if not _calm(job) or job.state is not State.RUNNING or "release" not in job.can:
        return 0
    making_room.suspend(tx, job, now, WHY, release=True, detail=detail, owed=owed)
    return len(job.live)


def _pack(tx: Transaction, job: JobState, action: Pack, now: Instant) -> int:
    """Put a job on the GPUs of another one; return the cost, 0 if it does not begin."""
    if job.released and (not _calm(job) or job.held is Reason.UNPACKED):
        return 0  # A job that was to leave others waits for GPUs of its own.
    host = tx.state.jobs[action.beside]
    tried = trials.pack(tx, job, host, action.needed_milli, now) if action.trial else None
    if action.trial and tried is None:
        return 0
    wish = AskPack(job=job.job, beside=action.beside)
    if packing.begin(tx, job, wish, now, Reason.BY_POLICY) is not None:
        return 0
    if tried is not None:
        tx.record(tried)
    return packing.JOBS_PER_GPU_MAX


def _unpack(tx: Transaction, job: JobState, detail: str, now: Instant) -> int:
    """Have a job leave the GPUs that it shares; return the cost, 0 if it does not begin."""
    if not _calm(job) or not _changes(job) or not sharing.shares(tx.state, job):
        return 0
    making_room.leave(tx, job, None, now, detail)
    return len(job.live)


def _migrate(tx: Transaction, job: JobState, action: Migrate, now: Instant) -> int:
    """Move a job to other nodes; return the cost, 0 if it does not begin."""
    to, tries = ",".join(action.nodes), action.trial or action.defrag
    if not _able(tx.state, job, AskMigrate(job=job.job, to=to)):
        return 0
    tried = trials.move(tx, job, action, now) if tries else None
    if tries and tried is None:
        return 0
    if migration.begin(tx, job, to, now, Reason.BY_POLICY) is not None:
        return 0
    if tried is not None:
        tx.record(tried)
    return 2 * len(job.live)


def _resize(tx: Transaction, job: JobState, action: Resize, now: Instant) -> int:
    """Change the size of a gang; return the cost, 0 if it does not begin."""
    workers, servers = action.workers, action.servers
    wish = AskResize(job=job.job, workers=workers, servers=servers or None)
    same = (workers, servers or job.servers) == (job.size, job.servers)
    if same or sharing.shares(tx.state, job) or not _able(tx.state, job, wish):
        return 0
    tries = action.trial and workers > job.size
    tried = trials.grow(tx, job, action, now) if tries else None
    if tries and tried is None:
        return 0
    refused = resizing.begin(tx, job, workers, now, servers=servers or None, why=Reason.BY_POLICY)
    if refused is not None:
        return 0
    if tried is not None:
        tx.record(tried)
    return 2 * len(job.live) + workers


def _calm(job: JobState) -> bool:
    """Return whether nothing is under way with a job, or asked for by its tenant."""
    return job.change is None and job.asked is None and job.successor is None


def _changes(job: JobState) -> bool:
    """Return whether a job is in a state in which it can be changed."""
    return job.state in (State.RUNNING, State.SUSPENDED)


def _able(state: ClusterState, job: JobState, wish: Ask) -> bool:
    """Return whether a change can begin now: no other is open, and nothing is against it."""
    ready = _calm(job) and _changes(job) and job.known
    return ready and requests.refusal(state, job, wish) is None
