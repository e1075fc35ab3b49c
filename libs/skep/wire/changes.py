"""How a running job is changed: what tenants ask for, and the facts that tell how it went.

A request is published to `skep.v1.ask.<vc>` (by a person: `skep.v1.ask.<vc>.<person>`) as JSON:
`{"ask": "suspend", "job": "j17"}`. Admission says whether there is such a job, and whether the
asker may; the allocator carries it out, and says in one AskOver what came of it. A change of a
running attempt is told to every node that has a part of it, in one round or more, and ends with
exactly one JobChanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.ids import job_sequence
from skep.units import Instant
from skep.wire.bounds import UNDECODABLE, Fraction, JobName, Words, World, convert_unbounded
from skep.wire.commands import Change
from skep.wire.member import Member
from skep.wire.message import Message
from skep.wire.node import Manner, Tier
from skep.wire.parse import bound_problems, nearest, shape_problems
from skep.wire.reasons import Reason
from skep.wire.spec import PRIORITY_MAX, SERVERS_MAX, WORKERS_MAX, Problem

ASK_BYTES_MAX = 4096
"""A request names a job and little more."""


class _Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="ask"):
    """What a tenant asks for. `parse_ask` refuses unknown keys; in facts they are skipped."""

    job: JobName


class AskSuspend(_Ask, frozen=True, tag="suspend"):
    """Stop between two mini-batches, and wait. `release`: give the GPUs to others meanwhile."""

    release: bool = False


class AskResume(_Ask, frozen=True, tag="resume"):
    """Go on where it was suspended."""


class AskCheckpoint(_Ask, frozen=True, tag="checkpoint"):
    """Store the job's state durably, and go on."""


class AskMigrate(_Ask, frozen=True, tag="migrate"):
    """Go on elsewhere: on the nodes `to`, separated by commas, or (empty) on any other nodes.

    A node that it is on already may be among those named, for other GPUs there.
    """

    to: Words = ""


class AskResize(_Ask, frozen=True, tag="resize"):
    """Have so many workers from now on, within what the job's spec calls `elastic`.

    Or so many parameter servers, within its `ps`, or both. What is not given stays as it is.
    """

    workers: World | None = None
    servers: World | None = None


class AskPack(_Ask, frozen=True, tag="pack"):
    """Run on GPUs that the running job `beside` holds, beside it.

    `share` is the part of each device's memory it may use, above 0 and below 1; 0: an even one.
    """

    beside: JobName
    share: Fraction = 0.0


class AskUnpack(_Ask, frozen=True, tag="unpack"):
    """Leave the GPUs that it shares with others, and wait for some of its own."""


class AskPriority(_Ask, frozen=True, tag="priority"):
    """Wait with another priority: only a job that waits for its GPUs can be given one."""

    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]


class AskHold(_Ask, frozen=True, tag="hold"):
    """Do not start before `release`: only a job that has no GPUs can be held."""


class AskRelease(_Ask, frozen=True, tag="release"):
    """May start from now on, as far as it was held."""


Ask = (
    AskSuspend
    | AskResume
    | AskCheckpoint
    | AskMigrate
    | AskResize
    | AskPack
    | AskUnpack
    | AskPriority
    | AskHold
    | AskRelease
)
"""What the allocator carries out."""


class AskRetry(_Ask, frozen=True, tag="retry"):
    """Begin the tasks of an array anew that failed. Admission does it, and passes nothing on."""


Wish = Ask | AskRetry
"""What tenants may ask for."""

ASKS: dict[str, type[Wish]] = {
    "suspend": AskSuspend,
    "resume": AskResume,
    "checkpoint": AskCheckpoint,
    "migrate": AskMigrate,
    "resize": AskResize,
    "pack": AskPack,
    "unpack": AskUnpack,
    "priority": AskPriority,
    "hold": AskHold,
    "release": AskRelease,
    "retry": AskRetry,
}


