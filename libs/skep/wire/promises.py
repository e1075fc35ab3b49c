"""Deadlines as promises: what admission answers to one, and what becomes of it.

    PromiseJudged                                   no promise: at risk, late, refused
    PromiseMade --PromiseMoved*--> PromiseKept | PromiseBroken

A promise is a place in the book of its virtual cluster: so many GPUs of its own cells, from `begin`
to `end`. Where nodes of the cells are counted, they are numbered by type of GPU, from the largest
part of a node that the VC owns down; which hardware a number is, the allocator decides.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from skep.units import Duration, Instant
from skep.wire.bounds import Count, JobName, Length, Milli, Moment, Short, Text, Token
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX

NAMED_MAX = 3
"""Promises that are named as being in the way, and changes that are offered: more is not read."""


class Answer(StrEnum):
    """What admission says to a deadline."""

    ACCEPTED = "accepted"
    """A promise: nine times in ten the job is on time."""
    AT_RISK = "at-risk"
    """No promise: it is as likely as not that the job is on time."""
    LATE = "late"
    REFUSED = "refused"
    """There can be no promise, whatever else runs."""


class Lasts(Message, frozen=True):
    """How long a job runs in all, in nanoseconds: one, five and nine times in ten it is less."""

    p10: Length
    p50: Length
    p90: Length


class Help(Message, frozen=True):
    """A change with which there would be a promise: what, and to which value (`gpus: 8`)."""

    why: Reason
    key: Short
    value: Short


class Judged(Message, frozen=True):
    """An answer with what it rests on.

    `p50` and `p90` are when the job ends at the earliest, five and nine times in ten; 0: unknown.
    `alone` is how long it runs at its best placement, five times in ten. `behind` are promises
    that are in the way, `helps` what would make it, the cheapest first.
    """

    answer: Answer
    why: Reason
    due: Moment
    text: Text = ""
    p50: Moment = Instant(0)
    p90: Moment = Instant(0)
    alone: Length = Duration(0)
    behind: Annotated[tuple[JobName, ...], Meta(max_length=NAMED_MAX)] = ()
    helps: Annotated[tuple[Help, ...], Meta(max_length=NAMED_MAX)] = ()
    note: Text = ""
    """What else its owner has to know, such as that its class counts as another one."""


class Place(Message, frozen=True):
    """Where a promise stands in the book: `nodes` are pairs of a number and GPUs on it."""

    gpu_type: Short
    gpus: Count
    """Of one worker, or of what of the gang is on one node."""
    begin: Moment
    end: Moment
    nodes: Annotated[tuple[tuple[int, int], ...], Meta(max_length=GANG_NODES_MAX)]
    pin: Short = ""
    chain: Short = ""
    """Its chain if that is not the first one, by name, with GPUs of this type."""


class PromiseJudged(Message, frozen=True, tag="promise-judged"):
    """A deadline has no promise, or none any more, and why."""

    job: JobName
    vc: Token
    judged: Judged
    at: Moment


class PromiseMade(Message, frozen=True, tag="promise-made"):
    """A job is to have ended by `judged.due`; all that this rests on.

    `declared`: its length is what its spec says (else it was predicted), and `spread` are the
    thousandths of it that were taken as its P10, P50 and P90.
    """

    job: JobName
    vc: Token
    judged: Judged
    place: Place
    lasts: Lasts
    at: Moment
    declared: Length = Duration(0)
    spread: Annotated[tuple[Milli, ...], Meta(max_length=3)] = ()


class PromiseMoved(Message, frozen=True, tag="promise-moved"):
    """A promise was judged again, holds, and has another place in the book.

    `lasts` is how long the job is expected to run in all by then, if that was measured.
    """

    job: JobName
    place: Place
    why: Reason
    at: Moment
    lasts: Lasts | None = None


class PromiseBroken(Message, frozen=True, tag="promise-broken"):
    """A job was not on time, or can no longer be: `why` is the cause."""

    job: JobName
    vc: Token
    due: Moment
    why: Reason
    at: Moment
    detail: Text = ""


class PromiseKept(Message, frozen=True, tag="promise-kept"):
    """A job ended by the time that was promised."""

    job: JobName
    vc: Token
    due: Moment
    at: Moment


class JobSeen(Message, frozen=True, tag="job-seen"):
    """Admission saw a job of a VC that keeps promises begin to run (`runs`), or leave its GPUs.

    `lost`: what it has done is lost. `why` is what took its GPUs.
    """

    job: JobName
    runs: bool
    at: Moment
    lost: bool = False
    why: Reason | None = None


class LengthSeen(Message, frozen=True, tag="length-seen"):
    """A job ended well after `milli` thousandths of the length that its spec says."""

    job: JobName
    vc: Token
    milli: Milli


class NodeAway(Message, frozen=True, tag="node-away"):
    """A node is lost, or (`away` false) back: new promises go without it.

    `drained`: so it is with its being drained, which is apart from that.
    """

    node: Short
    away: bool
    drained: bool = False


PromiseFact = (
    PromiseJudged
    | PromiseMade
    | PromiseMoved
    | PromiseBroken
    | PromiseKept
    | JobSeen
    | LengthSeen
    | NodeAway
)
