"""What an elastic gang is made of, what it asks of the rest of a run, and what it tells."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from skep_job.elastic.agreement import Plan, Round

if TYPE_CHECKING:
    from skep_job.state.snapshot import Snapshot

PATIENCE_S = 30.0
"""How long a process that could train waits for others during a change. Forming a group takes
milliseconds with gloo and about a second with NCCL; members reach a step within one of another."""

Message = dict[str, object]


class Seat(NamedTuple):
    """This process's place: of which gang, and where in it."""

    generation: int
    rank: int
    world: int


class Pause(NamedTuple):
    """What one change cost this process, and in which parts; nanoseconds."""

    before: Seat
    after: Seat
    step: int
    total_ns: int
    parts_ns: dict[str, int]
    bytes: int  # of state that it sent or received


class Orders(Protocol):
    """What of `link.orders.Control` is used."""

    withdrawn: Callable[[], None]

    def on(self, kind: str, handler: Callable[[Message], None]) -> None: ...
    def at_once(self, kind: str, handler: Callable[[Message], object]) -> None: ...
    def say(self, kind: str, **fields: object) -> None: ...
    def wait(self, *kinds: str) -> Message: ...
    def standing(self) -> contextlib.AbstractContextManager[None]: ...


class State(Protocol):
    """What has to be the same in all members."""

    @property
    def tracked(self) -> dict[str, Any]:
        """What the script tracks, by name."""
        ...

    def place(self) -> dict[str, Any]:
        """Return where the training is."""
        ...

    def go_to(self, place: dict[str, Any]) -> None:
        """Begin where another member is: what is tracked is loaded already."""
        ...

    def warm_up(self) -> None:
        """Do what a first mini-batch takes long for."""
        ...


class Regrouping(Protocol):
    """How the parts of the state go over to another gang, where not every rank has all of it."""

    splits: bool
    """Whether models are split over the ranks."""
    gathers: bool
    """Whether the ranks gather their state together: all have to take part, or none."""

    def offer(self, round_: Round, plan: Plan, rank: int, state: Snapshot) -> None:
        """Keep, and offer to others, what this rank of the gang that was has."""
        ...

    def take(self, round_: Round, seat: Seat, clock: Clock) -> tuple[dict[str, Any] | None, int]:
        """Take this rank's part in the new gang; return a newcomer's place, and bytes."""
        ...

    def back(self, seat: Seat) -> None:
        """Be what this rank was in the gang that was, which is formed again."""
        ...

    def close(self) -> None:
        """Drop what was."""
        ...

    def undo(self) -> None:
        """Drop all that came to a newcomer, which did not become a member."""
        ...


class Wrapped(Protocol):
    """A model that must let go of a process group before it is destroyed."""

    def release(self) -> None: ...
    def rebuild(self, seat: Seat, *, first: bool) -> None: ...


class Rules(NamedTuple):
    """What the script allows."""

    sizes: tuple[int, int]  # smallest and largest world
    global_batch: int
    backend: str = ""
    patience_s: float = PATIENCE_S
    seed: int = 0
    offered: tuple[int, ...] = ()
    """The sizes among these that keep the global batch; none: all do."""

    def objection(self, plan: Plan) -> str:
        """Return why there may be no such gang.

        Returns:
            Empty if there may be one.
        """
        low, high = self.sizes
        if not low <= plan.world <= high:
            return f"world is {plan.world}; this job runs with {low} to {high} ranks"
        if plan.world > self.global_batch:
            return f"world is {plan.world}; the global batch has {self.global_batch} samples"
        if self.offered and plan.world not in self.offered:
            known = ", ".join(map(str, self.offered))
            return f"world is {plan.world}; this job keeps its global batch with {known} ranks"
        return ""


def rules(
    sizes: tuple[int, int],
    global_batch: int,
    seed: int = 0,
    backend: str = "",
    patience_s: float = PATIENCE_S,
) -> Rules:
    """Return what a script allows.

    Args:
        sizes: The smallest and the largest number of ranks.
        global_batch: The samples of a mini-batch of all ranks together.
        seed: It decides the order of the samples.
        backend: The backend of the process group; empty: torch's choice for the device.
        patience_s: How long a process waits for others during a change (seconds).

    Raises:
        ValueError: The sizes or the numbers cannot be meant.
    """
    low, high = sizes
    if not 1 <= low <= high:
        reason = f"elastic is {sizes}, expected the smallest and the largest number of ranks"
        raise ValueError(reason)
    if global_batch < low or patience_s <= 0:
        reason = (
            f"global_batch is {global_batch} and patience_s {patience_s}; expected the samples of "
            "a mini-batch of all ranks together, and seconds above 0"
        )
        raise ValueError(reason)
    return Rules((low, high), global_batch, backend, patience_s, seed)


class Clock:
    """Measures the parts of a pause."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic_ns()
        self.parts: dict[str, int] = {}

    def part(self, name: str) -> None:
        """Note that the part `name` ends here."""
        now = time.monotonic_ns()
        self.parts[name] = now - self._last
        self._last = now

    def total(self) -> int:
        """Return the time since the beginning (ns)."""
        return time.monotonic_ns() - self._begin
