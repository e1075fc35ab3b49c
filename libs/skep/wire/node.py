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
    """Every process of this node's part of the attempt was executed. `at` is the first exec.

    `order` is that of the BindJob if the part joins a gang, which may happen more than once.
    """

    node: str
    identity: str
    job: str
    attempt: int
    at: Instant
    trace: str = ""
    order: int = 0


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

    `steps` are the mini-batches of the slowest rank here, 0 if none was ever seen. `leftovers` name
    processes that outlived their rank and were killed: pid and command line. `order` is as in
    MemberStarted. `values` is what the job said last of its training, as of `values_step`.
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
    leftovers: tuple[str, ...] = ()
    order: int = 0
    values: dict[str, float] = {}
    values_step: int = 0


class Tier(StrEnum):
    """What Skep can do with a running job."""

    OPAQUE = "opaque"
    OBSERVED = "observed"
    COOPERATIVE = "cooperative"


class MemberKnown(Message, frozen=True, tag="member-known"):
    """What every rank of this node's part can do, as the job's own side said: `can` are names.

    suspend, release, checkpoint, migrate, resize, rebind (resume on other devices of the node).
    """

    node: str
    identity: str
    job: str
    attempt: int
    tier: Tier
    can: tuple[str, ...]
    at: Instant
    trace: str = ""


class Door(Message, frozen=True):
    """Where a rank listens for the state of the one that it succeeds."""

    rank: int
    host: str
    port: int


class MemberReady(Message, frozen=True, tag="member-ready"):
    """Every rank of a part that awaits its state has made everything else ready and listens.

    With `order`: all is ready here for the Resize of that order, which is held until the next.
    """

    node: str
    identity: str
    job: str
    attempt: int
    doors: tuple[Door, ...]
    at: Instant
    trace: str = ""
    order: int = 0


class MemberLoaded(Message, frozen=True, tag="member-loaded"):
    """Every rank of a part that awaited its state has it, as of mini-batch `step`, and waits."""

    node: str
    identity: str
    job: str
    attempt: int
    step: int
    at: Instant
    trace: str = ""


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

    node: str
    identity: str
    job: str
    attempt: int
    order: int
    manner: Manner
    at: Instant
    step: int = 0
    moved: int = 0
    residue: int = -1
    pause_ns: int = 0
    detail: str = ""
    trace: str = ""
    released: bool = False


class NodeCleared(Message, frozen=True, tag="node-cleared"):
    """Nothing that an order up to `order` began runs on the node, and nothing of it will begin."""

    node: str
    identity: str
    order: int


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
