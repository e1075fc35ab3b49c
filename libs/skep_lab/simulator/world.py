"""The event loop: a virtual clock, the production machines, a network without delay, and nodes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from skep.ids import job_id
from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.policy.api import Policy
from skep.policy.registry import make
from skep.units import Duration, Instant, after, seconds
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.bearing import RULES
from skep.wire.changes import Ask, ChangeAsked, JobChanged
from skep.wire.cluster import Cluster
from skep.wire.codec import AskRequest, Facts, Submission, encode
from skep.wire.commands import BindJob, ChangeJob, StopJob
from skep.wire.facts import (
    AdmissionFact,
    Admitted,
    AllocatorFact,
    CancelAsked,
    CellsSet,
    EpochBegan,
    JobBound,
    JobEnded,
    JobRan,
    JobRequeued,
    NodeAdded,
    NodeDrained,
    Refused,
)
from skep.wire.learned import Sight
from skep.wire.node import Gpu, NodeJoined
from skep.wire.trials import Trials
from skep_lab.simulator.agents import Agents, Later
from skep_lab.simulator.circles import Circles
from skep_lab.simulator.ledger import BEGIN, Ledger
from skep_lab.simulator.reports import Reports
from skep_lab.simulator.samples import Samples
from skep_lab.simulator.settings import AT_ONCE, EVERYTHING, FIRST_NODE, NO_REST, Settings
from skep_lab.simulator.specs import Owners
from skep_lab.traces.job import Trace
from skep_lab.workloads.situation import Speeds

ADMISSION_HEARS = (JobEnded, NodeAdded, CellsSet)
PROMISES_HEAR = (*ADMISSION_HEARS, JobRan, JobRequeued, JobChanged, NodeDrained)
"""What it follows where a VC keeps promises; elsewhere it comes to nothing."""
LIMITS_HEAR = (JobBound,)
"""And where a VC limits people: a job that has begun makes room for a further one."""
NODES_JOIN = seconds(10.0)
"""How long before the trace begins the nodes join, so that its first jobs find them."""
FOR_EVER = Duration(2**62)
IDLE_LOOKS = 1000
"""How many times in a row a policy may look at waiting jobs while none runs and none comes: if it
does nothing by then, it never will."""
OTHERS = 100
"""An instant at which only other machines' timers are due counts as this part of one."""
LOOK_AT = 4000
"""Events between two checks of the cells by the allocator. In production they happen every second,
and a simulated day can take less than that."""
WATCHED_EVERY = 16
"""Instants between two calls of `watch`."""
NONE_GIVEN: Mapping[str, Policy] = {}
QUIET = ("fifo", "backfill")
"""Policies that never change running jobs."""
NODE_CPUS = 4096
NODE_MEMORY = 1 << 50
"""More than any job asks for; a trace with limited CPUs or memory needs another cluster
(`build`)."""


class Crash(msgspec.Struct, frozen=True):
    """A node fails: every process on it is gone."""

    node: str


News = DrainNode | QuarantineGpu | Ask | Crash
Judge = Callable[["World", list[AllocatorFact]], None]
Watch = Callable[[int, int], bool]
"""Called with the number of ended jobs and of all jobs; returns whether to continue."""


