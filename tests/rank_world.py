"""One node in memory: an agent's machine, process trees that can be frozen, and ranks that train.

The ranks answer as the job's side does: orders fence, what stands stays standing, a connection that
is gone comes back with hello, can and how the rank stands. They are a gang: none begins a
mini-batch before all have ended the one before, so that one which stands alone stops the others.
A rank may be several processes, with a connection each and frozen together.
Everything happens one thing at a time, in an order drawn from a generator; time passes only while
nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from skep.machines.agent import (
    AgentMachine,
    ForgetRun,
    FreezeRun,
    ListRuns,
    OpenStore,
    Published,
    PublishEvent,
    RankSaid,
    RankStats,
    RunFrozen,
    RunsListed,
    RunThawed,
    StartRank,
    StopRun,
    StoreOpened,
    TellRank,
    ThawRun,
)
from skep.machines.base import Call, Effect
from skep.units import after, seconds
from skep.wire import talk
from skep.wire.commands import BindJob, Change, ChangeJob
from skep.wire.node import MemberChanged, MemberExited
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunStarted
from tests.kit import T0, Driver, agent

STEP_NS = seconds(0.2)
TURNS_MAX = 20_000
"""What nothing here takes: beyond it, something waits for ever."""


class Rank:
    """One training process: the job's side of the protocol, without the training."""

    def __init__(
        self,
        token: str,
        command: BindJob,
        rank: int,
        can: tuple[str, ...],
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.token, self.rank, self.can = token, rank, can
        self.part, self.parts = part, parts
        self.job, self.attempt = command.job, command.attempt
        self.steps = 0
        self.order = -1
        self.kinds: list[str] = []
        self.answers: list[Any] = []
        self.pending: list[Any] = []
        self.stands: Any = None
        self.outbox: list[Any] = []
        self.inbox: list[Any] = []
        self.connected = False
        self.frozen = False
        self.share = command.share
        self.joining = command.awaits.startswith("generation-")
        if command.awaits:
            self.stands = self.made(talk.Ready, port=9)
            self.outbox.append(self.stands)

    def load(self) -> None:
        """Have the state of the rank that this one succeeds."""
        self.steps, self.stands = 3, self.made(talk.Loaded, step=3)
        self.outbox.append(self.stands)

    def made(self, kind: type[Any], **fields: Any) -> Any:
        who = {"job": self.job, "attempt": self.attempt, "rank": self.rank, "part": self.part}
        return kind(**who, **fields)

    def connect(self) -> None:
        self.connected = True
        first = [self.made(talk.Hello, pid=1, token=self.token, parts=self.parts)]
        if self.can:
            first.append(self.made(talk.Can, tier="cooperative", can=self.can))
        if self.stands is not None:
            first.append(self.stands)
        self.outbox = first + [one for one in self.outbox if one is not self.stands]

    def say(self, kind: type[Any], **fields: Any) -> Any:
        message = self.made(kind, **fields)
        if fields.get("order") == self.order:
            self.answers.append(message)
        self.outbox.append(message)
        return message

    def hear(self, message: Any) -> None:
        kind = message.__struct_config__.tag
        if message.order < self.order:
            return
        if message.order == self.order and kind in self.kinds:
            self.outbox += self.answers
            return
        if message.order > self.order:
            self.order, self.kinds, self.answers, self.pending = message.order, [], [], []
        self.kinds.append(kind)
        match message:
            case talk.ResumeRank() if self.stands is not None and not self.joining:
                self.stands = None
                self.say(talk.Resumed, order=message.order, step=self.steps, pause_ns=1)
            case talk.ReleaseRank() if self.stands is not None and not self.joining:
                self.say(talk.Released, order=message.order, moved=10, residue=1)
            case talk.ResumeRank() | talk.ReleaseRank():
                self.say(talk.Failed, order=message.order, what=kind, error="not now")
            case talk.ShareRank():
                self.share = message.share
                self.say(talk.Shared, order=message.order, share=message.share, used=10)
            case talk.RescaleRank() if self.joining:
                self.joining, self.stands = False, None
                self.steps = message.step
                self.say(talk.Rescaled, order=message.order, generation=message.generation)
            case _ if self.stands is not None and isinstance(message, talk.SuspendRank):
                self.stands = self.say(talk.Suspended, order=message.order, step=self.steps)
            case talk.MoveRank() if self.stands is not None:
                self.stands = self.say(talk.Sent, order=message.order, step=self.steps, bytes=10)
            case _ if message.step and self.steps >= message.step:
                self.say(talk.Past, order=message.order, step=self.steps)
            case _:
                self.pending.append(message)

    def boundary(self) -> bool:
        """End a mini-batch and do what is due; return whether the rank leaves its gang."""
        self.steps += 1
        due = [one for one in self.pending if one.step <= self.steps]
        self.pending = [one for one in self.pending if one.step > self.steps]
        for message in due:
            common: dict[str, Any] = {"order": message.order, "step": self.steps}
            match message:
                case _ if message.step not in {0, self.steps}:
                    self.say(talk.Past, **common)
                case talk.SuspendRank():
                    self.stands = self.say(talk.Suspended, **common)
                case talk.MoveRank():
                    self.stands = self.say(talk.Sent, bytes=10, **common)
                case talk.CheckpointRank():
                    self.say(talk.Checkpointed, bytes=10, path=message.path, **common)
                case talk.RescaleRank():
                    self.say(talk.Rescaled, generation=message.generation, **common)
                    return bool(message.leaves)
                case _:
                    raise AssertionError(message)
        return False


class World:
    """The node, `parts` processes in each rank; `story` is what happened, to read of a failure."""

    def __init__(self, command: BindJob, can: tuple[str, ...], seed: int, parts: int = 1) -> None:
        self.command, self.can, self.rng, self.parts = command, can, Random(seed), parts
        self.decide: Driver[AgentMachine] = agent()
        self.decide.thorough = False
        self.ranks: dict[str, Rank] = {}
        self.ended: dict[str, RunExited] = {}
        self.calls: list[Any] = []
        self.answers: list[Any] = []
        self.stream: dict[int, Any] = {}
        self.told: list[MemberChanged] = []
        self.order = command.order
        self.turns = 0
        self.story: list[str] = []
        self.take(self.decide(RunsListed(())))
        self.send(command)

    # --- what tests do ---------------------------------------------------------------------------

    def send(self, event: Any) -> None:
        self.take(self.decide(event))

    def ask(self, change: Change, deadline_ms: int = 20_000) -> ChangeJob:
        """Return the next command, not sent."""
        self.order += 1
        one = self.command
        return ChangeJob(
            order=self.order,
            epoch=1,
            settled=0,
            node=one.node,
            change=change,
            identity=one.identity,
            job=one.job,
            attempt=one.attempt,
            deadline_ms=deadline_ms,
        )

    def run(self, until: Callable[[], bool], command: ChangeJob | None = None) -> None:
        """Let things happen until something holds; a command is repeated meanwhile."""
        while not until():
            self.turn(command)

    def changed(self, change: Change, **more: Any) -> MemberChanged | None:
        """Have a change done; return its answer, None if the part ended instead."""
        command = self.ask(change, **more)
        self.send(command)
        self.run(lambda: self.answer_to(command) is not None or self.exited is not None, command)
        return self.answer_to(command)

    def answer_to(self, command: ChangeJob) -> MemberChanged | None:
        return next((one for one in self.told if one.order == command.order), None)

    @property
    def exited(self) -> MemberExited | None:
        return next((one for one in self.stream.values() if isinstance(one, MemberExited)), None)

    @property
    def part(self) -> Any:
        return self.decide.machine.parts[self.command.job, self.command.attempt]

    def crash(self) -> None:
        """The agent dies between two effects and comes back; connections are gone."""
        self.story.append("agent crashes")
        self.calls, self.answers = [], list(self.ended.values())
        for rank in self.ranks.values():
            rank.connected, rank.inbox = False, []
        self.decide.check_replay()
        self.take(self.decide.restart())

    def kill(self, token: str, code: int = -9) -> None:
        """A rank's process tree dies."""
        if self.of(token):
            self.story.append(f"{token} ends with {code}")
            self.ranks = {key: rank for key, rank in self.ranks.items() if rank.token != token}
            self.ended[token] = RunExited(token, code, T0, asked=code == -15)
            self.answers.append(self.ended[token])

    def cut(self) -> None:
        """One process loses its connection; the agent has yet to hear what was on its way."""
        rank = self.rng.choice(list(self.ranks.values()))
        self.story.append(f"{rank.token}, process {rank.part}, is cut off")
        rank.connected, rank.inbox = False, []

    def of(self, token: str) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.token == token]

    def training(self) -> bool:
        """Tell whether every rank makes progress."""
        before = {token: rank.steps for token, rank in self.ranks.items()}
        for _ in range(400):
            self.turn(None)
        return bool(before) and all(
            token in self.ranks and self.ranks[token].steps > steps
            for token, steps in before.items()
        )

    # --- one thing at a time ----------------------------------------------------------------------

    def turn(self, command: ChangeJob | None) -> None:
        self.turns += 1
        assert self.turns < TURNS_MAX, "waited in vain:\n" + "\n".join(self.story[-60:])
        todo: list[Callable[[], None]] = []
        if self.calls:
            todo.append(lambda: self.carry(self.calls.pop(0)))
        if self.answers:
            todo.append(lambda: self.hand_in(self.answers.pop(0)))
        for rank in self.ranks.values():
            if not rank.frozen:
                todo += self.possible(rank)
        if todo:
            self.rng.choice(todo)()
        if not todo or self.rng.random() < 0.05:
            self.pass_time(command)

    def possible(self, rank: Rank) -> list[Callable[[], None]]:
        if not rank.connected:
            return [rank.connect]
        todo: list[Callable[[], None]] = []
        if rank.outbox:
            todo.append(lambda: self.hand_in(RankSaid(rank.outbox.pop(0))))
        if rank.inbox:
            todo.append(lambda: rank.hear(rank.inbox.pop(0)))
        gang = [each for each in self.ranks.values() if not each.joining]
        if rank.stands is None and all(each.steps >= rank.steps for each in gang):
            todo.append(lambda: self.advance(rank))
        return todo

    def advance(self, rank: Rank) -> None:
        leaves = rank.boundary()
        progress = RankProgress(
            rank=rank.rank, steps=rank.steps, step_ns=STEP_NS, last_step_at=self.decide.now
        )
        if self.rng.random() < 0.3:
            self.take(self.decide(RankStats(rank.job, rank.attempt, progress)))
        if leaves:
            for message in rank.outbox:
                self.hand_in(RankSaid(message))
            self.kill(rank.token, 0)

    def pass_time(self, command: ChangeJob | None) -> None:
        self.decide.now = after(self.decide.now, seconds(0.2))
        wake = self.decide.machine.wake_at()
        if wake is not None and wake <= self.decide.now:
            self.take(self.decide.tick())
        if command is not None and self.answer_to(command) is None:
            self.send(command)

    def hand_in(self, event: Any) -> None:
        self.story.append(f"agent hears {event}")
        self.take(self.decide(event))

    def take(self, effects: list[Effect]) -> None:
        self.calls += [effect.command for effect in effects if isinstance(effect, Call)]

    def carry(self, call: Any) -> None:
        self.story.append(f"agent asks for {call}")
        match call:
            case StartRank():
                self.start(call)
            case StopRun():
                for rank in self.of(call.token):
                    rank.frozen = False
                self.kill(call.token, -15)
            case ForgetRun():
                self.ended.pop(call.token, None)
            case ListRuns():
                self.list_runs()
            case FreezeRun() | ThawRun():
                frozen = isinstance(call, FreezeRun)
                for rank in self.of(call.token):
                    rank.frozen = frozen
                self.answers.append((RunFrozen if frozen else RunThawed)(call.token))
            case OpenStore():
                self.answers.append(StoreOpened(call.job, call.attempt))
            case TellRank(message=message):
                for rank in self.of(f"{message.job}.{message.attempt}.{message.rank}"):
                    if rank.connected:
                        rank.inbox.append(message)
            case PublishEvent():
                assert self.stream.setdefault(call.event, call.message) == call.message
                if isinstance(call.message, MemberChanged):
                    self.told.append(call.message)
                self.answers.append(Published(call.event))
            case _:
                raise AssertionError(call)

    def start(self, call: StartRank) -> None:
        if not self.of(call.token) and call.token not in self.ended:
            for part in range(self.parts):
                rank = Rank(call.token, call.command, call.plan.rank, self.can, part, self.parts)
                self.ranks[f"{call.token}/{part}" if part else call.token] = rank
        self.answers.append(RunStarted(call.token, 10, 1, T0))

    def list_runs(self) -> None:
        alive = [
            RunStarted(rank.token, 10, 1, T0, rank.frozen)
            for rank in self.ranks.values()
            if not rank.part
        ]
        self.answers.append(RunsListed((*alive, *self.ended.values())))


def plain(change: Change) -> dict[str, Any]:
    """Return a change as it is on the wire, to name tests by."""
    made: dict[str, Any] = msgspec.to_builtins(change)
    return made
