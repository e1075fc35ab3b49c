"""One node's inventory: what is free, who holds what, and what its agent has answered."""

import pytest

from skep.cells.nodes import Coming, Holding, NodeState
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
    assert node.free == {"cpu": [0, 1], "h200": [2]}
    assert (node.cpus_free, node.memory_free) == (8, GIB)
    assert [node.type_of(device) for device in (0, 2, 3)] == ["cpu", "h200", ""]


def test_what_an_attempt_takes_it_gives_back() -> None:
    node = NodeState(joined(cpus=8, memory=10))
    node.take(A, holding(0, 2, cpus=3, memory=4, port=20007))
    node.check()
    assert node.free == {"cpu": [1, 3]}
    assert (node.cpus_free, node.memory_free, node.next_port) == (5, 6, 20008)
    node.release(A)
    node.check()
    assert node.free == {"cpu": [0, 1, 2, 3]}
    assert (node.cpus_free, node.memory_free, node.holdings) == (8, 10, {})


def test_nothing_is_taken_twice() -> None:
    node = NodeState(joined())
    node.take(A, holding(0))
    with pytest.raises(AssertionError):
        node.take(A, holding(1))
    with pytest.raises(ValueError, match="not in list"):
        node.take(B, holding(0))


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
    assert node.free == {"cpu": [1, 2]}
    assert node.cpus_free == -2
    assert node.workers("cpu", Resources(cpus=1)) == 0
    node.release(A)
    node.check()
    assert node.free == {"cpu": [0, 1, 2]}


@pytest.mark.parametrize(
    "wanted, workers",
    [
        (Resources(gpus=1), 4),
        (Resources(gpus=2), 2),
        (Resources(gpus=3), 1),
        (Resources(gpus=5), 0),
        (Resources(gpus=1, cpus=3), 2),
        (Resources(gpus=1, memory=4), 2),
        (Resources(gpus=1, cpus=9), 0),
    ],
)
def test_how_many_workers_fit(wanted: Resources, workers: int) -> None:
    node = NodeState(joined(gpus=4, cpus=8, memory=10))
    assert node.workers("cpu", wanted) == workers
    assert node.workers("h200", wanted) == 0


def test_what_is_coming_counts_in_gpus_cpus_and_memory() -> None:
    node = NodeState(joined(gpus=2, cpus=8, memory=10))
    node.take(A, holding(0, 1, cpus=7, memory=10))
    coming = Coming()
    wanted = Resources(gpus=1, cpus=2, memory=5)
    assert node.workers("cpu", wanted, coming) == 0
    node.give_back(A, coming, 1)
    assert coming == Coming(gpus={"cpu": 2}, cpus=7, memory=10)
    assert node.workers("cpu", wanted, coming) == 2
    assert node.workers("cpu", Resources(gpus=1, cpus=5), coming) == 1
    node.give_back(A, coming, -1)
    assert coming == Coming(gpus={"cpu": 0})


def test_settled_is_below_the_oldest_order_without_an_answer() -> None:
    node = NodeState(joined())
    assert node.settled(9) == 9
    node.open_orders = {A: 7, B: 4}
    assert node.settled(9) == 3


def test_drained_and_lost_nodes_are_not_usable() -> None:
    node = NodeState(joined())
    node.drained = True
    assert not node.usable
    node.drained, node.lost = False, True
    assert not node.usable


def test_check_sees_a_ghost_that_holds_nothing() -> None:
    node = NodeState(joined())
    node.ghosts[A] = 1
    with pytest.raises(AssertionError, match="ghost"):
        node.check()


def test_check_sees_a_gpu_held_twice() -> None:
    node = NodeState(joined())
    node.holdings = {A: holding(0), B: holding(0)}
    with pytest.raises(AssertionError, match="held twice"):
        node.check()
