"""Forms of a mini-batch's time: what they say, what fits recover, and what bad points do."""

from __future__ import annotations

import math
import random
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.perf.model import fit, kernel, optimus, similar, theta
from skep.perf.model.optimus import Optimus
from skep.perf.model.placement import LIMIT_NS, Placement, Point, clean
from skep.perf.model.theta import Theta
from skep.units import Duration

TRUE = Theta(1e7, 1e6, 5e6, 1e5, 2e7, 1e6, 3e6, 2.0, 16)
PLACES = [
    Placement("t4", gpus, nodes, batch)
    for gpus, nodes, batch in product((1, 2, 4, 8, 16), (1, 2, 4), (8, 16, 32, 64))
    if nodes <= gpus
]


def measured(form: Theta, places: list[Placement]) -> list[Point]:
    return [
        Point(p, Duration(round(theta.step_ns(form, p.gpus, p.nodes, p.batch)))) for p in places
    ]


def worst(form: Theta, points: list[Point]) -> float:
    return max(
        abs(theta.step_ns(form, p.gpus, p.nodes, p.batch) / each.step_ns - 1)
        for each in points
        for p in (each.placement,)
    )


def test_one_gpu_only_computes() -> None:
    assert theta.step_ns(TRUE, 1, 1, 16) == pytest.approx(1e7 + 16e6)
    assert theta.step_ns(TRUE, 1, 1, 0) == theta.step_ns(TRUE, 1, 1, 16)


def test_two_terms_overlap_by_their_power() -> None:
    near = 5e6 + 2 * 1e5
    assert theta.step_ns(TRUE, 4, 1, 16) == pytest.approx(math.hypot(26e6, near))
    far = 2e7 + 2 * 1e6 + 1 * 3e6
    assert theta.step_ns(TRUE, 4, 3, 16) == pytest.approx(math.hypot(26e6, far))


@given(
    st.lists(st.floats(0, 1e12), min_size=7, max_size=7),
    st.floats(1, theta.POWER_MAX),
    st.integers(2, 4096),
    st.integers(1, 512),
    st.floats(0.01, 1e5),
)
def test_a_theta_never_falls_with_batch_gpus_or_nodes(
    terms: list[float], power: float, gpus: int, nodes: int, batch: float
) -> None:
    fixed, sample, near, near_gpu, far, far_gpu, node = terms
    form = Theta(fixed, sample, near, near_gpu, far, far_gpu, node, power)
    here = theta.step_ns(form, gpus, nodes, batch)
    slack = here * (1 - 1e-9)
    assert 0 <= here <= LIMIT_NS
    assert theta.step_ns(form, gpus, nodes, 2 * batch) >= slack
    assert theta.step_ns(form, gpus + 1, nodes, batch) >= slack
    if nodes > 1:
        assert theta.step_ns(form, gpus, nodes + 1, batch) >= slack
    assert (
        here >= max(form.fixed + form.sample * batch, theta.sync_ns(form, gpus, nodes)) * (1 - 1e-9)
        or here == LIMIT_NS
    )


def test_a_fit_finds_what_made_the_points() -> None:
    points = measured(msgspec.structs.replace(TRUE, node=0.0), PLACES)
    found = fit.fit_theta(points)
    assert found is not None
    assert worst(found, points) < 0.01
    assert found.sample == pytest.approx(TRUE.sample, rel=0.02)
    assert found.far == pytest.approx(TRUE.far, rel=0.1)


def test_with_a_prior_the_term_for_nodes_is_found_too() -> None:
    points = measured(TRUE, PLACES)
    found = fit.fit_theta(points, fit.BROAD)
    assert found is not None
    assert worst(found, points) < 0.03


