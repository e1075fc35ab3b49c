"""The bus: core messages that get lost, doubled and late; streams that lose nothing.

A place that is cut off (or everybody, in an outage) hears nothing; what it publishes into a stream
waits until it can be stored, as a client's retries make it, and so do appends.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from skep.sim.logs import FactLog, Stored, Stream
from skep.sim.story import Story
from skep.sim.timeline import MILLISECOND, SECOND, Timeline
from skep.wire import subjects

LATE_NS_MAX = 70 * SECOND
"""How late a message can be: later than a node is lost, a job ended and its number settled."""

SUBJECTS_MAX = 4096
"""Subjects whose stream and listeners are remembered: those of some hundred histories."""

ACK_RETRY_AFTER = SECOND
"""When a publish without acknowledgement is repeated."""


class Endpoint(Protocol):
    """Something that sends and hears."""

    place: str
    dead: bool

    def enter(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something inside this process: never if it is dead, later if it is paused."""
        ...

    def hear(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Take a core message."""
        ...


class Reader(Endpoint, Protocol):
    """An endpoint that follows streams."""

    @property
    def room(self) -> int:
        """Return how many events its inbox can still take."""
        ...

    def when_room(self, do: Callable[[], None]) -> None:
        """Do something once the inbox has been worked on."""
        ...

    def read(self, stream: str, message: Stored) -> None:
        """Take a stream's message."""
        ...


class Weather(msgspec.Struct):
    """How likely a message is dropped, doubled or delayed, an acknowledgement lost; and latency."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    lost_ack: float = 0.0
    latency_ns_max: int = MILLISECOND


class Network:
    """Everything that crosses a process."""

    def __init__(self, timeline: Timeline, rng: random.Random, story: Story) -> None:
        """Start with empty streams and fair weather."""
        self.weather = Weather()
        self.streams = {name: Stream(name) for name in subjects.STREAMS}
        self._timeline, self._rng, self._story = timeline, rng, story
        self._outage_until = 0
        self._cut_until: dict[str, int] = {}
        self._listens: list[tuple[str, Endpoint]] = []
        self._heard_by: dict[str, list[Endpoint]] = {}
        self._followers = 0

    # --- faults --------------------------------------------------------------------------------

    def outage(self, length: int) -> None:
        """Let nothing pass for a while.

        Args:
            length: Nanoseconds.
        """
        self._outage_until = max(self._outage_until, self._timeline.now + length)

    def cut(self, place: str, length: int) -> None:
        """Let nothing pass to or from one place for a while.

        Args:
            place: The place of endpoints, such as a service or a machine.
            length: Nanoseconds.
        """
        until = self._cut_until.get(place, 0)
        self._cut_until[place] = max(until, self._timeline.now + length)

    def heal(self) -> None:
        """Let everything pass."""
        self.weather = Weather(latency_ns_max=self.weather.latency_ns_max)
        self._outage_until = 0
        self._cut_until.clear()

    def closed_ns(self, place: str) -> int:
        """Return how long nothing will pass to or from a place.

        Returns:
            Nanoseconds; 0: it is connected.
        """
        until = max(self._outage_until, self._cut_until.get(place, 0))
        return max(0, until - self._timeline.now)

    # --- core messages ---------------------------------------------------------------------------

    def listen(self, endpoint: Endpoint, pattern: str) -> None:
        """Have an endpoint hear what is sent on subjects like `pattern`."""
        self._listens.append((pattern, endpoint))
        self._heard_by.clear()

    def leave(self, endpoint: Endpoint) -> None:
        """Stop an endpoint's listening."""
        self._listens = [listen for listen in self._listens if listen[1] is not endpoint]
        self._heard_by.clear()

    def send(
        self, sender: Endpoint, subject: str, payload: bytes, headers: Mapping[str, str], label: str
    ) -> None:
        """Send a core message: at most once, if the weather allows.

        Args:
            sender: From where it is sent.
            subject: Where to.
            payload: What is sent.
            headers: Its headers.
            label: What it is called where faults are counted.
        """
        closed = self.closed_ns(sender.place)
        if closed and self._rng.random() < 0.5:
            self._story.hit("outage", f"{label} lost")
            return  # The client's buffer is gone with its connection; else it is sent late.
        if stream := kept_in(subject):
            for wait in self._copies(label):
                keep = self.streams[stream].store, subject, payload, headers
                self._timeline.after(closed + wait, self._kept, *keep)
            return
        for receiver in self._receivers(subject):
            for wait in self._copies(label):
                self._timeline.after(
                    closed + wait, self._arrive, receiver, subject, payload, headers
                )

    def _receivers(self, subject: str) -> list[Endpoint]:
        found = self._heard_by.get(subject)
        if found is None:
            found = [endpoint for pattern, endpoint in self._listens if matches(pattern, subject)]
            self._heard_by[subject] = found
        return found

    def _copies(self, label: str) -> list[int]:
        """Return the delay of each copy of a message that arrives."""
        weather, roll = self.weather, self._rng.random()
        if roll < weather.drop:
            self._story.hit("drop", label)
            return []
        copies = [self._flight()]
        if roll < weather.drop + weather.duplicate:
            self._story.hit("duplicate", label)
            copies.append(self._flight())
        if weather.delay and self._rng.random() < weather.delay:
            far = self._rng.random() < 0.5
            self._story.hit("delay" if far else "reorder", label)
            copies[-1] += self._rng.randrange(LATE_NS_MAX if far else 50 * MILLISECOND)
        return copies

    def _flight(self) -> int:
        return 50_000 + int(self._rng.random() * self.weather.latency_ns_max)

    def _arrive(
        self, receiver: Endpoint, subject: str, payload: bytes, headers: Mapping[str, str]
    ) -> None:
        if not receiver.dead and not self.closed_ns(receiver.place):
            receiver.hear(subject, payload, headers)

    def _kept(
        self,
        store: Callable[[str, bytes, Mapping[str, str], str, int], int],
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
    ) -> None:
        """Have a stream keep what was sent on its subject, without a word to the sender."""
        store(subject, payload, headers, headers.get(subjects.KEY_HEADER, ""), self._timeline.now)

    # --- streams ---------------------------------------------------------------------------------

    def publish(
        self,
        sender: Endpoint,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        acked: Callable[[int], None],
    ) -> None:
        """Publish into a stream, and again until acknowledged if the message has a key.

        Args:
            sender: From where it is published.
            subject: Where to; its stream keeps the message.
            payload: What is published.
            headers: Its headers, perhaps with a key.
            acked: Is called with the sequence, inside the sender.
        """
        stream = self.streams[stream_of(subject)]
        self._timeline.after(
            self._flight(), self._store, sender, stream, subject, payload, headers, acked
        )

    def _store(
        self,
        sender: Endpoint,
        stream: Stream,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        acked: Callable[[int], None],
    ) -> None:
        closed = self.closed_ns(sender.place)
        if closed:
            if not sender.dead or self._rng.random() < 0.3:
                self._timeline.after(
                    closed + self._flight(),
                    self._store,
                    sender,
                    stream,
                    subject,
                    payload,
                    headers,
                    acked,
                )
            return
        key = headers.get(subjects.KEY_HEADER, "")
        sequence = stream.store(subject, payload, headers, key, self._timeline.now)
        if self._rng.random() < self.weather.lost_ack:
            self._story.hit("lost-ack", f"publish {subject.split('.')[2]}")
            if key:
                self._timeline.after(
                    ACK_RETRY_AFTER, self._again, sender, stream, subject, payload, headers, acked
                )
            return
        self._timeline.after(self._flight(), sender.enter, acked, sequence)

    def _again(
        self,
        sender: Endpoint,
        stream: Stream,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        acked: Callable[[int], None],
    ) -> None:
        if not sender.dead:
            self._store(sender, stream, subject, payload, headers, acked)

    def follow(self, reader: Reader, stream: str, after: int, wanted: Sequence[str] = ()) -> None:
        """Have a reader read every message of a stream behind `after`, in order, once each.

        Args:
            reader: What reads.
            stream: The name of the stream.
            after: The sequence of the last message that is left out.
            wanted: Patterns of subjects that are read; empty: all are.
        """
        self._followers += 1
        follower = _Follower(self, self._timeline, reader, self.streams[stream], after, wanted)
        self.streams[stream].wakes[self._followers] = follower.wake
        follower.number = self._followers
        follower.wake()

    # --- fact logs -------------------------------------------------------------------------------

    def append(
        self,
        sender: Endpoint,
        log: FactLog,
        payload: bytes,
        expected: int,
        done: Callable[[bool], None],
    ) -> None:
        """Append a record to a service's log, and publish it to the log's followers.

        The request may arrive after its sender's death.

        Args:
            sender: The process that appends.
            log: The log of its service.
            payload: The record in JSON.
            expected: How many records the sender knows of.
            done: Is called with whether it was taken, inside the sender.
        """
        self._timeline.after(self._flight(), self._append, sender, log, payload, expected, done)

    def _append(
        self,
        sender: Endpoint,
        log: FactLog,
        payload: bytes,
        expected: int,
        done: Callable[[bool], None],
    ) -> None:
        closed = self.closed_ns(sender.place)
        if closed:
            if not sender.dead or self._rng.random() < 0.3:
                self._timeline.after(
                    closed + self._flight(), self._append, sender, log, payload, expected, done
                )
            return
        taken = log.append(payload, expected)
        if taken:
            subject = f"{subjects.PREFIX}.fact.{log.service}"
            self.streams[stream_of(subject)].store(subject, payload, {}, "", self._timeline.now)
        self._timeline.after(self._flight(), sender.enter, done, taken)

    def latency(self) -> int:
        """Return how many nanoseconds a delivery takes."""
        return self._flight()


class _Follower:
    """One reader's place in one stream."""

    def __init__(
        self,
        network: Network,
        timeline: Timeline,
        reader: Reader,
        stream: Stream,
        after: int,
        wanted: Sequence[str],
    ) -> None:
        self.number = 0
        self._network, self._timeline = network, timeline
        self._reader, self._stream = reader, stream
        self._cursor, self._wanted = after, wanted
        self._waking = False

    def wake(self) -> None:
        """Look for new messages soon."""
        if self._reader.dead:
            del self._stream.wakes[self.number]
        elif not self._waking and self._cursor < len(self._stream.messages):
            self._waking = True
            delay = self._network.closed_ns(self._reader.place) + self._network.latency()
            self._timeline.after(delay, self._reader.enter, self._pump)

    def _pump(self) -> None:
        self._waking = False
        if self._network.closed_ns(self._reader.place):
            self.wake()
            return
        messages = self._stream.messages
        while self._cursor < len(messages) and self._reader.room > 0:
            message = messages[self._cursor]
            self._cursor += 1
            if not self._wanted or any(matches(each, message.subject) for each in self._wanted):
                self._reader.read(self._stream.name, message)
        if self._cursor < len(messages):
            self._reader.when_room(self.wake)


@functools.lru_cache(SUBJECTS_MAX)
def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject is like a pattern, in which `*` stands for one token."""
    if pattern == subject:
        return True
    if "*" not in pattern:
        return False
    parts, tokens = pattern.split("."), subject.split(".")
    return len(parts) == len(tokens) and all(
        part in {"*", token} for part, token in zip(parts, tokens, strict=True)
    )


@functools.lru_cache(SUBJECTS_MAX)
def kept_in(subject: str) -> str:
    """Return the stream that keeps a subject; empty: none does."""
    found = (
        name
        for name, patterns in subjects.STREAMS.items()
        if any(matches(pattern, subject) for pattern in patterns)
    )
    return next(found, "")


def stream_of(subject: str) -> str:
    """Return the stream that keeps a subject of which it is known that one does."""
    stream = kept_in(subject)
    assert stream, subject
    return stream
