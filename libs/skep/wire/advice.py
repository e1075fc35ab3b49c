"""What the advisor would do, as core messages that expire. No service has to follow it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skep.wire.bounds import (
    LISTED_MAX,
    Attempt,
    Bytes,
    Count,
    JobName,
    Length,
    Milli,
    Moment,
    Short,
    Text,
    World,
)
from skep.wire.message import Message
from skep.wire.reasons import Reason

ADVISED_MAX = 512
"""Jobs one advice orders: more than a scheduling pass can start before the next advice comes."""


class JobAdvice(Message, frozen=True):
    """One queued job: predicted remaining run time (None if unknown) and what it rests on."""

    job: JobName
    why: Reason
    remaining: Length | None = None


class QueueAdvice(Message, frozen=True, tag="queue-advice"):
    """The order in which queued jobs of equal priority had better start.

    Holds the first ADVISED_MAX queued jobs. Not to be followed after `expires_at`.
    """

    at: Moment
    expires_at: Moment
    jobs: Annotated[tuple[JobAdvice, ...], Meta(max_length=LISTED_MAX)]


class JobPace(Message, frozen=True):
    """How an attempt goes: mini-batches done, thousandths of one per second, and what is left.

    `utilisation` is thousandths of its GPUs' time, `memory` bytes of its largest rank, `remaining`
    None if it is unknown. `mean_milli` and `spread_milli`: the mean and the standard deviation of
    `samples` windows in which it went like that (0: too few for that).
    """

    job: JobName
    attempt: Attempt
    steps: Count
    rate_milli: Milli
    utilisation: Count = 0
    memory: Bytes = 0
    remaining: Length | None = None
    mean_milli: Milli = 0
    spread_milli: Milli = 0
    samples: Count = 0


class ScalePoint(Message, frozen=True):
    """What a mini-batch takes on so many GPUs of so many nodes."""

    gpus: World
    nodes: World
    step_ns: Length


class FamilyScale(Message, frozen=True):
    """How the jobs of a family go on one type of GPU, as far as it was measured."""

    family: Text
    gpu_type: Short
    points: Annotated[tuple[ScalePoint, ...], Meta(max_length=LISTED_MAX)]


class Outlook(Message, frozen=True, tag="outlook"):
    """What is new of how jobs go and families scale, on `skep.v1.advice.outlook`.

    Holds until something else is said; all of it is told again now and then.
    """

    at: Moment
    jobs: Annotated[tuple[JobPace, ...], Meta(max_length=LISTED_MAX)] = ()
    families: Annotated[tuple[FamilyScale, ...], Meta(max_length=LISTED_MAX)] = ()


Advice = QueueAdvice | Outlook
