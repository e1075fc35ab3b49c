"""Cells made of the nodes that join: a lone one at once, many of them together."""

from __future__ import annotations

from typing import Any

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.placement import job_cells
from skep.wire.admin import SetVcs
from skep.wire.facts import CellsSet, JobBound, NodeAdded
from tests.kit import Driver, admitted, facts_of, joined, vcs

MANY = 100
START = job_cells.JOINS_AT_ONCE


def node(number: int) -> Any:
    return joined(f"n{number:03}", gpus=2, identity=f"id-n{number:03}", address="10.0.0.1")


def many(count: int = MANY) -> Driver[AllocatorMachine]:
    """Return an allocator that so many nodes joined, a millisecond apart."""
    decide = Driver(AllocatorMachine, thorough=False)
    decide.restart(0)
    decide(SetVcs(vcs=vcs(nlp=2 * MANY)))
    for number in range(count):
        decide(node(number), 10 + number / 1000)
    return decide


def told(facts: list[Any]) -> list[int]:
    """Return the sizes of the clusters that were told, in nodes."""
    return [
        sum(len(chain.nodes) for chain in fact.cluster.chains.values())
        for fact in facts
        if isinstance(fact, CellsSet)
    ]


def test_nodes_that_join_together_are_told_together() -> None:
    decide = many()
    assert told(decide.facts) == [0, *range(1, START + 1)]
    assert told(facts_of(decide.tick())) == [MANY]
    assert decide.machine.tx.soft.resolve_at is None
    assert sum(isinstance(fact, NodeAdded) for fact in decide.facts) == MANY
    decide.check_replay()


def test_the_timer_asks_for_it_within_a_quarter_of_a_second() -> None:
    decide = many(START + 1)
    wake_at = decide.machine.wake_at()
    assert wake_at is not None
    assert 0 < wake_at - decide.now <= job_cells.JOINS_WITHIN


def test_a_lone_node_is_told_at_once() -> None:
    decide = many()
    decide.tick()
    effects = decide(node(MANY), 20)
    assert told(facts_of(effects)) == [MANY + 1]
    assert told(facts_of(decide(node(MANY + 1), 30))) == [MANY + 2]


def test_a_job_that_waits_for_the_nodes_starts_with_them() -> None:
    decide = many(START)
    decide(admitted(1, workers=START + 10, gpus=2), 11)
    for number in range(START, START + 10):
        decide(node(number), 12 + number / 1000)
    bound = [fact for fact in facts_of(decide.tick(13)) if isinstance(fact, JobBound)]
    assert [len(fact.members) for fact in bound] == [START + 10]


def test_what_a_crash_left_open_is_told_at_the_start() -> None:
    decide = many()
    assert told(facts_of(decide.restart(10.2))) == [MANY]
    assert told(facts_of(decide.restart(11))) == []


def test_what_an_operator_asks_for_does_not_wait() -> None:
    decide = many()
    effects = decide(SetVcs(vcs=vcs(nlp=MANY)))
    assert told(facts_of(effects)) == [MANY]
    assert decide.machine.tx.soft.resolve_at is None
