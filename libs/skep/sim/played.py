"""Agents that change running jobs: what a job's own side and its agent do about a ChangeJob.

A job makes a mini-batch every STEP of virtual time, on every node alike, so that a gang stands at
one step only if all its parts were told the same one. What a job stands at is the host's to know:
it survives the agent. What a job can do is written in its command line, as the fourth word:

    opaque        it is frozen wherever it is
    resident      it stops between two mini-batches
    releases      and gives its device memory back
    stores        and writes checkpoints
    both          and both
    moves         and goes on elsewhere, too
    fails         it says that it can, and mostly fails
"""

from __future__ import annotations

from typing import Any

import msgspec

from skep.machines.agent import AgentMachine, PublishEvent
from skep.machines.base import Call, Effect, Record, Restarted
from skep.sim.processes import STEP, Host, Listener, Run
from skep.sim.timeline import MILLISECOND
from skep.units import Instant
from skep.wire import subjects
from skep.wire.commands import ChangeJob, Checkpoint, Move, Resume, Suspend, Target
from skep.wire.facts import PartStarted
from skep.wire.node import (
    Door,
    Manner,
    MemberChanged,
    MemberKnown,
    MemberLoaded,
    MemberReady,
    NodeJoined,
    Tier,
)

CAN: dict[str, tuple[str, ...]] = {
    "opaque": (),
    "resident": ("suspend",),
    "releases": ("suspend", "release"),
    "stores": ("suspend", "checkpoint"),
    "both": ("suspend", "release", "checkpoint"),
    "moves": ("suspend", "release", "checkpoint", "migrate"),
    "fails": ("suspend", "release", "checkpoint", "migrate"),
}


class RunsChanged(msgspec.Struct, frozen=True):
    """The runs of a part took a change, or did not."""

    changed: MemberChanged


class RunsLoaded(msgspec.Struct, frozen=True):
    """The runs of a part that awaited its state have it."""

    loaded: MemberLoaded


class PlayedAgent(AgentMachine):
    """An agent whose jobs can be changed."""

    def __init__(self, joined: NodeJoined, host: Host) -> None:
        """Start on a machine."""
        super().__init__(joined)
        self.host = host
        self.changes.abilities.listens = False

    def decide(self, event: Any, now: Instant) -> list[Effect]:
        """Return what follows from an event."""
        if isinstance(event, ChangeJob):
            return self._change(event)
        if isinstance(event, RunsChanged):
            return [self._tell(event.changed)]
        if isinstance(event, RunsLoaded):
            return [self._loaded(event.loaded)]
        effects = super().decide(event, now)
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        fresh = [fact for fact in facts if isinstance(fact, PartStarted)]
        if isinstance(event, Restarted):
            fresh = [part.started for part in self.parts.values()
                     if part.started is not None and part.over is None]  # fmt: skip
        told = [self._known(fact, now) for fact in fresh]
        for fact in fresh:
            told += self._awaits(fact, now)
        return effects + told

    def _awaits(self, fact: PartStarted, now: Instant) -> list[Effect]:
        """Say where a successor's ranks listen, and (again) that they have their state."""
        part = self.parts[fact.job, fact.attempt]
        command = part.command
        if command is None or not command.awaits:
            return []
        node, identity = self.joined.node, self.joined.identity
        doors = tuple(Door(rank=plan.rank, host=identity, port=command.order)
                      for plan in command.ranks)  # fmt: skip
        ready = MemberReady(node=node, identity=identity, job=fact.job, attempt=fact.attempt,
                            doors=doors, at=now)  # fmt: skip
        key = f"{identity}:ready:{fact.job}.{fact.attempt}"
        told: list[Effect] = [
            Call(PublishEvent(-1, subjects.node_event(node, "ready"), key, ready))
        ]
        runs = [run for run in self.host.live_runs()
                if (run.job, run.attempt) == (fact.job, fact.attempt)]  # fmt: skip
        if runs and all(run.loaded for run in runs):
            told.append(self._loaded(loaded_of(self.host, runs, now)))
        return told

    def _loaded(self, loaded: MemberLoaded) -> Effect:
        key = f"{self.joined.identity}:loaded:{loaded.job}.{loaded.attempt}"
        subject = subjects.node_event(self.joined.node, "loaded")
        return Call(PublishEvent(-1, subject, key, loaded))

    def _known(self, fact: PartStarted, now: Instant) -> Effect:
        part = self.parts[fact.job, fact.attempt]
        assert part.command is not None
        can = CAN[tier_of(part.command.argv)]
        known = MemberKnown(node=self.joined.node, identity=self.joined.identity, job=fact.job,
                            attempt=fact.attempt, at=now, can=can,
                            tier=Tier.OBSERVED if can else Tier.OPAQUE)  # fmt: skip
        key = f"{self.joined.identity}:known:{fact.job}.{fact.attempt}"
        subject = subjects.node_event(self.joined.node, "known")
        return Call(PublishEvent(-1, subject, key, known))

    def _change(self, command: ChangeJob) -> list[Effect]:
        part = self.parts.get((command.job, command.attempt))
        addressed = command.identity == self.joined.identity and command.epoch >= self.epoch_floor
        if (
            not addressed
            or part is None
            or part.command is None
            or part.over is not None
            or part.started is None
        ):
            return []
        if part.grace_s is not None:
            return []  # It is being ended.
        told = self.host.stands.get((command.job, command.attempt))
        if told is not None and command.order <= told[0]:
            answer = told[1] if command.order == told[0] else None
            return [self._tell(answer)] if answer is not None else []
        return [Call(TakeChange(command, tier_of(part.command.argv)))]

    def _tell(self, changed: MemberChanged) -> Effect:
        key = f"{self.joined.identity}:changed:{changed.order}"
        subject = subjects.node_event(self.joined.node, "changed")
        return Call(PublishEvent(-1, subject, key, changed))


