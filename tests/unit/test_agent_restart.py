"""After a restart the agent adopts what runs, mourns what vanished, tells what was not heard."""

from typing import Any

import pytest

from skep.machines.agent import (
    FORGET_AT_ONCE,
    PEER_GRACE_S,
    AgentMachine,
    ForgetRun,
    ListRuns,
    Published,
    PublishEvent,
    RankStats,
    RunsListed,
    StartRank,
    StopRun,
)
from skep.machines.base import Call, Effect, Record
from skep.wire.commands import RankPlan
from skep.wire.facts import AgentStarted, FloorRaised, PartOver, PartStarted, RankDown, RankUp
from skep.wire.node import Outcome
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from tests.kit import Driver, agent, at, bind, durable, facts_of, joined, plans, stop

GANG = bind(ranks=plans((0,), (1,)), world=2)
A, B = "j1.1.0", "j1.1.1"


def up(token: str) -> RunStarted:
    return RunStarted(token, 10, 7, at(3))


def down(token: str, code: int | None = 0) -> RunExited:
    return RunExited(token, code, at(8))


def listed(*runs: RunStarted | RunExited) -> RunsListed:
    return RunsListed(runs)


def start(token: str, command: Any = GANG) -> Call:
    plans: dict[str, RankPlan] = {f"j1.1.{plan.rank}": plan for plan in command.ranks}
    return Call(StartRank(token, command, plans[token]))


def outcomes(effects: list[Effect]) -> list[Outcome]:
    return [fact.exited.outcome for fact in facts_of(effects) if isinstance(fact, PartOver)]


def published(effects: list[Effect]) -> list[tuple[int, str]]:
    return [
        (effect.command.event, effect.command.subject.rsplit(".", maxsplit=1)[-1])
        for effect in effects
        if isinstance(effect, Call) and isinstance(effect.command, PublishEvent)
    ]


def bound(*events: Any, command: Any = GANG) -> Driver[AgentMachine]:
    """Return an agent that took a bind, saw these events, and has crashed and restarted."""
    decide = agent()
    decide(command)
    for event in events:
        decide(event)
    decide.restart(7)
    return decide


# --- adoption -----------------------------------------------------------------------------------


def test_ranks_that_run_go_on() -> None:
    decide = bound(up(A), up(B))
    assert decide(listed(up(A), up(B))) == []
    assert outcomes(decide(down(A)) + decide(down(B))) == [Outcome.SUCCEEDED]


def test_a_start_that_was_not_seen_is_seen_in_the_list() -> None:
    decide = bound(up(A))
    effects = decide(listed(up(A), up(B)))
    assert effects[:2] == [
        Record(RankUp(token=B, pid=10, start_ticks=7)),
        Record(PartStarted(job="j1", attempt=1, event=3, at=at(3))),
    ]
    assert published(effects) == [(3, "started")]


def test_a_rank_that_never_began_is_started() -> None:
    decide = bound(up(A))
    assert decide(listed(up(A))) == [start(B)]


def test_all_ranks_of_a_bind_whose_calls_were_lost_are_started() -> None:
    decide = bound()
    assert decide(listed()) == [start(A), start(B)]


def test_a_rank_that_ended_meanwhile_is_down() -> None:
    decide = bound(up(A), up(B))
    assert decide(listed(up(A), down(B))) == [Record(RankDown(token=B, code=0)), Call(ForgetRun(B))]


def test_a_rank_that_failed_meanwhile_takes_its_peers_down() -> None:
    decide = bound(up(A), up(B))
    assert decide(listed(down(A, 3), up(B))) == [
        Record(RankDown(token=A, code=3)),
        Call(StopRun(B, PEER_GRACE_S)),
        Call(ForgetRun(A)),
        Call(StopRun(B, PEER_GRACE_S)),
    ]


def test_a_rank_that_vanished_is_mourned() -> None:
    decide = bound(up(A), up(B))
    effects = decide(listed(up(A)))
    assert effects[0] == Record(RankDown(token=B, code=None))
    assert outcomes(decide(down(A, -15))) == [Outcome.UNKNOWN]


def test_after_a_reboot_everything_has_vanished() -> None:
    decide = bound(up(A), up(B))
    effects = decide(listed(), 9)
    assert facts_of(effects)[:2] == [RankDown(token=A, code=None), RankDown(token=B, code=None)]
    assert outcomes(effects) == [Outcome.UNKNOWN]


def test_a_rank_that_never_began_does_not_begin_once_a_peer_failed() -> None:
    decide = bound(down(A, 3))
    effects = decide(listed(), 9)
    assert facts_of(effects)[:1] == [RankDown(token=B, code=None, started=False)]
    assert outcomes(effects) == [Outcome.EXITED]


