"""The policy `learned` in a simulated cluster, with the production advisor and any model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from skep.learn.advising import Seat
from skep.machines.allocator.policies import policy_views
from skep.policy.sight import sight_of
from skep.units import Duration, seconds
from skep.wire.following import AdviceFollowed, StageSet, turns
from skep.wire.learned import AdvisedMove, Sight
from skep.wire.reasons import Reason
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
from skep_services.learning import cloning
from tests.learned_kit import MODEL, OTHER_MODEL, Follower, Longest, Says, Shortest, Wish


def trace(*jobs: tuple[float, float, int]) -> Trace:
    return Trace(
        name="t",
        jobs=tuple(
            TraceJob(id=f"a{number}", at=seconds(at), run_time=seconds(run_s), gpus=gpus)
            for number, (at, run_s, gpus) in enumerate(jobs)
        ),
    )


TRACE = trace((0, 100, 8), (1, 90, 8), (2, 10, 8), (3, 50, 8), (400, 20, 4))


def settings(
    make: Callable[[], Seat] | None = Shortest, *, delay_s: float = 0.0, **options: Any
) -> Settings:
    models = {} if make is None else {MODEL: make}
    chosen = {"model": MODEL, "rule": "packing", **options}
    policies = {"all": ("learned", chosen)}
    return Settings(policies=policies, models=models, advice_delay_s=delay_s)


def played(chosen: Settings, jobs: Trace = TRACE) -> tuple[RunResult, list[AdviceFollowed]]:
    said: list[AdviceFollowed] = []

    def judge(_world: World, facts: list[Any]) -> None:
        said.extend(fact for fact in facts if isinstance(fact, AdviceFollowed))

    return run(jobs, uniform(1, 8), chosen, Steady(), judge=judge), said


def begins(result: RunResult) -> list[Duration | None]:
    return [job.began for job in result.jobs]


def test_a_model_orders_the_queue_and_the_log_says_so() -> None:
    result, said = played(settings())
    assert begins(result) == list(map(seconds, (0, 160, 100, 110, 400)))
    assert [(fact.follows, fact.why, fact.model) for fact in said] == [
        (False, Reason.NO_ADVICE, MODEL),
        (True, Reason.ADVISED, MODEL),
    ]


def test_late_advice_is_followed_when_it_comes() -> None:
    result, _ = played(settings(delay_s=1))
    assert begins(result) == list(map(seconds, (1, 164, 102, 113, 401)))


def test_where_the_model_does_not_answer_the_rule_plans() -> None:
    result, said = played(settings(delay_s=1000))
    assert begins(result) == list(map(seconds, (0, 100, 190, 200, 400)))
    assert {fact.follows for fact in said} == {False}
    result, said = played(settings(delay_s=60))
    assert Reason.ADVICE_LATE in [fact.why for fact in said]
    assert all(job.waited is not None and job.waited <= seconds(260) for job in result.jobs)


@pytest.mark.parametrize("delay_s, cool_s", [(5, 30), (5, 20), (20, 10), (50, 30)])
def test_a_late_answer_that_says_nothing_new_is_followed_after_a_while(
    delay_s: float, cool_s: float
) -> None:
    chosen = settings(Follower, delay_s=delay_s, cool_s=cool_s)
    _, said = played(chosen, trace((0, 1000, 8), (10, 10, 8)))
    reasons = [fact.why for fact in said]
    assert reasons[:3] == [Reason.NO_ADVICE, Reason.ADVICE_LATE, Reason.ADVISED], reasons
    waited = said[2].at - said[1].at
    assert seconds(cool_s) <= waited <= seconds(max(delay_s, cool_s)), "and not until j1 ends"


def test_the_same_run_comes_to_the_same_facts() -> None:
    once, again = (played(settings(delay_s=0.3)) for _ in range(2))
    assert once[0].decisions == again[0].decisions
    assert once[1] == again[1]


def _raises(_seat: Follower, _now: object) -> Any:
    text = "its weights are damaged"
    raise ValueError(text)


def _absurd(seat: Follower, _now: object) -> Wish:
    return Wish([AdvisedMove(job=job.job, workers=99) for job in seat.waiting()])


class _Unreliable(Shortest):
    def decide(self, now: Any) -> Wish:
        return super().decide(now)._replace(reliable=False)


class _Schema(Shortest):
    schema = 0


class _Deaf(Shortest):
    def follow(self, _sight: object) -> bool:
        text = "it cannot read this"
        raise KeyError(text)


@pytest.mark.parametrize(
    "make, options, why",
    [
        (None, {}, Reason.NO_MODEL),
        (lambda: Says(_raises), {}, Reason.ADVICE_BROKEN),
        (_Deaf, {}, Reason.ADVICE_BROKEN),
        (lambda: Says(_absurd), {}, Reason.ADVICE_BROKEN),
        (_Unreliable, {}, Reason.BEYOND_TRAINING),
        (_Schema, {}, Reason.OTHER_SCHEMA),
        (Shortest, {"margin_milli": 10}, Reason.MARGIN_TOO_SMALL),
        (Shortest, {"wait_bound_s": 30}, Reason.WAITED_TOO_LONG),
        (Shortest, {"model": OTHER_MODEL}, Reason.NO_MODEL),
    ],
)
def test_whatever_is_wrong_the_rule_plans_at_once(
    make: Callable[[], Seat] | None, options: dict[str, Any], why: Reason
) -> None:
    result, said = played(settings(make, **options))
    assert why in [fact.why for fact in said]
    assert begins(result) == list(map(seconds, (0, 100, 190, 200, 400)))


def test_a_model_that_holds_everything_starves_no_job() -> None:
    result, said = played(settings(Follower, wait_bound_s=60))
    assert not result.cut
    assert [fact.why for fact in said][-1] in {Reason.ADVISED, Reason.WAITED_TOO_LONG}
    assert all(job.waited is not None and job.waited <= seconds(260) for job in result.jobs)


def _bursts(jobs: int, seed: int) -> Trace:
    """Return jobs of which one in five is long: in order of arrival the short ones wait for it."""
    rng, at, made = random.Random(seed), 0.0, []
    for _ in range(jobs):
        at += rng.expovariate(1 / 56)
        made.append((round(at, 3), rng.choice((10, 10, 10, 10, 200)), 8))
    return trace(*made)


def _stages(chosen: Settings, jobs: Trace) -> list[StageSet]:
    world = World(jobs, uniform(1, 8), chosen, Steady())
    world.run()
    assert world.reports is not None
    return [fact for fact in world.reports.recorded if isinstance(fact, StageSet)]


def test_a_better_model_comes_from_shadow_by_turns_to_act() -> None:
    chosen = settings(shadow_s=1000, period_s=1800, wait_bound_s=100_000)
    found = _stages(msgspec.structs.replace(chosen, guards=True), _bursts(1500, 1))
    assert [fact.stage for fact in found] == ["shadow", "switchback", "on"]
    assert [fact.why for fact in found][1:] == [Reason.SHADOW_PASSED, Reason.NOT_WORSE]
    assert found[2].low_milli > 0, "its interval is above zero"


def test_a_worse_model_never_acts() -> None:
    chosen = settings(Longest, shadow_s=1000, period_s=1800, wait_bound_s=100_000)
    found = _stages(msgspec.structs.replace(chosen, guards=True), _bursts(700, 1))
    assert {fact.stage for fact in found} == {"shadow", "off"}
    assert Reason.MEASURED_REGRESSION in [fact.why for fact in found]


def test_differences_of_sights_come_to_what_the_policy_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, follower, seen = random.Random(3), Follower(), list[bool]()
    jobs = trace(
        *((rng.uniform(0, 300), rng.uniform(1, 60), rng.choice((1, 2, 4))) for _ in range(40))
    )
    ordered = msgspec.structs.replace(jobs, jobs=tuple(sorted(jobs.jobs, key=lambda job: job.at)))
    world = World(ordered, uniform(2, 4), settings(), Steady())
    assert world.reports is not None

    def see(sight: Sight) -> None:
        assert follower.follow(sight)
        tx = world.allocator.tx
        whole = sight_of(policy_views.of_vc(tx, tx.soft.planned["all"], world.now), 0)
        assert follower.jobs == {job.job: job for job in whole.jobs}
        assert (sight.free, sight.room) == (whole.free, whole.room)
        seen.append(sight.whole)

    monkeypatch.setattr(world.reports, "see", see)
    assert world.run()
    assert seen[0]
    assert len(seen) - sum(seen) > 40, "most are differences"


class _Explores(Shortest):
    """Tells the three shortest jobs as nearly equal."""

    def explore(self, now: Any, _margin_milli: int) -> Any:
        made = self.decide(now)
        fit = [job for job in sorted(self.waiting(), key=self.key) if job.workers <= self.free]
        choices = [
            AdvisedMove(job=job.job, score_milli=1000 - 100 * place)
            for place, job in enumerate(fit[:3])
        ]
        return type("Explored", (), {**made._asdict(), "choices": choices})


MANY = trace(*((10 * at, 200 + 40 * (at % 7), 1) for at in range(60)))


@pytest.mark.parametrize("hours", [0.2, 50.0])
def test_what_is_explored_is_in_the_log_and_within_the_budget(hours: float) -> None:
    explores = {"explore_share_milli": 600, "explore_gpu_hours": hours}
    result, said = played(settings(_Explores, **explores), MANY)
    again, facts = played(settings(_Explores, **explores), MANY)
    assert (again.decisions, facts) == (result.decisions, said)
    drawn = [
        fact
        for before, fact in zip([None, *said], said, strict=False)
        if fact.seed and (before is None or before.seed != fact.seed)
    ]
    others = [fact for fact in drawn if fact.choice]
    assert len(drawn) > len(others) > 0
    assert all(
        (before.at == fact.at) != turns(before, fact) for before, fact in itertools.pairwise(said)
    )
    assert all((fact.move is not None) == (fact.choice > 0) for fact in drawn)
    assert all(0 < fact.chance < 1_000_000 for fact in drawn)
    assert all(fact.spent <= seconds(3600 * hours) for fact in said)
    assert (len(others) < 10) == (hours < 1)
    assert all(job.ended is not None for job in result.jobs)
    assert [fact.seed for fact in played(settings(_Explores), MANY)[1] if fact.seed] == []


def test_pairs_of_what_was_explored_have_its_propensity() -> None:
    chosen = settings(_Explores, explore_share_milli=600, explore_gpu_hours=50.0)
    pairs = cloning.of_policy(MANY, uniform(1, 8), chosen, Steady())
    unsure = pairs.propensity < 1
    assert 0 < unsure.sum() < pairs.size
    assert pairs.propensity.min() > 0
    plain = cloning.of_policy(MANY, uniform(1, 8), settings(_Explores), Steady())
    assert plain.propensity.tolist() == [1.0] * plain.size
