"""How a node's part of an attempt ends: outcomes, peers of a failed rank, progress, reports."""

from typing import Any

import pytest

from skep.machines.agent import (
    PEER_GRACE_S,
    PORT_BUSY,
    AgentMachine,
    ForgetRun,
    PublishEvent,
    RankStats,
    StopRun,
)
from skep.machines.base import Call, Effect, Record, Send
from skep.units import Instant
from skep.wire.facts import PartOver, PartStepped, RankDown, RankUp
from skep.wire.node import MemberExited, MemberStepped, Outcome, RankExit
from skep.wire.reports import Heartbeat, JobProgress, NodeReport, RankProgress
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from tests.kit import TRACE, Driver, agent, at, bind, plans, stop

GANG = bind(ranks=plans((0,), (1,)), world=2)
IDLE = Send(
    "skep.v1.heartbeat.node-1",
    Heartbeat(node="node-1", identity="id-node-1", at=at(7), incarnation=1),
)
BEAT = Send(
    "skep.v1.heartbeat.node-1",
    Heartbeat(node="node-1", identity="id-node-1", at=at(7), incarnation=1, epoch=1),
)


def running(command: Any = GANG) -> Driver[AgentMachine]:
    """Return an agent whose ranks of j1 are all up."""
    decide = agent()
    decide(command)
    for token in decide.machine.parts["j1", 1].ranks:
        decide(RunStarted(token, 10, 7, at(3)))
    return decide


def ends(effects: list[Effect]) -> list[MemberExited]:
    return [
        effect.fact.exited
        for effect in effects
        if isinstance(effect, Record) and isinstance(effect.fact, PartOver)
    ]


def end(decide: Driver[AgentMachine], event: Any) -> tuple[Outcome, str, tuple[RankExit, ...]]:
    (exited,) = ends(decide(event, 9))
    return exited.outcome, exited.detail, exited.ranks


def stats(rank: int = 0, steps: int = 5, job: str = "j1", **fields: Any) -> RankStats:
    attempt = fields.pop("attempt", 1)
    return RankStats(job, attempt, RankProgress(rank=rank, steps=steps, **fields))


# --- outcomes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event, outcome, detail, code",
    [
        (RunExited("j1.1.0", 0, at(8)), Outcome.SUCCEEDED, "", 0),
        (RunExited("j1.1.0", 3, at(8)), Outcome.EXITED, "rank 0: exit status 3", 3),
        (RunExited("j1.1.0", -9, at(8)), Outcome.SIGNALLED, "rank 0: signal 9 (SIGKILL)", -9),
        (
            RunExited("j1.1.0", -15, at(8), exceeded="scratch-exceeded: /tmp is large"),
            Outcome.SIGNALLED,
            "rank 0: signal 15 (SIGTERM), scratch-exceeded: /tmp is large",
            -15,
        ),
        (RunExited("j1.1.0", -63, at(8)), Outcome.SIGNALLED, "rank 0: signal 63 (another)", -63),
        (
            RunExited("j1.1.0", None, at(8)),
            Outcome.UNKNOWN,
            "rank 0 vanished; its end was not seen",
            None,
        ),
    ],
)
def test_how_a_process_ended(
    event: RunExited, outcome: Outcome, detail: str, code: int | None
) -> None:
    ranks = (RankExit(rank=0, code=code),)
    assert end(running(bind()), event) == (outcome, detail, ranks)


@pytest.mark.parametrize(
    "text, outcome, detail",
    [
        ("no /bin/tru", Outcome.NOT_STARTED, "rank 0: no /bin/tru"),
        (f"{PORT_BUSY}20000 is taken", Outcome.PORT_BUSY, "rank 0: 20000 is taken"),
    ],
)
def test_a_process_that_never_came_to_be(text: str, outcome: Outcome, detail: str) -> None:
    decide = agent()
    decide(bind())
    expected = outcome, detail, (RankExit(rank=0, code=None),)
    assert end(decide, RunNotStarted("j1.1.0", text)) == expected


def test_a_process_that_the_node_could_not_begin_is_the_nodes_fault() -> None:
    decide = agent()
    decide(bind())
    text = "log /var/log/j1 cannot be written: No space left on device"
    expected = Outcome.NODE_FAULT, f"rank 0: {text}", (RankExit(rank=0, code=None),)
    assert end(decide, RunNotStarted("j1.1.0", text, of_node=True)) == expected


def test_an_end_that_overtakes_its_start() -> None:
    decide = agent()
    decide(bind())
    assert end(decide, RunExited("j1.1.0", 0, at(8)))[0] is Outcome.SUCCEEDED
    assert decide(RunStarted("j1.1.0", 10, 7, at(3))) == [Call(StopRun("j1.1.0", 0.0))]


def test_an_end_told_again_is_only_forgotten_again() -> None:
    decide = running(bind())
    decide(RunExited("j1.1.0", 0, at(8)))
    assert decide(RunExited("j1.1.0", 0, at(8))) == [Call(ForgetRun("j1.1.0"))]


# --- the peers of a failed rank -----------------------------------------------------------------


