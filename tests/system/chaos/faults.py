"""What goes wrong, drawn from a seed, and how each thing is done and undone."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.system.chaos.network import Cut
from tests.system.chaos.replay import Replayer
from tests.system.chaos.target import Target

LOOK_S = 0.02
CUT_LOOK_S = 0.1
"""How long what was started again may speak before it is cut off too."""
CRASHES = 4
CRASH_WITHIN_S = 6.0
RESTART_TRIES = 3


class Kind(NamedTuple):
    """A class of faults: how often it is drawn, whom it hits (by role), how long it lasts (s)."""

    weight: int
    roles: tuple[str, ...]
    seconds: tuple[float, float] = (0.0, 0.0)


KINDS = {
    "kill": Kind(20, ("service", "agent", "bus")),
    "kill-runner": Kind(4, ("runner",)),
    "kill-supervisor": Kind(2, ("supervisor",), (0.0, 3.0)),
    "kill-bus": Kind(2, ("everything",)),
    "kill-everything": Kind(2, ("everything",), (0.0, 2.0)),
    "crash-loop": Kind(6, ("service", "agent", "bus")),
    "pause": Kind(10, ("service", "agent", "runner", "bus"), (1.0, 12.0)),
    "pause-long": Kind(1, ("agent",), (42.0, 55.0)),
    "freeze": Kind(4, ("service", "agent", "bus"), (1.0, 12.0)),
    "freeze-long": Kind(1, ("agent",), (42.0, 55.0)),
    "full-disk": Kind(4, ("store",), (2.0, 8.0)),
    "slow-disk": Kind(4, ("store",), (2.0, 8.0)),
    "mute": Kind(3, ("service", "agent"), (2.0, 15.0)),
    "deaf": Kind(3, ("service", "agent"), (2.0, 15.0)),
    "lossy": Kind(3, ("service", "agent"), (2.0, 10.0)),
    "delay": Kind(3, ("service", "agent", "bus"), (2.0, 10.0)),
    "partition": Kind(5, ("everything",), (2.0, 15.0)),
    "duplicate": Kind(5, ("bus",), (3.0, 10.0)),
    "clock": Kind(3, ("clock",), (3.0, 15.0)),
    "power-cut": Kind(1, ("everything",), (0.0, 2.0)),
}
WAYS = ("apart", "mute", "deaf")
"""How the first group of a partition is cut off from the second: both ways, or one."""
CLOCK_JUMPS_S = (-3600, -60, -5, 5, 60, 3600)


class Fault(NamedTuple):
    """One fault to come: `at_s` from the run's beginning, for `seconds`."""

    at_s: float
    kind: str
    component: str
    seconds: float
    number: int = 0


Act = Callable[[Fault], Awaitable[bool]]


@dataclass
class Injected:
    """One fault that was tried. Times are monotonic ns; `done` is False if it found nothing."""

    kind: str
    component: str
    began: int
    ended: int = 0
    done: bool = False
    detail: str = ""


def plan(
    rng: random.Random, count: int, seconds: float, target: Target, kinds: tuple[str, ...]
) -> list[Fault]:
    """Return `count` faults of these kinds, spread over the time and the components."""
    by_role: dict[str, list[str]] = {
        "store": sorted(target.stores),
        "clock": ["clock"],
        "everything": ["everything"],
    }
    for name, role in target.components().items():
        by_role.setdefault(role, []).append(name)
    faults = []
    for _ in range(count):
        name = rng.choices(kinds, [KINDS[each].weight for each in kinds])[0]
        kind = KINDS[name]
        role = rng.choice([role for role in kind.roles if role in by_role])
        hit = groups(rng, by_role) if name == "partition" else rng.choice(sorted(by_role[role]))
        number = rng.choice(CLOCK_JUMPS_S) if name == "clock" else rng.randrange(1 << 30)
        lasts_s = min(rng.uniform(*kind.seconds), seconds)
        at_s = rng.uniform(0, seconds - lasts_s)
        faults.append(Fault(at_s, name, hit, lasts_s, number))
    return sorted(faults)


