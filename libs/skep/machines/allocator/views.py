"""What the policy of a VC is shown of it, made of the machine's state and kept up to date.

Everything here is soft: after a restart it is made anew. A job's view is made again when a fact
about the job was applied or the advisor said something new of it, so a plan costs what changed and
the length of its queue. What never can run as things are, and what its owner keeps suspended, is no
policy's business and is not shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from skep.cells.chain import ChainState
from skep.cells.pools import Pool
from skep.ledger import attempt_names, move_costs, pairs, sharing, trial_facts
from skep.ledger.job_state import GIVES_WAY, JobState, State
from skep.machines.allocator import cellviews, cellwork, paces, tries
from skep.machines.allocator.demand import Demand
from skep.machines.allocator.nodeviews import Seats
from skep.policy.api import Policy
from skep.policy.registry import NoPolicy, make
from skep.policy.view import JobView, Phase, PinView, VcView
from skep.units import Duration, Instant, after, seconds
from skep.wire.advice import JobAdvice
from skep.wire.changes import AskResume, Goal
from skep.wire.cluster import FIFO
from skep.wire.commands import Resume, Suspend
from skep.wire.facts import GhostGone
from skep.wire.reasons import Reason
from skep.wire.trials import TrialBegun, TrialOver

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


ENDED_KEPT = 500
"""Ended jobs of a VC whose service is kept: a distribution of them, for 4 kB of a snapshot."""

FITS_MAX = 1000
"""Shapes of jobs of which it is kept whether a VC's cells would hold them: few to keep, more than a
queue has. To find out again costs one attempt."""

TRY_AGAIN, TRY_AGAIN_MAX, TRIES_DOUBLED = seconds(30), seconds(600), 5
"""How long a move that came to nothing is not tried again: twice as long each time, up to the most.
A successor that cannot start costs GPUs and facts every time."""

RUNS_LEAST, TAKES_WITHIN = seconds(1), seconds(60)
"""What a job whose GPUs its policy took runs for before they are taken again; and how long it may
take to run at all, once it has others. Plans that contradict each other cost no more than that."""


class Planned:
    """What is kept of a VC that has a policy, from one plan to the next."""

    def __init__(self, vc: str, policy: Policy) -> None:
        """Start with everything to be looked at."""
        self.vc = vc
        self.policy = policy
        self.plan = policy.planner()
        self.views: dict[str, JobView | None] = {}
        """Its guaranteed jobs in the order of arrival; None: not for the policy."""
        self.due = True
        """Whether something happened since the last plan was made."""
        self.look_at: Instant | None = None
        """When to ask again if nothing happens before."""
        self.changes = -1
        """`Soft.changes` when the last plan was carried out."""
        self.open = False
        """Whether a job of the last plan's turns waits still."""
        self.outside = False
        """Whether what such a job waits for may be in others' hands."""
        self.fallen = False
        """Whether the last plan failed: its queue is served first come, first served."""
        self.misfits: dict[str, None] = {}
        """Its jobs that its cells would not hold if nothing else ran: they are no policy's
        business, and have what they may borrow."""
        self.held: dict[str, tuple[int, int]] = {}
        """By job: how often a plan held it, and `freed` when it last did."""
        self.line: tuple[str, ...] = ()
        """The jobs that had a turn in the last plan."""
        self.lent_at = -1
        """`Soft.changes` when nothing idle was left for its waiting jobs."""
        self.returning: dict[str, None] = {}
        """Suspended jobs for which others leave the GPUs that they had."""
        self.awaited: dict[str, None] = {}
        """Nodes that jobs of the VC leave for others of it, to whom the last plan gave a turn."""
        self.leaving: dict[str, str] = {}
        """Attempts that leave the VC's cells to a suspended job that moves there, and which."""
        self.going: dict[str, None] = {}
        """Those that go on where they were, and have yet to have the VC's cells there."""
        self.tried: dict[str, tuple[int, Instant]] = {}
        """Suspended jobs that were to go on elsewhere: how often, and when that may be tried again
        if it comes to nothing."""
        self.taken: dict[str, Instant] = {}
        """Jobs from which the policy has taken GPUs, and when it last did."""
        self.fits: dict[Any, bool] = {}
        """By what was asked for: whether its cells would hold it."""
        self.demand = Demand()
        self.whole = False
        """Whether the last plan's turns were all taken, as far as there was room for anybody."""
        self.unsaid: dict[str, None] = {}
        """Jobs of which there may be something new to be said, if they have no turn."""
        self.borrowers: dict[str, None] = {}
        """Its jobs that would have idle GPUs while they wait."""
        self.seats = Seats()

    def show(self, machine: AllocatorMachine, job: JobState) -> None:
        """Take over how a job is to be seen."""
        name, view = job.job, of_job(machine, job)
        self.misfits.pop(name, None)
        if view is not None and view.phase in (Phase.WAITING, Phase.AWAY):
            shape = job.spec.resources, job.size
            if shape not in self.fits:
                if len(self.fits) >= FITS_MAX:
                    self.fits.clear()
                self.fits[shape] = cellwork.fits_own(machine, job)
            if not self.fits[shape]:
                self.misfits[name], view = None, None
        if view is not None and name in self.held:
            view = replace(view, held=self.held[name][0])
        if view is None or view.phase is Phase.RUNNING:
            self.tried.pop(name, None)
        self.unsaid[name] = None
        if cellwork.borrows(job):
            self.borrowers[name] = None
        if view is not None and (view.phase is Phase.AWAY or borrowing(machine, job)):
            self.demand.come(name, None)  # Where it is or was matters: no shape tells.
        elif view is not None and view.phase is Phase.WAITING:
            # What is idle is lent in the order of a plan: that is to be of now.
            lends = cellwork.borrows(job)
            asks = job.spec.resources, job.spec.over_quota, ()
            self.demand.come(name, None if lends else asks)
        else:
            self.demand.leave(name)
        self.seats.move(name, self.views.get(name), view)
        self.views[name] = view

    def try_elsewhere(self, name: str, now: Instant) -> bool:
        """Return whether a job may be moved now; says when to ask again if it may not."""
        count, soonest = self.tried.get(name, (0, now))
        if soonest > now:
            self.look_at = min(self.look_at or soonest, soonest)
            return False
        delay = min(TRY_AGAIN << min(count, TRIES_DOUBLED), TRY_AGAIN_MAX)
        self.tried[name] = count + 1, after(now, Duration(delay))
        return True

    def rests(self, job: JobState, now: Instant) -> bool:
        """Return whether a job from which GPUs were taken is to be let be, as it has others now.

        It is until it has run for RUNS_LEAST, or TAKES_WITHIN has passed: so each job is taken
        from a bounded number of times within any time, whatever is planned, and at an instant once.
        """
        taken = self.taken.get(job.job)
        if taken is None or now < taken:
            return False  # A clock that was set back lets nobody be for longer.
        runs = job.state is State.RUNNING and job.since >= taken
        until = after(taken, TAKES_WITHIN)
        if runs:
            until = min(until, after(job.since, RUNS_LEAST))
        if until <= now:
            return False
        self.look_at = min(self.look_at or until, until)
        return True

    def hold(self, name: str, freed: int) -> None:
        """Count that a job is held, once for each time that something of the VC had come free."""
        count, last = self.held.get(name, (0, -1))
        view = self.views[name]
        if view is not None and last != freed:
            self.held[name] = count + 1, freed
            self.views[name] = replace(view, held=count + 1)

    def forget(self, name: str) -> None:
        """Take over that a job is over."""
        self.misfits.pop(name, None)
        self.held.pop(name, None)
        self.tried.pop(name, None)
        self.taken.pop(name, None)
        self.unsaid.pop(name, None)
        self.borrowers.pop(name, None)
        self.demand.leave(name)
        self.seats.move(name, self.views.pop(name), None)


