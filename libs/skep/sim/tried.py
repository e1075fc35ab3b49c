"""Trials as the allocator's log has them: each is begun with its change and has one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from skep.sim.held import Gpus
from skep.sim.violation import require
from skep.wire.trials import Kind, TrialBegun, TrialMessage, TrialOver, Verdict

CHANGES = {
    Kind.PACK: Kind.PACK,
    Kind.GROW: Kind.GROW,
    Kind.PROBE: Kind.GROW,
    Kind.MIGRATE: Kind.MIGRATE,
    Kind.DEFRAG: Kind.MIGRATE,
}
"""By kind of trial: the change that it tries."""


class Runs(Protocol):
    """What a verdict has to know of a job."""

    queued: bool
    attempt: int
    suspended: bool

    @property
    def stopping(self) -> object:
        """Return why it is to end, None while it is not."""
        ...

    @property
    def workers(self) -> int:
        """Return how many ranks train, or are to."""
        ...


class Tried:
    """What is open."""

    def __init__(self, jobs: Mapping[str, Runs], gpus: Gpus) -> None:
        """Start with nothing; `jobs` and `gpus` are what the log says of them at any time."""
        self._jobs, self._gpus = jobs, gpus
        self.begun = 0
        self.open: dict[int, TrialBegun] = {}
        self.changed: tuple[Kind | None, str, int] = None, "", 0
        """What was last begun with an attempt: it was put beside others, moved or resized."""
        self.resized: tuple[str, int, int] = "", 0, 0
        """The attempt that was last told of another size, and the size."""
        self.verdicts: dict[tuple[Kind, Verdict], int] = {}
        """How many there were of each."""

    def take(self, fact: TrialMessage) -> None:
        """Take a fact about a trial.

        Raises:
            ViolationError: The trial must not begin, or end, like this.
        """
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
        first = fact.jobs[0]
        changed = self.changed == (CHANGES[fact.kind], first.job, first.attempt)
        if fact.kind is Kind.PROBE:
            changed = self.resized == (first.job, first.attempt, fact.grown)
        require(changed, "I18", f"trial {number} is of no change of {first.job}")
        grows = fact.kind is not Kind.GROW or fact.grown > fact.workers > 0
        require(grows, "I18", f"trial {number} is of no growth: {fact.workers} to {fact.grown}")
        probes = fact.kind is not Kind.PROBE or fact.grown != fact.workers > 0 < fact.grown
        require(probes, "I18", f"trial {number} probes no other size: {fact.grown}")
        self.open[number] = fact

    def _end(self, fact: TrialOver) -> None:
        trial = self.open.pop(fact.trial, None)
        require(trial is not None, "I18", f"trial {fact.trial} has a verdict, and is not open")
        assert trial is not None
        if fact.verdict is not Verdict.VOID:
            self._is_on(trial)
        back = self.changed[0] is Kind.MIGRATE and self.changed[1] == trial.jobs[0].job
        back = back and self.changed[2] != trial.jobs[0].attempt
        keeps = trial.kind is Kind.PROBE and fact.verdict is Verdict.KEPT
        require(not keeps, "I18", f"trial {fact.trial} is a probe, and kept")
        goes = fact.verdict is not Verdict.UNDONE or CHANGES[trial.kind] is not Kind.MIGRATE or back
        require(goes, "I18", f"trial {fact.trial} is undone, and {trial.jobs[0].job} stays")
        named = trial.kind, fact.verdict
        self.verdicts[named] = self.verdicts.get(named, 0) + 1

    def _is_on(self, trial: TrialBegun) -> None:
        """Require that the jobs of a trial are as it is to have them: else it cannot be judged."""
        for each in trial.jobs:
            job, attempt = self._jobs.get(each.job), (each.job, each.attempt)
            runs = job is not None and not job.queued and job.attempt == each.attempt
            runs = runs and job is not None and job.stopping is None and not job.suspended
            require(runs, "I18", f"trial {trial.trial} is judged, and {attempt} does not run")
            shares = bool(self._gpus.partners(attempt))
            packs = trial.kind is Kind.PACK
            require(shares is packs, "I18", f"trial {trial.trial} is judged: {attempt}, {shares}")
            sizes = trial.kind in (Kind.GROW, Kind.PROBE)
            grown = job is not None and (not sizes or job.workers == trial.grown)
            require(grown, "I18", f"trial {trial.trial} is judged, and {attempt} has not grown")
