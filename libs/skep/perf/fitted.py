"""Fitted parameters as messages, and back: what is sent of a fit, and what is taken of one.

The wire knows nothing of forms, so a form travels as its kind and a row of numbers, in the order of
its fields. A fit that is taken predicts: its numbers are finite and within bounds, for with
others no prediction can be made, and one hostile message must not end a service.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.perf.model.genie import Genie
from skep.perf.model.kernel import Kernel
from skep.perf.model.optimus import Optimus
from skep.perf.model.placement import LIMIT_NS, Placement, Span
from skep.perf.model.predict import POINTS_PROMISED, Errors, Form, Parameters, Seen, predict
from skep.perf.model.theta import POWER_MAX, Theta
from skep.perf.model.widening import AS_LEARNED, LEAST, MOST, Widening
from skep.wire.advice import STRATA, FamilyFit, FitError, FittedForm
from skep.wire.bounds import COUNT_MAX, RANKS_MAX
from skep.wire.reasons import Reason

DIGITS = 9
"""Significant digits that are sent: the same input gives the same message on other machines."""
SLIGHT = 0.01
"""Forms of less weight than this are not sent: they move a prediction by less than it is wrong."""
ANCHOR = 6
THETA, OPTIMUS, KERNEL = 9, 7, 21
"""How many numbers a form has; a kernel has ANCHOR more for each of its anchors."""
WEIGHT_MAX = 1e6
"""Of slopes, weights and positions of a kernel: beyond it there is only noise."""
LOG_MAX = 50.0
"""Of logarithms: errors and scales beyond it leave the range of times."""


class Fitted(NamedTuple):
    """A fit as predictions take it."""

    parameters: Parameters
    widening: Widening = AS_LEARNED
    batches: tuple[int, int] = (0, 0)
    """The least and the most samples per GPU that were measured; 0: unknown."""
    source: str = ""
    source_type: str = ""
    why: Reason | None = None

    def at(self, place: Placement) -> Span:
        """Return what a mini-batch takes at a placement."""
        return predict(self.parameters, place, self.widening)


FITS_KEPT_MAX = 2_000
"""Fits that one service keeps, at some 5 KiB each."""


class FitsKept:
    """The latest fits that were heard: soft. A VC with many makes only its own forgotten."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[str, dict[tuple[str, str], tuple[FamilyFit, Fitted]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many are kept."""
        return self._count

    def hear(self, fit: FamilyFit) -> bool:
        """Take over a fit, in place of an earlier one; return whether something changed."""
        known, key = self._known.setdefault(fit.vc, {}), (fit.family, fit.gpu_type)
        before = known.pop(key, None)
        self._count -= before is not None
        fitted = from_fit(fit)
        if fitted is not None:
            known[key] = fit, fitted
            self._count += 1
            if self._count > FITS_KEPT_MAX:
                most = max(self._known, key=lambda vc: (len(self._known[vc]), vc))
                del self._known[most][next(iter(self._known[most]))]
                self._count -= 1
                if not self._known[most]:
                    del self._known[most]
        if not known:
            self._known.pop(fit.vc, None)
        return before is not None if fitted is None else before is None or before[0] != fit

    def get(self, vc: str, family: str, gpu_type: str) -> Fitted | None:
        """Return what predicts a family's mini-batches; None: nothing does.

        Args:
            vc: Its VC.
            family: Its name.
            gpu_type: The type of GPU.
        """
        found = self._known.get(vc, {}).get((family, gpu_type))
        return None if found is None else found[1]

    def all(self) -> list[FamilyFit]:
        """Return every fit, as it was heard."""
        return [fit for known in self._known.values() for fit, _ in known.values()]

    def check(self) -> None:
        """Assert the bound.

        Raises:
            AssertionError: It is exceeded, or the count is wrong.
        """
        assert self._count == len(self.all()) <= FITS_KEPT_MAX
        assert all(self._known.values())


def as_fit(vc: str, family: str, gpu_type: str, fitted: Fitted) -> FamilyFit:
    """Return a fit as it is sent.

    Args:
        vc: The VC that it is of.
        family: The name of the model.
        gpu_type: The type of GPU.
        fitted: What was fitted; its numbers are finite. Counts that jobs say can be beyond those
            of a message, which would be refused with all other fits in it: they are cut.
    """
    known, wider = fitted.parameters, fitted.widening
    far = known.far_weights or known.weights
    forms = tuple(
        FittedForm(kind=kind, numbers=numbers, near=_short(near), far=_short(beyond))
        for form, near, beyond in zip(known.forms, known.weights, far, strict=True)
        for kind, numbers in [_numbers(form)]
        if max(near, beyond) >= SLIGHT
    )
    strata = (
        (known.near, wider.near),
        (known.more_gpus, wider.more_gpus),
        (known.more_nodes, wider.more_nodes),
    )
    errors = tuple(
        FitError(
            low=_short(each.low), high=_short(each.high), known=each.known, wider=_short(factor)
        )
        for each, factor in strata
    )
    return FamilyFit(
        vc=vc,
        family=family,
        gpu_type=gpu_type,
        forms=forms,
        errors=errors,
        points=known.seen.points,
        gpus=min(known.seen.gpus, RANKS_MAX),
        nodes=min(known.seen.nodes, RANKS_MAX),
        outcomes=wider.outcomes,
        held=wider.held,
        batch_min=min(fitted.batches[0], COUNT_MAX),
        batch_max=min(fitted.batches[1], COUNT_MAX),
        source=fitted.source,
        source_type=fitted.source_type,
        why=fitted.why,
    )


