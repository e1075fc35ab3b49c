"""What an agent knows of one attempt on its node, and what it asks its runtime and outbox to do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.ids import run_token
from skep.units import Instant
from skep.wire.bounds import DETAIL_MAX
from skep.wire.commands import BindJob, ChangeJob, Hold, RankPlan
from skep.wire.facts import (
    AgentFact,
    BindTaken,
    PartOver,
    PartStarted,
    PartStepped,
    RankDown,
    RankUp,
    StopTaken,
)
from skep.wire.node import (
    MemberExited,
    MemberStarted,
    MemberStepped,
    NodeEvent,
    NodeJoined,
    Outcome,
    RankExit,
)
from skep.wire.part_facts import (
    ChangeTaken,
    ChangeTried,
    PartChanged,
    PartKnown,
    PartLoaded,
    PartReady,
    RankJoins,
    Stand,
)
from skep.wire.reports import Building, RankProgress
from skep.wire.runs import RunExited, RunStarted
from skep.wire.talk import Said, Told

PEER_GRACE_S = 5.0
"""What the other ranks of a node get once one has failed: nothing they do can succeed any more."""
PORT_BUSY = "port-busy: "
"""How a RunNotStarted says that the rendezvous port was taken."""
NODE_FAULT = "node-fault: "
"""How a rank's end says that the node could not begin it, which is no fault of the job."""
DEVICE_BUSY = "device-busy: "
"""How a rank's end says that it was not begun because others are on its device."""

SHUT_DOWN = "the node was shut down"
"""Why a run was asked to end, if not by a command."""
NEVER_JOINED = "its ranks ended before they joined the gang"

LEFTOVERS_MAX = 16
"""How many leftovers an end names: a job that leaks leaks more of the same."""

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
}
"""Linux's names of the signals that end jobs, for people."""

PartKey = tuple[str, int]
"""A job and the number of its attempt."""

ToldFact = PartStarted | PartStepped | PartKnown | PartReady | PartLoaded | PartChanged | PartOver
"""What became of a part, as its facts say it, each told under its number."""


class StartRank(msgspec.Struct, frozen=True):
    """Call: execute one rank. Answered by RunStarted, RunNotStarted, later RunExited."""

    token: str
    command: BindJob
    plan: RankPlan


class StopRun(msgspec.Struct, frozen=True):
    """Call: end a process tree. Answered by RunExited."""

    token: str
    grace_s: float


class ForgetRun(msgspec.Struct, frozen=True):
    """Call: the end of this run is in the journal; drop it. Not answered."""

    token: str


class ListRuns(msgspec.Struct, frozen=True):
    """Call: which runs are there? Answered by RunsListed."""


class PublishEvent(msgspec.Struct, frozen=True):
    """Call: put a node event into its stream. Answered by Published once it is durable."""

    event: int
    subject: str
    key: str
    message: NodeEvent


class ExitProcess(msgspec.Struct, frozen=True):
    """Call: this agent must not go on. Not answered.

    `anew`: it is to forget all that it knows and to begin again under another identity.
    """

    text: str
    anew: bool = False


class RunsListed(msgspec.Struct, frozen=True):
    """Every run the runtime knows, alive or ended."""

    runs: tuple[RunStarted | RunExited, ...]


class Published(msgspec.Struct, frozen=True):
    """The stream has this event."""

    event: int


class TellRank(msgspec.Struct, frozen=True):
    """Call: say this to a rank if it is connected. Not answered but by the rank itself.

    `among`: how many ranks share the host's memory that the message speaks of.
    """

    message: Told
    among: int = 1


class FreezeRun(msgspec.Struct, frozen=True):
    """Call: freeze a process tree where it is. Answered by RunFrozen."""

    token: str


class ThawRun(msgspec.Struct, frozen=True):
    """Call: let a frozen process tree go on. Answered by RunThawed."""

    token: str


class OpenStore(msgspec.Struct, frozen=True):
    """Call: let a resized gang meet at this address. Answered by StoreOpened."""

    job: str
    attempt: int
    address: str
    port: int


class StoreOpened(msgspec.Struct, frozen=True):
    """A gang can meet, or `trouble` says why it cannot."""

    job: str
    attempt: int
    trouble: str = ""


class SweepDevices(msgspec.Struct, frozen=True):
    """Call: tell the operator which processes still hold memory of devices that a part has left.

    Other jobs are by right on those that are `shared`: there only what says itself that it is of
    this attempt counts.
    """

    job: str
    attempt: int
    devices: tuple[int, ...]
    shared: tuple[int, ...] = ()


