"""The allocator: the only writer of placement.

A job waits in its VC's queue until its gang fits (priority, then arrival; `ledger.queue`), gets
GPUs in its VC's cells (`schedule`, `cells`), and keeps them until its nodes confirm that its
processes are gone. Every decision is a fact; commands to agents follow from facts and are repeated
until a node event answers. What the facts tell is the ledger's state. Heartbeats, timers and advice
are soft: they are forgotten in a crash and cost nothing but time.
"""

from __future__ import annotations

from skep.ledger.snapshot import Kept, keep
from skep.ledger.state import ClusterState
from skep.machines.allocator import (
    cell_watch,
    deferring,
    ended_copies,
    hanging,
    idling,
    intake,
    invariants,
    nodes,
    schedule,
    slow_nodes,
    upkeep,
    windows,
)
from skep.machines.allocator.policies import advising, job_rates, latency, probes, trials
from skep.machines.allocator.settings import Settings
from skep.machines.allocator.stages import Stage
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Effect, Restarted, Tick
from skep.units import Instant
from skep.wire.admin import Admin, DrainNode, QuarantineGpu, SetVcs
from skep.wire.advice import Advice, Outlook, QueueAdvice
from skep.wire.codec import Facts, Unreadable
from skep.wire.facts import AllocatorFact
from skep.wire.held_up import GangSlowed
from skep.wire.learned import LearnedAdvice, SightWanted
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
)
from skep.wire.reports import Heartbeat
from skep.wire.served import ReplicaLate
from skep.wire.trials import Judged
from skep.wire.windows import CancelWindow, ReserveNodes

AllocatorEvent = (
    Admin | NodeEvent | Facts | Heartbeat | Advice | Judged | GangSlowed | ReplicaLate | Unreadable
)
"""What the allocator takes from outside."""

NOT_ITS = (MemberStepped, Unreadable)
"""What comes on its subjects and says nothing to it: no step of a decision follows."""


class AllocatorMachine:
    """The behaviour of the allocator service."""

    def __init__(self) -> None:
        """Start with no nodes and no jobs."""
        self.tx = Transaction()

    @property
    def state(self) -> ClusterState:
        """Return what the facts tell."""
        return self.tx.state

    @property
    def settings(self) -> Settings:
        """Return what a simulation may have otherwise; to be changed before the first event."""
        return self.tx.settings

    def decide(self, event: AllocatorEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return the facts and commands that follow from `event`.

        Args:
            event: What came. What is known already, or is of an earlier attempt, changes nothing.
            now: The time of this service's clock.

        Returns:
            Facts in the order in which they were applied, and commands behind the facts that they
            follow from.

        Raises:
            Exception: A bug, as a stage raised it; a note names the stage.
        """
        self.tx.begin()
        try:
            _decide(self.tx, event, now)
        except Exception as error:
            error.add_note(f"in the stage {self.tx.stage.name}: {self.tx.stage.value}")
            raise
        return self.tx.effects

    def wake_at(self) -> Instant | None:
        """Return when the earliest command must be repeated, limit enforced or node checked.

        Returns:
            The earliest of them; None: nothing waits for time.
        """
        first = self.tx.soft.wake_at()
        if not self.tx.state.windows:
            return first
        window = windows.wake_at(self.tx)
        return window if first is None or (window is not None and window < first) else first

    def snapshot(self) -> list[Kept]:
        """Return what rebuilds this state without history; to be encoded before the next event."""
        return list(keep(self.tx.state))

    def apply(self, fact: AllocatorFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot.

        Raises:
            IllegalTransitionError: The fact cannot follow for its job.
        """
        self.tx.apply(fact)

    def check(self) -> None:
        """Assert that every GPU, queue and count is as the jobs say, and sharing safety.

        Raises:
            AssertionError: One of them is not.
        """
        invariants.check(self.tx)


def _decide(tx: Transaction, event: AllocatorEvent | Restarted | Tick, now: Instant) -> None:
    """Go through the stages of a decision; see `stages`."""
    upkeep.awake(tx.soft, now)
    if isinstance(event, NOT_ITS):
        return
    _take_in(tx, event, now)
    deferring.resolve(tx, now)
    waits = tx.settings.defers or tx.soft.losing
    if (not isinstance(event, Heartbeat) or tx.effects) and not waits:
        if trials.is_due(tx, now):
            tx.enter(Stage.TRIALS)
            trials.review(tx, now)
        schedule.run(tx, now)
        if probes.is_due(tx, now):
            tx.enter(Stage.PROBES)
            probes.review(tx, now)
        if trials.is_due(tx, now):
            tx.enter(Stage.VERDICTS)
            trials.review(tx, now)  # What was taken, or joined others, may have been on trial.
            trials.tell(tx, now)
        if advising.is_due(tx, now):
            tx.enter(Stage.SIGHTS)
            advising.tell(tx, now)
    if tx.soft.resolving or tx.soft.room:
        tx.soft.check_at = now  # What remains, or came of these stages, is for the next decision.
    tx.enter(Stage.CHECKS)
    cell_watch.look(tx, now)


def _take_in(tx: Transaction, event: AllocatorEvent | Restarted | Tick, now: Instant) -> None:
    """Record what an event says, and do what has to be done at once."""
    match event:
        case Facts():
            for fact in event.facts:
                intake.admitted(tx, fact, now)
        case SetVcs() | DrainNode() | QuarantineGpu() | ReserveNodes() | CancelWindow():
            intake.operator(tx, event, now)
        case Heartbeat():
            nodes.heartbeat(tx, event, now)
            if event.idle or event.hung or event.copies:
                idling.heard(tx, event, now)
                hanging.heard(tx, event, now)
                ended_copies.heard(tx, event)
        case NodeJoined():
            nodes.joined(tx, event, now)
        case NodeCleared():
            intake.node_cleared(tx, event)
        case MemberStarted():
            intake.member_started(tx, event, now)
        case MemberExited():
            intake.member_exited(tx, event, now)
        case MemberKnown() | MemberReady() | MemberLoaded() | MemberChanged():
            intake.member_told(tx, event, now)
        case (
            QueueAdvice()
            | Outlook()
            | LearnedAdvice()
            | SightWanted()
            | Judged()
            | GangSlowed()
            | ReplicaLate()
        ):
            _take_advice(tx, event, now)
        case Tick():
            upkeep.tick(tx, now)
        case Restarted():
            upkeep.restarted(tx, now)
        case MemberStepped() | Unreadable():
            pass


def _take_advice(
    tx: Transaction, event: Advice | Judged | GangSlowed | ReplicaLate, now: Instant
) -> None:
    """Take in what the advisor, the introspector or the service of searches say."""
    match event:
        case QueueAdvice():
            schedule.advised(tx, event, now)
        case Outlook():
            job_rates.heard(tx, event, now)
        case LearnedAdvice():
            advising.heard(tx, event, now)
        case SightWanted():
            advising.wanted(tx, event)
        case Judged():
            trials.judged(tx, event, now)
        case GangSlowed():
            slow_nodes.heard(tx, event, now)
        case ReplicaLate():
            latency.heard(tx, event, now)
