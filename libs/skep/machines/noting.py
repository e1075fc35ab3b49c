"""What of a service's events has to be noted so that its decisions can be made again."""

from __future__ import annotations

from typing import Any

from skep.machines.base import Restarted, Tick
from skep.units import Instant
from skep.wire.advice import Outlook, QueueAdvice
from skep.wire.inputs import InputNotes
from skep.wire.learned import LearnedAdvice, SightWanted


def note(
    notes: InputNotes, event: Any, stream: str, sequence: int, now: Instant, *, led: bool
) -> None:
    """Note an event, so that the decision on it can be made again.

    Args:
        notes: Changed.
        event: What was decided on.
        stream: The stream that the event came from; empty for a core message.
        sequence: Its sequence there.
        now: The time of the decision.
        led: Whether facts followed.
    """
    match event:
        case Tick():
            notes.tick(now, led=led)
        case Restarted():
            notes.restarted(now)
        case _ if stream:
            notes.streamed(stream, sequence, now, led=led)
        case QueueAdvice() | Outlook() | LearnedAdvice() | SightWanted():
            notes.heard(event, now)
        case _ if led:
            notes.heard(event, now)
        case _:
            pass  # A heartbeat as any other.