class BuildsSeen(msgspec.Struct, frozen=True):
    """The environments of parts that are being built now: all of them."""

    building: tuple[Building, ...]


class CopiesSeen(msgspec.Struct, frozen=True):
    """The jobs of which this node's memory has copies of their state: all of them."""

    jobs: tuple[str, ...]


class RemoveCopies(msgspec.Struct, frozen=True):
    """Call: remove what a job has in this node's memory. CopiesSeen says what is left."""

    job: str


class RunFrozen(msgspec.Struct, frozen=True):
    """A tree is frozen, or is not: then `trouble` says why."""

    token: str
    trouble: str = ""


class RunThawed(msgspec.Struct, frozen=True):
    """A tree is not frozen any more, or `trouble` says why it may be."""

    token: str
    trouble: str = ""


class EvictRun(msgspec.Struct, frozen=True):
    """Call: have the driver move what a run has on its device into the host's memory.

    At most so many bytes. Answered by RunEvicted.
    """

    token: str
    devices: tuple[int, ...]
    max_bytes: int


class RestoreRun(msgspec.Struct, frozen=True):
    """Call: give an evicted run back what it had on its device. Answered by RunRestored."""

    token: str


class RunEvicted(msgspec.Struct, frozen=True):
    """`moved` bytes of a run are in the host's memory, or `trouble` says why it has its device."""

    token: str
    moved: int = 0
    trouble: str = ""


class RunRestored(msgspec.Struct, frozen=True):
    """A run has what it had on its device, or `trouble` says why not."""

    token: str
    trouble: str = ""


class SignalRun(msgspec.Struct, frozen=True):
    """Call: give a run a signal, once for each order. Answered by RunSignalled.

    It goes to the uppermost processes of the run that have a handler for it.
    """

    token: str
    signal: str
    order: int


class RunSignalled(msgspec.Struct, frozen=True):
    """A run has its signal, or `trouble` says why not."""

    token: str
    trouble: str = ""


class DumpRun(msgspec.Struct, frozen=True):
    """Call: store an image of a run's processes, which go on. Answered by RunDumped."""

    token: str
    job: str
    attempt: int
    rank: int
    devices: tuple[int, ...] = ()


class RunDumped(msgspec.Struct, frozen=True):
    """An image of a run is stored, of `bytes`, or `trouble` says why not. The run goes on.

    `pause_ns`: how long its processes stood for it.
    """

    token: str
    bytes: int = 0
    pause_ns: int = 0
    trouble: str = ""


RunHandled = RunFrozen | RunThawed | RunEvicted | RunRestored | RunSignalled | RunDumped
"""What the runtime did to a run that lives on."""


class RankSaid(msgspec.Struct, frozen=True):
    """A rank said something over its socket, other than how far it is."""

    message: Said


class RankStats(msgspec.Struct, frozen=True):
    """A rank said how far it is, over its socket."""

    job: str
    attempt: int
    progress: RankProgress


class DeviceUse(msgspec.Struct, frozen=True):
    """A device's utilisation in thousandths, -1 if unknown, and what it says is wrong with it."""

    index: int
    utilisation: int
    trouble: tuple[str, ...] = ()


class DevicesSeen(msgspec.Struct, frozen=True):
    """What the devices said about themselves just now."""

    devices: tuple[DeviceUse, ...]


class Rank(msgspec.Struct):
    """One process of a part."""

    plan: RankPlan
    up: bool = False
    down: RankDown | None = None
    out: bool = False
    """It has left the gang, or never became part of it: its end says nothing about the job."""


