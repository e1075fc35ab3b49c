"""What agents say durably, on `skep.v1.node.<node>.<event>`: the truth about processes."""

from __future__ import annotations

from enum import StrEnum

from skep.units import Instant
from skep.wire.message import Message


class Gpu(Message, frozen=True):
    """One device of a node. `memory` is bytes, `uuid` the vendor's name for it if it has one."""

    index: int
    type: str
    memory: int = 0
    uuid: str = ""


class NodeJoined(Message, frozen=True, tag="node-joined"):
    """An agent joins. Repeated at every start, and when asked to, with a higher `incarnation`.

    `identity` is fixed when the node's state folder is first used: two agents of one name differ
    in it. `ports` are the first and last TCP port gangs may meet on at `address`.
    """

    node: str
    identity: str
    incarnation: int
    address: str
    ports: tuple[int, int]
    gpus: tuple[Gpu, ...]
    cpus: int
    memory: int


class Outcome(StrEnum):
    """How one node's part of an attempt ended."""

    SUCCEEDED = "succeeded"
    EXITED = "exited"
    SIGNALLED = "signalled"
    NOT_STARTED = "not-started"
    PORT_BUSY = "port-busy"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class RankExit(Message, frozen=True):
    """How one rank ended: status, minus the signal's number, or None where nobody saw it."""

    rank: int
    code: int | None


class MemberStarted(Message, frozen=True, tag="member-started"):
    """Every process of this node's part of the attempt was executed. `at` is the first exec."""

    node: str
    identity: str
    job: str
    attempt: int
    at: Instant
    trace: str = ""


class MemberStepped(Message, frozen=True, tag="member-stepped"):
    """The first mini-batch of the attempt was seen on this node."""

    node: str
    identity: str
    job: str
    attempt: int
    at: Instant
    trace: str = ""


class MemberExited(Message, frozen=True, tag="member-exited"):
    """Every process of this node's part of the attempt is gone: its GPUs are free.

    `steps` are the mini-batches of the slowest rank here, 0 if none was ever seen.
    """

    node: str
    identity: str
    job: str
    attempt: int
    outcome: Outcome
    at: Instant
    detail: str = ""
    ranks: tuple[RankExit, ...] = ()
    steps: int = 0
    step_ns: int = 0
    trace: str = ""


class NodeCleared(Message, frozen=True, tag="node-cleared"):
    """Nothing that an order up to `order` began runs on the node, and nothing of it will begin."""

    node: str
    identity: str
    order: int


NodeEvent = NodeJoined | MemberStarted | MemberStepped | MemberExited | NodeCleared
