"""Mixed gangs: workers in several chains, where the job allows it and no chain holds them all."""

from typing import Any

import pytest

from skep.cells.decide import mixed
from skep.cells.decide.explain import explain_wait
from skep.cells.decide.placement import find_placement
from skep.ids import AttemptId
from skep.ledger import attempts
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.settings import NODE_LOST_AFTER
from skep.machines.base import Effect
from skep.units import NS_PER_SECOND
from skep.wire.admin import SetVcs
from skep.wire.changes import AskMigrate, AskPack, AskResume, AskSuspend, GpusRegained, Result
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import CellsReserved, CellsSet, JobBound, JobPromoted, JobStopping, JobWaits
from skep.wire.moves import SuccessorBound
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from tests.kit import Driver, admitted, allocator, exited, heartbeat, joined, started
from tests.unit.test_allocator_changes import ask, changed, known, of, over, told

BIG, SMALL = joined("node-1", {"a100": 3}), joined("node-2", {"h100": 1})
SMALL_THIRD = joined("node-3", {"h100": 1})
MIXED: dict[str, Any] = {"workers": 4, "gpus": 1, "gpu_type": "a100|h100", "mixed": True}
ABLE = ("suspend", "release", "rebind", "checkpoint", "migrate")


def places(effects: list[Effect]) -> list[tuple[str, str, int, int]]:
    """Return the parts of gangs that were bound: node, type, first rank and how many ranks."""
    return [
        (part.node, part.gpu_type, part.first_rank, len(part.devices))
        for fact in of(effects, JobBound)
        for part in fact.members
    ]


def running(decide: Driver[AllocatorMachine], job: str = "j1", number: int = 1) -> None:
    """Have a mixed gang of four begin to train."""
    assert len(places(decide(admitted(number, **MIXED)))) > 1
    for node in decide.machine.state.jobs[job].members:
        decide(started(job, node=node))
        decide(known(job, node, can=ABLE))


def hold(decide: Driver[AllocatorMachine], name: str = "j1.1") -> Any:
    return decide.machine.state.cells.holds[AttemptId(name)]


def test_a_gang_lies_in_the_cells_of_two_chains_in_the_order_of_its_ranks() -> None:
    decide = allocator(BIG, SMALL)
    effects = decide(admitted(1, **MIXED))
    assert places(effects) == [("node-1", "a100", 0, 3), ("node-2", "h100", 3, 1)]
    (bound,) = of(effects, JobBound)
    assert bound.why is Reason.MIXED_GANG
    assert (bound.chain, *(part.chain for part in bound.members)) == ("a100x3", "a100x3", "h100x1")
    assert all(part.levels for part in bound.members), "each part is in cells of its VC"
    assert [name for name, _ in hold(decide).portions] == ["a100x3", "h100x1"]


def test_one_type_is_preferred_and_without_the_key_nothing_is_mixed() -> None:
    decide = allocator(BIG, SMALL, joined("node-3", {"h100": 4}))
    effects = decide(admitted(1, **MIXED))
    assert places(effects) == [("node-3", "", 0, 4)], "one chain: the facts are as ever"
    assert places(decide(admitted(2, **{**MIXED, "mixed": False}))) == []
    assert places(decide(admitted(3, **MIXED))) == [], "the queue is strict: it waits behind j2"


