"""The allocator among agents that restart, vanish, repeat and reorder, beside a plain bitmap."""

from collections import deque
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skep.machines.allocator import AllocatorMachine, Kept
from skep.machines.allocator.jobs import State
from skep.machines.base import Effect, Record, Send, Tick
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.advice import JobAdvice, QueueAdvice
from skep.wire.commands import BindJob, ClearNode, JoinAgain, RefuseNode, StopJob
from skep.wire.facts import (
    GhostGone,
    JobBound,
    JobEnded,
    JobQueued,
    JobRequeued,
    JobStopping,
    MemberGone,
    NodeAdded,
    NodeClean,
)
from skep.wire.node import NodeCleared, NodeJoined, Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from tests.kit import (
    T0,
    Driver,
    admitted,
    at,
    cancel_asked,
    durable,
    exited,
    heartbeat,
    joined,
    others,
    started,
    vcs,
)

NODES = {"node-1": {"cpu": 4}, "node-2": {"cpu": 2, "h200": 2}, "node-3": {"h200": 4}}
CPUS = 5
"""Fewer than the GPUs of a node times what a worker may want: CPUs are short too."""
Key = tuple[str, int]

SHAPES = [
    {"gpus": 1},
    {"gpus": 3},
    {"gpus": 1, "workers": 3},
    {"gpus": 1, "workers": 4, "hard": False},
    {"gpus": 2, "workers": 2},
    {"gpus": 1, "workers": 2, "hard": True},
]
"""Gangs that the empty cluster holds on either type of GPU: none blocks its queue for ever."""

specs = st.builds(
    lambda shape, **rest: {**shape, **rest},
    st.sampled_from(SHAPES),
    vc=st.sampled_from(["nlp", "cv"]),
    cpus=st.sampled_from([0, 2]),
    gpu_type=st.sampled_from([None, None, "cpu", "h200"]),
    priority=st.sampled_from([0, 0, 5]),
    opportunistic=st.booleans(),
    retries=st.integers(0, 1),
    time=st.sampled_from([None, 20]),
)


HAPPENINGS = [
    *["submit", "exit", "obey", "deliver"] * 2,
    *["go_well"] * 4,
    *["wait", "crash"] * 2,
    *["cancel", "restart_agent", "replace_agent", "double", "drain", "set_quotas", "advise"],
]
"""What may happen, as often as it is named."""


class Bitmap:
    """The reference model: for each GPU which attempt has it, told by the facts alone."""

    def __init__(self) -> None:
        self.holder: dict[tuple[str, int], Key | None] = {}
        self.kind: dict[tuple[str, int], str] = {}
        self.parts: dict[tuple[str, Key], list[tuple[str, int]]] = {}
        self.specs: dict[str, JobSpec] = {}
        self.ends: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        self.active: dict[str, JobSpec] = {}

    def take_over(self, fact: Any) -> None:
        match fact:
            case NodeAdded():
                for gpu in fact.joined.gpus:
                    self.holder.setdefault((fact.joined.node, gpu.index), None)
                    self.kind[fact.joined.node, gpu.index] = gpu.type
            case JobQueued():
                assert fact.job not in self.specs
                self.specs[fact.job] = fact.spec
            case JobBound():
                self.bound(fact)
            case MemberGone(free=True) | GhostGone():
                for freed in self.parts.pop((fact.node, (fact.job, fact.attempt))):
                    self.holder[freed] = None
            case JobRequeued():
                del self.active[fact.job]
            case JobEnded():
                self.active.pop(fact.job, None)
                self.ends[fact.job] = self.ends.get(fact.job, 0) + 1
            case _:
                pass

    def bound(self, fact: JobBound) -> None:
        """Assert that a gang is whole, of one type, on GPUs nobody has, and an attempt further."""
        wanted = self.specs[fact.job]
        assert fact.job not in self.ends
        assert fact.attempt == self.attempts.get(fact.job, 0) + 1
        self.attempts[fact.job] = fact.attempt
        self.active[fact.job] = wanted
        gpus = [(each.node, d) for each in fact.members for rank in each.devices for d in rank]
        ranks = [rank for each in fact.members for rank in each.devices]
        assert len(gpus) == wanted.gpus
        assert [len(rank) for rank in ranks] == [wanted.resources.gpus] * wanted.resources.workers
        kinds = {self.kind[gpu] for gpu in gpus}
        assert len(kinds) == 1
        assert wanted.resources.gpu_type in {None, *kinds}
        if wanted.resources.topology is not None and wanted.resources.topology.hard:
            assert len(fact.members) == 1
        for gpu in gpus:
            assert self.holder[gpu] is None, f"{gpu} is held by {self.holder[gpu]}"
            self.holder[gpu] = fact.job, fact.attempt
        for each in fact.members:
            self.parts[each.node, (fact.job, fact.attempt)] = [
                (each.node, d) for rank in each.devices for d in rank
            ]

    def free(self, kind: str, node: str) -> int:
        return sum(
            holder is None and self.kind[gpu] == kind and gpu[0] == node
            for gpu, holder in self.holder.items()
        )


