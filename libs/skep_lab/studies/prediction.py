"""How wrong are predictions of mini-batches? Public measurements, one model left out at a time.

Prints, for each data set and profile, the mean error over models and the 95th percentile of
held-out points for GENIE's, Optimus' and Pollux' forms, theta with a prior, the Gaussian process
and the blend; then how often P10 to P90 held. `skep_lab.measures.protocol` has the rules, which
were fixed before the first result. `skep speeds --errors` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from skep.perf.model import fit, similar
from skep.perf.model.placement import Point, Stratum
from skep.perf.model.pool import Pool
from skep.perf.model.predict import Form, form_ns, predict
from skep_lab.measures.measured import Families
from skep_lab.measures.profiles import PROFILES, profile
from skep_lab.measures.protocol import (
    COVERED,
    EXTRA_SETS,
    JUDGED_SETS,
    POINTS_CLOSE,
    SETS_NEEDED,
    judged_on,
    tuned_on,
)

FORMS = ("genie", "optimus", "theta", "prior", "process", "blend")
TITLES = ("GENIE", "Optimus", "theta", "theta+prior", "GP", "blend")


class Case(NamedTuple):
    """One model with one profile: relative errors (%) by form, and how its intervals held."""

    data: str
    profile: str
    model: str
    points: int
    """Measured; all others are predicted."""
    errors: dict[str, list[float]]
    held: list[tuple[Stratum, bool]]
    width: float
    """The median of P90 over P10."""

    @property
    def coverage(self) -> float:
        """Return how many percent of held-out points lie within P10 to P90."""
        return 100 * sum(within for _, within in self.held) / len(self.held)


def pools(families: Mapping[str, Families]) -> dict[str, Pool]:
    """Return the pool of each data set; those of all-reduce jobs know one another.

    Args:
        families: By data set.
    """
    found = {name: Pool(each) for name, each in families.items()}
    plain = [name for name in found if name not in EXTRA_SETS]
    for name in plain:
        found[name].foreign = tuple(found[other] for other in plain if other != name)
    return found


def cases(
    families: Mapping[str, Families],
    profiles: Sequence[str] = PROFILES,
    chosen: Callable[[Iterable[str]], Sequence[str]] = sorted,
) -> Iterator[Case]:
    """Yield every case in which something is left to predict.

    Args:
        families: By data set.
        profiles: Which profiles.
        chosen: Returns those of a data set's models that are predicted; all others teach only.
    """
    known = pools(families)
    for data, models in families.items():
        for name in profiles:
            for model in chosen(models):
                found = _case(known[data], data, name, model, models[model])
                if found is not None:
                    yield found


def _case(pool: Pool, data: str, name: str, model: str, points: Sequence[Point]) -> Case | None:
    at = profile(points, name)
    measured = [points[each] for each in at]
    left = set(range(len(points))) - set(at)
    held = [points[each] for each in sorted(left)]
    if not held:
        return None
    prior, others = pool.taught((model,))
    learned = similar.fit_kernel(measured, others)
    forms: dict[str, Form | None] = {
        "genie": None if held[0].placement.servers else fit.fit_genie(measured),
        "optimus": fit.fit_optimus(measured),
        "theta": fit.fit_theta(measured),
        "prior": fit.fit_theta(measured, prior),
        "process": learned.kernel if learned else None,
    }
    errors = {
        title: [_error(form_ns(form, each.placement), each.step_ns) for each in held]
        for title, form in forms.items()
        if form is not None
    }
    parameters = pool.fit_family(measured, model)
    spans = [predict(parameters, each.placement) for each in held]
    errors["blend"] = [
        _error(span.p50, each.step_ns) for span, each in zip(spans, held, strict=True)
    ]
    within = [
        (span.stratum, span.p10 <= each.step_ns <= span.p90)
        for span, each in zip(spans, held, strict=True)
    ]
    widths = sorted(span.p90 / max(span.p10, 1) for span in spans)
    return Case(data, name, model, len(at), errors, within, widths[len(widths) // 2])


def _error(predicted: float, measured: float) -> float:
    return 100 * abs(predicted / measured - 1)


# --- what the cases come to -----------------------------------------------------------------------


class Cell(NamedTuple):
    """A data set and profile: the mean over models and the p95 of points by form, and coverage."""

    data: str
    profile: str
    models: int
    mean: dict[str, float]
    p95: dict[str, float]
    coverage: float
    width: float


class Figure(NamedTuple):
    """A data set: the mean of its profiles by form, and whether the blend is (nearly) best."""

    data: str
    mean: dict[str, float]
    close: bool
    coverage: float


class Found(NamedTuple):
    """All that the study comes to."""

    cells: list[Cell]
    figures: list[Figure]
    coverage: float
    strata: dict[Stratum, tuple[float, int]]
    worst: list[Case]

    @property
    def sets_close(self) -> int:
        """Return on how many judged data sets the blend is best, or nearly."""
        return sum(each.close for each in self.figures if each.data in JUDGED_SETS)

    @property
    def reached(self) -> bool:
        """Return whether both bars are reached."""
        low, high = COVERED
        return self.sets_close >= SETS_NEEDED and low <= self.coverage <= high


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) * 95 // 100, len(ordered) - 1)]


def came_to(found: Sequence[Case], profiles: Sequence[str] = PROFILES) -> Found:
    """Return the table and the verdicts.

    Args:
        found: Cases of any models.
        profiles: Those that count.
    """
    cells = []
    for data in dict.fromkeys(each.data for each in found):
        for name in profiles:
            here = [each for each in found if (each.data, each.profile) == (data, name)]
            if here:
                cells.append(_cell(data, name, here))
    figures = []
    for data in dict.fromkeys(each.data for each in cells):
        rows = [each for each in cells if each.data == data]
        mean = {form: _mean([row.mean[form] for row in rows]) for form in rows[0].mean}
        close = mean["blend"] <= min(mean.values()) + POINTS_CLOSE
        figures.append(Figure(data, mean, close, _mean([row.coverage for row in rows])))
    judged = [each for each in found if each.data in JUDGED_SETS]
    strata = {}
    for stratum in Stratum:
        within = [held for each in judged for one, held in each.held if one is stratum]
        if within:
            strata[stratum] = (100 * _mean([float(held) for held in within]), len(within))
    return Found(
        cells,
        figures,
        _mean([each.coverage for each in judged]),
        strata,
        sorted(judged, key=lambda each: (each.coverage, each.data, each.profile, each.model)),
    )


def _cell(data: str, name: str, here: Sequence[Case]) -> Cell:
    forms = [form for form in FORMS if all(form in each.errors for each in here)]
    return Cell(
        data,
        name,
        len(here),
        {form: _mean([_mean(each.errors[form]) for each in here]) for form in forms},
        {form: _p95([one for each in here for one in each.errors[form]]) for form in forms},
        _mean([each.coverage for each in here]),
        _mean([each.width for each in here]),
    )


def text(found: Found, about: str) -> str:
    """Return the tables as text: mean over models / p95 of points, in percent.

    Args:
        found: What the cases came to.
        about: Which models were predicted.
    """
    lines = [
        f"Errors of predicted mini-batch times, {about}: mean over models / p95 of points, %",
        f"{'data set':<17} {'profile':<7} " + " ".join(f"{title:>12}" for title in TITLES),
    ]
    for figure in found.figures:
        for cell in found.cells:
            if cell.data == figure.data:
                shown = [_pair(cell, form) for form in FORMS]
                lines.append(
                    f"{cell.data:<17} {cell.profile:<7} "
                    + " ".join(f"{each:>12}" for each in shown)
                )
        means = [f"{figure.mean[form]:.1f}" if form in figure.mean else "-" for form in FORMS]
        judged = "" if figure.data in EXTRA_SETS else ("  close" if figure.close else "  NOT close")
        lines.append(
            f"{figure.data:<17} {'mean':<7} " + " ".join(f"{each:>12}" for each in means) + judged
        )
    lines.append(
        f"The blend is best or within {POINTS_CLOSE:g} point of the best on {found.sets_close} of "
        f"{sum(each.data in JUDGED_SETS for each in found.figures)} data sets "
        f"(needed: {SETS_NEEDED})."
    )
    for name in dict.fromkeys(cell.profile for cell in found.cells):
        here = [cell for cell in found.cells if cell.profile == name and cell.data in JUDGED_SETS]
        close = sum(cell.mean["blend"] <= min(cell.mean.values()) + POINTS_CLOSE for cell in here)
        lines.append(f"  of {name}: {close} of {len(here)}")
    lines += ["", "How often P10 to P90 held (nominal 80 %), % of points by model, and P90 / P10"]
    for figure in found.figures:
        here = [cell for cell in found.cells if cell.data == figure.data]
        lines.append(
            f"{figure.data:<17} {figure.coverage:5.1f}  "
            + "  ".join(f"{cell.profile} {cell.coverage:.0f} x{cell.width:.2f}" for cell in here)
        )
    low, high = COVERED
    lines.append(f"all judged sets   {found.coverage:5.1f}  (bar: {low:g} to {high:g})")
    lines += [
        f"  {stratum.value}: {part:.1f} of {count} points"
        for stratum, (part, count) in found.strata.items()
    ]
    lines.append(
        "worst: "
        + "; ".join(
            f"{each.model} of {each.data} with {each.profile} {each.coverage:.0f} %"
            for each in found.worst[:5]
        )
    )
    return "\n".join(lines)


def _pair(cell: Cell, form: str) -> str:
    if form not in cell.mean:
        return "-"
    return f"{cell.mean[form]:.1f}/{cell.p95[form]:.0f}"


CHOSEN: dict[str, tuple[Callable[[Iterable[str]], Sequence[str]], str]] = {
    "judged": (judged_on, "models for judging"),
    "tuned": (tuned_on, "models for tuning"),
    "all": (sorted, "all models"),
}
"""Which models are predicted."""