def test_a_few_wild_points_do_not_decide() -> None:
    points = measured(msgspec.structs.replace(TRUE, node=0.0), PLACES)
    odd = random.Random(3).sample(range(len(points)), len(points) // 10)
    wild = list(points)
    for at in odd:
        wild[at] = msgspec.structs.replace(points[at], step_ns=Duration(points[at].step_ns * 20))
    found = fit.fit_theta(wild)
    assert found is not None
    assert worst(found, points) < 0.2


def test_others_teach_what_one_point_cannot() -> None:
    """Six families with the same shape at other scales: the seventh needs one measurement."""
    rng = random.Random(7)
    families = []
    for _ in range(7):
        scale = math.exp(rng.gauss(0, 0.3))
        terms = {
            name: scale * getattr(TRUE, name)
            for name in ("fixed", "sample", "near", "near_gpu", "far", "far_gpu")
        }
        form = Theta(**terms, node=0.0, power=2.0, batch=16)
        families.append(measured(form, PLACES))
    target = families.pop()
    one = [each for each in target if each.placement == Placement("t4", 1, 1, 16)]
    alone = fit.fit_theta(one)
    taught = fit.fit_theta(one, fit.learn_prior(families))
    assert alone is not None
    assert taught is not None
    assert worst(taught, target) < 0.4 < worst(alone, target)
    learned = similar.fit_kernel(one, similar.others_of(families, fit.learn_prior(families)))
    assert learned is not None
    errors = [
        abs(math.log(kernel.step_ns(learned.kernel, p.gpus, p.nodes, p.batch) / each.step_ns))
        for each in target
        for p in (each.placement,)
    ]
    assert max(errors) < 0.5


def test_a_process_goes_through_its_own_points() -> None:
    points = measured(TRUE, PLACES)
    learned = similar.fit_kernel(points[::3], None)
    assert learned is not None
    assert len(learned.kernel.anchors) <= similar.ANCHORS_MAX
    for each in points[::3]:
        place = each.placement
        told = kernel.step_ns(learned.kernel, place.gpus, place.nodes, place.batch)
        assert told == pytest.approx(each.step_ns, rel=0.15)
    assert len(learned.left_out) == len(points[::3])


def test_points_left_out_are_told_as_if_they_had_never_been_there() -> None:
    points = measured(TRUE, PLACES)[:10]
    learned = similar.fit_kernel(points, None)
    without = similar.fit_kernel(points[:4] + points[5:], None)
    assert learned is not None
    assert without is not None
    place = points[4].placement
    told = kernel.step_ns(without.kernel, place.gpus, place.nodes, place.batch)
    assert learned.left_out[4] == pytest.approx(math.log(points[4].step_ns / told), abs=0.01)


@pytest.mark.parametrize("servers", [0, 3])
def test_optimus_form_finds_its_terms(servers: int) -> None:
    true = Optimus((1e6, 5e6, 2e6, 3e5, 7e5), servers=servers > 0)
    places = [
        Placement("t4", gpus, nodes if not servers else 1, batch, gpus, servers and count)
        for gpus, nodes, batch in product((1, 2, 4, 8), (1, 2, 4), (4, 8, 32))
        for count in (1, 2, 4)
    ]
    points = clean(Point(place, Duration(round(optimus.step_ns(true, place)))) for place in places)
    found = fit.fit_optimus(points)
    assert found is not None
    for each in points:
        assert optimus.step_ns(found, each.placement) == pytest.approx(each.step_ns, rel=0.01)
    left = fit.optimus_left_out(points)
    assert max(abs(each) for each in left) < 0.02


def test_what_cannot_be_learned_from_is_left_out() -> None:
    good = Point(Placement("t4", 4, 2, 8), Duration(10), samples=3)
    worse = msgspec.structs.replace(good, step_ns=Duration(20), samples=2)
    better = msgspec.structs.replace(good, step_ns=Duration(30), samples=9)
    bad = [
        Point(Placement("t4", 4, 2, 8), Duration(0), 99),
        Point(Placement("t4", 0, 1, 8), Duration(5)),
        Point(Placement("t4", 2, 4, 8), Duration(5)),
        Point(Placement("t4", 2, 1, -1), Duration(5)),
        Point(Placement("t4", 2, 1, math.nan), Duration(5)),
        Point(Placement("t4", 2, 1, math.inf), Duration(5)),
        Point(Placement("t4", 2, 1, 8), Duration(1 << 63)),
    ]
    assert clean([*bad, good, worse]) == [good]
    assert clean([good, better, *bad]) == [better]


HOSTILE = st.lists(
    st.builds(
        Point,
        st.builds(
            Placement,
            st.just("t4"),
            st.integers(-1, 1 << 40),
            st.integers(-1, 1 << 40),
            st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e-9, 1e18, 64.0, -1.0]),
        ),
        st.integers(-1, 1 << 63).map(Duration),
        st.integers(0, 100),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(HOSTILE, st.integers(1, 1 << 40), st.integers(1, 1 << 40), st.sampled_from([0.0, 1.0, 1e18]))
def test_no_points_make_a_fit_fail_or_a_prediction_leave_its_range(
    points: list[Point], gpus: int, nodes: int, batch: float
) -> None:
    place = Placement("t4", gpus, nodes, batch)
    for form in (fit.fit_theta(points), fit.fit_theta(points, fit.BROAD)):
        if form is not None:
            assert 0 <= theta.step_ns(form, gpus, nodes, batch) <= LIMIT_NS
    linear = fit.fit_optimus(points)
    if linear is not None:
        assert optimus.step_ns(linear, place) >= 0
    learned = similar.fit_kernel(points, None)
    if learned is not None:
        assert 0 < kernel.step_ns(learned.kernel, gpus, nodes, batch) <= LIMIT_NS
    fit.fit_genie(points)
