"""A live run's decisions, made again from what a service's log says it decided on.

    inputs noted in the records, streams --> the same machine --> facts == the recorded facts

Only inputs are taken from the log: what was submitted, what nodes and operators said, advice, and
when each of them, and the timer, came to the machine. Heartbeats that led to nothing are in no log:
every node counts as heard, but where the log says that one was lost, which is then *given*. Where
the facts differ, the difference is kept, and the machine goes on from what was recorded, so that
each decision is judged on the true history. Secrets are random, and not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from skep.machines import admission, allocator
from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import AnyMachine, Effect, Record, Restarted, Tick
from skep.machines.searches import SearchesMachine
from skep.machines.searches.machine import Kept as SearchesKept
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.bounds import LogDecoder
from skep.wire.codec import Facts
from skep.wire.commands import Move
from skep.wire.facts import EpochBegan, JobWaits, NodeLost
from skep.wire.inputs import Input, NotesReader
from skep.wire.node import TAKE_OVER_AFTER, NodeJoined

RESYNCS_MAX = 200
"""Differences after which it is clear that this is another history: to go on from the recorded one
takes as long as all of it until there."""
Change = Callable[[Any], Any]
"""What is different in the world that decides again: takes an event or a fact, returns its own."""

Told = Callable[[Any, Sequence[Effect], Instant], None]
"""Takes the machine after a decision, what followed from it, and its time."""

Made = tuple[Input, Any, tuple[Any, ...]]
"""An input, its event, and the facts that follow from it now."""


class Recorded(Protocol):
    """A record of a fact log."""

    @property
    def counter(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def at(self) -> Instant: ...
    @property
    def facts(self) -> tuple[Any, ...]: ...
    @property
    def noted(self) -> bytes: ...


class Log(NamedTuple):
    """What is replayed: a service's records, and the events that streams hold.

    `messages` are by stream and sequence; `wants` says which facts of a stream's records the
    service takes (all of a stream that is not named).
    """

    records: Sequence[Recorded]
    messages: Mapping[str, Mapping[int, Any]]
    wants: Mapping[str, tuple[type[Any], ...]] = {}


class Difference(msgspec.Struct, frozen=True):
    """One decision that came out otherwise: in which record, when, on what.

    What both begin with is left out. `reasons`: the same is done, for other reasons.
    """

    record: int
    at: Instant
    event: Any
    recorded: tuple[Any, ...]
    recomputed: tuple[Any, ...]
    reasons: bool = False


class Comparison(msgspec.Struct, kw_only=True):
    """What came of a replay. A decision is an input from which facts followed, then or now."""

    records: int = 0
    inputs: int = 0
    inputs_by_kind: dict[str, int] = {}
    decisions: int = 0
    equal: int = 0
    facts: int = 0
    starts: int = 0
    """Epochs: how often the service began."""
    differences: list[Difference] = []
    not_comparable: dict[str, int] = {}
    """Records or inputs that could not be compared, by the reason why."""
    given: dict[str, int] = {}
    """What was taken from the recorded facts instead of being decided again, by its kind."""
    stopped: bool = False
    """There were too many differences: the rest was not compared."""


class Again:
    """Decides a log again."""

    def __init__(
        self,
        make: Callable[[], AnyMachine],
        log: Log,
        *,
        change: Change | None = None,
        window: tuple[Instant, Instant] | None = None,
        told: Told | None = None,
    ) -> None:
        """Take how to make the machine; with `change` events and facts are others than they were.

        Outside the `window` of times nothing is compared, though all is decided. `told` is called
        after each decision.
        """
        self._make, self._log = make, log
        self._change: Change = change or _same
        self._window, self._told = window, told
        self._machine: Any = None
        self._history: list[tuple[int, tuple[Any, ...]]] = []
        """What was recorded so far, by record."""
        self._base = 0
        """The record up to which the process began from a snapshot."""
        self._started = dict(_starts(log.records))
        self._snapshots: dict[int, bytes] = dict.fromkeys(self._started.values(), b"")
        self._reader = NotesReader()
        self._parts: tuple[str, int, int] = ("", 0, 0)
        self._early: list[Made] = []
        firsts = ((stream, min(found)) for stream, found in log.messages.items() if found)
        self._firsts = {stream: first for stream, first in firsts if first > 1}
        self._gone = False
        self._resyncs = 0
        self.found = Comparison()

    def run(self) -> Comparison:
        """Return what came of it."""
        for record in self._log.records:
            if self.found.stopped:
                break
            self.found.records += 1
            if record.facts and isinstance(record.facts[0], EpochBegan):
                self._begin(record)
            else:
                self._record(record)
            if record.counter in self._snapshots and self._machine is not None:
                self._snapshots[record.counter] = codec.encode(self._machine.snapshot())
        return self.found

    def _begin(self, record: Recorded) -> None:
        """Start as the process did: from a snapshot if it had one, and from facts."""
        self.found.starts += 1
        self._history.append((record.counter, record.facts))
        self._base = self._started[record.counter]
        if self._base and not self._snapshots[self._base]:
            self._count_missing("starts-from-an-unknown-snapshot")
        self._machine = self._rebuilt()
        self._reader, self._parts, self._early = NotesReader(), ("", 0, 0), []
        self._gone = False

    def _rebuilt(self) -> Any:
        machine = self._make()
        kept = self._snapshots.get(self._base, b"")
        for entry in _KEPT[type(machine)].decode(kept) if kept else ():
            machine.apply(entry)
        for counter, facts in self._history:
            if not kept or counter > self._base:
                for fact in facts:
                    machine.apply(fact)
        return machine

    def _record(self, record: Recorded) -> None:
        recorded = tuple(map(self._change, record.facts))
        if not record.noted and not self._early:
            self._count_missing("records-without-inputs")
            self._history.append((record.counter, recorded))
            self._machine = None  # It is not what it was from here on.
            return
        inputs = self._reader.read(record.noted) if record.noted else []
        if self._taken_out(record, inputs):
            for one in inputs:
                if one.stream in subjects.FACT_STREAMS:
                    self._next_part(one)
            self._count_missing("records-whose-inputs-were-taken-out")
            self._history.append((record.counter, recorded))
            for fact in recorded if self._machine is not None else ():
                self._machine.apply(fact)
            return
        made = [*self._early, *self._decide(record, inputs)]
        self._early = []
        if not recorded and any(facts for *_, facts in made):
            self._early = made  # The facts follow in a record of their own.
            return
        if self._machine is not None:
            self._compare(record, recorded, made)
        self._history.append((record.counter, recorded))

    def _taken_out(self, record: Recorded, inputs: Iterable[Input]) -> bool:
        """Return whether a record has an input that its stream no longer holds.

        Decided submissions are taken out of SUBMIT. The facts of such a record may follow in the
        next one.
        """
        if not self._firsts:
            return False
        before, self._gone = self._gone, False
        for one in inputs:
            first = self._firsts.get(one.stream)
            if first is not None and 0 < one.sequence < first:
                self._gone = not record.facts
                return True
        return before and not record.noted

    def _decide(self, record: Recorded, inputs: Iterable[Input]) -> Iterator[Made]:
        """Yield every input of a record, its event and the facts that follow from it now."""
        silent = [fact.node for fact in record.facts if isinstance(fact, NodeLost)]
        for one in inputs:
            if self._machine is None:
                self._count_missing("inputs-after-a-gap")
                continue
            event = self._event(one)
            if event is None:
                self._count_missing("inputs-that-are-unknown")
                continue
            if one.passed:
                # The live process did not decide on it either: its state is as if it never came.
                self.found.given["PassedOver"] = self.found.given.get("PassedOver", 0) + 1
                continue
            self.found.inputs += 1
            kind = type(event).__name__
            self.found.inputs_by_kind[kind] = self.found.inputs_by_kind.get(kind, 0) + 1
            if isinstance(self._machine, AllocatorMachine):
                assume_heard(self._machine, _silent_at(one, event, silent), one.at)
            effects = self._machine.decide(event, one.at)
            if self._told is not None:
                self._told(self._machine, effects, one.at)
            yield one, event, tuple(each.fact for each in effects if isinstance(each, Record))

    def _count_missing(self, why: str) -> None:
        self.found.not_comparable[why] = self.found.not_comparable.get(why, 0) + 1

    def _event(self, one: Input) -> Any:
        """Return the event that an input was; None if the log does not hold it."""
        if one.restarted:
            return Restarted(self._epoch())
        if one.unknown:
            return None
        if one.message is not None:
            return one.message
        if not one.stream:
            return Tick()
        event = self._log.messages.get(one.stream, {}).get(one.sequence)
        if not isinstance(event, Facts):
            return None if event is None else self._change(event)
        # Another service's record comes fact by fact.
        wanted = self._log.wants.get(one.stream)
        facts = [each for each in event.facts if wanted is None or isinstance(each, wanted)]
        part = self._next_part(one)
        single = tuple(map(self._change, facts[part : part + 1]))
        return msgspec.structs.replace(event, facts=single)

    def _next_part(self, one: Input) -> int:
        """Return which fact of another service's record an input was."""
        stream, sequence, part = self._parts
        part = part + 1 if (stream, sequence) == (one.stream, one.sequence) else 0
        self._parts = one.stream, one.sequence, part
        return part

    # --- comparing ---------------------------------------------------------------------------

    def _compare(self, record: Recorded, recorded: tuple[Any, ...], made: Sequence[Made]) -> None:
        """Judge every decision of a record; the facts of a record follow from its inputs in turn.

        Behind the first that differs in a record it is not known whose facts are whose.
        """
        inside = self._window is None or self._window[0] <= record.at <= self._window[1]
        found = self.found if inside else Comparison()
        self._note_given(found, recorded)
        found.facts += len(recorded)
        at = 0
        deciding = [each for each in made if each[2]]
        for index, (_, _, facts) in enumerate(deciding):
            theirs = recorded[at : at + len(facts)]
            if without_secrets(facts) != without_secrets(theirs):
                self._differs(record, recorded[at:], deciding[index:], found)
                return
            found.decisions += 1
            found.equal += 1
            at += len(facts)
        if at < len(recorded):
            self._differs(record, recorded[at:], made[-1:], found)

    def _differs(
        self, record: Recorded, recorded: tuple[Any, ...], made: Sequence[Made], found: Comparison
    ) -> None:
        """Keep a difference: what was recorded from there on, and what came of the inputs now."""
        now = tuple(fact for _, _, facts in made for fact in facts)
        reasons = _deeds(recorded) == _deeds(now)
        one, event, _ = made[0]
        same = _common(recorded, now)
        found.decisions += 1
        found.differences.append(
            Difference(record.counter, one.at, event, recorded[same:], now[same:], reasons)
        )
        if len(made) > 1:
            why = "decisions-behind-a-difference-in-their-record"
            found.not_comparable[why] = found.not_comparable.get(why, 0) + len(made) - 1
        if not reasons:
            self._resync(record.counter, tuple(map(self._change, record.facts)))

    def _note_given(self, found: Comparison, facts: Iterable[Any]) -> None:
        for fact in facts:
            if isinstance(fact, NodeLost):
                kind = type(fact).__name__
                found.given[kind] = found.given.get(kind, 0) + 1

    def _epoch(self) -> int:
        machine = self._machine
        known = machine.state if isinstance(machine, AllocatorMachine) else machine
        return int(known.epoch)

    def _resync(self, counter: int, recorded: tuple[Any, ...]) -> None:
        """Go on from what was recorded; what a start forgets stays as it is."""
        self._resyncs += 1
        if self._resyncs > RESYNCS_MAX:
            self.found.stopped = True
            return
        machine = self._machine
        soft = machine.tx.soft if isinstance(machine, AllocatorMachine) else None
        self._history.append((counter, recorded))
        self._machine = self._rebuilt()
        self._history.pop()
        if soft is not None:
            soft.vacant = soft.patrol = None
            soft.lines.clear()  # They are of the queues of the machine before.
            self._machine.tx.soft = soft


