"""Nodes come, fall silent, come back, are replaced, refused and drained."""

from typing import Any

import msgspec
import pytest

from skep.ids import AttemptId
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.placement import job_cells
from skep.machines.base import Effect, Record, Send, Tick
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.bearing import CarriedHold
from skep.wire.bounds import INCARNATION_MAX
from skep.wire.commands import RESTORE_STEP, ClearNode, JoinAgain, RefuseNode
from skep.wire.facts import (
    CellsReserved,
    ClusterRefused,
    End,
    GhostGone,
    JobBound,
    JobEnded,
    JobRequeued,
    JobStopping,
    JobWaits,
    MemberGone,
    NodeAdded,
    NodeBack,
    NodeClean,
    NodeDrained,
    NodeLost,
)
from skep.wire.node import NodeCleared, NodeJoined, Outcome
from skep.wire.reasons import Reason
from tests.kit import (
    T0,
    Driver,
    admitted,
    allocator,
    at,
    bind,
    cancel_asked,
    cells_set,
    exited,
    facts_of,
    heartbeat,
    joined,
    member,
    others,
    plain,
    plans,
    started,
    stop,
    vcs,
)

LOST_S = 41
NEWCOMER = "id-fresh"
WAITS = Record(
    JobWaits(job="j1", why=Reason.WAITS_FOR_CELLS, needs="1 x 1 GPUs (any type) in cells of nlp")
)


def again(node: NodeJoined, incarnation: int = 2) -> NodeJoined:
    """Return the join of the same agent after its restart."""
    return msgspec.structs.replace(node, incarnation=incarnation)


def bound(attempt: int, order: int, node: str, second: float, port: int = 20000) -> Record:
    members = (member(node, (0,), levels=(3,)),)
    return Record(
        JobBound(
            job="j1",
            attempt=attempt,
            order=order,
            members=members,
            at=at(second),
            master_port=port,
            why=Reason.BEST_FIT_ONE_NODE,
            chain="cpux4",
        )
    )


def given_up(order: int, second: float, *, attempt: int = 1, node: str = "node-1") -> list[Record]:
    """Return the facts of giving up j1 on a node that is silent."""
    return [
        Record(NodeLost(node=node)),
        Record(
            JobStopping(
                job="j1",
                attempt=attempt,
                order=order,
                why=Reason.NODE_LOST,
                at=at(second),
                detail=node,
            )
        ),
        Record(
            MemberGone(
                job="j1",
                attempt=attempt,
                node=node,
                outcome=Outcome.UNKNOWN,
                free=False,
                detail="node lost",
            )
        ),
        Record(
            JobRequeued(
                job="j1",
                attempt=attempt,
                why=Reason.NODE_LOST,
                counted=False,
                at=at(second),
                detail=node,
            )
        ),
    ]


def lost() -> Driver[AllocatorMachine]:
    """Return an allocator that has lost node-1 with j1 on it, and has no other node."""
    decide = allocator(joined())
    decide(admitted(1))
    decide(started("j1"))
    decide.tick(LOST_S)
    return decide


def taken(decide: Driver[AllocatorMachine], chain: str = "cpux4") -> dict[int, str]:
    """Return which attempt has which GPU of a chain."""
    user = decide.machine.state.cells.chains[chain].user
    return {leaf: hold.job for leaf, hold in enumerate(user) if hold is not None}


def ghost_stop(order: int = 2, **fields: Any) -> Send:
    given = {"settled": order - 1, "grace_s": 0.0, **fields}
    return Send("skep.v1.cmd.node-1", stop(order=order, **given))


# --- joining ------------------------------------------------------------------------------------


def test_a_node_joins() -> None:
    decide = allocator()
    assert decide(joined(), 3) == [Record(NodeAdded(joined=joined())), Record(cells_set(joined()))]
    assert decide(joined()) == []
    assert decide.machine.wake_at() == at(4)


def test_nodes_are_kept_in_the_order_in_which_they_joined() -> None:
    nodes = joined("node-3"), joined("node-1"), joined("node-2")
    decide = allocator(*nodes)
    assert list(decide.machine.state.nodes) == ["node-3", "node-1", "node-2"]
    # A node that joins again has its place, so nothing of the cells changes.
    assert facts_of(decide(again(nodes[1]))) == [NodeAdded(joined=again(nodes[1]))]
    (chain,) = decide.machine.state.cells.cluster.chains.values()
    assert [cell.node for cell in chain.nodes] == ["node-3", "node-1", "node-2"]