class World:
    """One run. `now` is the virtual time."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        settings: Settings,
        speeds: Speeds,
        news: Iterable[tuple[Duration, News]] = (),
        judge: Judge | None = None,
        *,
        policies: Mapping[str, Policy] = NONE_GIVEN,
    ) -> None:
        """Begin with nothing: the nodes join with the first step.

        Args:
            trace: The jobs.
            cluster: The cluster.
            settings: Costs, policies and more.
            speeds: The workload model.
            news: Other requests of operators and tenants, and when, in the order of time.
            judge: Is called after every decision, before it is carried out.
            policies: By VC, policies that have no name in a cluster file, instead of the cluster's.

        Raises:
            ValueError: `settings` or `policies` name a VC that does not exist.
        """
        self.trace, self.settings = trace, settings
        self.cluster = _with_policies(cluster, settings)
        _check_vcs(self.cluster, policies)
        self.policies = policies
        self.now = Instant(BEGIN - NODES_JOIN)
        named = {str(job_id(number)): job for number, job in enumerate(trace.jobs, 1)}
        self.agents = Agents(
            named, self.cluster, settings, speeds, abilities(self.cluster, settings, policies)
        )
        self.ledger = Ledger(self.agents.works)
        self.admission, self.allocator = AdmissionMachine(), AllocatorMachine()
        self.samples = Samples(settings, self.allocator, self.ledger, self.agents)
        self._at_once = AT_ONCE in settings.compat
        self._in_order = FIRST_NODE in settings.compat
        self._owners = Owners(self.cluster, settings, speeds)
        made = _made(self.cluster, policies)
        self.reports = _reports(made, settings, self.agents)
        self._inbox: deque[Any] = deque()
        """Events that the allocator is still to receive at this instant."""
        self._heap: list[tuple[Instant, int, Later]] = []
        self._pushed = 0
        self._next = 0
        """The next job of the trace to be submitted."""
        self.allocator.settings.policies = {**policies}
        self.allocator.settings.node_lost_after = FOR_EVER
        self.allocator.settings.node_check_every = FOR_EVER
        self.allocator.settings.trial_rules.repeated = FOR_EVER
        self.allocator.settings.sights_whole_every = FOR_EVER
        self.allocator.settings.plan_every = seconds(settings.tick_s)
        if NO_REST in settings.compat:
            self.allocator.settings.runs_least = Duration(0)
        self._look_at = LOOK_AT
        self._news, self._judge = iter(news), judge
        self._coming = next(self._news, None)
        self._idle = 0
        """How many instants in a row only timers were due; the allocator's count more."""
        self._asked = len(trace.jobs)
        """The number of the latest submission or request."""
        self.stuck = False
        """Jobs wait, and nothing will ever happen."""
        self._circles = Circles()
        keeps = any(policy.keeps_promises for policy in made)
        limited = any(vc.limits is not None for vc in self.cluster.vcs.values())
        hears = PROMISES_HEAR if keeps else ADMISSION_HEARS
        self._hears = (*hears, *LIMITS_HEAR) if limited else hears
        self.hear: Callable[[AdmissionFact, Instant], None] | None = None
        """Is called with every fact of admission."""
        self._facts: list[AllocatorFact] = []
        """The facts so far of a decision that continues in a further one at this instant."""

    def _begin(self) -> None:
        for machine in (self.admission, self.allocator):
            machine.apply(EpochBegan(epoch=1, owner="simulation", rules=RULES))
        self._admit(Restarted(1))
        self._inbox.append(Restarted(1))
        self._inbox += _nodes(self.cluster, self.settings.gpu_memory)
        everyone = SetVcs(
            vcs=self.cluster.vcs,
            chains=self.cluster.chains,
            pins=self.cluster.pins,
            quarantine=self.cluster.quarantine,
        )
        self._admit(everyone)
        self._inbox.append(everyone)
        self._settle()
        for chain in self.allocator.state.cells.chains.values() if self._in_order else ():
            chain.forest.in_order = True
            for pool in chain.pools.values():
                pool.in_order = True

    def run(self, watch: Watch | None = None) -> bool:
        """Continue until every job has ended, the time is over, or nothing more will ever happen.

        Args:
            watch: Called at times; it may end the run.

        Returns:
            False if `watch` ended it.
        """
        jobs = len(self.trace.jobs)
        for number, _ in enumerate(self.steps()):
            due = watch is not None and number % WATCHED_EVERY == 0
            if due and watch and not watch(jobs - self.ledger.open, jobs):
                return False
        return True

    def steps(self) -> Iterator[Instant]:
        """Continue as `run` does, and yield every instant after it."""
        self._begin()
        settings, until = self.allocator.settings, self.settings.until
        end = None if until is None else after(BEGIN, until)
        while self.ledger.open:
            at = self._soonest()
            if at is None or self._stuck(at):
                self.stuck = True
                break
            if end is not None and at > end:
                break
            self.samples.until(at)
            self.now = at
            settings.defers = self._at_once
            if self.reports is not None:
                self.reports.tick(at)
            self._promises(at)
            self._happens(at)
            settings.defers = False
            if self.ledger.events >= self._look_at:
                self._look_at += LOOK_AT
                self.allocator.tx.soft.check_at = at
            wake = self.allocator.wake_at()
            if self._at_once or (wake is not None and wake <= at):
                self._inbox.append(Tick())
            self._settle()
            if self.reports is not None:
                self._exchange_messages()
            yield at
        if end is not None and self.ledger.open:
            self.samples.until(end)
            self.now = end
        self.samples.until(self.now)

    def _promises(self, at: Instant) -> None:
        """Let admission judge again what has come to its time."""
        wake = self.admission.wake_at()
        while wake is not None and wake <= at:
            self._admit(Tick())
            wake = self.admission.wake_at()

    def _exchange_messages(self) -> None:
        """Exchange all messages of this instant, until there are no new ones."""
        reports = self.reports
        assert reports is not None
        reports.tell(self.now)
        while reports.said:
            self._inbox += reports.said
            reports.said.clear()
            self._settle()
            reports.tell(self.now)
        reports.report(self.now)
        self._push()

    def _happens(self, at: Instant) -> None:
        """Process the events of an instant: ends first, then arrivals."""
        jobs, heap, agents = self.trace.jobs, self._heap, self.agents
        while heap and heap[0][0] <= at:
            _, _, event = heapq.heappop(heap)
            event[0](*event[1:], at)
            if agents.outbox:
                self._settle()
        while self._next < len(jobs) and BEGIN + jobs[self._next].at <= at:
            self._submit(self._next)
            self._next += 1
            self._settle()
        while self._coming is not None and BEGIN + self._coming[0] <= at:
            self._request(self._coming[1])
            self._coming = next(self._news, None)
            self._settle()

    def _soonest(self) -> Instant | None:
        """Return when the next event happens; None: there is none."""
        soonest = self.allocator.wake_at()
        if self._heap and (soonest is None or self._heap[0][0] < soonest):
            soonest = self._heap[0][0]
        if self._next < len(self.trace.jobs):
            arrives = after(BEGIN, self.trace.jobs[self._next].at)
            if soonest is None or arrives < soonest:
                soonest = arrives
        if self._coming is not None:
            comes = after(BEGIN, self._coming[0])
            if soonest is None or comes < soonest:
                soonest = comes
        judges = self.admission.wake_at()
        if judges is not None and (soonest is None or judges < soonest):
            soonest = judges
        if self.reports is not None:
            wakes = self.reports.wake_at()
            if wakes is not None and (soonest is None or wakes < soonest):
                soonest = wakes
        return None if soonest is None else max(soonest, self.now)

    def _stuck(self, at: Instant) -> bool:
        """Return whether jobs wait for ever: none runs, and none is still to be submitted."""
        if self._heap or self._next < len(self.trace.jobs) or self._coming is not None:
            self._idle = 0
            return False
        wake = self.allocator.wake_at()
        self._idle += OTHERS if wake is not None and wake <= at else 1
        return self._idle > IDLE_LOOKS * OTHERS or at - BEGIN >= FOR_EVER // 2

    def _submit(self, index: int) -> None:
        job = self.trace.jobs[index]
        self._admit(
            Submission(
                job=job_id(index + 1),
                vc=self._owners.vc(job),
                raw=self._owners.write(job),
                at=self.now,
            )
        )

    def _request(self, news: News) -> None:
        """Pass on a request of an operator or a tenant; facts contain the result."""
        if isinstance(news, DrainNode | QuarantineGpu):
            self._inbox.append(news)
            return
        if isinstance(news, Crash):
            self.agents.crash(news.node, self.now)
            return
        self._asked += 1
        vc = self._owners.vc(self.agents.works[news.job].job)
        self._admit(AskRequest(vc=vc, raw=encode(news), at=self.now, number=self._asked))

    # --- the machines ------------------------------------------------------------------------

    def _admit(self, event: Any) -> None:
        """Let admission decide, and pass on what the allocator follows."""
        for effect in self.admission.decide(event, self.now):
            if type(effect) is Record:
                fact = effect.fact
                if self.hear is not None:
                    self.hear(fact, self.now)
                if isinstance(fact, Admitted | ChangeAsked | CancelAsked):
                    self._inbox.append(Facts(service="admission", at=self.now, facts=(fact,)))
                elif type(fact) is Refused:
                    self.ledger.refuse(fact)

    def _settle(self) -> None:
        """Let the allocator decide and nodes answer, until there are no more messages now.

        Raises:
            CircleError: That does not end.
        """
        inbox, agents, allocator, now = self._inbox, self.agents, self.allocator, self.now
        if agents.outbox:
            inbox += agents.outbox
            agents.outbox.clear()
        if not inbox:
            agents.settle(now)
            self._push()
            return
        tx, settings, asked = allocator.tx, allocator.settings, False
        held = settings.defers
        self._circles.begin()
        while inbox:
            event = inbox.popleft()
            settings.defers = held or (self._at_once and bool(inbox))
            effects = allocator.decide(event, now)
            self._circles.note(effects, now, asked=asked)
            asked = False
            if self._judge is not None:
                self._show(effects)
            self._carry_out(effects)
            if agents.outbox:
                inbox += agents.outbox
                agents.outbox.clear()
            if not inbox and tx.soft.check_at == now:
                inbox.append(Tick())  # It asks for a further decision at once: one is bounded.
                asked = True
        settings.defers = held
        agents.settle(now)
        self._push()

    def _push(self) -> None:
        """Schedule the later events of agents."""
        later = self.agents.later
        if not later:
            return
        for at, event in later:
            self._pushed += 1
            heapq.heappush(self._heap, (at, self._pushed, event))
        later.clear()

    def _carry_out(self, effects: list[Effect]) -> None:
        now, news, ledger = self.now, [], self.ledger
        for effect in effects:
            if type(effect) is Record:
                fact = effect.fact
                ledger.note(fact, now)
                if self.reports is not None:
                    self.reports.note(fact)
                if type(fact) in self._hears:
                    news.append(fact)
            elif type(effect) is Send:
                self._command(effect.message)
        if news:
            self._admit(Facts(service="allocator", at=now, facts=tuple(news)))

    def _show(self, effects: list[Effect]) -> None:
        """Pass the decision to the judge, once it is complete."""
        self._facts += [effect.fact for effect in effects if isinstance(effect, Record)]
        if self._judge is not None and self.allocator.tx.soft.check_at != self.now:
            self._judge(self, self._facts)
            self._facts = []

    def _command(self, message: Any) -> None:
        match message:
            case BindJob():
                self.agents.bind(message, self.now)
            case StopJob():
                self.agents.stop(message, self.now)
            case ChangeJob():
                self.agents.change(message, self.now)
            case Trials():
                if self.reports is not None:
                    self.reports.open(message, self.now)
            case Sight():
                assert self.reports is not None
                self.reports.see(message)
            case _:
                text = f"no node takes {message!r}"
                raise AssertionError(text)