def _starts(records: Sequence[Recorded]) -> Iterator[tuple[int, int]]:
    """Yield each record that begins an epoch, and the record whose snapshot that began from."""
    began = 0
    for record in records:
        if record.facts and isinstance(record.facts[0], EpochBegan):
            if began:
                yield began, 0
            began = record.counter
        elif began and record.noted:
            yield began, NotesReader().start(record.noted)
            began = 0
    if began:
        yield began, 0


_KEPT: dict[type[Any], LogDecoder[Any]] = {
    AdmissionMachine: LogDecoder(tuple[admission.Kept, ...]),
    AllocatorMachine: LogDecoder(tuple[allocator.Kept, ...]),
    SearchesMachine: LogDecoder(tuple[SearchesKept, ...]),
}


def _silent_at(one: Input, event: Any, lost: Sequence[str]) -> Sequence[str]:
    """Return which of the nodes that a record says were lost can be lost by this input."""
    if isinstance(event, NodeJoined):
        return [event.node] if one.led and event.node in lost else ()
    return lost if one.led else ()


def assume_heard(machine: AllocatorMachine, silent: Iterable[str], now: Instant) -> None:
    """Let every node have spoken just now, but the `silent` ones not for as long as it matters.

    Args:
        machine: What it knows of when nodes spoke is changed.
        silent: The names of nodes; those that it does not know are passed over.
        now: The present instant.
    """
    soft = machine.tx.soft
    soft.last_heard = dict.fromkeys(machine.state.nodes, now)
    for name in silent:
        if name in machine.state.nodes:
            patience = max(machine.settings.node_lost_after, TAKE_OVER_AFTER)
            soft.last_heard[name] = Instant(now - patience - 1)


