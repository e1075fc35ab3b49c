"""Searches: each thing a search does with its trials, and what is told about requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.machines.base import Send, Tick
from skep.machines.searches.machine import LOOK, RESEND, RETRY, SEARCHES_MAX, SILENT
from skep.machines.searches.plan import FAILURES_MAX, FEEDBACK_TURNS
from skep.machines.searches.state import CURVE_MAX, drawn, job_of
from skep.perf.learning import POINTS_MIN
from skep.units import in_seconds
from skep.wire import subjects
from skep.wire.changes import AskSuspend
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep.wire.search_facts import (
    SearchBegan,
    SearchEnding,
    SearchOver,
    SearchRequest,
    SearchTrialAdded,
    SearchTrialGivenUp,
    SearchTrialMeasured,
    SearchTrialOver,
    SearchTrialTurned,
    Stand,
    TrialEnd,
)
from tests.kit import at, others
from tests.search_kit import REPLY, World, search, tree

TURN_S = 10.0


@pytest.fixture
def world() -> World:
    return World()


def stands(world: World) -> dict[int, str]:
    (found,) = world.machine.searches.values()
    return {number: trial.stand.value for number, trial in found.trials.items()}


def turned(world: World) -> list[tuple[int, bool, Reason]]:
    return [
        (fact.trial, fact.run, fact.why)
        for fact in world.driver.facts
        if isinstance(fact, SearchTrialTurned)
    ]


def curve(world: World, number: int, *values: float) -> None:
    """Tell a trial's values after 10, 20, … further mini-batches."""
    job = world.job_of(number)
    for value in values:
        world.measure(job, job.step + 10, value)
    world.settle()


# --- a search begins --------------------------------------------------------------------------


def test_a_search_begins_with_as_many_trials_as_may_run(world: World) -> None:
    spec = search()
    verdict = world.ask(do="begin", spec=msgspec.to_builtins(spec))
    assert verdict.accepted
    assert verdict.search == "s1"
    facts: list[Any] = [SearchBegan(search="s1", spec=spec, at=at(0))]
    facts += [
        SearchTrialAdded(search="s1", trial=n, params=drawn(spec, n), at=at(0)) for n in (1, 2)
    ]
    assert world.driver.facts[1:] == facts
    found, first = world.machine.searches["s1"], world.trial(1)
    assert world.air == [
        Send(
            "skep.v1.submit.nlp",
            job_of(found, trial),
            {subjects.KEY_HEADER: f"search/s1/{trial.number}/1"},
        )
        for trial in found.trials.values()
    ]
    job = job_of(found, first)
    assert job.args == (f"--lr={first.params['lr']}",)
    assert job.env["SKEP_PARAMETERS"] == msgspec.json.encode(first.params).decode()
    assert (job.name, job.search, job.labels) == ("find-1", "s1", {"search": "s1", "trial": "1"})


def test_the_same_seed_draws_the_same_parameters_in_range() -> None:
    space = {
        "lr": {"log": [0.001, 1.0]},
        "drop": {"uniform": [0.0, 0.5]},
        "layers": {"integer": [1, 3]},
        "kind": {"choice": ["sgd", "adam"]},
    }
    spec = search(space=space)
    many: list[dict[str, Any]] = [drawn(spec, number) for number in range(1, 200)]
    assert many == [drawn(spec, number) for number in range(1, 200)]
    assert drawn(search(space=space, seed=1), 1) != many[0]
    assert all(0.001 <= each["lr"] <= 1.0 and 0 <= each["drop"] <= 0.5 for each in many)
    assert {each["layers"] for each in many} == {1, 2, 3}
    assert {each["kind"] for each in many} == {"sgd", "adam"}
    below = sum(each["lr"] < 0.0316 for each in many)
    assert 70 < below < 130, "half of the chances are below the middle magnitude"


def test_a_key_begins_one_search(world: World) -> None:
    world.begin(key="once")
    verdict = world.ask(key="once", do="begin", spec=msgspec.to_builtins(search()))
    assert (verdict.search, verdict.accepted, verdict.reason) == ("s1", True, Reason.REPEATED)
    assert list(world.machine.searches) == ["s1"]


