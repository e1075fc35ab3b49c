"""Spans: strata, promises, intervals of exchangeable families, and what outcomes do to them."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest

from skep.perf.model import theta
from skep.perf.model.fit import fit_optimus
from skep.perf.model.genie import Genie
from skep.perf.model.many import STRATA, predict_many
from skep.perf.model.placement import Basis, Placement, Point, Span, Stratum
from skep.perf.model.pool import (
    FORMS,
    START,
    Play,
    Pool,
    Wanted,
    believe,
    mimic,
    quantile,
    scores,
    wanted_of,
)
from skep.perf.model.predict import (
    NOTHING,
    UNKNOWN,
    Errors,
    Parameters,
    Seen,
    form_ns,
    predict,
    predict_all,
    promised,
    step_ns,
    stratum_of,
)
from skep.perf.model.theta import Theta
from skep.perf.model.widening import AS_LEARNED, LEAST, MOST, Widening, corrected
from skep.units import Duration

FORM = Theta(1e7, 1e6, 5e6, 1e5, 2e7, 1e6, 0.0, 2.0, 16)
GRID = [
    (gpus, nodes, batch)
    for gpus, nodes in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (4, 4), (8, 4), (16, 4))
    for batch in (8, 16, 32)
]


def place(gpus: int, nodes: int = 1, batch: float = 16) -> Placement:
    return Placement("t4", gpus, nodes, batch)


def parameters(seen: Seen) -> Parameters:
    return Parameters(
        (FORM,), (1.0,), seen, Errors(-0.1, 0.2, 5), Errors(-0.3, 0.4, 5), Errors(-0.5, 0.6, 5)
    )


@pytest.mark.parametrize(
    "gpus, nodes, stratum",
    [
        (4, 1, Stratum.NEAR),
        (8, 2, Stratum.NEAR),
        (9, 2, Stratum.MORE_GPUS),
        (9, 3, Stratum.MORE_NODES),
        (4, 3, Stratum.MORE_NODES),
    ],
)
def test_strata_are_by_gpus_and_nodes_seen(gpus: int, nodes: int, stratum: Stratum) -> None:
    assert stratum_of(Seen(3, 4, 2), place(gpus, nodes)) is stratum


@pytest.mark.parametrize(
    "seen, nodes, kept",
    [
        (Seen(2, 4, 2), 1, False),
        (Seen(3, 4, 1), 1, True),
        (Seen(3, 4, 1), 2, False),
        (Seen(3, 4, 2), 2, True),
        (Seen(3, 4, 2), 8, True),
    ],
)
def test_a_promise_needs_three_points_and_two_nodes_if_it_has_more(
    seen: Seen, nodes: int, *, kept: bool
) -> None:
    assert promised(seen, place(8, nodes)) is kept
    assert predict(parameters(seen), place(8, nodes)).promised is kept


def test_a_span_has_the_errors_of_its_stratum() -> None:
    known = parameters(Seen(3, 4, 2))
    for where, low, high in (
        (place(4, 2), -0.1, 0.2),
        (place(16, 2), -0.3, 0.4),
        (place(16, 4), -0.5, 0.6),
    ):
        span = predict(known, where)
        assert span.p50 == round(theta.step_ns(FORM, where.gpus, where.nodes, 16))
        assert span.p10 == pytest.approx(span.p50 * math.exp(low), rel=1e-6)
        assert span.p90 == pytest.approx(span.p50 * math.exp(high), rel=1e-6)
        assert span.basis is Basis.OWN
    wide = predict(known, place(4, 2), Widening(near=2.0))
    assert wide.p10 == pytest.approx(wide.p50 * math.exp(-0.2), rel=1e-6)


def test_nothing_known_is_said_and_not_guessed() -> None:
    assert predict(Parameters(), place(4)) == NOTHING
    assert predict(parameters(Seen(3, 4, 2)), place(0)) == NOTHING
    assert NOTHING.basis is Basis.NOTHING
    assert not NOTHING.promised
    assert predict(parameters(Seen(1, 1, 1)), place(2)).basis is Basis.FEW


def test_forms_are_blended_in_logarithms() -> None:
    twice = msgspec.structs.replace(
        FORM, **{n: 4 * getattr(FORM, n) for n in ("fixed", "sample", "near", "near_gpu")}
    )
    both = Parameters((FORM, twice), (0.5, 0.5), Seen(3, 4, 2), far_weights=(1.0, 0.0))
    alone = form_ns(FORM, place(4))
    assert step_ns(both, place(4)) == pytest.approx(2 * alone)
    assert step_ns(both, place(16)) == pytest.approx(form_ns(FORM, place(16)))
    assert [each.p50 for each in predict_all(both, [place(1), place(4)])] == [
        predict(both, place(1)).p50,
        predict(both, place(4)).p50,
    ]


def test_a_quantile_counts_weights() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 8.0])
    assert [quantile(values, weights, part) for part in (0.05, 0.1, 0.5, 0.9, 0.95)] == [
        1.0,
        1.0,
        2.0,
        2.0,
        3.0,
    ]


def _plays(rng: random.Random, families: int, points: int, sd: float) -> list[tuple[float, Play]]:
    """Return plays whose errors have a part of the family's own and one of each point."""
    found = []
    for _ in range(families):
        own = rng.gauss(0, sd)
        errors = [own + rng.gauss(0, sd / 2) for _ in range(points)]
        found.append((1.0, Play(np.array([errors] * len(FORMS)), (Stratum.NEAR,) * points)))
    return found


