"""What goes wrong, chosen by the seed: which kinds at all, how often, where and when."""

from __future__ import annotations

from collections.abc import Callable

from skep.sim.driver import STARTING_POINTS, WORKING_POINTS, Blow, Process
from skep.sim.network import Weather
from skep.sim.processes import Host
from skep.sim.services import LOGGED, Role
from skep.sim.timeline import MILLISECOND, SECOND
from skep.sim.world import World
from skep.wire import subjects

FAULTS_MIN = 10
CRASHES_MIN = 3
EVENTS_MIN = 200
"""What a history must have seen before it may heal: the numbers that are promised of each."""

CHAOS_S_MIN = 45
CHAOS_S_MAX = 1_000
HEAL_S_MAX = 1_500
"""How long everything may take to end: the longest jobs, one after the other, with retries."""

AIMS = {
    "admission": ("verdict-send",),
    "allocator": ("bind-job-send", "stop-job-send", "trials-send"),
    "agent": ("start-call", "stop-call", "forget-call", "list-call", "publish"),
    "introspector": ("rates-send", "judged-send"),
    "advisor": ("queue-advice-send",),
}
"""Effects that a blow may wait for, by service."""

STARTS_HIT = 0.15
"""How many of a history's starts are hit before they have recovered."""

BLOW_WAITS = 12 * SECOND
"""How long a blow waits for its process to come to its point; then it falls wherever it is."""