def test_a_submission_is_repeated_until_admission_answers(world: World) -> None:
    world.begin()
    first = list(world.air)
    world.air.clear()
    assert world.driver.tick() == first
    assert world.now == at(in_seconds(RESEND))
    for send in first * 2:
        world.deliver(send)
    world.settle()
    assert len(world.jobs) == 2
    assert stands(world) == {1: "running", 2: "running"}


def test_the_allocator_may_be_read_before_admission(world: World) -> None:
    world.begin(parallel=1)
    world.deliver(world.air.pop())
    world.start()
    while world.read_one(1):
        pass
    assert stands(world) == {1: "running"}
    facts = list(world.driver.facts)
    world.read_one(0)
    assert world.driver.facts == facts


def test_a_passing_refusal_is_tried_again_under_another_key(world: World) -> None:
    world.begin(parallel=1)
    world.refuse = Reason.TOO_MANY_JOBS
    world.settle()
    assert stands(world) == {1: "new"}
    world.refuse = None
    world.pass_time(in_seconds(RETRY))
    assert stands(world) == {1: "running"}
    assert list(world.keys) == ["search/s1/1/1", "search/s1/1/2"]


def test_trials_that_all_fail_without_a_value_end_the_search(world: World) -> None:
    world.begin(budget={"trials": 50})
    world.refuse = Reason.UNKNOWN_VC
    world.settle()
    over = world.over()["s1"]
    assert (over.why, over.trial) == (Reason.REPEATED_FAILURES, 0)
    assert FAILURES_MAX <= over.trials <= FAILURES_MAX + 1
    assert not world.machine.searches
    assert not world.machine.jobs


def test_what_is_owed_is_said_again_at_once_after_a_crash(world: World) -> None:
    world.begin()
    said = list(world.air)
    world.air.clear()
    world.restart()
    assert world.air == said
    assert world.machine.wake_at() == at(in_seconds(RESEND))


def test_word_of_an_earlier_request_does_not_pass_for_the_latest(world: World) -> None:
    """Admission's log is read long after the allocator's: its word is of a request that is over."""
    world.begin(parallel=1, budget={"trials": 2})
    world.settle()
    curve(world, 1, *[0.1] * POINTS_MIN)
    world.driver.tick(TURN_S)
    (ask,) = [
        each for each in world.driver.tick(TURN_S + in_seconds(RESEND)) if isinstance(each, Send)
    ]
    world.deliver(ask)
    while world.read_one(1):
        pass
    assert world.trial(1).stand is Stand.SUSPENDED
    assert (world.trial(1).heard, world.trial(1).answered) == ("", world.number)
    world.read_one(0)
    assert world.trial(1).heard == ""


# --- turns and ranks --------------------------------------------------------------------------


def test_every_trial_has_early_feedback_before_any_has_a_second_turn(world: World) -> None:
    world.begin()
    world.settle()
    seen: list[int] = []
    for _ in range(3):
        for job in world.running():
            number = int(job.spec.labels["trial"])
            assert number not in seen
            seen.append(number)
            curve(world, number, *[0.1] * POINTS_MIN)
        world.pass_time(TURN_S)
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]
    assert not any(isinstance(fact, SearchTrialOver) for fact in world.driver.facts)
    # Who stood the longest comes next, and is resumed where it stands.
    assert {number for number, run, why in turned(world) if run} == {1, 2}
    assert len(world.jobs) == 6


@pytest.mark.parametrize("values", [0, POINTS_MIN - 1])
def test_until_a_curve_can_be_judged_a_turn_lasts_longer_but_not_for_ever(
    world: World, values: int
) -> None:
    world.begin(parallel=1)
    world.settle()
    curve(world, 1, *[0.1] * values)
    world.pass_time(TURN_S * FEEDBACK_TURNS - 1)
    assert stands(world) == {1: "running"}
    world.pass_time(2)
    assert stands(world) == {1: "suspended", 2: "running"}


def test_the_best_promise_keeps_its_place(world: World) -> None:
    world.begin(exclusive=1, budget={"trials": 4}, steps=1000)
    world.settle()
    curve(world, 1, 0.5, 0.6, 0.7, 0.75)
    curve(world, 2, 0.1, 0.11, 0.12, 0.12)
    for _ in range(4):
        world.pass_time(TURN_S)
        assert stands(world)[1] == "running"
        for job in world.running():
            if job.spec.labels["trial"] != "1":
                curve(world, int(job.spec.labels["trial"]), 0.1)
    assert 1 not in [number for number, _, _ in turned(world)]


