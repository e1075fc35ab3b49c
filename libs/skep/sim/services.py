"""Which services there are, how each is connected, and how an agent's calls are carried out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from skep.machines.admission import AdmissionMachine
from skep.machines.advisor import AdvisorMachine
from skep.machines.agent import AgentMachine, ExitProcess, Published, PublishEvent
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.settings import LASTS
from skep.machines.base import AnyMachine
from skep.sim.driver import Process, Wiring
from skep.sim.guesses import Guesses
from skep.sim.logs import FactLog
from skep.sim.network import Network
from skep.sim.processes import Host
from skep.sim.rash import Rash
from skep.units import Duration, seconds
from skep.wire import codec, subjects

LOGGED = ("admission", "allocator")
SERVICES = (*LOGGED, "introspector", "advisor")

FOLLOWS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "admission": ((subjects.ADMIN, ()), (subjects.ALLOC, ()), (subjects.SUBMIT, ())),
    "allocator": ((subjects.ADMIN, ()), (subjects.NODE, ()), (subjects.ADMISSION, ())),
    "introspector": ((subjects.ALLOC, ()),),
    "advisor": ((subjects.ADMISSION, ()), (subjects.ALLOC, ())),
}
LISTENS: dict[str, tuple[str, ...]] = {
    "admission": (),
    "allocator": (
        subjects.HEARTBEATS,
        subjects.ADVICE_QUEUE,
        subjects.ADVICE_OUTLOOK,
        subjects.ADVICE_LEARNED,
        subjects.JUDGED,
        subjects.SLOWED,
    ),
    "introspector": (subjects.REPORTS, subjects.TRIALS_OPEN),
    "advisor": (subjects.FINDINGS, subjects.SIGHTS),
}


PROBE_EVERY = seconds(1.0)
"""Nothing runs for long here."""


class Patience(NamedTuple):
    """Settings of machines that differ between histories, so that rare things happen often."""

    forget_at_once: int
    node_lost_after: Duration
    trials_last: Duration = LASTS
    guesses: int = 0
    """The seed of models that guess; 0: there are none."""


class Role:
    """A service that should run: which process does, on which machine, and its log."""

    def __init__(
        self,
        name: str,
        log: FactLog | None,
        patience: Patience,
        host: Host | None = None,
        listen: tuple[str, ...] = (),
    ) -> None:
        """Start without a process; it listens to `listen` beside what its service always does."""
        self.name, self.log, self.host = name, log, host
        self.skew = 0 if host is None else host.skew
        self._patience, self._listen = patience, listen
        self.process: Process | None = None
        self.wanted = True
        self.started = 0

    @property
    def service(self) -> str:
        """Return what kind of service this is."""
        return self.name.partition(":")[0]

    @property
    def up(self) -> bool:
        """Return whether its process serves."""
        return self.process is not None and self.process.serving and not self.process.paused

    def machine(self) -> AnyMachine:
        """Return a machine that knows nothing yet."""
        match self.service:
            case "admission":
                return AdmissionMachine()
            case "allocator":
                allocator = AllocatorMachine()
                allocator.settings.node_lost_after = self._patience.node_lost_after
                rules = allocator.settings.trial_rules
                rules.measured, rules.lasts = False, self._patience.trials_last
                rules.lasts_made_ready = self._patience.trials_last
                rules.lasts_probe, rules.probe_every = self._patience.trials_last, PROBE_EVERY
                return allocator
            case "introspector":
                return Rash()
            case "advisor":
                seed = self._patience.guesses
                return AdvisorMachine(models=Guesses(seed + self.started) if seed else None)
            case _:
                assert self.host is not None, self.name
                agent = AgentMachine(self.host.joined())
                agent.forget_at_once = self._patience.forget_at_once
                return agent

    def wiring(self, network: Network) -> Wiring:
        """Return how one process of this role is connected."""
        host = self.host
        if host is None:
            return Wiring(
                service=self.name,
                place=self.name,
                log=self.log,
                journal=False,
                follow=FOLLOWS[self.name],
                listen=(*LISTENS[self.name], *self._listen),
                carry_out=_no_calls,
                begun=_nothing,
                skew=self.skew,
            )
        calls = AgentCalls(host, network)
        return Wiring(
            service="agent",
            place=host.identity,
            log=self.log,
            journal=True,
            follow=(),
            listen=(subjects.command(host.node),),
            carry_out=calls.carry_out,
            begun=host.attach,
            skew=self.skew,
        )


class AgentCalls:
    """What one agent's process asks for. Its events are published one after the other."""

    def __init__(self, host: Host, network: Network) -> None:
        """Start with nothing under way."""
        self._host, self._network = host, network
        self._outbox: deque[PublishEvent] = deque()

    def carry_out(self, process: Process, command: Any) -> None:
        """Begin a call."""
        match command:
            case PublishEvent():
                self._outbox.append(command)
                if len(self._outbox) == 1:
                    self._publish(process)
            case ExitProcess():
                process.kill("refused")
            case _:
                self._host.request(process, command)

    def _publish(self, process: Process) -> None:
        event = self._outbox[0]
        headers = {subjects.KEY_HEADER: event.key}
        acked: Callable[[int], None] = lambda _: self._published(process)  # noqa: E731 - a step
        self._network.publish(process, event.subject, codec.encode(event.message), headers, acked)

    def _published(self, process: Process) -> None:
        event = self._outbox.popleft()
        process.put(Published(event.event))
        if self._outbox:
            self._publish(process)


def _no_calls(process: Process, command: Any) -> None:
    text = f"nothing carries out {command!r} for {process.name}"
    raise AssertionError(text)


def _nothing(process: Process) -> None:
    """Begin without preparation."""
