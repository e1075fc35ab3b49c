"""What the read model keeps of jobs, agents and events, in the shape the API answers.

Instants are wall-clock nanoseconds; None where something has not happened.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from skep.wire.bounds import NAMES_MAX, Integer, Nanoseconds, Number, Short, Text
from skep.wire.node import RankExit
from skep.wire.spec import Problem

ATTEMPTS_KEPT = 100
"""Newest attempts shown of one job: as many as it may be retried."""
REPEATS_KEPT = 100
"""Newest repeated submissions shown of one job; a client that repeats for ever learns no more."""


TIERS = ("opaque", "observed", "cooperative")
"""What Skep can do with a job, from least to most."""


class State(StrEnum):
    """Where a job is. UNSEEN: only agents spoke of it; REPEATED: it is another submission's job."""

    UNSEEN = ""
    SUBMITTED = "submitted"
    QUEUED = "queued"
    BOUND = "bound"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    REPEATED = "repeated"


ACTIVE = (
    State.SUBMITTED,
    State.QUEUED,
    State.BOUND,
    State.RUNNING,
    State.SUSPENDED,
    State.STOPPING,
)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REFUSED)
PLACED = (State.BOUND, State.RUNNING, State.SUSPENDED, State.STOPPING)
ASKS_KEPT = 20
"""Newest requests for changes shown of one job."""


class Times(msgspec.Struct, frozen=True):
    """An instant that is estimated: one, five and nine times in ten it is earlier."""

    p10: int
    p50: int
    p90: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """When a job starts and ends; None: that is not known.

    `basis` is the code of the reason by which its length is known, or is not.
    """

    start: Times | None = None
    end: Times | None = None
    basis: str = ""


class TaskCounts(msgspec.Struct, kw_only=True):
    """How the tasks of an array stand. `most`: so many are jobs at once; 0: any number."""

    total: int = 0
    most: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    indices: str = ""
    """Which tasks there are, as the spec says; once some are begun again, these."""
    skipped: str = ""
    """Of these, those that were cancelled before they were jobs."""

    @property
    def waiting(self) -> int:
        """Return how many are not jobs yet."""
        jobs = self.queued + self.running + self.succeeded + self.failed + self.cancelled
        return max(0, self.total - jobs)

    def text(self) -> str:
        """Return one line: `100 tasks: 8 running, 92 to come`."""
        kinds = ("running", "queued", "succeeded", "failed", "cancelled")
        parts = [f"{count} {kind}" for kind in kinds if (count := getattr(self, kind)) > 0]
        if self.waiting:
            parts.append(f"{self.waiting} to come")
        return f"{self.total} tasks: {', '.join(parts)}"


class Row(msgspec.Struct, kw_only=True, gc=False):
    """One line of `skep ps`. Rates are thousandths of a mini-batch per second.

    `class_in_force` says of a job that holds GPUs whether they are of its VC's cells (guaranteed)
    or borrowed (opportunistic); empty for every other job. It differs from `service_class` while a
    guaranteed job is demoted or runs beyond its VC's cells.
    """

    job: str
    name: str = ""
    vc: str = ""
    state: State = State.UNSEEN
    service_class: str = "guaranteed"
    class_in_force: str = ""
    priority: int = 0
    gpus: int = 0
    workers: int = 0
    gpu_type: str | None = None
    place: str = ""
    attempt: int = 0
    submitted_at: int | None = None
    bound_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    rate_milli: int | None = None
    steps: int = 0
    total_steps: int | None = None
    eta_s: int | None = None
    why: str | None = None
    needs: str = ""
    stalled_since: int | None = None
    beside: tuple[str, ...] = ()
    """Jobs on the same GPUs, by a decision to pack them."""
    share: float | None = None
    """The part of each device's memory that it is to keep to while it shares its GPUs."""
    estimate: Estimate | None = None
    """When it starts and ends; None: it has ended, or nothing can be said."""
    owner: str = ""
    """The person that submitted it; empty: its VC as a whole did."""
    task: str = ""
    """Which task of which array it is: `j7[3]`."""
    tasks: TaskCounts | None = None
    """Of an array: how its tasks stand."""
    labels: dict[str, str] = {}
    """Of its spec. Rows that were stored by versions before this field have none."""
    gpu_share: float | None = None
    """The part of one GPU that it asks for; None: it asks for whole ones, which `gpus` says."""

    @property
    def counted_gpus(self) -> float:
        """Return the GPUs that it counts as: its share of one, or all of its own."""
        return self.gpus if self.gpu_share is None else self.gpu_share


