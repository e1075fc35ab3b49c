"""A simulated instant ends, or the run does: with an error that names the jobs that go in a circle.

Nothing takes time at one instant, so decisions that undo each other would go on for ever there.
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
"""Decisions after one event that are not looked at: few events have as many."""
CHANGES_MAX = 100
"""How often one job may be given GPUs, or begin to change, after that: for one event two or three
times are many, and a gang is told to stop after one mini-batch or another in a few rounds."""
EMPTY_MAX = 1000
"""Times in a row that the allocator may ask to go on at once, and then decide nothing."""
TOLD = 8
"""Jobs that the error names."""


class CircleError(RuntimeError):
    """Decisions at one instant that would go on for ever."""


class Circles:
    """What is decided after one event, while no time passes."""

    def __init__(self) -> None:
        """Begin with no event."""
        self._decisions = self._empty = 0
        self._changed = Counter[str]()

    def begin(self) -> None:
        """Begin with another event."""
        if self._decisions > UNWATCHED:
            self._changed.clear()
        self._decisions = self._empty = 0

    def note(self, effects: Iterable[Effect], now: Instant, *, asked: bool) -> None:
        """Look at a decision, which the allocator had `asked` for; raises CircleError."""
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
                    often = ", ".join(job for job, _ in self._changed.most_common(TOLD))
                    raise CircleError(_where(now) + f"changes of {often}")


def _where(now: Instant) -> str:
    return f"at {(now - BEGIN) / NS_PER_SECOND:.9g} s of the trace there is no end of "
