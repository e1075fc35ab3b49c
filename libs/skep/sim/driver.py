"""One operating-system process: a machine in a shell, and every way it can stop half way.

The shell's contract, as the asyncio shell keeps it: take what waits in the bounded inbox; decide
each; append the facts as one record with the input positions consumed (split only between events);
then publish; then call; then re-arm the one timer. Start is recovery: replay, win the epoch,
`Restarted`, follow on from the stored positions.

A `Blow` waits at a named point of that cycle and kills or pauses the process there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from skep.machines.base import AnyMachine, Call, Effect, Record, Restarted, Send, Tick
from skep.machines.noting import note
from skep.sim.logs import ENCODER, FactLog, LogRecord, Stored
from skep.sim.network import Network
from skep.sim.story import Story, tag
from skep.sim.timeline import MILLISECOND, Timeline
from skep.units import Instant
from skep.wire import codec
from skep.wire.bearing import RULES
from skep.wire.facts import EpochBegan
from skep.wire.inputs import InputNotes
from skep.wire.reports import Heartbeat

INBOX_MAX = 64
"""Small, so that a bus that comes back after an outage fills it."""

_Waiting = tuple[Any, str, int, bool]
"""An event, the stream and sequence it is from, and whether it is the last of that message."""

QUIET = (Tick, Heartbeat)
"""Events that happen by themselves: they do not count as something that a history has seen."""

STARTING_POINTS = ("replay", "before-epoch", "during-epoch")
WORKING_POINTS = ("before-append", "during-append", "after-append", "effect")
"""Where a process can be hit, besides between two events."""


class Blow(msgspec.Struct):
    """What waits for a process at a point: `strike` kills or pauses it.

    At an `effect`, `aim` names the one it waits for (any, if empty), and `skip` how many pass.
    """

    fault: str
    point: str
    strike: Callable[[Process], None]
    aim: str = ""
    skip: int = 0


class Wiring(NamedTuple):
    """How a service is connected.

    `log` is None for a machine that records nothing, `journal` says that it is local. `carry_out`
    takes the machine's calls, `begun` happens before the machine's first event.
    """

    service: str
    place: str
    log: FactLog | None
    journal: bool
    follow: tuple[tuple[str, tuple[str, ...]], ...]
    listen: tuple[str, ...]
    carry_out: Callable[[Process, Any], None]
    begun: Callable[[Process], None]
    skew: int = 0


class Habits(msgspec.Struct, frozen=True):
    """What differs between histories.

    Events decided at once, facts of one record, whether agents compact their journals, and how
    many steps pass between two checks of a machine.
    """

    batch_max: int = 256
    record_facts_max: int = 100
    compacts: bool = False
    check_every: int = 1
    keep_every: int = 0
    """Records between two snapshots of a service; 0 if it keeps none."""
    notes: bool = False
    """Whether services note in their records what they decided on."""


class Owner(Protocol):
    """What is told of a process's end."""

    def died(self, process: Process, why: str) -> None:
        """Take note; start another if there should be one.

        Args:
            process: The process.
            why: Such as `crash`, `gone`, `refused` or `superseded`.
        """
        ...


