"""What holds of every policy in the registry, whatever the view."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skep.policy.plan import Plan, Preempt, Resize, Suspend
from skep.policy.registry import POLICIES, make
from skep.policy.view import HOLDING, QUEUED, STOPPABLE, JobView, Phase, VcView
from skep.units import Instant, after, seconds
from tests.policy_kit import NOW, brief, carry_out, job, shown, told, view, without_nodes

MODELS = [["cnn", 20.0, 2.0, -0.01, 1.2, 0.3], ["rnn", 90.0, 0.2, 0.0, 0.0, 0.0]]
"""Of GENIE, for the families that are drawn."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {})
        for name, kind in POLICIES.items()
        if kind.__module__.startswith("skep.policy.")  # Not what simulations add.
    ),
    ("srtf", {"places": False}),
    ("tiresias-l", {"starvation": 1, "thresholds": [100, 3250]}),
    ("tiresias-g", {"samples": [10, 100, 1000, 10000], "quantum": 50}),
    ("yarn-cs", {"queues": [["a", 1], ["b", 1]], "label": "user"}),
    ("tetris", {"size": "cost"}),
    ("tetris", {"size": "performance"}),
    ("gandiva", {"slice_s": 5}),
    ("gandiva", {"weights": [["a", 3]]}),
    ("gandiva", {"introspect": True}),
    ("genie", {"models": MODELS}),
    ("genie", {"models": MODELS, "backfill": True, "late": "last"}),
    ("genie", {"models": MODELS, "backfill": True, "placements": "free"}),
    ("sized", {"models": MODELS, "order": "deadline"}),
    ("sized", {"models": MODELS, "by_model": True}),
    ("sized", {"models": MODELS, "order": "shortest", "size": "cost", "strict": False}),
    ("sized", {"models": MODELS, "order": "weighted", "size": "node"}),
    ("deadline", {"models": MODELS}),
    ("deadline", {"models": MODELS, "near": 1, "sizes": False}),
]
EXAMPLES = 40
"""Of each policy and set of options: there are many, and a view has many jobs."""
PLANS_MAX = 4
"""A plan may lead to turns for those that moved, those to nothing."""


