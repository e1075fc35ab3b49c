"""Exploration: off unless asked for, exact chances, within its budget, the same when made again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skep.learn.advising import ActsAtOnce, Advising, GivenModels
from skep.learn.decide import decide
from skep.policy import exploring
from skep.policy.exploring import DAY, WHOLE, chances, draw
from skep.policy.plan import Drawn, Plan
from skep.policy.schedulers.learned import HOURS_MAX, Learned
from skep.policy.view import VcView
from skep.units import Instant, after, seconds
from skep.wire.following import AdviceFollowed
from skep.wire.learned import SCHEMA, AdvisedMove, LearnedAdvice
from skep.wire.reasons import Reason
from tests import learn_kit
from tests.learned_kit import MODEL, Follower, Wish
from tests.policy_kit import NOW, job, view

HOUR = seconds(3600.0)
OPTIONS = {"explore_share_milli": 500, "explore_gpu_hours": 4.0}
CHOICES = tuple(
    AdvisedMove(job=f"j{number}", score_milli=score)
    for number, score in ((1, 900), (2, 800), (3, 500))
)


def seen(seed: int, *, hours: float = 1.0, now: Instant = NOW, **fields: Any) -> VcView:
    """Return a VC with three jobs of one GPU, of which a model prefers the first."""
    jobs = [replace(job(f"j{number}", 1), expected=seconds(hours * 3600)) for number in (1, 2, 3)]
    moves = (CHOICES[0], AdvisedMove(job="j3"))
    said = LearnedAdvice(
        vc="a",
        model=MODEL,
        schema=SCHEMA,
        number=1,
        at=now,
        expires_at=after(now, seconds(15.0)),
        stage="on",
        moves=moves,
        choices=CHOICES,
        seed=seed,
    )
    return view(jobs, now=now, advised=said, **fields)


def fact_of(drawn: Drawn, now: Instant) -> AdviceFollowed:
    names = {name: getattr(drawn, name) for name in Drawn.__struct_fields__}
    return AdviceFollowed(vc="a", follows=True, why=Reason.ADVISED, at=now, model=MODEL, **names)


def plan(made: VcView, **options: Any) -> Plan:
    return Learned(model=MODEL, rule="packing", wait_bound_s=0, **options).plan(made)


def drawn_by(made: Plan) -> Drawn | None:
    assert made.following is not None
    return made.following.drawn


@given(
    st.lists(st.integers(0, 5_000), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.integers(1, 10**6),
)
def test_chances_are_exact_and_sum_to_one(worse: list[int], share: int, margin: int) -> None:
    scores = sorted((-each for each in worse), reverse=True)
    found = chances(scores, share, margin)
    assert sum(found) == WHOLE
    assert min(found) >= 0
    assert found[0] >= WHOLE - share * WHOLE // 1000
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("options", [{}, {"explore_share_milli": 500}, {"explore_gpu_hours": 4}])
def test_without_both_options_nothing_is_ever_explored(options: dict[str, Any]) -> None:
    for seed in range(1, 200):
        made = plan(seen(seed), **options)
        assert drawn_by(made) is None
        assert [turn.job for turn in made.turns] == ["j1", "j3"]
        # Not even what was drawn while it was on.
        before = fact_of(Drawn(seed, 1, 1000, int(NOW // DAY), 1), NOW)
        if "explore_share_milli" not in options:
            again = plan(seen(seed, followed=before), **options)
            assert [turn.job for turn in again.turns] == ["j1", "j3"]


def test_moves_are_drawn_as_often_as_their_chances_say() -> None:
    likely = chances([900, 800, 500], 500, 500)
    count: Counter[int] = Counter()
    for seed in range(1, 4001):
        made = plan(seen(seed), **OPTIONS)
        drawn = drawn_by(made)
        assert drawn is not None
        assert drawn.chance == likely[drawn.choice]
        count[drawn.choice] += 1
        wanted = ["j1", "j3"] if drawn.choice == 0 else [CHOICES[drawn.choice].job]
        assert [turn.job for turn in made.turns] == wanted
    for choice, chance in enumerate(likely):
        sigma = (chance / WHOLE * (1 - chance / WHOLE) / 4000) ** 0.5
        assert abs(count[choice] / 4000 - chance / WHOLE) < 4 * sigma, (choice, count)


def test_a_draw_is_made_once_and_comes_out_the_same_again() -> None:
    made = next(each for each in map(seen, range(1, 100)) if drawn_by(plan(each, **OPTIONS)))
    first = plan(made, **OPTIONS)
    assert plan(made, **OPTIONS) == first
    drawn = drawn_by(first)
    assert drawn is not None
    later = after(NOW, seconds(5.0))
    assert made.advised is not None
    again = replace(made, now=later, followed=fact_of(drawn, NOW))
    second = plan(again, **OPTIONS)
    assert drawn_by(second) is None
    assert second.turns == first.turns


def explored() -> tuple[VcView, Drawn]:
    """Return a VC in which another move than the best was just drawn, and that draw."""
    for seed in range(1, 200):
        made = seen(seed)
        drawn = drawn_by(plan(made, **OPTIONS))
        if drawn is not None and drawn.choice == 1:
            return replace(made, followed=fact_of(drawn, NOW)), drawn
    raise AssertionError


def answered_again(made: VcView, **fields: Any) -> list[str]:
    """Return whose turns there are when the same sight is answered otherwise."""
    assert made.advised is not None
    again = plan(replace(made, advised=replace(made.advised, **fields)), **OPTIONS)
    assert drawn_by(again) is None
    return [turn.job for turn in again.turns]


def test_what_was_drawn_is_made_wherever_it_is_among_the_choices() -> None:
    made, drawn = explored()
    assert drawn.move == AdvisedMove(job="j2")
    best, second, third = CHOICES
    better = replace(second, score_milli=850)
    assert answered_again(made, choices=(best, third, better)) == ["j2"]
    assert answered_again(made, choices=(best, second)) == ["j2"]


def test_no_other_move_is_made_in_place_of_what_was_drawn() -> None:
    made, _ = explored()
    best, second, third = CHOICES
    for choices in (
        (best, third),
        (best, replace(second, workers=1)),
        (best, replace(second, spread=True)),
        (best,),
        (),
    ):
        assert answered_again(made, choices=choices) == ["j1", "j3"], choices
    assert made.followed is not None
    earlier = replace(made, followed=replace(made.followed, move=None))
    assert answered_again(earlier) == ["j1", "j3"]


def test_records_without_the_move_stay_readable() -> None:
    _, drawn = explored()
    fact = fact_of(drawn, NOW)
    assert msgspec.json.decode(msgspec.json.encode(fact), type=AdviceFollowed) == fact
    fields = msgspec.json.decode(msgspec.json.encode(fact))
    del fields["move"]
    assert msgspec.convert(fields, AdviceFollowed) == replace(fact, move=None)


def test_the_largest_budget_can_be_recorded() -> None:
    budget = int(HOUR * HOURS_MAX)
    fact = fact_of(Drawn(1, 0, WHOLE // 2, 0, budget), NOW)
    assert msgspec.json.decode(msgspec.json.encode(fact), type=AdviceFollowed).spent == budget


def test_a_clock_that_was_set_back_begins_no_new_day() -> None:
    day = int(NOW // DAY)
    before = fact_of(Drawn(1, 1, 1000, day, HOUR * 4), NOW)
    for back in (0, 1, 5):
        now = Instant(NOW - back * DAY)
        assert draw(seen(2, now=now, followed=before), 1000, 500, HOUR * 4) is None
        found = draw(seen(2, now=now, followed=before), 1000, 500, HOUR * 9)
        assert found is not None
        assert (found.day, found.spent >= HOUR * 4) == (day, True)
    found = draw(seen(2, now=Instant(NOW + DAY), followed=before), 1000, 500, HOUR * 4)
    assert found is not None
    assert (found.day, found.spent <= HOUR) == (day + 1, True)


@given(
    st.lists(
        st.tuples(st.integers(1, 2**40), st.integers(0, 40), st.floats(0.0, 8.0)),
        min_size=1,
        max_size=60,
    ),
    st.floats(0.0, 10.0),
)
def test_a_budget_is_never_exceeded(decisions: list[tuple[int, int, float]], hours: float) -> None:
    budget = int(HOUR * hours)
    now, followed, spent = NOW, None, dict[int, int]()
    for seed, gone_h, run_h in decisions:
        now = after(now, seconds(3600.0 * gone_h))
        drawn = draw(seen(seed, hours=run_h, now=now, followed=followed), 1000, 500, budget)
        if drawn is None:
            continue
        cost = drawn.spent - (followed.spent if followed and followed.day == drawn.day else 0)
        # That of one GPU for as long as the job runs, where something was explored at all.
        assert cost == pytest.approx(run_h * HOUR if run_h > 0.02 else cost, rel=1e-9) or (
            drawn.choice == 0 and cost == 0
        )
        assert drawn.choice == 0 or cost >= exploring.LEAST
        spent[drawn.day] = spent.get(drawn.day, 0) + cost
        assert drawn.spent == spent[drawn.day] <= budget
        followed = fact_of(drawn, now)


def test_what_is_no_choice_of_the_model_is_not_drawn() -> None:
    made = seen(3)
    advised = made.advised
    assert advised is not None
    for wrong in (
        {"choices": advised.choices[1:]},
        {"choices": advised.choices[:1]},
        {"choices": ()},
        {"seed": 0},
        {"moves": ()},
        {"choices": (advised.choices[0], AdvisedMove(job="j9", score_milli=900))},
        {"choices": (advised.choices[0], AdvisedMove(job="j2", score_milli=100))},
        {"choices": (advised.choices[0], AdvisedMove(job="j2", score_milli=901))},
    ):
        assert draw(replace(made, advised=replace(advised, **wrong)), 1000, 500, HOUR * 9) is None
    absurd = replace(advised, choices=(*CHOICES, AdvisedMove(job="j2", workers=7)))
    broken = plan(replace(made, advised=absurd), **OPTIONS).following
    assert broken is not None
    assert broken.why is Reason.ADVICE_BROKEN


@pytest.mark.parametrize(
    "option, wrong",
    [
        ("explore_share_milli", -1),
        ("explore_share_milli", 1001),
        ("explore_gpu_hours", -0.1),
        ("explore_gpu_hours", float("nan")),
        ("explore_margin_milli", 0),
    ],
)
def test_options_have_bounds(option: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=option):
        Learned(model=MODEL, rule="packing", **{option: wrong})


# --- the advisor ---------------------------------------------------------------------------------


def test_a_model_tells_its_first_move_and_those_nearly_as_good() -> None:
    import random

    told = 0
    for seed in range(30):
        scene = learn_kit.followed(learn_kit.sight(random.Random(seed), 12))
        model = learn_kit.model(seed)
        plain = decide(model, scene, learn_kit.NOW)
        made = decide(model, scene, learn_kit.NOW, margin_milli=300)
        assert made._replace(choices=()) == plain
        assert not plain.choices
        if not made.moves:
            continue
        told += len(made.choices) > 1
        first, *others = made.choices
        assert (first.job, first.workers, first.spread) == (
            made.moves[0].job,
            made.moves[0].workers,
            made.moves[0].spread,
        )
        assert first.score_milli == made.moves[0].score_milli
        assert all(0 < first.score_milli - each.score_milli + 1 <= 301 for each in others)
    assert told > 5


class Chooser(Follower):
    def explore(self, _now: Instant, margin_milli: int) -> Any:
        wish = Wish((AdvisedMove(job="j1"),))
        return type("Explored", (), {**wish._asdict(), "choices": [AdvisedMove(job="j1")] * 20})


def test_an_advisor_tells_choices_only_where_a_vc_explores() -> None:
    from skep_lab.simulator.build import uniform

    def cluster(**options: Any) -> Any:
        made = uniform(1, 8)
        vc = replace(made.vcs["all"], policy="learned", options={"model": MODEL, **options})
        return replace(made, vcs={"all": vc})

    advising = Advising(GivenModels({MODEL: Chooser}), ActsAtOnce())
    import random

    sight = replace(learn_kit.sight(random.Random(1), 3), vc="all")
    advising.set_cluster(cluster())
    (plain,) = advising.sight(sight, NOW)
    assert isinstance(plain, LearnedAdvice)
    assert (plain.choices, plain.seed) == ((), 0)
    advising.set_cluster(cluster(explore_share_milli=10, explore_gpu_hours=1))
    (told,) = advising.sight(replace(sight, number=1), NOW)
    (again,) = advising.due(after(NOW, seconds(6.0)))
    assert isinstance(told, LearnedAdvice)
    assert isinstance(again, LearnedAdvice)
    assert len(told.choices) == 8
    assert told.seed == again.seed > 0
    (later,) = advising.sight(replace(sight, number=2), NOW)
    assert isinstance(later, LearnedAdvice)
    assert later.seed != told.seed
