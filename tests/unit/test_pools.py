"""Which allocations of a pool are asked for, left and handed back."""

from __future__ import annotations

import pytest

from skep.pools import Allocation, Do, Limits, Node, decide

LIMITS = Limits(least=1, most=3, gpus=4, margin_s=60, idle_s=30)


def runs(number: str, left_s: int | None = 600) -> Allocation:
    return Allocation(number, f"slurm-{number}", "RUNNING", left_s)


def waits(number: str) -> Allocation:
    return Allocation(number, f"slurm-{number}", "PENDING")


def node(number: str, *jobs: str, idle_s: float = 0.0) -> Node:
    return Node(f"slurm-{number}", jobs, idle_s)


def told(
    allocations: list[Allocation], nodes: list[Node], waiting_gpus: int = 0, limits: Limits = LIMITS
) -> Do:
    return decide(allocations, {each.name: each for each in nodes}, waiting_gpus, limits)


def test_the_least_is_asked_for_without_any_job() -> None:
    assert told([], []) == Do(ask=1)
    assert told([waits("1")], []) == Do()


def test_what_runs_and_is_no_node_yet_is_invited() -> None:
    assert told([runs("1"), waits("2")], [], waiting_gpus=8) == Do(invite=("1",))


@pytest.mark.parametrize("waiting_gpus, ask", [(0, 0), (1, 1), (4, 1), (5, 2), (100, 2)])
def test_it_grows_with_the_jobs_that_wait_up_to_the_most(waiting_gpus: int, ask: int) -> None:
    assert told([runs("1")], [node("1", "j1")], waiting_gpus) == Do(ask=ask)


def test_what_is_coming_is_not_asked_for_again() -> None:
    assert told([runs("1"), waits("2")], [node("1", "j1")], waiting_gpus=4) == Do()


def test_idle_nodes_are_handed_back_down_to_the_least() -> None:
    there = [runs("1"), runs("2"), runs("3")]
    idle = [node("1", "j1"), node("2", idle_s=31), node("3", idle_s=31)]
    assert told(there, idle) == Do(leave=("2", "3"))
    assert told(there[1:], idle[1:]) == Do(leave=("2",))
    assert told(there, [*idle[:2], node("3", idle_s=29)]) == Do(leave=("2",))
    assert told(there, idle, waiting_gpus=1) == Do()


def test_what_has_not_begun_and_is_not_needed_is_given_up_first() -> None:
    there = [runs("1"), runs("2"), waits("3")]
    nodes = [node("1", "j1"), node("2", idle_s=31)]
    assert told(there, nodes, limits=LIMITS._replace(least=2)) == Do(give_up=("3",))


def test_an_allocation_is_left_before_its_end_and_another_asked_for() -> None:
    assert told([runs("1", 61)], [node("1", "j1")]) == Do()
    assert told([runs("1", 60)], [node("1", "j1")]) == Do(ask=1)
    assert told([runs("1", 60)], [node("1")]) == Do(ask=1, leave=("1",))
    assert told([runs("1", 30)], [node("1", "j1")]) == Do(ask=1, leave=("1",))
    assert told([runs("1", None)], [node("1", "j1")]) == Do()
    # Its jobs need GPUs as well as those that wait.
    there = [runs("1", 60), runs("2")]
    assert told(there, [node("1", "j1"), node("2", "j2")]) == Do(ask=1)
    # Once there is a free node, they move to it.
    assert told(there, [node("1", "j1"), node("2")]) == Do(leave=("1",))


def test_what_ends_before_it_is_a_node_is_given_up_and_another_asked_for() -> None:
    assert told([runs("1", 60)], []) == Do(ask=1, give_up=("1",))
    assert told([waits("1")._replace(left_s=9.0)], []) == Do(ask=1, give_up=("1",))


def test_a_node_whose_allocation_is_gone_is_removed() -> None:
    assert told([], [node("1")]) == Do(ask=1, remove=("slurm-1",))
    # What ran there begins again once the node counts as lost: an idle node is kept for it.
    there = [runs("2"), runs("3")]
    idle = [node("1", "j1"), node("2", "j2"), node("3", idle_s=31)]
    assert told(there, idle) == Do(remove=("slurm-1",))