@st.composite
def views(draw: st.DrawFn) -> VcView:
    """Draw a VC with a few nodes, perhaps a pinned cell, jobs that run there and jobs that wait."""
    size, count = draw(st.sampled_from([(2, 3), (4, 2), (8, 1)]))
    free = {"": {f"n{number + 1}": size for number in range(count)}}
    pins = {"big": {"n1": draw(st.sampled_from([size // 2, size]))}} if draw(_RARELY) else {}
    for pin, cell in pins.items():
        free[pin] = dict(cell)
        for node, gpus in cell.items():
            free[""][node] -= gpus
    jobs = [_draw_job(draw, f"j{number + 1}", free) for number in range(draw(st.integers(1, 7)))]
    into = draw(st.sampled_from([None, 0, 3]))  # Seconds; None: a round began long ago.
    now = NOW if into is None else Instant(NOW // seconds(3600) * seconds(3600) + seconds(into))
    return view(jobs, nodes=count, size=size, pins=pins, now=now)


_RARELY = st.sampled_from([False, False, True])


def _draw_job(draw: st.DrawFn, name: str, parts: dict[str, dict[str, int]]) -> JobView:
    pin = draw(st.sampled_from(sorted(parts)))
    free = parts[pin]
    workers = draw(st.sampled_from([1, 1, 2, 3, 4]))
    each = draw(st.sampled_from([1, 1, 2]))
    gpus = workers * each
    room = sorted(node for node, left in free.items() if left >= gpus)
    on: list[tuple[str, int]] = []
    phase = Phase.WAITING
    holds = draw(st.booleans())
    if room and holds:
        on.append((draw(st.sampled_from(room)), gpus))
        free[on[0][0]] -= gpus
        phase = draw(st.sampled_from([*sorted(HOLDING), *[Phase.RUNNING] * 6]))
    return job(
        name,
        gpus,
        workers=workers,
        on=on,
        phase=phase,
        hard=draw(st.booleans()),
        pin=pin,
        needs=draw(st.sampled_from([None, 10, 500, 500, 9000])),
        ran=draw(st.sampled_from([0, 60, 400, 5000])) if on else draw(st.sampled_from([0, 0, 70])),
        since=60 if on else 0,
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        family=draw(st.sampled_from([None, "cnn", "rnn"])),
        task=draw(st.sampled_from([None, (16, 100), (3, 9000)])),
        labels={"user": draw(st.sampled_from(["a", "b"]))},
        elastic=(1, 4),
        rates=((1, 1000), (2, 1900), (3, 2500), (4, 2600)) if workers <= 4 else (),
    )


@pytest.mark.parametrize("name, options", VARIANTS)
@settings(max_examples=EXAMPLES)
@given(seen=views())
def test_a_plan_is_pure_legal_small_and_stable(
    name: str, options: dict[str, Any], seen: VcView
) -> None:
    policy = make(name, options)
    plan = shown(policy, seen)
    story = [f"{brief(seen)} -> {told(plan)}"]
    assert shown(make(name, options), seen) == plan
    legal(plan, seen)
    assert plan.look_at is None or plan.look_at > seen.now
    for _ in range(PLANS_MAX):
        seen = carry_out(plan, seen)
        assert seen.free >= 0
        plan = shown(policy, seen)
        story.append(f"{brief(seen)} -> {told(plan)}")
        legal(plan, seen)
        assert not [a for a in plan.actions if isinstance(a, Preempt | Suspend)], "\n".join(story)
        if not plan.turns and not plan.actions:
            return
    assert not any(job_.gpus <= 0 for job_ in seen.jobs)


@pytest.mark.parametrize("name, options", VARIANTS)
@settings(max_examples=EXAMPLES)
@given(data=st.lists(st.tuples(views(), st.sampled_from([0, 1, 500])), min_size=2, max_size=4))
def test_what_a_planner_keeps_changes_no_plan(
    name: str, options: dict[str, Any], data: list[tuple[VcView, int]]
) -> None:
    policy, now = make(name, options), Instant(0)
    planner = policy.planner()
    for each, later in data:
        now = after(max(now, each.now), seconds(later))
        seen = each if policy.sees_nodes else without_nodes(each)
        seen = replace(seen, now=now)
        assert planner(seen) == policy.plan(seen), brief(seen)


def legal(plan: Plan, seen: VcView) -> None:
    """Assert that a plan names the view's own jobs, in phases in which that can be done to them."""
    jobs = {each.job: each for each in seen.jobs}
    named = [action.job for action in plan.actions]
    assert len(named) == len(set(named)), plan
    for action in plan.actions:
        assert not jobs[action.job].borrows
        if isinstance(action, Resize):
            assert jobs[action.job].phase is Phase.RUNNING
            assert action.workers in dict(jobs[action.job].rates)
        else:
            assert jobs[action.job].phase in STOPPABLE, plan
    turns = [turn.job for turn in plan.turns]
    assert len(turns) == len(set(turns)), plan
    assert all(jobs[turn].phase in QUEUED for turn in turns), plan
    assert not {hold.job for hold in plan.holds} & set(turns)
    preempts = [a.job for a in plan.actions if isinstance(a, Preempt)]
    if preempts:
        assert turns, plan
        for pin, free in seen.free_for().items():
            like = [each for each in seen.jobs if each.pin == pin]
            coming = sum(each.gpus for each in like if each.phase is Phase.STOPPING)
            gone = sum(each.gpus for each in like if each.job in preempts)
            wanted = sum(each.gpus for each in like if each.job in turns)
            assert wanted <= free + gone + coming, (pin, plan)
            assert wanted or not gone, (pin, plan)
