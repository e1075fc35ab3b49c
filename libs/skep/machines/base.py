"""What every service's behaviour looks like: a machine that decides, and effects it asks for.

`decide` is the only way in, `apply` the only thing that changes durable state, `wake_at` the one
timer. A machine changes durable state only by recording facts, so folding `apply` over the facts
rebuilds it: start and crash recovery are one path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from skep.units import Instant


class Record(msgspec.Struct, frozen=True):
    """Make `fact` durable before anything else this decision asks for leaves the process."""

    fact: Any


class Send(msgspec.Struct, frozen=True):
    """Publish `message` on `subject`, at most once, after the facts are durable."""

    subject: str
    message: Any
    headers: Mapping[str, str] = {}


class Call(msgspec.Struct, frozen=True):
    """Have an adapter carry out `command`; its answer comes back as an event."""

    command: Any


Effect = Record | Send | Call


class Restarted(msgspec.Struct, frozen=True):
    """The first event after every start: the facts are replayed and the epoch is won."""

    epoch: int


class Tick(msgspec.Struct, frozen=True):
    """The instant the machine asked for in `wake_at` has come."""


class Machine(Protocol):
    """A service's behaviour as a pure function of events and time."""

    def decide(self, event: Any, now: Instant) -> list[Effect]:
        """Return what follows from `event`; change durable state only through recorded facts."""
        ...

    def apply(self, fact: Any) -> None:
        """Take over one fact, just recorded or replayed. Contains no decisions."""
        ...

    def wake_at(self) -> Instant | None:
        """Return when the machine next wants a Tick, or None."""
        ...

    def check(self) -> None:
        """Assert what holds between two events."""
        ...