class Agent:
    """A node as the allocator may find it: obeys in any order, dies, comes back, or is replaced."""

    def __init__(self, node: str, identity: str) -> None:
        self.node, self.identity = node, identity
        self.incarnation = 0
        self.cleared = 0
        self.heard: list[BindJob | StopJob | ClearNode] = []
        self.taken: dict[Key, int] = {}
        self.running: dict[Key, BindJob] = {}
        self.stream: deque[Any] = deque()
        self.join()

    def join(self) -> None:
        self.incarnation += 1
        self.stream.append(
            joined(self.node, NODES[self.node], identity=self.identity, cpus=CPUS,
                   incarnation=self.incarnation)
        )  # fmt: skip

    def obey(self, command: BindJob | StopJob | ClearNode) -> None:
        if isinstance(command, ClearNode):
            self.clear(command)
            return
        key = command.job, command.attempt
        floor = max(self.taken.get(key, 0), self.cleared)
        if command.identity != self.identity or command.order <= floor:
            return
        first = key not in self.taken
        self.taken[key] = command.order
        if isinstance(command, BindJob):
            if first:
                self.running[key] = command
                self.stream.append(started(*key, self.node, identity=self.identity))
        elif first or key in self.running:
            self.end(key, Outcome.STOPPED)

    def clear(self, command: ClearNode) -> None:
        if command.identity == self.identity:
            self.cleared = max(self.cleared, command.order)
            for key in [key for key, run in self.running.items() if run.order <= command.order]:
                self.end(key, Outcome.STOPPED)
            self.stream.append(
                NodeCleared(node=self.node, identity=self.identity, order=command.order)
            )

    def end(self, key: Key, outcome: Outcome) -> None:
        self.running.pop(key, None)
        self.stream.append(exited(*key, self.node, outcome, identity=self.identity))