def test_priorities_change_as_curves_come_in(world: World) -> None:
    world.begin(exclusive=1, budget={"trials": 3}, steps=1000)
    world.settle()
    curve(world, 1, 0.50, 0.51, 0.52)
    curve(world, 2, 0.1, 0.1, 0.1)
    world.pass_time(TURN_S)
    assert stands(world) == {1: "running", 2: "suspended", 3: "running"}
    world.pass_time(1)
    curve(world, 3, 0.6, 0.7, 0.8)
    world.pass_time(in_seconds(LOOK))
    # Trial 1 is one of the rest now, had its turn, and trial 2 waits for one.
    assert stands(world) == {1: "suspended", 2: "running", 3: "running"}
    curve(world, 2, 0.9, 0.95, 0.99)
    world.pass_time(TURN_S)
    assert stands(world)[2] == "running"
    assert (3, False, Reason.SLICE_OVER) in turned(world)


def test_a_suspended_best_promise_takes_the_place_of_another(world: World) -> None:
    world.begin(exclusive=1, budget={"trials": 3}, steps=1000)
    world.settle()
    curve(world, 1, 0.5, 0.6, 0.7)
    curve(world, 2, 0.1, 0.1, 0.1)
    world.pass_time(TURN_S)
    assert stands(world) == {1: "running", 2: "suspended", 3: "running"}
    # What it told before it stood arrives late.
    world.measure(world.job_of(2), 40, 0.9)
    world.measure(world.job_of(2), 50, 0.9)
    world.pass_time(TURN_S)
    assert (2, True, Reason.BEST_PROMISE) in turned(world)
    assert stands(world)[2] == "running"


def test_what_cannot_be_suspended_keeps_its_gpus_until_it_ends(world: World) -> None:
    world.fixed = True
    world.begin(parallel=1)
    world.settle()
    curve(world, 1, 0.1)
    world.pass_time(TURN_S * 10)
    assert stands(world) == {1: "running"}
    assert world.trial(1).fixed
    world.end(world.job_of(1), End.SUCCEEDED, Reason.SUCCEEDED)
    world.settle()
    assert stands(world) == {1: "over", 2: "running"}


def test_what_was_asked_is_not_repeated_once_admission_passed_it_on(world: World) -> None:
    world.begin(parallel=1, budget={"trials": 2})
    world.settle()
    curve(world, 1, *[0.1] * POINTS_MIN)
    world.driver.tick(TURN_S)
    (ask,) = world.event(Tick(), in_seconds(RESEND) + TURN_S)[:1]
    assert isinstance(ask, Send)
    assert ask.message == AskSuspend(job="j2", release=True)
    world.deliver(ask)
    world.read_one(0)
    again = world.event(Tick(), 3 * in_seconds(RESEND) + TURN_S)
    assert again == []


def test_an_answer_that_is_read_before_its_request_counts(world: World) -> None:
    world.begin(parallel=1, budget={"trials": 2})
    world.settle()
    curve(world, 1, *[0.1] * POINTS_MIN)
    effects = world.driver.tick(TURN_S)
    asks = [each for each in others(effects) if isinstance(each, Send)]
    job = world.job_of(1)
    world.lose(job)
    world.deliver(asks[0])
    while world.read_one(1):
        pass
    while world.read_one(0):
        pass
    assert (world.trial(1).heard, world.trial(1).stand) == ("", Stand.WAITING)
    world.pass_time(TURN_S + in_seconds(RETRY))
    assert stands(world) == {1: "suspended", 2: "running"}


def test_a_trial_that_made_room_and_moved_runs_again(world: World) -> None:
    from skep.wire.changes import Goal, JobChanged, Result

    world.begin(parallel=1)
    world.settle()
    for goal, why in ((Goal.SUSPEND, Reason.PREEMPTED), (Goal.MIGRATE, Reason.BY_POLICY)):
        world.alloc.append(
            JobChanged(
                job="j2",
                attempt=1,
                goal=goal,
                result=Result.DONE,
                why=why,
                at=world.now,
                released=goal is Goal.SUSPEND,
            )
        )
        while world.read_one(1):
            pass
        stand = Stand.WAITING if goal is Goal.SUSPEND else Stand.RUNNING
        assert world.trial(1).stand is stand


