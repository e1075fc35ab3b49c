"""Which idle GPUs of its own nodes a gang goes on with."""

from __future__ import annotations

from skep.cells.decide.rebind import rebind
from skep.cells.holds import OPPORTUNISTIC, Placement, Request, Spot
from skep.cells.state import Cells
from skep.ids import AttemptId
from tests.unit.test_cells_place import cluster_of

EIGHT = (("pair", 2), ("quad", 2), ("node", 2))


def cells(**vcs: dict[str, int]) -> Cells:
    """Return two nodes of two quads of two pairs each."""
    return Cells(cluster_of(2, *EIGHT, **(vcs or {"a": {"node": 2}})))


def use(made: Cells, job: str, *leaves: int, vc: str = "a", level: int = 0) -> None:
    """Have a job use these leaves, one for each rank: opportunistically, or under a level."""
    priority = 0 if level else OPPORTUNISTIC
    spots = tuple(Spot((leaf,), level) for leaf in leaves)
    made.allocate(Request(AttemptId(job), vc, priority, ((len(leaves), 1),)), Placement("c", spots))


def asked(priority: int = OPPORTUNISTIC, **more: object) -> Request:
    return Request("me", "a", priority, ((1, 1),), **more)  # type: ignore[arg-type]


def test_ranks_whose_gpus_are_idle_keep_them() -> None:
    made = cells()
    use(made, "other", 1)
    chain = made.chains["c"]
    assert rebind(chain, asked(), {0: [(0,), (1,)]}) == {0: [(0,), (2,)]}
    # A rank that loses one of its two has both close to one another again.
    assert rebind(chain, asked(), {0: [(0, 1), (4, 5)]}) == {0: [(2, 3), (4, 5)]}


def test_no_part_leaves_its_node() -> None:
    made = cells()
    use(made, "other", 0, 1, 2, 3, 4, 5, 6)
    chain = made.chains["c"]
    assert rebind(chain, asked(), {0: [(0,), (1,)]}) is None
    assert rebind(chain, asked(), {0: [(0,)], 1: [(8,)]}) == {0: [(7,)], 1: [(8,)]}


def test_nothing_is_taken_that_is_claimed_or_bad() -> None:
    made = cells()
    use(made, "other", 0, 1, 2, 3, 4)
    made.reserve(
        Request(AttemptId("next"), "a", OPPORTUNISTIC, ((1, 1),)), Placement("c", (Spot((5,)),))
    )
    made.set_bad("n0", (6,), bad=True)
    chain = made.chains["c"]
    assert rebind(chain, asked(), {0: [(0,)]}) == {0: [(7,)]}
    assert rebind(chain, asked(), {0: [(0,), (1,)]}) is None


def test_workers_that_must_share_a_cell_get_one() -> None:
    made = cells()
    use(made, "other", 0, 4)
    chain = made.chains["c"]
    tied = asked(within="quad", hard=True)
    assert rebind(chain, tied, {0: [(0,), (1,), (2,)]}) == {0: [(3,), (1,), (2,)]}
    use(made, "more", 1)
    assert rebind(chain, tied, {0: [(0,), (1,), (2,)]}) == {0: [(5,), (6,), (7,)]}
    use(made, "most", 5)
    assert rebind(chain, tied, {0: [(0,), (1,), (2,)]}) is None
    assert rebind(chain, asked(within="quad"), {0: [(0,), (1,), (2,)]}) is not None


def test_a_guaranteed_job_goes_where_its_vc_can_cover_it() -> None:
    made = cells(a={"quad": 2}, b={"quad": 2})
    use(made, "theirs", 0, vc="b", level=3)
    use(made, "ours", 4, level=3)
    use(made, "other", 8)
    chain = made.chains["c"]
    # Within the cell that its VC has bound, not within the other's, though that is as near.
    assert rebind(chain, asked(0), {0: [(4,)]}) == {0: [(5,)]}
    use(made, "full", 5, 6, 7)
    assert rebind(chain, asked(0), {0: [(4,)]}) == {0: [(1,)]}
    # An opportunistic one keeps away from everybody's cells as long as it can.
    assert rebind(chain, asked(), {1: [(8,)]}) == {1: [(9,)]}
