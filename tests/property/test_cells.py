"""Random histories of cells: no crash, no broken invariant, and nothing left at the end.

`make cells-histories` runs many more of them and prints what happened in them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from skep.cells.topology import Topology
from tests import effort
from tests.property.cells_histories import SHAPES, History, random_cluster, rng_of

SEEDS = 160
MIXED_SEEDS, MIXED_PARTS = 48, 4
PARTS = 8


@pytest.mark.parametrize("part", effort.slow_after(2, range(PARTS)))
def test_histories(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        try:
            History(seed).run()
        except Exception as error:
            error.add_note(f"python -m tests.property.run_histories --seed {seed}")
            raise


@pytest.mark.parametrize("part", effort.slow_after(1, range(MIXED_PARTS)))
def test_histories_with_mixed_gangs(part: int) -> None:
    """Portions of one gang in several chains leave every chain as safe as gangs of its own do."""
    seen: Counter[str] = Counter()
    for seed in range(part, MIXED_SEEDS, MIXED_PARTS):
        try:
            seen.update(History(seed, mixed=True).run())
        except Exception as error:
            error.add_note(f"python -m tests.property.run_histories --mixed --seed {seed}")
            raise
    often = ("mixed", "mixed, preempting", "mixed waited", "restarts")
    assert [what for what in often if not seen[what]] == []


@pytest.mark.nightly
def test_mixed_gangs_go_through_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1000, 1200):
        seen.update(History(seed, mixed=True).run())
    fates = ("mixed, promoted", "mixed, reconfigured: kept", "mixed, reconfigured: demoted")
    assert [what for what in fates if not seen[what]] == []


def test_histories_go_where_it_hurts() -> None:
    seen: dict[str, int] = {}
    for seed in range(60):
        history = History(seed)
        for what, count in history.run(40).items():
            seen[what] = seen.get(what, 0) + count
    often = (
        "bound",
        "gangs",
        "preempting",
        "claims bound",
        "claims taken back",
        "doomed",
        "borrowed",
        "promoted",
        "demoted",
        "shared",
        "restarts",
        "reconfigurations",
        "reconfigured: kept",
        "reconfigured: demoted",
        "reconfigured: opportunistic",
    )
    assert [what for what in often if not seen.get(what)] == []


def test_clusters_come_in_every_shape() -> None:
    clusters = [random_cluster(rng_of(seed)) for seed in range(200)]
    chains = [chain for cluster in clusters for chain in cluster.chains.values()]
    shapes = [Topology("", chain) for chain in chains]
    assert len({tuple(shape.fan) for shape in shapes}) >= len(SHAPES)
    assert any(shape.node_level == shape.top for shape in shapes)
    assert any(shape.top - shape.node_level == 3 for shape in shapes)
    assert any(shape.node_size == 16 for shape in shapes)
    assert any(1 in shape.fan[2:] for shape in shapes)
    assert any("twin" in cluster.chains for cluster in clusters)
    assert any(vc.pinned for cluster in clusters for vc in cluster.vcs.values())