@pytest.mark.parametrize("families", [4, 8, 16, 30])
def test_intervals_of_exchangeable_families_hold(families: int) -> None:
    """Nominal 80 % over many worlds; of n families even the whole range holds (n - 1) / (n + 1)."""
    print("seed", families)
    rng = random.Random(families)
    weights = np.array(START)
    held = []
    for _ in range(150):
        *known, (_, new) = _plays(rng, families + 1, 20, 0.3)
        errors = scores(known, weights, Stratum.NEAR)
        held.append(float(np.mean((new.errors[0] >= errors.low) & (new.errors[0] <= errors.high))))
    least = min(0.74, (families - 1) / (families + 1))
    assert least <= sum(held) / len(held) <= 0.95


def test_errors_of_one_or_two_families_lean_to_those_without_any() -> None:
    rng, weights = random.Random(3), np.array(START)
    plays = _plays(rng, 3, 20, 0.05)
    lone = Errors(-0.6, 0.9)
    none, one, two, three = (
        scores(plays[:count], weights, Stratum.NEAR, lone) for count in (0, 1, 2, 3)
    )
    seen = [error for _, play in plays for error in play.errors[0]]
    assert min(seen) <= three.low < three.high <= max(seen)
    assert none == lone
    assert lone.low < one.low < two.low < min(seen)
    assert max(seen) < two.high < one.high < lone.high


def test_one_family_counts_as_much_as_another() -> None:
    rng = random.Random(2)
    calm, wild = _plays(rng, 1, 1000, 0.01)[0], _plays(rng, 1, 10, 1.0)[0]
    errors = scores([calm, wild], np.array(START), Stratum.NEAR)
    assert errors.known == 2
    assert errors.high - errors.low > 0.5


def test_errors_of_a_stratum_without_plays_are_unknown() -> None:
    rng = random.Random(1)
    assert scores(_plays(rng, 3, 5, 0.1), np.array(START), Stratum.MORE_NODES) == UNKNOWN
    assert UNKNOWN.known == 0