def test_who_made_room_for_others_is_not_resumed_by_its_search(world: World) -> None:
    from skep.wire.changes import Goal, JobChanged, Result

    world.begin(parallel=1)
    world.settle()
    world.alloc.append(
        JobChanged(
            job="j2",
            attempt=1,
            goal=Goal.SUSPEND,
            result=Result.DONE,
            why=Reason.PREEMPTED,
            at=world.now,
        )
    )
    world.read_one(1)
    assert stands(world) == {1: "waiting"}
    assert not world.air


# --- asha ---------------------------------------------------------------------------------------

RUNGS = {"first": 10, "last": 90, "eta": 3}


def test_one_of_eta_is_promoted_by_being_resumed(world: World) -> None:
    world.begin(method="asha", rungs=RUNGS, parallel=1, budget={"trials": 3})
    world.settle()
    for number, value in ((1, 0.3), (2, 0.9), (3, 0.5)):
        assert stands(world)[number] == "running"
        curve(world, number, value)
    assert turned(world) == [
        (1, False, Reason.RUNG_REACHED),
        (2, False, Reason.RUNG_REACHED),
        (3, False, Reason.RUNG_REACHED),
        (2, True, Reason.PROMOTED),
    ]
    assert stands(world) == {1: "suspended", 2: "running", 3: "suspended"}
    assert len(world.jobs) == 3
    world.end(world.job_of(2), End.SUCCEEDED, Reason.SUCCEEDED)
    world.settle()
    over = world.over()["s1"]
    assert (over.why, over.trial, over.value) == (Reason.ALL_TRIED, 2, 0.9)
    assert [job.state for job in world.jobs.values()] == ["ended"] * 3


def test_a_trial_that_is_among_the_best_runs_on(world: World) -> None:
    world.begin(method="asha", rungs=RUNGS, parallel=3, budget={"trials": 3})
    world.settle()
    curve(world, 1, 0.3)
    curve(world, 2, 0.2)
    curve(world, 3, 0.9)
    assert (3, True, Reason.PROMOTED) in turned(world)
    assert stands(world) == {1: "suspended", 2: "suspended", 3: "running"}


def test_brackets_begin_later_and_have_fewer_trials(world: World) -> None:
    world.begin(
        method="asha", parallel=13, live=13, budget={"trials": 13}, rungs={**RUNGS, "brackets": 2}
    )
    (found,) = world.machine.searches.values()
    brackets = [trial.bracket for trial in found.trials.values()]
    assert brackets.count(0) == 8
    assert [found.rungs(world.trial(brackets.index(at) + 1)) for at in (0, 1)] == [(10, 30), (30,)]


# --- ends ---------------------------------------------------------------------------------------


def test_the_target_ends_all_but_the_trial_that_reached_it(world: World) -> None:
    world.begin(target=0.8)
    world.settle()
    curve(world, 1, 0.5)
    curve(world, 2, 0.85)
    assert SearchEnding(search="s1", why=Reason.TARGET_REACHED, at=at(0), spared=2) in (
        world.driver.facts
    )
    assert stands(world) == {1: "over", 2: "running"}
    world.end(world.job_of(2), End.SUCCEEDED, Reason.SUCCEEDED)
    world.settle()
    over = world.over()["s1"]
    assert (over.trial, over.value, over.step, over.trials) == (2, 0.85, 10, 2)


def test_less_is_better_unless_said_otherwise(world: World) -> None:
    world.begin(direction="minimize", target=0.2)
    world.settle()
    curve(world, 1, 0.5)
    curve(world, 2, 0.1)
    world.ask(do="cancel", search="s1")
    world.settle()
    over = world.over()["s1"]
    assert (over.trial, over.value, over.why) == (2, 0.1, Reason.CANCELLED)


def test_the_gpu_time_is_kept_to_the_nanosecond(world: World) -> None:
    world.begin(budget={"trials": 6, "gpu_time": "15s"}, turn=1000)
    world.pass_time(30)
    over = world.over()["s1"]
    assert (over.why, over.at, over.gpu_ns) == (Reason.BUDGET_SPENT, at(7.5), 15 * 10**9)


def test_all_is_cancelled_at_once(world: World) -> None:
    world.begin()
    world.settle()
    curve(world, 1, 0.3)
    world.pass_time(TURN_S)
    effects = world.ask(do="cancel", search="s1")
    assert effects.accepted
    running = [job.job for job in world.jobs.values()]
    assert [send.message for send in world.air] == [{"job": job} for job in running]
    world.settle()
    assert world.over()["s1"].why is Reason.CANCELLED
    assert not world.machine.searches
    assert not world.machine.jobs
    assert world.machine.wake_at() is None


