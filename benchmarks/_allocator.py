"""An allocator on a virtual clock whose decisions are timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Restarted, Tick
from skep.units import Instant, after, seconds
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import Admitted
from skep.wire.node import Gpu, MemberExited, MemberStarted, NodeJoined, Outcome
from skep.wire.spec import JobSpec

T0 = Instant(1_700_000_000_000_000_000)


class TimedAllocator:
    """The production machine; `spent` has the CPU time of each event, in microseconds."""

    def __init__(self, vcs: Mapping[str, VirtualCluster], nodes: int, cpus: int) -> None:
        """Let nodes of eight GPUs and so many CPUs join."""
        self.machine, self.now = AllocatorMachine(), T0
        self.spent: list[float] = []
        self._number = 0
        self.decide(Restarted(1))
        self.decide(SetVcs(vcs=dict(vcs)))
        for index in range(nodes):
            name = f"n{index:04}"
            self.decide(
                NodeJoined(
                    node=name,
                    identity=name,
                    incarnation=1,
                    address="10.0.0.1",
                    ports=(20000, 29999),
                    cpus=cpus,
                    memory=2**38,
                    gpus=tuple(Gpu(index=each, type="v100") for each in range(8)),
                )
            )

    def decide(self, event: Any) -> None:
        """Let it decide, and note what that took."""
        self.now = after(self.now, seconds(0.1))
        self.machine.tx.soft.last_heard = dict.fromkeys(self.machine.state.nodes, self.now)
        began = time.thread_time()
        self.machine.decide(event, self.now)
        self.spent.append((time.thread_time() - began) * 1e6)

    def submit(self, spec: JobSpec) -> str:
        """Let a job arrive; return its id."""
        self._number += 1
        job = f"j{self._number}"
        fact = Admitted(job=job, spec=spec, submitted_at=self.now)
        self.decide(Facts(service="admission", at=self.now, facts=(fact,)))
        return job

    def tick(self) -> None:
        """Let it go on with what was left for a further decision."""
        self.decide(Tick())

    def start(self, job: str) -> None:
        """Let the ranks of a job run, if it is bound."""
        state = self.machine.state.jobs.get(job)
        if state is None:
            return
        for name in list(state.members):
            self.decide(
                MemberStarted(node=name, identity=name, job=job, attempt=state.attempt, at=self.now)
            )

    def start_bound(self) -> list[str]:
        """Let every job run that is bound and does not; return them."""
        bound = [each.job for each in self.machine.state.placed.values() if not each.ran_at]
        for job in bound:
            self.start(job)
        return bound

    def end(self, job: str) -> None:
        """Let the ranks of a job exit with success."""
        state = self.machine.state.jobs[job]
        for name in list(state.members):
            self.decide(
                MemberExited(
                    node=name,
                    identity=name,
                    job=job,
                    attempt=state.attempt,
                    outcome=Outcome.SUCCEEDED,
                    at=self.now,
                )
            )
