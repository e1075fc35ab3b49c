"""What every service's behaviour looks like: a machine that decides, and effects it asks for.

`decide` is the only way in, `apply` the only thing that changes durable state, `wake_at` the one
timer. A machine changes durable state only by recording facts, so folding `apply` over the facts
rebuilds it: start and crash recovery are one path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

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


EventT_contra = TypeVar("EventT_contra", contravariant=True)
FactT_contra = TypeVar("FactT_contra", contravariant=True)


class Machine(Protocol[EventT_contra, FactT_contra]):
    """A service's behaviour as a pure function of events and time.

    `EventT_contra` is the closed union of what the machine takes from outside: every class that
    its subjects carry is in it, and `decide` matches all of them, with no case for the rest, so
    that a type checker finds the one that is missing. `FactT_contra` is what it records and is
    rebuilt from.
    """

    def decide(self, event: EventT_contra | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return what follows from `event`; change durable state only through recorded facts."""
        ...

    def apply(self, fact: FactT_contra) -> None:
        """Take over one fact, just recorded or replayed. Contains no decisions."""
        ...

    def wake_at(self) -> Instant | None:
        """Return when the machine next wants a Tick, or None."""
        ...

    def check(self) -> None:
        """Assert what holds between two events."""
        ...


AnyMachine = Machine[Any, Any]
"""A machine where several kinds are treated alike, as in the simulator."""