def test_a_further_node_moves_nobody() -> None:
    decide = allocator(joined("node-1"), nlp=4, cv=4)
    decide(admitted(1, gpus=2))
    carried = CarriedHold(job="j1", attempt=1, chain="cpux4", levels=(3,))
    assert facts_of(decide(joined("node-2"))) == [
        NodeAdded(joined=joined("node-2")),
        cells_set(joined("node-1"), joined("node-2"), carried=(carried,), nlp=4, cv=4),
    ]
    hold = decide.machine.state.cells.holds[AttemptId("j1.1")]
    assert hold.guaranteed


def test_a_change_of_the_cells_does_not_list_the_jobs_that_stay_as_they_are() -> None:
    nodes = [joined("node-1"), joined("node-2"), joined("node-3")]
    decide = allocator(*nodes[:2], nlp=8)
    for number in (1, 2, 3):
        decide(admitted(number, gpus=2))
    decide(admitted(4, gpus=2, opportunistic=True))
    before = {
        name: (hold.spots, hold.guaranteed)
        for name, hold in decide.machine.state.cells.holds.items()
    }
    assert facts_of(decide(nodes[2])) == [NodeAdded(joined=nodes[2]), cells_set(*nodes, nlp=8)]
    assert {
        name: (hold.spots, hold.guaranteed)
        for name, hold in decide.machine.state.cells.holds.items()
    } == before


def test_a_change_of_too_many_running_jobs_at_once_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = allocator(joined("node-1"), nlp=4)
    for number in (1, 2, 3):
        decide(admitted(number, gpus=1))
    before = decide.machine.state.cells
    monkeypatch.setattr(job_cells, "CELLS_SET_BYTES_MAX", 300)
    (fact,) = facts_of(decide(SetVcs(vcs=vcs(nlp=1))))
    assert isinstance(fact, ClusterRefused)
    assert fact.problems[0].reason is Reason.TOO_LARGE
    assert "running jobs at once" in fact.problems[0].text
    assert decide.machine.state.cells is before


def test_an_agent_that_restarts_hears_at_once_what_it_has_not_answered() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(admitted(2))
    decide(started("j2"))
    decide(admitted(3))
    decide(cancel_asked(3))
    assert decide(again(joined())) == [
        Record(NodeAdded(joined=again(joined()))),
        Send("skep.v1.cmd.node-1", bind(settled=0)),
        Send("skep.v1.cmd.node-1", stop("j3", order=4, settled=0)),
    ]


def test_a_join_of_an_earlier_start_that_is_stored_late_changes_nothing() -> None:
    decide = allocator(again(joined(gpus=2)))
    assert decide(joined(gpus=9)) == []
    assert decide.machine.state.nodes["node-1"].joined == again(joined(gpus=2))


def test_an_inventory_that_grew_is_used() -> None:
    decide = allocator(joined(gpus=1))
    decide(admitted(1))
    decide(admitted(2))
    bigger = again(joined(gpus=2))
    effects = decide(bigger)
    assert effects[0] == Record(NodeAdded(joined=bigger))
    assert [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)] == ["j2"]


def test_an_inventory_that_shrank_leaves_its_jobs_what_they_have() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(admitted(1))
    decide(admitted(2))
    smaller = again(joined(gpus=1))
    decide(smaller)
    # j2's GPU is in no chain any more; its attempt goes on until its node ends it.
    assert list(decide.machine.state.nodes["node-1"].holdings) == [("j1", 1), ("j2", 1)]
    effects = decide(admitted(3))
    assert not [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    effects = decide(exited("j1"))
    assert [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)] == ["j3"]
    decide(exited("j2", outcome=Outcome.SIGNALLED))
    assert list(decide.machine.state.nodes["node-1"].holdings) == [("j3", 1)]


def test_gpus_that_were_gone_for_a_while_are_still_their_jobs() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(admitted(1))
    decide(admitted(2))
    decide(again(joined(gpus=1)))
    decide(again(joined(gpus=2), 3))
    decide(admitted(3))
    assert decide.machine.state.jobs["j3"].state is State.QUEUED
    effects = decide(exited("j2"))
    assert [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)] == ["j3"]


# --- silence ------------------------------------------------------------------------------------


