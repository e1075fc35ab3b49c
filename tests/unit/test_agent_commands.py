"""The agent takes commands: once each, above the floors, and stops whatever crosses them."""

from typing import Any

import msgspec
import pytest

from skep.machines.agent import (
    AgentMachine,
    ExitProcess,
    ForgetRun,
    ListRuns,
    Published,
    PublishEvent,
    RunsListed,
    StartRank,
    StopRun,
)
from skep.machines.agent.machine import RESTORED
from skep.machines.base import Call, Record
from skep.wire.codec import Unreadable
from skep.wire.commands import RESTORE_STEP, BindJob, ClearNode, Command, JoinAgain, RefuseNode
from skep.wire.facts import (
    AgentStarted,
    BindTaken,
    ClearDone,
    FloorRaised,
    PartOver,
    PartStarted,
    RankDown,
    RankUp,
    StopTaken,
)
from skep.wire.node import MemberExited, MemberStarted, NodeCleared, NodeJoined, Outcome, RankExit
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from tests.kit import TRACE, Driver, agent, at, bind, joined, plans, stop

SELF = joined()
RESTORED_AT = RESTORE_STEP + 1
GANG = bind(ranks=plans((0,), (1,)), world=2)


def start(command: BindJob) -> list[Call]:
    """Return the calls that start every rank of a command."""
    return [
        Call(StartRank(f"{command.job}.{command.attempt}.{plan.rank}", command, plan))
        for plan in command.ranks
    ]


def up(token: str, pid: int = 10) -> RunStarted:
    return RunStarted(token, pid, 7, at(3))


def member_exited(outcome: Outcome, second: float = 0, **fields: Any) -> MemberExited:
    given = {"job": "j1", "attempt": 1, **fields}
    return MemberExited(
        node="node-1", identity="id-node-1", outcome=outcome, at=at(second), **given
    )


def told(event: int, kind: str, message: Any) -> Call:
    subject = f"skep.v1.node.node-1.{kind}"
    return Call(PublishEvent(event, subject, f"id-node-1:{event}", message))


def over(event: int, exited: MemberExited) -> list[Record | Call]:
    """Return the effects that say that a part is over."""
    return [Record(PartOver(event=event, exited=exited)), told(event, "exited", exited)]


def taken(order: int = 2, grace_ms: int = 10_000, job: str = "j1") -> Record:
    return Record(StopTaken(job=job, attempt=1, order=order, epoch=1, grace_ms=grace_ms))


# --- the first start ----------------------------------------------------------------------------


def test_an_agent_joins_and_asks_what_runs() -> None:
    decide = Driver(lambda: AgentMachine(SELF))
    assert decide.machine.wake_at() is None
    assert decide.restart(4) == [
        Record(AgentStarted(incarnation=1, event=1)),
        told(1, "joined", SELF),
        Call(ListRuns()),
    ]
    assert decide.machine.wake_at() == at(4)


# --- binding ------------------------------------------------------------------------------------


def test_a_bind_starts_every_rank_and_their_start_is_told() -> None:
    decide = agent()
    command = bind(ranks=plans((0, 1), (2,)), world=2, trace=TRACE)
    assert decide(command) == [Record(BindTaken(command=command)), *start(command)]
    assert decide(up("j1.1.1", 11)) == [Record(RankUp(token="j1.1.1", pid=11, start_ticks=7))]
    message = MemberStarted(
        node="node-1", identity="id-node-1", job="j1", attempt=1, at=at(3), trace=TRACE
    )
    assert decide(up("j1.1.0")) == [
        Record(RankUp(token="j1.1.0", pid=10, start_ticks=7)),
        Record(PartStarted(job="j1", attempt=1, event=2, at=at(3))),
        told(2, "started", message),
    ]
    assert decide(up("j1.1.0")) == []


def test_a_bind_is_taken_once() -> None:
    decide = agent()
    decide(bind())
    assert decide(bind()) == []
    decide(up("j1.1.0"))
    decide(RunExited("j1.1.0", 0, at(4)))
    assert decide(bind()) == []
    decide.restart()
    assert decide(bind()) == []


