"""The life of a job as the allocator sees it: states, transitions, and how an attempt ends.

queued --JobBound--> bound --JobRan--> running --> ended
^                    |                  |          ^
|                    +--JobStopping--> stopping ---+
+---------------JobRequeued-----------------+

Where others must be stopped first: queued --CellsReserved--> reserved --JobBound--> bound, and
back to queued by ReservationDropped. A running attempt may be suspended, and a suspended one
resumed, by JobChanged (`changes`). A job that waits for other jobs, for a time, or is held:
queued --JobDeferred--> deferred --JobEligible--> queued (`deferral_facts`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from skep.ledger.queue import Entry
from skep.units import Instant
from skep.wire.changes import AskTaken, Goal, MemberAnswered, MemberLearned
from skep.wire.commands import Change
from skep.wire.facts import Member, MemberGone
from skep.wire.node import Door, Outcome
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.spec import After, JobSpec


class State(StrEnum):
    """Where an unfinished job is."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    RESERVED = "reserved"
    BOUND = "bound"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"


TRANSITIONS: dict[tuple[State, str], State] = {
    (State.QUEUED, "JobDeferred"): State.DEFERRED,
    (State.DEFERRED, "JobDeferred"): State.DEFERRED,
    (State.DEFERRED, "JobEligible"): State.QUEUED,
    (State.QUEUED, "JobBound"): State.BOUND,
    (State.QUEUED, "CellsReserved"): State.RESERVED,
    (State.RESERVED, "JobBound"): State.BOUND,
    (State.RESERVED, "ReservationDropped"): State.QUEUED,
    (State.BOUND, "JobRan"): State.RUNNING,
    (State.BOUND, "JobStopping"): State.STOPPING,
    (State.RUNNING, "JobStopping"): State.STOPPING,
    (State.RUNNING, "JobChanged"): State.SUSPENDED,
    (State.SUSPENDED, "JobChanged"): State.RUNNING,
    (State.SUSPENDED, "JobStopping"): State.STOPPING,
    (State.SUSPENDED, "JobRequeued"): State.QUEUED,
    (State.BOUND, "JobRequeued"): State.QUEUED,
    (State.RUNNING, "JobRequeued"): State.QUEUED,
    (State.STOPPING, "JobRequeued"): State.QUEUED,
}
"""Which fact moves a job where. JobEnded ends it from any state; a JobChanged that suspends or
resumes nothing leaves it where it is."""


class Phase(StrEnum):
    """Where the change of an attempt is."""

    NONE = "none"
    OPEN = "open"
    UNDOING = "undoing"


CHANGE_TRANSITIONS: dict[tuple[Phase, str], tuple[Phase, ...]] = {
    (Phase.NONE, "JobChanging"): (Phase.OPEN, Phase.UNDOING),
    (Phase.OPEN, "JobChanging"): (Phase.OPEN, Phase.UNDOING),
    (Phase.UNDOING, "JobChanging"): (Phase.OPEN, Phase.UNDOING),
    (Phase.OPEN, "MemberAnswered"): (Phase.OPEN,),
    (Phase.UNDOING, "MemberAnswered"): (Phase.UNDOING,),
    (Phase.OPEN, "JobChanged"): (Phase.NONE,),
    (Phase.UNDOING, "JobChanged"): (Phase.NONE,),
}
"""Which fact moves a change where. Of JobChanging, `undoing` says which: a change that was undone
on some nodes, as others would not, is tried again in a further round. What ends the attempt ends
its change by a JobChanged."""


class IllegalTransitionError(AssertionError):
    """A fact that cannot follow for a job in its state. Its notes tell what came before.

    Args:
        job: The job's name.
        state: The state that it, or its change, is in.
        fact: The type of the fact.
    """

    def __init__(self, job: str, state: State | Phase, fact: str) -> None:
        """Say what could not follow."""
        super().__init__(job, state, fact)
        self.job = job

    def __str__(self) -> str:
        """Return it in words."""
        job, state, fact = self.args
        return f"{job}: {fact} in {state}"


class Part(StrEnum):
    """Where one node's part of an attempt is."""

    BOUND = "bound"
    RAN = "ran"
    GONE = "gone"


