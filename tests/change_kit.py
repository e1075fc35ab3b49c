"""An agent whose part runs, and what its ranks say: for tests of changes."""

from typing import Any

from skep.machines.agent import (
    AgentMachine,
    FreezeRun,
    PublishEvent,
    RankSaid,
    RankStats,
    RunFrozen,
    RunsListed,
    TellRank,
)
from skep.machines.agent.change_progress import ORDERS_PER_SERIAL
from skep.machines.base import Call, Effect
from skep.wire import talk
from skep.wire.commands import BindJob, Change, ChangeJob, Hold, Move, Suspend, Target
from skep.wire.node import MemberChanged, NodeJoined
from skep.wire.part_facts import PartChanged, Stand
from skep.wire.reports import RankProgress
from skep.wire.runs import RunStarted
from tests.kit import Driver, at, bind, facts_of, joined, others, plans

ONE, TWO = "j1.1.0", "j1.1.1"
GANG = bind(ranks=plans((0,), (1,)), world=2)
EVERYTHING = ("checkpoint", "migrate", "release", "resize", "suspend")
WHO: dict[str, Any] = {"job": "j1", "attempt": 1}


def change(what: Change, order: int = 2, deadline_ms: int = 5000, **fields: Any) -> ChangeJob:
    given = {"epoch": 1, "settled": 0, "node": "node-1", "identity": "id-node-1", **WHO, **fields}
    return ChangeJob(order=order, change=what, deadline_ms=deadline_ms, **given)


def up(token: str, *, frozen: bool = False) -> RunStarted:
    return RunStarted(token, 10, 7, at(1), frozen)


def said(kind: type[Any], rank: int = 0, **fields: Any) -> RankSaid:
    return RankSaid(kind(**WHO, rank=rank, **fields))


def running(
    command: BindJob = GANG,
    can: tuple[str, ...] | None = EVERYTHING,
    steps: int = 0,
    budget: int = 0,
    node: NodeJoined | None = None,
) -> Driver[AgentMachine]:
    """Return an agent whose part runs, and whose ranks have said what they can."""

    def make() -> AgentMachine:
        machine = AgentMachine(node or joined())
        machine.host_budget = budget or machine.host_budget
        return machine

    decide = Driver(make)
    decide.restart(0)
    decide(RunsListed(()), 0)
    decide(command)
    for plan in command.ranks:
        decide(up(f"j1.1.{plan.rank}"), 1)
    for plan in command.ranks if can is not None else ():
        decide(said(talk.Hello, plan.rank, pid=10, token=f"j1.1.{plan.rank}"))
        decide(said(talk.Can, plan.rank, tier="cooperative", can=can))
        if steps:
            decide(
                RankStats(
                    "j1",
                    1,
                    RankProgress(rank=plan.rank, steps=steps, step_ns=10**9, last_step_at=at(1)),
                )
            )
    decide.now = at(1)
    return decide


def told(effects: list[Effect]) -> list[talk.Told]:
    """Return what ranks are told."""
    return [
        one.command.message
        for one in effects
        if isinstance(one, Call) and isinstance(one.command, TellRank)
    ]


def calls(effects: list[Effect]) -> list[Any]:
    """Return every call but those that tell ranks and the cluster."""
    return [
        one.command
        for one in effects
        if isinstance(one, Call) and not isinstance(one.command, TellRank | PublishEvent)
    ]


def answer(effects: list[Effect]) -> MemberChanged:
    """Return the one answer that is recorded and told."""
    (fact,) = [one for one in facts_of(effects) if isinstance(one, PartChanged)]
    tell = next(
        one.command
        for one in others(effects)
        if isinstance(one, Call) and isinstance(one.command, PublishEvent)
    )
    assert (tell.event, tell.message) == (fact.event, fact.changed)
    assert tell.subject == "skep.v1.node.node-1.changed"
    return fact.changed


def state(decide: Driver[AgentMachine]) -> tuple[Stand, tuple[Hold, ...]]:
    """Return how the part stands, and who holds it."""
    part = decide.machine.parts["j1", 1]
    return part.stand, part.holds


def order(serial: int, index: int) -> int:
    return serial * ORDERS_PER_SERIAL + index


UNDO, STOP, RELEASE, RESUME, WORK = range(5)


def all_say(decide: Driver[AgentMachine], kind: type[Any], **fields: Any) -> list[Effect]:
    effects: list[Effect] = []
    for rank in range(2):
        effects = decide(said(kind, rank, **fields))
    return effects


def both(decide: Driver[AgentMachine], kind: type[Any]) -> list[Effect]:
    decide(kind(ONE))
    return decide(kind(TWO))


def suspended(decide: Driver[AgentMachine], number: int = 2, **fields: Any) -> MemberChanged:
    """Suspend the gang at a boundary; return the answer."""
    asked = told(decide(change(Suspend(**fields), number)))
    serial = decide.machine.serial
    assert [one.order for one in asked] == [order(serial, STOP)] * 2
    step = asked[0].step  # type: ignore[union-attr]
    last = all_say(decide, talk.Suspended, order=order(serial, STOP), step=step)
    if fields.get("release"):
        last = all_say(decide, talk.Released, order=order(serial, RELEASE), moved=100, residue=7)
    assert calls(last) == [FreezeRun(ONE), FreezeRun(TWO)]
    return answer(both(decide, RunFrozen))


MOVE = Move(
    targets=(
        Target(rank=0, host="h", port=1, token="s"),
        Target(rank=1, host="h", port=2, token="s"),
    )
)
