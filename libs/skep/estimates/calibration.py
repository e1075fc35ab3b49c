"""How often estimates held, by VC and family; those that do not hold widen by themselves.

    EstimateJudged --apply--> factors, shares, errors; runs of families; how far off owners are

After each outcome the factor on a span grows if the outcome lay outside, and falls a little if it
lay within, in the ratio in which that should happen (Gibbs and Candès, 2021; see
`perf.model.widening`). Each family has factors of its own once it has some outcomes; until then,
those of its VC count. Nothing of one VC is used in another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from skep.estimates.spans import chance_below, widened
from skep.perf.model.widening import LEAST, MOST, OUTSIDE, STEP, Widening
from skep.perf.progress import median
from skep.units import Duration
from skep.wire.estimates import (
    ERRORS_MAX,
    LENGTHS_MAX,
    RUNS_MAX,
    STRATA_MAX,
    TENTHS,
    CalibrationKept,
    EstimateJudged,
    Held,
    Outcome,
    Ran,
)
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason

START = "start"
"""What the outcomes of starts count as; those of ends count as their basis."""
FAMILIES_MAX = 10_000
"""Families of all VCs whose outcomes are kept, those that were judged most recently."""
OWN_OUTCOMES = 3
"""So many outcomes of a family are needed before its own factor counts."""
EVERY = ""
"""The family that stands for all families of a VC."""
ERROR_MAX = 100_000
"""Thousandths: an error of a hundred times stands for each larger one."""
PREDICTED = Reason.PREDICTED_SPEED.value


class Track(msgspec.Struct):
    """How estimates of one kind have held, as `wire.estimates.Held` says it."""

    factor: float = LEAST
    outcomes: int = 0
    held: int = 0
    errors: list[int] = msgspec.field(default_factory=list)
    ranks: list[int] = msgspec.field(default_factory=lambda: [0] * TENTHS)

    @property
    def error_milli(self) -> int:
        """Return the median of the latest errors, in thousandths of what was estimated."""
        return median(self.errors) if self.errors else 0

    def take(self, outcome: Outcome) -> None:
        """Count an outcome, and move the factor."""
        change = math.exp(STEP * (-OUTSIDE if outcome.held else 1 - OUTSIDE))
        self.factor = min(max(self.factor * change, LEAST), MOST)
        self.outcomes += 1
        self.held += int(outcome.held)
        error = abs(outcome.took - outcome.p50) * 1000 // max(outcome.p50, 1)
        self.errors.append(min(error, ERROR_MAX))
        del self.errors[:-ERRORS_MAX]
        self.ranks[min(outcome.rank * TENTHS // 1000, TENTHS - 1)] += 1


class Group(msgspec.Struct):
    """What is known of a family in a VC, or of all its families."""

    tracks: dict[str, Track] = {}
    runs: list[Ran] = []
    lengths: list[int] = []


class Calibration:
    """What outcomes have taught. Only `apply` changes it."""

    def __init__(self) -> None:
        """Begin without outcomes."""
        self._groups: dict[tuple[str, str], Group] = {}

    def apply(self, fact: EstimateJudged | CalibrationKept) -> None:
        """Take over an outcome, or what many came to."""
        if isinstance(fact, CalibrationKept):
            self._restore(fact)
            return
        for family in dict.fromkeys((fact.family, EVERY)):
            group = self._group(fact.vc, family)
            for outcome in fact.outcomes:
                track = group.tracks.get(outcome.what)
                if track is None:
                    if len(group.tracks) >= STRATA_MAX:
                        continue
                    # A new family is as hard to estimate as the others, until it shows otherwise.
                    factor = self._own(fact.vc, EVERY, outcome.what, 1)
                    track = group.tracks[outcome.what] = Track(factor or LEAST)
                track.take(outcome)
            if family and fact.mini_batches > 0 and fact.ran > 0:
                step_ns = max(fact.ran // fact.mini_batches, 1)
                group.runs.append(Ran(gpus=fact.gpus, gpu_type=fact.gpu_type, step_ns=step_ns))
                del group.runs[:-RUNS_MAX]
            if family == EVERY and fact.declared > 0 and fact.ran > 0:
                group.lengths.append(min(1000 * fact.ran // fact.declared, ERROR_MAX))
                del group.lengths[:-LENGTHS_MAX]

    def factor(self, vc: str, family: str, what: str) -> float:
        """Return by how much estimates are widened.

        Args:
            vc: The VC.
            family: The family of the job; may be empty.
            what: `start`, or what an end is estimated by.
        """
        own = self._own(vc, family, what, OWN_OUTCOMES)
        return own or self._own(vc, EVERY, what, OWN_OUTCOMES) or LEAST

    def widened(self, vc: str, family: str, what: str, lasts: Lasts) -> Lasts:
        """Return an estimate as wide as outcomes say that it has to be."""
        return widened(lasts, self.factor(vc, family, what))

    def widening(self, vc: str, family: str) -> Widening:
        """Return the factors on predicted speeds of a family, by stratum.

        Args:
            vc: The VC.
            family: The family.
        """
        kinds = (PREDICTED, f"{PREDICTED} more-gpus", f"{PREDICTED} more-nodes")
        tracks = [track for kind in kinds if (track := self._track(vc, family, kind)) is not None]
        near, more_gpus, more_nodes = (self.factor(vc, family, kind) for kind in kinds)
        outcomes = sum(track.outcomes for track in tracks)
        return Widening(near, more_gpus, more_nodes, outcomes, sum(each.held for each in tracks))

    def runs(self, vc: str, family: str) -> Sequence[Ran]:
        """Return what mini-batches took in the latest runs of a family."""
        group = self._groups.get((vc, family)) if family else None
        return () if group is None else group.runs

    def lengths(self, vc: str) -> Sequence[int]:
        """Return thousandths of what owners in a VC said that their latest jobs took."""
        group = self._groups.get((vc, EVERY))
        return () if group is None else group.lengths

    def groups(self, vc: str = "") -> Iterator[tuple[str, str, Group]]:
        """Yield VC, family (empty: all) and what is known, sorted.

        Args:
            vc: Only this one; empty: all.
        """
        for key in sorted(self._groups):
            if not vc or key[0] == vc:
                yield (*key, self._groups[key])

    def facts(self) -> Iterator[CalibrationKept]:
        """Yield what is kept; applied in this order, it leads to the same state."""
        for (vc, family), group in self._groups.items():
            held = tuple(
                Held(
                    what=what,
                    factor=track.factor,
                    outcomes=track.outcomes,
                    held=track.held,
                    errors=tuple(track.errors),
                    ranks=tuple(track.ranks),
                )
                for what, track in group.tracks.items()
            )
            yield CalibrationKept(
                vc=vc,
                family=family,
                held=held,
                runs=tuple(group.runs),
                lengths=tuple(group.lengths),
            )

    def check(self) -> None:
        """Assert the bounds.

        Raises:
            AssertionError: One of them is broken.
        """
        assert len(self._groups) <= FAMILIES_MAX
        for group in self._groups.values():
            assert len(group.tracks) <= STRATA_MAX
            assert len(group.runs) <= RUNS_MAX
            assert len(group.lengths) <= LENGTHS_MAX
            for track in group.tracks.values():
                assert LEAST <= track.factor <= MOST, track
                assert track.held <= track.outcomes == sum(track.ranks), track

    def _group(self, vc: str, family: str) -> Group:
        group = self._groups.pop((vc, family), None) or Group()
        self._groups[vc, family] = group
        if len(self._groups) > FAMILIES_MAX:
            del self._groups[next(iter(self._groups))]
        return group

    def _track(self, vc: str, family: str, what: str) -> Track | None:
        group = self._groups.get((vc, family))
        return None if group is None else group.tracks.get(what)

    def _own(self, vc: str, family: str, what: str, least: int) -> float | None:
        track = self._track(vc, family, what)
        return track.factor if track is not None and track.outcomes >= least else None

    def _restore(self, kept: CalibrationKept) -> None:
        group = self._group(kept.vc, kept.family)
        group.runs, group.lengths = list(kept.runs), list(kept.lengths)
        group.tracks = {
            each.what: Track(
                min(max(each.factor, LEAST), MOST),
                each.outcomes,
                each.held,
                list(each.errors),
                list(each.ranks),
            )
            for each in kept.held
        }


def judged(what: str, lasts: Lasts, took: Duration) -> Outcome:
    """Return what came of an estimate.

    Args:
        what: `start`, or what the end was estimated by.
        lasts: The estimate.
        took: What it took.
    """
    return Outcome(
        what=what,
        p10=lasts.p10,
        p50=lasts.p50,
        p90=lasts.p90,
        took=took,
        held=lasts.p10 <= took <= lasts.p90,
        rank=round(1000 * chance_below(lasts, took)),
    )
