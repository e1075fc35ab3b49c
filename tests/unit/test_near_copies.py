"""A gang with copies of its state in the memory of nodes is placed on these again."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.machines.agent import CopiesSeen, RemoveCopies
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Call, Effect, Send
from skep.wire.admin import DrainNode
from skep.wire.commands import DropCopies
from skep.wire.facts import JobBound, MemberGone
from skep.wire.node import MemberKnown, Outcome, Tier
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from tests.kit import (
    T0,
    Driver,
    admitted,
    agent,
    allocator,
    bind,
    exited,
    facts_of,
    heartbeat,
    joined,
    others,
    started,
)

KEEPS = ("checkpoint", "copies", "migrate")
LOST_S = 60


def nodes_of(effects: list[Effect]) -> list[list[str]]:
    """Return the nodes of every gang that was bound."""
    bound = [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    return [[part.node for part in fact.members] for fact in bound]


def known(job: str, attempt: int, node: str, can: tuple[str, ...]) -> MemberKnown:
    return MemberKnown(
        node=node,
        identity=f"id-{node}",
        job=job,
        attempt=attempt,
        can=can,
        at=T0,
        tier=Tier.COOPERATIVE,
    )


def gang(
    can: tuple[str, ...] = KEEPS, spare: int = 3, gpus: int = 1, **changes: Any
) -> Driver[AllocatorMachine]:
    """Return an allocator with j9 on the last three nodes, and `spare` free ones before these."""
    names = [f"node-{number}" for number in range(1, spare + 4)]
    decide = allocator(*(joined(name, gpus) for name in names))
    for number, name in enumerate(names[:spare], start=1):
        decide(admitted(number, gpus=gpus))
        decide(started(f"j{number}", node=name))
    (there,) = nodes_of(decide(admitted(9, workers=3, gpus=gpus, **changes)))
    assert there == names[spare:]
    for name in there:
        decide(started("j9", node=name))
        decide(known("j9", 1, name, can))
    for number, name in enumerate(names[:spare], start=1):
        decide(exited(f"j{number}", node=name))
    return decide


def lose(decide: Driver[AllocatorMachine], node: str) -> list[Effect]:
    """Return what is decided once a node of j9 is lost and its other parts have stopped."""
    for name in decide.machine.state.nodes:
        if name != node:
            decide(heartbeat(name), LOST_S - 10)
    effects = decide.tick(LOST_S)
    for name in decide.machine.state.jobs["j9"].live:
        effects = decide(exited("j9", node=name, outcome=Outcome.STOPPED), LOST_S + 1)
    return effects


def test_a_gang_that_lost_a_node_goes_to_those_with_copies_and_one_more() -> None:
    decide = gang()
    effects = lose(decide, "node-5")
    assert [sorted(each) for each in nodes_of(effects)] == [["node-1", "node-4", "node-6"]]
    (fact,) = [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    assert fact.why is Reason.HOLDS_COPIES
    told = [(f.node, f.copies) for f in decide.facts if isinstance(f, MemberGone) and f.job == "j9"]
    assert told == [("node-5", False), ("node-4", True), ("node-6", True)]


def test_a_gang_without_copies_goes_where_it_went_before() -> None:
    effects = lose(gang(can=("checkpoint", "migrate")), "node-5")
    assert nodes_of(effects) == [["node-1", "node-2", "node-3"]]
    (fact,) = [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    assert fact.why is Reason.FEWEST_NODES


def test_a_gang_that_lost_a_rank_goes_to_the_same_nodes() -> None:
    decide = gang(retries=1, retry_on=("exit",))
    decide(exited("j9", node="node-5", outcome=Outcome.EXITED))
    effects: list[Effect] = []
    for name in ("node-4", "node-6"):
        effects = decide(exited("j9", node=name, outcome=Outcome.STOPPED))
    assert [sorted(each) for each in nodes_of(effects)] == [["node-4", "node-5", "node-6"]]


def test_it_does_not_wait_for_a_node_with_copies() -> None:
    decide = gang()
    for name in ("node-4", "node-6"):
        decide(DrainNode(node=name, drain=True))
    assert nodes_of(lose(decide, "node-5")) == [["node-1", "node-2", "node-3"]]


def test_it_does_not_spread_over_more_nodes_for_copies() -> None:
    decide = allocator(joined("node-1", 3), joined("node-2", 3), joined("node-3", 3))
    decide(admitted(1, gpus=3))
    decide(started("j1"))
    for number, name in ((2, "node-2"), (3, "node-3")):
        decide(admitted(number, gpus=2))
        decide(started(f"j{number}", node=name))
    bound = decide(admitted(9, workers=2, retries=1, retry_on=("exit",)))
    assert nodes_of(bound) == [["node-2", "node-3"]]
    for name in ("node-2", "node-3"):
        decide(started("j9", node=name))
        decide(known("j9", 1, name, KEEPS))
    decide(exited("j1"))
    decide(exited("j9", node="node-2", outcome=Outcome.EXITED))
    effects = decide(exited("j9", node="node-3", outcome=Outcome.STOPPED))
    assert nodes_of(effects) == [["node-1"]]


def test_it_does_not_return_for_copies_to_a_node_that_it_failed_on() -> None:
    decide = gang(retries=1, retry_on=("signal",))
    decide(exited("j9", node="node-5", outcome=Outcome.SIGNALLED))
    effects: list[Effect] = []
    for name in ("node-4", "node-6"):
        effects = decide(exited("j9", node=name, outcome=Outcome.STOPPED))
    assert [sorted(each) for each in nodes_of(effects)] == [["node-1", "node-4", "node-6"]]


def test_it_is_in_several_chains_for_copies_only_if_it_has_to_be() -> None:
    nodes = (("node-1", "a100"), ("node-2", "a100"), ("node-3", "h100"))
    decide = allocator(*(joined(name, {kind: 1}) for name, kind in nodes))
    decide(admitted(1, gpu_type="a100"))
    decide(started("j1"))
    asked: dict[str, Any] = {"workers": 2, "gpu_type": "a100|h100", "mixed": True}
    bound = decide(admitted(9, retries=1, retry_on=("exit",), **asked))
    assert nodes_of(bound) == [["node-2", "node-3"]]
    for name in ("node-2", "node-3"):
        decide(started("j9", node=name))
        decide(known("j9", 1, name, KEEPS))
    decide(exited("j1"))
    decide(exited("j9", node="node-2", outcome=Outcome.EXITED))
    effects = decide(exited("j9", node="node-3", outcome=Outcome.STOPPED))
    assert [sorted(each) for each in nodes_of(effects)] == [["node-1", "node-2"]]


def test_an_attempt_that_copied_nothing_leaves_known_what_the_one_before_did() -> None:
    decide = gang()
    lose(decide, "node-5")
    decide(exited("j9", 2, "node-1", Outcome.NODE_FAULT))
    effects: list[Effect] = []
    for name in ("node-4", "node-6"):
        effects = decide(exited("j9", 2, name, Outcome.STOPPED))
    (there,) = nodes_of(effects)
    assert {"node-4", "node-6"} < set(there)


def test_as_few_others_as_it_takes_are_added() -> None:
    decide = gang()
    decide(DrainNode(node="node-6", drain=True))
    (there,) = nodes_of(lose(decide, "node-5"))
    assert sorted(there) == ["node-1", "node-2", "node-4"]


# --- the end ------------------------------------------------------------------------------------


def with_copies(*jobs: str, node: str = "node-1", identity: str = "") -> Heartbeat:
    return msgspec.structs.replace(heartbeat(node, identity), copies=jobs)


def test_a_node_is_told_which_jobs_have_ended_for_as_long_as_it_names_them() -> None:
    decide = allocator(joined(gpus=2))
    for number in (1, 2, 3):
        decide(admitted(number, gpus=2))
    decide(exited("j1"))
    drop = DropCopies(epoch=1, node="node-1", identity="id-node-1", jobs=("j1",))
    said = with_copies("j1", "j2", "j3", "j99")
    assert decide(said) == [Send("skep.v1.cmd.node-1", drop)]
    decide.restart()
    again = msgspec.structs.replace(drop, epoch=2)
    assert Send("skep.v1.cmd.node-1", again) in decide(said)
    assert decide(with_copies("j2", "j3", "j99")) == []
    assert decide(with_copies("j1", node="node-7")) == []
    stranger = others(decide(with_copies("j1", identity="id-other")))
    assert not any(isinstance(one.message, DropCopies) for one in stranger if isinstance(one, Send))


def test_an_agent_names_and_removes_copies_of_jobs_without_a_part_here() -> None:
    decide = agent()
    decide(bind("j2"))
    decide(CopiesSeen(("j1", "j2", "j3")))
    (beat,) = [one.message for one in decide.tick(7) if isinstance(one, Send)]
    assert isinstance(beat, Heartbeat)
    assert beat.copies == ("j1", "j3")
    drop = DropCopies(epoch=1, node="node-1", identity="id-node-1", jobs=("j1", "j2", "j7"))
    assert decide(drop) == [Call(RemoveCopies("j1"))]
    assert decide(msgspec.structs.replace(drop, identity="id-other")) == []
    assert decide(msgspec.structs.replace(drop, epoch=0)) == []


def test_an_agent_names_no_more_jobs_than_a_heartbeat_holds() -> None:
    decide = agent()
    decide(CopiesSeen(tuple(f"j{number}" for number in range(1, 1000))))
    (beat,) = [one.message for one in decide.tick(7) if isinstance(one, Send)]
    assert msgspec.json.decode(msgspec.json.encode(beat), type=Heartbeat) == beat