def test_a_submission_under_way_is_cancelled_once_it_is_a_job(world: World) -> None:
    world.begin(parallel=1)
    late = world.air.pop()
    world.ask(do="cancel", search="s1")
    assert world.air == [], "the submission goes on being repeated, at its time"
    assert "s1" in world.machine.searches
    world.deliver(late)
    world.settle()
    assert world.over()["s1"].why is Reason.CANCELLED
    assert [job.state for job in world.jobs.values()] == ["ended"]


def test_what_promises_too_little_is_stopped_for_good(world: World) -> None:
    world.begin(give_up=0.3, parallel=1, budget={"trials": 2}, steps=1000)
    world.settle()
    curve(world, 1, 0.05, 0.06, 0.06, 0.06)
    world.pass_time(in_seconds(LOOK))
    assert any(isinstance(fact, SearchTrialGivenUp) for fact in world.driver.facts)
    ends = [fact for fact in world.driver.facts if isinstance(fact, SearchTrialOver)]
    assert [(fact.trial, fact.end, fact.why) for fact in ends] == [
        (1, TrialEnd.GIVEN_UP, Reason.NO_PROMISE)
    ]
    assert stands(world) == {1: "over", 2: "running"}


# --- ask and tell ---------------------------------------------------------------------------------


def client(world: World, **changes: Any) -> None:
    world.begin(sampler="client", **changes)


def test_a_client_runs_trials_itself(world: World) -> None:
    client(world, target=0.9)
    asked = world.ask(do="ask", search="s1", outside=True, key="a")
    assert asked.trial == 1
    assert 0.001 <= float(asked.params["lr"]) <= 1.0
    again = world.ask(do="ask", search="s1", outside=True, key="a")
    assert (again.trial, again.reason) == (1, Reason.REPEATED)
    world.ask(do="tell", search="s1", trial=1, step=10, value=0.95)
    assert world.machine.searches["s1"].ending is Reason.TARGET_REACHED
    told = world.ask(do="tell", search="s1", trial=1, over="done")
    assert told.accepted
    assert world.over()["s1"].value == 0.95
    assert not world.air


def test_a_clients_parameters_become_a_job(world: World) -> None:
    client(world)
    asked = world.ask(do="ask", search="s1", params={"lr": 0.5})
    assert asked.params == {"lr": 0.5}
    world.settle()
    assert world.job_of(1).spec.args == ("--lr=0.5",)
    refused = world.ask(do="tell", search="s1", trial=1, value=0.5)
    assert refused.reason is Reason.UNKNOWN_TRIAL


@pytest.mark.parametrize(
    "params, path, reason, suggestion",
    [
        ({"lrr": 0.1}, "$.params.lrr", Reason.UNKNOWN_KEY, "did you mean `lr`?"),
        ({}, "$.params.lr", Reason.MISSING_KEY, ""),
        ({"lr": 2.0}, "$.params.lr", Reason.BAD_VALUE, ""),
        ({"lr": "x"}, "$.params.lr", Reason.BAD_VALUE, ""),
    ],
)
def test_wrong_parameters_are_refused(
    world: World, params: Any, path: str, reason: Reason, suggestion: str
) -> None:
    client(world)
    verdict = world.ask(do="ask", search="s1", params=params)
    assert not verdict.accepted
    problem = verdict.problems[0]
    assert (problem.path, problem.reason, problem.suggestion) == (path, reason, suggestion)


def test_a_client_that_went_away_is_waited_for_a_day(world: World) -> None:
    client(world, budget={"trials": 1})
    world.ask(do="ask", search="s1", outside=True)
    world.pass_time(in_seconds(SILENT) - 1)
    assert stands(world) == {1: "outside"}
    world.pass_time(2)
    assert world.over()["s1"].why is Reason.ALL_TRIED


def test_no_more_trials_than_the_budget(world: World) -> None:
    client(world, budget={"trials": 1})
    world.ask(do="ask", search="s1", outside=True)
    verdict = world.ask(do="ask", search="s1", outside=True)
    assert verdict.reason is Reason.SEARCH_ENDS