def test_heartbeats_keep_a_node() -> None:
    decide = allocator(joined())
    for second in range(10, 200, 10):
        assert decide(heartbeat(), second) == []
        assert decide.tick(second) == []


def test_a_silent_node_is_lost_after_forty_seconds() -> None:
    decide = allocator(joined())
    assert decide.tick(40) == []
    assert plain(decide.tick(LOST_S)) == [Record(NodeLost(node="node-1"))]
    assert decide.tick(60) == []
    assert decide.machine.wake_at() == at(61)


def test_many_nodes_are_lost_in_several_decisions_that_place_nothing_before_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skep.machines.allocator.nodes.LOSS_FACTS_MAX", 3)
    decide = allocator(*(joined(f"node-{number}") for number in range(1, 5)))
    decide(admitted(1, gpus=4))
    (bound,) = [fact for fact in decide.facts if isinstance(fact, JobBound)]
    (lost,) = [each.node for each in bound.members]
    decide(heartbeat("node-4"), second=30)
    steps: list[list[Any]] = []
    while not steps or decide.machine.tx.soft.losing:
        steps.append(facts_of(decide(Tick(), second=LOST_S)))
    assert len(steps) > 1
    nodes = [fact.node for step in steps for fact in step if isinstance(fact, NodeLost)]
    assert nodes == ["node-1", "node-2", "node-3"]
    assert lost in nodes
    *before, last = [[fact for fact in step if isinstance(fact, JobBound)] for step in steps]
    assert not any(before)
    assert [each.node for fact in last for each in fact.members] == ["node-4"]


def test_the_job_of_a_lost_node_goes_elsewhere_at_once() -> None:
    decide = allocator(joined("node-1"), joined("node-2"))
    decide(admitted(1))
    decide(started("j1"))
    decide(heartbeat("node-2"), 20)
    assert plain(decide.tick(LOST_S)) == [
        *given_up(2, LOST_S),
        bound(2, 3, "node-2", LOST_S),
        Send("skep.v1.cmd.node-2", bind(attempt=2, order=3, settled=2, node="node-2")),
    ]


def test_the_gpus_of_a_lost_node_stay_taken_until_it_confirms() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(started("j1"))
    assert plain(decide.tick(LOST_S)) == [*given_up(2, LOST_S), WAITS]
    assert taken(decide) == {0: "j1.1"}
    assert decide(heartbeat(), 50) == [
        Record(NodeBack(node="node-1")),
        ghost_stop(),
        Record(
            JobBound(
                job="j1",
                attempt=2,
                order=3,
                master_port=20001,
                at=at(50),
                members=(member("node-1", (1,), levels=(3,)),),
                chain="cpux4",
                why=Reason.BEST_FIT_ONE_NODE,
            )
        ),
        Send(
            "skep.v1.cmd.node-1",
            bind(attempt=2, order=3, settled=1, master_port=20001, ranks=plans((1,))),
        ),
    ]
    assert plain(decide(exited("j1", outcome=Outcome.STOPPED))) == [
        Record(GhostGone(job="j1", attempt=1, node="node-1"))
    ]
    assert taken(decide) == {1: "j1.2"}
    assert decide(exited("j1", outcome=Outcome.STOPPED)) == []


def test_a_ghosts_end_may_be_read_before_its_node_speaks() -> None:
    decide = lost()
    assert plain(decide(exited("j1"))) == [Record(GhostGone(job="j1", attempt=1, node="node-1"))]
    assert decide(heartbeat(), 50)[0] == Record(NodeBack(node="node-1"))


def test_only_the_agent_that_had_the_ghost_can_end_it() -> None:
    decide = lost()
    assert decide(exited("j1", identity="impostor")) == []


def test_a_ghost_is_told_to_stop_until_it_confirms() -> None:
    decide = allocator(joined(), joined("node-2", 1))
    decide(admitted(1, gpu_type="cpu", gpus=4))
    decide(started("j1"))
    decide(heartbeat("node-2"), 39)
    decide.tick(LOST_S)
    decide(heartbeat("node-1"), 50)
    assert decide.tick(52) == [ghost_stop()]
    assert decide.tick(54) == [ghost_stop()]