def test_the_form_that_was_right_in_plays_is_believed() -> None:
    errors = np.full((len(FORMS), 10), 1.0)
    errors[2] = 0.0
    plays = [(1.0, Play(errors, (Stratum.NEAR,) * 10))] * 100
    assert believe(plays)[2] > 0.8
    assert believe([]) == pytest.approx(np.array(START), abs=0.15)
    assert believe([]).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_outcomes_widen_what_does_not_hold_until_it_does(seed: int) -> None:
    """Predictions are five times as wrong as they say; in the long run they hold as they should."""
    print("seed", seed)
    rng = random.Random(seed)
    known = parameters(Seen(3, 4, 2))
    widening, held = AS_LEARNED, []
    for _ in range(2000):
        span = predict(known, place(4, 2), widening)
        actual = Duration(round(span.p50 * math.exp(rng.gauss(0.05, 0.5))))
        held.append(span.p10 <= actual <= span.p90)
        widening = corrected(widening, span, actual)
    assert (widening.outcomes, widening.held) == (2000, sum(held))
    assert sum(held[:20]) / 20 < 0.7
    assert 0.77 <= sum(held[200:]) / 1800 <= 0.83
    assert widening.more_gpus == widening.more_nodes == LEAST


def test_widening_is_bounded() -> None:
    span = Span(Duration(90), Duration(100), Duration(110), Stratum.NEAR, Basis.OWN)
    widening = AS_LEARNED
    for _ in range(100):
        widening = corrected(widening, span, Duration(1000))
    assert widening.near == MOST
    for _ in range(1000):
        widening = corrected(widening, span, Duration(100))
    assert widening.near == LEAST
    assert corrected(AS_LEARNED, NOTHING, Duration(5)) == AS_LEARNED


def _families(rng: random.Random, count: int) -> dict[str, list[Point]]:
    found = {}
    for number in range(count):
        scale, sync = math.exp(rng.gauss(0, 1)), math.exp(rng.gauss(0, 0.4))
        form = Theta(
            scale * 1e7,
            scale * 1e6,
            scale * sync * 5e6,
            scale * sync * 1e5,
            scale * sync * 2e7,
            scale * sync * 1e6,
            0.0,
            2.0,
            16,
        )
        found[f"m{number}"] = [
            Point(
                place(gpus, nodes, batch),
                Duration(
                    round(theta.step_ns(form, gpus, nodes, batch) * math.exp(rng.gauss(0, 0.03)))
                ),
            )
            for gpus, nodes, batch in GRID
        ]
    return found


def test_a_family_of_four_points_is_predicted_by_what_others_teach() -> None:
    rng = random.Random(11)
    families = _families(rng, 6)
    pool = Pool(families)
    errors, held = [], []
    for name, points in list(families.items())[:2]:
        measured = [
            each
            for each in points
            if each.placement in {place(1), place(2), place(2, 2), place(1, 1, 32)}
        ]
        fitted = pool.fit_family(measured, name)
        for each in points:
            if each not in measured:
                span = predict(fitted, each.placement)
                assert span.promised
                errors.append(abs(span.p50 / each.step_ns - 1))
                held.append(span.p10 <= each.step_ns <= span.p90)
    assert sum(errors) / len(errors) < 0.1
    assert sum(held) / len(held) >= 0.7


def test_a_pool_without_the_family_is_the_same_as_one_it_is_left_out_of() -> None:
    families = _families(random.Random(5), 3)
    points = families["m0"][:6]
    rest = {name: each for name, each in families.items() if name != "m0"}
    assert Pool(families).fit_family(points, "m0") == Pool(rest).fit_family(points)


def test_a_pool_of_nothing_still_fits() -> None:
    fitted = Pool({}).fit_family([Point(place(1), Duration(10**9))])
    span = predict(fitted, place(1))
    assert span.p50 == pytest.approx(1e9, rel=0.2)
    assert not span.promised
    assert Pool({}).fit_family([]) == Parameters()


def test_the_most_alike_points_are_measured_in_a_play_and_one_is_left() -> None:
    points = _families(random.Random(0), 1)["m0"]
    wanted = wanted_of([points[1], *(each for each in points if each.placement == place(4, 2))])
    assert wanted == (Wanted(1, 1, 0.0), Wanted(4, 2, 0.0))
    chosen = mimic(points, wanted)
    assert [points[at].placement for at in chosen] == [place(1), place(4, 2)]
    assert len(mimic(points[:2], [Wanted(1, 1, 0.0)] * 5)) == 1