def test_the_peers_of_a_failed_rank_are_stopped_again() -> None:
    decide = bound(up(A), up(B), down(A, 3))
    assert decide(listed(up(B))) == [Call(StopRun(B, PEER_GRACE_S))]


def test_ranks_that_are_to_stop_are_stopped_again() -> None:
    decide = bound(up(A), up(B), stop(grace_s=2.5))
    assert decide(listed(up(A), up(B))) == [Call(StopRun(A, 2.5)), Call(StopRun(B, 2.5))]


def test_a_rank_that_never_began_does_not_begin_once_it_is_to_stop() -> None:
    decide = bound(stop())
    effects = decide(listed(), 9)
    assert facts_of(effects)[:2] == [
        RankDown(token=A, code=None, started=False, stopped=True),
        RankDown(token=B, code=None, started=False, stopped=True),
    ]
    assert outcomes(effects) == [Outcome.STOPPED]


def test_a_start_first_seen_in_the_list_is_stopped_if_it_is_to_stop() -> None:
    decide = bound(stop())
    assert decide(listed(up(A), down(B, None))) == [
        Record(RankUp(token=A, pid=10, start_ticks=7)),
        Call(StopRun(A, 10.0)),
        Record(RankDown(token=B, code=None, stopped=True)),
        Call(ForgetRun(B)),
        Call(StopRun(A, 10.0)),
    ]


def test_runs_of_parts_that_are_over_or_unknown_are_ended_and_forgotten() -> None:
    decide = bound(down(A), down(B))
    assert decide(listed(up(A), down(B), up("j9.1.0"), down("j9.1.1"))) == [
        Call(StopRun(A, 0.0)),
        Call(ForgetRun(B)),
        Call(StopRun("j9.1.0", 0.0)),
        Call(ForgetRun("j9.1.1")),
    ]


def test_a_rank_known_to_be_down_is_left_alone() -> None:
    decide = bound(up(A), up(B), down(A))
    assert decide(listed(down(A), up(B))) == []


def test_a_rank_started_since_the_restart_is_none_of_the_lists_business() -> None:
    decide = bound(up(A), up(B))
    later = bind("j2", order=2, ranks=plans((2,)))
    decide(later)
    decide(RunStarted("j2.1.0", 12, 7, at(8)))
    assert decide(listed(up(A), up(B))) == []
    assert decide.machine.parts["j2", 1].over is None


def test_a_rank_that_is_still_being_started_is_not_started_again() -> None:
    decide = bound(up(A), up(B))
    decide(bind("j2", order=2))
    assert decide(listed(up(A), up(B))) == []


def test_news_before_the_list_is_not_news_twice() -> None:
    decide = bound(up(A))
    decide(up(B))
    decide(down(A))
    assert decide(listed(up(A), up(B))) == []


def test_a_process_that_comes_up_after_it_was_mourned_is_ended() -> None:
    decide = bound(up(A), up(B))
    decide(listed(up(B)))
    assert decide(up(A)) == [Call(StopRun(A, 0.0))]


# --- the outbox ---------------------------------------------------------------------------------


def test_after_a_restart_everything_that_may_not_have_been_heard_is_told_again() -> None:
    decide = agent()
    decide(GANG)
    decide(up(A))
    decide(up(B))
    decide(RankStats("j1", 1, RankProgress(rank=0, steps=1)))
    decide(stop("j2", order=2))
    effects = decide.restart(7)
    assert effects[0] == Record(AgentStarted(incarnation=2, event=5))
    assert published(effects) == [(5, "joined"), (2, "started"), (3, "stepped"), (4, "exited")]
    assert effects[-1] == Call(ListRuns())
    decide(down(A))
    decide(down(B))
    assert published(decide.restart(8)) == [
        (7, "joined"),
        (2, "started"),
        (3, "stepped"),
        (6, "exited"),
        (4, "exited"),
    ]


def test_events_keep_their_numbers_for_ever() -> None:
    decide = agent()
    decide(GANG)
    decide(RunNotStarted(A, "x"))
    first = decide(RunNotStarted(B, "x"))
    again = decide.restart(7)
    keys = [
        effect.command.key
        for effect in first + again
        if isinstance(effect, Call)
        and isinstance(effect.command, PublishEvent)
        and effect.command.subject.endswith("exited")
    ]
    assert keys == ["id-node-1:2", "id-node-1:2"]


# --- forgetting ---------------------------------------------------------------------------------


def ended(count: int, *, told: bool = True) -> Driver[AgentMachine]:
    """Return an agent with so many parts that are over, orders 1, 2, 3 and so on."""
    decide = agent()
    for number in range(1, count + 1):
        command = bind(f"j{number}", order=number, settled=0)
        decide(command)
        decide(RunNotStarted(f"j{number}.1.0", "x"))
        if told:
            decide(Published(number + 1))
    return decide


