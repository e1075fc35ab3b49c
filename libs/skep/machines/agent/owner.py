"""What the parts of an agent may ask of it: its state, its facts and its calls."""

from __future__ import annotations

from typing import Protocol

from skep.machines.agent.parts import PartKey, PartState, ToldFact
from skep.machines.base import Effect
from skep.units import Instant
from skep.wire.facts import AgentFact
from skep.wire.node import NodeJoined
from skep.wire.reports import RankProgress


class Owner(Protocol):
    """The agent, as its changes and abilities see it."""

    joined: NodeJoined
    event: int
    serial: int
    host_budget: int
    parts: dict[PartKey, PartState]
    progress: dict[PartKey, dict[int, RankProgress]]

    def add(self, *effects: Effect) -> None:
        """Ask for more in this decision."""
        ...

    def record(self, fact: AgentFact) -> None:
        """Change durable state by a fact."""
        ...

    def part_of(self, token: str) -> tuple[PartKey, PartState | None]:
        """Return which part the rank is of that a token names.

        Returns:
            The job and attempt that the token names, and their part here; None: the rank is not
            known here.
        """
        ...

    def publish_part(self, part: PartState, fact: ToldFact) -> None:
        """Publish what became of a part, under the number that its fact has."""
        ...

    def raise_floor(self, settled: int) -> None:
        """Take the allocator's word for which orders are answered.

        Args:
            settled: The highest order that the allocator says is answered.
        """
        ...

    def start_rank(self, key: PartKey, token: str) -> None:
        """Have a rank executed, as part of the gang or to join it.

        Args:
            key: The job and the number of its attempt.
            token: The process of the rank.
        """
        ...

    def stop_part(self, key: PartKey, now: Instant) -> None:
        """End a part that cannot go on."""
        ...