class Process:
    """A service's process from its start to its death."""

    def __init__(
        self,
        name: str,
        machine: AnyMachine,
        wiring: Wiring,
        habits: Habits,
        *,
        network: Network,
        timeline: Timeline,
        story: Story,
        owner: Owner,
    ) -> None:
        """Make it; `start` begins it."""
        self.name, self.machine, self.wiring = name, machine, wiring
        self.place = wiring.place
        self.dead = False
        self.paused = False
        self.serving = False
        self.blow: Blow | None = None
        self.decided = 0
        """Events decided, apart from timers and heartbeats."""
        self.steps = 0
        """Events decided in all."""
        self.epoch = 0
        self.positions: dict[str, int] = {}
        self.expected = 0
        self._at: str | Effect = "start"
        self._habits, self._network, self._timeline = habits, network, timeline
        self._story, self._owner = story, owner
        self._inbox: deque[_Waiting] = deque()
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._waiting: list[Callable[[], None]] = []
        self._busy = True
        self._recovered = False
        self._subscribed = False
        self._records: deque[tuple[list[Any], dict[str, int], bytes]] = deque()
        noted = habits.notes and wiring.log is not None and not wiring.journal
        self._notes = InputNotes() if noted else None
        self._effects: deque[Effect] = deque()
        self._skew = wiring.skew
        self._timer_at: int | None = None
        self._timer = 0
        self._counter = 0
        self._unchecked = 0

    # --- life and death --------------------------------------------------------------------------

    @property
    def now(self) -> Instant:
        """Return what this machine's clock says."""
        return Instant(self._timeline.now + self._skew)

    @property
    def step(self) -> str:
        """Return what it is doing, such as `allocator.append` or `agent.start-call`."""
        here = self._at if isinstance(self._at, str) else _label(self._at)
        return f"{self.wiring.service}.{here}"

    @property
    def current(self) -> bool:
        """Return whether the machine's state is what its log says."""
        log = self.wiring.log
        durable = self.expected == (len(log.payloads) if log is not None else 0)
        return self._recovered and not self._records and durable

    def kill(self, why: str) -> None:
        """End it at once."""
        if not self.dead:
            self._story.say(self.name, f"dies ({why}) at {self.step}")
            self.dead = True
            self.serving = False
            self._network.leave(self)
            self._owner.died(self, why)

    def pause(self) -> None:
        """Stop it; the world goes on."""
        self._story.say(self.name, f"is paused at {self.step}")
        self.paused = True

    def resume(self) -> None:
        """Let it go on where it was."""
        if self.paused and not self.dead:
            self._story.say(self.name, "goes on")
            self.paused = False
            deferred, self._deferred = self._deferred, []
            for do, arguments in deferred:
                self.enter(do, *arguments)
            self._kick()

    def set_clock(self, forward: int) -> None:
        """Set this machine's clock forward: what it waits for may be due at once.

        Args:
            forward: Nanoseconds.
        """
        self._skew += forward
        self._timer_at = None
        self._timer += 1
        if not self._busy:
            self._arm()

    def enter(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something inside this process: never if it is dead, later if it is paused.

        Args:
            do: What to do.
            arguments: What `do` is called with.
        """
        if self.dead:
            return
        if self.paused:
            self._deferred.append((do, arguments))
            return
        do(*arguments)

    def _later(self, delay: int, do: Callable[..., None], *arguments: Any) -> None:
        self._timeline.after(delay, self.enter, do, *arguments)

    def _hit(self, point: str, here: str | Effect, go_on: Callable[[], None]) -> bool:
        """Note where the process is; return whether a blow waited here. A paused one goes on."""
        self._at = here
        blow = self.blow
        if blow is None or blow.point != point:
            return False
        if blow.aim and not isinstance(here, str) and blow.aim != _label(here):
            return False
        if blow.skip > 0:
            blow.skip -= 1
            return False
        self.blow = None
        self._story.fault(blow.fault, self.step)
        blow.strike(self)
        if self.paused:
            self._deferred.append((go_on, ()))
        return True

    # --- start -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to recover."""
        self._story.say(self.name, "starts")
        self._later(self._network.latency(), self._replay)

    def _replay(self) -> None:
        if self._hit("replay", "replay", self._replay):
            return
        log = self.wiring.log
        if log is None:
            self._began()
            return
        kept = log.kept
        if kept is not None:
            for entry in log.entries(kept):
                self.machine.apply(entry)
            self.positions.update(kept.pos)
            self.expected, self._counter, self.epoch = kept.records, kept.n, kept.epoch
            if self._notes is not None:
                self._notes.snapshot = kept.n
        for record in log.tail(self.expected):
            self.positions.update(record.pos)
            self.epoch, self._counter = record.epoch, record.n
            for fact in record.facts:
                self.machine.apply(fact)
            self.expected += 1
        self._win()

    def _win(self) -> None:
        if self._hit("before-epoch", "epoch", self._win):
            return
        self.epoch += 1
        self._append([EpochBegan(epoch=self.epoch, owner=self.name, rules=RULES)], {}, self._won)
        self._hit("during-epoch", "epoch", _nothing)

    def _won(self, taken: bool) -> None:
        if not taken:
            self.kill("superseded")
            return
        self.machine.apply(EpochBegan(epoch=self.epoch, owner=self.name, rules=RULES))
        self._advance()
        if self.wiring.journal and self._habits.compacts:
            self._compact()
        self._began()

    def _compact(self) -> None:
        log = self.wiring.log
        assert log is not None
        machine: Any = self.machine  # Only agents have journals, and with them snapshots.
        log.compact(machine.snapshot(), self.epoch, self.now)
        self.expected = self._counter = 1

    def _began(self) -> None:
        self.serving = self._recovered = True
        self.wiring.begun(self)
        self._inbox.appendleft((Restarted(self.epoch), "", 0, True))
        self._step(1)

    def _subscribe(self) -> None:
        self._subscribed = True
        for pattern in self.wiring.listen:
            self._network.listen(self, pattern)
        for stream, wanted in self.wiring.follow:
            self._network.follow(self, stream, self.positions.get(stream, 0), wanted)

    # --- in --------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Return how many events the inbox can still take."""
        return INBOX_MAX - len(self._inbox)

    def when_room(self, do: Callable[[], None]) -> None:
        """Do something once the inbox has been worked on."""
        self._waiting.append(do)
        self._kick()

    def read(self, stream: str, message: Stored) -> None:
        """Queue a stream's message; another service's record comes fact by fact.

        Args:
            stream: The name of the stream.
            message: The next message of it.
        """
        event = codec.read(
            message.subject, message.payload, message.headers, message.sequence, message.at
        )
        if isinstance(event, codec.Facts):
            for fact in event.facts[:-1]:
                single = msgspec.structs.replace(event, facts=(fact,))
                self._inbox.append((single, stream, message.sequence, False))
            event = msgspec.structs.replace(event, facts=event.facts[-1:])
        self._inbox.append((event, stream, message.sequence, True))
        self._kick()

    def hear(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Queue a core message, or drop it if the inbox is full."""
        if self.room > 0:
            event = codec.read(subject, payload, headers, 0, Instant(0))
            self._inbox.append((event, "", 0, True))
            self._kick()

    def put(self, event: Any) -> None:
        """Queue the answer to a call."""
        self._inbox.append((event, "", 0, True))
        self._kick()

    def _kick(self) -> None:
        if not self._busy and not self.dead and not self.paused and self._inbox:
            self._busy = True
            self._later(20_000, self._step, self._habits.batch_max)

    # --- one step --------------------------------------------------------------------------------

    def _step(self, batch_max: int) -> None:
        """Decide what waits; what follows happens in `_append_next` and `_carry_on`."""
        facts: list[Any] = []
        calls: list[Call] = []
        inbox, decide, now = self._inbox, self.machine.decide, self.now
        positions = self.positions
        for _ in range(min(batch_max, len(inbox))):
            event, stream, sequence, last = inbox.popleft()
            effects = decide(event, now)
            self.steps += 1
            if type(event) not in QUIET:
                self.decided += 1
            if self._story.on:
                self._story.decided(self.name, event, effects)
            fresh = []
            for effect in effects:
                if type(effect) is Record:
                    fresh.append(effect.fact)
                elif type(effect) is Send:
                    self._effects.append(effect)
                else:
                    assert isinstance(effect, Call), effect
                    calls.append(effect)
            if facts and len(facts) + len(fresh) > self._habits.record_facts_max:
                self._records.append((facts, dict(positions), self._noted()))
                facts = []
            facts += fresh
            if self._notes is not None:
                note(self._notes, event, stream, sequence, now, led=bool(fresh))
            if sequence and last:
                positions[stream] = sequence
        if facts:
            self._records.append((facts, dict(positions), self._noted()))
        self._effects.extend(calls)
        self._unchecked += 1
        if self._unchecked >= self._habits.check_every:
            self._unchecked = 0
            self.machine.check()
        self._append_next()

    def _noted(self) -> bytes:
        return self._notes.take() if self._notes is not None else b""

    def _append_next(self) -> None:
        if not self._records:
            self._carry_on()
            return
        if self._hit("before-append", "append", self._append_next):
            return
        facts, positions, noted = self._records[0]
        self._append(facts, positions, self._appended, noted)
        self._hit("during-append", "append", _nothing)

    def _append(
        self,
        facts: list[Any],
        positions: dict[str, int],
        done: Callable[[bool], None],
        noted: bytes = b"",
    ) -> None:
        log = self.wiring.log
        assert log is not None, f"no fact log for {facts[0]!r}"
        record = LogRecord(self._counter + 1, self.epoch, self.now, positions, tuple(facts), noted)
        payload = ENCODER.encode(record)
        if self.wiring.journal:
            # A journal is written before this process can do anything else, or not at all.
            self._timeline.after(MILLISECOND // 5, self._write, log, payload, done)
        else:
            self._network.append(self, log, payload, self.expected, done)

    def _write(self, log: FactLog, payload: bytes, done: Callable[[bool], None]) -> None:
        if not self.dead:
            taken = log.append(payload, self.expected)
            self.enter(done, taken)

    def _appended(self, taken: bool) -> None:
        if not taken:
            self.kill("superseded")
            return
        self._advance()
        self._records.popleft()
        if self._records:
            self._append_next()
            return
        self._keep()
        if not self._hit("after-append", "appended", self._carry_on):
            self._carry_on()

    def _keep(self) -> None:
        """Keep a snapshot now and then: here the machine is what its log says."""
        every, log = self._habits.keep_every, self.wiring.log
        if every and not self.wiring.journal and self.expected % every == 0:
            assert log is not None
            machine: Any = self.machine
            log.keep(
                machine.snapshot(), self.expected, self._counter, self.epoch, dict(self.positions)
            )

    def _advance(self) -> None:
        self.expected += 1
        self._counter += 1

    def _carry_on(self) -> None:
        """Publish, then call, then wait for the next event."""
        while self._effects:
            effect = self._effects[0]
            if self._hit("effect", effect, self._carry_on):
                return
            self._effects.popleft()
            if isinstance(effect, Send):
                payload = codec.encode(effect.message)
                self._network.send(
                    self, effect.subject, payload, effect.headers, tag(effect.message)
                )
            else:
                assert isinstance(effect, Call), effect
                self.wiring.carry_out(self, effect.command)
            if self.dead:
                return
        self._arm()
        if not self._subscribed:
            self._subscribe()
        self._busy = False
        self._at = "idle"
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            do()
        self._kick()

    # --- the timer -------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have a Tick come when the machine wants one; an earlier one under way serves too."""
        wake_at = self.machine.wake_at()
        if wake_at is None:
            return
        at = wake_at - self._skew
        if self._timer_at is not None and self._timer_at <= at:
            return
        self._timer_at = at
        self._timer += 1
        self._later(max(0, at - self._timeline.now), self._wake, self._timer)

    def _wake(self, timer: int) -> None:
        if timer == self._timer:
            self._timer_at = None
            self.put(Tick())


def _label(effect: Effect) -> str:
    match effect:
        case Send():
            return f"{tag(effect.message)}-send"
        case Call():
            return {
                "StartRank": "start-call",
                "StopRun": "stop-call",
                "ForgetRun": "forget-call",
                "ListRuns": "list-call",
                "PublishEvent": "publish",
            }.get(type(effect.command).__name__, "exit-call")
        case Record():
            raise AssertionError(effect)


def _nothing() -> None:
    """Go on with nothing: what happens next is already under way."""
