"""Jobs that hang: what an agent says of them, and when the allocator begins them again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.ledger.job_state import State
from skep.machines.agent import AgentMachine, RankStats
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect, Send
from skep.units import seconds
from skep.wire.commands import StopJob
from skep.wire.facts import JobRequeued, JobStopping
from skep.wire.held_up import GangHeldUp
from skep.wire.node import Outcome
from skep.wire.parse import parse_spec
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat, HungPart, RankProgress, RankStands
from skep.wire.standing import Standing
from tests.change_kit import GANG
from tests.change_kit import running as agent
from tests.kit import T0, Driver, admitted, allocator, at, bind, exited, joined, plans, started
from tests.unit.test_allocator_changes import known, of

WAITS = Standing(line="t.py:9 in step", collective="gloo:all_reduce", entered=6, waits=True)
LOADS = Standing(line="t.py:4 in load", collective="gloo:all_reduce", entered=5)


def running(*nodes: str, limit_s: int | None = 300) -> Driver[AllocatorMachine]:
    """Return an allocator that runs j1, which may make no mini-batch for so long."""
    decide = allocator(*(joined(node) for node in nodes))
    fact = admitted(1, workers=len(nodes), gpus=4)
    decide(_with(fact, limit_s))
    for node in nodes:
        decide(started("j1", node=node))
        decide(known("j1", node, ()))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    return decide


def _with(event: Any, limit_s: int | None) -> Any:
    (fact,) = event.facts
    spec = msgspec.structs.replace(fact.spec, restart_hung=limit_s)
    return msgspec.structs.replace(event, facts=(msgspec.structs.replace(fact, spec=spec),))


def hung(node: str, rank: int, stands: Standing | None, silent_s: float = 300.0) -> Heartbeat:
    part = HungPart(
        job="j1",
        attempt=1,
        silent_ns=seconds(silent_s),
        ranks=(RankStands(rank=rank, stands=stands),),
    )
    return Heartbeat(node=node, identity=f"id-{node}", at=T0, hung=(part,))


def test_a_gang_that_hangs_is_begun_again_and_the_fact_says_what_kept_it() -> None:
    decide = running("node-1", "node-2")
    assert decide(hung("node-1", 0, WAITS, 299)) == []
    assert decide(hung("node-1", 0, WAITS), 10) == []
    assert decide(hung("node-2", 1, LOADS), 16) == [], "what node-1 said is no longer fresh"
    effects = decide(hung("node-1", 0, WAITS), 17)
    (stopping,) = of(effects, JobStopping)
    assert (stopping.why, stopping.detail) == (
        Reason.HUNG,
        "no mini-batch for 300 s: rank 1 has not entered collective 6 (gloo:all_reduce), in which "
        "1 rank waits; at t.py:4 in load (rank-behind, on node-2)",
    )
    (held,) = of(effects, GangHeldUp)
    assert (held.why, held.rank, held.node) == (Reason.RANK_HUNG, 1, "node-2")
    stops = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, StopJob)]
    assert len(stops) == 2
    for node in ("node-1", "node-2"):
        effects = decide(exited("j1", node=node, outcome=Outcome.STOPPED))
    assert decide.machine.state.held_up.now == {}, "the attempt is over"
    (again,) = of(effects, JobRequeued)
    assert (again.why, again.counted, again.detail) == (Reason.HUNG, False, stopping.detail)


@pytest.mark.parametrize("limit_s", [None, 600])
def test_a_job_whose_spec_does_not_want_it_stays(limit_s: int | None) -> None:
    decide = running("node-1", limit_s=limit_s)
    assert decide(hung("node-1", 0, LOADS)) == []
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def said(effects: list[Effect]) -> list[tuple[HungPart, ...]]:
    beats = [each.message for each in effects if isinstance(each, Send)]
    return [each.hung for each in beats if isinstance(each, Heartbeat)]


def test_an_agent_says_which_part_has_stopped_making_mini_batches() -> None:
    command = bind(ranks=plans((0,), (1,)), world=2, hung_s=60)
    decide: Driver[AgentMachine] = agent(command, can=None)
    decide(RankStats("j1", 1, RankProgress(rank=1, steps=0)))
    assert said(decide.tick(2)) == [()], "a rank that never made one may be a server"
    done = RankProgress(rank=0, steps=9, step_ns=10**9, last_step_at=at(10), stands=LOADS)
    decide(RankStats("j1", 1, done))
    assert said(decide.tick(69)) == [()]
    expected = HungPart(
        job="j1", attempt=1, silent_ns=seconds(60), ranks=(RankStands(rank=0, stands=LOADS),)
    )
    assert said(decide.tick(70)) == [(expected,)]
    decide(RankStats("j1", 1, msgspec.structs.replace(done, steps=10, last_step_at=at(70.5))))
    assert said(decide.tick(71)) == [()]


def test_nobody_is_told_of_a_job_whose_spec_does_not_want_it() -> None:
    decide: Driver[AgentMachine] = agent(GANG, can=None)
    done = RankProgress(rank=0, steps=9, step_ns=10**9, last_step_at=at(1))
    decide(RankStats("j1", 1, done))
    assert said(decide.tick(900)) == [()]


@pytest.mark.parametrize("wrong", [59, "59s", "soon", "2y", 10**9])
def test_a_time_that_cannot_be_is_refused(wrong: object) -> None:
    spec = {"name": "a", "vc": "nlp", "command": ["true"], "restart_hung": wrong}
    found = parse_spec(msgspec.json.encode(spec))
    assert not hasattr(found, "name"), found
    assert "$.restart_hung" in str(found)