def rules(machine: AllocatorMachine, vc: str) -> bool:
    """Return whether a VC's guaranteed jobs are placed by its policy alone."""
    planned = machine.soft.planned.get(vc)
    return planned is not None and not planned.fallen


def borrowing(machine: AllocatorMachine, job: JobState) -> bool:
    """Return whether a guaranteed job has GPUs for now, and yet waits for its VC's cells.

    Its policy decides about it as about any that waits, so borrowing changes nobody's order. What
    its tenant has suspended, or is sharing or moving, is left as it is.
    """
    if job.state is State.RESERVED:
        hold = machine.state.cells.holds[attempt_names.holder(job.job, job.following)]
        return not hold.guaranteed and not job.spec.opportunistic
    runs = job.state in (State.BOUND, State.RUNNING, State.STOPPING)
    shares = job.mixed and sharing.shares(machine.state, job)
    return runs and job.job in machine.state.borrowed and job.successor is None and not shares


def comes_anew(machine: AllocatorMachine, job: JobState) -> bool:
    """Return whether a job that makes room had better store its state, and be placed anywhere.

    One that has only ever borrowed would go back, suspended, to nodes that are none of its VC's.
    """
    only = rules(machine, job.spec.vc) and borrowing(machine, job) and not job.began_at
    return (only or lent(machine, job)) and job.state is State.RUNNING and "checkpoint" in job.can