class Part(msgspec.Struct, kw_only=True):
    """One node's part of an attempt: `devices[i]` are the GPUs of a rank, see wire's `Member`."""

    node: str
    first_rank: int = 0
    ranks: tuple[int, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()
    gpu_type: str = ""
    """Of a mixed gang: the type of its GPUs."""
    started_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None
    free: bool = False
    detail: str = ""
    steps: int = 0
    step_ns: int = 0
    exits: tuple[RankExit, ...] = ()
    tier: str = ""
    can: tuple[str, ...] = ()
    resumed: str = ""
    """Which checkpoint of an earlier attempt it goes on from, or why from none."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the rank of each of `devices`."""
        return self.ranks or tuple(range(self.first_rank, self.first_rank + len(self.devices)))


class Changing(msgspec.Struct, kw_only=True):
    """A change that is under way: since when, in which round, which nodes have yet to answer."""

    goal: str
    why: str
    since: int
    round: int = 1
    undoing: bool = False
    waits_for: tuple[str, ...] = ()
    resumes: bool = False
    """The job is to go on, so it runs once this is done."""


class Asked(msgspec.Struct, kw_only=True):
    """A request for a change. `result` is None until it has come to its end."""

    number: int
    taken: bool = False
    """The allocator has looked at it; what it refuses at once has its `result` by then."""
    ask: str = ""
    asked_at: int | None = None
    result: str | None = None
    why: str | None = None
    detail: str = ""
    ended_at: int | None = None


class Attempt(msgspec.Struct, kw_only=True):
    """One time a job got its GPUs. `why` is the reason for the place, `ranked` for the turn.

    `outcome` is the job's end or `requeued`, None while the attempt lasts; `ended_why` its reason.
    """

    attempt: int
    place: str = ""
    why: str | None = None
    ranked: str | None = None
    bound_at: int | None = None
    started_at: int | None = None
    first_step_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None
    ended_why: str | None = None
    detail: str = ""
    steps: int = 0
    step_ns: int = 0
    members: list[Part] = []
    suspended_ns: int = 0
    """How long it stood still, suspended."""
    suspended_at: int | None = None

    def can(self) -> tuple[str, tuple[str, ...]]:
        """Return tier and abilities of the whole gang, empty before every part has reported them.

        Of an attempt that is over: what it could do.
        """
        parts = [part for part in self.members if part.outcome is None] or self.members
        if not parts or not all(part.tier for part in parts):
            return "", ()
        names = (name for name in parts[0].can if all(name in part.can for part in parts))
        tier = min((part.tier for part in parts), key=TIERS.index)
        return tier, tuple(names)

    def part(self, node: str) -> Part:
        """Return the node's part, made if nothing was heard of it before."""
        for part in self.members:
            if part.node == node:
                return part
        part = Part(node=node)
        self.members.append(part)
        return part


class Pledged(msgspec.Struct, kw_only=True):
    """What admission answered to a job's deadline, and what became of it. Instants are Unix ns.

    `outcome` is `open`, `kept` or `broken`; empty without a promise. `begin` to `end` is the
    promise's place in the book, on `gpus` GPUs.
    """

    answer: str
    why: str
    text: str
    due: int
    p50: int = 0
    p90: int = 0
    begin: int = 0
    end: int = 0
    gpus: int = 0
    outcome: str = ""
    cause: str = ""
    detail: str = ""
    helps: tuple[tuple[str, str, str], ...] = ()
    """Reason, key and value of what would make it."""
    note: str = ""


class Job(msgspec.Struct, kw_only=True):
    """Everything about a job but its spec, which is stored once, apart."""

    sequence: int
    row: Row
    trace: str = ""
    key: str = ""
    detail: str = ""
    problems: tuple[Problem, ...] = ()
    attempts: list[Attempt] = []
    repeated_by: list[str] = []
    original: str = ""
    cancel_asked: bool = False
    spec_whole: bool = False
    """The stored spec is the admitted one, not the one that was published."""
    pinned: str = ""
    """The pinned cell it asked for."""
    aside: bool = False
    """It waits for other cells, and no job waits for it."""
    deferred: bool = False
    """It waits for other jobs or a time, or is held: it is in no queue, and no job waits for it."""
    victims: tuple[str, ...] = ()
    """The jobs whose end it waits for."""
    released: bool = False
    """It is suspended and has given back its GPUs."""
    stood_on: dict[str, tuple[tuple[int, ...], ...]] = {}
    """By node: what the attempt had before it was last given GPUs again."""
    begins_with: int = 0
    """The workers of its spec, once it had others; 0 before."""
    changing: Changing | None = None
    asks: list[Asked] = []
    pledged: Pledged | None = None
    """What was answered to its deadline."""
    array: str = ""
    """The tasks of an array, as its spec has them."""
    array_end: str = ""
    """How an array ended, while it has."""
    snapshots: tuple[str, ...] = ()
    """The snapshots that its admitted spec names: of code, and of its environment's files."""
    hang: str = ""
    """What keeps it while it makes no mini-batches, as far as that is known."""

    def asked(self, number: int) -> Asked:
        """Return a request, made if nothing was heard of it before; the oldest make room."""
        for asked in self.asks:
            if asked.number == number:
                return asked
        asked = Asked(number=number)
        self.asks.append(asked)
        self.asks.sort(key=lambda one: one.number)
        del self.asks[:-ASKS_KEPT]
        return asked

    def attempt(self, number: int) -> Attempt:
        """Return an attempt, made if nothing was heard of it before; the oldest make room."""
        for attempt in reversed(self.attempts):
            if attempt.attempt == number:
                return attempt
        attempt = Attempt(attempt=number)
        self.attempts.append(attempt)
        self.attempts.sort(key=lambda one: one.attempt)
        del self.attempts[:-ATTEMPTS_KEPT]
        return attempt


class Heard(msgspec.Struct, kw_only=True):
    """What the agent of a node announced last, and when (Unix ns)."""

    node: str
    heard_identity: str = ""
    heard_incarnation: int = 0
    heard_at: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that happened. `kind` is the tag of the message it comes from."""

    seq: int
    at: int
    kind: str
    text: str
    job: str = ""
    vc: str = ""
    attempt: int = 0
    node: str = ""
    reason: str = ""
    owner: str = ""


class Spanned(msgspec.Struct, frozen=True, kw_only=True):
    """One finished trace span as services publish it: lower-case hex ids, Unix nanoseconds."""

    trace_id: Short
    span_id: Short
    name: Short
    service: Short
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    parent_id: Short = ""
    attributes: Annotated[
        dict[Short, Text | Integer | Number | bool | None], Meta(max_length=NAMES_MAX)
    ] = {}
