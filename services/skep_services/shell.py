"""The asyncio shell that drives any machine: one bounded inbox, one consumer, no locks.

For everything that waits in the inbox: decide; append the facts durably as one record (split only
between events); then publish; then call; then re-arm the one timer. If an append fails, or `decide`
raises, the process ends, and start is recovery: replay, win the epoch, `Restarted`, follow on from
the positions stored in the last record. A standby is a process that has replayed and not yet tried
to win: it goes on replaying what the active process appends until its turn comes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from skep.machines.base import Call, Effect, Machine, Record, Restarted, Send, Tick
from skep.machines.noting import note
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.inputs import NOTE_BYTES_MAX, InputNotes
from skep_services import undecided
from skep_services.links import Followed, ForeignSeen
from skep_services.ports import (
    Bus,
    Calls,
    Clock,
    CorruptLogError,
    Delivery,
    FactLog,
    Keeper,
    MissingStreamError,
    RefusedError,
    Turn,
)
from skep_services.undecided import Undecided, UndecidedError

INBOX_MAX = 10_000
"""Two seconds of reports from 1,000 nodes with room to spare; streams wait when it is full, and
core messages beyond it are dropped, as they are repeated or conflated anyway."""
TIMED_MAX = 20_000
"""Decisions whose length is remembered, for those that ask for this process's health."""
BATCH_MAX = 256
"""Events decided before their facts are written: bounds how long the first one waits."""
KEEP_EVERY = 20_000
"""Facts between two snapshots: to replay so many takes a quarter of a second."""
KEEP_SHARE = 2
"""And as many for each of its entries: a large state must not be written over and over."""
UNREAD_TEXT_MAX = 500
REPORTS_MAX = 100
"""Messages passed over that are reported one by one; of the later ones each hundredth."""
NOTES_BYTES = 32 * 1024
"""What is noted of inputs before it is stored, without facts if none followed: about an hour's
timers of an idle cluster. With one more event (NOTE_BYTES_MAX) it fits any record."""
RECORD_BYTES = codec.RECORD_BYTES_MAX - 16 * 1024
"""What the facts of one record may fill; the rest is for its envelope."""
assert NOTES_BYTES + NOTE_BYTES_MAX < RECORD_BYTES


class Follow(msgspec.Struct, frozen=True):
    """A stream the machine reads, and which of its subjects and facts (all, if empty).

    `anew`: from its beginning at every start, as what is made of it is not recorded.
    """

    stream: str
    subjects: tuple[str, ...] = ()
    facts: tuple[type[Any], ...] = ()
    anew: bool = False


class Observer(Protocol):
    """Sees every decision after its effects are out: logs and traces are made of this."""

    def decided(
        self, event: Any, effects: Sequence[Effect], began: Instant, ended: Instant
    ) -> None:
        """Take note of one decision; `began` and `ended` are wall-clock ns."""
        ...

    def report(self, what: str, **about: Any) -> None:
        """Tell an operator of something that should not have happened."""
        ...

    async def flush(self) -> None:
        """Send what has gathered, if anything."""
        ...


class NoCalls:
    """For machines that call nothing."""

    def start(self, command: Any, answer: Callable[[Any], Awaitable[None]]) -> None:
        """Refuse: there is no adapter for any command.

        Raises:
            AssertionError: A bug: a machine without an adapter for its calls made one.
        """
        text = f"nothing carries out {command!r}"
        raise AssertionError(text)


class Item(msgspec.Struct, frozen=True):
    """An event in the inbox, where it is from, and whether it is the last of that message."""

    event: Any
    stream: str = ""
    sequence: int = 0
    last: bool = True
    part: int = 0
    """Which of a record's facts it is."""
    outside: bool = False
    """Something outside this process said it, and may say it again."""

    @property
    def key(self) -> str:
        """Return what a failure to decide this is noted by; empty for what comes from inside."""
        if self.sequence:
            return undecided.place(self.stream, self.sequence, self.part)
        return undecided.sender(self.event) if self.outside else ""


EventT = TypeVar("EventT")
FactT = TypeVar("FactT")


