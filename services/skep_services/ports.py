"""What the services need from the world, as protocols. Adapters implement them.

The in-memory adapter is the reference; every other adapter passes the same tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from skep.units import Instant
from skep.wire.runs import RunEvent, RunExited, RunNotStarted, RunPlan, RunStarted

__all__ = ["RunEvent", "RunExited", "RunNotStarted", "RunPlan", "RunStarted"]


class Delivery(msgspec.Struct, frozen=True):
    """A message that reached this process, and where it came from.

    `stream` is empty and `sequence` 0 for core messages. `at` is the stream's timestamp
    (wall-clock ns), 0 for core messages. Header names keep the case they were sent with.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] = {}
    stream: str = ""
    sequence: int = 0
    at: Instant = Instant(0)
    reply: str = ""


Deliver = Callable[[Delivery], Awaitable[None]]
"""Takes one delivery; waiting in it is back-pressure: the adapter delivers no further meanwhile."""


class Subscription(Protocol):
    """A running follow or listen."""

    async def close(self) -> None:
        """Stop delivering."""
        ...


class Bus(Protocol):
    """Messages between processes."""

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Publish a core message: at most once, may be lost. Never raises for a lost connection."""
        ...

    async def publish(
        self, subject: str, payload: bytes, key: str, headers: Mapping[str, str]
    ) -> int:
        """Publish into a stream and return its sequence once the server stored it durably.

        Retries for ever on timeouts and leaderless streams, with the same key.

        Args:
            subject: A subject that a stream keeps.
            key: Becomes Nats-Msg-Id.
            headers: The other headers.

        Raises:
            RefusedError: The answer is one that no repetition changes (size, permission).
            FullError: The stream holds as much as it may.
            MissingStreamError: No stream keeps `subject`.
        """
        ...

    async def follow(
        self,
        stream: str,
        after: int,
        deliver: Deliver,
        subjects: Sequence[str] = (),
        known: int = 0,
    ) -> Subscription:
        """Deliver every message of a stream behind a sequence, in order, exactly once.

        Survives reconnects, server restarts and gaps without missing or repeating.

        Args:
            after: The sequence behind which delivery begins.
            deliver: Takes each message. What it raises ends the follow and goes to what takes this
                process's fatal errors.
            subjects: The subjects that are delivered; empty: every subject.
            known: The sequence up to which the stream was read at an earlier time; 0: none is
                known.

        Raises:
            MissingStreamError: The stream does not exist.
            CorruptLogError: The stream ends before `after` or `known`.
        """
        ...

    async def listen(self, subject: str, deliver: Deliver) -> Subscription:
        """Deliver core messages on `subject` (or a pattern), dropping the oldest on overflow."""
        ...

    async def request(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Delivery | None:
        """Return the answer to a core request, or None if none came within `timeout_s`."""
        ...


class LogRecord(msgspec.Struct, frozen=True):
    """One durable append: what one batch of events led to.

    `counter` counts records from 1 without gaps; `positions` are the input positions consumed by
    the events behind this record; `at` is wall-clock ns. `stands_for`: this is no record but a
    snapshot, and stands for that many facts up to record `counter`. `noted` is what was decided on
    since the record before it (`wire.inputs`), if the service notes that.
    """

    counter: int
    epoch: int
    at: Instant
    positions: Mapping[str, int]
    facts: tuple[Any, ...]
    stands_for: int = 0
    noted: bytes = b""


class FactLog(Protocol):
    """The single-writer, fenced, append-only truth of one service."""

    def replay(self) -> AsyncIterator[LogRecord]:
        """Yield every record in order, having verified counter and hash chain.

        A standby calls it again and again: each call yields what was appended since the one before.

        Raises:
            CorruptLogError: There is a gap, a regression or a broken chain.
            MissingLogError: The log should exist and does not.
        """
        ...

    async def begin_epoch(self, owner: str, at: Instant) -> LogRecord:
        """Win the log for this process and return the epoch's record (facts: one EpochBegan).

        Called once, after replay.

        Args:
            owner: The process, in the record.
            at: The time (wall-clock ns).

        Raises:
            SupersededError: Another process appended meanwhile.
        """
        ...

    async def append(
        self, facts: Sequence[Any], positions: Mapping[str, int], at: Instant, noted: bytes = b""
    ) -> LogRecord:
        """Make `facts` durable as one record and return it.

        Args:
            facts: The facts; they may be none.
            positions: The input positions consumed by then, by stream.
            at: The time (wall-clock ns).
            noted: What was decided on (`wire.inputs`); empty: nothing is noted.

        Raises:
            SupersededError: Another process owns the log: this process must exit.
        """
        ...


class Keeper(Protocol):
    """Keeps snapshots beside a fact log, where its `replay` begins."""

    def keep(
        self, entries: Sequence[Any], positions: Mapping[str, int], at: Instant, facts: int
    ) -> Awaitable[None]:
        """Encode a snapshot of the state as of the last append, and return what stores it.

        Storing raises what publishing does.

        Args:
            entries: The state.
            positions: The input positions consumed by then, by stream.
            at: The time (wall-clock ns).
            facts: How many facts it stands for.
        """
        ...


class Turn(Protocol):
    """Tells a standby when to take over. It is about time lost, never about safety."""

    async def has_come(self) -> bool:
        """Return, after a moment, whether no other process seems to do this service's work."""
        ...


