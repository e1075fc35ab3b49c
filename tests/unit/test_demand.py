"""What waiting jobs ask for, each shape once, and when nobody need look at them."""

from __future__ import annotations

from skep.cells.decide import placement
from skep.cells.holds import Request
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.machines.allocator.policies.demand import SHAPES_MAX, Demand
from skep_lab.simulator.build import uniform


def test_nothing_is_in_vain_before_every_shape_has_failed_since_something_came_free() -> None:
    """Whoever comes to ask for the same changes nothing; another shape, or room, does."""
    demand = Demand()
    demand.come("j1", ("one",))
    demand.come("j2", ("two",))
    demand.fail(("one",), 7, outside=False)
    assert not demand.in_vain(7)
    demand.fail(("two",), 7, outside=True)
    demand.come("j3", ("one",))
    assert demand.in_vain(7)
    assert not demand.in_vain(8)
    assert demand.outside()
    demand.leave("j2")
    assert demand.in_vain(7)
    assert not demand.outside()
    demand.come("j4", None)
    assert not demand.in_vain(7)


def test_who_has_left_asks_for_nothing() -> None:
    """Coming again replaces what was asked for; leaving twice does no harm."""
    demand = Demand()
    demand.come("j1", ("one",))
    demand.come("j1", ("two",))
    demand.fail(("two",), 1, outside=False)
    assert demand.in_vain(1)
    demand.leave("j1")
    demand.leave("j1")
    assert not demand


def test_few_shapes_are_kept() -> None:
    """A forgotten failure costs another attempt, no more."""
    demand = Demand()
    for number in range(SHAPES_MAX + 1):
        demand.fail((number,), 1, outside=False)
    assert demand.failed((0,), 1) is None
    assert demand.failed((SHAPES_MAX,), 1) is False


def test_room_is_what_a_gang_could_have_at_most() -> None:
    """Opportunistic jobs take none of it, guaranteed ones what they hold."""
    cells = Cells(uniform(3, 4, vcs={"a": 2, "b": 1}))
    chain = cells.chains["v100"]
    pool, sizes = chain.pools["a", ""], chain.topology.size
    assert pool.most_gpus(sizes) == 8
    for name, gpus, priority in (("j1.1", 3, 0), ("j2.1", 2, -1)):
        asked = Request(AttemptId(name), "a", priority, ((1, gpus),))
        where = placement.find_placement(cells, asked)
        assert where is not None
        cells.allocate(asked, where)
    assert pool.most_gpus(sizes) == 5
    assert (
        placement.find_placement(cells, Request(AttemptId("j3.1"), "a", 0, ((5, 1),))) is not None
    )
    assert placement.find_placement(cells, Request(AttemptId("j3.1"), "a", 0, ((6, 1),))) is None