def test_a_lost_agent_that_joins_again_is_back() -> None:
    decide = allocator(joined(gpus=1))
    decide(admitted(1))
    decide(started("j1"))
    decide.tick(LOST_S)
    assert decide(again(joined(gpus=1)), 50) == [
        Record(NodeAdded(joined=again(joined(gpus=1)))),
        Record(NodeBack(node="node-1")),
        ghost_stop(),
        # There is no other GPU than the one that the lost attempt has still.
        Record(JobWaits(job="j1", why=Reason.WAITS_FOR_VICTIMS, needs="its earlier attempt")),
        Record(
            CellsReserved(
                job="j1",
                attempt=2,
                chain="cpux1",
                at=at(50),
                victims=("j1",),
                members=(member("node-1", (0,), levels=(2,)),),
                why=Reason.BEST_FIT_ONE_NODE,
            )
        ),
    ]
    facts = facts_of(decide(exited("j1", outcome=Outcome.STOPPED)))
    assert [type(fact) for fact in facts] == [GhostGone, JobBound]


def test_a_gang_that_loses_one_node_is_stopped_on_the_others() -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1))
    decide(admitted(1, workers=2))
    decide(started("j1"))
    decide(started("j1", node="node-2"))
    decide(heartbeat("node-2"), 30)
    facts = given_up(2, LOST_S)
    assert plain(decide.tick(LOST_S)) == [
        *facts[:2],
        Send("skep.v1.cmd.node-2", stop(node="node-2", settled=1)),
        facts[2],
    ]
    assert plain(decide(exited("j1", node="node-2", outcome=Outcome.STOPPED), 42)) == [
        Record(MemberGone(job="j1", attempt=1, node="node-2", outcome=Outcome.STOPPED)),
        Record(
            JobRequeued(
                job="j1", attempt=1, why=Reason.NODE_LOST, counted=False, at=at(42), detail="node-1"
            )
        ),
        Record(
            JobWaits(
                job="j1", why=Reason.WAITS_FOR_CELLS, needs="2 x 1 GPUs (any type) in cells of nlp"
            )
        ),
    ]


def test_a_job_that_was_being_cancelled_on_a_lost_node_is_over() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(cancel_asked(1))
    assert plain(decide.tick(LOST_S)) == [
        Send("skep.v1.cmd.node-1", stop(settled=1)),
        Record(NodeLost(node="node-1")),
        Record(
            MemberGone(
                job="j1",
                attempt=1,
                node="node-1",
                outcome=Outcome.UNKNOWN,
                free=False,
                detail="node lost",
            )
        ),
        Record(
            JobEnded(job="j1", end=End.CANCELLED, why=Reason.CANCELLED, attempts=1, at=at(LOST_S))
        ),
    ]
    # The job is history, and yet its GPU is taken until the node says otherwise.
    decide.restart(42)
    assert others(decide(heartbeat(), 43)) == [ghost_stop(epoch=2)]
    assert plain(decide(exited("j1", outcome=Outcome.STOPPED))) == [
        Record(GhostGone(job="j1", attempt=1, node="node-1"))
    ]


def test_a_node_can_be_lost_again_before_its_ghost_is_gone() -> None:
    decide = lost()
    decide(heartbeat(), 42)
    assert facts_of(decide.tick(90))[0] == NodeLost(node="node-1")
    node = decide.machine.state.nodes["node-1"]
    assert list(node.ghosts) == [("j1", 1), ("j1", 2)]
    assert len(node.holdings) == 2


# --- one name, two agents -----------------------------------------------------------------------


def refusal(identity: str = NEWCOMER) -> Send:
    text = "another agent named node-1 is alive: give this one another name"
    return Send(
        "skep.v1.cmd.node-1", RefuseNode(epoch=1, node="node-1", identity=identity, text=text)
    )


def test_a_second_agent_of_a_living_name_is_refused() -> None:
    decide = allocator(joined())
    decide(heartbeat(), 20)
    assert decide(joined(identity=NEWCOMER), 25) == [refusal()]
    assert decide(heartbeat(identity=NEWCOMER), 25) == [refusal()]
    assert decide.machine.state.nodes["node-1"].joined == joined()


