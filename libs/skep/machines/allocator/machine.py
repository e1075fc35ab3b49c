"""The allocator: the only writer of placement.

A job waits in its VC's queue until its gang fits (priority, then arrival; `policies.queue`), gets
GPUs in its VC's cells (`schedule`, `cells`), and keeps them until its nodes confirm that its
processes are gone. Every decision is a fact; commands to agents follow from facts and are repeated
until a node event answers. `jobs` holds the life of a job, `cells` who holds which GPU,
`cells.nodes` what else a node has. Heartbeats, timers and advice are soft: they are forgotten in a
crash and cost nothing but time.
"""

from __future__ import annotations

from itertools import islice

from skep.cells.decide import bad_cells
from skep.cells.decide.gpu_choice import Loss
from skep.cells.nodes import NodeState
from skep.cells.state import Cells
from skep.ids import job_sequence
from skep.machines.allocator import (
    cellwork,
    changes,
    changing,
    dispatch,
    invariants,
    lately,
    moves,
    moving,
    paces,
    packs,
    resizes,
    schedule,
    spanning,
    suspects,
    trials,
    tries,
    views,
    watch,
)
from skep.machines.allocator.jobs import GIVES_WAY, JobState, Part, State, ended, judge, part_gone
from skep.machines.allocator.keep import Kept, keep, restore
from skep.machines.base import Effect, Record, Restarted, Tick
from skep.policy.check import cluster_problems
from skep.policy.queue import JobQueue
from skep.units import Instant
from skep.wire.admin import Admin, DrainNode, QuarantineGpu, SetVcs
from skep.wire.advice import Advice, Outlook, QueueAdvice
from skep.wire.bearing import RULES, BadCellBound, BadCellReturned, RulesRaised, SetLed
from skep.wire.changes import ChangeAsked, ChangeMessage
from skep.wire.cluster import Cluster
from skep.wire.codec import Facts, ServiceFact, Unreadable
from skep.wire.facts import (
    Admitted,
    AllocatorFact,
    CancelAsked,
    CellsAlarm,
    CellsReserved,
    CellsSet,
    ClusterRefused,
    End,
    EpochBegan,
    GhostGone,
    GpuQuarantined,
    JobBound,
    JobDemoted,
    JobEnded,
    JobPromoted,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    JobWaits,
    MemberGone,
    MemberRan,
    NodeAdded,
    NodeBack,
    NodeClean,
    NodeDrained,
    NodeLost,
    ReservationDropped,
)
from skep.wire.moves import MoveMessage
from skep.wire.node import (
    MemberChanged,
    MemberExited,
    MemberKnown,
    MemberLoaded,
    MemberReady,
    MemberStarted,
    MemberStepped,
    NodeCleared,
    NodeEvent,
    NodeJoined,
    Outcome,
)
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from skep.wire.resizes import ResizeMessage
from skep.wire.trials import Judged, TrialMessage

AllocatorEvent = Admin | NodeEvent | Facts | Heartbeat | Advice | Judged | Unreadable
"""What the allocator takes from outside."""

PROBLEMS_MAX = 100
"""Problems of one cluster file that are recorded: more would be the same mistake again."""


