"""What a run needs of whatever it runs under, and a run under nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from skep_job.observe.reporter import complain
from skep_job.state.random_state import State

if TYPE_CHECKING:
    from skep_job.cooperate.run import Run


class Under(Protocol):
    """What is below a run. Nothing here raises but for what a signal's handler raised."""

    active: bool
    """Whether the run may have to be continued elsewhere, so that its place must be known."""

    def start(self, run: Run) -> dict[str, Any] | None:
        """Load what an earlier process left; return its place with `chance`, or None."""
        ...

    def arrive(self, chance: State) -> None:
        """Set the random generators to what they were at the place."""
        ...

    def count(self) -> None:
        """Note that a mini-batch is done."""
        ...

    def boundary(self) -> None:
        """Do what is due: the training is between two mini-batches."""
        ...

    def report(self, values: dict[str, Any]) -> None:
        """Tell numbers about the training."""
        ...

    def sums(self) -> dict[str, float]:
        """Return those of the told numbers that count in sum, so far."""
        ...

    def go_on_from(self, sums: dict[str, float]) -> None:
        """Count on from what another rank has counted."""
        ...

    def shield(self, on: bool) -> None:
        """Do nothing at boundaries until this is taken back."""
        ...

    def notice(self, text: str) -> None:
        """Tell the reader of the job's log."""
        ...


class Alone:
    """A run outside Skep: loops are loops."""

    active = False

    def start(self, run: Run) -> dict[str, Any] | None:
        return None

    def arrive(self, chance: State) -> None: ...

    def count(self) -> None: ...

    def boundary(self) -> None: ...

    def report(self, values: dict[str, Any]) -> None: ...

    def sums(self) -> dict[str, float]:
        return {}

    def go_on_from(self, sums: dict[str, float]) -> None: ...

    def shield(self, on: bool) -> None: ...

    def notice(self, text: str) -> None:
        complain(text)