def test_the_same_points_give_the_same_bits() -> None:
    families = _families(random.Random(3), 3)
    one, two = (Pool(families).fit_family(families["m1"][:5], "m1") for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


def test_parameters_survive_a_message() -> None:
    fitted = Pool(_families(random.Random(3), 3)).fit_family([Point(place(1), Duration(10**8))])
    told = msgspec.json.decode(msgspec.json.encode(fitted), type=Parameters)
    assert told == fitted
    assert predict(told, place(8, 2)) == predict(fitted, place(8, 2))
    assert len(msgspec.json.encode(fitted)) < 16_384


def test_a_family_without_points_is_what_others_are_and_says_so() -> None:
    families = _families(random.Random(9), 6)
    span = predict(Pool(families).fit_family([]), place(4, 2))
    assert span.basis is Basis.OTHERS
    assert not span.promised
    known = sorted(
        each.step_ns
        for points in families.values()
        for each in points
        if each.placement == place(4, 2)
    )
    assert known[0] < span.p50 < known[-1]
    assert span.p90 > 2 * span.p10


def test_all_placements_are_predicted_as_one_by_one() -> None:
    rng = random.Random(14)
    fitted = Pool(_families(rng, 4)).fit_family(_families(rng, 1)["m0"][:12])
    genie = msgspec.structs.replace(fitted, forms=(Genie(10, 1, 0),), weights=(1.0,))
    forms = [msgspec.structs.replace(fitted, weights=(1.0,), forms=(one,)) for one in fitted.forms]
    servers = fit_optimus([Point(Placement("v100", 4, 2, 8, 2, 1), Duration(10**8))])
    assert servers is not None
    places = [
        place(gpus, nodes, batch)
        for nodes in range(1, 20)
        for gpus in (0, 1, 2, 8, 100)
        for batch in (0.0, 5.0)
    ]
    places += [Placement("v100", 4, nodes, 8, 2, 1) for nodes in (1, 2)]
    rng.shuffle(places)
    wide = Widening(near=1.5, more_nodes=3.0)
    for known in (
        fitted,
        *(msgspec.structs.replace(each, far_weights=()) for each in (genie, *forms)),
        msgspec.structs.replace(fitted, forms=(servers,), weights=(1.0,), far_weights=()),
        msgspec.structs.replace(fitted, weights=(0.0,) * 5, far_weights=()),
        Parameters(),
    ):
        for all_at_once, where in zip(predict_all(known, places, wide), places, strict=True):
            one = predict(known, where, wide)
            assert (all_at_once.p10, all_at_once.p50, all_at_once.p90) == pytest.approx(
                (one.p10, one.p50, one.p90), rel=1e-9
            )
            assert (all_at_once.stratum, all_at_once.basis, all_at_once.promised) == (
                one.stratum,
                one.basis,
                one.promised,
            )


def test_many_placements_are_predicted_as_one_by_one() -> None:
    rng = random.Random(13)
    fitted = Pool(_families(rng, 4)).fit_family(_families(rng, 1)["m0"][:12])
    sizes = [(nodes * each, nodes) for nodes in range(1, 40) for each in range(1, 9)]
    gpus, nodes = (np.array(each) for each in zip(*sizes, strict=True))
    for batch in (0.0, 5.0):
        many = predict_many(fitted, gpus, nodes, batch, Widening(near=1.5))
        for at, (one, two) in enumerate(sizes):
            span = predict(fitted, place(one, two, batch), Widening(near=1.5))
            assert STRATA[many.strata[at]] is span.stratum
            assert (many.p10[at], many.p50[at], many.p90[at]) == pytest.approx(
                (span.p10, span.p50, span.p90), rel=1e-6
            )
    genie = msgspec.structs.replace(
        fitted, forms=(Genie(10, 1, 0),), weights=(1.0,), far_weights=()
    )
    assert predict_many(genie, gpus, nodes, 8).p50[9] == pytest.approx(
        form_ns(genie.forms[0], place(*sizes[9], 8)), rel=1e-9
    )