class TakeChange(msgspec.Struct, frozen=True):
    """Call: have the runs of a part take a change. Answered by RunsChanged."""

    command: ChangeJob
    tier: str


def serve(host: Host, agent: Listener, request: Any) -> None:
    """Carry out an agent's request about changes."""
    assert isinstance(request, TakeChange), request
    command = request.command
    key, now = (command.job, command.attempt), host.now
    known = host.stands.get(key)
    if known is not None and command.order <= known[0]:
        return  # Overtaken; the same one is answered when it is done.
    host.stands[key] = command.order, None
    at, manner = take(host, command, request.tier, now, host.chance())
    host.later(at - now, _done, host, agent, command, manner)


def _done(host: Host, agent: Listener, command: ChangeJob, manner: Manner) -> None:
    key = command.job, command.attempt
    if host.stands.get(key, (0, None))[0] != command.order or not part_runs(host, command):
        return
    changed = carry_out(host, command, manner, host.now)
    host.stands[key] = command.order, changed
    host.tell(agent, RunsChanged(changed))


def tier_of(argv: tuple[str, ...]) -> str:
    """Return what a job says that it can do."""
    return argv[3] if len(argv) > 3 else "opaque"


def take(host: Host, command: ChangeJob, tier: str, now: int, roll: float) -> tuple[int, Manner]:
    """Return when a part will have taken a change, and how: as its job's own side would."""
    runs = part_runs(host, command)
    here = max((run.step(now) for run in runs), default=0)
    change = command.change
    quick = now + int(roll * 20 * MILLISECOND)
    match change:
        case Suspend(step=step):
            if all(run.suspended for run in runs):
                return quick, Manner.UNCHANGED if tier == "fails" else Manner.BOUNDARY
            if tier == "opaque":
                return quick, Manner.FROZEN
            if step and here >= step:
                return quick, Manner.UNCHANGED
            if tier == "fails" and roll < 0.7:
                return quick, Manner.UNCHANGED
            at = now + max(1, step - here) * STEP
            late = at > now + command.deadline_ms * MILLISECOND
            return (now + command.deadline_ms * MILLISECOND, Manner.FROZEN) if late else (
                at, Manner.BOUNDARY)  # fmt: skip
        case Resume():
            failed = tier == "fails" and roll < 0.3
            return quick, Manner.UNCHANGED if failed else Manner.BOUNDARY
        case Checkpoint():
            able = "checkpoint" in CAN[tier] and not (tier == "fails" and roll < 0.7)
            return quick + STEP, Manner.BOUNDARY if able else Manner.UNCHANGED
        case Move(targets=targets):
            broken = tier == "fails" and roll < 0.5
            able = not broken and send(host, targets, here + 1)
            return quick + STEP, Manner.BOUNDARY if able else Manner.UNCHANGED
        case _:
            return quick, Manner.UNCHANGED


def send(host: Host, targets: tuple[Target, ...], step: int) -> bool:
    """Give a part's successors their state, at their doors; return whether all have it."""
    found: dict[str, list[Run]] = {}
    for target in targets:
        there = host.behind(target.host)
        runs = there.live_runs() if there is not None else []
        run = next((run for run in runs if run.awaits == target.token
                    and run.token.endswith(f".{target.rank}")), None)  # fmt: skip
        if run is None:
            return False
        found.setdefault(target.host, []).append(run)
    for door, runs in found.items():
        there = host.behind(door)
        assert there is not None, door
        for run in runs:
            run.loaded = step
        agent = there.connected()
        if agent is not None:
            there.tell(agent, RunsLoaded(loaded_of(there, runs, Instant(host.now))))
    return True


def loaded_of(host: Host, runs: list[Run], now: Instant) -> MemberLoaded:
    """Return what an agent says of runs that have their state."""
    return MemberLoaded(node=host.node, identity=host.identity, job=runs[0].job,
                        attempt=runs[0].attempt, step=min(run.loaded for run in runs),
                        at=now)  # fmt: skip


def part_runs(host: Host, command: ChangeJob) -> list[Run]:
    """Return the live runs that a change is about."""
    return [run for run in host.live_runs()
            if run.job == command.job and run.attempt == command.attempt]  # fmt: skip


def carry_out(host: Host, command: ChangeJob, manner: Manner, now: int) -> MemberChanged:
    """Change the runs of a part and return the answer."""
    runs = part_runs(host, command)
    here = max((run.step(now) for run in runs), default=0)
    change = command.change
    if manner is not Manner.UNCHANGED:
        for run in runs:
            match change:
                case Suspend(release=release):
                    host.suspend(run, release=release and manner is Manner.BOUNDARY)
                case Resume():
                    host.resume(run)
                case Move():
                    host.suspend(run, release=False)
                case _:
                    pass
    return MemberChanged(node=host.node, identity=host.identity, job=command.job,
                         attempt=command.attempt, order=command.order, manner=manner,
                         at=Instant(now + host.skew), step=here)  # fmt: skip