def test_a_silent_name_may_be_taken_over() -> None:
    decide = allocator(joined(), joined("node-2", 1))
    decide(admitted(1, gpus=2))
    decide(started("j1"))
    fresh = joined(identity=NEWCOMER)
    assert plain(decide(fresh, 6)) == [
        *given_up(2, 6),
        Record(GhostGone(job="j1", attempt=1, node="node-1")),
        Record(NodeAdded(joined=fresh, clear=2)),
        Record(NodeBack(node="node-1")),
        clear(2),
        Record(
            JobWaits(
                job="j1", why=Reason.WAITS_FOR_CELLS, needs="1 x 2 GPUs (any type) in cells of nlp"
            )
        ),
    ]
    assert decide(exited("j1")) == []  # The predecessor's last words are about nothing.
    assert plain(decide(cleared(2), 6)) == [
        Record(NodeClean(node="node-1")),
        Record(
            JobBound(
                job="j1",
                attempt=2,
                order=3,
                why=Reason.BEST_FIT_ONE_NODE,
                at=at(6),
                members=(
                    msgspec.structs.replace(
                        member("node-1", (0, 1), levels=(3,)), identity=NEWCOMER
                    ),
                ),
                master_port=20001,
                chain="cpux4",
            )
        ),
        Send(
            "skep.v1.cmd.node-1",
            bind(
                attempt=2,
                order=3,
                settled=2,
                identity=NEWCOMER,
                master_port=20001,
                ranks=plans((0, 1)),
            ),
        ),
    ]
    assert decide(heartbeat(identity=NEWCOMER), 7) == []
    assert decide(cleared(2)) == []


def clear(order: int, identity: str = NEWCOMER, epoch: int = 1) -> Send:
    message = ClearNode(order=order, epoch=epoch, node="node-1", identity=identity)
    return Send("skep.v1.cmd.node-1", message)


def cleared(order: int, identity: str = NEWCOMER) -> NodeCleared:
    return NodeCleared(node="node-1", identity=identity, order=order)