class Allocator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.decide = Driver(AllocatorMachine)
        self.bitmap = Bitmap()
        self.agents: dict[str, Agent] = {}
        self.former: dict[str, list[Agent]] = {}
        self.unclear: dict[str, int] = {}
        self.machines = 0
        self.sequence = 0
        self.order = 0
        self.second = 0.0
        self.quotas = {"nlp": 6, "cv": 4}

    def feed(self, event: Any) -> list[Effect]:
        return self.follow(self.decide(event, self.second))

    def follow(self, effects: list[Effect]) -> list[Effect]:
        """Let the model and the agents see what a decision led to."""
        for effect in effects:
            if isinstance(effect, Record):
                self.take_over(effect.fact)
            elif isinstance(effect, Send):
                self.hear(effect)
        return effects

    def take_over(self, fact: Any) -> None:
        """Keep the bitmap, and assert that whoever is bound keeps to the quota."""
        self.bitmap.take_over(fact)
        if isinstance(fact, JobBound | JobStopping):
            assert fact.order == self.order + 1
            self.order = fact.order
        if isinstance(fact, NodeAdded):
            name = fact.joined.node
            self.unclear[name] = max(self.unclear.get(name, 0), fact.clear)
        if isinstance(fact, NodeClean):
            agent, order = self.agents[fact.node], self.unclear.pop(fact.node)
            assert not [key for key, run in agent.running.items() if run.order <= order]
        if isinstance(fact, JobBound):
            assert not [each for each in fact.members if self.unclear.get(each.node)]
            active = self.bitmap.active
            if not active[fact.job].opportunistic:
                vc = active[fact.job].vc
                mine = [each for each in active.values() if each.vc == vc]
                held = sum(each.gpus for each in mine if not each.opportunistic)
                assert held <= self.quotas[vc], (vc, held)

    def hear(self, effect: Send) -> None:
        command = effect.message
        agent = self.agents[command.node]
        assert effect.subject == f"skep.v1.cmd.{command.node}"
        assert command.epoch == self.decide.epoch
        if isinstance(command, JoinAgain):
            if command.identity == agent.identity:
                agent.join()
        elif isinstance(command, ClearNode):
            agent.heard.append(command)
        elif not isinstance(command, RefuseNode):
            assert command.settled < command.order
            agent.heard.append(command)

    @initialize(present=st.sampled_from([list(NODES), list(NODES)[:2], []]))
    def begin(self, present: list[str]) -> None:
        self.follow(self.decide.restart(0))
        self.feed(SetVcs(vcs=vcs(**self.quotas)))
        for node in NODES:
            self.agents[node] = Agent(node, f"id-{node}")
        for node in present:
            self.feed(self.agents[node].stream.popleft())

    # --- what happens ----------------------------------------------------------------------------

    @rule(what=st.sampled_from(HAPPENINGS), node=st.sampled_from(list(NODES)), data=st.data())
    def happen(self, what: str, node: str, data: st.DataObject) -> None:
        """Let one thing happen.

        One rule, because rules of their own would be switched off at random for whole runs, and
        then jobs seldom come far.
        """
        getattr(self, what)(node, data)

    def submit(self, _: str, data: st.DataObject) -> None:
        for job in data.draw(st.lists(specs, min_size=1, max_size=3)):
            self.sequence += 1
            self.feed(admitted(self.sequence, **job))
            assert self.feed(admitted(self.sequence, **job)) == []

    def cancel(self, _: str, data: st.DataObject) -> None:
        if self.decide.machine.jobs:
            job = data.draw(st.sampled_from(list(self.decide.machine.jobs)))
            self.feed(cancel_asked(int(job[1:])))
            assert self.feed(cancel_asked(int(job[1:]))) == []

    def go_well(self, _: str, data: st.DataObject) -> None:
        """Every command arrives, and so does every answer."""
        for agent in self.agents.values():
            for command in agent.heard:
                agent.obey(command)
            while agent.stream:
                self.feed(agent.stream.popleft())

    def obey(self, node: str, data: st.DataObject) -> None:
        """A command arrives: any that was ever sent, late, twice or never."""
        agent = self.agents[node]
        if agent.heard:
            latest = len(agent.heard) - 1
            agent.obey(agent.heard[data.draw(st.integers(0, latest) | st.just(latest))])

    def deliver(self, node: str, data: st.DataObject) -> None:
        """An answer arrives: in order, perhaps twice."""
        stream = self.agents[node].stream
        if stream:
            event = stream.popleft()
            self.feed(event)
            if not isinstance(event, NodeJoined) and data.draw(st.booleans()):
                assert others(self.feed(event)) == []

    def exit(self, _: str, data: st.DataObject) -> None:
        """A job's processes on one node end by themselves."""
        running = [each for each in self.agents.values() if each.running]
        if running:
            agent = data.draw(st.sampled_from(running))
            key = data.draw(st.sampled_from(list(agent.running)))
            agent.end(key, data.draw(st.sampled_from(Outcome)))

    def restart_agent(self, node: str, data: st.DataObject) -> None:
        self.agents[node].join()

    def replace_agent(self, node: str, data: st.DataObject) -> None:
        """Another machine takes a silent name: a fresh one, or one that had it and still runs."""
        agent, former = self.agents[node], self.former.setdefault(node, [])
        if node not in self.decide.machine.nodes:
            return
        self.second += 6
        comes_back = data.draw(st.booleans())
        if former and comes_back:
            chosen = former.pop(0)
            chosen.join()
        else:
            self.machines += 1
            chosen = Agent(node, f"id-{node}-{self.machines}")
        former.append(agent)
        self.agents[node] = chosen
        while chosen.stream:
            self.feed(chosen.stream.popleft())
        assert self.decide.machine.nodes[node].joined.identity == chosen.identity

    def double(self, node: str, data: st.DataObject) -> None:
        """Another machine claims the name."""
        self.feed(heartbeat(node, f"{self.agents[node].identity}-double"))

    def drain(self, node: str, data: st.DataObject) -> None:
        self.feed(DrainNode(node=node, drain=data.draw(st.booleans())))

    def set_quotas(self, _: str, data: st.DataObject) -> None:
        gpus = data.draw(st.integers(4, 8))
        self.quotas = {"nlp": gpus, "cv": 12 - gpus}
        self.feed(SetVcs(vcs=vcs(**self.quotas)))

    def advise(self, _: str, data: st.DataObject) -> None:
        waiting = [job for job in self.decide.machine.jobs.values() if job.state is State.QUEUED]
        jobs = tuple(
            JobAdvice(job=job.job, why=Reason.PREDICTED_SHORTEST) for job in reversed(waiting)
        )
        until = at(self.second + data.draw(st.sampled_from([0, 5])))
        self.feed(QueueAdvice(at=T0, expires_at=until, jobs=jobs))

    def wait(self, node: str, data: st.DataObject) -> None:
        """Time passes; the timer rings a few times, and perhaps one node is silent."""
        length_s = data.draw(st.sampled_from([1, 3, 21, 41]))
        silent = data.draw(st.booleans())
        begin = self.second
        for step in range(1, 4):
            self.second = begin + length_s * step / 3
            for name, agent in self.agents.items():
                if name != node or not silent:
                    self.feed(heartbeat(name, agent.identity))
            wake = self.decide.machine.wake_at()
            if wake is not None and wake <= at(self.second):
                self.feed(Tick())

    def crash(self, _: str, data: st.DataObject) -> None:
        self.follow(self.decide.restart(self.second))

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def a_snapshot_rebuilds_the_machine(self) -> None:
        entries = msgspec.json.encode(self.decide.machine.snapshot())
        again = self.decide.make()
        for entry in msgspec.json.decode(entries, type=list[Kept]):
            again.apply(entry)
        again.check()
        assert durable(again) == durable(self.decide.machine)

    @invariant()
    def the_bitmap_agrees(self) -> None:
        machine = self.decide.machine
        free = {
            (name, index)
            for name, node in machine.nodes.items()
            for devices in node.free.values()
            for index in devices
        }
        assert all(node.cpus_free >= 0 for node in machine.nodes.values())
        assert free == {gpu for gpu, holder in self.bitmap.holder.items() if holder is None}
        unfinished = [job for job in self.bitmap.specs if job not in self.bitmap.ends]
        assert list(machine.jobs) == unfinished
        assert set(self.bitmap.ends.values()) <= {1}

    @invariant()
    def no_gpu_runs_two_processes(self) -> None:
        for agent in self.agents.values():
            used = [
                d for bind in agent.running.values() for rank in bind.ranks for d in rank.devices
            ]
            assert len(used) == len(set(used)), agent.running

    @invariant()
    def nobody_waits_for_what_is_free(self) -> None:
        """The guaranteed job with the highest claim within its quota does not fit."""
        machine = self.decide.machine
        if machine.soft.advice_until:
            return  # An equal may have been put before it.
        waiting = [job for job in machine.jobs.values() if job.state is State.QUEUED]
        heads: dict[str, Any] = {}
        for job in sorted(waiting, key=lambda job: job.entry):
            if not job.spec.opportunistic:
                heads.setdefault(job.spec.vc, job)
        for vc, job in sorted(heads.items(), key=lambda item: item[1].entry):
            if machine.used.get(vc, 0) + job.spec.gpus <= self.quotas[vc]:
                assert job.waits is not None, job
                assert not self.fits(job.spec), job
                break

    def fits(self, wanted: JobSpec) -> bool:
        """Return whether the gang fits, tried by hand on the bitmap."""
        resources = wanted.resources
        hard = resources.topology is not None and resources.topology.hard
        for kind in ["cpu", "h200"] if resources.gpu_type is None else [resources.gpu_type]:
            room = []
            for name, node in self.decide.machine.nodes.items():
                if node.usable:
                    workers = self.bitmap.free(kind, name) // resources.gpus
                    cpus = node.cpus_free // resources.cpus if resources.cpus else workers
                    room.append(max(0, min(workers, cpus)))
            if room and (max(room) if hard else sum(room)) >= resources.workers:
                return True
        return False


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(stateful_step_count=50)