def test_when_one_rank_fails_the_others_are_stopped_and_the_first_failure_tells() -> None:
    decide = running()
    assert decide(RunExited("j1.1.1", 3, at(8)), 8) == [
        Record(RankDown(token="j1.1.1", code=3)),
        Call(StopRun("j1.1.0", PEER_GRACE_S)),
        Call(ForgetRun("j1.1.1")),
    ]
    ranks = (RankExit(rank=0, code=-15), RankExit(rank=1, code=3))
    exited = MemberExited(
        node="node-1",
        identity="id-node-1",
        job="j1",
        attempt=1,
        at=at(9),
        outcome=Outcome.EXITED,
        detail="rank 1: exit status 3",
        ranks=ranks,
    )
    assert decide(RunExited("j1.1.0", -15, at(9)), 9) == [
        Record(RankDown(token="j1.1.0", code=-15)),
        Record(PartOver(event=3, exited=exited)),
        Call(PublishEvent(3, "skep.v1.node.node-1.exited", "id-node-1:3", exited)),
        Call(ForgetRun("j1.1.0")),
    ]


def test_a_rank_that_ends_well_leaves_the_others_alone() -> None:
    decide = running()
    assert decide(RunExited("j1.1.1", 0, at(8))) == [
        Record(RankDown(token="j1.1.1", code=0)),
        Call(ForgetRun("j1.1.1")),
    ]
    assert end(decide, RunExited("j1.1.0", 0, at(9)))[0] is Outcome.SUCCEEDED


def test_a_rank_that_comes_up_after_a_peer_failed_is_stopped() -> None:
    decide = agent()
    decide(GANG)
    assert decide(RunNotStarted("j1.1.0", "no such file")) == [
        Record(RankDown(token="j1.1.0", code=None, started=False, detail="no such file")),
        Call(StopRun("j1.1.1", PEER_GRACE_S)),
    ]
    assert decide(RunStarted("j1.1.1", 10, 7, at(3))) == [
        Record(RankUp(token="j1.1.1", pid=10, start_ticks=7)),
        Call(StopRun("j1.1.1", PEER_GRACE_S)),
    ]
    assert end(decide, RunExited("j1.1.1", -15, at(9)))[:2] == (
        Outcome.NOT_STARTED,
        "rank 0: no such file",
    )


# --- progress -----------------------------------------------------------------------------------


def test_the_first_mini_batch_is_told_once() -> None:
    decide = running(bind(trace=TRACE))
    assert decide(stats(steps=0)) == []
    fact = PartStepped(job="j1", attempt=1, event=3, at=at(6))
    message = MemberStepped(
        node="node-1", identity="id-node-1", job="j1", attempt=1, at=at(6), trace=TRACE
    )
    assert decide(stats(steps=2, last_step_at=at(6))) == [
        Record(fact),
        Call(PublishEvent(3, "skep.v1.node.node-1.stepped", "id-node-1:3", message)),
    ]
    assert decide(stats(steps=3)) == []


def test_a_mini_batch_without_a_time_is_dated_when_it_is_heard_of() -> None:
    decide = running(bind())
    effects = decide(stats(steps=1), 6)
    assert effects[0] == Record(PartStepped(job="j1", attempt=1, event=3, at=at(6)))


@pytest.mark.parametrize("event", [stats(job="j2"), stats(attempt=2), stats(rank=5)])
def test_progress_of_something_else_is_ignored(event: RankStats) -> None:
    decide = running(bind())
    assert decide(event) == []
    assert decide.machine.progress == {}


def test_progress_after_the_end_is_ignored() -> None:
    decide = running(bind())
    decide(RunExited("j1.1.0", 0, at(8)))
    assert decide(stats()) == []
    decide(stop("j2"))
    assert decide(stats(job="j2")) == []


def test_the_end_tells_the_slowest_rank() -> None:
    decide = running()
    decide(stats(0, steps=12, step_ns=5))
    decide(stats(1, steps=10, step_ns=7))
    decide(RunExited("j1.1.0", 0, at(8)))
    (exited,) = ends(decide(RunExited("j1.1.1", 0, at(8))))
    assert (exited.steps, exited.step_ns) == (10, 7)
    assert decide.machine.progress == {}


# --- reports ------------------------------------------------------------------------------------


def report(*ranks: RankProgress, world: int = 2, trace: str = "") -> Send:
    job = JobProgress(job="j1", attempt=1, world=world, ranks=ranks, trace=trace)
    return Send("skep.v1.report.node-1", NodeReport(node="node-1", at=at(7), jobs=(job,)))


def test_an_idle_agent_says_every_second_that_it_lives() -> None:
    decide = agent()
    assert decide.tick(7) == [IDLE]
    assert decide.machine.wake_at() == at(8)


def test_a_report_holds_every_rank_that_has_reported() -> None:
    decide = running()
    assert decide.tick(7) == [BEAT]
    first = RankProgress(rank=0, steps=5, step_ns=3, last_step_at=Instant(4))
    decide(RankStats("j1", 1, first))
    assert decide.tick(7) == [BEAT, report(first)]
    later, second = RankProgress(rank=0, steps=9), RankProgress(rank=1, steps=8, memory=3)
    decide(RankStats("j1", 1, second))
    decide(RankStats("j1", 1, later))
    assert decide.tick(7) == [BEAT, report(later, second)]


def test_a_rank_that_is_down_is_left_out_of_the_report() -> None:
    decide = running()
    decide(stats(0))
    decide(stats(1))
    decide(RunExited("j1.1.1", 0, at(7)))
    assert decide.tick(7) == [BEAT, report(RankProgress(rank=0, steps=5))]
    decide(RunExited("j1.1.0", 0, at(7)))
    assert decide.tick(7) == [BEAT]


def test_nothing_is_reported_of_a_job_whose_only_reporting_rank_is_down() -> None:
    decide = running()
    decide(stats(1))
    decide(RunExited("j1.1.1", 0, at(7)))
    assert decide.tick(7) == [BEAT]