class Chaos:
    """Strikes again and again until it is told to stop."""

    def __init__(self, world: World) -> None:
        """Choose which faults this history has, and the weather."""
        rng = world.rng
        self._world, self._rng = world, rng
        self._on = True
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._crash, 10),
            (self._zombie, 5),
            (self._pause, 3),
            (self._crash_agent, 6),
            (self._reboot, 2),
            (self._replace, 1),
            (self._imposter, 1),
            (self._outage, 2),
            (self._cut, 3),
            (self._slow, 3),
            (self._runtime, 2),
            (self._crash_all, 1),
            (self._forget_keys, 2),
            (self._set_clock, 1),
        ]
        chosen = [kind for kind in kinds if rng.random() < 0.7]
        if self._crash not in [do for do, _ in chosen]:
            chosen.append((self._crash, 10))
        self._kinds = [do for do, _ in chosen]
        self._weights = [weight for _, weight in chosen]
        self._pace = rng.choice((SECOND, 3 * SECOND, 6 * SECOND))
        self._clock_ns_max = rng.choice((0, 0, 10 * SECOND))
        bad = rng.choice((0.0, 0.1, 0.3, 0.6))
        world.network.weather = Weather(
            drop=bad * rng.random(),
            duplicate=bad * rng.random(),
            delay=bad * rng.random(),
            lost_ack=bad * rng.random(),
            latency_ns_max=rng.choice((MILLISECOND, 5 * MILLISECOND, 200 * MILLISECOND)),
        )

    def begin(self) -> None:
        """Start striking."""
        self._world.on_start = self._hit_start
        self._next()

    def _hit_start(self, role: Role) -> None:
        """Let some processes die, or sleep a while, before they have recovered."""
        process = role.process
        assert process is not None
        if role.host is None:
            # The clock may have been set since the last start.
            role.skew = self._rng.randrange(-self._clock_ns_max, self._clock_ns_max + 1)
        if self._on and self._rng.random() < STARTS_HIT:
            point = self._rng.choice(STARTING_POINTS)
            if role.name in LOGGED and self._rng.random() < 0.5:
                process.blow = Blow("zombie", point, self._falls_asleep(role))
            else:
                process.blow = Blow("crash", point, _dies)

    def stop(self) -> None:
        """Strike no more."""
        self._on = False

    def missing(self) -> str:
        """Return in words what the history has not seen enough of yet; empty: nothing."""
        world, story = self._world, self._world.story
        seen = {
            "submissions": (world.people.left == 0, True),
            "faults": (story.faults, FAULTS_MIN),
            "crashes": (story.crashes, CRASHES_MIN),
            "events": (world.decided, EVENTS_MIN),
            "seconds": (world.timeline.elapsed_s, CHAOS_S_MIN),
        }
        return ", ".join(name for name, (count, least) in seen.items() if count < least)

    def _next(self) -> None:
        if self._on:
            self._world.timeline.after(int(self._pace * 2 * self._rng.random()), self._strike)

    def _strike(self) -> None:
        if self._on and self._world.agents():
            self._rng.choices(self._kinds, self._weights)[0]()
        self._next()

    def _between(self, low: int, high: int) -> int:
        return low + int((high - low) * self._rng.random() ** 2)

    # --- whom it hits ----------------------------------------------------------------------------

    def _service(self, names: tuple[str, ...]) -> Role:
        return self._world.roles[self._rng.choice(names)]

    def _agent(self) -> Role:
        return self._rng.choice(self._world.agents())

    def _host(self) -> Host:
        host = self._agent().host
        assert host is not None
        return host

    def _hit(self, fault: str, role: Role, strike: Callable[[Process], None]) -> None:
        """Strike a role's process at a point of its work, or wherever it is."""
        process = role.process
        if process is None or process.dead or process.paused or process.blow is not None:
            return
        point = self._rng.choice(("", *WORKING_POINTS, "effect", "effect"))
        blow = Blow(
            fault,
            point,
            strike,
            aim=self._rng.choice(AIMS[role.service]),
            skip=self._rng.choice((0, 0, 1, 2)),
        )
        process.blow = blow
        wait = BLOW_WAITS if point else 0
        self._world.timeline.after(wait, self._fall, process, blow)

    def _fall(self, process: Process, blow: Blow) -> None:
        if process.blow is blow:
            process.blow = None
            if not process.dead and not process.paused and self._on:
                self._world.story.fault(blow.fault, process.step)
                blow.strike(process)

    # --- crashes and pauses ----------------------------------------------------------------------

    def _crash(self) -> None:
        role = self._service((*LOGGED, *LOGGED, "introspector", "advisor"))
        self._hit("crash", role, _dies)

    def _crash_agent(self) -> None:
        self._hit("crash", self._agent(), _dies)

    def _crash_all(self) -> None:
        for role in list(self._world.roles.values()):
            process = role.process
            if process is not None and not process.dead and not process.paused:
                self._world.story.fault("crash-all", process.step)
                process.kill("crash")

    def _pause(self) -> None:
        role = self._agent() if self._rng.random() < 0.4 else self._service(LOGGED)
        length = self._between(200 * MILLISECOND, 50 * SECOND)

        def strike(process: Process) -> None:
            process.pause()
            self._world.timeline.after(length, process.resume)

        self._hit("pause", role, strike)

    def _zombie(self) -> None:
        role = self._service(LOGGED)
        self._hit("zombie", role, self._falls_asleep(role))

    def _falls_asleep(self, role: Role) -> Callable[[Process], None]:
        """Return a strike: pause, start a successor meanwhile, and let the first one wake again."""
        begins = self._between(10 * MILLISECOND, 5 * SECOND)
        length = self._between(100 * MILLISECOND, 30 * SECOND)

        def successor(process: Process) -> None:
            if role.process is process and not process.dead:
                self._world.start(role)

        def strike(process: Process) -> None:
            process.pause()
            self._world.timeline.after(begins, successor, process)
            self._world.timeline.after(length, process.resume)

        return strike

    def _set_clock(self) -> None:
        """Set a service's clock forward, as after the sleep of a laptop."""
        process = self._service(LOGGED).process
        if process is not None and not process.dead:
            self._world.story.fault("clock-set", process.step)
            process.set_clock(self._between(SECOND, 3_600 * SECOND))

    # --- nodes -----------------------------------------------------------------------------------

    def _down(self, role: Role, why: str, fault: str) -> bool:
        """Take an agent's process down with its machine; return whether there was one."""
        process = role.process
        step = process.step if process is not None and not process.dead else "agent.down"
        self._world.story.fault(fault, step)
        if process is not None and not process.dead:
            process.kill(why)
            return True
        return False

    def _reboot(self) -> None:
        role = self._agent()
        assert role.host is not None
        power = self._rng.random() < 0.5
        self._down(role, "gone", "power-loss" if power else "reboot")
        role.host.reboot(power_failure=power)
        self._world.timeline.after(self._between(SECOND, 60 * SECOND), self._boots, role)

    def _boots(self, role: Role) -> None:
        if role.wanted and role.process is not None and role.process.dead:
            self._world.start(role)

    def _replace(self) -> None:
        """Lose a machine for good; another takes its name, with a fresh state folder."""
        role = self._agent()
        host = role.host
        assert host is not None
        self._down(role, "gone", "replace")
        role.wanted = False
        host.destroy()
        wait = self._between(100 * MILLISECOND, 60 * SECOND)
        self._world.timeline.after(wait, self._world.add_host, host.node, host.gpus, host.skew)

    def _imposter(self) -> None:
        """Start a second agent of a name that is taken."""
        host = self._host()
        process = self._world.roles[f"agent:{host.identity}"].process
        step = process.step if process is not None else "agent.down"
        self._world.story.fault("imposter", step)
        self._world.add_host(host.node, host.gpus, host.skew)

    def _slow(self) -> None:
        self._world.story.fault("slow-runtime", "runtime")
        self._host().slow(self._between(SECOND, 20 * SECOND))

    def _runtime(self) -> None:
        host = self._host()
        self._world.story.fault("runtime-crash", f"{len(host.live_runs()) > 0} runs")
        host.restart_runtime()

    # --- the bus ---------------------------------------------------------------------------------

    def _outage(self) -> None:
        for role in self._world.roles.values():
            if role.process is not None and not role.process.dead:
                self._world.story.hit("outage", role.process.step)
        self._world.story.fault("outage", "bus")
        self._world.network.outage(self._between(SECOND, 60 * SECOND))

    def _forget_keys(self) -> None:
        """Let the window pass in which repeated events of nodes are noticed."""
        self._world.story.fault("forget-keys", "bus")
        self._world.network.streams[subjects.NODE].forget_keys()

    def _cut(self) -> None:
        """Cut a place off, often for so long that a node counts as lost."""
        busy = [role for role in self._world.agents() if role.host and role.host.live_runs()]
        if self._rng.random() < 0.8:
            role = self._rng.choice(busy) if busy else self._agent()
        else:
            role = self._service(LOGGED)
        place = role.name if role.host is None else role.host.identity
        process = role.process
        self._world.story.fault("cut", process.step if process is not None else "down")
        self._world.network.cut(place, self._rng.randrange(SECOND, 90 * SECOND))


def _dies(process: Process) -> None:
    process.kill("crash")