def _with_policies(cluster: Cluster, settings: Settings) -> Cluster:
    """Return a cluster with the policies of a run.

    Raises:
        ValueError: A VC does not exist.
    """
    vcs = dict(cluster.vcs)
    _check_vcs(cluster, settings.policies)
    for vc, (policy, options) in settings.policies.items():
        vcs[vc] = msgspec.structs.replace(vcs[vc], policy=policy, options=options)
    return msgspec.structs.replace(cluster, vcs=vcs)


def _check_vcs(cluster: Cluster, named: Iterable[str]) -> None:
    """Check that VCs exist.

    Raises:
        ValueError: One does not.
    """
    for vc in named:
        if vc not in cluster.vcs:
            reason = f"no VC is called {vc!r}; there are: {', '.join(cluster.vcs)}"
            raise ValueError(reason)


def _made(cluster: Cluster, given: Mapping[str, Policy]) -> list[Policy]:
    """Return the policies that are in force."""
    return [given.get(name) or make(vc.policy, vc.options) for name, vc in cluster.vcs.items()]


def abilities(
    cluster: Cluster, settings: Settings, given: Mapping[str, Policy] = NONE_GIVEN
) -> tuple[str, ...]:
    """Return what Skep can do with jobs: not empty only where it makes a difference.

    Args:
        cluster: Its policies are in force where `settings` name no other.
        settings: `can` is used if it is given.
        given: Policies by VC instead of those.
    """
    if settings.can is not None:
        return settings.can
    named = {vc: policy for vc, (policy, _) in settings.policies.items()}
    acts = any(named.get(vc, each.policy) not in QUIET for vc, each in cluster.vcs.items())
    return EVERYTHING if acts or given else ()