def name_of(ask: Wish) -> str:
    """Return what a request is called: `suspend`, `resume`, …."""
    name = ask.__struct_config__.tag
    assert isinstance(name, str), ask
    return name


def parse_ask(raw: bytes) -> Wish | list[Problem]:
    """Return the request in `raw`, or everything that is wrong with it."""
    if len(raw) > ASK_BYTES_MAX:
        text = f"a request has at most {ASK_BYTES_MAX} bytes"
        return [Problem(path="$", reason=Reason.TOO_LARGE, text=text)]
    try:
        tree = msgspec.json.decode(raw)
    except UNDECODABLE as error:
        return [
            Problem(
                path="$",
                reason=Reason.NOT_JSON,
                text=f"not JSON: {error}",
                suggestion='publish {"ask": "suspend", "job": "j17"}',
            )
        ]
    if not isinstance(tree, dict):
        return [
            Problem(
                path="$",
                reason=Reason.WRONG_TYPE,
                text="a request is a JSON object",
                suggestion='publish {"ask": "suspend", "job": "j17"}',
            )
        ]
    return _parsed(tree)


def _parsed(tree: dict[str, Any]) -> Wish | list[Problem]:
    named = tree.get("ask")
    kind = ASKS.get(named) if isinstance(named, str) else None
    if kind is None:
        reason = Reason.BAD_VALUE if "ask" in tree else Reason.MISSING_KEY
        text = f"`ask` must be one of {', '.join(ASKS)}"
        return [
            Problem(
                path="$.ask", reason=reason, text=text, suggestion=nearest(str(named), list(ASKS))
            )
        ]
    rest = {key: value for key, value in tree.items() if key != "ask"}
    problems = list(shape_problems(kind, rest, "$"))
    if problems:
        return problems
    if job_sequence(tree["job"]) is None:
        return [
            Problem(
                path="$.job",
                reason=Reason.BAD_VALUE,
                text="`job` must be a job id",
                suggestion="such as j17",
            )
        ]
    made: Wish = convert_unbounded(tree, kind)
    if isinstance(made, AskResize):
        problems = list(_size_problems(made))
    if isinstance(made, AskPack):
        problems = _pack_problems(made)
    return problems or bound_problems(kind, tree, "$") or made


def _size_problems(ask: AskResize) -> Iterator[Problem]:
    if ask.workers is None and ask.servers is None:
        yield Problem(
            path="$.workers", reason=Reason.MISSING_KEY, text="`workers` is required, or `servers`"
        )
    for name, most in (("workers", WORKERS_MAX), ("servers", SERVERS_MAX)):
        count = getattr(ask, name)
        if count is not None and not 1 <= count <= most:
            yield Problem(
                path=f"$.{name}", reason=Reason.BAD_VALUE, text=f"`{name}` must be 1 to {most}"
            )


def _pack_problems(ask: AskPack) -> list[Problem]:
    problems = []
    if job_sequence(ask.beside) is None or ask.beside == ask.job:
        problems.append(
            Problem(
                path="$.beside",
                reason=Reason.BAD_VALUE,
                text="`beside` must be the id of another job",
                suggestion="such as j12",
            )
        )
    if not 0.0 <= ask.share < 1.0:
        problems.append(
            Problem(
                path="$.share",
                reason=Reason.BAD_VALUE,
                text="`share` must be above 0 and below 1",
                suggestion="such as 0.5; without it all share alike",
            )
        )
    return problems


# --- admission ---------------------------------------------------------------------------------


class ChangeAsked(Message, frozen=True, tag="change-asked"):
    """A request about an unfinished job was accepted; `number` is its sequence in SUBMIT.

    `by` is the person that asks; empty: the VC as a whole.
    """

    number: int
    ask: Ask
    at: Instant
    by: str = ""


# --- allocator ---------------------------------------------------------------------------------