def test_another_attempt_is_another_part() -> None:
    decide = agent()
    decide(bind())
    second = bind(attempt=2, order=3, ranks=plans((1,)))
    assert decide(second) == [Record(BindTaken(command=second)), *start(second)]


@pytest.mark.parametrize("command", [bind(identity="id-other"), stop(identity="id-other")])
def test_commands_for_another_agent_of_the_name_are_ignored(command: Any) -> None:
    decide = agent()
    assert decide(command) == []


@pytest.mark.parametrize(
    "command", [bind("j2", order=9, epoch=2), stop(order=9, epoch=2), stop("j2", order=9, epoch=2)]
)
def test_a_deposed_allocator_is_not_obeyed(command: Any) -> None:
    decide = agent()
    decide(bind(epoch=3))
    assert decide(command) == []
    decide.restart()
    assert decide(command) == []


def test_a_stop_teaches_the_epoch_too() -> None:
    decide = agent()
    decide(stop("j2", epoch=3))
    assert decide(bind(epoch=2, order=9)) == []


@pytest.mark.parametrize("order", [1, 7])
def test_nothing_at_or_below_the_floor_begins(order: int) -> None:
    decide = agent()
    for number in range(1, 33):
        decide(stop(f"j{number}", order=1))
        decide(Published(number + 1))
    effects = decide(bind("j40", order=8, settled=7))
    assert isinstance(effects[-1], Record)
    assert isinstance(effects[-1].fact, FloorRaised)
    assert effects[-1].fact.order == 7
    assert decide(bind("j1", order=order)) == []
    assert decide(stop("j1", order=order)) == []
    decide.restart()
    assert decide(bind("j1", order=order)) == []
    assert decide(bind("j1", order=9))


# --- stopping -----------------------------------------------------------------------------------


def test_a_stop_ends_every_rank_and_its_end_is_told() -> None:
    decide = agent()
    decide(GANG)
    decide(up("j1.1.0"))
    decide(up("j1.1.1"))
    assert decide(stop()) == [taken(), Call(StopRun("j1.1.0", 10.0)), Call(StopRun("j1.1.1", 10.0))]
    assert decide(RunExited("j1.1.1", -15, at(4), asked=True), 4) == [
        Record(RankDown(token="j1.1.1", code=-15, stopped=True)),
        Call(ForgetRun("j1.1.1")),
    ]
    ranks = (RankExit(rank=0, code=-9), RankExit(rank=1, code=-15))
    assert decide(RunExited("j1.1.0", -9, at(5), asked=True), 5) == [
        Record(RankDown(token="j1.1.0", code=-9, stopped=True)),
        *over(3, member_exited(Outcome.STOPPED, 5, ranks=ranks)),
        Call(ForgetRun("j1.1.0")),
    ]
    assert decide(stop()) == []
    assert decide(stop(order=5)) == [taken(5)]
    assert decide(stop(order=5)) == []


def test_a_repeated_stop_is_passed_on_and_recorded_once() -> None:
    decide = agent()
    decide(bind())
    decide(stop())
    assert decide(stop()) == [Call(StopRun("j1.1.0", 10.0))]


def test_a_later_stop_with_another_grace_is_recorded() -> None:
    decide = agent()
    decide(bind())
    decide(stop())
    assert decide(stop(order=3, grace_s=0.0)) == [taken(3, 0), Call(StopRun("j1.1.0", 0.0))]


def test_a_stop_older_than_the_bind_ends_nothing() -> None:
    decide = agent()
    decide(bind(order=5))
    assert decide(stop(order=4)) == []


def test_a_stop_that_comes_before_the_bind_keeps_it_from_beginning() -> None:
    decide = agent()
    assert decide(stop()) == [taken(), *over(2, member_exited(Outcome.STOPPED))]
    assert decide(bind()) == []
    assert decide(stop()) == []
    decide.restart()
    assert decide(bind()) == []


def test_a_stop_that_crosses_a_start_ends_what_comes_up() -> None:
    decide = agent()
    decide(GANG)
    decide(up("j1.1.0"))
    decide(stop(grace_s=2.0))
    assert decide(up("j1.1.1")) == [
        Record(RankUp(token="j1.1.1", pid=10, start_ticks=7)),
        Call(StopRun("j1.1.1", 2.0)),
    ]