class AllocatorMachine:
    """The behaviour of the allocator service."""

    def __init__(self) -> None:
        """Start with no nodes and no jobs."""
        self.epoch = 0
        self.rules = RULES
        """The version of the rules by which facts of this epoch are applied."""
        self.unstated = False
        """Whether VCs bear bad cells that no fact names: those that earlier rules chose."""
        self.order = 0
        self.last_queued = 0
        self.asked = Cluster()
        """The cluster as the operator wrote it; `cells.cluster` is what follows from it."""
        self.cells = Cells(self.asked)
        self.nodes: dict[str, NodeState] = {}
        """In the order in which they first joined."""
        self.jobs: dict[str, JobState] = {}
        self.placed: dict[str, JobState] = {}
        """The jobs that hold GPUs: every one that is neither queued nor has a reservation."""
        self.parked: dict[str, JobState] = {}
        """Queued jobs that no cell can hold as things are: they hold up nobody behind them."""
        self.reserved: dict[str, JobState] = {}
        """Jobs whose GPUs are claimed and still used by others."""
        self.borrowed: dict[str, JobState] = {}
        """Guaranteed jobs that run opportunistically for now."""
        self.away: dict[str, JobState] = {}
        """Suspended jobs that have given back their GPUs."""
        self.served: dict[str, list[int]] = {}
        """By VC with a policy: the service its latest jobs had had at their end, oldest first."""
        self.last_asked = 0
        """The latest request for a change that was taken, by its sequence in SUBMIT."""
        self.queues: dict[tuple[str, bool], JobQueue] = {}
        self.suspicion = suspects.Suspicion()
        self.tries = tries.Tries()
        self.lately = lately.Lately()
        self.alarms: dict[watch.Place, CellsAlarm] = {}
        """Invariants of the cells that were found broken and have not been found to hold since."""
        self.soft = dispatch.Soft()
        self.node_lost_after = dispatch.NODE_LOST_AFTER
        """Silence after which a node's jobs are given up; a simulation has less patience."""
        self.node_check_every = dispatch.NODE_CHECK_EVERY
        """In a simulation whose nodes never fall silent: as often as the watch is to go on."""
        self.trial_rules = trials.Rules()
        self.defers = False
        """While this holds nothing is placed: a simulation has more to say about this instant."""
        self.key = b""
        """What secrets of successors are derived from: a service's own, never recorded."""
        self.effects: list[Effect] = []

    def decide(self, event: AllocatorEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return the facts and commands that follow from `event`."""
        self.effects = []
        dispatch.awake(self, now)
        match event:
            case Facts():
                for fact in event.facts:
                    self._admission(fact, now)
            case MemberStarted():
                self._member_started(event, now)
            case MemberExited():
                self._member_exited(event, now)
            case Heartbeat():
                dispatch.heartbeat(self, event, now)
            case NodeJoined():
                dispatch.joined(self, event, now)
            case NodeCleared():
                self._node_cleared(event)
            case SetVcs():
                problems = tuple(islice(cluster_problems(event.cluster), PROBLEMS_MAX))
                if problems:
                    self.record(ClusterRefused(problems=problems))
                else:
                    cellwork.resolve(self, event.cluster, may_refuse=True)
            case DrainNode():
                if event.node in self.nodes and self.nodes[event.node].drained != event.drain:
                    self.record(NodeDrained(node=event.node, drain=event.drain))
            case QuarantineGpu():
                cellwork.quarantine(self, event)
            case QueueAdvice():
                schedule.advised(self, event, now)
            case Outlook():
                paces.heard(self, event, now)
            case Judged():
                trials.judged(self, event, now)
            case Tick():
                dispatch.tick(self, now)
            case Restarted():
                dispatch.restarted(self, now)
            case MemberKnown() | MemberReady() | MemberLoaded() | MemberChanged():
                changing.heard(self, event, now)
            case MemberStepped() | Unreadable():
                return []
        waits = self.defers or self.soft.losing
        if (not isinstance(event, Heartbeat) or self.effects) and not waits:
            trials.review(self, now)
            schedule.schedule(self, now)
            trials.review(self, now)  # What was taken, or joined others, may have been on trial.
            trials.tell(self, now)
        watch.look(self, now)
        return self.effects

    def wake_at(self) -> Instant | None:
        """Return when the earliest command must be repeated, limit enforced or node checked."""
        return self.soft.wake_at()

    def record(self, fact: AllocatorFact) -> None:
        """Apply a fact and ask for it to be made durable, with what has to follow for the cells.

        So who bears bad hardware and who leads a set is decided in the record that changed it.
        """
        self._record(fact)
        if self.cells.undecided:
            for step in bad_cells.next_steps(self.cells):
                self._record(cellwork.follows(step))

    def _record(self, fact: AllocatorFact) -> None:
        self.apply(fact)
        self.effects.append(Record(fact))
        self.soft.story.append(fact)

    # --- what others tell --------------------------------------------------------------------

    def _admission(self, fact: ServiceFact, now: Instant) -> None:
        match fact:
            case Admitted():
                if (job_sequence(fact.job) or 0) > self.last_queued:
                    self.record(
                        JobQueued(
                            job=fact.job,
                            spec=fact.spec,
                            trace=fact.trace,
                            submitted_at=fact.submitted_at,
                        )
                    )
            case CancelAsked():
                self._cancel(fact.job, now)
            case ChangeAsked():
                changing.ask(self, fact, now)
            case _:
                pass  # Refusals, keys and admission's own views are not placement.

    def _cancel(self, name: str, now: Instant) -> None:
        job = self.jobs.get(name)
        if job is None or job.cancelled:
            return
        self.record(CancelAsked(job=name))
        if job.state is State.RESERVED:
            self.record(ReservationDropped(job=name, attempt=job.following, why=Reason.CANCELLED))
        if job.state is State.QUEUED:
            self._end(job, End.CANCELLED, Reason.CANCELLED, now)
        elif job.state is not State.STOPPING:
            dispatch.stop(self, job, Reason.CANCELLED, now)

    def _member_started(self, event: MemberStarted, now: Instant) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.attempt != event.attempt:
            return
        if job.parts.get(event.node) is not Part.BOUND or not self._speaks(job, event):
            return
        # The node's clock may be wrong, and the time limit counts from here.
        at = min(max(event.at, job.bound_at), now)
        self.record(MemberRan(job=job.job, attempt=job.attempt, node=event.node, at=at))
        if (job.job, job.attempt) not in self.nodes[event.node].open_orders:
            self.soft.call_off((event.node, job.job, job.attempt))
        if job.state is State.BOUND and Part.BOUND not in job.parts.values():
            self.record(JobRan(job=job.job, attempt=job.attempt, at=at, trace=job.trace))
            dispatch.limit(self, job, now)
            changing.follow(self, job, now)
        elif job.state is State.RUNNING:
            dispatch.command(self, event.node, job.job, job.attempt, now)

    def _speaks(self, job: JobState, event: MemberStarted | MemberExited) -> bool:
        """Return whether the agent that speaks has the part, and means the one it has now."""
        mine = job.members[event.node].identity == event.identity
        return mine and self.nodes[event.node].means((event.job, event.attempt), event.order)

    def _member_exited(self, event: MemberExited, now: Instant) -> None:
        node, attempt = self.nodes.get(event.node), (event.job, event.attempt)
        if node is not None and node.haunted(attempt, event.identity, event.order):
            self.record(GhostGone(job=event.job, attempt=event.attempt, node=event.node))
            return
        job = self.jobs.get(event.job)
        if job is None or job.attempt != event.attempt:
            if job is not None:
                moving.exited(self, job, event, now)
                changing.follow(self, job, now)
        elif job.parts.get(event.node, Part.GONE) is Part.GONE or not self._speaks(job, event):
            pass  # Said again, or of an earlier part.
        elif spanning.exited(self, job, event, now):
            changing.after_change(self, job, now)
        else:
            self.record(part_gone(job, event))
            self.soft.call_off((event.node, job.job, job.attempt))
            self.settle(job, now)

    def _node_cleared(self, event: NodeCleared) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.identity != node.joined.identity:
            return
        if 0 < node.clearing <= event.order:
            self.record(NodeClean(node=event.node))

    # --- how attempts and jobs end -----------------------------------------------------------

    def settle(self, job: JobState, now: Instant) -> None:
        """Go on after a part of an attempt is gone: stop the others, or judge the whole."""
        if not job.over:
            failed = job.gone[-1].outcome is not Outcome.SUCCEEDED
            if (failed or job.deserted) and job.state is not State.STOPPING:
                dispatch.stop(self, job, Reason.PEER_FAILED, now, f"{job.gone[-1].node} ended")
            changing.conclude(self, job, now)
            return
        dispatch.abandon(self, job, now)
        self.soft.call_off(("", job.job, job.attempt))
        verdict = judge(job)
        if verdict.end is not None:
            self._end(job, verdict.end, verdict.why, now, verdict.detail)
            return
        self.record(
            JobRequeued(
                job=job.job,
                attempt=job.attempt,
                why=verdict.why,
                at=now,
                counted=verdict.counted,
                detail=verdict.detail,
                trace=job.trace,
            )
        )

    def give_up_move(self, job: JobState, now: Instant, detail: str) -> None:
        """Have a job go on where it is, instead of moving."""
        moving.undo(self, job, now, Reason.NOT_TAKEN, detail)

    def _end(self, job: JobState, end: End, why: Reason, now: Instant, detail: str = "") -> None:
        self.record(ended(job, end, why, now, detail))

    # --- facts -------------------------------------------------------------------------------

    def snapshot(self) -> list[Kept]:
        """Return what rebuilds this state without history; to be encoded before the next event."""
        return list(keep(self))

    def apply(self, fact: AllocatorFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot."""
        if self.soft.planned:
            views.touch(self, fact)
        self.cells.begin_change()
        match fact:
            case JobQueued():
                self._apply_queued(fact)
            case JobBound():
                self._apply_bound(fact)
            case MemberRan():
                job = self.jobs[fact.job]
                job.parts[fact.node] = Part.RAN
                changes.ran(self, job, fact.node)
            case JobRan():
                self.jobs[fact.job].ran(fact.at, borrows=fact.job in self.borrowed)
            case MemberGone():
                self._apply_gone(fact)
            case JobEnded():
                self._apply_ended(fact)
            case EpochBegan():
                if self.rules < fact.rules:
                    tries.raise_rules(self.tries)
                cellwork.began(self, fact)
            case BadCellBound() | BadCellReturned() | SetLed() | RulesRaised():
                cellwork.apply_bearing(self, fact)
            case CellsSet():
                self._apply_cells(fact)
            case CellsAlarm():
                watch.apply(self, fact)
            case ClusterRefused():
                pass  # Told to whoever reads the log; nothing changed.
            case NodeAdded():
                self._apply_added(fact)
            case NodeDrained() | NodeLost() | NodeBack() | NodeClean() | GpuQuarantined():
                self._apply_node(fact)
            case GhostGone():
                attempt, node = (fact.job, fact.attempt), self.nodes[fact.node]
                del node.ghosts[attempt]
                node.open_orders.pop(attempt, None)
                self._release(node, attempt)
            case CellsReserved() | ReservationDropped() | JobDemoted() | JobPromoted():
                cellwork.apply_hold(self, fact)
            case JobWaits():
                self._apply_waits(fact)
            case JobStopping():
                self._apply_stopping(fact)
            case JobRequeued():
                self._apply_requeued(fact)
            case CancelAsked():
                self.jobs[fact.job].cancelled = True
            case ChangeMessage():
                changes.apply(self, fact)
            case MoveMessage():
                moves.apply(self, fact)
            case ResizeMessage():
                resizes.apply(self, fact)
            case GpusShared():
                self.jobs[fact.job].packed = fact  # What follows in its record does it.
            case TrialMessage():
                tries.apply(self, fact)
            case _:
                restore(self, fact)
                return  # It is no fact, and nothing follows from it.
        tries.follow(self, fact)

    def _apply_added(self, fact: NodeAdded) -> None:
        name = fact.joined.node
        if name in self.nodes:
            self.nodes[name].refresh(fact.joined)
        else:
            self.nodes[name] = NodeState(fact.joined)
        if fact.clear:
            self.nodes[name].clearing = fact.clear
        self._changed(name)

    def _changed(self, *nodes: str) -> None:
        """Take over these nodes' health, and that something may have come free."""
        self.soft.changes += 1
        self.soft.ripe.update(dict.fromkeys(self.reserved))
        cellwork.health(self, nodes)

    def _apply_cells(self, fact: CellsSet) -> None:
        self.asked = fact.asked
        for parked in self.parked.values():
            parked.waits = None
            self.queue(parked).add(parked.entry)
        self.parked.clear()
        self.cells, changes = cellwork.install(self, fact)
        for name, node, device in cellwork.uncovered(self):
            self.cells.note_off_chain(name, node, device)
        for change in changes:
            job = self.jobs.get(cellwork.job_of(change.job))
            if job is not None and change.fate == "released":
                job.move("ReservationDropped")
                del self.reserved[job.job]
                self.queue(job).add(job.entry)
            elif job is not None:
                self.note_borrowed(job)
        self._changed(*cellwork.node_names(fact.cluster))

    def note_borrowed(self, job: JobState, at: Instant | None = None) -> None:
        """Keep apart whoever is guaranteed and holds GPUs opportunistically; `at`: from then on."""
        hold = self.cells.holds.get(cellwork.holder(job.job, job.attempt))
        borrows = hold is not None and not hold.guaranteed and not job.spec.opportunistic
        job.lent = job.lent and (borrows or hold is None)
        if at and borrows is not (job.job in self.borrowed):
            job.changes_hands(at, borrows=borrows)
        if borrows and job.job in self.placed:
            self.borrowed[job.job] = job
        else:
            self.borrowed.pop(job.job, None)

    def _apply_node(
        self, fact: NodeDrained | NodeLost | NodeBack | NodeClean | GpuQuarantined
    ) -> None:
        node = self.nodes[fact.node]
        match fact:
            case NodeDrained():
                node.drained = fact.drain
            case NodeLost():
                node.lost = True
            case NodeBack():
                node.lost = False
            case NodeClean():
                node.clearing = 0
            case GpuQuarantined(quarantine=True):
                node.quarantined[fact.device] = None
            case GpuQuarantined():
                node.quarantined.pop(fact.device, None)
        if isinstance(fact, GpuQuarantined):
            suspects.quarantined(self, fact)
        self._changed(fact.node)

    def _release(self, node: NodeState, attempt: tuple[str, int]) -> None:
        """Free what an attempt held on a node, or leave it to those that share it."""
        name = cellwork.holder(*attempt)
        for claimer in self.cells.claimers(name):
            self.soft.ripe[cellwork.job_of(claimer)] = None
        others = packs.partners(self, (node.joined.node,), attempt)
        node.release(attempt)
        self.cells.release(name, node.joined.node)
        packs.parted(self, others)
        self.soft.changes += 1

    def _apply_queued(self, fact: JobQueued) -> None:
        sequence = job_sequence(fact.job) or 0
        self.last_queued = sequence
        job = JobState(
            job=fact.job,
            sequence=sequence,
            spec=fact.spec,
            trace=fact.trace,
            submitted_at=fact.submitted_at,
            waiting_since=fact.submitted_at,
            since=fact.submitted_at,
        )
        self.jobs[fact.job] = job
        lately.came(self, job)
        self.queue(job).add(job.entry)

    def queue(self, job: JobState) -> JobQueue:
        """Return the queue a job waits in."""
        return self.queue_of(job.spec.vc, job.spec.opportunistic)

    def queue_of(self, vc: str, opportunistic: bool) -> JobQueue:
        """Return the queue of a VC and service class."""
        queue = self.queues.get((vc, opportunistic))
        if queue is None:
            queue = self.queues[vc, opportunistic] = JobQueue()
        return queue

    def _apply_waits(self, fact: JobWaits) -> None:
        job = self.jobs[fact.job]
        job.waits = fact.why, fact.needs
        if fact.aside and job.job not in self.parked:
            self.queue(job).remove(job.entry)
            self.parked[job.job] = job

    def _apply_bound(self, fact: JobBound) -> None:
        job, name = self.jobs[fact.job], cellwork.holder(fact.job, fact.attempt)
        packed = packs.decided(job, fact.attempt)
        if self.reserved.pop(fact.job, None) is not None:
            self.cells.occupy(name)
        elif self.parked.pop(fact.job, None) is None:
            self.queue(job).remove(job.entry)
        if name not in self.cells.holds and packed is None:
            self.cells.enter(cellwork.hold(self, job, fact, claims=False))
        job.move("JobBound")
        job.attempt, job.order, job.port = fact.attempt, fact.order, fact.master_port
        job.chain, job.secret = fact.chain, fact.secret
        job.lent = not job.spec.opportunistic and packed is None
        job.bound_at, job.ran_at = fact.at, Instant(0)
        job.members = {member.node: member for member in fact.members}
        job.parts = dict.fromkeys(job.members, Part.BOUND)
        job.gone, job.waits, job.stopped_why = [], None, None
        job.stopped_detail = ""
        changes.forget(self, job)
        self.order = fact.order
        cellwork.take(self, job, fact)
        self.placed[job.job] = job
        if packed is not None:
            job.packed = packed
            packs.enter(self, job, fact.attempt, fact.chain, fact.members)
        self.note_borrowed(job)

    def _apply_stopping(self, fact: JobStopping) -> None:
        job = self.jobs[fact.job]
        job.stands(fact.at, borrows=job.job in self.borrowed)
        job.move("JobStopping")
        self.away.pop(job.job, None)
        job.order, job.stopped_why, job.stopped_detail = fact.order, fact.why, fact.detail
        self.order = fact.order
        for name, part in job.parts.items():
            if part is not Part.GONE:
                self.nodes[name].open_orders[fact.job, fact.attempt] = fact.order
        # Whoever comes next may plan with its VC's cells, on these GPUs or on others.
        self.give_back(cellwork.holder(fact.job, fact.attempt))

    def give_back(self, name: str) -> None:
        """Free its VC's cells of an attempt that is to end; its GPUs stay taken until it has."""
        self.cells.stand_back(name)
        shared = self.cells.sets.get(name)
        packs.parted(self, map(cellwork.named, shared.partners if shared is not None else ()))
        self.soft.changes += 1

    def _apply_gone(self, fact: MemberGone) -> None:
        job = self.jobs[fact.job]
        job.parts[fact.node] = Part.GONE
        job.gone.append(fact)
        node, attempt = self.nodes[fact.node], (fact.job, fact.attempt)
        if fact.free:
            node.open_orders.pop(attempt, None)
            self._release(node, attempt)
        else:
            # What a lost node still runs must not keep its VC from healthy hardware.
            node.ghosts[attempt] = job.order
            self.give_back(cellwork.holder(*attempt))

    def _apply_requeued(self, fact: JobRequeued) -> None:
        job = self.jobs[fact.job]
        suspects.over(self, job, fact)
        borrowed = self.borrowed.pop(job.job, None) is not None
        job.stands(fact.at, borrows=borrowed)
        if not borrowed:
            job.waiting_since = fact.at
        job.move("JobRequeued")
        job.retries_used += fact.counted
        job.losses += not fact.counted and fact.why not in GIVES_WAY
        job.members, job.parts, job.gone = {}, {}, []
        job.stopped_why, job.waits = None, None
        changes.forget(self, job)
        del self.placed[job.job]
        self.queue(job).add(job.entry)

    def _apply_ended(self, fact: JobEnded) -> None:
        job = self.jobs.pop(fact.job)
        suspects.over(self, job, fact)
        job.stands(fact.at, borrows=False)
        views.ended(self, job)
        if job.state is State.QUEUED:
            if self.parked.pop(fact.job, None) is None:
                self.queue(job).remove(job.entry)
        else:
            del self.placed[job.job]
            self.borrowed.pop(job.job, None)
            self.away.pop(job.job, None)
        self.soft.uncovered.pop(job.job, None)
        tries.ended(self, job)

    # --- for decisions -----------------------------------------------------------------------

    def loss(self, now: Instant) -> Loss:
        """Return how to weigh victims: the GPU-seconds that stopping each would lose."""
        return cellwork.loss(self, now)

    def borrowed_gpus(self, vc: str) -> int:
        """Return how many GPUs a VC's jobs use beyond its cells."""
        return self.cells.borrowed.get(vc, 0)

    def check(self) -> None:
        """Assert that every GPU, queue and count is as the jobs say, and sharing safety."""
        invariants.check(self)