class Clock(Protocol):
    """Wall-clock time, never running backwards within a process."""

    def now(self) -> Instant:
        """Return the time."""
        ...

    async def sleep_until(self, instant: Instant) -> None:
        """Return once `now()` is at or past `instant`."""
        ...


class Calls(Protocol):
    """Carries out a machine's `Call` commands."""

    def start(self, command: Any, answer: Callable[[Any], Awaitable[None]]) -> None:
        """Begin `command` without waiting; `answer` takes the event it leads to, or its failure."""
        ...


class EnterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run in a living run, with its account, groups, namespaces and variables.

    `env` comes on top of the run's. With a `terminal` of `rows` and `columns` its standard error is
    part of its output.
    """

    token: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    terminal: bool = False
    rows: int = 24
    columns: int = 80


class NotEntered(msgspec.Struct, frozen=True):
    """Why a command was not started: a code of `wire.reasons` before a colon, if one fits."""

    detail: str


class Entered(Protocol):
    """A command that was started in a run; it is hung up on when this is closed, or lost.

    `run_over`: the run ended before it did, and took it along; by itself, if it has a `run_code`.
    """

    run_over: bool
    run_code: int | None

    async def read(self, most: int) -> tuple[int, bytes] | None:
        """Return the next output (1: standard output, 2: standard error), None behind the last."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input; return once it was taken, or will never be."""
        ...

    def end_input(self) -> None:
        """Say that there is no more input; a terminal has no such end."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        ...

    @property
    def code(self) -> int | None:
        """Its exit status, or minus the signal's number; None: it is not known (yet)."""
        ...

    def close(self) -> None:
        """Hang up on it, if it has not ended."""
        ...


class NodeRuntime(Protocol):
    """Starts, watches and kills process trees so that they survive the agent's own death."""

    async def open(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        """Connect; from here on `on_exit` is told every end of a run.

        Also ends that happened while no agent was there; each is told again until `forget`.
        """
        ...

    async def runs(self) -> Sequence[RunStarted | RunExited]:
        """Return every run known and not forgotten: alive (RunStarted) or ended (RunExited)."""
        ...

    async def start(self, plan: RunPlan) -> RunStarted | RunNotStarted:
        """Start a run.

        A token that was started before is not started again: its state is returned as RunStarted
        whether or not it ended since.
        """
        ...

    async def stop(self, token: str, grace_s: float) -> None:
        """Ask the whole tree to end (SIGTERM), kill what is left after `grace_s`. Idempotent.

        A frozen tree is thawed first: it may use its grace.
        """
        ...

    async def freeze(self, token: str) -> str:
        """Freeze the whole tree where it is; return why it could not be, or an empty text.

        It stays frozen when this process, or what holds the runs, dies. Idempotent; a run that is
        unknown or has ended is fine.
        """
        ...

    async def thaw(self, token: str) -> str:
        """Let a frozen tree go on; return why it could not be, or an empty text. Idempotent."""
        ...

    async def signal(self, token: str, name: str, order: int) -> str:
        """Give a run a signal, such as `USR1`; return why it has none, or an empty text.

        It goes to the uppermost processes of the run that have a handler for it. Of an order that
        is not above the last one nothing comes.
        """
        ...

    async def enter(self, plan: EnterPlan) -> Entered | NotEntered:
        """Start a command in a living run, or return why it cannot be."""
        ...

    async def forget(self, token: str) -> None:
        """Drop the record of an ended run."""
        ...

    async def close(self) -> None:
        """Disconnect; the runs go on."""
        ...


class RefusedError(Exception):
    """The bus refuses this message for good; the text says why."""


class FullError(RefusedError):
    """The stream holds as much as it may: it takes no message before others were taken out."""


class MissingStreamError(Exception):
    """A stream that must exist does not: an operator has to look."""


class MissingLogError(Exception):
    """A fact log that was created earlier is gone: an operator has to look."""


class CorruptLogError(Exception):
    """A fact log has a gap, a regression or a broken hash chain: the service must not go on."""


class SupersededError(Exception):
    """Another process owns this fact log: this process must exit."""
