"""The ledger of trials: what was tried, what came of it, and how often which kind was worth it.

    ALLOC: TrialBegun ──> open ──TrialOver──> kept | undone | void

The newest TRIALS_KEPT are at hand and stored; older ones are in the log alone, and counted. Rates
and gains are thousandths, as in `wire.trials`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from skep.wire.trials import After, Before, TrialBegun, TrialFact, Verdict

TRIALS_KEPT = 10_000
"""A VC begins 60 an hour at most: the latest week of one that tries all the time, some 10 MB."""
OPEN = "open"
"""The verdict of a trial that has none yet."""
VERDICTS = (OPEN, *Verdict)


class Tried(msgspec.Struct, kw_only=True):
    """One trial: what was begun with which figures, and its verdict, or None.

    `nodes`: where a job that moved was; `workers`, `grown`: the sizes of a gang that grows.
    """

    trial: int
    kind: str
    vc: str
    jobs: tuple[str, ...]
    families: tuple[str, ...]
    begun_at: int
    until: int
    needed_milli: int
    expected_milli: int
    begun_why: str
    before: tuple[Before, ...]
    verdict: str | None = None
    why: str | None = None
    over_at: int | None = None
    gain_milli: int | None = None
    low_milli: int | None = None
    high_milli: int | None = None
    after: tuple[After, ...] = ()
    detail: str = ""
    nodes: tuple[str, ...] = ()
    workers: int = 0
    grown: int = 0


class Asked(NamedTuple):
    """Which trials are asked for. Empty texts do not filter."""

    vc: str = ""
    job: str = ""
    kind: str = ""
    verdict: str = ""

    def takes(self, tried: Tried) -> bool:
        """Return whether a trial is one of those by VC, kind and verdict; `job` does not count."""
        return (
            (not self.vc or tried.vc == self.vc)
            and (not self.kind or tried.kind == self.kind)
            and (not self.verdict or (tried.verdict or OPEN) == self.verdict)
        )


class Ledger:
    """The newest trials, by number, and by the jobs that they touch."""

    def __init__(self, stored: Iterable[Tried] = ()) -> None:
        self._trials: dict[int, Tried] = {}
        self._of_job: dict[str, list[int]] = {}
        self._changed: dict[int, Tried] = {}
        for tried in stored:
            self._enter(tried)

    def apply(self, fact: TrialFact) -> None:
        """Take over one fact."""
        if isinstance(fact, TrialBegun):
            tried = Tried(
                trial=fact.trial,
                kind=fact.kind,
                vc=fact.vc,
                families=fact.families,
                jobs=tuple(each.job for each in fact.jobs),
                begun_at=fact.at,
                until=fact.until,
                needed_milli=fact.needed_milli,
                expected_milli=fact.expected_milli,
                begun_why=fact.why,
                before=fact.jobs,
                nodes=fact.nodes,
                workers=fact.workers,
                grown=fact.grown,
            )
            self._enter(tried)
        else:
            known = self._trials.get(fact.trial)
            if known is None:
                return  # Begun so long ago that it is not at hand any more.
            tried = known
            tried.verdict, tried.why, tried.over_at = fact.verdict, fact.why, fact.at
            tried.after, tried.detail = fact.after, fact.detail
            if fact.after:
                tried.gain_milli = fact.gain_milli
                tried.low_milli, tried.high_milli = fact.low_milli, fact.high_milli
        self._changed[tried.trial] = tried

    def take(self) -> list[Tried]:
        """Return what changed since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def of(self, job: str) -> list[Tried]:
        """Return the trials that touch a job, the earliest first."""
        return [self._trials[trial] for trial in self._of_job.get(job, ())]

    def matching(self, asked: Asked) -> list[Tried]:
        """Return the trials that are asked for, the earliest first."""
        among = self.of(asked.job) if asked.job else self._trials.values()
        return [tried for tried in among if asked.takes(tried)]

    def vcs(self) -> list[str]:
        """Return the virtual clusters that have trials here."""
        return sorted({tried.vc for tried in self._trials.values()})

    @property
    def forgotten(self) -> int:
        """Return how many trials are older than those at hand."""
        return max(self._trials, default=0) - len(self._trials)

    def _enter(self, tried: Tried) -> None:
        self._trials[tried.trial] = tried
        for name in tried.jobs:
            self._of_job.setdefault(name, []).append(tried.trial)
        if len(self._trials) > TRIALS_KEPT:
            oldest = self._trials.pop(next(iter(self._trials)))
            for name in oldest.jobs:
                self._of_job[name].remove(oldest.trial)
                if not self._of_job[name]:
                    del self._of_job[name]


def totals(trials: Iterable[Tried]) -> list[dict[str, Any]]:
    """Return by kind how many trials came to what, and the mean gain of those that were kept."""
    rows: dict[str, dict[str, Any]] = {}
    gains: dict[str, list[int]] = {}
    for tried in trials:
        row = rows.setdefault(tried.kind, {"kind": tried.kind, **dict.fromkeys(VERDICTS, 0)})
        row[tried.verdict or OPEN] += 1
        if tried.verdict == Verdict.KEPT and tried.gain_milli is not None:
            gains.setdefault(tried.kind, []).append(tried.gain_milli)
    for kind, row in rows.items():
        known = gains.get(kind)
        row["kept_gain_milli"] = round(sum(known) / len(known)) if known else None
    return [rows[kind] for kind in sorted(rows)]