def test_a_stop_that_crosses_a_success_leaves_it_a_success() -> None:
    decide = agent()
    decide(bind())
    decide(up("j1.1.0"))
    decide(stop())
    assert decide(RunExited("j1.1.0", 0, at(4)), 4) == [
        Record(RankDown(token="j1.1.0", code=0)),
        *over(3, member_exited(Outcome.SUCCEEDED, 4, ranks=(RankExit(rank=0, code=0),))),
        Call(ForgetRun("j1.1.0")),
    ]


def test_a_job_that_ends_well_when_told_to_end_has_not_succeeded() -> None:
    decide = agent()
    decide(bind())
    decide(up("j1.1.0"))
    decide(stop())
    assert decide(RunExited("j1.1.0", 0, at(4), asked=True), 4) == [
        Record(RankDown(token="j1.1.0", code=0, stopped=True)),
        *over(3, member_exited(Outcome.STOPPED, 4, ranks=(RankExit(rank=0, code=0),))),
        Call(ForgetRun("j1.1.0")),
    ]


def test_what_was_told_to_end_by_nobody_we_know_of_was_shut_down_with_its_node() -> None:
    decide = agent()
    decide(bind())
    decide(up("j1.1.0"))
    (end,) = [
        effect.fact.exited
        for effect in decide(RunExited("j1.1.0", -15, at(4), asked=True), 4)
        if isinstance(effect, Record) and isinstance(effect.fact, PartOver)
    ]
    assert (end.outcome, end.detail) == (Outcome.STOPPED, "the node was shut down")


def test_a_stop_after_the_first_failure_does_not_hide_it() -> None:
    decide = agent()
    decide(GANG)
    decide(up("j1.1.0"))
    decide(up("j1.1.1"))
    decide(RunExited("j1.1.1", 3, at(4)))
    decide(stop())
    effects = decide(RunExited("j1.1.0", -15, at(5), asked=True), 5)
    ranks = (RankExit(rank=0, code=-15), RankExit(rank=1, code=3))
    assert effects[1:3] == over(
        3, member_exited(Outcome.EXITED, 5, detail="rank 1: exit status 3", ranks=ranks)
    )


# --- clearing -----------------------------------------------------------------------------------


def clear(order: int = 9, identity: str = "id-node-1") -> ClearNode:
    return ClearNode(order=order, epoch=1, node="node-1", identity=identity)


def cleared(event: int, order: int = 9) -> Call:
    message = NodeCleared(node="node-1", identity="id-node-1", order=order)
    return Call(PublishEvent(event, "skep.v1.node.node-1.cleared", f"id-node-1:{event}", message))


def test_a_node_where_nothing_runs_is_clear_at_once() -> None:
    decide = agent()
    raised = Record(FloorRaised(order=9, event=1, epoch=1))
    assert decide(clear()) == [raised, Record(ClearDone(order=9, event=2)), cleared(2)]
    assert decide(clear()) == [cleared(2)]
    assert decide(bind(order=9)) == []
    assert decide(stop(order=8)) == []
    decide.restart()
    assert decide(bind(order=9)) == []
    assert decide(clear()) == [cleared(2)]
    assert decide(bind(order=10))


def test_a_node_is_clear_once_everything_on_it_is_gone() -> None:
    decide = agent()
    decide(GANG)
    decide(up("j1.1.0"))
    decide(up("j1.1.1"))
    decide(stop())  # Gently; now there is no time for that.
    effects = decide(clear())
    assert effects[-2:] == [Call(StopRun("j1.1.0", 0.0)), Call(StopRun("j1.1.1", 0.0))]
    decide(RunExited("j1.1.0", -9, at(4), asked=True))
    assert decide(clear()) == [Call(StopRun("j1.1.1", 0.0))]
    effects = decide(RunExited("j1.1.1", -9, at(4), asked=True))
    assert effects[-3:] == [
        Record(ClearDone(order=9, event=4)),
        cleared(4),
        Call(ForgetRun("j1.1.1")),
    ]


