"""The order and the placements of moldable jobs under `deadline`, by hand, and what is before them.

Rates are those of `test_genie_policy`: on two nodes of two GPUs a job of 36,000 samples takes
360 s on one GPU, 200 s on a node (the most cost-effective), 240 s on a GPU of each node, and 120 s
on all of them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from skep.policy.api import Planner
from skep.policy.plan import Plan, Turn
from skep.policy.registry import make
from skep.policy.schedulers.elasticflow import DEADLINE
from skep.policy.view import HOLDING, JobView
from skep.units import NS_PER_SECOND, after, seconds
from skep.wire.reasons import Reason
from skep.wire.spec import Promised
from tests.policy_kit import NOW, carry_out, job
from tests.unit.test_genie_policy import MEASURED, MODELS, seen, shown, task


def due(name: str, within: float | None, samples: int = 36_000, **more: Any) -> JobView:
    """Return a task that is to end so many seconds from now; None: it has no deadline."""
    made = task(name, samples, **more)
    if within is None:
        return made
    from_submission = within + (NOW - made.submitted_at) / NS_PER_SECOND
    labels = {DEADLINE: f"{from_submission:.0f}"}
    return replace(made, spec=replace(made.spec, labels=labels))


def plan(*jobs: JobView, nodes: int = 2, **options: Any) -> Plan:
    given = {"measured": MEASURED, "margin": 0, "near": 1, **options}
    return make("deadline", given).plan(seen(*jobs, nodes=nodes))


@pytest.mark.parametrize(
    "within, split",
    [
        (None, (1, 2)),
        (1000, (1, 2)),
        (200, (1, 2)),
        (199, (2, 2)),  # Only all GPUs are in time.
        (119, (1, 2)),  # Nothing is.
    ],
)
def test_a_job_has_what_pays_best_of_what_is_in_time(
    within: float | None, split: tuple[int, int]
) -> None:
    assert shown(plan(due("j1", within))) == [("j1", *split)]


def test_a_job_has_only_placements_with_a_size_that_it_offers() -> None:
    assert shown(plan(replace(due("j1", None), sizes=(1, 4)))) == [("j1", 1, 1)]


def test_a_margin_makes_more_gpus_necessary_earlier() -> None:
    assert shown(plan(due("j1", 209), margin=0.05)) == [("j1", 2, 2)]
    assert shown(plan(due("j1", 210), margin=0.05)) == [("j1", 1, 2)]


def test_the_least_gpu_time_comes_first_and_a_late_job_counts_more() -> None:
    late, longer = due("j1", 10, 36_000), due("j2", 1000, 54_000)
    assert shown(plan(late, longer, nodes=1, late=1)) == [("j1", 1, 2)]
    assert shown(plan(late, longer, nodes=1, late=1.6)) == [("j2", 1, 2)]
    assert plan(late, longer, nodes=1, late=1).turns[0].why is Reason.SMALLEST_PRODUCT


def test_a_job_counts_half_for_each_time_that_it_has_waited() -> None:
    short, long = due("j1", None, 36_000), due("j2", None, 108_000, waited=7200)
    assert shown(plan(short, long, nodes=1, half_s=3601)) == [("j1", 1, 2)]
    assert shown(plan(short, long, nodes=1, half_s=3600)) == [("j2", 1, 2)]


def test_a_job_waits_for_what_is_much_better_and_those_behind_it_wait_too() -> None:
    runs = task("j1", on=[("n1", 1)])
    jobs = runs, due("j2", 900), due("j3", 900, 72_000)
    waits = plan(*jobs, nodes=1)
    assert (shown(waits), [each.job for each in waits.holds]) == ([], ["j2"])
    assert waits.holds[0].needs == "2 GPUs on 1 nodes"
    assert waits.behind is Reason.WAITS_BEHIND
    assert waits.look_at == after(NOW, seconds(900 - 200)) + 1  # Then it is to go elsewhere.
    # One GPU has 222 / 257 of the ratio.
    assert shown(plan(*jobs, nodes=1, near=1.2)) == [("j2", 1, 1)]
    assert shown(plan(*jobs, nodes=1, near=1.1)) == []


def test_what_is_nearly_as_good_has_to_be_in_time() -> None:
    runs, soon = task("j1", on=[("n1", 1)]), due("j2", 300)
    assert shown(plan(runs, soon, nodes=1, near=1.2)) == []


def test_a_job_does_not_wait_for_what_never_comes() -> None:
    """Of each node one GPU is broken."""
    made = make("deadline", {"measured": MEASURED, "near": 1})
    whole = seen(due("j1", 1000))
    broken = replace(
        whole, gpus=2, free=2, nodes=tuple(replace(node, gpus=1, free=1) for node in whole.nodes)
    )
    assert shown(made.plan(broken)) == [("j1", 1, 1)]


def test_jobs_with_a_promise_come_before_and_keep_their_size() -> None:
    promise = Promised(
        answer="accepted",
        due=after(NOW, seconds(500)),
        begin=after(NOW, seconds(50)),
        lasts=seconds(450),
        workers=1,
    )
    made = due("j2", None, 72_000)
    held = replace(made, spec=replace(made.spec, promise=promise))
    result = plan(due("j1", 1000), held, nodes=1)
    assert result.turns == (Turn("j2", Reason.BY_DEADLINE, ("n1",)),)
    assert [each.job for each in result.holds] == ["j1"]  # It wants the whole node.
    risky = replace(made, spec=replace(made.spec, promise=replace(promise, answer="at-risk")))
    assert shown(plan(due("j1", 1000), risky, nodes=1)) == [("j1", 1, 2)]


def test_nothing_is_placed_while_a_promised_job_waits_for_others_to_leave() -> None:
    promise = Promised(
        answer="accepted", due=after(NOW, seconds(460)), begin=NOW, lasts=seconds(450)
    )
    runs = job("j1", 1, on=[("n1", 1)], can=("suspend", "release", "migrate"))
    gang = job("j2", 2)
    gang = replace(gang, spec=replace(gang.spec, promise=promise))
    result = plan(runs, gang, due("j3", None), nodes=1)
    assert [each.job for each in result.actions] == ["j1"]
    assert [turn.job for turn in result.turns] == ["j2"]


def test_rates_may_be_what_the_advisor_has_learned() -> None:
    learned = replace(due("j1", None), rates=((1, 1000), (2, 1900)))
    policy = make("deadline", {"models": "learned", "near": 1, "sizes": False})
    assert policy.sees_rates
    assert shown(policy.plan(seen(learned, nodes=1))) == [("j1", 1, 2)]
    unknown = policy.plan(seen(due("j1", None), nodes=1))
    assert [turn.workers for turn in unknown.turns] == [0]  # As its spec asks.


def test_without_rates_nothing_is_different() -> None:
    jobs = seen(due("j1", 1000), due("j2", 900))
    assert make("deadline").plan(jobs) == make("deadline", {"near": 9, "late": 7}).plan(jobs)
    assert [turn.workers for turn in make("deadline").plan(jobs).turns] == [0, 0]


@pytest.mark.parametrize("option", ["late", "near", "half_s", "margin", "start_s"])
def test_a_number_below_what_makes_sense_is_refused(option: str) -> None:
    with pytest.raises(Exception, match=option):
        make("deadline", {option: -1})


@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_from_view_to_view_is_what_is_made_from_nothing(seed: int) -> None:
    rng = random.Random(f"moldable {seed}")
    options = {"models": MODELS, "start_s": 30, "half_s": 400}
    planner: Planner = make("deadline", options).planner()
    jobs: list[JobView] = []
    turns = 0
    for step in range(40):
        later = 60.0 * step
        came = task(
            f"j{step + 1}",
            rng.randrange(1_000, 200_000),
            waited=-later,
            family=rng.choice(["cnn", "rnn"]),
            batch=rng.choice([2, 8, 64]),
        )
        labels = {DEADLINE: str(rng.choice([200, 2000]))} if rng.random() < 0.8 else {}
        jobs.append(replace(came, spec=replace(came.spec, labels=labels)))
        holding = [each for each in jobs if each.phase in HOLDING]
        if holding and rng.random() < 0.5:
            jobs.remove(rng.choice(holding))
        now = seen(*jobs, nodes=2, size=4, later=later)
        kept = planner(now)
        assert kept == make("deadline", options).plan(now)
        turns += len(kept.turns)
        jobs = list(carry_out(kept, now).jobs)
    assert turns > 10
