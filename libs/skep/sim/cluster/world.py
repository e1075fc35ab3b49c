"""The event loop: a virtual clock, the production machines, a network without delay, and nodes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from skep.ids import job_id
from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.dispatch import NODE_CHECK_EVERY
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.sim.cluster.agents import Agents, Later
from skep.sim.cluster.ledger import BEGIN, Ledger
from skep.sim.cluster.settings import Settings
from skep.sim.cluster.specs import Owners
from skep.traces.job import Trace
from skep.units import Duration, Instant, after
from skep.wire.admin import SetVcs
from skep.wire.cluster import Cluster
from skep.wire.codec import Facts, Submission
from skep.wire.commands import BindJob, StopJob
from skep.wire.facts import Admitted, CellsSet, EpochBegan, JobEnded, NodeAdded, Refused
from skep.wire.node import Gpu, NodeJoined
from skep.workloads.situation import Speeds

ADMISSION_HEARS = (JobEnded, NodeAdded, CellsSet)
FOR_EVER = Duration(2**62)
LOOK_AT = 1000
"""Events between two looks of the allocator's watch over the cells, which in production looks every
second: a simulated day is over in less."""
WATCHED_EVERY = 256
"""Instants between two words to whoever watches a run."""
NODE_CPUS = 4096
NODE_MEMORY = 1 << 50
"""More than any job asks for: traces that limit them say so in the cluster (`build`)."""


class World:
    """One run. `now` is the virtual time."""

    def __init__(
        self, trace: Trace, cluster: Cluster, settings: Settings, speeds: Speeds
    ) -> None:  # fmt: skip
        """Let every node join; nothing has been submitted yet."""
        self.trace, self.cluster, self.settings = trace, cluster, settings
        self.now = BEGIN
        named = {str(job_id(number)): job for number, job in enumerate(trace.jobs, 1)}
        self.ledger = Ledger(named)
        self.agents = Agents(named, settings, speeds)
        self.admission, self.allocator = AdmissionMachine(), AllocatorMachine()
        self._owners = Owners(cluster, settings)
        self._inbox: deque[Any] = deque()
        """What the allocator has yet to hear at this instant."""
        self._heap: list[tuple[Instant, int, Later]] = []
        self._pushed = 0
        self._next = 0
        """The job of the trace that is submitted next."""
        self.allocator.node_lost_after = FOR_EVER
        self.allocator.node_check_every = self._pace()
        self._begin()

    def _pace(self) -> Duration:
        """Return how often the allocator's watch goes on: once in LOOK_AT events, about."""
        jobs = self.trace.jobs
        span = jobs[-1].at - jobs[0].at if jobs else 0
        return Duration(max(NODE_CHECK_EVERY, span * LOOK_AT // (2 * len(jobs) or 1)))

    def _begin(self) -> None:
        for machine in (self.admission, self.allocator):
            machine.apply(EpochBegan(epoch=1, owner="simulation"))
        self._admit(Restarted(1))
        self._inbox.append(Restarted(1))
        for joined in _nodes(self.cluster):
            self._inbox.append(joined)
        everyone = SetVcs(vcs=self.cluster.vcs, chains=self.cluster.chains,
                          pins=self.cluster.pins, quarantine=self.cluster.quarantine)  # fmt: skip
        self._admit(everyone)
        self._inbox.append(everyone)
        self._settle()

    def run(self, watch: Callable[[int, int], bool] | None = None) -> bool:
        """Go on until every job is over, or the time is; return False if `watch` ended it.

        `watch` is told now and then how many jobs are over, of how many.
        """
        until = self.settings.until
        end = None if until is None else after(BEGIN, until)
        jobs, heap = self.trace.jobs, self._heap
        instants = 0
        while self.ledger.open:
            if watch is not None:
                instants += 1
                over = len(jobs) - self.ledger.open
                if instants % WATCHED_EVERY == 0 and not watch(over, len(jobs)):
                    return False
            at = self._soonest()
            if at is None or (end is not None and at > end):
                break
            self.now = at
            while heap and heap[0][0] <= at:
                _, _, event = heapq.heappop(heap)
                self.agents.happens(event, at)
                self._settle()
            while self._next < len(jobs) and after(BEGIN, jobs[self._next].at) <= at:
                self._submit(self._next)
                self._next += 1
                self._settle()
            wake = self.allocator.wake_at()
            if wake is not None and wake <= at:
                self._inbox.append(Tick())
                self._settle()
        if end is not None and self.ledger.open:
            self.now = end
        return True

    def _soonest(self) -> Instant | None:
        times = []
        if self._heap:
            times.append(self._heap[0][0])
        if self._next < len(self.trace.jobs):
            times.append(after(BEGIN, self.trace.jobs[self._next].at))
        wake = self.allocator.wake_at()
        if wake is not None:
            times.append(max(wake, self.now))
        return min(times, default=None)

    def _submit(self, index: int) -> None:
        job = self.trace.jobs[index]
        self._admit(Submission(job=job_id(index + 1), vc=self._owners.vc(job),
                               raw=self._owners.write(job), at=self.now))  # fmt: skip

    # --- the machines ------------------------------------------------------------------------

    def _admit(self, event: Any) -> None:
        """Have admission decide, and pass on what the allocator follows."""
        for effect in self.admission.decide(event, self.now):
            if type(effect) is Record:
                fact = effect.fact
                if type(fact) is Admitted:
                    self._inbox.append(Facts(service="admission", at=self.now, facts=(fact,)))
                elif type(fact) is Refused:
                    self.ledger.refuse(fact.job, fact)

    def _settle(self) -> None:
        """Have the allocator decide, and nodes answer, until nobody has more to say now."""
        inbox, agents, allocator = self._inbox, self.agents, self.allocator
        inbox += agents.told
        agents.told.clear()
        while inbox:
            self._carry_out(allocator.decide(inbox.popleft(), self.now))
            if agents.told:
                inbox += agents.told
                agents.told.clear()
            if not inbox and allocator.soft.check_at == self.now:
                inbox.append(Tick())  # It asks for a further decision at once: one is bounded.
        for at, event in agents.later:
            self._pushed += 1
            heapq.heappush(self._heap, (at, self._pushed, event))
        agents.later.clear()

    def _carry_out(self, effects: list[Effect]) -> None:
        now, news = self.now, []
        for effect in effects:
            if type(effect) is Record:
                fact = effect.fact
                self.ledger.note(fact, now)
                if type(fact) in ADMISSION_HEARS:
                    news.append(fact)
            elif type(effect) is Send:
                message = effect.message
                match message:
                    case BindJob():
                        self.agents.bind(message, now)
                    case StopJob():
                        self.agents.stop(message, now)
                    case _:
                        text = f"no node takes {message!r}"
                        raise AssertionError(text)
        if news:
            self._admit(Facts(service="allocator", at=now, facts=tuple(news)))


def _nodes(cluster: Cluster) -> Iterator[NodeJoined]:
    """Yield what every node says as it joins: of a node in several chains, all its GPUs."""
    gpus: dict[str, list[Gpu]] = {}
    for chain in cluster.chains.values():
        size = 1
        for level in chain.levels[
            : [each.name for each in chain.levels].index(chain.node_level) + 1
        ]:
            size *= level.fanout
        for cell in chain.nodes:
            gpus.setdefault(cell.node, []).extend(
                Gpu(index=index, type=chain.gpu) for index in cell.devices or range(size)
            )
    for node, devices in gpus.items():
        yield NodeJoined(node=node, identity=f"id-{node}", incarnation=1, address="10.0.0.1",
                         ports=(20000, 29999), gpus=tuple(devices), cpus=NODE_CPUS,
                         memory=NODE_MEMORY)  # fmt: skip
