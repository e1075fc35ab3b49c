"""Fits the speeds of models to what was measured, a piece at a time. For the advisor (numpy).

    measured, ran --> due --(prior, plays of others, fit: a piece at each `work`)--> FamilyFit

A model is fitted for each VC by itself: what the VC measured are its points. The VC's other models
teach what is expected of it and how wrong that is, and while there are few, other VCs' as well. So
a tenant that lies can make others' intervals wide or narrow at first. It changes no speed that
another VC measured, and cannot crowd others' models out of a pool.

A fit takes 5 to 50 ms once its pool has learned, and what a pool learns takes as long as some tens
of fits. All of it is cut into pieces of at most about one fit, and there is a rest after each. A
fit is told if it predicts something else than the one that was told before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from skep.base.timers import TimerHeap
from skep.perf.fitted import FitsKept, Fitted, as_fit, from_fit
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool
from skep.perf.model.predict import POINTS_PROMISED
from skep.perf.model.similar import thin
from skep.perf.model.widening import AS_LEARNED, Widening
from skep.perf.profiles import Curve, Profiles, Tenants
from skep.units import Duration, Instant, after, seconds
from skep.wire.advice import FamilyFit, Outlook
from skep.wire.profile import Fingerprint

POOL_MAX = 8
"""Models in a pool: what it learns costs their number squared, and a piece of it some 60 ms."""
OWN_ENOUGH = 5
"""With so many models of its own a VC learns nothing from others, which may say what they like."""
POOL_POINTS = 16
"""Of each of them."""
POOLS_MAX = 64
"""Pools that are kept, those made last: a VC and a type of GPU each."""
REST = seconds(0.2)
"""Between two pieces of work: facts and rates of thousands of jobs are heard meanwhile."""
SETTLES_AFTER = seconds(2.0)
"""How long after a measurement a model is fitted: several often come together."""
FIT_EVERY = seconds(30.0)
"""The shortest time between two fits of a model."""
POOL_EVERY, POOL_SOON = seconds(600.0), seconds(30.0)
"""How often a pool learns anew: what its models measure changes it little, another model more."""
UNMEASURED_MAX = 500
"""Models that ran and were not measured, the latest: they borrow."""
DIFFERENT = 0.03
"""A fit is told again if a prediction differs by more than this part."""
PROBES = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (8, 2), (16, 2), (16, 4), (64, 8))
"""GPUs and nodes at which two fits are compared."""
SENT_MAX = 10
"""Fits in one message: what is heard is noted, 64 KiB at most."""
AGAIN_AFTER = seconds(1.0), seconds(10.0)
"""How long after a service began everything is told to it. The second time is for one that had so
much to read at first that it heard nothing."""
AGAIN_EVERY = seconds(3600.0)


class Model(NamedTuple):
    """A model of a VC on one type of GPU."""

    vc: str
    name: str
    gpu_type: str

    @property
    def key(self) -> tuple[str, str]:
        """Return what its VC's profiles know it by."""
        return self.name, self.gpu_type


class Pooled(NamedTuple):
    """A pool, and what it was made of and when."""

    pool: Pool
    families: dict[str, list[Point]]
    made_at: Instant


class Going(NamedTuple):
    """A fit that is being made."""

    model: Model
    pool: Pool
    points: list[Point]
    pieces: Iterator[None]


