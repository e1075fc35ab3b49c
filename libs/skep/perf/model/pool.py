"""What other families teach: a prior, similar curves, which form to believe, and how wrong it is.

For the advisor and the laboratory (numpy). A pool is the families on one type of GPU and network.
`fit_family` uses it in three ways:

- The prior of theta and the shared part of the Gaussian process are learned from all of them.
- Which form to believe is learned by playing the case through: each other family is measured at the
  placements most alike to those that the family in question was measured at, predicted by what the
  rest teaches, and compared with what was measured. From POINTS_OWN points on, the family's own
  points left out one at a time count as well, and more the more there are.
- The errors that were left in those plays are the conformal scores. Families are the unit of
  exchange: each counts as much as any other, however many points it has. Pools of other types of
  GPU count for less, and only matter where a pool has few families.

All of it costs as much as there are families in the pool, so it is kept by the placements asked
for; the fit of a family, given that, takes milliseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from skep.perf.model import fit, similar
from skep.perf.model.fit import Array, Prior, fit_theta
from skep.perf.model.placement import Point, Stratum, clean
from skep.perf.model.predict import (
    POINTS_PROMISED,
    UNKNOWN,
    Errors,
    Form,
    Parameters,
    Seen,
    form_ns,
    stratum_of,
)
from skep.perf.model.similar import Others, thin
from skep.perf.model.theta import Theta

POINTS_OWN = 8
"""From so many points on, a family's own points left out say which form to believe."""
POINTS_KEPT = 48
"""Of a family in a pool; what it tells grows little with more."""
HELD_MAX = 64
"""Held-out points of a family in a play."""
FORMS = ("prior", "similar", "optimus", "broad", "plain")
"""What is blended: theta with the pool's prior, the process, Optimus' form, theta with the prior of
all types of GPU, and theta without one."""
GRID = 8
"""Weights are multiples of one over this."""
FOREIGN = 1.0
"""As how many families of the pool all those on other types of GPU count together, for weights."""
FOREIGN_ERRORS = 3.0
"""The same for errors: quantiles need more families than means."""
ERROR_MOST = 3.0
"""Log errors of plays are at most this: one wild family does not decide for all."""
OWN_COUNTS = 2.0
"""As how many plays the family's own left-out points count, for each POINTS_OWN of them."""


ALONE = Errors(-0.25, 0.35), Errors(-0.1, 0.75), Errors(-0.8, 0.4)
"""Of a family without any other, measured at three placements or more, by stratum: what the public
measurements' models for tuning had from profiles of that many without a pool, rounded outwards
(-0.21 and 0.27, -0.04 and 0.71, -0.71 and 0.38; those for judging: -0.19 and 0.40, -0.06 and 0.72,
-0.80 and 0.39)."""


class Play(NamedTuple):
    """A family that was predicted from a few of its points: log errors by form, and strata."""

    errors: Array
    """[forms, held-out points]: measured over predicted."""
    strata: tuple[Stratum, ...]


class Fits(NamedTuple):
    """Every form of FORMS fitted to a family; if it has enough points, its own as a play."""

    forms: tuple[Form, ...]
    own: Play | None


def fit_forms(points: Sequence[Point], prior: Prior, others: Others | None) -> Fits:
    """Return every form, and how well each predicts points that are left out.

    Args:
        points: Of one family, at least one.
        prior: Of theta.
        others: Similar families.
    """
    data, count = fit.rows(points), len(points)
    weights = np.ones((1, count))
    leave = count >= POINTS_OWN
    if leave:
        weights = np.concatenate([weights, 1 - np.eye(count)])
    borrowed, broad, plain = (
        fit.fit_logs(data, weights, each).logs for each in (prior, fit.BROAD, fit.PLAIN)
    )
    learned = similar.fit_kernel(points, others)
    linear = fit.fit_optimus(points)
    assert learned is not None
    assert linear is not None
    forms = (
        fit.as_theta(borrowed[0], data.base),
        learned.kernel,
        linear,
        fit.as_theta(broad[0], data.base),
        fit.as_theta(plain[0], data.base),
    )
    if not leave:
        return Fits(forms, None)
    errors = np.stack(
        [
            data.logs - np.diag(fit.curve(borrowed[1:], data)),
            learned.left_out,
            fit.optimus_left_out(points),
            data.logs - np.diag(fit.curve(broad[1:], data)),
            data.logs - np.diag(fit.curve(plain[1:], data)),
        ]
    )
    errors = np.clip(np.nan_to_num(errors, nan=ERROR_MOST), -ERROR_MOST, ERROR_MOST)
    return Fits(forms, Play(errors, (Stratum.NEAR,) * count))


