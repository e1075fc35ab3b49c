"""Where gangs go: best fit on one node, else the fewest nodes, never over two GPU types."""

from typing import Any

import pytest

from skep.cells.nodes import Coming, Holding, NodeState
from skep.policies import place
from skep.policies.place import Fit, Slot
from skep.units import GIB
from skep.wire.reasons import Reason
from tests.kit import joined, member, spec

ONE, FEWEST = Reason.BEST_FIT_ONE_NODE, Reason.FEWEST_NODES


def cluster(*free: int, total: int = 4) -> dict[str, NodeState]:
    """Return nodes of `total` GPUs, of which so many are free."""
    nodes = {}
    for number, count in enumerate(free, 1):
        name = f"node-{number}"
        nodes[name] = NodeState(joined(name, total))
        taken = tuple(range(total - count))
        if taken:
            held = Holding(member=member(name, taken), cpus=0, memory=0, port=0)
            nodes[name].take((f"j{number}", 1), held)
    return nodes


@pytest.mark.parametrize(
    "free, wanted, found",
    [
        ([4, 4], {"gpus": 1}, Fit("cpu", (Slot("node-1", 1),), ONE)),
        ([4, 2, 3], {"gpus": 2}, Fit("cpu", (Slot("node-2", 1),), ONE)),
        ([4, 2, 3], {"gpus": 1, "workers": 3}, Fit("cpu", (Slot("node-3", 3),), ONE)),
        ([1, 0], {"gpus": 2}, None),
        ([3, 4, 2], {"workers": 6}, Fit("cpu", (Slot("node-2", 4), Slot("node-3", 2)), FEWEST)),
        ([3, 4, 2], {"workers": 5}, Fit("cpu", (Slot("node-2", 4), Slot("node-3", 1)), FEWEST)),
        ([3, 3], {"gpus": 2, "workers": 2},
         Fit("cpu", (Slot("node-1", 1), Slot("node-2", 1)), FEWEST)),
        ([2, 2, 2], {"workers": 6},
         Fit("cpu", (Slot("node-1", 2), Slot("node-2", 2), Slot("node-3", 2)), FEWEST)),
        ([4, 3], {"workers": 8}, None),
        ([2, 2], {"workers": 4, "hard": True}, None),
        ([2, 2], {"workers": 4, "hard": False},
         Fit("cpu", (Slot("node-1", 2), Slot("node-2", 2)), FEWEST)),
        ([2, 4], {"workers": 4, "hard": True}, Fit("cpu", (Slot("node-2", 4),), ONE)),
    ],
)  # fmt: skip
def test_fit(free: list[int], wanted: dict[str, int], found: Fit | None) -> None:
    assert place.fit(cluster(*free), spec(**wanted), ["cpu"]) == found


def test_a_gang_is_never_mixed_over_types() -> None:
    nodes = {"node-1": NodeState(joined(gpus={"a100": 2, "h200": 2}))}
    assert place.gpu_types(nodes, spec()) == ["a100", "h200"]
    assert place.fit(nodes, spec(workers=3), ["a100", "h200"]) is None
    assert place.gpu_types(nodes, spec(gpu_type="h200")) == ["h200"]
    assert place.fit(nodes, spec(workers=2), ["h200"]) == Fit("h200", (Slot("node-1", 2),), ONE)


def test_one_node_of_any_type_is_better_than_several_of_the_first() -> None:
    nodes = {
        "node-1": NodeState(joined("node-1", {"a100": 1})),
        "node-2": NodeState(joined("node-2", {"a100": 1})),
        "node-3": NodeState(joined("node-3", {"h200": 2})),
    }
    found = Fit("h200", (Slot("node-3", 2),), ONE)
    assert place.fit(nodes, spec(workers=2), ["a100", "h200"]) == found


def test_nodes_that_are_drained_or_lost_take_nothing() -> None:
    nodes = cluster(4, 4)
    nodes["node-1"].drained = True
    assert place.fit(nodes, spec(), ["cpu"]) == Fit("cpu", (Slot("node-2", 1),), ONE)
    nodes["node-2"].lost = True
    assert place.fit(nodes, spec(), ["cpu"]) is None


def test_cpus_and_memory_bound_the_workers_of_a_node() -> None:
    nodes = {
        "node-1": NodeState(joined("node-1", cpus=4, memory=64 * GIB)),
        "node-2": NodeState(joined("node-2", cpus=64, memory=2 * GIB)),
    }
    found = place.fit(nodes, spec(workers=4, cpus=2, memory=GIB), ["cpu"])
    assert found == Fit("cpu", (Slot("node-1", 2), Slot("node-2", 2)), FEWEST)


def test_what_is_coming_counts() -> None:
    nodes = cluster(1, 0)
    wanted = spec(workers=3)
    assert place.fit(nodes, wanted, ["cpu"], {"node-2": Coming(gpus={"cpu": 2})}) == Fit(
        "cpu", (Slot("node-2", 2), Slot("node-1", 1)), FEWEST
    )
    whole = {"node-2": Coming(gpus={"cpu": 3}), "node-1": Coming(gpus={"cpu": 3})}
    found = place.fit(nodes, wanted, ["cpu"], whole)
    assert found == Fit("cpu", (Slot("node-2", 3),), ONE)
    assert found is not None
    assert place.holds(nodes, wanted, found, whole)
    assert not place.holds(nodes, wanted, found, {"node-2": Coming(gpus={"cpu": 2})})
    assert not place.holds(nodes, wanted, found, {})


def test_members_take_the_lowest_free_gpus_in_the_order_of_their_nodes() -> None:
    nodes = cluster(3, 4)
    wanted = spec(gpus=2, workers=3)
    found = place.fit(nodes, wanted, ["cpu"])
    assert found is not None
    assert place.members(nodes, wanted, found) == (
        member("node-2", (0, 1), (2, 3)),
        member("node-1", (1, 2), first_rank=2),
    )


@pytest.mark.parametrize(
    "wanted, usable, possible",
    [
        ({"workers": 8}, 2, True),
        ({"workers": 9}, 2, False),
        ({"workers": 5}, 1, False),
        ({"workers": 4, "hard": True}, 1, True),
        ({"workers": 5, "hard": True}, 2, False),
        ({"cpus": 16, "workers": 4, "hard": True}, 2, True),
        ({"cpus": 17, "workers": 4, "hard": True}, 2, False),
        ({"memory": 17 * GIB, "workers": 7}, 2, False),
        ({"gpu_type": "h200"}, 2, False),
        ({}, 0, False),
    ],
)
def test_what_the_usable_nodes_could_hold_if_they_were_empty(
    wanted: dict[str, Any], usable: int, possible: bool
) -> None:
    nodes = cluster(0, 0)
    for name in list(nodes)[usable:]:
        nodes[name].drained = True
    job = spec(**wanted)
    assert place.possible(nodes, job, place.gpu_types(nodes, job)) is possible
