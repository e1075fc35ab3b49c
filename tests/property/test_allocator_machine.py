"""The allocator among agents that restart, vanish, repeat and reorder, beside a plain bitmap."""

from collections import deque
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skep.cells.check import check_cells
from skep.cells.decide import placement
from skep.cells.state import Cells
from skep.ids import attempt_id, job_of
from skep.ledger.attempts import request
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine, Kept
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.placement.placing import _limit
from skep.machines.allocator.placement.quota import borrows
from skep.machines.base import Effect, Record, Send, Tick
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.advice import JobAdvice, QueueAdvice
from skep.wire.bearing import RULES
from skep.wire.cluster import Chain, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.commands import BindJob, ClearNode, JoinAgain, RefuseNode, StopJob
from skep.wire.facts import (
    CellsReserved,
    CellsSet,
    EpochBegan,
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
from tests.effort import examples
from tests.kit import (
    T0,
    Driver,
    admitted,
    assert_durable_alike,
    at,
    cancel_asked,
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
"""Gangs that the empty cluster holds on either type of GPU."""

specs = st.builds(
    lambda shape, **rest: {**shape, **rest},
    st.sampled_from(SHAPES),
    vc=st.sampled_from(["nlp", "cv"]),
    cpus=st.sampled_from([0, 2]),
    gpu_type=st.sampled_from([None, None, "cpu", "h200"]),
    priority=st.sampled_from([0, 0, 5, 9]),
    opportunistic=st.booleans(),
    over_quota=st.sampled_from(["wait", "wait", "opportunistic"]),
    demotable=st.booleans(),
    retries=st.integers(0, 1),
    time=st.sampled_from([None, 20]),
)


HAPPENINGS = [
    *["submit", "go_well"] * 6,
    *["exit", "obey", "deliver", "press"] * 2,
    *["wait", "crash"] * 2,
    *["cancel", "restart_agent", "replace_agent", "double", "drain", "set_quotas", "advise"],
    *["quarantine", "resize", "describe", "keep"],
]
"""What may happen, as often as it is named."""


PAIRS = (Level(name="pair", fanout=2), Level(name="node", fanout=2))
WHOLE = {
    "big": Chain(gpu="cpu", levels=PAIRS, node_level="node", nodes=(NodeCell(node="node-1"),)),
    "small": Chain(
        gpu="cpu",
        levels=(Level(name="node", fanout=2),),
        node_level="node",
        nodes=(NodeCell(node="node-2"),),
    ),
    "fast": Chain(
        gpu="h200",
        levels=(*PAIRS, Level(name="rack", fanout=1)),
        node_level="node",
        nodes=(NodeCell(node="node-3"),),
    ),
    "odd": Chain(
        gpu="h200",
        levels=(Level(name="node", fanout=2),),
        node_level="node",
        nodes=(NodeCell(node="node-2", devices=(3, 2)),),
    ),
}
"""Every GPU of every node, described."""

TURNED = {
    "big": msgspec.structs.replace(
        WHOLE["big"], nodes=(NodeCell(node="node-1", devices=(2, 0, 3, 1)),)
    ),
    "few": msgspec.structs.replace(WHOLE["odd"], nodes=(NodeCell(node="node-3", devices=(1, 2)),)),
}
"""Some of them, in another order: what runs elsewhere is in no chain."""


def owning(**cells: dict[tuple[str, str], int]) -> dict[str, VirtualCluster]:
    """Return virtual clusters by how many cells they own of (chain, level)."""
    return {
        name: VirtualCluster(
            cells=tuple(
                Quota(chain=chain, level=level, count=count)
                for (chain, level), count in owned.items()
            ),
            weight=2.0 if name == "cv" else 1.0,
        )
        for name, owned in cells.items()
    }


DESCRIBED = [
    SetVcs(chains=WHOLE, vcs=vcs(nlp=6, cv=6)),
    SetVcs(
        chains=WHOLE,
        vcs=owning(
            nlp={("big", "node"): 1, ("odd", "gpu"): 1},
            cv={("fast", "rack"): 1, ("small", "node"): 1},
        ),
    ),
    SetVcs(
        chains=WHOLE,
        vcs=owning(
            nlp={("fast", "pair"): 2, ("big", "pair"): 1},
            cv={("big", "gpu"): 2, ("small", "node"): 1},
        ),
    ),
    SetVcs(chains=TURNED, vcs=owning(nlp={("big", "pair"): 1}, cv={("big", "pair"): 1})),
    SetVcs(chains=TURNED, vcs=owning(cv={("big", "node"): 1, ("few", "gpu"): 1})),
    SetVcs(
        chains=WHOLE,
        pins={"mine": Pin(chain="big", level="pair", index=0)},
        vcs={**owning(cv={("fast", "node"): 1}), "nlp": VirtualCluster(pinned=("mine",), gpus=1)},
    ),
]
"""Clusters that an operator may set, one after the other, whatever runs."""


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
                    # A GPU that is gone for a while is still whose it was.
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


class Agent:
    """A node as the allocator may find it: obeys in any order, dies, comes back, or is replaced."""

    def __init__(self, node: str, identity: str) -> None:
        self.node, self.identity = node, identity
        self.gpus = NODES[node]
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
            joined(
                self.node,
                self.gpus,
                identity=self.identity,
                cpus=CPUS,
                incarnation=self.incarnation,
            )
        )

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
        self.shadow: AllocatorMachine | None = None
        """A machine from an earlier snapshot, which the facts since then keep up to date."""

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
        """Keep the bitmap, and assert what concerns orders and nodes to be cleared."""
        self.bitmap.take_over(fact)
        if self.shadow is not None:
            self.shadow.apply(fact)
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

    @initialize(present=st.sampled_from([list(NODES), list(NODES), []]))
    def begin(self, present: list[str]) -> None:
        self.follow(self.decide.restart(0))
        self.feed(SetVcs(vcs=vcs(nlp=6, cv=4)))
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

    def press(self, _: str, data: st.DataObject) -> None:
        """One tenant asks for more and more: opportunistic jobs, then ever higher priorities."""
        vc, gpus = data.draw(st.sampled_from(["nlp", "cv"])), data.draw(st.sampled_from([1, 2]))
        flood = data.draw(st.booleans())
        for number, opportunistic in enumerate([flood, flood, False, False, False, False]):
            self.sequence += 1
            job: dict[str, Any] = {
                "vc": vc,
                "gpus": gpus,
                "opportunistic": opportunistic,
                "priority": 3 * number,
            }
            self.feed(admitted(self.sequence, demotable=data.draw(st.booleans()), **job))

    def cancel(self, _: str, data: st.DataObject) -> None:
        if self.decide.machine.state.jobs:
            job = data.draw(st.sampled_from(list(self.decide.machine.state.jobs)))
            self.feed(cancel_asked(int(job[1:])))
            assert self.feed(cancel_asked(int(job[1:]))) == []

    def go_well(self, _: str, data: st.DataObject) -> None:
        """Every command arrives, and so does every answer. What can never run is given up."""
        for job in list(self.decide.machine.state.jobs.values()):
            if job.waits is not None and job.waits[0] is Reason.FITS_NO_CELL:
                self.feed(cancel_asked(job.sequence))
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
        if node not in self.decide.machine.state.nodes:
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
        assert self.decide.machine.state.nodes[node].joined.identity == chosen.identity

    def double(self, node: str, data: st.DataObject) -> None:
        """Another machine claims the name."""
        self.feed(heartbeat(node, f"{self.agents[node].identity}-double"))

    def drain(self, node: str, data: st.DataObject) -> None:
        self.feed(DrainNode(node=node, drain=data.draw(st.booleans())))

    def set_quotas(self, _: str, data: st.DataObject) -> None:
        """The nodes that joined make up the chains, and tenants own so many GPUs of them."""
        gpus = data.draw(st.integers(2, 8))
        self.feed(SetVcs(vcs=vcs(nlp=gpus, cv=12 - gpus)))

    def describe(self, _: str, data: st.DataObject) -> None:
        """Other chains, other owners: nobody is stopped by that."""
        before = dict(self.bitmap.active)
        effects = self.feed(data.draw(st.sampled_from(DESCRIBED)))
        changed = [
            e.fact for e in effects if isinstance(e, Record) and isinstance(e.fact, CellsSet)
        ]
        assert len(changed) <= 1
        if changed:
            (fact,) = changed
            stopped = [
                e.fact.job
                for e in effects
                if isinstance(e, Record) and isinstance(e.fact, JobStopping)
            ]
            # Only who is needed to make room for another, by a decision of its own.
            assert not stopped or any(
                isinstance(e, Record) and isinstance(e.fact, CellsReserved) for e in effects
            )
            assert {fate.job for fate in fact.fates} <= set(self.bitmap.specs)
            # A job may borrow GPUs and lose them to a later VC's own job in one decision.
            bound = [
                e.fact.job
                for e in effects
                if isinstance(e, Record)
                and isinstance(e.fact, JobBound)
                and not any(member.levels for member in e.fact.members)
            ]
            assert all(job in before or job in bound for job in stopped)

    def quarantine(self, node: str, data: st.DataObject) -> None:
        device = data.draw(st.integers(0, 3))
        self.feed(QuarantineGpu(node=node, device=device, quarantine=data.draw(st.booleans())))

    def resize(self, node: str, data: st.DataObject) -> None:
        """The agent starts again with fewer GPUs than before, or with all of them."""
        agent = self.agents[node]
        agent.gpus = data.draw(st.sampled_from([NODES[node], NODES[node], {"cpu": 2}]))
        agent.join()

    def keep(self, _: str, data: st.DataObject) -> None:
        """Somebody takes a snapshot, from which facts lead to the same state as from the start."""
        self.shadow = restored(self.decide.machine)

    def advise(self, _: str, data: st.DataObject) -> None:
        waiting = [
            job for job in self.decide.machine.state.jobs.values() if job.state is State.QUEUED
        ]
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
        if self.shadow is not None:
            self.shadow.apply(EpochBegan(epoch=self.decide.epoch + 1, owner="", rules=RULES))
        self.follow(self.decide.restart(self.second))

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def a_snapshot_rebuilds_the_machine(self) -> None:
        again = restored(self.decide.machine)
        again.check()
        check_cells(again.state.cells)
        assert_durable_alike(again, self.decide.machine)

    @invariant()
    def a_snapshot_and_what_came_since_rebuild_it(self) -> None:
        if self.shadow is not None:
            assert_durable_alike(self.shadow, self.decide.machine)

    @invariant()
    def the_bitmap_agrees(self) -> None:
        machine = self.decide.machine
        cells = machine.state.cells
        assert all(node.cpus_free >= 0 for node in machine.state.nodes.values())
        used = {gpu: holder for gpu, holder in self.bitmap.holder.items() if holder is not None}
        for gpu, (job, attempt) in used.items():
            name = attempt_id(job, attempt)
            found = cells.find(*gpu)
            hold = cells.chains[found[0]].user[found[1]] if found is not None else None
            assert (hold is not None and hold.job == name) or gpu in cells.off_chain[name], gpu
        known = sum(user is not None for chain in cells.chains.values() for user in chain.user)
        assert known + sum(len(gpus) for gpus in cells.off_chain.values()) == len(used)
        unfinished = [job for job in self.bitmap.specs if job not in self.bitmap.ends]
        assert list(machine.state.jobs) == unfinished
        assert set(self.bitmap.ends.values()) <= {1}

    @invariant()
    def no_gpu_runs_two_processes(self) -> None:
        for agent in self.agents.values():
            used = [
                d for bind in agent.running.values() for rank in bind.ranks for d in rank.devices
            ]
            assert len(used) == len(set(used)), agent.running

    @invariant()
    def what_is_claimed_is_waited_for_or_bound(self) -> None:
        """Whoever has a reservation waits for somebody who is being stopped, or for CPUs."""
        machine = self.decide.machine
        for job in machine.state.reserved.values():
            name = attempt_id(job.job, job.attempt + 1)
            hold = machine.state.cells.holds[name]
            chain = machine.state.cells.chains[hold.chain]
            users = [chain.user[leaf] for spot in hold.spots for leaf in spot.leaves]
            for user in users:
                victim = machine.state.jobs.get(job_of(user.job)) if user is not None else None
                current = (
                    victim is not None
                    and user is not None
                    and (
                        user.job == attempt_id(victim.job, victim.attempt)
                        and victim.job in machine.state.placed
                    )
                )
                if victim is not None and current:
                    assert victim.state is State.STOPPING, (job, victim)
            short = job.spec.resources.cpus or (job.waits or ("",))[0] is Reason.WAITS_FOR_PORT
            assert any(user is not None for user in users) or short, job

    @invariant()
    def nobody_waits_for_what_could_be_had(self) -> None:
        """The first of every queue does not fit now, whatever was remembered of earlier trials."""
        machine, now = self.decide.machine, self.decide.now
        for queue in machine.state.queues.values():
            head = queue.head()
            if head is None:
                continue
            job = machine.state.jobs[head.entry.job]
            assert job.waits is not None, job
            if job.waits[0] is Reason.WAITS_FOR_PORT:
                continue
            for guaranteed in (True, False) if borrows(job) else (not job.spec.opportunistic,):
                asked = request(job, job.attempt + 1, guaranteed=guaranteed)
                limit = _limit(machine.state, job, asked.priority)
                assert (
                    placement.find_placement(
                        machine.state.cells, asked, job_cells.loss(machine.state, now), limit
                    )
                    is None
                ), asked

    @invariant()
    def a_vc_that_uses_nothing_gets_all_it_owns(self) -> None:
        """Sharing safety: with healthy hardware, only its own jobs keep a VC from its cells."""
        machine = self.decide.machine
        cells = machine.state.cells
        if any(chain.bad for chain in cells.chains.values()):
            return
        busy = {hold.vc for hold in cells.holds.values() if hold.guaranteed}
        for (vc, opportunistic), queue in machine.state.queues.items():
            head = queue.head()
            if opportunistic or vc in busy or head is None:
                continue
            job = machine.state.jobs[head.entry.job]
            asked = request(job, job.attempt + 1, guaranteed=True)
            fits = placement.find_placement(Cells(cells.cluster), asked) is not None
            assert (
                not fits or job.spec.resources.cpus or job.waits == (Reason.WAITS_FOR_PORT, "")
            ), job


def restored(machine: AllocatorMachine) -> AllocatorMachine:
    """Return a machine made from another's snapshot."""
    entries = msgspec.json.encode(machine.snapshot())
    again = AllocatorMachine()
    for entry in msgspec.json.decode(entries, type=list[Kept]):
        again.apply(entry)
    return again


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(stateful_step_count=50, max_examples=examples(60))
