"""What an agent knows of one attempt on its node, and what it asks its runtime and outbox to do."""

from __future__ import annotations

import msgspec

from skep.wire.commands import BindJob, RankPlan
from skep.wire.facts import AgentFact, PartOver, PartStarted, PartStepped, RankDown, RankUp
from skep.wire.node import NodeEvent, Outcome
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunStarted

PEER_GRACE_S = 5.0
"""What the other ranks of a node get once one has failed: nothing they do can succeed any more."""
PORT_BUSY = "port-busy: "
"""How a RunNotStarted says that the rendezvous port was taken."""

SHUT_DOWN = "the node was shut down"
"""Why a run was asked to end, if not by a command."""

SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
           9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU"}  # fmt: skip
"""Linux's names of the signals that end jobs, for people."""

PartKey = tuple[str, int]
"""A job and the number of its attempt."""


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
    """Call: this agent must not go on. Not answered."""

    text: str


class RunsListed(msgspec.Struct, frozen=True):
    """Every run the runtime knows, alive or ended."""

    runs: tuple[RunStarted | RunExited, ...]


class Published(msgspec.Struct, frozen=True):
    """The stream has this event."""

    event: int


class RankStats(msgspec.Struct, frozen=True):
    """A rank said how far it is, over its socket."""

    job: str
    attempt: int
    progress: RankProgress


class DeviceUse(msgspec.Struct, frozen=True):
    """A device's utilisation in thousandths, -1 if unknown."""

    index: int
    utilisation: int


class DevicesSeen(msgspec.Struct, frozen=True):
    """What the devices said about themselves just now."""

    devices: tuple[DeviceUse, ...]


class Rank(msgspec.Struct):
    """One process of a part."""

    plan: RankPlan
    up: bool = False
    down: RankDown | None = None


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

    @property
    def grace_s(self) -> float | None:
        """Return what its processes get to end in, or None while they may go on."""
        if self.stop_grace_ms is not None:
            return self.stop_grace_ms / 1000
        return PEER_GRACE_S if self.first_down else None

    @property
    def all_down(self) -> bool:
        """Return whether no process of the part is or can still come up."""
        return all(rank.down is not None for rank in self.ranks.values())


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
    """Return how the part ended, by its first failure, and what to tell about it."""
    token = part.first_down
    if not token:
        # Also if every status is 0: a job that saves its state on SIGTERM ends so, unfinished.
        if not part.ranks or any(rank.down and rank.down.stopped for rank in part.ranks.values()):
            return Outcome.STOPPED, "" if part.stop_grace_ms is not None else SHUT_DOWN
        return Outcome.SUCCEEDED, ""
    rank = part.ranks[token]
    down = rank.down
    assert down is not None, token
    who = f"rank {rank.plan.rank}"
    if not down.started:
        if down.detail.startswith(PORT_BUSY):
            return Outcome.PORT_BUSY, f"{who}: {down.detail[len(PORT_BUSY) :]}"
        return Outcome.NOT_STARTED, f"{who}: {down.detail}"
    if down.code is None:
        return Outcome.UNKNOWN, f"{who} vanished; nobody saw how it ended"
    if down.code < 0:
        name = SIGNALS.get(-down.code, "another")
        return Outcome.SIGNALLED, f"{who}: signal {-down.code} ({name})"
    return Outcome.EXITED, f"{who}: exit status {down.code}"
