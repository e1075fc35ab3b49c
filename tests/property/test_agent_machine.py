"""The agent over a runtime that outlives it: crashes, reboots, late and doubled commands."""

import itertools
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skep.machines.agent import (
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
from skep.wire.commands import BindJob, ClearNode, StopJob
from skep.wire.facts import PartOver, RankUp, StopTaken
from skep.wire.node import MemberExited, MemberStarted, NodeCleared
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from tests.kit import T0, Driver, agent, assert_durable_alike, bind, plans, stop

HAPPENINGS = [
    *["carry_out"] * 6,
    *["answer"] * 6,
    *["new_bind", "exit", "published_all"] * 2,
    *[
        "new_stop",
        "new_clear",
        "old_command",
        "stats",
        "settle",
        "crash",
        "reboot",
        "not_started",
        "tick",
    ],
]
"""What may happen, as often as it is named."""

Key = tuple[str, int]


class Runtime:
    """Processes that live on when the agent dies; the ends of runs are kept until forgotten."""

    def __init__(self) -> None:
        self.alive: dict[str, RunStarted] = {}
        self.ended: dict[str, RunExited] = {}
        self.starts: dict[str, int] = {}

    def start(self, token: str) -> RunStarted:
        if token not in self.alive and token not in self.ended:
            self.starts[token] = self.starts.get(token, 0) + 1
            self.alive[token] = RunStarted(token, 100 + len(self.starts), 1, T0)
        return self.alive.get(token) or RunStarted(token, 99, 1, T0)

    def end(self, token: str, code: int | None, *, asked: bool = False) -> RunExited | None:
        if self.alive.pop(token, None) is None:
            return None
        self.ended[token] = RunExited(token, code, T0, asked=asked)
        return self.ended[token]


class Agent(RuleBasedStateMachine):
    """`calls` are under way and `answers` on their way: both are lost in a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.early = patch("skep.machines.agent.machine.FORGET_AT_ONCE", 2)
        self.early.start()
        self.decide: Driver[AgentMachine] = agent()
        self.runtime = Runtime()
        self.calls: list[Any] = []
        self.answers: list[Any] = []
        self.stream: dict[int, Any] = {}
        self.sent: list[BindJob | StopJob | ClearNode] = []
        self.binds: dict[Key, BindJob] = {}
        self.order = 0
        self.open: dict[Key, int] = {}

    @initialize()
    def begin(self) -> None:
        self.take(self.decide.restart())

    def take(self, effects: list[Effect]) -> None:
        self.calls += [effect.command for effect in effects if isinstance(effect, Call)]
        for effect in effects:
            if isinstance(effect, Record) and isinstance(effect.fact, PartOver):
                exited = effect.fact.exited
                tokens = [f"{exited.job}.{exited.attempt}.{rank.rank}" for rank in exited.ranks]
                assert not [token for token in tokens if token in self.runtime.alive]

    @rule(what=st.sampled_from(HAPPENINGS), data=st.data())
    def happen(self, what: str, data: st.DataObject) -> None:
        """Let one thing happen: one rule, so that none is switched off for a whole run."""
        getattr(self, what)(data)

    # --- the allocator ---------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """Every order up to here has been answered."""
        return min(self.open.values(), default=self.order + 1) - 1

    def new_bind(self, data: st.DataObject) -> None:
        self.order += 1
        job, ranks = f"j{self.order}", data.draw(st.integers(1, 3))
        devices = [4 * self.order + i for i in range(ranks)]
        beside: tuple[str, ...] = ()
        if data.draw(st.booleans()) and self.binds:
            # Packed: on a device of an earlier job, in most cases one that the order names.
            other = data.draw(st.sampled_from(list(self.binds.values())))
            devices[0] = other.ranks[0].devices[0]
            beside = (other.job, *other.beside) if data.draw(st.integers(0, 3)) else ()
        self.open[job, 1] = self.order
        command = bind(
            job,
            order=self.order,
            settled=self.settled,
            world=ranks,
            beside=beside,
            ranks=plans(*[(each,) for each in devices]),
        )
        self.binds[job, 1] = command
        self.send(command, data)

    def new_stop(self, data: st.DataObject) -> None:
        if self.open:
            job, attempt = data.draw(st.sampled_from(list(self.open)))
            self.order += 1
            self.open[job, attempt] = self.order
            self.send(stop(job, attempt, self.order, settled=self.settled), data)

    def new_clear(self, data: st.DataObject) -> None:
        """The name is this agent's once more: what it had is given up."""
        self.open.clear()
        self.order += 1
        self.send(ClearNode(order=self.order, epoch=1, node="node-1", identity="id-node-1"), data)

    def send(self, command: BindJob | StopJob | ClearNode, data: st.DataObject) -> None:
        self.sent.append(command)
        if data.draw(st.booleans()):
            self.take(self.decide(command))

    def old_command(self, data: st.DataObject) -> None:
        """A command arrives late, or once more."""
        if self.sent:
            self.take(self.decide(data.draw(st.sampled_from(self.sent))))

    def settle(self, data: st.DataObject) -> None:
        """The allocator reads the stream, and its next command says what is settled."""
        for message in self.stream.values():
            if isinstance(message, MemberExited):
                self.open.pop((message.job, message.attempt), None)
            elif isinstance(message, MemberStarted):
                key = message.job, message.attempt
                if key in self.open and self.open[key] == self.binds[key].order:
                    del self.open[key]

    # --- the runtime and the stream --------------------------------------------------------------

    def carry_out(self, data: st.DataObject) -> None:
        """One call that is under way reaches its adapter, in any order."""
        if self.calls:
            self.carry(self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1))))

    def carry(self, call: Any) -> None:
        match call:
            case StartRank():
                self.answers.append(self.runtime.start(call.token))
            case StopRun():
                self.told(self.runtime.end(call.token, -15, asked=True))
            case ForgetRun():
                self.runtime.ended.pop(call.token, None)
            case ListRuns():
                alive, ended = self.runtime.alive.values(), self.runtime.ended.values()
                self.answers.append(RunsListed((*alive, *ended)))
            case PublishEvent():
                assert self.stream.setdefault(call.event, call.message) == call.message
                self.answers.append(Published(call.event))
            case _:
                raise AssertionError(call)

    def told(self, exited: RunExited | None) -> None:
        if exited is not None:
            self.answers.append(exited)

    def answer(self, data: st.DataObject) -> None:
        """One answer arrives, in any order, perhaps an end once more."""
        if self.answers:
            event = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
            self.take(self.decide(event))
            if isinstance(event, RunExited):
                self.take(self.decide(event))

    def not_started(self, data: st.DataObject) -> None:
        """A call to start a rank is answered by a refusal."""
        starts = [call for call in self.calls if isinstance(call, StartRank)]
        if starts:
            call = data.draw(st.sampled_from(starts))
            self.calls.remove(call)
            of_node = data.draw(st.booleans())
            self.take(self.decide(RunNotStarted(call.token, "no room", of_node=of_node)))

    def published_all(self, data: st.DataObject) -> None:
        for call in [each for each in self.calls if isinstance(each, PublishEvent)]:
            self.calls.remove(call)
            self.carry(call)

    def exit(self, data: st.DataObject) -> None:
        """A process ends by itself."""
        if self.runtime.alive:
            token = data.draw(st.sampled_from(list(self.runtime.alive)))
            self.told(self.runtime.end(token, data.draw(st.sampled_from([0, 0, 3, -9]))))

    def stats(self, data: st.DataObject) -> None:
        if self.runtime.alive:
            token = data.draw(st.sampled_from(list(self.runtime.alive)))
            job, attempt, rank = token.rsplit(".", 2)
            progress = RankProgress(rank=int(rank), steps=data.draw(st.integers(0, 2)))
            self.take(self.decide(RankStats(job, int(attempt), progress)))

    def tick(self, data: st.DataObject) -> None:
        self.take(self.decide.tick())

    # --- crashes ----------------------------------------------------------------------------------

    def crash(self, data: st.DataObject) -> None:
        """The agent dies and begins again; the runtime tells ends that were not forgotten."""
        self.calls, self.answers = [], list(self.runtime.ended.values())
        self.take(self.decide.restart())

    def reboot(self, data: st.DataObject) -> None:
        """The whole node dies, and with it every process and what the runtime knew."""
        self.runtime.alive, self.runtime.ended = {}, {}
        # A rank whose start nobody learnt of may start again; it cannot run beside itself.
        known = [fact.token for fact in self.decide.facts if isinstance(fact, RankUp)]
        self.runtime.starts = {token: 1 for token in self.runtime.starts if token in known}
        self.crash(data)

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert all(count == 1 for count in self.runtime.starts.values()), self.runtime.starts

    @invariant()
    def nothing_runs_whose_end_was_told(self) -> None:
        for message in self.stream.values():
            if isinstance(message, MemberExited):
                ours = f"{message.job}.{message.attempt}."
                assert not [token for token in self.runtime.alive if token.startswith(ours)]

    @invariant()
    def nobody_is_on_a_device_beside_whom_its_order_does_not_name(self) -> None:
        there: dict[int, list[BindJob]] = {}
        for token in self.runtime.alive:
            job, attempt, rank = token.rsplit(".", 2)
            command = self.binds[job, int(attempt)]
            there.setdefault(command.ranks[int(rank)].devices[0], []).append(command)
        for commands in there.values():
            for one, other in itertools.combinations(commands, 2):
                assert one.job in other.beside or other.job in one.beside, (one, other)

    @invariant()
    def nothing_runs_that_was_cleared(self) -> None:
        cleared = [each.order for each in self.stream.values() if isinstance(each, NodeCleared)]
        for token in self.runtime.alive:
            job, attempt, _ = token.rsplit(".", 2)
            assert self.binds[job, int(attempt)].order > max(cleared, default=0), token

    @invariant()
    def a_snapshot_rebuilds_the_machine(self) -> None:
        again = self.decide.make()
        for fact in self.decide.machine.snapshot():
            again.apply(fact)
        assert_durable_alike(again, self.decide.machine)

    def teardown(self) -> None:
        """Once nothing more goes wrong, every part that was taken is over and told, once."""
        try:
            self.heal()
        finally:
            self.early.stop()

    def heal(self) -> None:
        self.settle_down()
        for key, part in self.decide.machine.parts.items():
            assert part.grace_s is None or part.over is not None, f"{key} was not stopped"
        for token in list(self.runtime.alive):
            self.told(self.runtime.end(token, 0))
        self.settle_down()
        assert not self.runtime.alive
        ends = [each for each in self.stream.values() if isinstance(each, MemberExited)]
        keys = [(each.job, each.attempt) for each in ends]
        assert len(keys) == len(set(keys))
        for key, part in self.decide.machine.parts.items():
            assert part.over is not None, key
            assert key in keys, key
        stopped = {(f.job, f.attempt) for f in self.decide.facts if isinstance(f, StopTaken)}
        assert stopped <= set(keys)

    def settle_down(self) -> None:
        """Let every call and every answer reach its end."""
        for _ in range(100):
            for call in [self.calls.pop(0) for _ in range(len(self.calls))]:
                self.carry(call)
            for event in [self.answers.pop(0) for _ in range(len(self.answers))]:
                self.take(self.decide(event))
        assert not self.calls + self.answers


TestAgent = Agent.TestCase
TestAgent.settings = settings(stateful_step_count=50)
