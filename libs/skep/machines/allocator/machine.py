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
from skep.ids import job_sequence
from skep.ledger import fold
from skep.ledger.job_state import IllegalTransitionError, JobState, Part, State
from skep.ledger.snapshot import Kept, keep
from skep.ledger.state import ClusterState
from skep.machines.allocator import (
    caches,
    cellwork,
    changing,
    dispatch,
    invariants,
    moving,
    paces,
    schedule,
    spanning,
    trials,
    views,
    watch,
)
from skep.machines.allocator.jobs import ended, judge, part_gone
from skep.machines.base import Effect, Record, Restarted, Tick
from skep.policy.check import cluster_problems
from skep.units import Instant
from skep.wire.admin import Admin, DrainNode, QuarantineGpu, SetVcs
from skep.wire.advice import Advice, Outlook, QueueAdvice
from skep.wire.changes import ChangeAsked
from skep.wire.codec import Facts, ServiceFact, Unreadable
from skep.wire.facts import (
    Admitted,
    AllocatorFact,
    CancelAsked,
    ClusterRefused,
    End,
    GhostGone,
    JobQueued,
    JobRan,
    JobRequeued,
    MemberRan,
    NodeClean,
    NodeDrained,
    ReservationDropped,
)
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
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from skep.wire.trials import Judged

AllocatorEvent = Admin | NodeEvent | Facts | Heartbeat | Advice | Judged | Unreadable
"""What the allocator takes from outside."""

PROBLEMS_MAX = 100
"""Problems of one cluster file that are recorded: more would be the same mistake again."""


class AllocatorMachine:
    """The behaviour of the allocator service."""

    def __init__(self) -> None:
        """Start with no nodes and no jobs."""
        self.state = ClusterState()
        """What the facts tell: durable."""
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
                if (
                    event.node in self.state.nodes
                    and self.state.nodes[event.node].drained != event.drain
                ):
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
        if self.state.cells.undecided:
            for step in bad_cells.next_steps(self.state.cells):
                self._record(cellwork.follows(step))

    def _record(self, fact: AllocatorFact) -> None:
        self.apply(fact)
        self.effects.append(Record(fact))
        self.soft.story.append(fact)

    # --- what others tell --------------------------------------------------------------------

    def _admission(self, fact: ServiceFact, now: Instant) -> None:
        match fact:
            case Admitted():
                if (job_sequence(fact.job) or 0) > self.state.last_queued:
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
        job = self.state.jobs.get(name)
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
        job = self.state.jobs.get(event.job)
        if job is None or job.attempt != event.attempt:
            return
        if job.parts.get(event.node) is not Part.BOUND or not self._speaks(job, event):
            return
        # The node's clock may be wrong, and the time limit counts from here.
        at = min(max(event.at, job.bound_at), now)
        self.record(MemberRan(job=job.job, attempt=job.attempt, node=event.node, at=at))
        if (job.job, job.attempt) not in self.state.nodes[event.node].open_orders:
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
        return mine and self.state.nodes[event.node].means((event.job, event.attempt), event.order)

    def _member_exited(self, event: MemberExited, now: Instant) -> None:
        node, attempt = self.state.nodes.get(event.node), (event.job, event.attempt)
        if node is not None and node.haunted(attempt, event.identity, event.order):
            self.record(GhostGone(job=event.job, attempt=event.attempt, node=event.node))
            return
        job = self.state.jobs.get(event.job)
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
        node = self.state.nodes.get(event.node)
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
        return list(keep(self.state))

    def apply(self, fact: AllocatorFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot.

        Raises:
            IllegalTransitionError: A job cannot be moved so; with the latest facts about it.
        """
        if self.soft.planned:
            views.touch(self, fact)
        try:
            delta = fold.apply(self.state, fact)
        except IllegalTransitionError as error:
            for line in watch.story_of(self, [error.job]):
                error.add_note(line)
            raise
        caches.follow(self, delta)

    # --- for decisions -----------------------------------------------------------------------

    def loss(self, now: Instant) -> Loss:
        """Return how to weigh victims: the GPU-seconds that stopping each would lose."""
        return cellwork.loss(self, now)

    def check(self) -> None:
        """Assert that every GPU, queue and count is as the jobs say, and sharing safety."""
        invariants.check(self)
