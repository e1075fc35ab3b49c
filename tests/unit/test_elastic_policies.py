"""Pollux, ElasticFlow and Optimus from the fewest workers: sizes of elastic jobs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy import registry
from skep.policy.registry import make
from skep.policy.schedulers.elasticflow import Stretch, Wants, deadline, fill
from skep.policy.shares import Choice, share_out
from skep.policy.sizes import fewest_workers, known_speeds, snapped
from skep.policy.view import JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant, seconds
from tests.policy_kit import NOW, job, told, view

ROUND = Instant(NOW // seconds(60) * seconds(60))
LINEAR = tuple((workers, 1000 * workers) for workers in range(1, 9))
FLAT = ((1, 1000), (2, 1050), (3, 1060), (4, 1065), (5, 1066), (6, 1067), (7, 1068), (8, 1069))
SLOWER = ((1, 1000), *((workers, 900) for workers in range(2, 9)))


def elastic(name: str, workers: int = 1, *, on: int = 0, **more: Any) -> JobView:
    """Return an elastic job of 1 to 8 GPUs, which waits or runs on `on` GPUs of the node n1."""
    given: dict[str, Any] = {"elastic": (1, 8), "rates": LINEAR, "needs": 1000} | more
    place = [("n1", on)] if on else []
    return job(name, on or workers, on=place, **given)


def plan(name: str, seen: VcView, **options: Any) -> str:
    made = make(name, options).plan(seen)
    begins = "".join(f" {turn.job}:{turn.workers}" for turn in made.turns if turn.workers)
    return told(made) + begins


# --- speeds ---------------------------------------------------------------------------------------


def test_unknown_speeds_are_in_proportion_up_to_twice_the_largest_known_size() -> None:
    known = elastic("j1", on=1, rates=((1, 1000), (2, 1800)))
    assert known_speeds(known) == {1: 1000, 2: 1800, 3: 2700, 4: 3600}
    assert known_speeds(elastic("j1", rates=())) == {1: 1.0}
    assert known_speeds(job("j1", 3)) == {3: 1.0}


def test_only_sizes_that_a_job_offers_are_chosen() -> None:
    some = replace(elastic("j1", on=2, ran=5000, since=5000), sizes=(1, 2, 4))
    assert list(known_speeds(some)) == [1, 2, 4]
    assert plan("pollux", view([some], size=8, nodes=1, now=ROUND)) == "j1=4"


def test_a_job_begins_with_a_size_that_it_offers_before_any_speed_is_known() -> None:
    waits = replace(elastic("j1", 4, rates=()), sizes=(4, 8))
    assert known_speeds(waits) == {4: 4.0}
    assert fewest_workers(waits) == 4
    assert fewest_workers(elastic("j1", 4)) == 1
    assert fewest_workers(replace(elastic("j1", 2), sizes=(16,))) == 2, "those of its spec"


def test_a_size_that_is_not_offered_becomes_the_next_smaller_one_or_the_smallest() -> None:
    some = replace(elastic("j1", on=4), sizes=(2, 4, 8))
    assert [snapped(some, workers) for workers in (1, 2, 3, 4, 7, 8)] == [2, 2, 2, 4, 4, 8]
    assert snapped(elastic("j1", on=4), 3) == 3


# --- Pollux ---------------------------------------------------------------------------------------


def test_pollux_gives_gpus_to_who_scales() -> None:
    old = {"ran": 5000, "since": 5000}
    jobs = [elastic("j1", on=1, **old), elastic("j2", on=1, rates=FLAT, **old)]
    assert plan("pollux", view(jobs, size=8, nodes=1, now=ROUND)) == "j1=7"


def test_pollux_shares_evenly_among_equals_and_shrinks_who_has_more() -> None:
    jobs = [elastic("j1", on=6, ran=9000, since=9000), elastic("j2", 4)]
    assert plan("pollux", view(jobs, size=8, nodes=1, now=ROUND)) == "j1=4 +j2 j2:4"


def test_pollux_leaves_a_young_job_that_would_lose_more_by_its_restart() -> None:
    """It came 10 s ago: a restart of 30 s is worth it for none of 8 GPUs."""
    young = replace(elastic("j1", on=7), submitted_at=Instant(ROUND - seconds(10)))
    assert plan("pollux", view([young], size=8, nodes=1, now=ROUND)) == ""
    assert plan("pollux", view([young], size=8, nodes=1, now=ROUND), restart_s=0) == "j1=8"


def test_pollux_decides_once_in_a_round_and_passes_on_what_comes_free() -> None:
    jobs = [elastic("j1", on=6, ran=9000, since=9000), elastic("j2", 4)]
    seen = view(jobs, size=8, nodes=1, now=Instant(ROUND + seconds(20)))
    assert plan("pollux", seen) == "+j2 j2:4", "no job is made smaller now"
    late = replace(seen, now=Instant(ROUND + seconds(45)))
    assert plan("pollux", late) == ""
    made = make("pollux").plan(late)
    assert made.look_at == ROUND + seconds(60)


def test_pollux_waits_with_who_came_after_the_round_began() -> None:
    now = Instant(ROUND + seconds(20))
    came = replace(elastic("j1"), waiting_since=Instant(ROUND + seconds(10)))
    assert plan("pollux", view([came], now=now)) == ""
    assert plan("pollux", view([came], now=Instant(ROUND + seconds(60)))) == "+j1 j1:8"


def test_pollux_tries_a_job_anew_that_did_not_scale_before() -> None:
    """In one of 30 rounds, which its place in the order of arrival says."""
    old = elastic("j1", on=1, rates=SLOWER, ran=9000, since=9000)
    seen = view([old], size=8, nodes=1)
    found = {
        number: plan("pollux", replace(seen, now=Instant(ROUND + number * seconds(60))))
        for number in range(30)
    }
    assert [text for text in found.values() if text] == ["j1=2"]
    assert plan("pollux", replace(seen, now=ROUND), retry_s=60) == "j1=2"


def test_pollux_makes_room_for_a_job_of_fixed_size() -> None:
    jobs = [elastic("j1", on=8, ran=9000, since=9000), job("j2", 6)]
    assert plan("pollux", view(jobs, size=8, nodes=1, now=ROUND)) == "j1=2 +j2"


def test_who_does_not_fit_beside_the_fewest_workers_of_all_blocks_the_others_if_strict() -> None:
    jobs = [elastic("j1", on=2), job("j2", 8), elastic("j3")]
    seen = view(jobs, size=8, nodes=1, now=ROUND)
    assert plan("pollux", seen) == "j1=8"
    assert plan("pollux", seen, strict=False) == "j1=4 +j3 j3:4"


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_the_best_that_a_search_of_all_finds(seed: int) -> None:
    """For concave terms; two jobs, every division of 8 GPUs."""
    jobs = [elastic("j1", on=1), elastic("j2", on=1)]
    worths = {
        each.job: [
            Choice(k, k, -1 / (k ** (0.1 * (1 + (seed * (n + 3)) % 10)))) for k in range(1, 9)
        ]
        for n, each in enumerate(jobs)
    }
    found = share_out(jobs, worths, 8, strict=True)
    best = max(worths["j1"][k - 1].worth + worths["j2"][7 - k].worth for k in range(1, 8))
    assert found["j1"].worth + found["j2"].worth == pytest.approx(best)


def test_pollux_shares_with_a_job_that_does_not_offer_its_fair_share() -> None:
    """An equal share is 3 of 8 GPUs, which the first job cannot have."""
    old = {"ran": 5000, "since": 5000}
    some = replace(elastic("j1", on=2, **old), sizes=(1, 2, 4, 8))
    jobs = [some, elastic("j2", on=2, **old), elastic("j3", on=2, **old)]
    assert plan("pollux", view(jobs, size=8, nodes=1, now=ROUND)) == "j2=3 j3=3"


# --- ElasticFlow ----------------------------------------------------------------------------------


def due(name: str, after_s: float, workers: int = 1, **more: Any) -> JobView:
    """Return an elastic job that came just now and is to end in so many seconds."""
    made = elastic(name, workers, labels={"finish-by-s": f"{after_s:g}"}, **more)
    return replace(made, submitted_at=ROUND)


def test_a_share_is_the_smallest_power_of_two_that_ends_in_time() -> None:
    speeds = {1: 1.0, 2: 1.8, 4: 3.0}
    free = [Stretch(0, 100, 1), Stretch(100, float("inf"), 4)]
    later = Stretch(100, float("inf"), 4)
    assert fill(Wants(speeds, 1, 100.0, 100.0), free) == (1, [Stretch(0, 100, 0), later])
    assert fill(Wants(speeds, 1, 150.0, 190.0), free) is not None, "90 more with 2 in 50"
    assert fill(Wants(speeds, 1, 150.0, 260.0), free) is None


def test_elasticflow_gives_the_earliest_deadline_what_it_needs_before_others_grow() -> None:
    """1000 s of work at 1 GPU within 300 s takes 4 GPUs; the other has time."""
    tight, loose = due("j1", 300, on=0), due("j2", 5000)
    seen = view([tight, loose], size=4, nodes=1, now=ROUND)
    assert plan("elasticflow", seen) == "+j1 j1:4"
    wide = view([tight, loose], size=8, nodes=1, now=ROUND)
    assert plan("elasticflow", wide) == "+j1 +j2 j1:4 j2:4"


def test_elasticflow_admits_nobody_who_makes_an_admitted_job_late() -> None:
    """j1 runs and needs all four GPUs; j2's deadline leaves it no time to wait."""
    running = replace(due("j1", 300, on=1), nodes=(("n1", 1),))
    seen = view([running, due("j2", 280)], size=4, nodes=1, now=ROUND)
    assert plan("elasticflow", seen) == "j1=4"