def test_parts_that_are_told_and_settled_are_forgotten_together() -> None:
    decide = ended(FORGET_AT_ONCE)
    assert decide(bind("j40", order=40, settled=FORGET_AT_ONCE - 1))[-1] == start_of("j40", 40)
    forgotten = tuple((f"j{number}", 1) for number in range(1, FORGET_AT_ONCE + 1))
    effects = decide(stop("j41", order=41, settled=FORGET_AT_ONCE))
    assert facts_of(effects)[-1] == FloorRaised(
        order=FORGET_AT_ONCE, event=FORGET_AT_ONCE + 2, epoch=1, forgotten=forgotten
    )
    assert list(decide.machine.parts) == [("j40", 1), ("j41", 1)]
    assert decide.machine.told == {}


def start_of(job: str, order: int) -> Call:
    command = bind(job, order=order, settled=FORGET_AT_ONCE - 1)
    return Call(StartRank(f"{job}.1.0", command, command.ranks[0]))


def test_parts_the_stream_does_not_have_are_kept() -> None:
    decide = ended(FORGET_AT_ONCE, told=False)
    decide(bind("j40", order=40, settled=39))
    assert len(decide.machine.parts) == FORGET_AT_ONCE + 1
    for number in range(1, FORGET_AT_ONCE):
        assert decide(Published(number + 1)) == []
    (effect,) = decide(Published(FORGET_AT_ONCE + 1))
    assert isinstance(effect, Record)
    assert isinstance(effect.fact, FloorRaised)
    assert effect.fact.order == 39


def test_after_a_restart_nothing_is_forgotten_before_it_is_told_again() -> None:
    decide = ended(FORGET_AT_ONCE)
    decide.restart()
    decide(bind("j40", order=40, settled=39))
    assert len(decide.machine.parts) == FORGET_AT_ONCE + 1


def test_the_end_of_a_forgotten_part_is_not_told_anew_by_a_stop_that_comes_twice() -> None:
    decide = ended(FORGET_AT_ONCE)
    late = stop("j1", order=41, settled=40)
    decide(late)
    decide(bind("j42", order=42, settled=40))
    assert ("j1", 1) in decide.machine.parts, "the stop is not settled"
    assert decide(late) == []
    others = FORGET_AT_ONCE - 1
    for number in range(50, 50 + others):
        decide(bind(f"j{number}", order=number, settled=49))
        decide(RunNotStarted(f"j{number}.1.0", "x"))
    for number in range(FORGET_AT_ONCE + 2, decide.machine.event + 1):
        decide(Published(number))
    decide(bind("j99", order=99, settled=98))
    assert ("j1", 1) not in decide.machine.parts
    assert decide(late) == []


def test_what_ran_is_forgotten_with_all_it_told() -> None:
    decide = agent()
    for number in range(1, FORGET_AT_ONCE + 1):
        decide(bind(f"j{number}", order=number, settled=number - 1))
        decide(up(f"j{number}.1.0"))
        decide(RankStats(f"j{number}", 1, RankProgress(rank=0, steps=1)))
        decide(down(f"j{number}.1.0"))
        for event in range(3 * number - 1, 3 * number + 2):
            decide(Published(event))
    assert len(decide.machine.told) == 3 * FORGET_AT_ONCE
    decide(stop("j99", order=FORGET_AT_ONCE + 1))
    assert list(decide.machine.parts) == [("j99", 1)]
    assert decide.machine.told == {}


# --- a compacted journal ------------------------------------------------------------------------


def rebuilt(machine: AgentMachine) -> AgentMachine:
    again = AgentMachine(joined())
    for fact in machine.snapshot():
        again.apply(fact)
    again.check()
    return again


@pytest.mark.parametrize(
    "events",
    [
        (),
        (up(A),),
        (up(A), up(B), RankStats("j1", 1, RankProgress(rank=1, steps=3))),
        (up(A), up(B), stop()),
        (up(A), up(B), down(B, 3)),
        (up(A), up(B), down(B, 3), stop(order=5), down(A, -15)),
        (RunNotStarted(B, "x"), down(A, None)),
        (stop("j2", epoch=4), stop("j3", epoch=4, order=9)),
    ],
)
def test_a_snapshot_rebuilds_the_state(events: tuple[Any, ...]) -> None:
    decide = agent()
    decide(GANG)
    for event in events:
        decide(event)
    assert durable(rebuilt(decide.machine)) == durable(decide.machine)


def test_a_snapshot_keeps_the_floors() -> None:
    decide = ended(FORGET_AT_ONCE)
    decide(stop("j41", order=41, settled=40, epoch=6))
    again = rebuilt(decide.machine)
    assert durable(again) == durable(decide.machine)
    assert (again.floor, again.epoch_floor, again.event) == (40, 6, FORGET_AT_ONCE + 2)