def test_clearing_goes_on_after_a_crash() -> None:
    decide = agent()
    decide(bind())
    decide(up("j1.1.0"))
    decide(clear())
    decide.restart()
    run = RunStarted("j1.1.0", 10, 7, at(3))
    assert decide(RunsListed((run,))) == [Call(StopRun("j1.1.0", 0.0))]
    decide(clear())
    assert cleared(5) in decide(RunExited("j1.1.0", -9, at(4), asked=True))


def test_what_began_later_is_not_cleared() -> None:
    decide = agent()
    decide(bind(order=10))
    effects = decide(clear())
    assert not [each for each in effects if each == Call(StopRun("j1.1.0", 0.0))]
    assert effects[-1] == cleared(2)


def test_a_clearing_of_another_machine_is_none_of_ours() -> None:
    decide = agent()
    decide(bind())
    assert decide(clear(identity="id-other")) == []


# --- the second agent of a name -----------------------------------------------------------------


def test_the_agent_that_is_refused_exits() -> None:
    decide = agent()
    refusal = RefuseNode(epoch=1, node="node-1", identity="id-node-1", text="taken")
    assert decide(refusal) == [Call(ExitProcess("taken"))]


def test_the_refusal_of_another_is_ignored() -> None:
    decide = agent()
    refusal = RefuseNode(epoch=1, node="node-1", identity="id-other", text="taken")
    assert decide(refusal) == []


@pytest.mark.parametrize(
    "command",
    [
        bind("j2", order=2, epoch=RESTORED_AT),
        stop("j1", order=2, epoch=RESTORED_AT),
        JoinAgain(epoch=RESTORED_AT, node="node-1", identity="id-node-1"),
    ],
)
def test_an_agent_of_a_cluster_that_was_restored_begins_anew(command: Command) -> None:
    decide = agent()
    first = JoinAgain(epoch=RESTORED_AT, node="node-1", identity="id-node-1")
    assert decide(first) == []  # It has taken no orders yet: nothing can be confused.
    decide(bind())
    other = msgspec.structs.replace(command, identity="id-other")
    assert decide(other) == []
    assert decide(command) == [Call(ExitProcess(RESTORED, anew=True))]


def test_a_new_epoch_is_no_restore() -> None:
    decide = agent()
    decide(bind())
    second = bind("j2", order=2, epoch=RESTORE_STEP, ranks=plans((1,)))
    assert decide(second)[1:] == start(second)


# --- joining again ------------------------------------------------------------------------------


def test_an_agent_joins_again_when_it_is_asked_and_its_last_join_is_stored() -> None:
    decide = agent()
    asked = JoinAgain(epoch=1, node="node-1", identity="id-node-1")
    assert decide(asked) == []  # Its first join is under way.
    decide(Published(1))
    assert decide(asked) == [
        Record(AgentStarted(incarnation=2, event=2)),
        told(2, "joined", joined(incarnation=2)),
    ]
    assert decide(asked) == []
    decide(Published(2))
    assert decide(JoinAgain(epoch=1, node="node-1", identity="id-other")) == []


# --- what is of no concern ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "event", [Unreadable(subject="x", text="y"), RunNotStarted("j9.1.0", "gone"), Published(77)]
)
def test_what_changes_nothing(event: Any) -> None:
    decide = agent()
    decide(bind())
    assert decide(event) == []


def test_runs_of_nobody_are_ended_and_forgotten() -> None:
    decide = agent()
    decide(bind())
    assert decide(up("j9.1.0")) == [Call(StopRun("j9.1.0", 0.0))]
    assert decide(up("j1.1.5")) == [Call(StopRun("j1.1.5", 0.0))]
    assert decide(RunExited("j9.1.0", 0, at(4))) == [Call(ForgetRun("j9.1.0"))]


def test_incarnations_are_counted_across_restarts() -> None:
    decide = agent()
    rejoin = NodeJoined(
        **{name: getattr(SELF, name) for name in SELF.__struct_fields__ if name != "incarnation"},
        incarnation=2,
    )
    assert decide.restart()[:2] == [
        Record(AgentStarted(incarnation=2, event=2)),
        told(2, "joined", rejoin),
    ]
