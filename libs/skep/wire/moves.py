"""The facts about an attempt that goes on elsewhere: its successor is the next attempt.

    SuccessorBound --SuccessorReady of every node--> (Move)
                   --SuccessorLoaded of every node--> JobMoved
                   --SuccessorDropped, at any time before

Before JobMoved the attempt that runs is the job, and its successor is nothing but a preparation;
from it on the successor is the job, and what is left of the other is stopped.
"""

from __future__ import annotations

from skep.units import Instant
from skep.wire.member import Member
from skep.wire.message import Message
from skep.wire.node import Door
from skep.wire.reasons import Reason


class MoveMessage(Message, frozen=True):
    """A fact of the allocator about successors."""


class SuccessorBound(MoveMessage, frozen=True, tag="successor-bound"):
    """An attempt's successor got GPUs and is told to make ready; `order` numbers its commands.

    `secret` is what the sender of the state has to know.
    """

    job: str
    attempt: int
    order: int
    members: tuple[Member, ...]
    master_port: int
    at: Instant
    chain: str
    secret: str
    trace: str = ""


class SuccessorReady(MoveMessage, frozen=True, tag="successor-ready"):
    """The ranks of a successor's part listen for their state."""

    job: str
    attempt: int
    node: str
    doors: tuple[Door, ...]


class SuccessorLoaded(MoveMessage, frozen=True, tag="successor-loaded"):
    """The ranks of a successor's part have their state, as of mini-batch `step`."""

    job: str
    attempt: int
    node: str
    step: int


class JobMoved(MoveMessage, frozen=True, tag="job-moved"):
    """From here on the successor is the job; `order` numbers the end of the attempt before it."""

    job: str
    attempt: int
    source: int
    order: int
    at: Instant
    step: int = 0
    trace: str = ""


class SuccessorDropped(MoveMessage, frozen=True, tag="successor-dropped"):
    """A successor is given up, and the attempt before it goes on; `order` numbers its end."""

    job: str
    attempt: int
    order: int
    why: Reason
    at: Instant
    detail: str = ""


MoveFact = SuccessorBound | SuccessorReady | SuccessorLoaded | JobMoved | SuccessorDropped
