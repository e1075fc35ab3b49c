"""GENIE's algorithm 1 by hand examples, the flow of Figure 11, and against itself from nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from skep.perf.model.genie import Genie, Split, cost, ect_s, rate, splits
from skep.policy.api import Planner
from skep.policy.plan import Plan
from skep.policy.registry import make
from skep.policy.schedulers.genie import qos
from skep.policy.view import HOLDING, JobView, VcView
from skep.units import NS_PER_SECOND, Instant, after, seconds
from skep.wire.spec import Elastic, SizeHint
from tests.policy_kit import NOW, carry_out, job, told, view

RATES = {(1, 1): 100.0, (1, 2): 180.0, (2, 1): 150.0, (2, 2): 300.0}
"""Samples per second on two nodes of two GPUs. Costs are 0.45, 0.7, 0.9 and 1.4 (equation 10 with
0.4), ratios 222, 257, 167 and 214: one whole node pays best."""
MEASURED = [["cnn", 36, *split, there] for split, there in RATES.items()]


def task(
    name: str,
    samples: int = 36_000,
    *,
    waited: float = 0,
    family: str = "cnn",
    batch: int = 36,
    priority: int = 0,
    most: int = 16,
    **more: Any,
) -> JobView:
    """Return a task that has waited for so many seconds; on one GPU it takes `samples` / 100."""
    made = job(name, priority=priority, elastic=(1, most), **more)
    size = SizeHint(family=family, batch_size=batch, mini_batches=samples // batch)
    at = Instant(NOW - seconds(waited))
    return replace(made, spec=replace(made.spec, size=size), submitted_at=at, waiting_since=at)


def seen(*jobs: JobView, nodes: int = 2, size: int = 2, later: float = 0) -> VcView:
    return view(jobs, nodes=nodes, size=size, now=after(NOW, seconds(later)))


def shown(plan: Plan) -> list[tuple[str, int, int]]:
    """Return each turn: the job, nodes, and GPUs on each."""
    for turn in plan.turns:
        assert turn.workers == len(turn.nodes) * turn.workers_per_node, turn
    return [(turn.job, len(turn.nodes), turn.workers_per_node) for turn in plan.turns]


def genie(*jobs: JobView, nodes: int = 2, **options: Any) -> Plan:
    return make("genie", {"measured": MEASURED, **options}).plan(seen(*jobs, nodes=nodes))


def test_rates_that_were_learned_are_those_of_the_view() -> None:
    """The same numbers as MEASURED, said by the advisor of the job: the same placement."""
    rates = tuple(
        (gpus, round(1000 * there / 36)) for gpus, there in ((1, 100), (2, 180), (4, 300))
    )
    learned = replace(task("j1"), rates=rates, slowdown=((1, 1000), (2, 1200)))
    assert shown(genie(learned, measured=[], models="learned")) == shown(genie(task("j1")))
    assert shown(genie(learned, measured=[], models="learned")) == [("j1", 1, 2)]
    plain = genie(task("j2"), measured=[], models="learned")
    assert [(turn.job, turn.workers) for turn in plain.turns] == [("j2", 0)], "as its spec says"


# --- algorithm 1 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "waited, split",
    [
        (0, (1, 2)),  # 720 s to the end: everything is in time, and this pays best.
        (520, (1, 2)),  # 200 s are left, and it takes 200 s.
        (521, (2, 2)),  # Only all GPUs are in time.
        (600, (2, 2)),
        (601, (1, 2)),  # Nothing is in time: what pays best of all.
    ],
)
def test_the_placement_is_what_pays_best_of_those_in_time(
    waited: float, split: tuple[int, int]
) -> None:
    assert shown(genie(task("j1", waited=waited))) == [("j1", *split)]


def test_a_prior_task_has_half_the_time() -> None:
    assert shown(genie(task("j1", waited=161, priority=1))) == [("j1", 2, 2)]
    assert shown(genie(task("j1", waited=161))) == [("j1", 1, 2)]


def test_an_urgent_task_is_never_in_time_and_goes_where_it_pays_best() -> None:
    assert shown(genie(task("j1", priority=2))) == [("j1", 1, 2)]


def test_a_task_that_does_not_fit_on_one_gpu_has_the_time_that_it_would_take_there() -> None:
    """180 samples a second on two GPUs count as 90 on one: 800 s to the end, and it takes 200."""
    one = task("j1", waited=600)
    two = replace(one, spec=replace(one.spec, elastic=Elastic(min=2, max=16)), workers=2, gpus=2)
    assert shown(genie(two)) == [("j1", 1, 2)]
    late = replace(two, submitted_at=Instant(NOW - seconds(601)))
    assert shown(genie(late)) == [("j1", 2, 2)]


def test_the_start_counts() -> None:
    assert shown(genie(task("j1", waited=0), start_s=600)) == [("j1", 1, 2)]
    # 1,920 s from its submission: 2 x (360 + 600). 799 s are left, and it takes 600 + 200.
    assert shown(genie(task("j1", waited=1121), start_s=600)) == [("j1", 2, 2)]


def test_the_label_of_the_spec_says_when_it_should_have_ended() -> None:
    said = task("j1", labels={"finish-by-s": "150"})
    assert shown(genie(said)) == [("j1", 2, 2)]
    assert shown(genie(said, label="other")) == [("j1", 1, 2)]


def test_the_shortest_allowance_comes_first() -> None:
    """Allowances: 720 - 200 = 520; 360 - 200 = 160; 600 - 200 - 150 = 250; 0 - 200."""
    jobs = (
        task("j1"),
        task("j2", priority=1),
        task("j3", labels={"finish-by-s": "600"}, waited=150),
        task("j4", priority=2),
    )
    assert [turn.job for turn in genie(*jobs, nodes=4, backfill=True).turns] == [
        "j4",
        "j2",
        "j3",
        "j1",
    ]


def test_as_printed_a_task_that_is_too_late_comes_first_and_with_late_last_it_does_not() -> None:
    late, timely, urgent = task("j1", waited=900), task("j2"), task("j3", priority=2)
    assert [turn.job for turn in genie(late, timely, urgent, nodes=3).turns] == ["j1", "j3", "j2"]
    last = genie(late, timely, urgent, nodes=3, late="last")
    assert [turn.job for turn in last.turns] == ["j3", "j2", "j1"]


def test_the_first_without_room_blocks_unless_there_is_backfill() -> None:
    """One of four GPUs is taken: all four are not to be had, and one node is."""
    there = task("j1", on=[("n1", 1)])
    large, small = task("j2", waited=521), task("j3")
    printed = genie(there, large, small)
    assert (shown(printed), [hold.job for hold in printed.holds]) == ([], ["j2"])
    assert printed.holds[0].needs == "2 GPUs on each of 2 nodes"
    assert shown(genie(there, large, small, backfill=True)) == [("j3", 1, 2)]


@pytest.mark.parametrize("policy", ["genie", "sized"])
def test_a_placement_that_hardware_does_not_allow_is_not_waited_for(policy: str) -> None:
    """One of four GPUs is bad: all of them would be waited for for ever."""
    options = {"measured": MEASURED, **({"size": "performance"} if policy == "sized" else {})}
    now = seen(task("j1", waited=521), task("j2"))
    bad = replace(now.nodes[1], free=1)
    now = replace(now, nodes=(now.nodes[0], bad), gpus=3, free=3)
    turns = make(policy, options).plan(now).turns
    assert turns[0].job == "j1"
    assert turns[0].nodes == ("n1",)
    whole = seen(task("j1", waited=521), task("j3", on=[("n1", 1)]))
    assert make(policy, options).plan(whole).turns == ()


def test_with_free_a_task_has_the_best_of_what_is_free() -> None:
    there = task("j1", on=[("n1", 1)]), task("j2", on=[("n2", 1)])
    assert shown(genie(*there, task("j3"))) == []
    # One GPU pays better than one on each node.
    assert shown(genie(*there, task("j3"), placements="free")) == [("j3", 1, 1)]
    # And it is in time, or the one that is comes first.
    assert shown(genie(*there, task("j3", waited=400), placements="free")) == [("j3", 2, 1)]


def test_the_nodes_with_the_fewest_free_gpus_are_taken() -> None:
    there = job("j1", on=[("n2", 3)])
    plan = make("genie", {"measured": [["cnn", 36, 1, 1, 100.0]]}).plan(
        seen(there, task("j2", most=1), nodes=3, size=4)
    )
    assert plan.turns[0].nodes == ("n2",)


def test_a_model_counts_where_nothing_was_measured() -> None:
    """10 samples a second for each GPU, and half of a GPU is lost on a node: 10 and 15."""
    models = [["cnn", 10.0, 0.0, 0.0, 0.5, 1.0]]
    plan = make("genie", {"models": models}).plan(seen(task("j1", most=2)))
    assert shown(plan) == [("j1", 1, 1)]  # 10 / 0.45 is more than 15 / 0.7.


def test_no_gpu_has_less_than_a_sample() -> None:
    measured = [["cnn", 3, *split, there] for split, there in RATES.items()]
    late = task("j1", batch=3, waited=521)
    assert shown(make("genie", {"measured": measured}).plan(seen(late))) == [("j1", 1, 2)]


def test_a_job_without_rates_has_the_gpus_of_its_spec_and_unknown_lengths_come_last() -> None:
    jobs = job("j1"), job("j2", 2, needs=100), task("j3", samples=3_600_000)
    plan = genie(*jobs, nodes=4)
    assert told(plan) == "+j2@n1 +j3@n2 +j1@n3"


# --- the flow of figure 11 ------------------------------------------------------------------------


def test_order_and_placements_change_as_tasks_end_and_come() -> None:
    """Nodes of two GPUs, all taken at first; tasks wait, one more comes, one ends."""
    planner = make("genie", {"measured": MEASURED}).planner()
    there = [task(f"j{n}", on=[(f"n{n}", 2)]) for n in (1, 2)]
    waiting = [task("j3"), task("j4", priority=1)]
    assert planner(seen(*there, *waiting)).turns == ()
    # An urgent one comes, and goes first once a node is free.
    waiting.append(task("j5", priority=2, waited=-10))
    assert planner(seen(*there, *waiting, later=10)).turns == ()
    assert shown(planner(seen(there[0], *waiting, later=100))) == [("j5", 1, 2)]
    # By then j4 has to have all GPUs to be in time, and nothing else may start before it.
    there[1] = replace(waiting.pop(), phase=there[0].phase, nodes=(("n2", 2),), gpus=2, workers=2)
    blocked = planner(seen(there[1], *waiting, later=170))
    assert (shown(blocked), [hold.job for hold in blocked.holds]) == ([], ["j4"])
    # Too late for that too, it has the node that pays best; so has j3 a moment later.
    assert shown(planner(seen(there[1], *waiting, later=250))) == [("j4", 1, 2)]
    assert shown(planner(seen(waiting[0], later=251))) == [("j3", 1, 2)]


# --- from nothing ---------------------------------------------------------------------------------

MODELS: list[list[Any]] = [["cnn", 20.0, 2.0, -0.01, 1.2, 0.3], ["rnn", 90.0, 0.2, 0.0, 0.0, 0.0]]


def from_nothing(jobs: Sequence[JobView], now: int, nodes: int, size: int) -> list[Any]:
    """Return jobs and their placements in the order of algorithm 1, every task looked at."""
    found = []
    for each in jobs:
        hint = each.spec.size
        model = Genie(*next(row for row in MODELS if row[0] == hint.family)[1:])
        batch, batches = hint.batch_size or 0, hint.total() or 0
        may = [split for split in splits(nodes, size) if split.gpus <= min(batch, 16)]
        there = {split: rate(model, batch, split.nodes, split.each) for split in may}
        takes = {
            split: math.ceil(batch * batches / there[split] * NS_PER_SECOND) + seconds(30)
            for split in may
        }
        alone_s = batch * batches / there[Split(1, 1)] + 30
        ends = each.submitted_at + round(ect_s(qos(each), alone_s) * NS_PER_SECOND)
        timely = [split for split in may if now + takes[split] <= ends]

        def worth(split: Split, there: dict[Split, float] = there) -> Any:
            ratio = there[split] / cost(split, nodes, size, 0.4)
            return -ratio, -there[split], split.gpus, split.nodes

        best = min(timely or may, key=worth)
        found.append((ends - takes[best] - now, each.sequence, each, best))
    return [(each, best) for _, _, each, best in sorted(found, key=lambda one: one[:2])]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_from_view_to_view_is_algorithm_1(seed: int) -> None:
    rng = random.Random(f"genie {seed}")
    nodes, size = rng.choice([(2, 4), (4, 4), (3, 2)])
    planner: Planner = make("genie", {"models": MODELS, "start_s": 30}).planner()
    jobs: list[JobView] = []
    for step in range(40):
        later, number = 60.0 * step, step + 1
        came = task(
            f"j{number}",
            rng.randrange(1_000, 200_000),
            waited=-later,
            family=rng.choice(["cnn", "rnn"]),
            batch=rng.choice([2, 8, 64]),
            priority=rng.choice([0, 0, 1, 2]),
        )
        jobs.append(came)
        holding = [each for each in jobs if each.phase in HOLDING]
        if holding and rng.random() < 0.5:
            jobs.remove(rng.choice(holding))
        now = seen(*jobs, nodes=nodes, size=size, later=later)
        plan = planner(now)
        waiting = [each for each in jobs if each.phase not in HOLDING]
        order = from_nothing(waiting, now.now, nodes, size)
        got = shown(plan)
        assert got == [(each.job, *_pair(split)) for each, split in order][: len(got)]
        room = {node.node: node.free for node in now.nodes}
        for turn in plan.turns:
            assert len(set(turn.nodes)) == len(turn.nodes)
            for node in turn.nodes:
                room[node] -= turn.workers_per_node
        assert min(room.values()) >= 0
        if len(got) < len(order):  # The next one has no room.
            split = order[len(got)][1]
            assert sum(free >= split.each for free in room.values()) < split.nodes
        jobs = list(carry_out(plan, now).jobs)


def _pair(split: Split) -> tuple[int, int]:
    return split.nodes, split.each


# --- the baselines --------------------------------------------------------------------------------


def sized(*jobs: JobView, nodes: int = 2, **options: Any) -> list[tuple[str, int, int]]:
    policy = make("sized", {"measured": MEASURED, **options})
    return shown(policy.plan(seen(*jobs, nodes=nodes)))


@pytest.mark.parametrize(
    "size, split",
    [("all", (2, 2)), ("node", (1, 2)), ("gpu", (1, 1)), ("performance", (2, 2)), ("cost", (1, 2))],
)
def test_how_many_gpus_a_baseline_takes(size: str, split: tuple[int, int]) -> None:
    assert sized(task("j1"), size=size) == [("j1", *split)]


def test_all_is_the_largest_symmetric_placement_of_what_is_free() -> None:
    there = task("j1", on=[("n1", 1)])
    assert sized(there, task("j2")) == [("j2", 1, 2)]  # Not three GPUs.
    assert sized(there, task("j2"), task("j3")) == [("j2", 1, 2), ("j3", 1, 1)]


@pytest.mark.parametrize(
    "order, names",
    [
        ("arrival", ["j1", "j2", "j3", "j4"]),
        ("deadline", ["j4", "j2", "j3", "j1"]),  # 720, 360, 450, 0
        ("weighted", ["j4", "j3", "j2", "j1"]),  # 360, 180, 150, 0
        ("shortest", ["j1", "j2", "j3", "j4"]),
    ],
)
def test_the_orders_of_the_baselines(order: str, names: list[str]) -> None:
    jobs = (
        task("j1"),
        task("j2", priority=1),
        task("j3", labels={"finish-by-s": "600"}, waited=150),
        task("j4", priority=2),
    )
    assert [each[0] for each in sized(*jobs, order=order, size="gpu")] == names


def test_the_shortest_is_by_its_own_size() -> None:
    jobs = task("j1"), task("j2", samples=18_000), task("j3", samples=7200)
    assert [each[0] for each in sized(*jobs, order="shortest", size="gpu")] == ["j3", "j2", "j1"]


def test_the_capacity_scheduler_gives_each_model_its_part_of_the_gpus() -> None:
    """Two models, so two of four GPUs each; the third task of the first model waits behind."""
    measured = [*MEASURED, *(["rnn/x", *row[1:]] for row in MEASURED)]
    jobs = task("j1"), task("j2"), task("j3", family="rnn/x")
    assert sized(*jobs, by_model=True, measured=measured) == [("j1", 1, 2), ("j3", 1, 2)]
    one: dict[str, Any] = {"size": "gpu", "by_model": True, "measured": measured}
    assert sized(*jobs, task("j4"), **one) == [("j1", 1, 1), ("j2", 1, 1), ("j3", 1, 1)]


def test_strict_baselines_wait_for_their_first_task() -> None:
    jobs = task("j1", on=[("n1", 1)]), task("j2"), task("j3", family="none", needs=60)
    assert sized(*jobs, size="performance") == []
    options = {"measured": MEASURED, "size": "performance", "strict": False}
    assert told(make("sized", options).plan(seen(*jobs))) == "+j3@n1"
