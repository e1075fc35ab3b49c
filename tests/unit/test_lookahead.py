"""The policy `look-ahead`: sizes by what they gain in completion, and what a job still takes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.registry import make
from skep.policy.sizes import OVERDUE, UNKNOWN, times
from skep.policy.view import JobView, VcView
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.spec import ParameterServers
from tests.policy_kit import NOW, carry_out, job, told, view

ROUND = Instant(NOW // seconds(600) * seconds(600))
LINEAR = tuple((workers, 1000 * workers) for workers in range(1, 9))
HUMP = ((1, 1000), (2, 900), (3, 900), (4, 4000))
"""Two and three workers are slower than one; four are faster."""


def elastic(name: str, *, on: int = 0, node: str = "n1", most: int = 8, **more: Any) -> JobView:
    """Return an elastic job of one worker by its spec; it waits, or runs on `on` GPUs of a node."""
    given: dict[str, Any] = {"elastic": (1, most), "rates": LINEAR, "needs": 8000} | more
    waits = job(name, 1, **given)
    if not on:
        return waits
    return replace(job(name, on, on=[(node, on)], **given), spec=waits.spec)


def ahead(seen: VcView, **options: Any) -> str:
    made = make("look-ahead", {"every_s": 600, **options}).plan(seen)
    begins = "".join(f" {turn.job}:{turn.workers}" for turn in made.turns if turn.workers)
    return told(made) + begins


def at(*jobs: JobView, gpus: int = 8, into_s: float = 0, nodes: int = 1) -> VcView:
    return view(jobs, size=gpus, nodes=nodes, now=Instant(ROUND + seconds(into_s)))


# --- how long a job still takes -------------------------------------------------------------------


def test_time_left_at_a_size_is_the_work_left_by_its_speed() -> None:
    assert times(elastic("j1", needs=1000), NOW)[4] == 250 * NS_PER_SECOND
    runs = elastic("j1", on=4, ran=100, since=100, needs=1000)
    assert times(runs, NOW)[1] == 900 * NS_PER_SECOND, "its length is said for one worker"
    told_so = replace(runs, left=Duration(300 * NS_PER_SECOND))
    assert times(told_so, NOW)[4] == 200 * NS_PER_SECOND
    assert times(told_so, NOW)[1] == 800 * NS_PER_SECOND


def test_a_job_that_should_have_ended_or_says_nothing_still_takes_some_time() -> None:
    late = elastic("j1", on=1, ran=9000, since=9000, needs=1000)
    assert times(late, NOW)[1] == pytest.approx(OVERDUE * 1000 * NS_PER_SECOND)
    silent = elastic("j1", on=1, ran=9000, since=9000, needs=None)
    assert times(silent, NOW)[1] == 9000 * NS_PER_SECOND
    assert times(elastic("j1", needs=None), NOW)[1] == UNKNOWN


# --- look-ahead -----------------------------------------------------------------------------------


def test_it_looks_beyond_sizes_that_gain_nothing() -> None:
    seen = at(elastic("j1", on=1, rates=HUMP, most=4))
    assert ahead(seen) == "j1=4"
    assert told(make("optimus").plan(seen)) == "", "which stops at the first of them"
    assert ahead(at(elastic("j1", on=1, rates=HUMP, most=4), gpus=3)) == "", "four are not there"


def test_gpus_go_where_they_gain_the_most_time() -> None:
    scales, hardly = elastic("j1", on=1), elastic("j2", on=1, rates=((1, 1000), (2, 1010)), most=2)
    assert ahead(at(scales, hardly)) == "j1=7"
    short, long = elastic("j1", on=1, needs=600), elastic("j2", on=1, needs=60000)
    assert ahead(at(short, long)) == "j1=4 j2=4", "each by as large a part of it"
    assert ahead(at(short, long), power=-1) == "j2=7", "its time falls more"
    assert ahead(at(short, long), power=1) == "j1=7", "it does more of its work in a second"


def test_no_job_changes_for_less_than_that_costs() -> None:
    soon = elastic("j1", on=1, needs=100)
    assert ahead(at(soon), pause_s=0) == "j1=8"
    assert ahead(at(soon), pause_s=90) == "", "unless a move was measured"
    costly = replace(soon, pause=seconds(90))
    assert ahead(at(costly)) == "", "100 s with one, or 90 s and 12 s with eight"
    assert ahead(at(replace(costly, expected=seconds(200)))) == "j1=8"


def test_no_job_changes_for_a_gain_that_is_within_the_error_of_its_prediction() -> None:
    rates = ((1, 1000), (2, 1000), (3, 1000), (4, 1500))
    sure = elastic("j1", on=1, rates=rates, most=4)
    assert ahead(at(sure)) == "j1=4"
    unsure = replace(sure, rates_low=(*rates[:3], (4, 900)))
    found = times(unsure, NOW, cautious=True)
    assert found[4] == pytest.approx(found[1] / 0.9)
    assert ahead(at(unsure), cautious=True) == ""
    assert ahead(at(unsure)) == "j1=4", "by itself it goes by the P50"
    assert ahead(at(replace(unsure, rates_low=(*rates[:3], (4, 1100)))), cautious=True) == "j1=4"
    begins = elastic("j1", rates=rates, most=4, rates_low=unsure.rates_low)
    assert ahead(at(begins), cautious=True) == "+j1 j1:4", "it loses nothing by a try"


def test_a_plan_that_was_carried_out_leads_to_no_further_change() -> None:
    jobs = [
        elastic("j1", on=5, needs=500),
        elastic("j2", rates=HUMP, most=4),
        elastic("j3", most=2),
    ]
    seen = at(*jobs, gpus=8)
    made = make("look-ahead").plan(seen)
    assert made.actions
    assert made.turns
    after = carry_out(made, seen)
    assert ahead(after) == ""


def test_running_jobs_change_at_the_beginning_of_a_round_only() -> None:
    runs, comes = elastic("j1", on=6), elastic("j2")
    assert ahead(at(runs, comes)) == "j1=4 +j2 j2:4"
    assert ahead(at(runs, comes, into_s=60)) == "+j2 j2:2", "it begins with what is free"
    made = make("look-ahead", {"every_s": 600}).plan(at(runs, comes, into_s=60))
    assert made.look_at == ROUND + seconds(600)


def test_what_a_smaller_job_gives_back_is_passed_on_when_the_change_is_done() -> None:
    small = replace(elastic("j1", on=4, most=4), pause=seconds(20))
    grows = replace(elastic("j2", on=2, most=4), pause=seconds(20))
    assert ahead(at(small, grows, into_s=15)) == "j2=4"
    assert ahead(at(small, grows, into_s=60)) == ""


def test_a_job_is_not_changed_again_before_it_was_measured() -> None:
    grew = replace(elastic("j1", on=2), rate_workers=1)
    assert ahead(at(grew)) == ""
    assert ahead(at(replace(grew, rate_workers=2))) == "j1=8"


def test_who_has_waited_for_too_long_comes_first_and_blocks_the_others() -> None:
    big = replace(job("j1", 8, needs=9000), waiting_since=Instant(ROUND - seconds(5000)))
    small = replace(job("j2", 2, needs=60), waiting_since=Instant(ROUND - seconds(60)))
    runs = job("j3", 4, on=[("n1", 4)])
    assert ahead(at(big, small, runs)) == "+j2"
    assert ahead(at(big, small, runs), wait_max_s=4000) == "?j2"


def test_a_job_with_parameter_servers_grows_on_its_own_node_only() -> None:
    apart = elastic("j1", on=1)
    served = replace(apart, spec=replace(apart.spec, ps=ParameterServers()))
    other = job("j2", 5, on=[("n1", 5)])
    assert ahead(at(apart, other, nodes=2)) == "j1=8"
    assert ahead(at(served, other, nodes=2)) == "j1=3"
    two = replace(served, nodes=(("n1", 1), ("n2", 1)), gpus=2, workers=2)
    assert ahead(at(two, nodes=2)) == "", "and on two nodes it cannot be changed"


@pytest.mark.parametrize(
    "wrong", [{"every_s": 0}, {"wait_max_s": 0}, {"power": 3}, {"pause_s": -1}]
)
def test_wrong_options_of_look_ahead_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make("look-ahead", wrong)
