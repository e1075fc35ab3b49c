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