def test_elasticflow_serves_who_has_no_deadline_from_what_is_left() -> None:
    seen = view([elastic("j1"), due("j2", 1200)], size=2, nodes=1, now=ROUND)
    assert plan("elasticflow", seen) == "+j1 +j2 j1:1 j2:1"


@pytest.mark.parametrize("text", ["", "soon", "-3", "nan", "inf", "0"])
def test_a_label_that_is_no_time_is_no_deadline(text: str) -> None:
    assert deadline(elastic("j1", labels={"finish-by-s": text}), "finish-by-s") is None


def test_a_deadline_counts_from_the_submission() -> None:
    assert deadline(due("j1", 90), "finish-by-s") == ROUND + 90 * NS_PER_SECOND


# --- Optimus --------------------------------------------------------------------------------------


def test_optimus_can_begin_with_the_fewest_workers() -> None:
    begins = Instant(NOW // seconds(600) * seconds(600))
    jobs = [elastic("j1", on=1, rates=((1, 1000),)), elastic("j2", 5)]
    seen = view(jobs, size=4, nodes=1, now=begins)
    assert plan("optimus", seen) == "+j2"
    assert plan("optimus", seen, fewest=True) == "j1=2 +j2 j2:1"


def test_optimus_goes_from_one_offered_size_to_the_next() -> None:
    begins = Instant(NOW // seconds(600) * seconds(600))
    grows = replace(elastic("j1", on=2), sizes=(1, 2, 4, 8))
    for gpus, text in ((3, ""), (7, "j1=4"), (8, "j1=8")):
        seen = view([grows], size=gpus, nodes=1, now=begins)
        assert plan("optimus", seen) == plan("optimus", seen, fewest=True) == text, gpus
    waits = replace(elastic("j1", 4), sizes=(2, 4))
    seen = view([waits], size=4, nodes=1, now=begins)
    assert plan("optimus", seen, fewest=True) == "+j1 j1:2"


@pytest.mark.parametrize(
    "name, options, text",
    [
        ("pollux", {"restart_s": -1}, "restart_s is seconds, 0 or more"),
        ("pollux", {"fairness": 2}, "fairness is an exponent"),
        ("pollux", {"every_s": 0}, "every_s is seconds, 1 or more"),
        ("elasticflow", {"label": ""}, "label names the label"),
        ("elasticflow", {"margin": 1}, "margin is the part"),
        ("elasticflow", {"every_s": 0.5}, "every_s is seconds, 1 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    name: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(registry.NoPolicy, match=text):
        make(name, options)


def test_a_suspended_job_keeps_its_size() -> None:
    away = elastic("j1", 3, phase=Phase.AWAY)
    assert plan("pollux", view([away], size=8, nodes=1, now=ROUND)) == "+j1"