class Goal(StrEnum):
    """What a change is to come to."""

    SUSPEND = "suspend"
    RESUME = "resume"
    CHECKPOINT = "checkpoint"
    MIGRATE = "migrate"
    RESIZE = "resize"
    SHARE = "share"
    WARN = "warn"


class Result(StrEnum):
    """What came of a request or a change."""

    DONE = "done"
    UNDONE = "undone"
    """It was tried, and everything is as before."""
    REFUSED = "refused"
    OVERTAKEN = "overtaken"
    """A later request, or the end of the attempt, came first."""


class ChangeMessage(Message, frozen=True):
    """A fact of the allocator about changes."""


class AskTaken(ChangeMessage, frozen=True, tag="ask-taken"):
    """A request waits for its turn: it is the latest, and whatever waited before is overtaken."""

    job: str
    number: int
    ask: Ask


class AskOver(ChangeMessage, frozen=True, tag="ask-over"):
    """What came of a request; `number` is that of its ChangeAsked."""

    job: str
    number: int
    ask: Ask
    result: Result
    why: Reason | None = None
    detail: str = ""
    at: Instant = Instant(0)


class JobPrioritised(ChangeMessage, frozen=True, tag="job-prioritised"):
    """A job waits with another priority from here on, by a request of this number."""

    job: str
    priority: int
    number: int
    at: Instant


class MemberLearned(ChangeMessage, frozen=True, tag="member-learned"):
    """What Skep can do with one node's part of an attempt, and where that goes on from.

    `sizes` are the numbers of workers that the job can have; none: each that its spec allows.
    """

    job: str
    attempt: int
    node: str
    tier: Tier
    can: tuple[str, ...]
    resumed: str = ""
    sizes: tuple[int, ...] = ()


class JobChanging(ChangeMessage, frozen=True, tag="job-changing"):
    """A change of an attempt begins, or goes on with another round: `nodes` are told `change`.

    `order` numbers the command. `undoing`: this round puts back what others could not do too.
    `ask` is the request that it follows from, 0 if Skep itself wants it. `owed`: for how long the
    job should have run longer by now, in the eyes of the policy that suspends it (nanoseconds).
    """

    job: str
    attempt: int
    order: int
    goal: Goal
    change: Change
    nodes: tuple[str, ...]
    why: Reason
    at: Instant
    round: int = 1
    undoing: bool = False
    ask: int = 0
    detail: str = ""
    trace: str = ""
    owed: int = 0


class MemberAnswered(ChangeMessage, frozen=True, tag="member-answered"):
    """One node's part took the change of this order, or (unchanged) did not: see MemberChanged."""

    job: str
    attempt: int
    node: str
    order: int
    manner: Manner
    step: int = 0
    moved: int = 0
    residue: int = -1
    pause_ns: int = 0
    detail: str = ""
    released: bool = False


class JobChanged(ChangeMessage, frozen=True, tag="job-changed"):
    """A change is over. Done: the goal is reached by every part. Else nothing has changed.

    `released`: the attempt, suspended, holds no GPUs any more. `step` is the mini-batch at which
    it stands, `pause_ns` the longest that training stood still at a node.
    """

    job: str
    attempt: int
    goal: Goal
    result: Result
    why: Reason
    at: Instant
    released: bool = False
    step: int = 0
    pause_ns: int = 0
    detail: str = ""
    trace: str = ""


class GpusRegained(ChangeMessage, frozen=True, tag="gpus-regained"):
    """A suspended attempt that had given its GPUs back has GPUs again, opportunistically.

    They are the very same; or `members` tells which GPUs of the same nodes its parts have from here
    on, as its ranks can go on with others.
    """

    job: str
    attempt: int
    chain: str
    at: Instant
    members: tuple[Member, ...] = ()


ChangeFact = (
    AskTaken
    | AskOver
    | JobPrioritised
    | MemberLearned
    | JobChanging
    | MemberAnswered
    | JobChanged
    | GpusRegained
)
