"""When the policy `learned` follows its model, and when its rule, by single views."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.policy.plan import Following, Resize
from skep.policy.schedulers.learned import YEAR_S, Learned
from skep.policy.view import JobView, VcView
from skep.units import Instant, after, seconds
from skep.wire.learned import SCHEMA, AdvisedMove, LearnedAdvice
from skep.wire.reasons import Reason
from tests.learned_kit import MODEL
from tests.policy_kit import NOW, job, view


def learned(**options: Any) -> Learned:
    given: dict[str, Any] = {"model": MODEL, "rule": "packing", **options}
    return Learned(**given)


def advice(**fields: Any) -> LearnedAdvice:
    said: dict[str, Any] = {"stage": "on", "expires_at": after(NOW, seconds(15)), **fields}
    return LearnedAdvice(vc="a", model=MODEL, schema=SCHEMA, number=1, at=NOW, **said)


def advised(*jobs: JobView, **fields: Any) -> VcView:
    return view(jobs, advised=advice(**fields))


def since(made: JobView, waited_s: float) -> JobView:
    at = Instant(NOW - seconds(waited_s))
    return msgspec.structs.replace(made, submitted_at=at, waiting_since=at)


def test_only_a_job_that_its_nodes_would_hold_turns_a_vc_to_its_rule() -> None:
    policy = learned(wait_bound_s=60)
    runs, young = job("j1", 4, on=[("n1", 4)]), since(job("j4"), 20)
    no_room = since(job("j2", 8, workers=1), 500)
    plan = policy.plan(advised(runs, no_room, young))
    assert plan.following == Following(model=True, why=Reason.ADVISED)
    assert plan.look_at == after(NOW, seconds(15)), "and not at once again and again"
    assert plan.behind is Reason.WAITS_FOR_GPUS, "the model would hold nothing back"
    fits = since(job("j3", 8, workers=2), 100)
    plan = policy.plan(advised(runs, no_room, fits, young))
    assert plan.following == Following(model=False, why=Reason.WAITED_TOO_LONG)
    assert plan.turns[0].job == "j3"


def test_a_job_that_waits_too_long_is_not_spread_where_its_rule_holds_it() -> None:
    half = [job("j1", 2, on=[("n1", 2)]), job("j2", 2, on=[("n2", 2)])]
    waits = since(job("j3", 4, needs=100), 100)
    for rule, turns in (("hold", []), ("packing", ["j3"])):
        plan = learned(rule=rule, wait_bound_s=60).plan(advised(*half, waits))
        assert plan.following == Following(model=False, why=Reason.WAITED_TOO_LONG)
        assert [turn.job for turn in plan.turns] == turns, rule


def test_an_elastic_job_counts_with_its_fewest_workers() -> None:
    policy = learned(wait_bound_s=60)
    wide = since(job("j1", 12, elastic=(2, 12)), 100)
    assert policy.judge(advised(wide)) is Reason.WAITED_TOO_LONG
    assert policy.judge(advised(since(job("j1", 12), 100))) is None


def test_a_model_that_advises_a_size_that_is_not_offered_gets_a_smaller_one() -> None:
    grows = job("j1", 2, on=[("n1", 2)], elastic=(1, 8))
    begins = since(job("j2", 4, elastic=(1, 8)), 1)
    some = [msgspec.structs.replace(each, sizes=(1, 2, 4, 8)) for each in (grows, begins)]
    moves = (AdvisedMove(job="j1", workers=7), AdvisedMove(job="j2", workers=3))
    plan = learned().plan(view(some, size=8, advised=advice(moves=moves)))
    assert plan.actions == (Resize("j1", Reason.ADVISED, 4),)
    assert [turn.workers for turn in plan.turns] == [2]


@pytest.mark.parametrize(
    "stage, said, why",
    [
        ("off", Reason.NO_MODEL, Reason.NO_MODEL),
        ("off", Reason.ADVICE_BROKEN, Reason.ADVICE_BROKEN),
        ("off", None, Reason.STAGE_OFF),
        ("off", Reason.ADVISED, Reason.STAGE_OFF),
        ("shadow", Reason.PREEMPTED, Reason.STAGE_SHADOW),
        ("rest", None, Reason.STAGE_SWITCHBACK),
        ("on", Reason.NO_MODEL, None),
    ],
)
def test_an_advisor_gives_only_reasons_of_its_own(
    stage: str, said: Reason | None, why: Reason | None
) -> None:
    assert learned().judge(advised(since(job("j1"), 20), stage=stage, why=said)) is why


@pytest.mark.parametrize("option", ["answer_s", "wait_bound_s", "cool_s", "shadow_s", "period_s"])
def test_times_have_bounds(option: str) -> None:
    learned(**{option: YEAR_S})
    for wrong in (YEAR_S + 1, 1e300, float("inf"), float("nan"), -1):
        with pytest.raises(ValueError, match=option):
            learned(**{option: wrong})