def test_parameters_of_a_search_without_a_space_are_bounded(world: World) -> None:
    client(world, space={})
    for params in (
        {f"p{each}": 1 for each in range(65)},
        {"p": "x" * 257},
        {"p": 10**101},
        {"p" * 257: 1},
    ):
        verdict = world.ask(do="ask", search="s1", params=params)
        assert [(each.path, each.reason) for each in verdict.problems] == [
            ("$.params", Reason.BAD_VALUE)
        ]
    assert world.ask(do="ask", search="s1", params={"p": "x" * 256, "q": True}).accepted


def test_a_refusal_that_is_read_again_is_not_called_accepted(world: World) -> None:
    raw = msgspec.json.encode({"do": "begin", "spec": tree(vc="cv")})
    asked = SearchRequest(number=7, vc="nlp", raw=raw, reply=REPLY, at=at(1))
    (refused,) = [each.message for each in world.event(asked) if isinstance(each, Send)]
    assert not refused.accepted
    world.restart()
    assert not [each for each in world.event(asked) if isinstance(each, Send)]


def test_requests_are_for_ones_own_searches(world: World) -> None:
    world.begin()
    for request in ({"do": "cancel"}, {"do": "ask"}, {"do": "tell", "trial": 1, "over": "done"}):
        verdict = world.ask(vc="cv", search="s1", **request)
        assert verdict.reason is Reason.UNKNOWN_SEARCH
    assert world.machine.searches["s1"].ending is None
    verdict = world.ask(vc="cv", do="begin", spec=msgspec.to_builtins(search()))
    assert verdict.reason is Reason.WRONG_VC


def test_searches_are_bounded(world: World) -> None:
    for _ in range(SEARCHES_MAX):
        client(world)
    verdict = world.ask(do="begin", spec=msgspec.to_builtins(search()))
    assert verdict.reason is Reason.TOO_MANY_SEARCHES


# --- metrics ----------------------------------------------------------------------------------


def test_a_curve_takes_bounded_room_and_few_facts(world: World) -> None:
    world.begin(parallel=1, turn="1h")
    world.settle()
    job = world.job_of(1)
    for step in range(1, 20_001):
        world.driver.thorough = False
        world.measure(job, step, 0.5 - 1 / (step + 2))
    trial = world.trial(1)
    points = sum(isinstance(fact, SearchTrialMeasured) for fact in world.driver.facts)
    assert len(trial.steps) < CURVE_MAX
    assert points < CURVE_MAX * 10
    assert trial.steps == sorted(trial.steps)
    assert trial.steps[0] == 1
    world.driver.check_replay()


def test_old_and_foreign_numbers_are_passed_over(world: World) -> None:
    world.begin(parallel=1)
    world.settle()
    job = world.job_of(1)
    world.measure(job, 10, 0.5)
    facts = list(world.driver.facts)
    world.measure(job, 10, 0.6)
    world.measure(job, 5, 0.6)
    world.measure(job, 20, 0.6, name="loss")
    world.measure(job, 20, float("nan"))
    world.measure(job, 20, 1e200)
    job.job = "j99"
    world.measure(job, 20, 0.6)
    assert world.driver.facts == facts


def test_the_last_point_of_a_curve_comes_with_the_job_s_end(world: World) -> None:
    world.begin(parallel=1, budget={"trials": 1})
    world.settle()
    job = world.job_of(1)
    world.measure(job, 10, 0.5)
    world.end(job, End.SUCCEEDED, Reason.SUCCEEDED, step=15, value=0.7)
    world.settle()
    (over,) = world.over().values()
    assert (over.trial, over.value, over.step, over.why) == (1, 0.7, 15, Reason.ALL_TRIED)
    last = [type(fact) for fact in world.driver.facts][-4:]
    assert last == [SearchTrialMeasured, SearchTrialOver, SearchEnding, SearchOver]


def test_what_was_heard_already_is_not_told_again_by_the_end(world: World) -> None:
    world.begin(parallel=1, budget={"trials": 1}, target=0.6)
    world.settle()
    job = world.job_of(1)
    world.measure(job, 15, 0.5)
    world.end(job, End.SUCCEEDED, Reason.SUCCEEDED, step=15, value=0.7)
    world.settle()
    (over,) = world.over().values()
    assert (over.value, over.why) == (0.5, Reason.ALL_TRIED)