def from_fit(fit: FamilyFit) -> Fitted | None:
    """Return what a message predicts with; None if it is of no use.

    Args:
        fit: What was heard.
    """
    forms = [_form(each) for each in fit.forms]
    errors = [_errors(each) for each in fit.errors]
    within = all(LEAST <= each.wider <= MOST for each in fit.errors)
    if not forms or None in forms or len(errors) != STRATA or None in errors or not within:
        return None
    for weights in ([each.near for each in fit.forms], [each.far for each in fit.forms]):
        if not all(0 <= each <= 1 for each in weights) or sum(weights) < SLIGHT:
            return None
    if fit.held > fit.outcomes or fit.nodes > fit.gpus or bool(fit.points) is not bool(fit.nodes):
        return None
    near, more_gpus, more_nodes = (each for each in errors if each is not None)
    parameters = Parameters(
        tuple(form for form in forms if form is not None),
        tuple(each.near for each in fit.forms),
        Seen(fit.points, fit.gpus, fit.nodes),
        near,
        more_gpus,
        more_nodes,
        tuple(each.far for each in fit.forms),
        fit.why is not None and fit.points < POINTS_PROMISED,
    )
    wider = [each.wider for each in fit.errors]
    widening = Widening(wider[0], wider[1], wider[2], fit.outcomes, fit.held)
    batches = fit.batch_min, fit.batch_max
    return Fitted(parameters, widening, batches, fit.source, fit.source_type, fit.why)


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def _numbers(form: Form) -> tuple[str, tuple[float, ...]]:
    """Return a form's kind and its numbers; no pool fits GENIE's."""
    assert not isinstance(form, Genie), form
    kind, row = "theta", list[float]()
    match form:
        case Theta():
            row += _theta_row(form)
        case Optimus():
            kind = "optimus"
            row += (*form.terms, float(form.servers), form.batch)
        case Kernel():
            kind = "kernel"
            row += (*_theta_row(form.mean), form.scale, *form.slopes, *form.lengths, form.batch)
            row += (each for anchor in form.anchors for each in anchor)
    return kind, tuple(_short(each) for each in row)


def _theta_row(form: Theta) -> tuple[float, ...]:
    times = form.fixed, form.sample, form.near, form.near_gpu, form.far, form.far_gpu, form.node
    return (*(min(each, LIMIT_NS) for each in times), form.power, form.batch)


def _form(told: FittedForm) -> Form | None:
    """Return a form of numbers that predictions can be made with; None: they cannot."""
    row, count = told.numbers, len(told.numbers)
    if not all(math.isfinite(each) for each in row):
        return None
    match told.kind:
        case "theta" if count == THETA:
            return _theta(row)
        case "optimus" if count == OPTIMUS:
            *terms, servers, batch = row
            times = all(0 <= each <= LIMIT_NS for each in terms)
            if not times or servers not in {0.0, 1.0} or not _is_batch(batch):
                return None
            a, b, c, d, e = terms
            return Optimus((a, b, c, d, e), bool(servers), batch)
        case "kernel" if count >= KERNEL and (count - KERNEL) % ANCHOR == 0:
            return _kernel(row)
        case _:
            return None


def _theta(row: Sequence[float]) -> Theta | None:
    *times, power, batch = row
    if not all(0 <= each <= LIMIT_NS for each in times) or not 1 <= power <= POWER_MAX:
        return None
    fixed, sample, near, near_gpu, far, far_gpu, node = times
    made = Theta(fixed, sample, near, near_gpu, far, far_gpu, node, power, batch)
    return made if _is_batch(batch) else None


def _kernel(row: Sequence[float]) -> Kernel | None:
    mean, scale, batch = _theta(row[:THETA]), row[THETA], row[KERNEL - 1]
    slopes: Any = tuple(row[10:15])
    lengths: Any = tuple(row[15:20])
    anchors: Any = tuple(tuple(row[at : at + ANCHOR]) for at in range(KERNEL, len(row), ANCHOR))
    if mean is None or abs(scale) > LOG_MAX or not _is_batch(batch):
        return None
    if not all(abs(each) <= WEIGHT_MAX for each in (*slopes, *row[KERNEL:])):
        return None
    if not all(0 <= each <= WEIGHT_MAX for each in lengths):
        return None
    return Kernel(mean, scale, slopes, anchors, lengths, batch)


def _is_batch(batch: float) -> bool:
    return 1e-9 <= batch <= LIMIT_NS


def _errors(told: FitError) -> Errors | None:
    within = -LOG_MAX <= told.low <= LOG_MAX and -LOG_MAX <= told.high <= LOG_MAX
    return Errors(told.low, told.high, told.known) if within else None