def groups(rng: random.Random, by_role: dict[str, list[str]]) -> str:
    """Return two groups that are to lose one another: `a+b|c+d`.

    Everything is said by way of the bus, so the second group are bus servers. In the first one are
    services and agents, or one bus server, or both; never all of what it is made of.
    """
    bus = sorted(by_role["bus"])
    others = sorted([*by_role["service"], *by_role["agent"]])
    first: list[str] = []
    if len(bus) > 1 and rng.random() < 0.5:
        first = [bus.pop(rng.randrange(len(bus)))]
    if not first or rng.random() < 0.5:
        first += sorted(rng.sample(others, rng.randint(2, len(others) // 2)))
    second = bus if rng.random() < 0.7 else sorted(rng.sample(bus, rng.randint(1, len(bus))))
    return f"{'+'.join(first)}|{'+'.join(second)}"


class Injector:
    """Does the faults of a plan. `injected` tells what was done; `cuts` when power was cut."""

    def __init__(self, target: Target, replayer: Replayer) -> None:
        """Prepare."""
        self.target, self.replayer = target, replayer
        self.injected: list[Injected] = []
        self.cuts: list[int] = []
        self.problems: list[str] = []
        self._cuts_made = 0
        self._restarting = asyncio.Lock()

    async def run(self, faults: list[Fault], begin: float) -> None:
        """Do them all, each at its time (`begin` is monotonic s), overlapping where they do."""
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                await asyncio.sleep(max(0.0, begin + fault.at_s - time.monotonic()))
                tasks.create_task(self._inject(fault))

    async def _inject(self, fault: Fault) -> None:
        done = Injected(fault.kind, fault.component, time.monotonic_ns())
        self.injected.append(done)
        try:
            done.done = await self.acts()[fault.kind](fault)
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            done.detail = repr(error)
            self.problems.append(f"{fault.kind} of {fault.component}: {error!r}")
        done.ended = time.monotonic_ns()

    def acts(self) -> dict[str, Act]:
        """Return how each kind of fault is done; whether it could be is what that returns."""
        return {
            "kill": self._kill,
            "kill-runner": self._kill,
            "kill-supervisor": self._kill_supervisor,
            "kill-everything": self._kill_everything,
            "crash-loop": self._crash_loop,
            "pause": self._pause,
            "pause-long": self._pause,
            "full-disk": self._full_disk,
            "slow-disk": self._slow_disk,
            "mute": self._cut,
            "deaf": self._cut,
            "lossy": self._cut,
            "duplicate": self._duplicate,
            "clock": self._clock,
            "power-cut": self._power_cut,
            "freeze": self._freeze,
            "freeze-long": self._freeze,
            "delay": self._cut,
            "partition": self._partition,
            "kill-bus": self._kill_bus,
        }

    async def heal(self) -> None:
        """Undo whatever may still be in force, and bring the cluster up if it is down."""
        target = self.target
        target.set_clock(0)
        for name in target.components():
            target.resume(name)
            target.unfreeze(name)
        target.network.heal_all()
        for store in target.stores.values():
            store.thaw()
            store.free()
        await self._restart()

    # --- processes -------------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> bool:
        return await asyncio.to_thread(self.target.kill, fault.component)

    async def _kill_supervisor(self, fault: Fault) -> bool:
        done = await asyncio.to_thread(self.target.kill, "supervisor")
        await asyncio.sleep(fault.seconds)
        await self._restart()
        return done

    async def _kill_bus(self, fault: Fault) -> bool:
        """Kill every bus server within some milliseconds."""
        del fault
        servers = [name for name, role in self.target.components().items() if role == "bus"]
        return any(await asyncio.to_thread(lambda: [self.target.kill(name) for name in servers]))

    async def _kill_everything(self, fault: Fault) -> bool:
        async with self._restarting:
            await asyncio.to_thread(self.target.kill_everything, jobs=False)
            await asyncio.sleep(fault.seconds)
        await self._restart()
        return True

    async def _crash_loop(self, fault: Fault) -> bool:
        """Kill a component each time it is back, at once."""
        deadline, killed, latest = time.monotonic() + CRASH_WITHIN_S, 0, 0
        while killed < CRASHES and time.monotonic() < deadline:
            pid = await asyncio.to_thread(self.target.pid, fault.component)
            if pid and pid != latest and await self._kill(fault):
                latest, killed = pid, killed + 1
            await asyncio.sleep(LOOK_S)
        return killed > 1

    async def _pause(self, fault: Fault) -> bool:
        done = await asyncio.to_thread(self.target.pause, fault.component)
        if done:
            await asyncio.sleep(fault.seconds)
            self.target.resume(fault.component)
        return done

    async def _freeze(self, fault: Fault) -> bool:
        done = await asyncio.to_thread(self.target.freeze, fault.component)
        if done:
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(self.target.unfreeze, fault.component)
        return done

    async def _restart(self) -> None:
        async with self._restarting:
            for attempt in range(RESTART_TRIES):
                if await asyncio.to_thread(self.target.is_kept_up):
                    return
                try:
                    await asyncio.to_thread(self.target.restart)
                except RuntimeError as error:
                    if attempt + 1 == RESTART_TRIES:
                        raise
                    self.problems.append(f"not up at once: {error}")

    # --- disks -----------------------------------------------------------------------------------

    async def _full_disk(self, fault: Fault) -> bool:
        store, until = self.target.stores[fault.component], time.monotonic() + fault.seconds
        try:
            while time.monotonic() < until:
                await asyncio.to_thread(store.fill)
                await asyncio.sleep(0.1)
        finally:
            await asyncio.to_thread(store.free)
        return True

    async def _slow_disk(self, fault: Fault) -> bool:
        rng = random.Random(fault.number)
        store, until = self.target.stores[fault.component], time.monotonic() + fault.seconds
        while time.monotonic() < until:
            try:
                await asyncio.to_thread(store.freeze)
                await asyncio.sleep(rng.uniform(0.1, 1.5))
            finally:
                await asyncio.to_thread(store.thaw)
            await asyncio.sleep(rng.uniform(0.01, 0.2))
        return True

    async def _power_cut(self, fault: Fault) -> bool:
        """Have everything die at once, with every disk as it was at that moment."""
        async with self._restarting:
            target = self.target
            for store in target.stores.values():
                store.hold()
            # Nothing else is done to the cluster until all is dead: no other task may run.
            names = [name for name in target.components() if target.pause(name)]
            for store in target.stores.values():
                store.snap()
            target.kill_everything(jobs=True)
            for name in names:
                target.resume(name)
            self.cuts.append(time.monotonic_ns())
            for store in target.stores.values():
                await asyncio.to_thread(store.restore)
            await asyncio.sleep(fault.seconds)
        await self._restart()
        return True

    # --- the bus and the clock -------------------------------------------------------------------

    async def _cut(self, fault: Fault) -> bool:
        cut = Cut(fault.kind, (), fault.number)
        return await self.cut_off(fault.component, cut, fault.seconds)

    async def _partition(self, fault: Fault) -> bool:
        first, _, second = fault.component.partition("|")
        cut = Cut(WAYS[fault.number % len(WAYS)], tuple(second.split("+")))
        tasks = [self.cut_off(name, cut, fault.seconds) for name in first.split("+")]
        return any(await asyncio.gather(*tasks))

    async def cut_off(self, name: str, cut: Cut, seconds: float) -> bool:
        """Cut a component off, and whatever takes its place meanwhile."""
        network, until = self.target.network, time.monotonic() + seconds
        pid = await asyncio.to_thread(self.target.pid, name)
        if not pid:
            return False
        self._cuts_made += 1
        key = f"{self._cuts_made}"
        try:
            await asyncio.to_thread(network.cut, key, name, pid, cut)
            while time.monotonic() < until:
                again = await asyncio.to_thread(self.target.pid, name)
                if again and again != pid and await asyncio.to_thread(network.move, key, again):
                    pid = again
                await asyncio.sleep(CUT_LOOK_S)
        finally:
            await asyncio.to_thread(network.heal, key)
        return True

    async def _duplicate(self, fault: Fault) -> bool:
        return await self.replayer.run(random.Random(fault.number), fault.seconds) > 0

    async def _clock(self, fault: Fault) -> bool:
        self.target.set_clock(fault.number)
        await asyncio.sleep(fault.seconds)
        self.target.set_clock(0)
        return True
