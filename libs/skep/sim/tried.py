"""Trials as the allocator's log has them: each is begun with its change and has one verdict."""

from __future__ import annotations

from skep.sim.violation import require
from skep.wire.trials import TrialBegun, TrialMessage, TrialOver


class Tried:
    """What is open."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.begun = 0
        self.open: dict[int, TrialBegun] = {}
        self.packed = "", 0
        """The attempt that was last put beside others."""

    def take(self, fact: TrialMessage) -> None:
        """Take a fact about a trial."""
        if isinstance(fact, TrialBegun):
            self._begin(fact)
        elif isinstance(fact, TrialOver):
            self._end(fact)

    def _begin(self, fact: TrialBegun) -> None:
        number = fact.trial
        require(number == self.begun + 1, "I18", f"trial {number} comes after {self.begun}")
        self.begun = number
        mine = {each.job for each in fact.jobs}
        for other in self.open.values():
            both = sorted(mine & {each.job for each in other.jobs})
            require(not both, "I18", f"{both} are in trials {other.trial} and {number}")
        guest = fact.jobs[0]
        changed = self.packed == (guest.job, guest.attempt)
        require(changed, "I18", f"trial {number} is of no change of {guest.job}")
        self.open[number] = fact

    def _end(self, fact: TrialOver) -> None:
        trial = self.open.pop(fact.trial, None)
        require(trial is not None, "I18", f"trial {fact.trial} has a verdict, and is not open")
