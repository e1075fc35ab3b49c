"""GENIE's equations 4 to 11, worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from skep.perf.model import fit, genie
from skep.perf.model.genie import Genie, Qos, Reading, Split
from skep.perf.model.placement import Placement, Point
from skep.units import seconds

PLAIN = Genie(k0=10.0, k1=2.0, k2=-0.05, gamma=1.5, lambda_=0.2)


def test_the_rate_of_a_gpu_is_a_quadratic_of_its_batch() -> None:
    assert genie.single_rate(PLAIN, 8) == pytest.approx(10 + 16 - 3.2)


def test_a_quadratic_falls_again_unless_it_is_held_at_its_top() -> None:
    held = msgspec.structs.replace(PLAIN, reading=Reading(plateau=True))
    assert genie.single_rate(PLAIN, 40) == pytest.approx(10.0)
    assert genie.single_rate(held, 40) == genie.single_rate(held, 20) == pytest.approx(30.0)


@pytest.mark.parametrize(
    "nodes, each, gpus_lost",
    [
        (1, 1, 0.0),
        (2, 4, (4 + 0.2 * 3) * 1.5 / 7),
        (4, 4, (12 + 0.2 * 3) * 1.5 / 15),
        (1, 4, 0.2 * 1.5),  # <1, g>: lambda gamma, whatever g is
        (4, 1, 1.5),  # <d, 1>: gamma
    ],
)
def test_the_penalty_is_the_mean_path(nodes: int, each: int, gpus_lost: float) -> None:
    assert genie.penalty(PLAIN, nodes, each) == pytest.approx(gpus_lost)


def test_the_penalty_may_be_read_as_none_where_it_is_not_defined() -> None:
    read = msgspec.structs.replace(PLAIN, reading=Reading(alone="none"))
    assert genie.penalty(read, 1, 4) == genie.penalty(read, 4, 1) == 0
    assert genie.penalty(read, 2, 4) == genie.penalty(PLAIN, 2, 4)


def test_inference_synchronises_nothing() -> None:
    assert genie.penalty(PLAIN, 4, 4, training=False) == 0
    assert genie.rate(PLAIN, 64, 2, 2, training=False) == pytest.approx(
        4 * genie.single_rate(PLAIN, 16)
    )


def test_rate_latency_and_step_agree() -> None:
    each = genie.single_rate(PLAIN, 64 / 8)
    rate = (8 - 4.6 * 1.5 / 7) * each
    assert genie.rate(PLAIN, 64, 2, 4) == pytest.approx(rate)
    assert genie.step_s(PLAIN, 64, 2, 4) == pytest.approx(64 / rate)
    told = genie.latency_s(PLAIN, 64, 1000, Split(2, 4), start_s=30)
    assert told == pytest.approx(64_000 / rate + 30)
    assert genie.step_ns(PLAIN, 8, 2, 8) == pytest.approx(64e9 / rate)


def test_a_penalty_above_all_gpus_leaves_a_part_of_them() -> None:
    heavy = msgspec.structs.replace(PLAIN, gamma=10.0)
    assert genie.rate(heavy, 16, 2, 1) == pytest.approx(
        genie.EFFECTIVE_MIN * 2 * genie.single_rate(heavy, 8)
    )


def test_deadlines_are_lengths_from_the_arrival() -> None:
    assert [genie.ect_s(qos, 100.0) for qos in Qos] == [0.0, 100.0, 200.0]
    assert [genie.deadline_s(qos, 7.0, 100.0) for qos in Qos] == [7.0, 107.0, 207.0]


def test_cost_and_what_is_had_for_it() -> None:
    assert genie.cost(Split(1, 4), 4, 4) == pytest.approx(4 / 16 + 0.4 / 4)
    assert genie.cost(Split(4, 1), 4, 4) == pytest.approx(4 / 16 + 0.4)
    assert genie.cost(Split(4, 4), 4, 4, theta=0.0) == 1.0
    assert genie.cost_effective(70.0, 0.35) == pytest.approx(200.0)


def test_placements_of_a_platform() -> None:
    assert len(genie.splits(4, 4)) == 16
    strict = genie.splits(4, 4, strict=True)
    assert len(strict) == 9
    assert max(each.gpus for each in strict) == 9


def test_both_regressions_recover_what_was_put_in() -> None:
    single = [(1, 1, batch) for batch in (2, 4, 8, 16)]
    more = [(nodes, each, 4) for nodes, each in ((1, 2), (1, 4), (2, 1), (4, 1), (2, 4))]
    points = [
        Point(
            Placement("k80", nodes * each, nodes, batch),
            seconds(genie.step_s(PLAIN, batch * nodes * each, nodes, each)),
        )
        for nodes, each, batch in single + more
    ]
    found = fit.fit_genie(points)
    assert found is not None
    for name in ("k0", "k1", "k2", "gamma", "lambda_"):
        assert getattr(found, name) == pytest.approx(getattr(PLAIN, name), rel=1e-4)


@pytest.mark.parametrize("constant", [True, False])
def test_one_run_is_enough_for_a_guess(*, constant: bool) -> None:
    point = Point(Placement("k80", 1, 1, 8), seconds(2.0))
    found = fit.fit_genie([point], Reading(constant=constant))
    assert found is not None
    assert genie.single_rate(found, 8) == pytest.approx(4.0)
    assert found.gamma == 0
