"""Where the nodes of a pool come from: what the keeper asks of Slurm, and of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from skep.pools import Allocation

Say = Callable[[str], None]


class SourceError(Exception):
    """The system that owns the machines cannot be asked, or refuses; the text is one line."""


class Source(Protocol):
    """What gives a pool its nodes. Every method may raise a SourceError."""

    noun: str
    """What one allocation is called."""
    token_minutes: float
    """For how long a token is valid: what lies between its making and the join."""

    def allocations(self) -> list[Allocation]:
        """Return the allocations that there are; those that have ended are none."""
        ...

    def owns(self, node: str) -> bool:
        """Return whether a name is that of a node of this pool."""
        ...

    def news(self) -> list[str]:
        """Return what happened without the keeper, a line each, and clear away what has ended."""
        ...

    def ask(self) -> str:
        """Ask for one allocation more, and return its number."""
        ...

    def invite(self, number: str, invitation: str) -> bool:
        """Give an allocation the token to join with; return False if it was given one before."""
        ...

    def end(self, *numbers: str) -> None:
        """Hand allocations back. What is not there any more is no trouble."""
        ...

    def wait(self, at_most_s: float) -> None:
        """Return when something may have changed, or after some time."""
        ...
