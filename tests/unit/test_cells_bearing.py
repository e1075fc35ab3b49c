"""Who bears bad hardware depends on what is bad and what is bound, not on how it came to be so."""

from __future__ import annotations

import random
from itertools import permutations

import msgspec
import pytest

from skep.cells.check import check_cells
from skep.cells.decide.bad_cells import AT_ONCE, share_bad_cells
from skep.cells.decide.reconfigure import reconfigure
from skep.cells.replay import Replay
from skep.cells.script import Bad, Reconfigure, Script, Stopped, Submit
from skep.cells.snapshot import take_snapshot
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.cluster import Cluster, Quota, VirtualCluster
from tests.fold_kit import rack

NODES = 8
CLUSTERS = 16


def owning(**cells: dict[str, int]) -> Cluster:
    """Return two racks of four nodes, and what tenants own of them by level."""
    vcs = {
        vc: VirtualCluster(
            cells=tuple(Quota(chain="main", level=level, count=n) for level, n in owned.items())
        )
        for vc, owned in cells.items()
    }
    return Cluster(chains={"main": rack(range(NODES))}, vcs=vcs)


def random_cluster(seed: int) -> Cluster:
    """Return a cluster whose tenants own almost all of it."""
    rng = random.Random(seed)
    owned: dict[str, dict[str, int]] = {"a": {}, "b": {}, "c": {}}
    left = NODES
    for level, size in (("rack", 4), ("node", 1), ("node", 1), ("node", 1)):
        count = min(rng.randint(0, 3), left // size)
        vc = rng.choice(list(owned))
        if count:
            owned[vc][level] = owned[vc].get(level, 0) + count
            left -= count * size
    if left:
        owned["c"]["pair"] = 2 * left
    return owning(**owned)


def broken(cluster: Cluster, nodes: tuple[str, ...], healed: str = "") -> Cells:
    """Return cells whose nodes broke in this order, of which one is well again."""
    cells = Cells(cluster, AT_ONCE)
    for node in nodes:
        cells.set_bad(node, None, bad=True)
        check_cells(cells)
    if healed:
        cells.set_bad(healed, None, bad=False)
        check_cells(cells)
    return cells


def borne(cells: Cells) -> list[tuple[str, int, int]]:
    return sorted((cell.vc, cell.level, cell.index) for cell in cells.bound_bad_cells())


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_the_order_of_failures_does_not_matter(seed: int) -> None:
    cluster, rng = random_cluster(seed), random.Random(seed)
    failures = rng.sample([f"node-{number}" for number in range(NODES)], 4)
    outcomes = [borne(broken(cluster, order)) for order in permutations(failures)]
    assert outcomes == [outcomes[0]] * len(outcomes), seed
    assert outcomes[0], seed


def test_two_tenants_bear_the_same_nodes_whichever_broke_first() -> None:
    cluster = owning(a={"node": 4}, b={"node": 4})
    assert borne(broken(cluster, ("node-1", "node-6"))) == [("a", 3, 6), ("b", 3, 1)]
    assert borne(broken(cluster, ("node-6", "node-1"))) == [("a", 3, 6), ("b", 3, 1)]


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_the_same_cluster_again_changes_nothing(seed: int) -> None:
    cells = broken(random_cluster(seed), ("node-5", "node-2", "node-7"))
    again, changes = reconfigure(cells, cells.cluster)
    assert changes == []
    assert borne(again) == borne(cells)


def test_a_change_elsewhere_moves_no_borne_cell() -> None:
    cells = broken(owning(a={"node": 4}, b={"node": 4}), ("node-6", "node-1"))
    other = msgspec.structs.replace(
        cells.cluster, chains={**cells.cluster.chains, "more": rack(range(8, 12))}
    )
    assert borne(reconfigure(cells, other)[0]) == borne(cells)


def test_shares_are_those_of_one_cell_after_the_other() -> None:
    rng = random.Random(3)
    for _ in range(300):
        unbound = {vc: rng.randint(0, 6) for vc in "abcd"}
        cells = rng.randint(0, sum(unbound.values()))
        left, found = dict(unbound), dict.fromkeys(unbound, 0)
        for _ in range(cells):
            most = max(left, key=lambda vc: (left[vc], vc))
            left[most] -= 1
            found[most] += 1
        assert share_bad_cells(unbound, cells) == found, (unbound, cells)


# --- scripts ---------------------------------------------------------------------------------


def test_a_reservation_is_not_bound_on_hardware_that_broke() -> None:
    replay = Replay(Script(cluster=owning(a={"node": 8}), events=(), victims="stay"))
    for number in range(NODES):
        spare = Submit(job=AttemptId(f"o{number}"), vc="a", gpus=4, service_class="opportunistic")
        assert replay.step(spare)["outcome"] == "bound"
    told = replay.step(Submit(job=AttemptId("j1"), vc="a", gpus=4))
    assert told["outcome"] == "reserved"
    (victim,) = told["preempts"]
    (worker,) = told["workers"]
    then = replay.step(Bad(node=worker["node"]))["then"]
    assert next((each["job"], each["outcome"]) for each in then) == ("j1", "released")
    replay.step(Stopped(job=victim))
    hold = replay.cells.holds.get(AttemptId("j1"))
    bad = replay.cells.chains["main"].bad
    assert hold is None or not any(leaf in bad for spot in hold.spots for leaf in spot.leaves)


def test_the_identical_file_changes_nothing_in_a_script() -> None:
    cluster = owning(a={"node": 4}, b={"node": 4})
    replay = Replay(Script(cluster=cluster, events=()))
    replay.step(Submit(job=AttemptId("j1"), vc="a", gpus=4, workers=2))
    replay.step(Bad(node="node-6"))
    told = replay.step(Bad(node="node-1"))
    before = take_snapshot(replay.cells)
    again = replay.step(Reconfigure(cluster=cluster))
    assert again["bears"] == told["bears"]
    assert take_snapshot(replay.cells) == before