def _reports(policies: list[Policy], settings: Settings, agents: Agents) -> Reports | None:
    """Return the reports of a run; None: nothing reports."""
    wanted = settings.reports
    if wanted == "none" and any(each.answers_within is not None for each in policies):
        wanted = "on-change"
    if wanted == "auto":
        goes = any(policy.sees_rates for policy in policies)
        wanted = "on-change" if goes else "none"
    if wanted == "none":
        return None
    agents.paced = {}
    timed = wanted == "timed"
    return Reports(agents, settings, every_second=timed or wanted == "per-second", timed=timed)


def _nodes(cluster: Cluster, memory: Mapping[str, int]) -> Iterator[NodeJoined]:
    """Yield the message of every node as it joins, with the GPUs of all its chains."""
    gpus: dict[str, list[Gpu]] = {}
    for chain in cluster.chains.values():
        size = 1
        for level in chain.levels:
            size *= level.fanout
            if level.name == chain.node_level:
                break
        for cell in chain.nodes:
            gpus.setdefault(cell.node, []).extend(
                Gpu(index=index, type=chain.gpu, memory=memory.get(chain.gpu, 0))
                for index in cell.devices or range(size)
            )
    for node, devices in gpus.items():
        yield NodeJoined(
            node=node,
            identity=f"id-{node}",
            incarnation=1,
            address="10.0.0.1",
            ports=(20000, 29999),
            gpus=tuple(devices),
            cpus=NODE_CPUS,
            memory=NODE_MEMORY,
        )