def lent(machine: AllocatorMachine, job: JobState) -> bool:
    """Return whether a job of a VC without a policy has idle GPUs until its turn, by default.

    So it is too while it stands without GPUs, or is stopped, as others needed them. What its
    tenant has suspended, or is changing, is left as it is.
    """
    if not job.lent or job.spec.over_quota != "auto":
        return False
    if job.cancelled or rules(machine, job.spec.vc):
        return False
    change = job.change
    if job.state is State.STOPPING:
        return job.stopped_why in GIVES_WAY
    if job.state is State.SUSPENDED:
        returns = change is not None and change.goal is Goal.RESUME
        return goes_on(job) and (job.away if change is None else returns)
    return (change is None or change.why in GIVES_WAY) and borrowing(machine, job)


def lines(machine: AllocatorMachine) -> dict[str, list[JobState]]:
    """Return the jobs that were lent GPUs by VC, the one whose turn is next at the end."""
    found: dict[str, list[JobState]] = {}
    anew = machine.soft.anew
    for name in list(anew):
        if name not in machine.state.jobs or machine.state.jobs[name].state is not State.STOPPING:
            del anew[name]
    begins_anew = [machine.state.jobs[name] for name in anew if name not in machine.state.borrowed]
    for job in (*machine.state.borrowed.values(), *machine.state.away.values(), *begins_anew):
        if job.lent and lent(machine, job):
            found.setdefault(job.spec.vc, []).append(job)
    for line in found.values():
        line.sort(key=lambda job: job.entry, reverse=True)
    return found


def waits(machine: AllocatorMachine, vc: str) -> bool:
    """Return whether a job waits that the VC's policy would have placed."""
    return machine.soft.planned[vc].open


def behind(machine: AllocatorMachine, job: JobState, lent_jobs: dict[str, list[JobState]]) -> bool:
    """Return whether another job of its VC waits for the VC's cells, and comes before this one.

    `lent_jobs` are those of `lines`: they wait for these cells too, and are in no queue.
    """
    if rules(machine, job.spec.vc):
        return waits(machine, job.spec.vc)
    line = lent_jobs.get(job.spec.vc)
    if line and line[-1].entry < job.entry:
        return True
    queue = machine.state.queues.get((job.spec.vc, False))
    head = queue.head() if queue is not None else None
    return head is not None and head.claim < job.entry


# --- what happened -------------------------------------------------------------------------------


