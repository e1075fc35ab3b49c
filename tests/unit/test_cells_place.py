"""Placement in cells: cases that random histories found."""

from __future__ import annotations

from collections import Counter

import pytest

from skep.cells.check import check_cells
from skep.cells.decide import placement
from skep.cells.decide.cover import find_cover
from skep.cells.holds import OPPORTUNISTIC, Placement, Request
from skep.cells.snapshot import restore_cells, take_snapshot
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster


def cluster_of(nodes: int, *levels: tuple[str, int], **vcs: dict[str, int]) -> Cluster:
    """Return a cluster of one chain; `vcs` are their cells by level."""
    chain = Chain(
        gpu="v100",
        levels=tuple(Level(name=name, fanout=fanout) for name, fanout in levels),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{index}") for index in range(nodes)),
    )
    owners = {
        vc: VirtualCluster(
            cells=tuple(
                Quota(chain="c", level=level, count=count) for level, count in cells.items()
            )
        )
        for vc, cells in vcs.items()
    }
    return Cluster(chains={"c": chain}, vcs=owners)


def leaves_of(found: Placement | None) -> list[tuple[int, ...]]:
    assert found is not None
    return [spot.leaves for spot in found.spots]


def idle(job: str, *members: tuple[int, int]) -> Request:
    return Request(AttemptId(job), "a", OPPORTUNISTIC, members)


def test_a_gang_takes_clean_cells_and_used_ones_together() -> None:
    cells = Cells(cluster_of(2, ("node", 4), a={"node": 2}))
    request = idle("j1", (1, 1))
    found = placement.find_placement(cells, request)
    assert found is not None
    cells.carry_out(request, found)
    gang = placement.find_placement(cells, Request(AttemptId("j2"), "a", 0, ((2, 4),)))
    assert gang is not None
    assert gang.victims == ("j1",)
    assert sorted(leaves_of(gang)) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_gang_takes_more_used_cells_than_are_compared_for_one_worker() -> None:
    cells = Cells(cluster_of(60, ("node", 2), a={"node": 60}))
    for number in range(60):
        request = idle(f"j{number}", (1, 2))
        found = placement.find_placement(cells, request)
        assert found is not None
        cells.carry_out(request, found)
    gang = placement.find_placement(cells, Request(AttemptId("gang"), "a", 0, ((60, 2),)))
    assert gang is not None
    assert len(gang.victims) == 60


def test_a_gang_takes_cells_of_several_levels_out_of_one_free_cell() -> None:
    cells = Cells(
        cluster_of(2, ("switch", 2), ("node", 2), ("rack", 2), a={"node": 1, "switch": 1, "gpu": 2})
    )
    found = placement.find_placement(cells, Request(AttemptId("j1"), "a", 0, ((8, 1),)))
    assert len(leaves_of(found)) == 8


def test_unequal_workers_are_packed_where_the_largest_first_would_not_fit() -> None:
    cells = Cells(cluster_of(2, ("node", 4), a={"node": 2}))
    small = Request(AttemptId("j1"), "a", 0, ((1, 1),))
    cells.carry_out(small, _placed(cells, small))
    for priority in (0, OPPORTUNISTIC):
        found = placement.find_placement(
            cells, Request(AttemptId("j2"), "a", priority, ((1, 3), (2, 2)))
        )
        assert sorted(map(len, leaves_of(found))) == [2, 2, 3]


def test_other_resources_of_a_node_limit_all_small_cells_on_it_together() -> None:
    cells = Cells(cluster_of(2, ("socket", 2), ("node", 2), a={"socket": 4}))
    found = placement.find_placement(
        cells, Request(AttemptId("j1"), "a", 0, ((4, 2),)), limit=lambda _node: 1
    )
    assert found is None
    found = placement.find_placement(
        cells, Request(AttemptId("j1"), "a", 0, ((2, 2),)), limit=lambda _node: 1
    )
    assert len({leaves[0] // 4 for leaves in leaves_of(found)}) == 2


@pytest.mark.parametrize("used", [False, True])
def test_the_one_node_that_a_limit_leaves_is_found_among_many_alike(used: bool) -> None:
    """Limits are CPUs and memory, and the nodes that a policy names."""
    cells = Cells(cluster_of(60, ("node", 2), ("rack", 60), a={"rack": 1}))
    for number in range(60 if used else 1):
        request = (
            idle(f"j{number}", (1, 1)) if used else Request(AttemptId("j0"), "a", 0, ((1, 1),))
        )
        cells.carry_out(request, _placed(cells, request))
    for last in ("n58", "n59"):
        found = placement.find_placement(
            cells, Request(AttemptId(last), "a", 0, ((1, 2),)), limit=Counter({last: 1}).__getitem__
        )
        assert leaves_of(found) == [(2 * int(last[1:]), 2 * int(last[1:]) + 1)]


def test_bad_gpus_in_a_free_cell_do_not_hide_its_good_ones() -> None:
    cells = Cells(cluster_of(2, ("switch", 2), ("node", 3), a={"gpu": 1}, b={"switch": 5}))
    cells.set_bad("n1", (1,), bad=True)
    check_cells(cells)
    # One GPU beside the bad one is all that can be had without taking a switch from b.
    assert leaves_of(
        placement.find_placement(cells, Request(AttemptId("j1"), "a", 0, ((1, 1),)))
    ) == [(6,)]


def test_a_cancelled_claim_leaves_its_cells_to_who_cancelled_it() -> None:
    cells = Cells(cluster_of(1, ("node", 2), a={"node": 1}))
    flood = idle("j1", (1, 2))
    cells.carry_out(flood, _placed(cells, flood))
    low, high = (
        Request(AttemptId("j2"), "a", 1, ((1, 2),)),
        Request(AttemptId("j3"), "a", 2, ((1, 2),)),
    )
    cells.carry_out(low, _placed(cells, low))
    found = _placed(cells, high)
    assert (found.victims, found.cancels) == (("j1",), ("j2",))
    cells.carry_out(high, found)
    check_cells(cells)
    assert list(cells.holds) == ["j1", "j3"]


def test_a_job_that_must_make_room_is_not_promoted() -> None:
    cells = Cells(cluster_of(1, ("node", 2), a={"node": 1}))
    low, high = (
        Request(AttemptId("j1"), "a", 1, ((1, 2),)),
        Request(AttemptId("j2"), "a", 2, ((1, 2),)),
    )
    cells.carry_out(low, _placed(cells, low))
    cells.demote(AttemptId("j1"))
    cells.carry_out(high, _placed(cells, high))
    assert find_cover(cells, cells.holds[AttemptId("j1")]) is None


def test_a_restart_settles_nothing_between_the_jobs_it_enters() -> None:
    cells = Cells(cluster_of(2, ("node", 2), a={"gpu": 2}, b={"node": 1}))
    first = Request(AttemptId("j1"), "a", 0, ((1, 1),))
    cells.carry_out(first, _placed(cells, first))
    cells.set_bad("n0", (1,), bad=True)
    cells.set_bad("n1", (0,), bad=True)
    check_cells(cells)
    again = restore_cells(take_snapshot(cells))
    check_cells(again)
    assert take_snapshot(again) == take_snapshot(cells)


def _placed(cells: Cells, request: Request) -> Placement:
    found = placement.find_placement(cells, request)
    assert found is not None, request
    return found