class Fitting:
    """Which models have to be fitted, and what their fits come to."""

    def __init__(self, measured: Tenants) -> None:
        """Begin without fits; `measured` is only read."""
        self.kept = FitsKept()
        """What was told."""
        self.widening: Callable[[Model], Widening] = lambda _: AS_LEARNED
        """Returns by how much outcomes have widened intervals."""
        self._measured = measured
        self._unmeasured: dict[Model, Fingerprint | None] = {}
        self._due = TimerHeap[Model]()
        self._fitted_at: dict[Model, Instant] = {}
        self._pools: dict[tuple[str, str], Pooled] = {}
        self._going: Going | None = None
        self._rests_until = Instant(0)
        self._again: list[Instant] = []

    def changed(self, model: Model, now: Instant) -> None:
        """Take note that what is known of a model changed: it is fitted, and what may borrow."""
        if self._measured.of(model.vc).has(model.key):
            self._unmeasured.pop(model, None)
        for each in (model, *self._unmeasured):
            # No spec names a model that is known by its shapes only: it teaches, and that is all.
            if not each.name.startswith("~") and (each is model or self.kept.get(*each) is None):
                self._time(each, after(now, SETTLES_AFTER))

    def ran(self, model: Model, shown: Fingerprint | None, now: Instant) -> None:
        """Take note that a model runs; if it was not measured there, it borrows.

        Args:
            model: The model.
            shown: Its fingerprint, as far as it is known.
            now: The time.
        """
        known = self._measured.of(model.vc).has(model.key)
        told = self._unmeasured.get(model)
        if known or (model in self._unmeasured and (told is not None or shown is None)):
            return
        self._unmeasured[model] = shown
        if len(self._unmeasured) > UNMEASURED_MAX:
            gone = next(iter(self._unmeasured))
            del self._unmeasured[gone]
            self._due.cancel(gone)
        if self._measured.vcs:
            self._time(model, after(now, SETTLES_AFTER))

    def again(self, now: Instant) -> None:
        """Tell everything again to a service that begins."""
        self._again = sorted([*self._again[-1:], *(after(now, each) for each in AGAIN_AFTER)])

    def wake_at(self) -> Instant | None:
        """Return when there is something to do; None: nothing."""
        times = self._again[:1] if len(self.kept) else []
        due = self._due.first_due()
        if self._going is not None:
            times.append(self._rests_until)
        elif due is not None:
            times.append(Instant(max(due, self._rests_until)))
        return min(times, default=None)

    def work(self, now: Instant) -> list[Outlook]:
        """Do one piece of what is due, and return what is to be told."""
        if self._again and self._again[0] <= now:
            later = [each for each in self._again if each > now]
            self._again = later or [after(now, AGAIN_EVERY)]
            return _told(self.kept.all(), now)
        if now < self._rests_until:
            return []
        if self._going is None:
            due = self._due.first_due()
            if due is None or due > now:
                return []
            _, model = next(self._due.upcoming(due + 1))
            self._due.cancel(model)
            self._fitted_at[model] = now
            self._going = self._begin(model, now)
        self._rests_until = after(now, REST)
        going, fits = self._going, list[FamilyFit]()
        try:
            for _ in going.pieces:
                return []
            fits = self._news(going)
        except (ArithmeticError, ValueError):
            pass  # Jobs said what no numbers solve: nothing is predicted. None is known that does.
        self._going = None
        if not self._again:
            self._again = [after(now, AGAIN_EVERY)]
        return _told(fits, now)

    def check(self) -> None:
        """Assert the bounds.

        Raises:
            AssertionError: One of them is broken.
        """
        self.kept.check()
        assert len(self._unmeasured) <= UNMEASURED_MAX
        assert len(self._pools) <= POOLS_MAX

    # --- fits --------------------------------------------------------------------------------

    def _time(self, model: Model, at: Instant) -> None:
        fitted = self._fitted_at.get(model)
        if fitted is not None:
            at = max(at, after(fitted, FIT_EVERY))
        known = self._due.due.get(model)
        self._due.set_timer(model, at if known is None else min(at, known))

    def _begin(self, model: Model, now: Instant) -> Going:
        pool = self._pool(model, now)
        points = self._measured.of(model.vc).points(model.key)
        return Going(model, pool, points, pool.prepare(points, _named(model.vc, model.name)))

    def _news(self, going: Going) -> list[FamilyFit]:
        """Make a fit whose pool is ready, and return it if it says something new."""
        model, points = going.model, going.points
        source, like = Curve(model.key, ()), list[Point]()
        if len(points) < POINTS_PROMISED:
            source = self._borrows(model)
            like = [*points, *_points(model, source)] if source.borrowed else []
        parameters = going.pool.fit_family(points, _named(model.vc, model.name), like)
        batches = [round(each.placement.batch) for each in points if each.placement.batch]
        fitted = Fitted(
            parameters,
            self.widening(model),
            (min(batches), max(batches)) if len(batches) == len(points) > 0 else (0, 0),
        )
        lent = source.source
        if lent is not None and parameters.borrowed:
            own = self._measured.of(model.vc).has((lent.name, lent.gpu_type))
            name = lent.name if own else ""
            fitted = fitted._replace(source=name, source_type=lent.gpu_type, why=lent.why)
        fit = as_fit(*model, fitted)
        if from_fit(fit) is None:
            fit = FamilyFit(vc=model.vc, family=model.name, gpu_type=model.gpu_type)
        before = self.kept.get(*model)
        if before is not None and fit.forms and not differs(before, fitted):
            return []
        self._bound()
        return [fit] if self.kept.hear(fit) else []

    def _borrows(self, model: Model) -> Curve:
        """Return what a model borrows: of its own VC, else of another."""
        own, shown = self._measured.of(model.vc), self._unmeasured.get(model)
        curve = own.curve(model.key, shown)
        for vc, lender in self._measured.vcs.items():
            if not curve.borrowed and vc != model.vc:
                curve = own.curve(model.key, shown, lender)
        return curve

    def _bound(self) -> None:
        """Forget times of models that are not kept any more."""
        if len(self._fitted_at) > 2 * len(self.kept) + UNMEASURED_MAX:
            kept = {(fit.vc, fit.family, fit.gpu_type) for fit in self.kept.all()}
            self._fitted_at = {each: at for each, at in self._fitted_at.items() if each in kept}

    # --- pools -------------------------------------------------------------------------------

    def _pool(self, model: Model, now: Instant) -> Pool:
        """Return the pool of a VC and type of GPU; if it is made anew, its models are due."""
        at = model.vc, model.gpu_type
        known = self._pools.get(at)
        families = self._families(*at)
        if known is not None and known.families == families:
            return known.pool
        if known is not None:
            other = known.families.keys() != families.keys()
            anew_at = after(known.made_at, POOL_SOON if other else POOL_EVERY)
            if now < anew_at:
                self._due.set_timer(model, anew_at)
                return known.pool
        same = (each.pool for each in self._pools.values() if each.families == families)
        pool = next(same, None) or Pool(families)
        self._pools.pop(at, None)
        self._pools[at] = Pooled(pool, families, now)
        if len(self._pools) > POOLS_MAX:
            del self._pools[next(iter(self._pools))]
        for fit in self.kept.all() if known is not None else ():
            other_model = Model(fit.vc, fit.family, fit.gpu_type)
            if (fit.vc, fit.gpu_type) == at and other_model != model:
                self._time(other_model, now)
        return pool

    def _families(self, vc: str, gpu_type: str) -> dict[str, list[Point]]:
        """Return what teaches a VC's models: its own, else also one of each other VC, in turns."""
        chosen = _best(vc, self._measured.of(vc), gpu_type)
        others = list[list[tuple[str, list[Point]]]]()
        vcs = sorted(self._measured.vcs) if len(chosen) < OWN_ENOUGH else ()
        for each in vcs:
            found = _best(each, self._measured.vcs[each], gpu_type) if each != vc else []
            if found:
                others.append(found)
            if len(others) == POOL_MAX:
                break  # One of each fills the pool.
        for turn in range(POOL_MAX):
            chosen += [each[turn] for each in others if turn < len(each)]
        return {name: thin(points, POOL_POINTS) for name, points in sorted(chosen[:POOL_MAX])}


