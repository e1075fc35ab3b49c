"""What agents say about running jobs, as core messages: losing one costs nothing.

Counts are cumulative, so the next report makes up for a lost one; rates are computed by the
introspector.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import (
    COPIES_MAX,
    DEVICES_MAX,
    LISTED_MAX,
    RANKS_MAX,
    Attempt,
    Bytes,
    Count,
    Device,
    Incarnation,
    JobName,
    Moment,
    Nanoseconds,
    Rank,
    Short,
    Text,
    Token,
    Values,
    World,
)
from skep.wire.held_up import OwnTime
from skep.wire.message import Message
from skep.wire.profile import Fingerprint, Timing
from skep.wire.standing import Standing

HUNG_RANKS_MAX = 64
"""Ranks of a part that hangs: heartbeats stay small."""


class DeviceTrouble(Message, frozen=True):
    """What a device says is wrong with it, in words: it changes with every further event."""

    index: Device
    text: Text


class Building(Message, frozen=True, tag="environment-building"):
    """A node makes the environment of an attempt ready since `since`; no rank of it has begun.

    `text` says how far a pull of its image is; empty: it builds.
    """

    job: JobName
    attempt: Attempt
    since: Moment
    text: Short = ""


class IdlePart(Message, frozen=True):
    """A part of an attempt has made no mini-batch, and not used its devices, for so long.

    `asks`: its processes say so themselves, by their own measure, and want to be suspended.
    """

    job: JobName
    attempt: Attempt
    idle_ns: Nanoseconds
    asks: bool = False


class RankStands(Message, frozen=True):
    """Where a rank stands that makes no mini-batches; `stands` is None if it does not say."""

    rank: Rank
    stands: Standing | None = None


class HungPart(Message, frozen=True):
    """A part of an attempt that made mini-batches has made none for so long.

    `ranks` are the first of those that made some, and where each stands.
    """

    job: JobName
    attempt: Attempt
    silent_ns: Nanoseconds
    ranks: Annotated[tuple[RankStands, ...], Meta(max_length=HUNG_RANKS_MAX)] = ()


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The agent lives; `incarnation` is that of its latest join, `trouble` its devices' state.

    `epoch` is the highest epoch of the allocator whose orders it took; 0: of none. `building` are
    the environments that it builds now. `idle` are parts of jobs whose VC wants to know, `hung`
    those whose spec wants it. `copies` are jobs without a part here of which the node's memory has
    copies of their state.
    """

    node: Token
    identity: Short
    at: Moment
    incarnation: Incarnation = 0
    trouble: Annotated[tuple[DeviceTrouble, ...], Meta(max_length=DEVICES_MAX)] = ()
    epoch: Count = 0
    building: Annotated[tuple[Building, ...], Meta(max_length=LISTED_MAX)] = ()
    idle: Annotated[tuple[IdlePart, ...], Meta(max_length=LISTED_MAX)] = ()
    hung: Annotated[tuple[HungPart, ...], Meta(max_length=LISTED_MAX)] = ()
    copies: Annotated[tuple[JobName, ...], Meta(max_length=COPIES_MAX)] = ()


class RankProgress(Message, frozen=True):
    """One rank's mini-batches so far. Times are the node's wall clock, ns.

    `step_ns` is the median length of the latest mini-batches, `last_step_at` when the latest one
    ended (0 if none), `utilisation` thousandths of the rank's devices in use, `memory` bytes.
    `values` are numbers about the training, such as its loss, as of mini-batch `values_step`.
    `next_at`: when the next mini-batch ends, where that is known (`JobProgress.lasts`); 0: it makes
    none. `fingerprint` and `timing` are told every few seconds, of one rank of the gang.
    `stands` is told while it makes no mini-batches, `own` every few seconds by ranks of gangs.
    """

    rank: Rank
    steps: Count
    step_ns: Nanoseconds = 0
    last_step_at: Moment = Instant(0)
    utilisation: Count = 0
    memory: Bytes = 0
    values: Values = {}
    values_step: Count = 0
    next_at: Moment = Instant(0)
    fingerprint: Fingerprint | None = None
    timing: Timing | None = None
    stands: Standing | None = None
    own: OwnTime | None = None


class JobProgress(Message, frozen=True):
    """The ranks of one attempt on this node that have reported.

    `lasts`: what is said holds until the next report, as if it came again every second: each rank
    goes on with a mini-batch every `step_ns` from `next_at` on. Only a simulation knows that.
    """

    job: JobName
    attempt: Attempt
    world: World
    ranks: Annotated[tuple[RankProgress, ...], Meta(max_length=RANKS_MAX)]
    trace: Short = ""
    lasts: bool = False


class NodeReport(Message, frozen=True, tag="node-report"):
    """Everything one node saw of its jobs in a second."""

    node: Token
    at: Moment
    jobs: Annotated[tuple[JobProgress, ...], Meta(max_length=LISTED_MAX)]
