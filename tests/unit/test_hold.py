"""The policy `hold`: no job is on more nodes than it needs, until it has waited for long."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.capacity import fewest_nodes
from skep.policy.registry import make
from skep.policy.view import JobView, Phase
from skep.units import Instant, seconds
from tests.policy_kit import NOW, job, told, view

HALF = [job("j1", 2, on=[("n1", 2)], needs=900), job("j2", 2, on=[("n2", 2)], needs=900)]
"""Two of the four GPUs of each node are taken."""


def waits(name: str, gpus: int, needs: float | None, since_s: float = 0, **more: Any) -> JobView:
    """Return a job that has waited for so many seconds."""
    made = job(name, gpus, needs=needs, **more)
    return replace(made, waiting_since=Instant(NOW - seconds(since_s)))


def held(*jobs: JobView, **options: Any) -> str:
    made = make("hold", options).plan(view([*HALF, *jobs]))
    begins = "".join(f" {turn.job}:{turn.workers}" for turn in made.turns if turn.workers)
    return told(made) + begins


def test_a_job_is_held_rather_than_spread_and_later_ones_are_not() -> None:
    assert held(waits("j3", 4, 100)) == "?j3"
    assert held(waits("j3", 4, 100), waits("j4", 2, 900)) == "+j4@n1 ?j3"


def test_it_may_be_spread_after_a_multiple_of_its_ideal_time() -> None:
    assert held(waits("j3", 4, 100, since_s=499), drain=0) == "?j3"
    assert held(waits("j3", 4, 100, since_s=500), drain=0) == "+j3@n1,n2"
    assert held(waits("j3", 4, 100, since_s=500), drain=0, relax=6) == "?j3"
    made = make("hold", {"drain": 0}).plan(view([*HALF, waits("j3", 4, 100, since_s=400)]))
    assert made.look_at == NOW + seconds(100)


def test_in_a_burst_it_is_held_for_as_long_as_the_queue_takes_beside_that() -> None:
    """Jobs that wait would keep eight GPUs busy for 50 s, or for 550 s."""
    asks = waits("j3", 4, 100, since_s=560)
    assert held(asks) == "+j3@n1,n2"
    assert held(asks, waits("j4", 8, 500)) == "?j3 ?j4"


def test_a_job_that_is_hardly_slower_is_not_held() -> None:
    assert held(waits("j3", 4, 100, slowdown=((1, 1000), (2, 1040)))) == "+j3@n1,n2"
    assert held(waits("j3", 4, 100, slowdown=((1, 1000), (2, 1060)))) == "?j3"
    assert held(waits("j3", 4, 100, slowdown=((1, 1000),))) == "?j3", "nothing is known of two"
    assert held(waits("j3", 4, 100, slowdown=((3, 1000), (4, 1010)))) == "?j3", "nor here"
    sure = waits("j3", 4, 100, slowdown=((1, 1000), (2, 1040)))
    unsure = replace(sure, slowdown_high=((1, 1000), (2, 1300)))
    assert held(unsure) == "?j3", "it may be slower, as far as is known"


def test_a_gang_larger_than_a_node_is_on_as_few_as_hold_it() -> None:
    big = waits("j3", 6, 100)
    assert make("hold").plan(view([big], nodes=3)).turns[0].nodes == ("n1", "n2")
    assert fewest_nodes(big, view([*HALF, big])) == 2
    assert held(big) == "?j3", "four are free"


def test_shorter_jobs_come_first_until_one_has_waited_for_too_long() -> None:
    long, short = waits("j3", 2, 900, since_s=300), waits("j4", 2, 60)
    assert held(long, short).startswith("+j4@n1 +j3@n2")
    assert held(long, short, wait_max_s=200).startswith("+j3@n1 +j4@n2")
    whole = waits("j5", 4, 900, since_s=300)
    assert held(whole, short, wait_max_s=200) == "?j5 ?j4"


def test_a_job_that_has_waited_for_too_long_blocks_only_those_with_its_pin() -> None:
    asks = [
        waits("j3", 4, 900, since_s=300, pin="p"),
        waits("j4", 1, 60, pin="p"),
        waits("j5", 2, 60),
        waits("j6", 1, 60, pin="q"),
    ]
    seen = view(asks, pins={"p": {"n1": 2}, "q": {"n2": 1}})
    assert told(make("hold", {"wait_max_s": 200}).plan(seen)) == "+j6@n2 +j5@n1 ?j3 ?j4"


def test_an_elastic_job_begins_narrower_where_that_is_close_if_it_is_asked_for() -> None:
    asks = waits("j3", 4, 100, elastic=(1, 4))
    assert held(asks) == "?j3"
    assert held(asks, narrower=True) == "+j3@n1 j3:2"


def test_it_begins_only_with_a_size_that_it_offers() -> None:
    asks = waits("j3", 4, 100, elastic=(1, 4))
    assert held(replace(asks, sizes=(1, 3, 4)), narrower=True) == "+j3@n1 j3:1"
    assert held(replace(asks, sizes=(3, 4)), narrower=True) == "?j3"


def test_a_suspended_job_goes_back_to_its_own_nodes() -> None:
    away = waits("j3", 4, 100, phase=Phase.AWAY, nodes=(("n1", 2), ("n2", 2)))
    assert held(away) == "+j3@n1,n2"


@pytest.mark.parametrize("wrong", [{"relax": -1}, {"drain": -1}, {"slower": -1}, {"wait_max_s": 0}])
def test_wrong_options_of_hold_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make("hold", wrong)