def differs(one: Fitted, other: Fitted) -> bool:
    """Return whether two fits predict something else, or rest on something else."""
    if (one.source, one.why, one.widening) != (other.source, other.why, other.widening):
        return True
    if one.parameters.seen != other.parameters.seen or one.batches != other.batches:
        return True
    for gpus, nodes in PROBES:
        place = Placement("", gpus, nodes, float(one.batches[0]))
        here, there = one.at(place), other.at(place)
        for was, now in ((here.p50, there.p50), (here.p90, there.p90)):
            if abs(now - was) > DIFFERENT * was:
                return True
    return False


def _told(fits: Sequence[FamilyFit], now: Instant) -> list[Outlook]:
    return [
        Outlook(at=now, fits=tuple(fits[begin : begin + SENT_MAX]))
        for begin in range(0, len(fits), SENT_MAX)
    ]


def _named(vc: str, name: str) -> str:
    return f"{vc}/{name}"


def _best(vc: str, profiles: Profiles, gpu_type: str) -> list[tuple[str, list[Point]]]:
    """Return the models of a VC on a type of GPU with the most points, two at least."""
    keys = profiles.largest(gpu_type, POOL_MAX)
    return [(_named(vc, key[0]), profiles.points(key)) for key in keys]


def _points(model: Model, curve: Curve) -> list[Point]:
    return [
        Point(
            Placement(model.gpu_type, place.gpus, place.nodes, float(place.batch)),
            Duration(step_ns),
        )
        for place, step_ns in curve.borrowed
    ]