def test_a_name_that_was_taken_back_must_be_cleared_of_what_ran_there_before() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(started("j1"))
    decide(joined(identity=NEWCOMER), 6)
    decide(cleared(2), 6)
    assert decide.machine.state.jobs["j1"].attempt == 2
    effects = decide(again(joined()), 12)
    assert clear(4, "id-node-1") in effects
    assert not [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    # Words of an earlier time, and of the other machine, clear nothing.
    assert decide(cleared(2, "id-node-1")) == []
    assert decide(cleared(4)) == []
    facts = facts_of(plain(decide(cleared(4, "id-node-1"), 13)))
    assert facts[0] == NodeClean(node="node-1")
    assert isinstance(facts[1], JobBound)


def test_a_node_is_told_to_clear_itself_until_it_has() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(joined(identity=NEWCOMER), 6)
    assert clear(2) not in decide.tick(7)
    assert clear(2) in decide.tick(8.1)
    assert clear(2) in decide(again(joined(identity=NEWCOMER)), 9)
    assert clear(2, epoch=2) in decide.restart(10)
    assert facts_of(decide(cleared(2), 11))[0] == NodeClean(node="node-1")
    assert clear(2, epoch=2) not in decide.tick(14)


def test_an_agent_whose_latest_join_is_not_known_is_asked_for_it() -> None:
    decide = allocator(joined())
    late = msgspec.structs.replace(heartbeat(), incarnation=2)
    assert decide(late, 1) == [ask_to_join("id-node-1")]
    decide(again(joined(), 3), 2)
    assert decide(late, 3) == []


def test_an_agent_that_took_orders_before_a_restore_is_asked_to_join() -> None:
    decide = allocator(joined())
    decide.epoch = RESTORE_STEP + 4
    decide.restart(0)
    for seen, asked in ((0, False), (5, True), (6, False)):
        told = decide(msgspec.structs.replace(heartbeat(), epoch=seen), 1)
        assert told == ([ask_to_join("id-node-1", epoch=RESTORE_STEP + 5)] if asked else [])


def test_an_inventory_that_the_agent_never_told_does_not_stay() -> None:
    decide = allocator(joined())
    absurd = again(joined(gpus=1), INCARNATION_MAX)
    assert NodeAdded(joined=absurd) in facts_of(decide(absurd, 1))
    own = msgspec.structs.replace(heartbeat(), incarnation=1)
    assert decide(own, 2) == []  # Perhaps of an earlier process, and under way since.
    assert decide(again(joined(), 2), 61) == []
    asked = decide(own, 62)
    assert asked == [ask_to_join("id-node-1")]
    assert NodeAdded(joined=again(joined(), 2)) in facts_of(decide(again(joined(), 2), 63))
    assert decide(again(joined(), 1), 64) == []


def test_after_a_restart_an_earlier_join_has_its_whole_time_to_arrive() -> None:
    decide = allocator(again(joined(), 9))
    decide.restart(1000)
    own = msgspec.structs.replace(heartbeat(), incarnation=1)
    assert decide(own, 1001) == []
    assert decide(own, 1062) == [ask_to_join("id-node-1", epoch=2)]


def test_a_lost_name_is_taken_over_without_losing_it_again() -> None:
    decide = lost()
    fresh = joined(identity=NEWCOMER)
    facts = facts_of(plain(decide(fresh, 42)))
    assert facts[:3] == [
        GhostGone(job="j1", attempt=1, node="node-1"),
        NodeAdded(joined=fresh, clear=2),
        NodeBack(node="node-1"),
    ]


def ask_to_join(identity: str = NEWCOMER, epoch: int = 1) -> Send:
    return Send("skep.v1.cmd.node-1", JoinAgain(epoch=epoch, node="node-1", identity=identity))


def test_a_successors_heartbeat_may_overtake_its_join() -> None:
    decide = allocator(joined())
    assert decide(heartbeat(identity=NEWCOMER), 10) == [ask_to_join()]
    assert facts_of(plain(decide(joined(identity=NEWCOMER), 10.1)))[-1] == NodeBack(node="node-1")
    decide(heartbeat(identity=NEWCOMER), 10.2)
    assert decide(heartbeat(), 10.3) == [refusal("id-node-1")]


def test_after_a_restart_nobody_is_refused_on_a_guess() -> None:
    decide = allocator(joined())
    decide(heartbeat())
    decide.restart(100)
    # Whether node-1 lives is not known: its successor is neither taken in nor sent away.
    assert decide(joined(identity=NEWCOMER), 104) == []
    assert decide(heartbeat(identity=NEWCOMER), 104) == []
    assert decide(heartbeat(identity=NEWCOMER), 106) == [ask_to_join(epoch=2)]
    fresh = joined(identity=NEWCOMER, incarnation=2)
    assert NodeAdded(joined=fresh) in facts_of(decide(fresh, 107))


def test_after_a_restart_the_one_that_speaks_keeps_its_name() -> None:
    decide = allocator(joined())
    decide.restart(100)
    decide(heartbeat(), 101)
    refused = msgspec.structs.replace(refusal().message, epoch=2)
    assert decide(joined(identity=NEWCOMER), 104) == [Send("skep.v1.cmd.node-1", refused)]


def test_after_a_restart_every_node_gets_its_whole_time() -> None:
    decide = allocator(joined())
    decide.restart(100)
    assert facts_of(decide.tick(140)) == []
    assert facts_of(plain(decide.tick(141))) == [NodeLost(node="node-1")]


# --- draining -----------------------------------------------------------------------------------


def test_a_drained_node_keeps_its_jobs_and_takes_no_more() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    assert decide(DrainNode(node="node-1")) == [Record(NodeDrained(node="node-1", drain=True))]
    assert decide(DrainNode(node="node-1")) == []
    effects: list[Effect] = decide(admitted(2))
    assert facts_of(effects)[1:] == [
        JobWaits(
            job="j2", why=Reason.WAITS_FOR_CELLS, needs="1 x 1 GPUs (any type) in cells of nlp"
        )
    ]
    assert decide(started("j1"))
    (first, *rest) = facts_of(decide(DrainNode(node="node-1", drain=False)))
    assert first == NodeDrained(node="node-1", drain=False)
    assert [fact.job for fact in rest] == ["j2"]


@pytest.mark.parametrize("drain", [True, False])
def test_a_node_nobody_knows_is_not_drained(drain: bool) -> None:
    assert allocator()(DrainNode(node="node-1", drain=drain)) == []


def test_a_drained_node_stays_drained_when_its_agent_is_replaced() -> None:
    decide = allocator(joined())
    decide(DrainNode(node="node-1"))
    decide(joined(identity=NEWCOMER), 10)
    assert decide.machine.state.nodes["node-1"].drained
    assert decide.now > T0


# --- an allocator that slept --------------------------------------------------------------------


def test_whoever_slept_holds_nobodys_silence_against_him() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(started("j1"))
    assert decide(Tick(), 3600, slept=True) == []
    assert decide(joined(identity=NEWCOMER), 3601) == []
    assert facts_of(decide.tick(3600 + LOST_S))[0] == NodeLost(node="node-1")