def touch(machine: AllocatorMachine, fact: Any) -> None:
    """Note whom a fact is about. Called only where some VC has a policy."""
    soft, job = machine.soft, getattr(fact, "job", None)
    if isinstance(fact, TrialBegun):
        soft.touched.update((each.job, None) for each in fact.jobs)
        return
    if isinstance(fact, TrialOver):
        soft.touched.update(dict.fromkeys(fact.jobs))
        return
    if job is not None:
        soft.touched[job] = None
    if job is None or isinstance(fact, GhostGone):
        # Nodes, cells and what is left on nodes: what comes free by them may be anybody's.
        for planned in soft.planned.values():
            planned.due = True


def predicted(machine: AllocatorMachine, job: JobState, advice: JobAdvice) -> None:
    """Take over how long a job still has to run, as the advisor sees it."""
    soft = machine.soft
    if advice.remaining is None or job.spec.vc not in soft.planned:
        return
    told = advice.remaining, job.served
    if soft.left.get(job.job) != told:
        soft.left[job.job] = told
        soft.touched[job.job] = None


def bring_up(machine: AllocatorMachine, *, due: bool) -> None:
    """Make the views again of jobs about which something is new; `due`: that asks for a plan."""
    soft = machine.soft
    if soft.planned_for is not machine.state.cells.cluster:
        _take_up(machine)
    if not soft.planned or not soft.touched:
        return
    touched, soft.touched = soft.touched, {}
    for name in touched:
        job = machine.state.jobs.get(name)
        if job is None:
            soft.left.pop(name, None)
            paces.forget(machine, name)
            for planned in soft.planned.values():
                if name in planned.views:
                    planned.forget(name)
                    planned.due = planned.due or due
        elif job.spec.vc in soft.planned and not job.spec.opportunistic:
            planned = soft.planned[job.spec.vc]
            if job.state is State.QUEUED:
                paces.forget(machine, name)
            planned.show(machine, job)
            planned.due = planned.due or due


def _take_up(machine: AllocatorMachine) -> None:
    """Follow the cluster: a VC whose policy is another than before begins anew."""
    soft, cluster = machine.soft, machine.state.cells.cluster
    soft.planned_for = cluster
    before, soft.planned, soft.unmade = soft.planned, {}, {}
    for name, vc in cluster.vcs.items():
        if vc.policy == FIFO:
            continue
        try:
            policy = make(vc.policy, vc.options)
        except NoPolicy as error:
            # What another version took: its queue is served, and everybody is told.
            soft.unmade[name] = str(error)
            continue
        known = before.get(name)
        if known is None or known.policy != policy:
            soft.planned[name] = Planned(name, policy)
        else:
            soft.planned[name] = known
            known.due = True
            known.fits.clear()
    for job in machine.state.jobs.values() if soft.planned else ():
        planned = soft.planned.get(job.spec.vc)
        if planned is not None and not job.spec.opportunistic:
            planned.show(machine, job)


# --- a job ---------------------------------------------------------------------------------------


def of_job(machine: AllocatorMachine, job: JobState) -> JobView | None:
    """Return what a policy sees of a job; None if there is nothing to be decided about it."""
    waits = borrowing(machine, job)
    phase = Phase.WAITING if waits else _phase(job)
    if phase is None or job.job in machine.state.parked:
        return None
    spec, gpus = job.spec, job.spec.resources.gpus
    expected = spec.size.run_time
    attempt = job.job, job.attempt
    partners = sharing.partners(machine.state, job.live, attempt) if job.mixed else ()
    since, served, pace = job.since, job.served, paces.shown(machine, job)
    if job.state is State.RUNNING and phase is not Phase.RUNNING and not waits:
        # It runs until its change is done; what it had when that began counts.
        assert job.change is not None, job.job
        since = max(since, job.change.begun_at)
        served += since - job.since
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
        left=_left(machine, job, served),
        nodes=() if phase is Phase.WAITING else _nodes(machine, job),
        devices=() if phase in (Phase.WAITING, Phase.RESERVED) else _devices(job),
        chain=job.chain,
        borrows=job.job in machine.state.borrowed and not waits,
        partners=tuple(dict.fromkeys(name for name, _ in partners)),
        can=tuple(each for each in job.can if each != "rebind" or not job.tied),
        pause=move_costs.pause(machine.state, job),
        trial=trial_facts.number(machine.state, job),
        measured=paces.solo(machine, job, pace) > 0,
        **tries.limits(machine, job.job),
        **pairs.shown(machine.state, job),
        **pace,
    )


