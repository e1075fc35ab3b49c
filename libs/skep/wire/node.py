"""What agents say durably, on `skep.v1.node.<node>.<event>`: the truth about processes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from skep.units import seconds
from skep.wire.bounds import (
    DEVICES_MAX,
    NAMES_MAX,
    RANKS_MAX,
    Abilities,
    Attempt,
    Bytes,
    Count,
    Device,
    Incarnation,
    JobName,
    MaybeBytes,
    Moment,
    Nanoseconds,
    Port,
    Rank,
    Short,
    Sizes,
    Status,
    Text,
    Token,
    Values,
)
from skep.wire.message import Message

TAKE_OVER_AFTER = seconds(5)
"""Silence after which another agent may take a node's name: five heartbeats."""

JOIN_DELAY_MAX = seconds(60)
"""How late the join of an agent's earlier process may arrive behind that of a later one: many times
a bus election. After that a lower incarnation is the agent's own word, and what is known is wrong:
another held the node's credential, or the agent's journal was restored."""


class Gpu(Message, frozen=True):
    """One device of a node. `memory` is bytes, `uuid` the vendor's name for it if it has one."""

    index: Device
    type: Short
    memory: Bytes = 0
    uuid: Short = ""


class NodeJoined(Message, frozen=True, tag="node-joined"):
    """An agent joins. Repeated at every start, and when asked to, with a higher `incarnation`.

    `identity` is fixed when the node's state folder is first used: two agents of one name differ
    in it. `ports` are the first and last TCP port gangs may meet on at `address`. `images` says
    whether images of processes are stored here: empty: that is not allowed; `yes`; or why not.
    """

    node: Token
    identity: Short
    incarnation: Incarnation
    address: Short
    ports: tuple[Port, Port]
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=DEVICES_MAX)]
    cpus: Count
    memory: Bytes
    images: Text = ""


def join_problem(joined: NodeJoined) -> str:
    """Return what is wrong with an inventory whose values are in bounds; empty: nothing is."""
    first, last = joined.ports
    if first > last:
        return f"ports {first} to {last}: the first must not be above the last"
    seen: dict[int, None] = {}
    for gpu in joined.gpus:
        if gpu.index in seen:
            return f"gpus: two devices have the index {gpu.index}"
        seen[gpu.index] = None
    return ""


class Outcome(StrEnum):
    """How one node's part of an attempt ended."""

    SUCCEEDED = "succeeded"
    EXITED = "exited"
    SIGNALLED = "signalled"
    NOT_STARTED = "not-started"
    PORT_BUSY = "port-busy"
    STOPPED = "stopped"
    UNKNOWN = "unknown"
    NODE_FAULT = "node-fault"


class RankExit(Message, frozen=True):
    """How one rank ended: status, minus the signal's number, or None where its end was not seen."""

    rank: Rank
    code: Status | None


class MemberStarted(Message, frozen=True, tag="member-started"):
    """Every process of this node's part of the attempt was executed. `at` is the first exec.

    `order` is that of the BindJob if the part joins a gang, which may happen more than once.
    """

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    at: Moment
    trace: Short = ""
    order: Count = 0


class MemberStepped(Message, frozen=True, tag="member-stepped"):
    """The first mini-batch of the attempt was seen on this node."""

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    at: Moment
    trace: Short = ""


class MemberExited(Message, frozen=True, tag="member-exited"):
    """Every process of this node's part of the attempt is gone: its GPUs are free.

    `steps` are the mini-batches of the slowest rank here, 0 if none was ever seen. `leftovers` name
    processes that outlived their rank and were killed: pid and command line. `order` is as in
    MemberStarted. `values` is what the job said last of its training, as of `values_step`.
    """

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    outcome: Outcome
    at: Moment
    detail: Text = ""
    ranks: Annotated[tuple[RankExit, ...], Meta(max_length=RANKS_MAX)] = ()
    steps: Count = 0
    step_ns: Nanoseconds = 0
    trace: Short = ""
    leftovers: Annotated[tuple[Text, ...], Meta(max_length=NAMES_MAX)] = ()
    order: Count = 0
    values: Values = {}
    values_step: Count = 0


class Tier(StrEnum):
    """What Skep can do with a running job."""

    OPAQUE = "opaque"
    OBSERVED = "observed"
    COOPERATIVE = "cooperative"


class MemberKnown(Message, frozen=True, tag="member-known"):
    """What every rank of this node's part can do, as the job's own side said: `can` are names.

    suspend, release, checkpoint, migrate, resize, rebind (resume on other devices of the node).
    `resumed` says where the attempt goes on from, if it looked for a checkpoint of a library's own.
    `sizes` are the numbers of ranks that it can have; none: each that its spec allows.
    """

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    tier: Tier
    can: Abilities
    at: Moment
    trace: Short = ""
    resumed: Short = ""
    sizes: Sizes = ()


class Door(Message, frozen=True):
    """Where a rank listens for the state of the one that it succeeds."""

    rank: Rank
    host: Short
    port: Port


class MemberReady(Message, frozen=True, tag="member-ready"):
    """Every rank of a part that awaits its state has made everything else ready and listens.

    With `order`: all is ready here for the Resize of that order, which is held until the next.
    """

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    doors: Annotated[tuple[Door, ...], Meta(max_length=RANKS_MAX)]
    at: Moment
    trace: Short = ""
    order: Count = 0


class MemberLoaded(Message, frozen=True, tag="member-loaded"):
    """Every rank of a part that awaited its state has it, as of mini-batch `step`, and waits."""

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    step: Count
    at: Moment
    trace: Short = ""


class Manner(StrEnum):
    """How a part came to be as it is after a change."""

    BOUNDARY = "boundary"
    """Between two mini-batches, by the job's own side."""
    FROZEN = "frozen"
    """Its processes were frozen where they were: no boundary was reached in time, or none is known.
    Device memory stays."""
    UNCHANGED = "unchanged"
    """Nothing was changed, or everything was put back: the job goes on as before."""


class MemberChanged(Message, frozen=True, tag="member-changed"):
    """This node's part of an attempt took the change of this order, or (unchanged) did not.

    `step` is the mini-batch after which the slowest rank stopped or changed, `moved` the bytes that
    left devices or were written or sent, `residue` the bytes still on devices (-1: not known),
    `pause_ns` how long training stood still where it is known. `released`: suspended, it keeps its
    state in the host's memory, and others may use its devices. Unchanged because it was past the
    step that was named, `step` is where the furthest rank was.
    """

    node: Token
    identity: Short
    job: JobName
    attempt: Attempt
    order: Count
    manner: Manner
    at: Moment
    step: Count = 0
    moved: Bytes = 0
    residue: MaybeBytes = -1
    pause_ns: Nanoseconds = 0
    detail: Text = ""
    trace: Short = ""
    released: bool = False


class NodeCleared(Message, frozen=True, tag="node-cleared"):
    """Nothing that an order up to `order` began runs on the node, and nothing of it will begin."""

    node: Token
    identity: Short
    order: Count


NodeEvent = (
    NodeJoined
    | MemberStarted
    | MemberStepped
    | MemberKnown
    | MemberReady
    | MemberLoaded
    | MemberChanged
    | MemberExited
    | NodeCleared
)