class PartState(msgspec.Struct):
    """This node's part of one attempt; `command` is None if a stop came before it."""

    order: int
    command: BindJob | None
    ranks: dict[str, Rank] = {}
    stop_grace_ms: int | None = None
    first_down: str = ""
    started: PartStarted | None = None
    stepped: PartStepped | None = None
    over: PartOver | None = None
    known: PartKnown | None = None
    ready: PartReady | None = None
    loaded: PartLoaded | None = None
    change: ChangeTaken | None = None
    changed: PartChanged | None = None
    stood_until: Instant = Instant(0)
    """When the latest change was over for which its ranks may have stood still."""
    serial: int = 0
    stand: Stand = Stand.RUNNING
    holds: tuple[Hold, ...] = ()
    """On whose behalf it is suspended; empty unless it is."""
    host_bytes: int = 0
    released: bool = False
    share_due: bool = False
    """Its share was changed while it was frozen: its ranks are told when it goes on."""
    broken: bool = False
    never: int = 0
    """The order by which it was to join, and by which nothing began as the stop came first."""

    @property
    def changing(self) -> ChangeJob | None:
        """Return the change that was taken and has no answer yet."""
        if self.change is None or self.over is not None or self.grace_s is not None:
            return None
        command = self.change.command
        done = self.changed is not None and self.changed.changed.order >= command.order
        return None if done else command

    @property
    def joins(self) -> bool:
        """Return whether all its ranks are to join a gang of which none is here yet."""
        return self.command is not None and bool(self.command.joins and self.command.awaits)

    @property
    def came(self) -> int:
        """Return the order by which it began to join its gang; 0 if it began with it."""
        if self.command is None:
            return self.never
        return self.command.order if self.command.joins else 0

    def waits_in_vain(self, token: str) -> bool:
        """Return whether a rank that has not begun was to join, and is not any more.

        Its change is over, or every rank that it was to join has ended.

        Args:
            token: The process of a rank of this part.
        """
        begins = self.joins and self.started is None
        gang = any(not rank.out and rank.down is None for rank in self.ranks.values())
        over = self.changing is None or not (gang or self.joins)
        return self.ranks[token].out and over and not begins

    @property
    def stands_frozen(self) -> bool:
        """Return whether its process trees are frozen while no change is under way."""
        return self.stand in {Stand.SUSPENDED, Stand.FROZEN}

    @property
    def told_facts(self) -> tuple[ToldFact, ...]:
        """Return what the cluster is told about it, in the order it happened."""
        changed = None if self.leaving else self.changed
        every = (
            self.started,
            self.stepped,
            self.known,
            self.ready,
            self.loaded,
            changed,
            self.over,
        )
        return tuple(fact for fact in every if fact is not None)

    @property
    def leaving(self) -> bool:
        """Return whether processes are left that are not of the gang.

        A change is told when none are: from then on others may be given their GPUs.
        """
        return any(rank.out and rank.down is None for rank in self.ranks.values())

    def alive(self) -> dict[str, Rank]:
        """Return the ranks whose processes are there."""
        return {token: rank for token, rank in self.ranks.items() if rank.up and rank.down is None}

    @property
    def grace_s(self) -> float | None:
        """Return how many seconds its processes get to end in, or None while they may go on."""
        if self.stop_grace_ms is not None:
            return self.stop_grace_ms / 1000
        return PEER_GRACE_S if self.first_down or self.broken else None

    @property
    def all_down(self) -> bool:
        """Return whether no process of the part is or can still come up."""
        return all(rank.down is not None for rank in self.ranks.values())


def part_facts(key: PartKey, part: PartState) -> list[AgentFact]:
    """Return the facts that rebuild a part as it is."""
    facts: list[AgentFact] = []
    if part.command is not None:
        facts.append(BindTaken(command=part.command))
        facts += _gone_before_they_joined(part.command, part)
    facts += [fact for fact in (part.change, part.changed) if fact is not None]
    if part.change is not None and part.serial != part.change.serial:
        facts.append(ChangeTried(job=key[0], attempt=key[1], serial=part.serial))
    facts += [
        RankJoins(token=token, plan=rank.plan) for token, rank in part.ranks.items() if rank.out
    ]
    if part.stop_grace_ms is not None:
        facts.append(
            StopTaken(
                job=key[0],
                attempt=key[1],
                order=part.order,
                epoch=0,
                grace_ms=part.stop_grace_ms,
                joins=part.never,
            )
        )
    facts += rank_facts(part)
    told = (part.started, part.stepped, part.known, part.ready, part.loaded, part.over)
    return facts + [fact for fact in told if fact is not None]


def _gone_before_they_joined(command: BindJob, part: PartState) -> list[AgentFact]:
    """Return that newcomers of the order which the gang did not wait for are gone."""
    facts: list[AgentFact] = []
    for plan in command.ranks:
        token = run_token(command.job, command.attempt, plan.rank)
        if token not in part.ranks:
            facts += [RankJoins(token=token, plan=plan), RankDown(token=token, code=None)]
    return facts


def rank_facts(part: PartState) -> list[AgentFact]:
    """Return what happened to each rank, the first failure first as it decides the outcome."""
    facts: list[AgentFact] = []
    tokens = sorted(part.ranks, key=lambda token: token != part.first_down)
    for token in tokens:
        rank = part.ranks[token]
        if rank.up:
            facts.append(RankUp(token=token, pid=0, start_ticks=0))
        if rank.down is not None:
            facts.append(rank.down)
    return facts


