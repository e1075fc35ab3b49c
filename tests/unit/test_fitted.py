"""Fits as messages: what is sent predicts the same when it is taken, and bad ones are refused."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.perf.fitted import Fitted, as_fit, from_fit
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool
from skep.perf.model.predict import Seen
from skep.perf.model.theta import Theta, step_ns
from skep.perf.model.widening import Widening
from skep.units import Duration, Instant
from skep.wire.advice import FamilyFit, FitError, FittedForm, Outlook
from skep.wire.codec import encode

GRID = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2), (16, 4)]
GOOD = FamilyFit(
    vc="red",
    family="bert",
    gpu_type="t4",
    forms=(FittedForm(kind="theta", numbers=(1e6, 1e5, 1, 1, 1, 1, 1, 2, 16), near=1, far=1),),
    errors=(FitError(low=-0.1, high=0.1, known=3),) * 3,
    points=3,
    gpus=4,
    nodes=2,
)


def curve(seed: int, noise: float = 0.03) -> list[Point]:
    rng = random.Random(seed)
    form = Theta(rng.uniform(1e6, 1e7), rng.uniform(1e5, 1e6), 4e6, 2e5, 1e7, 8e5, 0.0, 1.5, 16)
    return [
        Point(
            Placement("t4", gpus, nodes, batch),
            Duration(round(step_ns(form, gpus, nodes, batch) * math.exp(rng.gauss(0, noise)))),
            50,
        )
        for gpus, nodes in GRID
        for batch in (16.0, 32.0)
    ]


@pytest.mark.parametrize("count", [0, 1, 4, 14])
def test_what_is_sent_predicts_the_same(count: int) -> None:
    pool = Pool({str(seed): curve(seed) for seed in range(5)})
    widening = Widening(1.0, 2.0, 1.5, 9, 7)
    sent = Fitted(pool.fit_family(curve(9)[:count]), widening, (16, 32), "3", "t4")
    fit = as_fit("red", "bert", "t4", sent)
    got = from_fit(msgspec.json.decode(encode(fit), type=FamilyFit))
    assert got is not None
    assert (got.source, got.source_type, got.widening) == ("3", "t4", sent.widening)
    assert as_fit("red", "bert", "t4", got) == fit
    for gpus, nodes in (*GRID, (64, 8)):
        place = Placement("t4", gpus, nodes, 16)
        one, other = sent.at(place), got.at(place)
        assert (one.stratum, one.basis, one.promised) == (
            other.stratum,
            other.basis,
            other.promised,
        )
        for want, have in ((one.p10, other.p10), (one.p50, other.p50), (one.p90, other.p90)):
            assert have == pytest.approx(want, rel=0.02)  # Forms of slight weight are not sent.
    assert len(encode(fit)) < 6_000


def test_counts_that_jobs_invent_make_no_message_unreadable() -> None:
    """One fit that is out of bounds would have all fits of its message refused."""
    good = from_fit(GOOD)
    assert good is not None
    parameters = msgspec.structs.replace(good.parameters, seen=Seen(3, 200_000, 150_000))
    fit = as_fit("red", "bert", "t4", good._replace(parameters=parameters, batches=(1, 2**60)))
    sent = encode(Outlook(at=Instant(1), fits=(fit, GOOD)))
    assert msgspec.json.decode(sent, type=Outlook).fits == (fit, GOOD)
    assert from_fit(fit) is not None


def test_an_outlook_without_fits_is_read_as_before() -> None:
    old = msgspec.json.decode(b'{"type":"outlook","at":5}', type=Outlook)
    assert old == Outlook(at=old.at)
    assert old.fits == ()


BAD = math.inf, -math.inf, math.nan, 1e300, -1e300, -1.0, 1e-300


@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize("value", BAD)
def test_numbers_that_are_no_times_are_refused_or_do_no_harm(at: int, value: float) -> None:
    numbers = list(GOOD.forms[0].numbers)
    numbers[at] = value
    form = msgspec.structs.replace(GOOD.forms[0], numbers=tuple(numbers))
    fitted = from_fit(msgspec.structs.replace(GOOD, forms=(form,)))
    if fitted is not None:
        assert fitted.at(Placement("t4", 4, 2)).p50 > 0
    else:
        assert not 1e-300 <= value <= 1e-9 or at in {7, 8}


@pytest.mark.parametrize(
    "change",
    [
        {"forms": ()},
        {"errors": GOOD.errors[:2]},
        {"errors": (FitError(low=math.nan, high=1.0),) * 3},
        {"errors": (FitError(low=-1.0, high=1.0, wider=0.5),) * 3},
        {"errors": (FitError(low=-1.0, high=1.0, wider=9.0),) * 3},
        {"errors": (FitError(low=-1.0, high=99.0),) * 3},
        {"held": 2, "outcomes": 1},
        {"points": 0},
        {"nodes": 5},
        {"forms": (msgspec.structs.replace(GOOD.forms[0], kind="genie"),)},
        {"forms": (msgspec.structs.replace(GOOD.forms[0], kind="kernel"),)},
        {"forms": (msgspec.structs.replace(GOOD.forms[0], near=0.0),)},
        {"forms": (msgspec.structs.replace(GOOD.forms[0], near=math.nan),)},
    ],
)
def test_what_predicts_nothing_is_refused(change: dict[str, Any]) -> None:
    assert from_fit(GOOD) is not None
    assert from_fit(msgspec.structs.replace(GOOD, **change)) is None


@given(
    kind=st.sampled_from(["theta", "kernel", "optimus", "genie", ""]),
    numbers=st.lists(st.floats(), max_size=60),
    weights=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    gpus=st.integers(1, 100_000),
    batch=st.floats(0, 1e9),
)
def test_no_message_makes_predictions_raise(
    kind: str, numbers: list[float], weights: tuple[float, float], gpus: int, batch: float
) -> None:
    form = FittedForm(kind=kind, numbers=tuple(numbers), near=weights[0], far=weights[1])
    fitted = from_fit(msgspec.structs.replace(GOOD, forms=(form, *GOOD.forms)))
    if fitted is not None:
        for nodes in {1, gpus}:
            span = fitted.at(Placement("t4", gpus, nodes, batch))
            assert 0 <= span.p10 <= span.p50 <= span.p90 <= 1 << 62