def _same(thing: Any) -> Any:
    return thing


REASONS = ("why", "ranked", "detail", "needs", "secret")


def _deeds(facts: Sequence[Any]) -> list[Any]:
    """Return what facts do, whatever their reasons; why a job waits is nothing but a reason."""
    facts = [fact for fact in facts if not isinstance(fact, JobWaits) or fact.aside]
    return [
        (
            type(fact),
            [getattr(fact, name) for name in fact.__struct_fields__ if name not in REASONS],
        )
        for fact in facts
    ]


def _common(some: Sequence[Any], others: Sequence[Any]) -> int:
    """Return how many facts both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((at for at, (a, b) in pairs if _open(a) != _open(b)), min(len(some), len(others)))


def without_secrets(facts: Sequence[Any]) -> list[Any]:
    """Return facts without what each process draws for itself: no decision depends on it."""
    return list(map(_open, facts))


def _open(fact: Any) -> Any:
    """Return a fact without what is random in it."""
    change = getattr(fact, "change", None)
    if isinstance(change, Move):
        targets = tuple(msgspec.structs.replace(each, token="") for each in change.targets)
        return msgspec.structs.replace(fact, change=Move(targets=targets))
    return msgspec.structs.replace(fact, secret="") if getattr(fact, "secret", "") else fact
