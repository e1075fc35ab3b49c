"""A trace of jobs through the allocator itself, on a virtual clock and without a network.

Agents are perfect here: what they are told to start runs at once, what they are told to stop is
gone after the grace. A job that is stopped has lost all it did.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

import msgspec

from skep.cells.check import check as check_cells
from skep.cells.check import safe
from skep.ids import job_id
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.dispatch import PREEMPT_GRACE_S
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.sim.tenants import BEGIN, NODE_GPUS, Job, Plan, Trouble
from skep.units import Instant, after, seconds
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.codec import Facts
from skep.wire.commands import BindJob, StopJob
from skep.wire.facts import (
    Admitted,
    AllocatorFact,
    End,
    EpochBegan,
    JobBound,
    JobEnded,
    JobRequeued,
)
from skep.wire.node import Gpu, MemberExited, MemberStarted, NodeJoined, Outcome
from skep.wire.spec import JobSpec, Resources, Topology

STOP_S = PREEMPT_GRACE_S
"""How long a victim takes to be gone: all of the grace that the allocator gives it."""
TICK_EVERY = seconds(3600)
"""How often the allocator's own timers ring. Nothing is ever unanswered here, so there is nothing
for them to do but to forget reminders."""
CHECK_EVERY = 2000
"""Events between two checks of every invariant; sharing safety itself is checked after each."""

Watch = Callable[[AllocatorMachine, list[AllocatorFact]], None]


class Served(msgspec.Struct):
    """What became of a job. Times in nanoseconds; `waited` is all the time in its queue."""

    job: Job
    waited: int = 0
    queued_at: int = 0
    began: int = 0
    ended: int = 0
    stops: int = 0
    borrowed: bool = False
    """Whether it ever ran opportunistically."""

    @property
    def delay(self) -> int:
        """Return how much later it ended than if it had run at once: waiting, and work lost."""
        return self.ended - self.job.at - self.job.lasts


class Replay:
    """One run of a plan. `served` is by job number, from 1, in the order of arrival."""

    def __init__(self, plan: Plan, *, over_quota: str, watch: Watch | None = None) -> None:
        """Let every node join; nothing has been submitted yet."""
        self.plan, self.over_quota, self.watch = plan, over_quota, watch
        self.machine = AllocatorMachine()
        self.served = {number: Served(job) for number, job in enumerate(plan.jobs, 1)}
        self.events = 0
        self.preemptions = 0
        self.unfinished = sum(not job.opportunistic for job in plan.jobs)
        """Guaranteed jobs that have not ended: the run is over when none is left."""
        self._at, self._next, self._ticked = BEGIN, count(), BEGIN
        self._heap: list[tuple[Instant, int, MemberExited | Trouble | int]] = []
        self._facts: list[AllocatorFact] = []
        """What was decided so far where a decision goes on in a further one at this instant."""
        self._runs: dict[tuple[str, int, str], None] = {}
        """Parts of attempts whose processes exist."""
        self.machine.apply(EpochBegan(epoch=1, owner="simulation"))
        self._decide(Restarted(1))
        cluster = plan.cluster
        self._decide(SetVcs(vcs=cluster.vcs, chains=cluster.chains))
        for chain in cluster.chains.values():
            for cell in chain.nodes:
                self._decide(_joined(cell.node, chain.gpu))
        for number, job in enumerate(plan.jobs, 1):
            self._push(job.at, number)
        for trouble in plan.troubles:
            self._push(trouble.at, trouble)

    def run(self) -> None:
        """Go on until every guaranteed job has ended."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterable[Instant]:
        """Go on, and yield the time after every event."""
        while self.unfinished:
            assert self._heap, f"{self.unfinished} jobs wait for ever"
            self._at, _, event = heapq.heappop(self._heap)
            if self._at - self._ticked > TICK_EVERY:
                self._ticked = self._at
                self._decide(Tick())
            match event:
                case int():
                    self._decide(self._submitted(event))
                case Trouble(device=None):
                    self._decide(DrainNode(node=event.node, drain=event.bad))
                case Trouble():
                    self._decide(QuarantineGpu(node=event.node, device=event.device or 0,
                                               quarantine=event.bad))  # fmt: skip
                case MemberExited():
                    part = event.job, event.attempt, event.node
                    if part in self._runs:
                        del self._runs[part]
                        self._decide(event)
            yield self._at

    def _push(self, at: Instant, event: MemberExited | Trouble | int) -> None:
        heapq.heappush(self._heap, (at, next(self._next), event))

    def _submitted(self, number: int) -> Facts:
        served = self.served[number]
        job = served.job
        served.queued_at = job.at
        topology = Topology(within=job.within, hard=True) if job.within else None
        spec = JobSpec(
            name="job", vc=job.vc, command=("true",), priority=job.priority,
            resources=Resources(gpus=job.gpus, workers=job.workers, topology=topology),
            service_class="opportunistic" if job.opportunistic else "guaranteed",
            over_quota=self.over_quota,  # type: ignore[arg-type]
        )  # fmt: skip
        fact = Admitted(job=job_id(number), spec=spec, submitted_at=job.at)
        return Facts(service="admission", at=self._at, facts=(fact,))

    def _decide(self, event: object) -> None:
        """Have the allocator decide, and do what it says, until it says no more."""
        machine, events = self.machine, [event]
        for each in events:
            effects = machine.decide(each, self._at)
            self.events += 1
            for chain in machine.cells.chains.values():
                safe(chain)
            if self.events % CHECK_EVERY == 0:
                machine.check()
                check_cells(machine.cells)
            facts = [effect.fact for effect in effects if isinstance(effect, Record)]
            for fact in facts:
                self._note(fact)
            self._facts += facts
            goes_on = machine.soft.check_at == self._at
            if self.watch is not None and not goes_on:
                self.watch(machine, self._facts)
                self._facts = []
            events += self._carry_out(effects)
            if goes_on:
                events.append(Tick())  # It asks for a further decision at once: one is bounded.

    def _carry_out(self, effects: list[Effect]) -> Iterable[MemberStarted]:
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            message = effect.message
            if not isinstance(message, BindJob | StopJob):
                continue
            part = message.job, message.attempt, message.node
            if isinstance(message, StopJob):
                gone = after(self._at, seconds(STOP_S))
                self._push(gone, _exited(message, Outcome.STOPPED, gone))
            elif part not in self._runs:
                self._runs[part] = None
                ends = after(self._at, self.served[int(message.job[1:])].job.lasts)
                self._push(ends, _exited(message, Outcome.SUCCEEDED, ends))
                yield MemberStarted(node=message.node, identity=message.identity, job=message.job,
                                    attempt=message.attempt, at=self._at)  # fmt: skip

    def _note(self, fact: AllocatorFact) -> None:
        match fact:
            case JobBound():
                served = self.served[int(fact.job[1:])]
                served.waited += self._at - served.queued_at
                served.began = served.began or self._at
                borrows = not fact.members[0].levels
                served.borrowed = served.borrowed or borrows
            case JobRequeued():
                served = self.served[int(fact.job[1:])]
                served.queued_at = self._at
                served.stops += 1
                self.preemptions += 1
            case JobEnded():
                assert fact.end is End.SUCCEEDED, fact
                served = self.served[int(fact.job[1:])]
                served.ended = self._at
                self.unfinished -= not served.job.opportunistic
            case _:
                pass


def _joined(node: str, kind: str) -> NodeJoined:
    gpus = tuple(Gpu(index=index, type=kind) for index in range(NODE_GPUS))
    return NodeJoined(node=node, identity=f"id-{node}", incarnation=1, address="10.0.0.1",
                      ports=(20000, 29999), gpus=gpus, cpus=64, memory=0)  # fmt: skip


def _exited(message: BindJob | StopJob, outcome: Outcome, at: Instant) -> MemberExited:
    return MemberExited(node=message.node, identity=message.identity, job=message.job,
                        attempt=message.attempt, outcome=outcome, at=at)  # fmt: skip