class OpenChange(msgspec.Struct):
    """A change of an attempt that is under way: the round it is in, and the answers so far."""

    goal: Goal
    change: Change
    order: int
    why: Reason
    begun_at: Instant
    round: int
    undoing: bool
    asked: AskTaken | None
    detail: str
    answers: dict[str, MemberAnswered | None]
    """By node that was told: its answer, or None."""
    far: int = 0
    """The furthest mini-batch that any part was told to be at."""
    stops_at: Instant = Instant(0)
    """When ranks were first told to stop; 0: they were not."""


class Deferral(msgspec.Struct):
    """What a job waits for outside of its queue: other jobs, a time (0: none), or its release."""

    awaits: dict[str, None]
    begin: Instant
    held: bool


class ArrayState(msgspec.Struct):
    """An array of which a task has not ended. Its tasks are jobs of their own, or none yet."""

    array: str
    vc: str
    after: After | None = None
    gated: bool = False
    """None of its tasks is a job yet: it waits for something, or what it waits for cannot come."""
    deferral: Deferral | None = None
    waits: tuple[Reason, str] | None = None
    """Why it waits, and the text that says for what."""
    number: int = 0
    """The request by which it was last retried after it had ended; 0: it was not."""


class Successor(msgspec.Struct):
    """An attempt that is to take over from the one that runs."""

    attempt: int
    order: int
    members: dict[str, Member]
    port: int
    bound_at: Instant
    chain: str
    secret: str
    doors: dict[str, tuple[Door, ...]] = {}
    loaded: dict[str, int] = {}
    learned: dict[str, MemberLearned] = {}