class Wanted(NamedTuple):
    """A placement to be measured in a play; the batch is log2 of a part of the reference."""

    gpus: int
    nodes: int
    batch: float


BATCH_STEPS = 2
"""Batch sizes are told apart in plays by this part of a doubling, so that families share plays."""


def wanted_of(points: Sequence[Point]) -> tuple[Wanted, ...]:
    """Return what another family is measured at to play a family's case.

    Args:
        points: Of the family; the first has its reference batch size.
    """
    base = points[0].placement.batch or 1.0
    found = []
    for place in (each.placement for each in points):
        doublings = math.log2((place.batch or base) / base)
        found.append(Wanted(place.gpus, place.nodes, round(doublings * BATCH_STEPS) / BATCH_STEPS))
    return tuple(found)


def mimic(points: Sequence[Point], wanted: Sequence[Wanted]) -> list[int]:
    """Return the points of a family most alike to wanted placements, each at most once.

    Nodes count before GPUs, and those before the batch size relative to the family's own. At least
    one point is left to be predicted.

    Args:
        points: Of a family.
        wanted: What another family was measured at.
    """
    own = fit.middle(points)
    places = np.array(
        [
            (math.log2(p.nodes), math.log2(p.gpus), math.log2((p.batch or own) / own))
            for p in (each.placement for each in points)
        ]
    )
    chosen: list[int] = []
    for one in wanted[: len(points) - 1]:
        far = np.abs(places - (math.log2(one.nodes), math.log2(one.gpus), one.batch)) @ APART
        far[chosen] = math.inf
        chosen.append(int(np.argmin(far)))
    return chosen


APART = np.array([4.0, 2.0, 1.0])
"""What a doubling of nodes, GPUs and batch size counts when placements are compared."""


class Experience(NamedTuple):
    """Plays of a case, by families of the pool and by those on other types of GPU."""

    own: list[Play]
    foreign: list[Play]

    def counted(self, foreign: float) -> list[tuple[float, Play]]:
        """Return each with what it counts.

        Args:
            foreign: What the foreign ones count together.
        """
        each = min(foreign / max(len(self.foreign), 1), 1.0)
        return [(1.0, play) for play in self.own] + [(each, play) for play in self.foreign]


