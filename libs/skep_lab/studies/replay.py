"""Random tenants' jobs through the simulated cluster, every decision of it judged.

Agents are perfect here: what they are told to start runs at once, what they are told to stop is
gone after the grace. A job that is stopped has lost all it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from skep.cells.check import check_cells, safe
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.outbox import PREEMPT_GRACE_S
from skep.units import Duration, Instant
from skep.wire.admin import DrainNode, QuarantineGpu
from skep.wire.facts import AllocatorFact, End, JobBound, JobEnded, JobRequeued
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import News, World
from skep_lab.studies.tenants import BEGIN, Job, Plan, Trouble
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

STOP_S = PREEMPT_GRACE_S
"""How long a victim takes to be gone: all of the grace that the allocator gives it."""
CHECK_EVERY = 2000
"""Decisions between two checks of every invariant; sharing safety itself is checked after each."""

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
        self.served = {number: Served(job) for number, job in enumerate(plan.jobs, 1)}
        self.events = 0
        self.preemptions = 0
        self.unfinished = sum(not job.opportunistic for job in plan.jobs)
        """Guaranteed jobs that have not ended: the run is over when none is left."""
        self._watch = watch
        trace = Trace(
            name="tenants",
            jobs=tuple(_traced(number, job) for number, job in enumerate(plan.jobs, 1)),
        )
        settings = Settings(
            costs=Costs(stop_s=STOP_S),
            hints="none",
            over_quota=over_quota,  # type: ignore[arg-type]
        )
        news = [(Duration(each.at - BEGIN), _news(each)) for each in plan.troubles]
        self._world = World(trace, plan.cluster, settings, Steady(), news, self._judge)

    @property
    def machine(self) -> AllocatorMachine:
        """Return the allocator."""
        return self._world.allocator

    def run(self) -> None:
        """Go on until every guaranteed job has ended."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterable[Instant]:
        """Go on, and yield the time after every instant at which something happened."""
        for at in self._world.steps():
            yield at
            if not self.unfinished:
                return
        assert not self.unfinished, f"{self.unfinished} jobs wait for ever"

    def _judge(self, world: World, facts: list[AllocatorFact]) -> None:
        machine = world.allocator
        self.events += 1
        for chain in machine.state.cells.chains.values():
            safe(chain)
        if self.events % CHECK_EVERY == 0:
            machine.check()
            check_cells(machine.state.cells)
        for fact in facts:
            self._note(fact, world.now)
        if self._watch is not None:
            self._watch(machine, facts)

    def _note(self, fact: AllocatorFact, now: Instant) -> None:
        match fact:
            case JobBound():
                served = self.served[int(fact.job[1:])]
                served.waited += now - (served.queued_at or served.job.at)
                served.began = served.began or now
                borrows = not fact.members[0].levels
                served.borrowed = served.borrowed or borrows
            case JobRequeued():
                served = self.served[int(fact.job[1:])]
                served.queued_at = now
                served.stops += 1
                self.preemptions += 1
            case JobEnded():
                assert fact.end is End.SUCCEEDED, fact
                served = self.served[int(fact.job[1:])]
                served.ended = now
                self.unfinished -= not served.job.opportunistic
            case _:
                pass


def _traced(number: int, job: Job) -> TraceJob:
    return TraceJob(
        id=str(number),
        at=Duration(job.at - BEGIN),
        run_time=job.lasts,
        vc=job.vc,
        gpus=job.total,
        workers=job.workers,
        priority=job.priority,
        opportunistic=job.opportunistic,
        within=job.within,
        hard=bool(job.within),
    )


def _news(trouble: Trouble) -> News:
    if trouble.device is None:
        return DrainNode(node=trouble.node, drain=trouble.bad)
    return QuarantineGpu(node=trouble.node, device=trouble.device, quarantine=trouble.bad)
