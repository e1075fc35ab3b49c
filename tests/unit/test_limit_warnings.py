"""The signal before the time limit: what the allocator decides, and what an agent does."""

from typing import Any

import pytest

from skep.machines.agent import RunSignalled, RunsListed, RunThawed, SignalRun
from skep.machines.allocator import AllocatorMachine
from skep.wire.changes import AskCheckpoint, AskResume, AskSuspend, Goal, JobChanged, JobChanging
from skep.wire.commands import Warn as WarnChange
from skep.wire.node import Manner, Outcome
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import Limits, Warn
from tests.change_kit import ONE, TWO, answer, calls, change, up
from tests.change_kit import running as agent
from tests.kit import T0, Driver, at, exited, heartbeat, started
from tests.unit.test_allocator_changes import ask, changed, ends, of, running, told

WARN = Warn(signal="USR1", before=20)


def warned(decide: Driver[AllocatorMachine], second: float) -> list[Any]:
    """Return the warnings that begin by a tick at a second."""
    for node in decide.machine.state.nodes:
        decide(heartbeat(node), second)
    return [fact for fact in of(decide.tick(second), JobChanging) if fact.goal is Goal.WARN]


def limited(*nodes: str) -> Driver[AllocatorMachine]:
    """Return an allocator that runs j1, with a limit of 60 s from second 1 or 2 on."""
    return running(*(nodes or ("node-1",)), limits=Limits(time=60, warn=WARN))


def test_every_node_is_told_once_before_the_limit() -> None:
    decide = limited("node-1", "node-2")
    began = (decide.machine.state.jobs["j1"].ran_at - T0) / 1e9
    assert warned(decide, began + 39) == []
    for node in ("node-1", "node-2"):
        decide(heartbeat(node), began + 39.9)
    effects = decide.tick(began + 40)
    commands = told(effects)
    assert [(each.node, each.change) for each in commands] == [
        ("node-1", WarnChange(signal="USR1")),
        ("node-2", WarnChange(signal="USR1")),
    ]
    (fact,) = of(effects, JobChanging)
    assert (fact.why, fact.detail) == (Reason.TIME_LIMIT_NEAR, "USR1 20 s before the limit of 60 s")
    decide(changed(commands[0]))
    assert ends(decide(changed(commands[1]))) == [(Goal.WARN, "done")]
    decide.restart(began + 41)
    assert warned(decide, began + 50) == []


def test_it_waits_while_the_job_is_suspended_and_counts_no_such_time() -> None:
    decide = limited()
    (command,) = told(decide(ask(2, AskSuspend(job="j1")), 20))
    decide(changed(command), 20)
    assert warned(decide, 45) == warned(decide, 100) == []
    (command,) = told(decide(ask(3, AskResume(job="j1")), 120))
    decide(changed(command), 120)
    assert warned(decide, 135) == []
    assert len(warned(decide, 146)) == 1


def test_it_waits_for_the_end_of_another_change() -> None:
    decide = limited()
    (command,) = told(decide(ask(2, AskCheckpoint(job="j1")), 40))
    assert warned(decide, 50) == []
    effects = decide(changed(command), 51)
    assert [fact.goal for fact in of(effects, JobChanging)] == [Goal.WARN]


def test_what_a_node_could_not_do_is_told() -> None:
    decide = limited()
    decide(heartbeat(), 50)
    (command,) = told(decide.tick(50))
    done = changed(command, Manner.UNCHANGED, detail="j1.1.0: none of its processes has a handler")
    (fact,) = of(decide(done), JobChanged)
    assert (fact.result, fact.detail) == (
        "undone",
        "node-1: j1.1.0: none of its processes has a handler",
    )
    assert warned(decide, 55) == []


def test_another_attempt_is_warned_anew() -> None:
    decide = running("node-1", limits=Limits(time=60, warn=WARN, retries=1))
    assert len(warned(decide, 50)) == 1
    again = AllocatorMachine()
    for piece in decide.machine.snapshot():
        again.apply(piece)
    assert again.state.jobs["j1"].warned
    decide(exited("j1", outcome=Outcome.EXITED), 51)
    decide(started("j1", 2, at=at(52)), 52)
    assert warned(decide, 90) == []
    assert len(warned(decide, 92)) == 1


def test_an_agent_gives_the_signal_to_each_rank_and_answers() -> None:
    decide = agent()
    assert calls(decide(change(WarnChange(signal="USR1"), order=9))) == [
        SignalRun(ONE, "USR1", 9),
        SignalRun(TWO, "USR1", 9),
    ]
    decide(RunSignalled(ONE))
    assert answer(decide(RunSignalled(TWO))).manner is Manner.BOUNDARY
    decide(change(WarnChange(signal="USR1"), order=10))
    decide(RunSignalled(ONE, "j1.1.0: no handler"))
    told = answer(decide(RunSignalled(TWO)))
    assert (told.manner, told.detail) == (Manner.UNCHANGED, "j1.1.0: no handler")


def test_an_agent_that_comes_back_asks_again_by_the_same_order() -> None:
    decide = agent(can=())
    decide(change(WarnChange(signal="USR1"), order=9))
    decide.restart(5)
    decide(RunsListed((up(ONE), up(TWO))))
    decide(RunThawed(ONE))
    assert calls(decide(RunThawed(TWO))) == [SignalRun(ONE, "USR1", 9), SignalRun(TWO, "USR1", 9)]


@pytest.mark.parametrize(
    "limits, line",
    [
        (
            {"warn": {"before": "5m"}},
            "$.limits.warn: `warn` is a signal before the time limit, and the job has none "
            "(set `limits.time` too)",
        ),
        (
            {"time": "1m", "warn": {"before": "1m"}},
            "$.limits.warn.before: `before` must be less than `limits.time`: 60 s of 60 s ()",
        ),
        (
            {"time": "1h", "warn": {"before": "5x"}},
            "$.limits.warn.before: `before` must be seconds, or text such as `90s`, `5m`, up to a "
            "year ()",
        ),
        (
            {"time": "1h", "warn": {"before": 60, "signal": "SIGUSR1"}},
            "$.limits.warn.signal: `signal` must be one of USR1, USR2, TERM, INT, HUP, QUIT, ALRM, "
            "URG, WINCH, CONT (did you mean `USR1`?)",
        ),
        ({"time": "1h", "warn": {"signal": "USR1"}}, "$.limits.warn.before: `before` is required"),
        ({"time": "1h", "warn": {"before": 60, "sig": 1}}, "$.limits.warn.sig: unknown key `sig`"),
    ],
)
def test_a_warning_that_cannot_be_is_refused(limits: dict[str, Any], line: str) -> None:
    problems = parse_tree({"name": "a", "vc": "v", "command": "true", "limits": limits})
    assert isinstance(problems, list)
    (one,) = problems
    assert f"{one.path}: {one.text} ({one.suggestion})".startswith(line)


def test_times_are_seconds_once_read() -> None:
    limits = {"time": 7200, "warn": {"before": "5m", "signal": "TERM"}}
    spec = parse_tree({"name": "a", "vc": "v", "command": "true", "limits": limits})
    assert not isinstance(spec, list)
    assert spec.limits == Limits(time=7200, warn=Warn(before=300, signal="TERM"))
