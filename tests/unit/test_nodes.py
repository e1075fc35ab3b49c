"""One node beside its GPUs: CPUs, memory, ports, what makes a GPU unusable, what is unanswered."""

import pytest

from skep.cells.nodes import Holding, NodeState
from skep.units import GIB
from skep.wire.spec import Resources
from tests.kit import joined, member

A, B = ("j1", 1), ("j2", 1)


def holding(*devices: int, cpus: int = 0, memory: int = 0, port: int = 0) -> Holding:
    return Holding(member=member("node-1", devices), cpus=cpus, memory=memory, port=port)


def test_all_is_free_at_first() -> None:
    node = NodeState(joined(gpus={"cpu": 2, "h200": 1}, cpus=8, memory=GIB))
    node.check()
    assert node.usable
    assert (node.cpus_free, node.memory_free) == (8, GIB)


def test_what_an_attempt_takes_it_gives_back() -> None:
    node = NodeState(joined(cpus=8, memory=10))
    node.take(A, holding(0, 2, cpus=3, memory=4, port=20007))
    node.check()
    assert node.holdings[A].devices == (0, 2)
    assert (node.cpus_free, node.memory_free, node.next_port) == (5, 6, 20008)
    node.release(A)
    node.check()
    assert (node.cpus_free, node.memory_free, node.holdings) == (8, 10, {})


def test_nothing_is_taken_twice() -> None:
    node = NodeState(joined())
    node.take(A, holding(0))
    with pytest.raises(AssertionError):
        node.take(A, holding(1))
    node.take(B, holding(0))
    with pytest.raises(AssertionError, match="held twice"):
        node.check()


def test_ports_are_used_in_turn_and_not_twice() -> None:
    node = NodeState(joined(ports=(10, 12)))
    assert node.port() == 10
    node.take(A, holding(0, port=10))
    assert node.port() == 11
    node.take(B, holding(1, port=12))
    assert (node.next_port, node.port()) == (10, 11)
    node.take(("j3", 1), holding(2, port=11))
    assert node.port() is None
    node.release(A)
    assert node.port() == 10


def test_an_inventory_that_changes_leaves_holdings_alone() -> None:
    node = NodeState(joined(gpus=4, cpus=8, memory=10))
    node.take(A, holding(0, 3, cpus=6, memory=4))
    node.refresh(joined(gpus=3, cpus=4, memory=10))
    node.check()
    assert node.bad(3, "cpu")
    assert node.cpus_free == -2
    assert node.workers(Resources(cpus=1)) == 0
    node.release(A)
    node.check()
    assert node.cpus_free == 4


@pytest.mark.parametrize(
    "wanted, workers",
    [
        (Resources(workers=7), 7),  # GPUs are not its business.
        (Resources(cpus=3), 2),
        (Resources(memory=4), 2),
        (Resources(cpus=2, memory=4), 2),
        (Resources(cpus=9), 0),
    ],
)
def test_how_many_workers_cpus_and_memory_serve(wanted: Resources, workers: int) -> None:
    assert NodeState(joined(gpus=4, cpus=8, memory=10)).workers(wanted) == workers


def test_what_is_coming_counts_and_what_is_owed_does_not() -> None:
    node = NodeState(joined(gpus=2, cpus=8, memory=10))
    node.take(A, holding(0, 1, cpus=7, memory=10))
    wanted = Resources(cpus=2, memory=5)
    assert node.workers(wanted) == 0
    assert node.workers(wanted, 7, 10) == 2
    assert node.workers(Resources(cpus=5), 7, 10) == 1
    assert node.workers(Resources(cpus=1), -3) == 0


@pytest.mark.parametrize("reason", ["drained", "lost", "clearing"])
def test_no_gpu_of_an_unusable_node_is_given_away(reason: str) -> None:
    node = NodeState(joined())
    assert not node.bad(0, "cpu")
    setattr(node, reason, True)
    assert not node.usable
    assert node.bad(0, "cpu")


def test_a_gpu_is_bad_that_is_quarantined_or_another_than_expected() -> None:
    node = NodeState(joined(gpus={"cpu": 1, "h200": 1}))
    assert [node.bad(device, "cpu") for device in (0, 1, 2)] == [False, True, True]
    node.quarantined[0] = None
    assert node.bad(0, "cpu")
    assert not node.bad(1, "h200")


def test_settled_is_below_the_oldest_order_without_an_answer() -> None:
    node = NodeState(joined())
    assert node.settled(9) == 9
    node.open_orders = {A: 7, B: 4}
    assert node.settled(9) == 3


def test_check_sees_a_ghost_that_holds_nothing() -> None:
    node = NodeState(joined())
    node.ghosts[A] = 1
    with pytest.raises(AssertionError, match="ghost"):
        node.check()