class Shell(Generic[EventT, FactT]):
    """Drives one machine. Make it, then `run` it until it is cancelled or raises.

    What comes from the bus is of the machine's events if the service subscribes to nothing else;
    a test holds every service to that. What is put in from inside is checked by its type.
    """

    def __init__(
        self,
        machine: Machine[EventT, FactT],
        *,
        bus: Bus,
        clock: Clock,
        observer: Observer,
        owner: str,
        failures: Undecided,
        foreign: ForeignSeen,
        facts: FactLog | None = None,
        keeper: Keeper | None = None,
        calls: Calls | None = None,
        turn: Turn | None = None,
        follow: Sequence[Follow] = (),
        listen: Sequence[str] = (),
        notes: InputNotes | None = None,
        keep_every: int = 0,
    ) -> None:
        """Take the machine and its ports.

        Args:
            machine: What decides.
            bus: Where its messages come from and go to.
            observer: Sees every decision.
            owner: Names this process in its epoch record.
            failures: Remembers, from one process to the next, on which messages `decide` raised.
            foreign: Counts what others wrote into fact streams.
            facts: The fact log; None: the machine records nothing.
            keeper: Keeps a snapshot now and then; the machine has a `snapshot`. None: none is kept.
            calls: Carries out the machine's calls; None: it makes none.
            turn: Tells when to take over: the process stands by first. None: it takes over at once.
            follow: The streams that the machine reads.
            listen: The subjects of core messages that it hears.
            notes: What is decided on is noted there, beside the facts; None: it is not noted.
            keep_every: Facts between two snapshots; 0: KEEP_EVERY.
        """
        self._keep_every = keep_every
        self.machine = machine
        self.epoch = 0
        self.active = asyncio.Event()
        self.active_since = Instant(0)
        self.facts_applied = 0
        self.positions: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        """How far of each stream what follows is stored; `positions` may be ahead of it."""
        self.dropped = 0
        self.ready = asyncio.Event()
        self._bus, self._clock, self._observer = bus, clock, observer
        self._facts, self._calls, self._turn = facts, calls or NoCalls(), turn
        self._failures = failures
        self.foreign = foreign
        self.passed_over = 0
        """Messages that were not decided on, because `decide` had raised on them."""
        self.passed_latest = ""
        """The latest of them, and why."""
        self._keeper, self._notes = keeper, notes
        self._keeping: asyncio.Future[None] | None = None
        self.facts_kept = 0
        """How many facts the latest snapshot stands for."""
        self._kept_size = 0
        self.keep_failed = ""
        """Why the latest snapshot could not be stored, if it could not."""
        self._follow, self._listen, self._owner = tuple(follow), tuple(listen), owner
        self._inbox: asyncio.Queue[Item] = asyncio.Queue(INBOX_MAX)
        self._decided_ns: deque[int] = deque(maxlen=TIMED_MAX)
        self._timer: asyncio.Task[None] | None = None
        self._timer_at: Instant | None = None

    @property
    def waiting(self) -> int:
        """Return how many events wait in the inbox."""
        return self._inbox.qsize()

    def decide_us(self) -> dict[str, float]:
        """Return how long the latest decisions took, in microseconds per event."""
        taken = sorted(self._decided_ns)
        if not taken:
            return {}
        return {
            "p50": taken[len(taken) // 2] / 1000,
            "p99": taken[len(taken) * 99 // 100] / 1000,
            "max": taken[-1] / 1000,
            "n": len(taken),
        }

    async def run(self) -> None:
        """Recover, then decide for ever; raise what the ports raise.

        Raises:
            SupersededError: Another process owns the log.
            CorruptLogError: The log, or a stream that is followed, is damaged.
            MissingStreamError: A stream does not exist.
            UndecidedError: `decide` raised on a message from outside.
        """
        await self._recover()
        await self._step([Item(Restarted(self.epoch))])
        subscriptions = [await self._bus.listen(subject, self._heard) for subject in self._listen]
        for wish in self._follow:
            after = known = 0 if wish.anew else self.positions.get(wish.stream, 0)
            deliver = partial(self._read, wish)
            if wish.stream in subjects.FACT_STREAMS:
                followed = Followed(wish.stream, known, self.foreign)
                after, deliver = followed.begin, partial(self._read_record, wish, followed)
            subscriptions.append(
                await self._bus.follow(wish.stream, after, deliver, wish.subjects, known)
            )
        self.ready.set()
        try:
            while True:
                await self._step(await self._next())
                self._keep()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for subscription in subscriptions:
                await subscription.close()

    async def put(self, event: EventT) -> None:
        """Let an event wait for the machine: answers to calls come in here."""
        await self._inbox.put(Item(event))

    async def hear(self, event: EventT) -> None:
        """Queue what came from outside by another way than the bus, such as from a job."""
        await self._inbox.put(Item(event, outside=True))

    # --- start ---------------------------------------------------------------------------------

    async def _recover(self) -> None:
        await self._replay()
        if self._turn is not None:
            while not await self._turn.has_come():
                await self._replay()
            await self._replay()
        if self._facts is not None:
            began = await self._facts.begin_epoch(self._owner, self._clock.now())
            for fact in began.facts:
                self.machine.apply(fact)
            self.epoch = began.epoch
        self.active_since = self._clock.now()
        self.active.set()

    async def _replay(self) -> None:
        """Apply what is in the log and not applied yet."""
        if self._facts is None:
            return
        async for record in self._facts.replay():
            self.positions.update(record.positions)
            self.stored.update(record.positions)
            for fact in record.facts:
                self.machine.apply(fact)
            if record.stands_for:
                self.facts_applied = self.facts_kept = record.stands_for
                if self._notes is not None:
                    self._notes.snapshot = record.counter
            else:
                self.facts_applied += len(record.facts)

    # --- in ------------------------------------------------------------------------------------

    async def _read_record(self, wish: Follow, followed: Followed, delivery: Delivery) -> None:
        """Queue a message of a fact stream, unless it is foreign or was read before."""
        if followed.takes(delivery.payload, delivery.sequence):
            await self._read(wish, delivery)

    async def _read(self, wish: Follow, delivery: Delivery) -> None:
        """Queue a stream's message; waiting here is what holds the stream back.

        Another service's record comes fact by fact, so that no single event can lead to more than
        one record holds. Its position counts with the last one: a crash in between reads it again.
        Raises CorruptLogError, which the bus takes for the end of this process.
        """
        event = _event(delivery)
        if isinstance(event, codec.Facts):
            facts = event.facts
            if wish.facts:
                facts = tuple(fact for fact in facts if isinstance(fact, wish.facts))
            for part, fact in enumerate(facts[:-1]):
                single = msgspec.structs.replace(event, facts=(fact,))
                item = Item(single, delivery.stream, delivery.sequence, last=False, part=part)
                await self._inbox.put(item)
            event = msgspec.structs.replace(event, facts=facts[-1:])
            part = max(0, len(facts) - 1)
        else:
            part = 0
        await self._inbox.put(Item(event, delivery.stream, delivery.sequence, part=part))

    async def _heard(self, delivery: Delivery) -> None:
        try:
            self._inbox.put_nowait(Item(_event(delivery), outside=True))
        except asyncio.QueueFull:
            self.dropped += 1

    async def _next(self) -> list[Item]:
        """Return what waits, at least one event."""
        items = [await self._inbox.get()]
        while len(items) < BATCH_MAX and not self._inbox.empty():
            items.append(self._inbox.get_nowait())
        return items

    # --- out -----------------------------------------------------------------------------------

    async def _step(self, items: Sequence[Item]) -> None:
        began = self._clock.now()
        decisions: list[tuple[Any, list[Effect]]] = []
        pending: list[Any] = []
        size = 0
        passed = False
        for item in items:
            now = self._clock.now()
            if self._passes(item, now):
                passed = passed or (bool(item.sequence) and self._facts is not None)
                continue
            effects, facts, weight = self._decide(item, now)
            decisions.append((item.event, effects))
            if pending and size + weight > RECORD_BYTES:
                await self._append(pending, size)
                pending, size = [], 0
            pending += facts
            size += weight
            if self._notes is not None:
                note(self._notes, item.event, item.stream, item.sequence, now, led=bool(facts))
            if item.sequence and item.last:
                self.positions[item.stream] = item.sequence
            if self._notes is not None and self._notes.size > NOTES_BYTES:
                # A batch may hold more notes than a record: advice of every job, for minutes.
                await self._append(pending, size)
                pending, size = [], 0
        if pending or passed:
            # What was passed over is noted at once: to read it again would cost two more starts.
            await self._append(pending, size)
        for _, effects in decisions:
            await self._send(effects)
        for _, effects in decisions:
            for effect in effects:
                if isinstance(effect, Call):
                    self._calls.start(effect.command, self.put)
        self._arm()
        ended = self._clock.now()
        for event, effects in decisions:
            self._observer.decided(event, effects, began, ended)
        await self._observer.flush()

    def _decide(self, item: Item, now: Instant) -> tuple[list[Effect], list[Any], int]:
        """Return the effects of an event, the facts among them, and these facts' bytes.

        Raises:
            MemoryError: There is not enough memory, which says nothing about the message.
            UndecidedError: It fails on a message from outside; that is noted durably.
        """
        began = time.perf_counter_ns()
        try:
            effects = self.machine.decide(item.event, now)
            facts = [effect.fact for effect in effects if isinstance(effect, Record)]
            weight = sum(len(codec.encode(fact)) for fact in facts) if facts else 0
            assert weight <= RECORD_BYTES, f"facts of {weight} bytes: no record holds them"
        except MemoryError:
            raise  # It says nothing about the message.
        except Exception as error:
            if not item.key:
                raise
            failure = self._failures.failed(item.key, item.event, error, now)
            text = f"attempt {failure.attempts} at {item.key}: {failure.error}"
            raise UndecidedError(text) from error
        self._decided_ns.append(time.perf_counter_ns() - began)
        return effects, facts, weight

    def _passes(self, item: Item, now: Instant) -> bool:
        """Pass over an event if earlier processes ended on it; return whether that is so."""
        failure = self._failures.passes(item.key, now) if self._failures.failures else None
        if failure is None:
            return False
        self.passed_over += 1
        self.passed_latest = f"{failure.event} {item.key}: {failure.error}"
        if self.passed_over <= REPORTS_MAX or self.passed_over % REPORTS_MAX == 0:
            self._observer.report(
                "a message was passed over: this service cannot decide on it",
                message=item.key,
                kind=failure.event,
                error=failure.error,
                attempts=failure.attempts,
                count=self.passed_over,
            )
        if self._notes is not None and item.sequence:
            self._notes.passed(item.stream, item.sequence, now)
        if item.sequence and item.last:
            self.positions[item.stream] = item.sequence
        return True

    async def _append(self, facts: list[Any], size: int) -> None:
        """Store facts that weigh `size` bytes, and what was noted."""
        assert self._facts is not None, f"no fact log for {facts[:1]!r}"
        noted = self._notes.take() if self._notes is not None else b""
        if noted and facts and size + len(noted) > RECORD_BYTES:
            # Without positions: what was consumed counts only once its facts are stored.
            await self._facts.append((), {}, self._clock.now(), noted)
            noted = b""
        positions = dict(self.positions)
        await self._facts.append(tuple(facts), positions, self._clock.now(), noted)
        self.stored = positions
        self.facts_applied += len(facts)

    async def _send(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                payload = codec.encode(effect.message)
                try:
                    await self._bus.send(effect.subject, payload, effect.headers)
                except RefusedError as error:
                    # It may be lost as any core message, and none is to wait for it.
                    self._observer.report("a message could not be sent", error=str(error))

    def _keep(self) -> None:
        """Keep a snapshot if enough was recorded since the last one, and none is being stored."""
        every = self._keep_every or KEEP_EVERY
        due = self.facts_applied - self.facts_kept >= max(every, self._kept_size)
        if self._keeper is None or not due or (self._keeping and not self._keeping.done()):
            return
        machine: Any = self.machine
        entries = machine.snapshot()
        storing = self._keeper.keep(
            entries, dict(self.positions), self._clock.now(), self.facts_applied
        )
        self.facts_kept, self._kept_size = self.facts_applied, KEEP_SHARE * len(entries)
        self._keeping = asyncio.ensure_future(self._store(storing))

    async def _store(self, storing: Awaitable[None]) -> None:
        """Store a snapshot. It is a copy: that it cannot be stored costs recovery time only."""
        try:
            await storing
        except (RefusedError, MissingStreamError) as error:
            self.keep_failed = str(error)

    # --- the timer -----------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have a Tick come when the machine wants one; an earlier one under way serves too."""
        wake_at = self.machine.wake_at()
        if wake_at is None:
            return
        running = self._timer is not None and not self._timer.done()
        if running and self._timer_at is not None and self._timer_at <= wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = asyncio.get_running_loop().create_task(self._wake(wake_at))

    async def _wake(self, at: Instant) -> None:
        await self._clock.sleep_until(at)
        await self._inbox.put(Item(Tick()))


def _event(delivery: Delivery) -> Any:
    """Return the event a delivery is, Unreadable if a sender outside may have sent it wrong.

    Raises:
        CorruptLogError: Another service's record cannot be read: to pass over it would be to decide
            on a truth with a hole in it.
    """
    headers = delivery.headers
    if delivery.subject == subjects.ACCESS_ASKED:
        # Request and reply by the bus's own means; all other requests come through a stream.
        headers = {**headers, subjects.REPLY_HEADER: delivery.reply}
    try:
        event = codec.read(
            delivery.subject, delivery.payload, headers, delivery.sequence, delivery.at
        )
    except Exception as error:
        # Reading changes nothing, so that a bug in it need not end anything.
        event = codec.Unreadable(subject=delivery.subject, text=repr(error)[:UNREAD_TEXT_MAX])
    if isinstance(event, codec.Unreadable) and delivery.stream in subjects.FACT_STREAMS:
        text = (
            f"stream {delivery.stream}, message {delivery.sequence}: not a record this program "
            f"reads: {event.text}. If a newer version wrote it, update this service; if it was "
            f"damaged or written by something else, restore the stream from a backup, do not "
            f"delete it."
        )
        raise CorruptLogError(text)
    return event