def outcome_of(part: PartState) -> tuple[Outcome, str]:
    """Return how the part ended, by its first failure, and what to tell about it.

    Returns:
        The outcome, and a text for the tenant; an empty one: there is nothing to add.
    """
    token = part.first_down
    if not token:
        if part.broken and part.stop_grace_ms is None and part.changed is not None:
            return Outcome.EXITED, part.changed.changed.detail
        # Also if every status is 0: a job that saves its state on SIGTERM ends so, unfinished.
        if not part.ranks and part.command is not None and part.stop_grace_ms is None:
            # Its gang goes on elsewhere without it, or did so all along.
            return (Outcome.STOPPED, NEVER_JOINED) if part.joins else (Outcome.SUCCEEDED, "")
        if not part.ranks or any(
            rank.down and rank.down.stopped and not rank.out for rank in part.ranks.values()
        ):
            return Outcome.STOPPED, "" if part.stop_grace_ms is not None else SHUT_DOWN
        return Outcome.SUCCEEDED, ""
    rank = part.ranks[token]
    down = rank.down
    assert down is not None, token
    named = f"rank {rank.plan.rank}"
    if not down.started:
        if down.detail.startswith(PORT_BUSY):
            return Outcome.PORT_BUSY, f"{named}: {down.detail[len(PORT_BUSY) :]}"
        if down.detail.startswith(DEVICE_BUSY):  # No fault of the job, nor of the device.
            return Outcome.UNKNOWN, f"{named}: {down.detail[len(DEVICE_BUSY) :]}"
        if down.detail.startswith(NODE_FAULT):
            return Outcome.NODE_FAULT, f"{named}: {down.detail[len(NODE_FAULT) :]}"
        return Outcome.NOT_STARTED, f"{named}: {down.detail}"
    if down.code is None:
        return Outcome.UNKNOWN, f"{named} vanished; its end was not seen"
    exceeded = f", {down.detail}" if down.detail else ""
    if down.code < 0:
        name = SIGNALS.get(-down.code, "another")
        return Outcome.SIGNALLED, f"{named}: signal {-down.code} ({name}){exceeded}"
    return Outcome.EXITED, f"{named}: exit status {down.code}{exceeded}"


def exited_part(
    key: PartKey,
    part: PartState,
    joined: NodeJoined,
    latest: Mapping[int, RankProgress],
    now: Instant,
) -> MemberExited:
    """Return what the cluster is told about the end of a part.

    Args:
        key: The job and the number of its attempt.
        part: Their part on this node, which has ended.
        joined: This node.
        latest: The latest report of each rank, by its number.
        now: The time of the decision.
    """
    outcome, detail = outcome_of(part)
    last = max(latest.values(), key=lambda rank: rank.values_step, default=None)
    downs = [(rank.plan.rank, rank.down) for rank in part.ranks.values() if rank.down is not None]
    return MemberExited(
        node=joined.node,
        identity=joined.identity,
        job=key[0],
        attempt=key[1],
        outcome=outcome,
        at=now,
        detail=detail[:DETAIL_MAX],
        ranks=tuple(RankExit(rank=number, code=down.code) for number, down in downs),
        steps=min((rank.steps for rank in latest.values()), default=0),
        step_ns=max((rank.step_ns for rank in latest.values()), default=0),
        trace=part.command.trace if part.command is not None else "",
        leftovers=tuple(name for _, down in downs for name in down.left)[:LEFTOVERS_MAX],
        order=part.came,
        values=last.values if last is not None else {},
        values_step=last.values_step if last is not None else 0,
    )


def told_message(part: PartState, fact: ToldFact, joined: NodeJoined) -> tuple[str, NodeEvent]:
    """Return what the cluster is told of a fact about a part.

    Args:
        part: The part as it is after the fact.
        fact: What became of it.
        joined: This node.

    Returns:
        The event's name, as it stands in its subject, and the message.
    """
    node, identity = joined.node, joined.identity
    trace = part.command.trace if part.command is not None else ""
    match fact:
        case PartStarted():
            return "started", MemberStarted(
                node=node,
                identity=identity,
                job=fact.job,
                at=fact.at,
                attempt=fact.attempt,
                trace=trace,
                order=part.came,
            )
        case PartStepped():
            return "stepped", MemberStepped(
                node=node,
                identity=identity,
                job=fact.job,
                at=fact.at,
                attempt=fact.attempt,
                trace=trace,
            )
        case PartKnown():
            return "known", fact.known
        case PartReady():
            return "ready", fact.ready
        case PartLoaded():
            return "loaded", fact.loaded
        case PartChanged():
            return "changed", fact.changed
        case PartOver():
            return "exited", fact.exited