def _phase(job: JobState) -> Phase | None:
    change = job.change
    match job.state:
        case State.QUEUED:
            return Phase.WAITING
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
    return resumes or job.held is not Reason.REQUESTED


def _leaves(job: JobState) -> bool:
    """Return whether an attempt is about to be without its GPUs."""
    change = job.change
    if change is None or change.goal not in (Goal.SUSPEND, Goal.CHECKPOINT):
        return False
    return change.why in GIVES_WAY or (isinstance(change.change, Suspend) and change.change.release)


def _left(machine: AllocatorMachine, job: JobState, served: int) -> Duration | None:
    told = machine.soft.left.get(job.job)
    return None if told is None else Duration(max(0, told[0] - (served - told[1])))


def _nodes(machine: AllocatorMachine, job: JobState) -> tuple[tuple[str, int], ...]:
    if job.state is not State.RESERVED:
        return tuple((name, sum(map(len, member.devices))) for name, member in job.members.items())
    hold = machine.state.cells.holds[attempt_names.holder(job.job, job.following)]
    shape, counts = machine.state.cells.chains[hold.chain].topology, dict[str, int]()
    for spot in hold.spots:
        node = shape.node(spot.leaves[0])
        counts[node] = counts.get(node, 0) + len(spot.leaves)
    return tuple(counts.items())


def _devices(job: JobState) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(
        (name, tuple(each for devices in member.devices for each in devices))
        for name, member in job.members.items()
    )


# --- a VC ----------------------------------------------------------------------------------------


def freed(machine: AllocatorMachine, vc: str) -> int:
    """Return how often something of a VC's cells came free, whatever others did."""
    return sum(
        pool.freed
        for chain in machine.state.cells.chains.values()
        for (owner, _), pool in chain.pools.items()
        if owner == vc
    )


def of_vc(machine: AllocatorMachine, planned: Planned, now: Instant) -> VcView:
    """Return a VC as its policy sees it."""
    whole = 0
    parts: dict[str, PinView] = {}
    for chain in machine.state.cells.chains.values():
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
        jobs=tuple(filter(None, planned.views.values())),
        gpus=sum(part.gpus for part in parts.values()),
        free=sum(part.free for part in parts.values()),
        pins=tuple(part for pin, part in parts.items() if pin),
        node_gpus=whole or 8,
        nodes=planned.seats.views(machine, planned.vc) if planned.policy.sees_nodes else (),
        free_cells=cellviews.free_cells(machine, planned.vc) if planned.policy.sees_cells else {},
        changed=freed(machine, planned.vc),
        ended=tuple(machine.state.served.get(planned.vc, ())),
        cooling=tries.cooling(machine, planned.vc, now) if planned.policy.sees_rates else (),
        **tries.limits(machine, f"vc:{planned.vc}"),
        quiet_since=machine.state.lately.came.get(planned.vc, Instant(0)),
    )


def _of_pool(chain: ChainState, pool: Pool) -> tuple[int, int]:
    """Return the GPUs of a VC's cells whose hardware works, and those that none of its jobs has."""
    shape, firm = chain.topology, chain.forest.firm
    gpus = sum(count * shape.size[level] for level, count in enumerate(pool.total))
    free = sum(count * shape.size[level] for level, count in enumerate(pool.left))
    for level, index in pool.bound:
        free += shape.size[level] - firm[level][index]
    for leaf in chain.bad:
        cell = chain.cell_of(leaf)
        gpus -= cell is not None and cell.pool is pool
    return gpus, free