class JobState(msgspec.Struct):
    """An unfinished job."""

    job: str
    sequence: int
    spec: JobSpec
    submitted_at: Instant
    trace: str
    state: State = State.QUEUED
    attempt: int = 0
    order: int = 0
    retries_used: int = 0
    losses: int = 0
    cancelled: bool = False
    waits: tuple[Reason, str] | None = None
    members: dict[str, Member] = {}
    parts: dict[str, Part] = {}
    gone: list[MemberGone] = []
    port: int = 0
    bound_at: Instant = Instant(0)
    ran_at: Instant = Instant(0)
    stopped_why: Reason | None = None
    stopped_detail: str = ""
    chain: str = ""
    learned: dict[str, MemberLearned] = {}
    """By node: what Skep can do with its part of the attempt."""
    sizes: tuple[int, ...] = ()
    """The numbers of workers that it can have, as the ranks of all its nodes said last; none: each
    that its spec allows. Another attempt begins with one of these, too."""
    asked: AskTaken | None = None
    """The latest request, while it waits for its turn."""
    change: OpenChange | None = None
    released: bool = False
    """The attempt is suspended and holds no GPUs."""
    held: Reason | None = None
    """Why it is suspended. Its tenant has to ask for its return, unless it only made room."""
    suspended_at: Instant = Instant(0)
    stayed: bool = False
    """It has not given its GPUs back since it was last suspended."""
    suspended_ns: int = 0
    """How long the attempt was suspended before: its time limit does not run meanwhile."""
    successor: Successor | None = None
    resized: int = 0
    """Ranks of the gang, if the attempt did not begin with those of the spec, or its size was
    changed since; 0: as many as the spec says."""
    rebound: bool = False
    """The attempt is not, or was not always, on the GPUs that its nodes were told to start it on:
    ranks that are to go on are told on which."""
    stood_on: dict[str, Member] = {}
    """By node: what the attempt had before it was given other GPUs to go on with, until it does."""
    tied: bool = False
    """Its ranks could not go on with other GPUs, though they had said so."""
    served_by: int = 0
    """Parameter servers of the attempt since their number was changed; 0: it was not."""
    secret: str = ""
    """What the attempt's parameter servers ask for."""
    spent: int = 0
    """The highest number of an attempt: a successor that was given up keeps its number."""

    packed: GpusShared | None = None
    """The decision by which an attempt of it is on GPUs that others hold."""
    apart: bool = False
    """Whether a job with a share was taken off a GPU that it shared: it is next on one alone."""
    told: tuple[float, tuple[str, ...]] = (0.0, ())
    """What the attempt was told last: its share of each device's memory, and beside which jobs."""
    mixed: bool = False
    """The attempt shared GPUs at some time: its end says nothing about them."""
    proven_partner: str = msgspec.field(default="", name="mate")
    """The job beside which it made more than in turns, when that was tried."""
    proven_milli: int = msgspec.field(default=0, name="mate_milli")
    """What both made together, in thousandths of one alone."""

    served: int = 0
    """How long it ran in all attempts until `since`, in nanoseconds."""
    since: Instant = Instant(0)
    """When it last began or ceased to run."""
    began_at: Instant = Instant(0)
    """When it first ran, on what is not borrowed; 0: it never has."""
    waiting_since: Instant = Instant(0)
    """When it last came to its queue, or gave its GPUs back. While it borrows it waits on."""
    owed: int = 0
    """For how long it should have run longer, as its policy noted when it last suspended it."""
    owed_at: Instant = Instant(0)
    owed_ran: int = 0
    """How long it had run in all attempts at `owed_at`, and has since on what it borrowed."""
    starts: int = 0
    ranked: Reason = Reason.ARRIVAL
    """Why it was next when its reservation was made."""
    lent: bool = False
    """The attempt began on GPUs that no cell of its VC covered, and has had no such cell since."""
    gives_back: bool | None = None
    """Whether its latest attempt could be suspended without its GPUs, or stored; None: unknown."""
    owner: str = ""
    """The person that submitted it; empty: the VC as a whole did."""
    deferral: Deferral | None = None
    """What it waits for outside of its queue, while it is deferred."""

    warned: bool = False
    """The ranks of the attempt were given the signal before its time limit, or are to be."""

    idle_tried: bool = False
    """The attempt did nothing for long, and was suspended for it, or could not be."""
    first_ran_at: Instant = Instant(0)
    """When its first attempt ran, if a later one is to look for checkpoints; else 0."""
    copies: tuple[str, ...] = ()
    """The nodes that had copies of its state in their memory when the latest attempt ended that
    kept some."""

    @property
    def following(self) -> int:
        """Return the number of the job's next attempt."""
        return max(self.attempt, self.spent) + 1

    @property
    def lends(self) -> bool:
        """Return whether it was bound to idle GPUs that it gives back at its turn."""
        return self.lent and self.spec.over_quota == "auto"

    @property
    def size(self) -> int:
        """Return how many ranks train, or are to."""
        return self.resized or self.spec.resources.workers

    def outside(self, name: str) -> bool:
        """Return whether a node's ranks are only to join the gang."""
        return self.members[name].first_rank >= self.size

    @property
    def away(self) -> bool:
        """Return whether it stands without GPUs and may go on: not while it is being stopped."""
        return self.released and self.state is State.SUSPENDED

    @property
    def deserted(self) -> bool:
        """Return whether only ranks are left that were to join the gang."""
        return bool(self.live) and all(self.outside(name) for name in self.live)

    @property
    def servers(self) -> int:
        """Return how many parameter servers it has, or is to have."""
        return self.served_by or (self.spec.ps.servers if self.spec.ps is not None else 0)

    def succeeds(self, attempt: int) -> bool:
        """Return whether this is the number of the successor that the attempt has."""
        return self.successor is not None and self.successor.attempt == attempt

    @property
    def entry(self) -> Entry:
        """Return the job's place in its queue."""
        return Entry(-self.spec.priority, self.sequence, self.job)

    @property
    def queue(self) -> tuple[str, bool]:
        """Return which queue it waits in: VC, and whether opportunistic."""
        return self.spec.vc, self.spec.opportunistic

    @property
    def live(self) -> list[str]:
        """Return the nodes that still have a part of the attempt."""
        return [name for name, part in self.parts.items() if part is not Part.GONE]

    @property
    def known(self) -> bool:
        """Return whether every part of the attempt has said what it can do."""
        return all(name in self.learned for name in self.live)

    @property
    def can(self) -> tuple[str, ...]:
        """Return what every part of the attempt can do; nothing before all have said so."""
        common: tuple[str, ...] | None = None
        for name, part in self.parts.items():
            if part is Part.GONE or self.outside(name):
                continue
            learned = self.learned.get(name)
            if learned is None:
                return ()
            if common is None:
                common = learned.can
            elif common != learned.can:
                common = tuple(each for each in common if each in learned.can)
        return common or ()

    @property
    def over(self) -> bool:
        """Return whether every part of the attempt is gone."""
        return all(part is Part.GONE for part in self.parts.values())

    def ran(self, at: Instant, *, borrows: bool) -> None:
        """Note that an attempt runs in all its parts, for the first time.

        Args:
            at: When its last part began to run.
            borrows: Whether no cell of its VC covers its GPUs.
        """
        self.move("JobRan")
        self.ran_at = at
        if self.spec.resume is not None:
            self.first_ran_at = self.first_ran_at or at
        self.starts += 1
        self.goes(at, borrows=borrows)

    def goes(self, at: Instant, *, borrows: bool) -> None:
        """Note that it runs from here on.

        Args:
            at: The instant.
            borrows: Whether no cell of its VC covers its GPUs.
        """
        self.since = at
        if not borrows:
            self.began_at = self.began_at or at

    def stands(self, at: Instant, *, borrows: bool) -> None:
        """Note that it ceases to run, if it does run.

        Args:
            at: The instant.
            borrows: Whether no cell of its VC covered its GPUs.
        """
        if self.state is State.RUNNING:
            # A clock that was set back takes nothing away that was served.
            going = max(0, at - self.since)
            self.served, self.since = self.served + going, at
            if borrows:
                self.owed_ran += going  # No turn in its VC: none is owed for it.

    def changes_hands(self, at: Instant, *, borrows: bool) -> None:
        """Note that from here on it runs on borrowed GPUs, or on those of its VC's cells.

        Args:
            at: The instant.
            borrows: Whether no cell of its VC covers its GPUs from here on.
        """
        if borrows and self.state in (State.RUNNING, State.STOPPING):
            self.waiting_since = at
        if self.state is not State.RUNNING:
            return
        self.stands(at, borrows=not borrows)
        if not borrows:
            self.began_at = self.began_at or at

    @property
    def phase(self) -> Phase:
        """Return where its change is."""
        if self.change is None:
            return Phase.NONE
        return Phase.UNDOING if self.change.undoing else Phase.OPEN

    def step(self, fact: str, after: Phase) -> None:
        """Check that its change may go where a fact has it go.

        Args:
            fact: The name of the fact's type.
            after: Where its change is after the fact.

        Raises:
            IllegalTransitionError: The table has no such change: that is a bug.
        """
        if after not in CHANGE_TRANSITIONS.get((self.phase, fact), ()):
            raise IllegalTransitionError(self.job, self.phase, fact)

    def move(self, fact: str) -> None:
        """Change state as the table says.

        Args:
            fact: The name of the fact's type.

        Raises:
            IllegalTransitionError: The table has no such change: that is a bug.
        """
        after = TRANSITIONS.get((self.state, fact))
        if after is None:
            raise IllegalTransitionError(self.job, self.state, fact)
        self.state = after


FAILURES: dict[Outcome, Reason] = {
    Outcome.EXITED: Reason.EXITED_NONZERO,
    Outcome.SIGNALLED: Reason.KILLED_BY_SIGNAL,
    Outcome.NOT_STARTED: Reason.NOT_STARTED,
    Outcome.PORT_BUSY: Reason.PORT_BUSY,
    Outcome.UNKNOWN: Reason.EXIT_UNKNOWN,
    Outcome.NODE_FAULT: Reason.NODE_FAULT,
}

ASKS_BACK = (Reason.REQUESTED, Reason.IDLE)
"""Why an attempt may be suspended until its tenant asks for its return."""

GIVES_WAY = (
    Reason.PREEMPTED,
    Reason.PREEMPTED_BY_POLICY,
    Reason.UNPACKED,
    Reason.TO_OWN_CELLS,
    Reason.MAINTENANCE,
    Reason.RESERVED_FOR_VC,
)
"""Why an attempt may be stopped for others: another one follows, and no retry is counted."""
