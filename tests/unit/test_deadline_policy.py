"""The policy `deadline`: what comes first, which job leaves its GPUs, and that none starves."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.policy.plan import Plan, Preempt, Resize, Turn
from skep.policy.registry import make
from skep.policy.shrinking import shrink_first
from skep.policy.view import JobView, VcView
from skep.units import Instant, seconds
from skep.wire.reasons import Reason
from skep.wire.spec import Promised, Qos
from tests.policy_kit import NOW, job, view

CAN = ("suspend", "release", "migrate", "resize")
POLICY = make("deadline", {"age_s": 1e6})


def timed(
    name: str,
    gpus: int = 1,
    *,
    due: float,
    lasts: float,
    answer: str = "accepted",
    qos: Qos | None = None,
    needs: float | None = None,
    workers_promised: int = 0,
    **more: Any,
) -> JobView:
    """Return a job that is due in so many seconds, and runs so long nine times in ten."""
    promise = Promised(
        answer=answer,
        due=NOW + seconds(due),
        begin=NOW + seconds(due - lasts),
        lasts=seconds(lasts),
        workers=workers_promised,
    )
    made = job(name, gpus, needs=lasts / 1.3 if needs is None else needs, can=CAN, **more)
    spec = msgspec.structs.replace(made.spec, promise=promise, qos=qos)
    return msgspec.structs.replace(made, spec=spec, submitted_at=Instant(NOW - seconds(1000)))


def plan(*jobs: JobView, nodes: int = 1, size: int = 4) -> Any:
    return POLICY.plan(view(jobs, nodes=nodes, size=size))


def turns(made: Any) -> list[str]:
    return [turn.job for turn in made.turns]


def victims(made: Any) -> list[str]:
    return [action.job for action in made.actions if isinstance(action, Preempt)]


def test_a_promise_takes_no_gpus_before_it_has_to() -> None:
    made = plan(job("j1", 4, on=[("n1", 4)]), timed("j2", 4, due=5000, lasts=1000))
    assert (turns(made), victims(made)) == ([], [])
    assert made.look_at == NOW + seconds(5000 - 1000 - 60)


def test_a_promise_takes_gpus_when_it_has_to_begin() -> None:
    made = plan(job("j1", 4, on=[("n1", 4)]), timed("j2", 4, due=1050, lasts=1000))
    assert (turns(made), victims(made)) == (["j2"], ["j1"])


def test_advice_that_a_job_is_lost_does_not_go_before_its_promise() -> None:
    """It may rest on other placements: live, on runs on two nodes of what was promised on one."""
    running = job("j1", 4, on=[("n1", 4)])
    assert victims(plan(running, timed("j2", 4, due=103, lasts=72, needs=110))) == ["j1"]
    assert victims(plan(running, timed("j2", 4, due=60, lasts=72, needs=110))) == []
    risky = timed("j2", 4, due=103, lasts=72, needs=110, answer="at-risk")
    assert victims(plan(running, risky)) == []


def test_a_promised_job_that_runs_keeps_its_gpus() -> None:
    """It could not go on elsewhere without a loss, so not even a pressing one takes them."""
    fixed = timed("j1", 4, due=3000, lasts=1000, on=[("n1", 4)])
    fixed = msgspec.structs.replace(fixed, can=())
    made = plan(fixed, timed("j2", 4, due=1050, lasts=1000))
    assert (turns(made), victims(made)) == ([], [])


def test_a_promised_job_that_runs_early_gives_way_to_one_that_presses() -> None:
    early = timed("j1", 4, due=30_000, lasts=1000, on=[("n1", 4)], since=10, ran=10)
    made = plan(early, timed("j2", 4, due=1050, lasts=1000))
    assert (turns(made), victims(made)) == (["j2"], ["j1"])


def test_a_small_promised_job_moves_for_a_gang_that_has_to_begin() -> None:
    small = timed("j1", 1, due=900, lasts=1000, on=[("n1", 1)], since=150, ran=150)
    other = job("j2", 2, on=[("n2", 2)])
    made = plan(small, other, timed("j3", 4, due=1050, lasts=1000, hard=True), nodes=2)
    assert "j3" in turns(made)
    assert victims(made) in (["j1"], ["j2"])


def test_a_job_without_a_promise_is_before_those_without_a_deadline_and_late_ones_last() -> None:
    risky = timed("j3", 1, due=5000, lasts=1000, answer="at-risk")
    late = timed("j1", 1, due=100, lasts=1000, answer="late")
    plain = job("j2", 1, needs=10)
    plain = msgspec.structs.replace(plain, submitted_at=Instant(NOW - seconds(10)))
    assert turns(plan(late, plain, risky)) == ["j3", "j2", "j1"]


def test_an_urgent_job_waits_for_its_slowdown_and_then_takes_gpus() -> None:
    running = job("j1", 4, on=[("n1", 4)])
    soon = timed("j2", 4, due=1250, lasts=1000, answer="at-risk", qos="urgent")
    assert victims(plan(running, soon)) == []
    pressing = timed("j2", 4, due=1050, lasts=1000, answer="at-risk", qos="urgent")
    assert victims(plan(running, pressing)) == ["j1"]


def test_a_job_that_has_waited_for_long_comes_before_those_without_a_deadline() -> None:
    aged = make("deadline", {"age_s": 3600})
    running = job("j1", 4, on=[("n1", 4)], since=10, ran=10)
    running = msgspec.structs.replace(running, submitted_at=Instant(NOW - seconds(100)))
    late = timed("j2", 4, due=100, lasts=1000, answer="late")
    fresh = aged.plan(view([running, late], nodes=1))
    assert (turns(fresh), victims(fresh)) == ([], [])
    old = msgspec.structs.replace(late, submitted_at=Instant(NOW - seconds(4000)))
    after = aged.plan(view([running, old], nodes=1))
    assert (turns(after), victims(after)) == (["j2"], ["j1"])


def test_two_aged_jobs_do_not_take_gpus_from_one_another() -> None:
    aged = make("deadline", {"age_s": 3600})
    old = Instant(NOW - seconds(90_000))
    runs = msgspec.structs.replace(job("j2", 4, on=[("n1", 4)], since=10, ran=10), submitted_at=old)
    waits = msgspec.structs.replace(job("j1", 4), submitted_at=Instant(old - seconds(50_000)))
    made = aged.plan(view([runs, waits], nodes=1))
    assert victims(made) == []


def test_a_job_that_outran_its_promise_keeps_its_gpus_from_late_ones() -> None:
    outran = timed("j1", 4, due=-10, lasts=1000, on=[("n1", 4)], since=1200, ran=1200)
    made = plan(outran, timed("j2", 4, due=-100, lasts=1000, answer="late"))
    assert (turns(made), victims(made)) == ([], [])


def test_an_elastic_job_begins_with_the_workers_that_were_promised_to_suffice() -> None:
    made = plan(timed("j1", 1, due=5000, lasts=1000, elastic=(1, 4), workers_promised=2), nodes=1)
    assert made.turns == (Turn("j1", Reason.BY_DEADLINE, workers=2),)


def test_a_job_that_would_be_late_grows_by_as_few_workers_as_it_needs() -> None:
    slow = timed(
        "j1",
        1,
        due=1000,
        lasts=1300,
        needs=2000,
        elastic=(1, 4),
        on=[("n1", 1)],
        rates=((1, 1000), (2, 2000), (4, 3000)),
    )
    made = POLICY.plan(view([slow], nodes=1))
    assert made.actions == (Resize("j1", Reason.BY_DEADLINE, 2),)


def test_a_late_job_grows_and_a_promised_one_begins_only_with_a_size_that_it_offers() -> None:
    given: dict[str, Any] = {"due": 1000, "lasts": 1300, "needs": 2000, "elastic": (1, 4)}
    slow = timed("j1", 1, on=[("n1", 1)], rates=tuple((n, 1000 * n) for n in (1, 2, 3, 4)), **given)
    seen = view([msgspec.structs.replace(slow, sizes=(1, 4))], nodes=1)
    assert POLICY.plan(seen).actions == (Resize("j1", Reason.BY_DEADLINE, 4),)
    waits = timed("j1", 1, due=5000, lasts=1000, elastic=(1, 4), workers_promised=2)
    for sizes, workers in (((1, 2, 4), 2), ((1, 3, 4), 3), ((1,), 0)):
        made = plan(msgspec.structs.replace(waits, sizes=sizes), nodes=1)
        assert [turn.workers for turn in made.turns] == [workers], sizes


def test_equal_views_give_equal_plans_whatever_was_planned_before() -> None:
    planner = POLICY.planner()
    views: list[VcView] = [
        view([job("j1", 4, on=[("n1", 4)]), timed("j2", 4, due=due, lasts=1000)], nodes=1)
        for due in (5000, 1050, 5000)
    ]
    assert [planner(each) for each in views] == [POLICY.plan(each) for each in views]


# --- jobs that give up workers -------------------------------------------------------------------


def wide(name: str, on: list[tuple[str, int]], *, shrink: bool = True, **more: Any) -> JobView:
    """Return an elastic job that runs without a promise."""
    made = job(name, sum(gpus for _, gpus in on), elastic=(1, 8), on=on, **more)
    willing = msgspec.structs.replace(made.spec.willing, shrink=shrink)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, willing=willing))


def pinned(name: str, pin: str) -> JobView:
    made = job(name, 3)
    resources = msgspec.structs.replace(made.spec.resources, pinned=pin)
    return msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, resources=resources)
    )


def test_an_elastic_job_gives_up_workers_before_it_is_stopped() -> None:
    made = plan(wide("j1", [("n1", 4)]), timed("j2", 3, due=1050, lasts=1000))
    assert made.actions == (Resize("j1", Reason.BY_DEADLINE, 1),)
    assert turns(made) == ["j2"]
    assert made.look_at == NOW + seconds(50), "if that has made no room by then, it is stopped"


def test_it_is_stopped_where_fewer_workers_are_not_enough() -> None:
    promised = timed("j2", 4, due=1050, lasts=1000)
    assert plan(wide("j1", [("n1", 4)]), promised).actions == (Preempt("j1", Reason.OUTRANKED),)
    unwilling = plan(wide("j1", [("n1", 4)], shrink=False), timed("j2", 3, due=1050, lasts=1000))
    assert victims(unwilling) == ["j1"]


def test_it_is_stopped_once_a_promise_has_to_begin() -> None:
    late = plan(wide("j1", [("n1", 4)]), timed("j2", 3, due=1000, lasts=1000))
    assert victims(late) == ["j1"]


def test_a_promised_job_gives_up_no_workers() -> None:
    early = timed("j1", 4, due=30_000, lasts=1000, on=[("n1", 4)], since=10, ran=10, elastic=(1, 8))
    assert victims(plan(early, timed("j2", 3, due=1050, lasts=1000))) == ["j1"]


def test_where_a_pin_has_no_gpus_any_more_a_plan_stays_as_it_is() -> None:
    seen = view([wide("j1", [("n1", 4)]), pinned("j2", "gone")], nodes=1)
    turn, stop = Turn("j2", Reason.OUTRANKED), Preempt("j1", Reason.OUTRANKED)
    made = Plan(turns=(turn,), actions=(stop,))
    assert shrink_first(seen, made, Instant(NOW + 1)) == made


def test_others_are_stopped_where_shrinking_one_of_them_is_not_enough() -> None:
    stays = job("j1", 2, on=[("n1", 2)])
    made = plan(stays, wide("j2", [("n1", 2)]), timed("j3", 3, due=1050, lasts=1000))
    assert set(made.actions) == {
        Preempt("j1", Reason.OUTRANKED),
        Resize("j2", Reason.BY_DEADLINE, 1),
    }


def test_a_job_that_gave_up_workers_has_them_back_once_gpus_are_free() -> None:
    shrunk = wide("j1", [("n1", 4)])
    shrunk = msgspec.structs.replace(shrunk, gpus=1, workers=1, nodes=(("n1", 1),))
    assert plan(shrunk).actions == (Resize("j1", Reason.BY_DEADLINE, 4),)
    assert plan(shrunk, job("j2", 3)).actions == ()
    assert plan(msgspec.structs.replace(shrunk, trial=7)).actions == (), "it is measured like that"


def test_workers_are_given_up_and_given_back_down_and_up_to_an_offered_size() -> None:
    some = msgspec.structs.replace(wide("j1", [("n1", 4)]), sizes=(2, 4))
    made = plan(some, timed("j2", 2, due=1050, lasts=1000))
    assert made.actions == (Resize("j1", Reason.BY_DEADLINE, 2),)
    shrunk = msgspec.structs.replace(some, gpus=1, workers=1, nodes=(("n1", 1),), sizes=(1, 3))
    assert plan(shrunk).actions == (Resize("j1", Reason.BY_DEADLINE, 3),), "4 is not offered"
