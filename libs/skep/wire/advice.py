"""What the advisor would do, as core messages that expire. Nobody has to follow it."""

from __future__ import annotations

from skep.units import Duration, Instant
from skep.wire.message import Message
from skep.wire.reasons import Reason

ADVISED_MAX = 512
"""Jobs one advice orders: more than a scheduling pass can start before the next advice comes."""


class JobAdvice(Message, frozen=True):
    """One queued job: predicted remaining run time (None if unknown) and what it rests on."""

    job: str
    why: Reason
    remaining: Duration | None = None


class QueueAdvice(Message, frozen=True, tag="queue-advice"):
    """The order in which queued jobs of equal priority had better start.

    Holds the first ADVISED_MAX queued jobs. Not to be followed after `expires_at`.
    """

    at: Instant
    expires_at: Instant
    jobs: tuple[JobAdvice, ...]


class JobPace(Message, frozen=True):
    """How an attempt goes: mini-batches done, thousandths of one per second, and what is left.

    `utilisation` is thousandths of its GPUs' time, `memory` bytes of its largest rank, `remaining`
    None if nobody knows. `mean_milli` and `spread_milli`: the mean and the standard deviation of
    `samples` windows in which it went like that (0: too few for that).
    """

    job: str
    attempt: int
    steps: int
    rate_milli: int
    utilisation: int = 0
    memory: int = 0
    remaining: Duration | None = None
    mean_milli: int = 0
    spread_milli: int = 0
    samples: int = 0


class ScalePoint(Message, frozen=True):
    """What a mini-batch takes on so many GPUs of so many nodes."""

    gpus: int
    nodes: int
    step_ns: Duration


class FamilyScale(Message, frozen=True):
    """How the jobs of a family go on one type of GPU, as far as it was measured."""

    family: str
    gpu_type: str
    points: tuple[ScalePoint, ...]


class Outlook(Message, frozen=True, tag="outlook"):
    """What is new of how jobs go and families scale, on `skep.v1.advice.outlook`.

    Holds until something else is said; all of it is told again now and then.
    """

    at: Instant
    jobs: tuple[JobPace, ...] = ()
    families: tuple[FamilyScale, ...] = ()


Advice = QueueAdvice | Outlook
