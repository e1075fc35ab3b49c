"""Searches whose clients demote trials, and ask for many at once."""

from __future__ import annotations

from typing import Any

import pytest

from skep.perf.learning import POINTS_MIN
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchTrialDemoted
from tests.search_kit import World
from tests.unit.test_searches import TURN_S, curve, stands, turned

PARAMS = {"lr": 0.1}
ENDED = (End.SUCCEEDED, Reason.SUCCEEDED)


@pytest.fixture
def world() -> World:
    return World()


def begun(world: World, trials: int, parallel: int = 2, **changes: Any) -> str:
    """Begin a search whose client asks for so many trials at once."""
    name = world.begin(sampler="client", budget={"trials": trials}, parallel=parallel, **changes)
    for _ in range(trials):
        assert world.ask(do="ask", search=name, params=PARAMS).accepted
    world.settle()
    return name


def test_a_demoted_trial_makes_room_at_once_and_comes_back_when_promoted(world: World) -> None:
    name = begun(world, 3)
    curve(world, 1, 0.5)
    assert stands(world) == {1: "running", 2: "running", 3: "new"}
    world.ask(do="demote", search=name, trial=1)
    world.settle()
    assert stands(world) == {1: "suspended", 2: "running", 3: "running"}
    assert (1, False, Reason.DEMOTED) in turned(world)
    curve(world, 2, 0.1)
    curve(world, 3, 0.1)
    # The others wait for nobody: their turns go on, however long.
    world.pass_time(5 * TURN_S)
    assert stands(world) == {1: "suspended", 2: "running", 3: "running"}
    world.ask(do="promote", search=name, trial=1)
    world.pass_time(TURN_S)
    assert stands(world)[1] == "running"


def test_a_demoted_trial_has_the_places_that_nobody_wants(world: World) -> None:
    name = begun(world, 4)
    for number in (1, 2):
        curve(world, number, *[0.5] * POINTS_MIN)
        world.ask(do="demote", search=name, trial=number)
    world.settle()
    assert stands(world) == {1: "suspended", 2: "suspended", 3: "running", 4: "running"}
    world.end(world.job_of(3), *ENDED)
    world.settle()
    assert stands(world) == {1: "running", 2: "suspended", 3: "over", 4: "running"}
    # Both demoted ones take turns with what is left, and the other one keeps its place.
    world.pass_time(TURN_S)
    assert stands(world) == {1: "suspended", 2: "running", 3: "over", 4: "running"}


def test_a_demoted_trial_is_not_promoted_to_the_next_rung(world: World) -> None:
    name = begun(world, 4, 1, method="asha", rungs={"first": 10, "last": 90, "eta": 2})
    world.ask(do="demote", search=name, trial=1)
    world.settle()
    assert stands(world) == {1: "suspended", 2: "running", 3: "new", 4: "new"}
    curve(world, 2, 0.9)
    assert stands(world) == {1: "suspended", 2: "suspended", 3: "running", 4: "new"}
    world.ask(do="demote", search=name, trial=2)
    curve(world, 3, 0.4)
    # Trial 2 is the best at its rung, and its client wants it behind the others.
    assert stands(world) == {1: "suspended", 2: "suspended", 3: "suspended", 4: "running"}
    world.ask(do="promote", search=name, trial=2)
    curve(world, 4, 0.3)
    assert stands(world) == {1: "suspended", 2: "running", 3: "suspended", 4: "suspended"}


def test_demotions_are_facts_told_once(world: World) -> None:
    name = begun(world, 2)
    for _ in range(3):
        assert world.ask(do="demote", search=name, trial=1).accepted
    told = [fact for fact in world.driver.facts if isinstance(fact, SearchTrialDemoted)]
    assert [(fact.trial, fact.demoted) for fact in told] == [(1, True)]


def test_requests_that_are_read_again_change_nothing(world: World) -> None:
    name = begun(world, 3)
    first = world.number + 1
    for do in ("demote", "promote", "demote", "promote"):
        assert world.ask(do=do, search=name, trial=1).accepted
    world.restart()
    facts, latest = list(world.driver.facts), world.number
    for number, do in enumerate(("demote", "promote", "demote", "promote"), first):
        world.number = number - 1
        assert world.ask(do=do, search=name, trial=1).accepted
    assert world.number == latest
    assert world.driver.facts == facts
    assert not world.trial(1).demoted
    assert world.ask(do="demote", search=name, trial=1).accepted
    assert world.trial(1).demoted


def test_who_runs_outside_or_is_unknown_cannot_be_demoted(world: World) -> None:
    name = world.begin(sampler="client")
    world.ask(do="ask", search=name, params=PARAMS, outside=True)
    for trial in (1, 7):
        verdict = world.ask(do="demote", search=name, trial=trial)
        assert verdict.reason is Reason.UNKNOWN_TRIAL
    for asked, reason in (
        ({"do": "demote", "search": "s99", "trial": 1}, Reason.UNKNOWN_SEARCH),
        ({"do": "demote", "search": name}, Reason.MISSING_KEY),
        ({"do": "promote", "search": name, "trial": "one"}, Reason.WRONG_TYPE),
        ({"do": "demoted", "search": name, "trial": 1}, Reason.BAD_VALUE),
    ):
        assert world.ask(**asked).reason is reason


def test_what_was_asked_for_has_its_first_turn_before_anybody_keeps_his(world: World) -> None:
    begun(world, 4, exclusive=1)
    curve(world, 1, 0.7, 0.8, 0.9)
    curve(world, 2, *[0.1] * POINTS_MIN)
    world.pass_time(TURN_S)
    assert stands(world) == {1: "suspended", 2: "suspended", 3: "running", 4: "running"}
    curve(world, 3, *[0.1] * POINTS_MIN)
    curve(world, 4, *[0.2] * POINTS_MIN)
    # All have told something: from here on the best keeps its place.
    world.pass_time(TURN_S)
    assert stands(world)[1] == "running"
    world.pass_time(10 * TURN_S)
    assert [turn for turn in turned(world) if turn[0] == 1] == [
        (1, False, Reason.SLICE_OVER),
        (1, True, Reason.BEST_PROMISE),
    ]


def test_a_short_curve_is_enough_to_be_ranked_by(world: World) -> None:
    begun(world, 3, exclusive=1)
    curve(world, 1, *[0.3] * POINTS_MIN)
    curve(world, 2, *[0.6] * POINTS_MIN)
    world.pass_time(TURN_S)
    curve(world, 3, *[0.4] * POINTS_MIN)
    world.pass_time(4 * TURN_S)
    assert stands(world)[2] == "running"
    assert 2 not in [number for number, _, _ in turned(world)]
    curve(world, 2, 0.2, 0.2, 0.2, 0.2)
    world.pass_time(4 * TURN_S)
    assert 2 in [number for number, _, _ in turned(world)], "its curve promises less by now"
