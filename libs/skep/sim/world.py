"""One history: the services, the nodes, the tenants, and what befalls them, from one seed.

First chaos, while tenants submit and cancel, until enough has happened and gone wrong. Then heal:
no faults, everything restarted, every message delivered; and everything that was acknowledged must
come to its one end within a bounded time. `check` says what must hold all along.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from skep.machines.admission import AdmissionMachine
from skep.machines.agent import AgentMachine
from skep.machines.allocator import AllocatorMachine, settings
from skep.sim.check import Watch
from skep.sim.driver import Habits, Process
from skep.sim.logs import FactLog
from skep.sim.modelled import ModelJob
from skep.sim.network import Network
from skep.sim.processes import Host
from skep.sim.ranks import greet, serve
from skep.sim.services import LOGGED, SERVICES, Patience, Role
from skep.sim.story import Story
from skep.sim.timeline import MILLISECOND, SECOND, Timeline
from skep.sim.violation import require
from skep.sim.workload import (
    ARRAYS_FROM,
    ARRAYS_UNTIL,
    EXPLORES_FROM,
    GATED_FROM,
    LATER_FROM,
    LEARNED_FROM,
    LIFE_FROM,
    LIFE_UNTIL,
    MIXED_FROM,
    MIXED_UNTIL,
    PEOPLE_FROM,
    PEOPLE_UNTIL,
    PIPELINES_FROM,
    PIPELINES_UNTIL,
    SHARES_FROM,
    SHARES_UNTIL,
    WAITS_FROM,
    WAITS_UNTIL,
    People,
    Shown,
)
from skep.units import seconds
from skep.wire import subjects
from skep.wire.array import ArrayAdmitted
from skep.wire.facts import Admitted, Repeated
from skep.wire.node import Gpu

ROOMY = 0.25
"""How many histories have nodes to spare, and tenants who mostly have their jobs moved."""
OPERATOR_COMES_AFTER = 12 * SECOND
"""When an operator starts an agent again that was refused although nobody else has its name."""

NODE_LOST_AFTER = (seconds(7), seconds(15), settings.NODE_LOST_AFTER)
"""How long a silent node is waited for, in different histories: jobs run for seconds here."""

TRIALS_LAST = (seconds(3), seconds(10), settings.LASTS)
"""How long a trial may go without a verdict, likewise."""

OPEN_S_MAX = 60
"""How long all nodes may take to join."""

MOMENTS_MAX = 400_000
"""Many times what a history takes: one that does not end has a loop without progress."""


class Settings(msgspec.Struct, frozen=True):
    """How to run a history: with the fence or without, with faults or without, with its story.

    `check_every` steps of a process its machine is checked; the logs are checked always.
    """

    fence: bool = True
    faults: bool = True
    story: bool = False
    check_every: int = 1
    notes: bool = False
    """Services note what they decide on."""


class World:
    """Everything there is, and what happens between its parts."""

    def __init__(self, seed: int, settings: Settings) -> None:
        """Lay out a cluster; nothing runs before `open`."""
        self.rng = rng = random.Random(seed)
        self.settings = settings
        self.timeline = Timeline()
        self.story = Story(self.timeline, on=settings.story)
        self.network = Network(self.timeline, rng, self.story)
        self.hosts: dict[str, Host] = {}
        self.watch = Watch(self.hosts, strict=settings.fence)
        self.roles: dict[str, Role] = {}
        self.nodes: list[str] = []
        self.people = People(
            self.network,
            self.timeline,
            rng,
            self.story,
            self.nodes,
            chance=random.Random(seed),
            policies=random.Random(seed + 1),
            later=seed >= LATER_FROM,
            learned=seed >= LEARNED_FROM,
            explores=seed >= EXPLORES_FROM,
            sharing=random.Random(seed + 3) if PEOPLE_FROM <= seed < PEOPLE_UNTIL else None,
            waits=random.Random(seed + 4) if _waits(seed) else None,
            gated=GATED_FROM <= seed < ARRAYS_UNTIL or _pipelines(seed),
            arrays=random.Random(seed + 4) if _arrays(seed) else None,
            shares=random.Random(seed + 5) if SHARES_FROM <= seed < SHARES_UNTIL else None,
            life=random.Random(seed + 4) if LIFE_FROM <= seed < LIFE_UNTIL else None,
            pipelines=_pipelines(seed),
            mixed=random.Random(seed + 5) if MIXED_FROM <= seed < MIXED_UNTIL else None,
        )
        self._timed = seed >= LATER_FROM
        """Whether jobs have deadlines; then admission hears how they go."""
        self.people.running, self.people.waiting = self._running, self._waiting
        self.strays: list[Process] = []
        """Processes that live beside the one in their role: paused ones with a successor."""
        self.restart_ns_max = rng.choice((100 * MILLISECOND, SECOND, 4 * SECOND))
        self.habits = Habits(
            batch_max=rng.choice((1, 4, 256)),
            compacts=rng.random() < 0.5,
            record_facts_max=rng.choice((1, 3, 100)),
            check_every=settings.check_every,
            keep_every=rng.choice((0, 2, 7, 30)),
            notes=settings.notes,
        )
        self.on_start: Callable[[Role], None] = _ignore
        """Sees every process before it begins."""
        self.patience = Patience(
            forget_at_once=rng.choice((1, 1, 3, 32)),
            node_lost_after=rng.choice(NODE_LOST_AFTER),
            trials_last=random.Random(seed + 2).choice(TRIALS_LAST),
            guesses=seed if seed >= LEARNED_FROM else 0,
        )
        self._decided = 0
        self._steps = 0

    # --- layout ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Start every service and node; tenants begin once admission knows the nodes."""
        rng = self.rng
        for service in SERVICES:
            log = None
            if service in LOGGED:
                watch = self.watch.log_of(service)
                log = FactLog(service, watch, fenced=self.settings.fence)
            hears = self._timed and service == "admission"
            listen = (subjects.ADVICE_OUTLOOK,) if hears else ()
            self.start(self._add(Role(service, log, self.patience, listen=listen)))
        types = rng.choice((("cpu",), ("cpu",), ("a100", "v100")))
        skewed = rng.random() < 0.25
        roomy = rng.random() < ROOMY  # Then gangs on several nodes find others to go to.
        self.people.wander = roomy
        for number in range(rng.randrange(6, 9) if roomy else rng.randrange(2, 5)):
            node = f"n{number + 1}"
            self.nodes.append(node)
            kind = types[number % len(types)]
            gpus = tuple(
                Gpu(index=i, type=kind) for i in range(2 if roomy else rng.randrange(2, 5))
            )
            skew = rng.randrange(-30 * SECOND, 30 * SECOND) if skewed else 0
            self.add_host(node, gpus, skew)
        self.people.know([host.joined() for host in self.hosts.values()])
        self.until(lambda: len(self.nodes) - len(self.watch.admission.nodes), OPEN_S_MAX)
        self.people.begin()

    def add_host(self, node: str, gpus: tuple[Gpu, ...], skew: int) -> Host:
        """Add a machine that calls itself `node`, and start its agent.

        Args:
            node: What the machine calls itself.
            gpus: Its GPUs.
            skew: By how many nanoseconds its clock is ahead.
        """
        identity = f"{node}-{len(self.hosts) + 1}"
        host = Host(
            node,
            identity,
            gpus,
            timeline=self.timeline,
            rng=self.rng,
            story=self.story,
            keeper=self.watch,
        )
        host.skew, host.others, host.greeted = skew, serve, greet
        self.hosts[identity] = host
        log = FactLog("agent", self.watch.log_of(identity), fenced=True)
        self.start(self._add(Role(f"agent:{identity}", log, self.patience, host)))
        return host

    def _add(self, role: Role) -> Role:
        self.roles[role.name] = role
        return role

    def agents(self) -> list[Role]:
        """Return the agents that should run."""
        return [role for role in self.roles.values() if role.host is not None and role.wanted]

    def _running(self) -> list[Shown]:
        jobs, gpus = self.watch.allocator.jobs.items(), self.watch.allocator.gpus
        return [
            Shown(
                name,
                job.spec.vc,
                job.suspended,
                _movable(job),
                job.spec.elastic is not None,
                job.spec.gpus,
                len(job.members),
                bool(gpus.partners((name, job.attempt))),
            )
            for name, job in jobs
            if job.ran and not job.queued and job.stopping is None
        ]

    def _waiting(self) -> list[Shown]:
        model = self.watch.allocator
        return [
            Shown(name, job.spec.vc, job.suspended, gpus=job.spec.gpus)
            for name, job in model.jobs.items()
            if job.queued or (name, job.attempt) in model.released
        ]

    # --- processes -------------------------------------------------------------------------------

    def start(self, role: Role) -> None:
        """Start a process for a role; one it still has becomes a stray."""
        if role.process is not None and not role.process.dead:
            self.strays.append(role.process)
        role.started += 1
        process = Process(
            f"{role.name}#{role.started}",
            role.machine(),
            role.wiring(self.network),
            self.habits,
            network=self.network,
            timeline=self.timeline,
            story=self.story,
            owner=self,
        )
        role.process = process
        self.on_start(role)
        process.start()

    def died(self, process: Process, why: str) -> None:
        """See to it that a process that died is replaced, as a supervisor does.

        Args:
            process: The process.
            why: Such as `crash`, `gone`, `refused` or `superseded`.
        """
        self._decided += process.decided
        self._steps += process.steps
        if process in self.strays:
            self.strays.remove(process)
            return
        role = next(role for role in self.roles.values() if role.process is process)
        self._compare(role)
        if why == "crash":
            self.story.crashes += 1
        if why == "refused":
            self.timeline.after(OPERATOR_COMES_AFTER, self._operator_looks, role)
        elif why != "gone":
            delay = 10 * MILLISECOND + int(self.rng.random() * self.restart_ns_max)
            self.timeline.after(delay, self._restart, role, process)

    def _restart(self, role: Role, process: Process) -> None:
        if role.wanted and role.process is process:
            self.start(role)

    def _operator_looks(self, role: Role) -> None:
        """Start a refused agent again if no other machine of its name is in use."""
        assert role.host is not None
        namesakes = [
            each
            for each in self.agents()
            if each is not role and each.host is not None and each.host.node == role.host.node
        ]
        alone = all(each.process is None or each.process.dead for each in namesakes)
        if role.wanted and alone and role.process is not None and role.process.dead:
            self.start(role)

    def _compare(self, role: Role) -> None:
        """Check that a process's machine is what its log says, if the log is its own."""
        process, log = role.process, role.log
        if process is None or log is None or not process.current or not self.settings.fence:
            return
        self.watch.compare(process.machine, role.machine(), log)
        self.watch.compare_snapshot(process.machine, role.machine())

    def _processes(self) -> list[Process]:
        held = [role.process for role in self.roles.values() if role.process is not None]
        return [process for process in [*held, *self.strays] if not process.dead]

    @property
    def decided(self) -> int:
        """Return how many events were decided, timers and heartbeats apart."""
        return self._decided + sum(process.decided for process in self._processes())

    @property
    def steps(self) -> int:
        """Return how many events were decided in all."""
        return self._steps + sum(process.steps for process in self._processes())

    # --- time ------------------------------------------------------------------------------------

    def until(self, pending: Callable[[], object], seconds: int) -> None:
        """Let time pass until nothing is pending, looked at every 0.2 s.

        Args:
            pending: Returns what is pending, for the message; nothing: time need not pass any more.
            seconds: How long that may take, in virtual seconds.

        Raises:
            ViolationError: It takes longer.
        """
        deadline = self.timeline.now + seconds * SECOND
        look_at: int = self.timeline.now
        for _ in range(MOMENTS_MAX):
            self.timeline.step()
            if self.timeline.now >= look_at:
                what = pending()
                if not what:
                    return
                require(self.timeline.now < deadline, "I10", f"after {seconds} s: {what}")
                look_at = self.timeline.now + 200 * MILLISECOND
        require(False, "I10", f"after {MOMENTS_MAX} moments: {pending()}")

    # --- heal ------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End every fault, have everything restarted, and what keeps jobs back undone."""
        self.story.say("FAULT", "none from here on: healed")
        self.network.heal()
        for host in self.hosts.values():
            host.slow_until = 0
        for process in self._processes():
            process.blow = None
            process.resume()
        self.people.stop()

    def pending(self) -> str:
        """Return in words what has not come to its end yet; empty: nothing."""
        watch = self.watch
        for role in self.roles.values():
            if role.host is None and not role.up:
                return f"{role.name} is down"
        answers, ended = watch.admission.answers, watch.allocator.ended
        for message in self.network.streams["SUBMIT"].messages:
            job = f"j{message.sequence}"
            if ".submit." in message.subject and job not in answers:
                return f"{job} has no verdict"
        for job, answer in answers.items():
            if isinstance(answer, Admitted) and job not in ended:
                self._help_on()
                return f"{job} has not ended"
            if isinstance(answer, Admitted) and job not in watch.admission.over:
                return f"admission does not know that {job} has ended"
        if unfinished := watch.admission.arrays.pending():
            self._help_on()
            return unfinished
        if watch.allocator.waits.arrays:
            return f"arrays are unfinished: {list(watch.allocator.waits.arrays)}"
        lost = [number for number in watch.admission.asks if number not in watch.allocator.answered]
        if lost:
            return f"requests without an end: {lost}"
        if watch.allocator.successors:
            return f"successors wait: {list(watch.allocator.successors)}"
        if watch.allocator.gpus.held:
            return f"GPUs are held: {watch.allocator.gpus.held}"
        return self._deposed() or self._nodes_pending()

    def _help_on(self) -> None:
        """Have people give up, wake or release the jobs that end by that alone."""
        seen = self.watch.allocator
        for hopeless in seen.hopeless:
            self.people.give_up(hopeless, seen.jobs[hopeless].spec.vc)
        for name, each in seen.jobs.items():
            if each.suspended:
                self.people.wake(name, each.spec.vc)
            if name in seen.waits.held:
                self.people.release(name, each.spec.vc)
        for name, array in seen.waits.arrays.items():
            if name in seen.waits.held:
                self.people.release(name, array.vc)

    def _deposed(self) -> str:
        """Return the first process of a role that does not know yet that an earlier one leads."""
        for role in self.roles.values():
            process = role.process
            if process is not None and any(
                each.place == process.place and each.expected > process.expected
                for each in self.strays
            ):
                return f"{process.name} does not know that it is deposed"
        return ""

    def _nodes_pending(self) -> str:
        """Return what the nodes have not done or told yet, or an empty text."""
        for role in self.agents():
            process = role.process
            if process is None or process.dead:
                continue  # Refused: another has its name.
            machine: Any = process.machine
            left = [key for key, part in machine.parts.items() if part.over is None]
            if not role.up or left:
                return f"{role.name} is at {process.step} with {left}"
        allocator: Any = self._machine("allocator", AllocatorMachine)
        for name, node in allocator.state.nodes.items():
            if node.lost:
                return f"{name} is lost"
            held = list(node.holdings) or list(node.ghosts) or list(node.open_orders)
            if held:
                return f"{name} still holds {held}"
            host = self.hosts[node.joined.identity]
            agent: Any = self._machine(f"agent:{host.identity}", AgentMachine)
            if node.joined != agent.joined:
                return f"{name}: the allocator has not heard of its latest start"
            if host.live_runs():
                return f"{name} runs {host.live_runs()}"
        return ""

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check what must hold once everything has ended.

        Raises:
            ViolationError: Something of it does not.
        """
        for role in self.roles.values():
            self._compare(role)
        self._check_verdicts()
        untold = list(self.watch.allocator.tried.open)
        require(not untold, "I18", f"trials {untold} have no verdict")
        admission: Any = self._machine("admission", AdmissionMachine)
        require(not admission.active, "I1", f"admission still counts {list(admission.active)}")

    def _machine(self, name: str, kind: type) -> Any:
        process = self.roles[name].process
        assert process is not None
        assert isinstance(process.machine, kind), name
        return process.machine

    def _check_verdicts(self) -> None:
        answers = self.watch.admission.answers
        for submission in self.people.submissions:
            for verdict in submission.verdicts:
                answer = answers[verdict.job]
                require(not isinstance(answer, Repeated), "I9", f"{verdict} names a repetition")
                same = verdict.accepted == isinstance(answer, Admitted | ArrayAdmitted)
                require(same, "I9", f"{submission.job}: {verdict!r} but {answer!r}")


def _ignore(role: Role) -> None:
    """Let a process begin undisturbed."""


def _movable(job: ModelJob) -> bool:
    """Return whether a job says that it can go on elsewhere."""
    words = job.spec.args or job.spec.command
    return isinstance(words, tuple) and words[-1] in ("moves", "grows", "fails")


def _waits(seed: int) -> bool:
    """Return whether in the history of a seed jobs wait for others or for a time, or are held."""
    gated = GATED_FROM <= seed < ARRAYS_UNTIL
    return WAITS_FROM <= seed < WAITS_UNTIL or gated or _pipelines(seed)


def _arrays(seed: int) -> bool:
    """Return whether in the history of a seed tenants submit arrays."""
    return ARRAYS_FROM <= seed < ARRAYS_UNTIL or _pipelines(seed)


def _pipelines(seed: int) -> bool:
    """Return whether in the history of a seed jobs are of pipelines with `max_parallel`."""
    return PIPELINES_FROM <= seed < PIPELINES_UNTIL
