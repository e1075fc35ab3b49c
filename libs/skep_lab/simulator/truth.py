"""The real effect of trials: verdicts compared with the real speeds of simulated jobs.

A verdict rests on reported rates, with all their noise and whatever else changed meanwhile. Here
the workload model is asked for the speed of each job of a trial where it was before and where the
trial had it, and for nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from skep.wire.trials import Kind, TrialBegun, TrialOver, Verdict
from skep_lab.simulator.work import Work
from skep_lab.workloads.situation import Situation, Speeds


class Truth:
    """Open trials, and where their jobs were; `counts` of `judged` and `wrong` by kind."""

    def __init__(self, speeds: Speeds) -> None:
        """Begin without trials.

        Args:
            speeds: The workload model.
        """
        self._speeds = speeds
        self._open: dict[int, tuple[TrialBegun, dict[str, Situation | None]]] = {}
        self.counts: Counter[str] = Counter()

    def note(self, works: Mapping[str, Work], facts: Iterable[object]) -> None:
        """Record the facts of one decision, before it is carried out.

        Args:
            works: The jobs, by id.
            facts: The facts.
        """
        for fact in facts:
            if isinstance(fact, TrialBegun):
                befores = {each.job: works[each.job].where for each in fact.jobs}
                self._open[fact.trial] = fact, befores
            elif isinstance(fact, TrialOver):
                begun, befores = self._open.pop(fact.trial)
                if fact.verdict is not Verdict.VOID:
                    self._over(begun, befores, fact, works)

    def _over(
        self,
        begun: TrialBegun,
        befores: Mapping[str, Situation | None],
        over: TrialOver,
        works: Mapping[str, Work],
    ) -> None:
        """Compare a verdict with the real speeds of the trial's jobs."""
        total = 0.0
        for name, was in befores.items():
            job, after = works[name].job, works[name].where
            if after is None:
                return  # It has just ended, and its place is unknown.
            before = after._replace(partners=()) if begun.kind is Kind.PACK else was
            alone = self._speeds.speed(job, before) if before is not None else 0.0
            if not alone:
                return
            total += self._speeds.speed(job, after) / alone
        right = total * 1000 > begun.needed_milli
        self.counts[f"{begun.kind} judged"] += 1
        self.counts[f"{begun.kind} wrong"] += right is not (over.verdict is Verdict.KEPT)
