"""Agents that change running jobs: what a job's own side and its agent do about a ChangeJob.

A job makes a mini-batch every STEP of virtual time, on every node alike, so that a gang stands at
one step only if all its parts were told the same one. What a job stands at is the host's to know:
it survives the agent. What a job can do is written in its command line, as the fourth word:

    opaque        it is frozen wherever it is
    resident      it stops between two mini-batches
    releases      and gives its device memory back
    stores        and writes checkpoints
    both          and both
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
from skep.wire.commands import ChangeJob, Checkpoint, Resume, Suspend
from skep.wire.facts import PartStarted
from skep.wire.node import Manner, MemberChanged, MemberKnown, NodeJoined, Tier

CAN: dict[str, tuple[str, ...]] = {
    "opaque": (),
    "resident": ("suspend",),
    "releases": ("suspend", "release"),
    "stores": ("suspend", "checkpoint"),
    "both": ("suspend", "release", "checkpoint"),
    "fails": ("suspend", "release", "checkpoint"),
}


class RunsChanged(msgspec.Struct, frozen=True):
    """The runs of a part took a change, or did not."""

    changed: MemberChanged


class PlayedAgent(AgentMachine):
    """An agent whose jobs can be changed."""

    def __init__(self, joined: NodeJoined, host: Host) -> None:
        """Start on a machine."""
        super().__init__(joined)
        self.host = host

    def decide(self, event: Any, now: Instant) -> list[Effect]:
        """Return what follows from an event."""
        if isinstance(event, ChangeJob):
            return self._change(event)
        if isinstance(event, RunsChanged):
            return [self._tell(event.changed)]
        effects = super().decide(event, now)
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        fresh = [fact for fact in facts if isinstance(fact, PartStarted)]
        if isinstance(event, Restarted):
            fresh = [part.started for part in self.parts.values()
                     if part.started is not None and part.over is None]  # fmt: skip
        return effects + [self._known(fact, now) for fact in fresh]

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
        case _:
            return quick, Manner.UNCHANGED


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
                case _:
                    pass
    return MemberChanged(node=host.node, identity=host.identity, job=command.job,
                         attempt=command.attempt, order=command.order, manner=manner,
                         at=Instant(now + host.skew), step=here)  # fmt: skip
