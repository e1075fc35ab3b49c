"""The agent's facts about changes of running parts: more lines of its journal (see `facts`)."""

from __future__ import annotations

from enum import StrEnum

from skep.wire.bounds import Moment
from skep.wire.commands import ChangeJob, Hold, RankPlan
from skep.wire.message import Message
from skep.wire.node import MemberChanged, MemberKnown, MemberLoaded, MemberReady


class PartKnown(Message, frozen=True, tag="part-known"):
    """What the ranks of a part can do has become known; told as event number `event`."""

    event: int
    known: MemberKnown


class PartReady(Message, frozen=True, tag="part-ready"):
    """Every rank that awaits its state listens for it; told as event number `event`."""

    event: int
    ready: MemberReady


class PartLoaded(Message, frozen=True, tag="part-loaded"):
    """Every rank that awaited its state has it; told as event number `event`."""

    event: int
    loaded: MemberLoaded


class Stand(StrEnum):
    """How a part is, between two changes."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    """Between two mini-batches, its processes frozen."""
    FROZEN = "frozen"
    """Its processes are frozen wherever they were."""
    SENT = "sent"
    """Its state is with its successor; it waits for what becomes of the move."""
    AWAITING = "awaiting"
    """A successor that is not to train yet."""


class ChangeTaken(Message, frozen=True, tag="change-taken"):
    """A ChangeJob above its part's order was accepted; `serial` numbers what ranks are told."""

    command: ChangeJob
    serial: int


class ChangeTried(Message, frozen=True, tag="change-tried"):
    """What a part's ranks are told from here on has a higher number."""

    job: str
    attempt: int
    serial: int


class RankJoins(Message, frozen=True, tag="rank-joins"):
    """A rank is started that belongs to the gang once the resize under way is done."""

    token: str
    plan: RankPlan


class PartChanged(Message, frozen=True, tag="part-changed"):
    """A part's latest change is over and its ranks stand so; told as event number `event`.

    `host_bytes` of device state are kept in the host's memory. `broken`: some ranks changed and
    some did not, so that none of them can go on. `share_due`: they do not know yet which share of
    their devices' memory is theirs. `stood_until`: until when they may have stood still for an
    earlier change; None: for this one.
    """

    event: int
    changed: MemberChanged
    stand: Stand
    holds: tuple[Hold, ...] = ()
    host_bytes: int = 0
    released: bool = False
    broken: bool = False
    share_due: bool = False
    stood_until: Moment | None = None


PartFact = PartKnown | PartReady | PartLoaded | ChangeTaken | ChangeTried | RankJoins | PartChanged