class Pool:
    """Families on one type of GPU and network, and what they teach one another."""

    def __init__(
        self, families: Mapping[str, Sequence[Point]], foreign: Sequence[Pool] = ()
    ) -> None:
        """Take the families by name.

        Args:
            families: Their points.
            foreign: Pools of other types of GPU, which count for less.
        """
        self.families = {
            name: thin(clean(points), POINTS_KEPT)
            for name, points in sorted(families.items())
            if len(clean(points)) > 1
        }
        self.foreign = tuple(foreign)
        self._taught: dict[tuple[str, ...], tuple[Prior, Others | None]] = {}
        self._plays: dict[tuple[tuple[Wanted, ...], str, str], Play | None] = {}

    def taught(self, without: tuple[str, ...] = ()) -> tuple[Prior, Others | None]:
        """Return the prior and the similar families that all but some families teach.

        Args:
            without: Families that are left out.
        """
        key = tuple(sorted(set(without) & set(self.families)))
        if key not in self._taught:
            rest = [points for name, points in self.families.items() if name not in key]
            prior = fit.learn_prior(rest)
            self._taught[key] = (prior, similar.others_of(rest, prior))
        return self._taught[key]

    def plays(self, wanted: tuple[Wanted, ...], without: str = "") -> list[Play]:
        """Return how well each family is predicted from placements like the wanted ones.

        Args:
            wanted: What another family was measured at.
            without: A family that is neither played nor teaches.
        """
        found = [self._played(name, wanted, without) for name in self.families if name != without]
        return [each for each in found if each is not None]

    def _played(self, name: str, wanted: tuple[Wanted, ...], without: str) -> Play | None:
        key = wanted, without if without in self.families else "", name
        if key not in self._plays:
            self._plays[key] = self._play(name, wanted, without)
        return self._plays[key]

    def experience(self, wanted: tuple[Wanted, ...], without: str = "") -> Experience:
        """Return the plays of this pool and of the foreign ones.

        Args:
            wanted: What another family was measured at.
            without: A family that is neither played nor teaches.
        """
        foreign = [play for pool in self.foreign for play in pool.plays(wanted, without)]
        return Experience(self.plays(wanted, without), foreign)

    def prepare(self, points: Sequence[Point], name: str = "") -> Iterator[None]:
        """Work out what the fit of a family needs, a piece at a time; all of it is kept.

        Args:
            points: What was measured of the family.
            name: Its name.

        Yields:
            After each piece that was not known yet; it costs as much as a fit.
        """
        points, rest = clean(points), [each for each in self.families if each != name]
        wanted = wanted_of(points) if points else ()
        known = len(self._taught) + len(self._plays)
        for other in ("", *rest):
            self.taught((other, name))
            if len(self._taught) + len(self._plays) > known:
                yield
            known = len(self._taught) + len(self._plays)
        for other in rest if wanted else ():
            self._played(other, wanted, name)
            if len(self._taught) + len(self._plays) > known:
                yield
            known = len(self._taught) + len(self._plays)

    def fit_family(
        self, points: Sequence[Point], name: str = "", like: Sequence[Point] = ()
    ) -> Parameters:
        """Return all that is known of a family: forms, weights, errors.

        Args:
            points: What was measured of it.
            name: Its name, if it is in the pool too: then it does not teach itself.
            like: The curve of the most similar model, scaled to `points`. While there are too few
                of these for a promise, it is what is expected before they are looked at.

        Returns:
            Without points or a similar model, what the other families have in common, their scale
            included.
        """
        points, like = clean(points), clean(like)
        borrowed = bool(like) and len(points) < POINTS_PROMISED
        if not points:
            return self._unknown(name, like)
        prior, others = self.taught((name,))
        if borrowed:
            prior = alike(prior, like)
            others = None if others is None else others._replace(prior=prior)
        fits = fit_forms(points, prior, others)
        experience = self.experience(wanted_of(points), name)
        plays, wide = experience.counted(FOREIGN), experience.counted(FOREIGN_ERRORS)
        servers = any(each.placement.servers for each in points)
        far = np.array(SERVERS) if servers else believe(plays)
        near = far
        if fits.own is not None and not servers:
            near = believe([*plays, (OWN_COUNTS * len(points) / POINTS_OWN, fits.own)])
        lone = ALONE if len(points) >= POINTS_PROMISED else (UNKNOWN, UNKNOWN, UNKNOWN)
        errors = (
            scores(wide, near, Stratum.NEAR, lone[0]),
            scores(wide, far, Stratum.MORE_GPUS, lone[1]),
            scores(wide, far, Stratum.MORE_NODES, lone[2]),
        )
        return Parameters(
            fits.forms,
            tuple(float(each) for each in near),
            seen_of(points),
            *errors,
            tuple(float(each) for each in far),
            borrowed,
        )

    def _unknown(self, name: str, like: Sequence[Point]) -> Parameters:
        """Return what is expected of a family that was not measured: a mean, and wide errors."""
        rest = [each for each in self.families if each != name]
        if not rest and not like:
            return Parameters()
        plays = []
        for other in rest if len(rest) > 1 else []:
            theta = self._expected((name, other))
            errors = [
                math.log(each.step_ns / max(form_ns(theta, each.placement), 1.0))
                for each in self.families[other][:HELD_MAX]
            ]
            rows = np.array([errors] * len(FORMS))
            plays.append((1.0, Play(rows, (Stratum.MORE_NODES,) * len(errors))))
        errors_of_all = scores(plays, np.array(START), Stratum.MORE_NODES)
        form = fit_theta(like, self.taught((name,))[0]) if like else None
        return Parameters(
            (form or self._expected((name,)),),
            (1.0,),
            near=errors_of_all,
            more_gpus=errors_of_all,
            more_nodes=errors_of_all,
            borrowed=form is not None,
        )

    def _expected(self, without: tuple[str, ...]) -> Theta:
        prior, _ = self.taught(without)
        batches = [fit.middle(each) for at, each in self.families.items() if at not in without]
        logs = fit.expected(prior, np.array([prior.middle]))[0]
        return fit.as_theta(logs, sorted(batches)[len(batches) // 2])

    def _play(self, name: str, wanted: tuple[Wanted, ...], without: str) -> Play | None:
        points = self.families[name]
        chosen = mimic(points, wanted)
        measured = [points[at] for at in chosen]
        held = [each for at, each in enumerate(points) if at not in chosen][:HELD_MAX]
        if not measured or not held:
            return None
        forms = fit_forms(measured, *self.taught((name, without))).forms
        seen = seen_of(measured)
        errors = [
            [math.log(each.step_ns / max(form_ns(form, each.placement), 1.0)) for each in held]
            for form in forms
        ]
        return Play(
            np.clip(np.array(errors), -ERROR_MOST, ERROR_MOST),
            tuple(stratum_of(seen, each.placement) for each in held),
        )


def alike(prior: Prior, like: Sequence[Point]) -> Prior:
    """Return a prior whose mean is the curve of one model; how far others are from it stays.

    Args:
        prior: What all families teach.
        like: What that model's mini-batches take, at least one point.
    """
    data = fit.rows(like, fit.middle(like))
    logs = fit.fit_logs(data, np.ones((1, len(like))), prior).logs[0]
    mean = 0.0, *(float(each) for each in logs[1:])
    return msgspec.structs.replace(prior, mean=mean, middle=float(logs[0]))


def seen_of(points: Sequence[Point]) -> Seen:
    """Return what was measured of a family."""
    return Seen(
        len(points),
        max((each.placement.gpus for each in points), default=0),
        max((each.placement.nodes for each in points), default=0),
    )


def _simplex(forms: int) -> Array:
    """Return all weights of forms that are multiples of one over GRID and sum to 1."""
    return np.array(
        [
            [part / GRID for part in parts]
            for parts in itertools.product(range(GRID + 1), repeat=forms)
            if sum(parts) == GRID
        ]
    )


WEIGHTS = _simplex(len(FORMS))
SHARP = 10.0
"""How much better a weighting has to be in plays before it is believed."""
START = (0.4, 0.55, 0.05, 0.0, 0.0)
"""The weights where nothing was played."""
SERVERS = (0.0, 0.0, 1.0, 0.0, 0.0)
"""The weights for jobs with parameter servers: no other form knows of these."""
SURE = 30.0
"""How many errors of 100 % it takes to leave them: a few plays tell little."""


def loss(errors: Array) -> Array:
    """Return relative errors |predicted - measured| / measured of log errors, bounded."""
    return np.minimum(np.abs(np.expm1(-errors)), 2.0)


def believe(plays: Sequence[tuple[float, Play]]) -> Array:
    """Return the weights of forms under which plays had the smallest errors.

    It is a mean of all weightings, each by how well it did: no weighting wins by a hair.

    Args:
        plays: Each with what it counts.
    """
    total = SURE * np.sum((WEIGHTS - np.array(START)) ** 2, axis=1)
    for weight, play in plays:
        total += weight * loss(WEIGHTS @ play.errors).mean(axis=1)
    good = np.exp(-SHARP * (total - total.min()))
    return np.asarray(good @ WEIGHTS / good.sum(), np.float64)


def quantile(values: Array, weights: Array, part: float) -> float:
    """Return the smallest value that at least a part of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order])
    at = int(np.searchsorted(summed, part * summed[-1] - 1e-12))
    return float(values[order][min(at, len(order) - 1)])


OUTSIDE = 0.10
"""On either side of P10 to P90."""
FAMILIES_FEW = 3.0
"""With fewer families errors lean to those without any: one other family shows few of the errors
that there are. Live, intervals that rested on one held for one placement of four (ADR 0209)."""


def scores(
    plays: Sequence[tuple[float, Play]], weights: Array, stratum: Stratum, lone: Errors = UNKNOWN
) -> Errors:
    """Return the quantiles of errors of plays in a stratum; of few families, mixed with others.

    Args:
        plays: Each with what it counts.
        weights: Of the forms.
        stratum: Which points count.
        lone: What is taken where no family was played.
    """
    values, counts, families = [], [], 0.0
    for weight, play in plays:
        within = np.array([each == stratum for each in play.strata])
        if within.any():
            errors = (weights @ play.errors)[within]
            values.append(errors)
            counts.append(np.full(len(errors), weight / len(errors)))
            families += weight
    if not values:
        return lone
    # The family in question is one more of which nothing is known: with few others, the
    # outermost errors are those that count.
    outside = max(OUTSIDE * families / (families + 1), 0.01)
    all_values, all_counts = np.concatenate(values), np.concatenate(counts)
    low = quantile(all_values, all_counts, outside)
    high = quantile(all_values, all_counts, 1 - outside)
    lean = max(1 - families / FAMILIES_FEW, 0.0)
    return Errors(
        low + lean * min(lone.low - low, 0.0),
        high + lean * max(lone.high - high, 0.0),
        round(families),
    )