def test_nodes_of_several_sizes_of_one_type_come_before_several_types() -> None:
    sizes = [
        joined("node-1", {"a100": 2}),
        joined("node-2", {"a100": 4}),
        joined("node-3", {"h100": 4}),
    ]
    decide = allocator(*sizes)
    effects = decide(admitted(1, **{**MIXED, "workers": 6}))
    assert places(effects) == [("node-2", "a100", 0, 4), ("node-1", "a100", 4, 2)]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_host_with_two_types_gives_a_gang_gpus_of_one(gpus: int) -> None:
    decide = allocator(joined("node-1", {"a100": 2, "h100": 2}), joined("node-2", {"h100": 2}))
    asked = {**MIXED, "workers": 4 // gpus, "gpus": gpus}
    effects = decide(admitted(1, **asked))
    nodes = [node for node, *_ in places(effects)]
    assert sorted(nodes) == sorted(set(nodes))
    assert sum(count * gpus for *_, count in places(effects)) == 4


def test_a_claim_in_two_chains_waits_for_its_last_victim() -> None:
    decide = allocator(BIG, SMALL)
    for number, kind in ((1, "a100"), (2, "h100")):
        decide(admitted(number, opportunistic=True, gpu_type=kind, script="t.py"))
        decide(started(f"j{number}", node=f"node-{number}"))
    effects = decide(admitted(3, **MIXED))
    (claim,) = of(effects, CellsReserved)
    assert sorted(claim.victims) == ["j1", "j2"]
    assert {fact.job for fact in of(effects, JobStopping)} == {"j1", "j2"}
    assert places(decide(exited("j1"))) == []
    effects = decide(exited("j2", node="node-2"))
    assert places(effects) == [("node-1", "a100", 0, 3), ("node-2", "h100", 3, 1)]


def test_it_is_suspended_without_its_gpus_and_goes_on_in_its_cells() -> None:
    decide = allocator(BIG, SMALL)
    running(decide)
    commands = told(decide(ask(10, AskSuspend(job="j1", release=True))))
    while commands:
        commands = [each for command in commands for each in told(decide(changed(command)))]
    assert decide.machine.state.jobs["j1"].away
    assert not decide.machine.state.cells.holds
    assert [node for node, *_ in places(decide(admitted(2, gpu_type="h100")))] == ["node-2"]
    decide(ask(11, AskResume(job="j1")))
    assert decide.machine.state.jobs["j1"].waits == (
        Reason.WAITS_FOR_ITS_GPUS,
        "3 GPUs of node-1 1 GPUs of node-2",
    )
    effects = decide(exited("j2", node="node-2"))
    assert len(of(effects, GpusRegained)) == 1
    (promoted,) = of(effects, JobPromoted)
    assert len(promoted.levels) == 4
    assert hold(decide).guaranteed
    for command in told(effects):
        decide(changed(command))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_after_the_loss_of_a_node_it_waits_and_is_placed_as_a_whole() -> None:
    decide = allocator(BIG, SMALL, joined("node-3", {"h100": 1}))
    running(decide)
    lost = decide.machine.state.jobs["j1"].members
    gone = next(node for node in lost if node != "node-1")
    second = NODE_LOST_AFTER / NS_PER_SECOND
    for name in ("node-1", "node-2", "node-3"):
        if name != gone:
            decide(heartbeat(name), second)
    decide.tick(second + 5)
    effects = decide(exited("j1", node="node-1"), second + 6)
    (other,) = {"node-2", "node-3"} - {gone}
    assert places(effects) == [("node-1", "a100", 0, 3), (other, "h100", 3, 1)]


def test_a_node_that_joins_leaves_it_guaranteed_where_it_is() -> None:
    decide = allocator(BIG, SMALL)
    running(decide)
    effects = decide(joined("node-3", {"a100": 3}))
    (cells,) = of(effects, CellsSet)
    assert cells.fates == ()
    assert [name for name, _ in hold(decide).portions] == ["a100x3", "h100x1"]
    assert hold(decide).guaranteed


def test_it_moves_only_to_where_it_is_in_one_chain() -> None:
    decide = allocator(BIG, SMALL)
    running(decide)
    assert over(decide(ask(10, AskMigrate(job="j1", to="")))) == [
        (10, Result.REFUSED, Reason.NO_ROOM)
    ]
    decide(joined("node-3", {"h100": 4}))
    (moved,) = of(decide(ask(11, AskMigrate(job="j1", to="node-3"))), SuccessorBound)
    assert [(part.node, part.chain) for part in moved.members] == [("node-3", "")]


def test_one_chain_comes_before_a_mix_without_the_node_it_failed_on() -> None:
    decide = allocator(*(joined(f"node-{n}", {"a100": 1}) for n in (1, 2)), SMALL_THIRD)
    asked = {**MIXED, "workers": 2, "retries": 1, "retry_on": ("signal",)}
    assert [node for node, *_ in places(decide(admitted(1, **asked)))] == ["node-1", "node-2"]
    for node in ("node-1", "node-2"):
        decide(started("j1", node=node))
    decide(exited("j1", outcome=Outcome.SIGNALLED))
    effects = decide(exited("j1", node="node-2", outcome=Outcome.STOPPED))
    assert [node for node, *_ in places(effects)] == ["node-1", "node-2"]


def test_no_job_is_packed_beside_it() -> None:
    decide = allocator(BIG, SMALL)
    running(decide)
    decide(admitted(2, gpu_type="a100"))
    effects = decide(ask(10, AskPack(job="j2", beside="j1")))
    assert over(effects) == [(10, Result.REFUSED, Reason.PARTNER_SPANS_NODES)]


def test_what_waits_says_how_many_workers_each_chain_would_hold() -> None:
    decide = allocator(BIG, SMALL)
    decide(admitted(1, gpu_type="h100"))
    decide(admitted(2, **MIXED))
    job = decide.machine.state.jobs["j2"]
    why = explain_wait(decide.machine.state.cells, attempts.request(job, 1, guaranteed=True))
    assert why.text.endswith(
        "in several chains it has place for 3 in a100x3, 0 in h100x1, of 4 workers"
    )


def test_what_waits_for_more_gpus_than_there_are_is_not_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = allocator(BIG, SMALL)
    decide(admitted(1, gpu_type="h100", priority=1))
    decide(admitted(2, gpu_type="a100", priority=3))
    decide(admitted(3, **MIXED, priority=2))
    cells = decide.machine.state.cells
    asked = attempts.request(decide.machine.state.jobs["j3"], 1, guaranteed=True)
    tried: list[int] = []
    monkeypatch.setattr(mixed, "_most", lambda *_: tried.append(1))
    assert find_placement(cells, asked) is None
    assert "place for 2 in a100x3, 1 in h100x1, of 4" in explain_wait(cells, asked).text
    assert not tried
    assert find_placement(cells, asked._replace(members=((3, 1),))) is None
    assert tried == [1, 1], "that many could be had: each chain is searched"


def test_a_host_in_two_chains_is_said_to_count_in_each() -> None:
    decide = allocator(joined("node-1", {"a100": 2, "h100": 2}))
    decide(admitted(1, **MIXED))
    job = decide.machine.state.jobs["j1"]
    why = explain_wait(decide.machine.state.cells, attempts.request(job, 1, guaranteed=True))
    assert why.text.endswith(
        "of 4 workers, counted by GPUs alone: in each chain of a host that is in two"
    )


# --- in a VC that gets a policy ------------------------------------------------------------------


def under(policy: str) -> SetVcs:
    return SetVcs(vcs={"nlp": VirtualCluster(gpus=1000, policy=policy)})


@pytest.mark.parametrize("policy", ["yarn-cs", "genie", "sized", "las"])
def test_a_gang_that_waits_when_its_vc_gets_a_policy_holds_up_no_other(policy: str) -> None:
    decide = allocator(BIG, SMALL)
    decide(admitted(1, gpu_type="h100"))
    decide(started("j1", node="node-2"))
    decide(admitted(2, **MIXED))
    decide(admitted(3, gpu_type="a100"))
    effects = decide(under(policy))
    assert [node for node, *_ in places(effects)] == ["node-1"], "j3 has a GPU"
    assert waits(effects, "j2") == [Reason.MIXED_UNDER_POLICY]
    decide(exited("j3"))
    assert places(decide(exited("j1", node="node-2"))) == [], "idle GPUs change nothing"
    effects = decide(under("fifo"))
    assert [node for node, *_ in places(effects)] == ["node-1", "node-2"]


def test_a_gang_that_runs_when_its_vc_gets_a_policy_is_mixed_for_the_last_time() -> None:
    decide = allocator(BIG, SMALL)
    assert places(decide(admitted(1, **MIXED, retries=1, retry_on=("exit",))))
    for node in ("node-1", "node-2"):
        decide(started("j1", node=node))
    assert not of(decide(under("yarn-cs")), JobStopping)
    decide(exited("j1", outcome=Outcome.EXITED))
    effects = decide(exited("j1", node="node-2", outcome=Outcome.STOPPED))
    assert places(effects) == []
    assert waits(effects, "j1") == [Reason.MIXED_UNDER_POLICY]


def waits(effects: list[Effect], job: str) -> list[Reason]:
    return [fact.why for fact in of(effects, JobWaits) if fact.job == job]
