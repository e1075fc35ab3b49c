"""Detect endless decisions at one simulated instant, and name the jobs in the error.

No time passes at one instant, so decisions that undo each other would never end there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from skep.machines.base import Effect, Record
from skep.units import NS_PER_SECOND, Instant
from skep.wire.changes import GpusRegained, JobChanging
from skep.wire.facts import CellsReserved, JobBound
from skep.wire.moves import SuccessorBound
from skep_lab.simulator.ledger import BEGIN

UNWATCHED = 1000
"""The decisions after one event that are not examined: few events have as many."""
CHANGES_MAX = 100
"""How often one job may get GPUs, or begin to change, after that: two or three times for one event
are many, and a gang agrees on its last mini-batch in a few rounds."""
EMPTY_MAX = 1000
"""How many times in a row the allocator may ask to continue at once, and then decide nothing."""
NAMES_MAX = 8
"""The most jobs that the error names."""


class CircleError(RuntimeError):
    """Decisions at one instant that would never end."""


class Circles:
    """The decisions after one event, while no time passes."""

    def __init__(self) -> None:
        """Begin without an event."""
        self._decisions = self._empty = 0
        self._changed = Counter[str]()

    def begin(self) -> None:
        """Begin with the next event."""
        if self._decisions > UNWATCHED:
            self._changed.clear()
        self._decisions = self._empty = 0

    def note(self, effects: Iterable[Effect], now: Instant, *, asked: bool) -> None:
        """Examine a decision.

        Args:
            effects: The decision.
            now: The present instant.
            asked: Whether the allocator had asked for it.

        Raises:
            CircleError: There is no end of decisions.
        """
        self._decisions += 1
        if self._decisions <= UNWATCHED:
            return
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        self._empty = self._empty + 1 if asked and not facts else 0
        if self._empty > EMPTY_MAX:
            raise CircleError(
                _where(now) + "nothing: the allocator asks to go on, and decides nothing"
            )
        for fact in facts:
            if isinstance(
                fact, JobChanging | JobBound | GpusRegained | CellsReserved | SuccessorBound
            ):
                self._changed[fact.job] += 1
                if self._changed[fact.job] > CHANGES_MAX:
                    often = ", ".join(job for job, _ in self._changed.most_common(NAMES_MAX))
                    raise CircleError(_where(now) + f"changes of {often}")


def _where(now: Instant) -> str:
    return f"at {(now - BEGIN) / NS_PER_SECOND:.9g} s of the trace there is no end of "
