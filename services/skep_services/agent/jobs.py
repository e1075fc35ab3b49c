"""The socket on which running jobs say how far they are, and are told what to do.

One connection speaks for one process of a rank, mostly the only one: it says hello with the secret
of its rank first, and nothing on it may come from another. `rank_access` decides whether it may;
what it refuses is told why in one line, there and in the log. Should a second process say that it
is the same one of a rank, it waits: it is heard and spoken to once the first is gone. Until then
the rank cannot give its devices' memory back, because the second one would not.

A job's process is not to be trusted. Each run has a number of connections and of messages a second
of its own, so a flood slows the job that makes it. A connection that does not say hello in time is
closed, and so is one whose message is too large or has a value out of range. A fingerprint that
is out of range is passed over: nothing that the process needs depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from skep.ids import run_token
from skep.machines.agent import RankSaid, RankStats
from skep.machines.agent.rank_processes import merged
from skep.units import NS_PER_SECOND, Instant
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.reports import RankProgress
from skep.wire.talk import (
    Bye,
    Can,
    CountingFailed,
    Failed,
    GoApart,
    Heard,
    Hello,
    Measured,
    NotHeard,
    Said,
    Shows,
    Speech,
    Stats,
    Told,
)
from skep_services.agent.environment import socket_path
from skep_services.agent.rank_access import Peer, RankAccess, peer_of
from skep_services.ports import Clock

log = logging.getLogger(__name__)

LENGTH = struct.Struct(">I")
MESSAGE_BYTES_MAX = 64 * 1024

WAITING_BYTES_MAX = 256 * 1024
"""What may wait for a rank that does not read: thousands of messages, of which it gets a few. One
that has that much waiting is hung up on, and is told again when it returns."""

CONNECTIONS_PER_RANK_MAX = 64
"""More processes of one run than would ever train beside one another: four on each of 16 GPUs."""

STRANGERS_MAX = 256
"""Connections from processes whose run is not known yet: every rank of a node, just started."""

HELLO_WITHIN_S = 10.0
"""What a process has to say hello in: it does so at once, on however busy a machine."""

APART_WITHIN_S = 3.0
"""How long processes may take to give their connections up: one that reads does it at once."""
HEARD_OUT_S = 2.0
"""How long the end of a run waits for what its processes said before it. The last of it is in the
kernel by then, so only a process that outlives its run makes it take that long."""

REFUSED_HELD_S = 1.0
"""How long a refused connection is held: it counts against its run, so that a process which asks
again and again gets at most CONNECTIONS_PER_RANK_MAX answers a second."""

MESSAGES_PER_S = 1000
BURST_S = 2
"""Messages of one rank that are read. A process says a few a second and at most 20, so 50
processes of a rank can; what comes faster waits in the kernel, and then in the job."""
MESSAGE_NS = NS_PER_SECOND // MESSAGES_PER_S

REFUSALS_EVERY_S = 10
"""How often a refusal is logged; those between are counted."""

ERROR_CHARACTERS_MAX = 2000
"""What is passed on of a text that a rank says of an error."""

VALUES_MAX = 32
NAME_CHARACTERS_MAX = 64
"""Numbers that a job may tell about its training, and the length of their names."""

Rank = tuple[str, int, int]
"""Job, attempt, rank."""

DECODER = msgspec.json.Decoder(Said)
ENCODER = msgspec.json.Encoder()
KINDS = frozenset(kind.__struct_config__.tag for kind in Said.__args__)
SPARED = frozenset({Shows.__struct_config__.tag})
"""Messages that are passed over if they cannot be read."""


class _Kind(msgspec.Struct):
    """As much of a message as every version of it has."""

    type: str


class _Line:
    """One connection, from its hello on."""

    def __init__(self, writer: asyncio.StreamWriter, hello: Hello) -> None:
        self.writer = writer
        self.hello = hello
        self.can: Can | None = None
        self.told: Can | None = None
        """What the machine knows that it can."""


class _Refusals:
    """Says in the log what was refused, the first time and then every REFUSALS_EVERY_S."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_at = Instant(0)
        self._unsaid = 0

    def note(self, why: str) -> None:
        """Log a refusal, or count it."""
        now = self._clock.now()
        if now < self._next_at:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more were refused before it)" if self._unsaid else ""
        log.warning("jobs.sock: refused: %s%s", why, more)
        self._next_at = Instant(now + REFUSALS_EVERY_S * NS_PER_SECOND)
        self._unsaid = 0


class _Seat:
    """One connection's part of what its run may have open; `taken` counts them by run."""

    def __init__(self, taken: dict[str, int], run: str) -> None:
        self._taken, self._run = taken, run
        taken[run] = taken.get(run, 0) + 1

    def move(self, run: str) -> None:
        """Count the connection against this run from now on."""
        self.leave()
        self._run = run
        self._taken[run] = self._taken.get(run, 0) + 1

    def leave(self) -> None:
        """Count the connection no more."""
        self._taken[self._run] -= 1
        if not self._taken[self._run]:
            del self._taken[self._run]


class _Refusal(Exception):  # noqa: N818  a name for what happened
    """A process is not listened to; the text says why."""


class _PassedOver(Exception):  # noqa: N818  a name for what happened
    """A message of a kind in SPARED cannot be read; the text says why."""


class JobSocket:
    """Listens on `<state>/sock/jobs.sock`: turns what jobs say into events, tells them things."""

    def __init__(
        self,
        state: Path,
        clock: Clock,
        put: Callable[[RankStats | RankSaid], Awaitable[None]],
        access: RankAccess,
    ) -> None:
        """Prepare to listen.

        Args:
            state: The agent's state folder, or the folder that it shares with jobs.
            clock: The time, also of what jobs say.
            put: Takes the events.
            access: Knows which process may speak for which rank.
        """
        self._path, self._earlier = socket_path(state), state / "jobs.sock"
        self._clock, self._put, self._access = clock, put, access
        self._server: asyncio.Server | None = None
        self._latest: dict[Rank, dict[int, RankProgress]] = {}  # by process of the rank
        self._lines: dict[Rank, list[_Line]] = {}
        self._serving: dict[int, asyncio.Task[Any]] = {}
        self._open: dict[str, int] = {}  # connections by run, "" while that is not known
        self._left = asyncio.Event()  # a connection is over
        self._heard_until: dict[Rank, Instant] = {}
        self._refusals = _Refusals(clock)

    async def open(self) -> None:
        """Listen; a socket left by an earlier process is replaced.

        Jobs that an earlier version began know it by the name it had in the state folder.
        """
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._path.unlink(missing_ok=True)
        if not self._access.any_account:
            self._earlier.unlink(missing_ok=True)
            self._earlier.symlink_to(self._path.relative_to(self._earlier.parent))
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            # The address of a Unix socket holds 107 bytes; a short name for the folder always fits.
            short = f"/proc/self/fd/{folder}/{self._path.name}"
            self._server = await asyncio.start_unix_server(self._serve, short)
        finally:
            os.close(folder)
        # Accounts are told apart by what the kernel says of a connection, and by secrets.
        self._path.chmod(0o666 if self._access.any_account else 0o600)

    async def close(self) -> None:
        """Stop listening, and hang up."""
        if self._server is not None:
            self._server.close()
        serving = list(self._serving.values())
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def tell(self, message: Told) -> bool:
        """Say something to all processes of a rank; return whether it reached one at least.

        Never waits. A process that is away is told again by the machine, once it says hello.
        """
        lines = self._lines.get((message.job, message.attempt, message.rank), [])
        frame = _frame(message)
        told = False
        for line in filter(self._speaks, lines):
            writer = line.writer
            if writer.transport.get_write_buffer_size() + len(frame) > WAITING_BYTES_MAX:
                writer.transport.abort()
                continue
            writer.write(frame)
            told = True
        return told

    async def have_apart(self, token: str, message: GoApart) -> bool:
        """Have every process of a run give its connection up; return whether all have.

        Args:
            token: The run.
            message: What its processes are told.
        """
        for line in self._lines.get((message.job, message.attempt, message.rank), []):
            line.writer.write(_frame(message))
        try:
            async with asyncio.timeout(APART_WITHIN_S):
                while self.is_heard(token):
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return True

    def is_heard(self, token: str) -> bool:
        """Return whether a run has connections from which more may come."""
        return bool(self._open.get(token))

    async def heard_out(self, token: str) -> None:
        """Wait until what the processes of a run said is read, HEARD_OUT_S at most.

        Args:
            token: The run, which has ended. How far it was is in the last thing that it said.
        """
        try:
            async with asyncio.timeout(HEARD_OUT_S):
                while self.is_heard(token):
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            log.warning("run %s has ended, and a process of it still has a connection", token)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._serving[id(task)] = task
        peer = peer_of(writer.get_extra_info("socket"))
        run = self._access.run_of(peer)
        # What is of no known run counts with its user, so that one cannot take the others' places.
        seat = run or (f"user {peer.uid}" if self._access.any_account else "")
        most = CONNECTIONS_PER_RANK_MAX if run else STRANGERS_MAX
        try:
            if not self._access.lets_in(peer):
                whose = "and no run here is" if self._access.any_account else "not the agent's"
                self._refuse(writer, f"process {peer.pid} is of user {peer.uid}, {whose}")
            elif self._open.get(seat, 0) >= most:
                whose = f"run {run} has" if run else "processes of no known run have"
                self._refuse(writer, f"{whose} {most} connections already")
            else:
                await self._listen(reader, writer, peer, seat)
        except asyncio.CancelledError:
            pass  # The agent ends. The server would log it as an error of this connection.
        finally:
            del self._serving[id(task)]
            writer.close()

    def _refuse(self, writer: asyncio.StreamWriter, why: str) -> None:
        """Say why a process is not listened to, in the log and to itself."""
        self._refusals.note(why)
        writer.write(_frame(NotHeard(job="", attempt=0, rank=0, why=why)))

    async def _listen(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, run: str
    ) -> None:
        """Read what a process says while it counts against `run`; say why where it is refused."""
        seat = _Seat(self._open, run)
        try:
            await self._converse(reader, writer, peer, seat)
        except _Refusal as refusal:
            self._refuse(writer, str(refusal))
            await asyncio.sleep(REFUSED_HELD_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # It has hung up.
        finally:
            seat.leave()
            self._left.set()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, seat: _Seat
    ) -> None:
        """Read one process's messages until it closes.

        Raises:
            _Refusal: The process says what it may not say, or does not say hello in time.
        """
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                hello = await _next(reader)
                while hello is None:
                    hello = await _next(reader)
        except _PassedOver as passed:
            raise _Refusal(str(passed)) from None
        except TimeoutError:
            why = f"process {peer.pid} did not say hello within {HELLO_WITHIN_S:.0f} s"
            raise _Refusal(why) from None
        line = await self._greet(writer, hello, peer)
        seat.move(_token(line.hello))
        try:
            if self._speaks(line):
                await self._put(RankSaid(line.hello))
            await self._review(line)
            while True:
                message = None
                try:
                    message = await _next(reader)
                except _PassedOver as passed:
                    self._refusals.note(f"{_name(line.hello)}: {passed}")
                await self._pace(_rank(line.hello))
                if message is not None:
                    await self._hear(line, message)
        finally:
            await self._hang_up(line)

    async def _hear(self, line: _Line, message: Said) -> None:
        """Take a message of a process that has said hello.

        Raises:
            _Refusal: The message is another hello, or is not of the rank that said hello.
        """
        if isinstance(message, Hello) or _who(message) != _who(line.hello):
            why = f"a process of {_name(line.hello)} spoke for {_name(message)}"
            raise _Refusal(why)
        if isinstance(message, Can):
            line.can = message
            await self._review(line)
        elif self._speaks(line):
            await self._take(message)

    async def _pace(self, key: Rank) -> None:
        """Wait while a rank says more than MESSAGES_PER_S, bursts apart."""
        now = self._clock.now()
        begin = now - BURST_S * NS_PER_SECOND
        until = max(self._heard_until.get(key, begin), begin) + MESSAGE_NS
        self._heard_until[key] = Instant(until)
        if until > now:
            await self._clock.sleep_until(Instant(until))

    async def _greet(self, writer: asyncio.StreamWriter, message: Said, peer: Peer) -> _Line:
        """Return the line that begins with a message.

        Raises:
            _Refusal: The message is no hello, or the process may not speak for the rank it names.
        """
        if not isinstance(message, Hello):
            why = f"process {peer.pid} did not say hello first"
            raise _Refusal(why)
        key, token = _rank(message), _token(message)
        await self._access.settled(token)
        why = self._access.refusal(peer, token, message.token)
        if not why and not message.part < message.parts <= CONNECTIONS_PER_RANK_MAX:
            why = f"process {message.part} of {message.parts} of run {token} cannot be"
        if why:
            raise _Refusal(why)
        lines = self._lines.setdefault(key, [])
        if len(lines) >= CONNECTIONS_PER_RANK_MAX:
            why = f"run {token} has {CONNECTIONS_PER_RANK_MAX} connections already"
            raise _Refusal(why)
        # The secret has done its work: it is in no event, and so in no log.
        line = _Line(writer, msgspec.structs.replace(message, token=""))
        earlier = next((each for each in lines if each.hello.pid == message.pid), None)
        # A process that connects again has lost its first connection, even if it was not seen here
        # that yet.
        lines.insert(len(lines) if earlier is None else lines.index(earlier), line)
        return line

    def _speaks(self, line: _Line) -> bool:
        return self._same(line)[0] is line

    def _same(self, line: _Line) -> list[_Line]:
        """Return all lines that speak, or would, for the process of this one."""
        lines = self._lines.get(_rank(line.hello), [])
        return [one for one in lines if one.hello.part == line.hello.part]

    async def _review(self, line: _Line) -> None:
        """Say what the process of a line can do, as far as it is known."""
        same = self._same(line)
        can = same[0].can
        if can is None:
            return
        if len({one.hello.pid for one in same}) > 1:
            left = tuple(name for name in can.can if name != "release")
            can = msgspec.structs.replace(can, can=left)
        if can != same[0].told:
            same[0].told = can
            await self._put(RankSaid(can))

    async def _hang_up(self, line: _Line) -> None:
        """Forget a connection; the one that waited behind it is heard from now on."""
        key, part = _rank(line.hello), line.hello.part
        spoke, same = self._speaks(line), [one for one in self._same(line) if one is not line]
        lines = self._lines[key]
        lines.remove(line)
        if not lines:
            del self._lines[key]
            begin = self._clock.now() - BURST_S * NS_PER_SECOND  # What ended before counts no more.
            heard = self._heard_until.items()
            self._heard_until = {rank: until for rank, until in heard if until > begin}
        if spoke:
            self._latest.get(key, {}).pop(part, None)
            if not self._latest.get(key):
                self._latest.pop(key, None)
        if same:
            if spoke:
                await self._put(RankSaid(same[0].hello))
            await self._review(same[0])

    async def _take(self, message: Said) -> None:
        key, part = _rank(message), message.part
        of_rank = self._latest.get(key, {})
        earlier = of_rank.get(part, RankProgress(rank=message.rank, steps=0))
        match message:
            case Stats():
                now = self._clock.now()
                offset = now - message.monotonic_ns
                last = message.last_step_monotonic_ns
                progress = RankProgress(
                    rank=message.rank,
                    steps=message.steps,
                    step_ns=message.step_ns,
                    # A clock of the job's own may say anything; nothing has happened after now.
                    last_step_at=Instant(min(max(0, last + offset), now) if last else 0),
                    memory=message.memory_bytes,
                    values=earlier.values,
                    values_step=earlier.values_step,
                    fingerprint=earlier.fingerprint,
                    timing=message.timing or earlier.timing,
                    stands=message.stands,
                    own=message.own,
                )
            case Measured():
                if message.part or not _is_bounded(message.values):
                    return
                progress = msgspec.structs.replace(
                    earlier, values=message.values, values_step=message.step
                )
            case Shows():
                progress = msgspec.structs.replace(earlier, fingerprint=message.fingerprint)
            case Bye():
                progress = msgspec.structs.replace(earlier, steps=message.steps)
            case CountingFailed() | Failed():
                error = message.error[:ERROR_CHARACTERS_MAX]
                await self._put(RankSaid(msgspec.structs.replace(message, error=error)))
                return
            case _:
                await self._put(RankSaid(message))
                return
        of_rank[part] = progress
        self._latest[key] = of_rank
        told = merged(list(of_rank.values()))
        await self._put(RankStats(message.job, message.attempt, told))


def _is_bounded(values: dict[str, float]) -> bool:
    return len(values) <= VALUES_MAX and all(len(name) <= NAME_CHARACTERS_MAX for name in values)


async def _next(reader: asyncio.StreamReader) -> Said | None:
    """Return the next message, None for one of a kind that this version does not know.

    Raises:
        _Refusal: What came is no message of the job's end of Skep.
        _PassedOver: It is one that may be passed over.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > MESSAGE_BYTES_MAX:
        why = f"a message of {length} bytes: at most {MESSAGE_BYTES_MAX} are read"
        raise _Refusal(why)
    body = await reader.readexactly(length)
    try:
        return _read(body)
    except UNDECODABLE as error:
        why = f"a message that cannot be read: {error}"
        raise _Refusal(why) from None


def _read(body: bytes) -> Said | None:
    try:
        said: Said = DECODER.decode(body)
    except msgspec.ValidationError as error:
        kind = msgspec.json.decode(body, type=_Kind).type
        if kind in SPARED:
            why = f"a {kind} that cannot be read: {one_line(error)}"
            raise _PassedOver(why) from None
        if kind in KINDS:
            raise
        return None
    return said


def _frame(message: Heard) -> bytes:
    body = ENCODER.encode(message)
    assert len(body) <= MESSAGE_BYTES_MAX, f"a message of {len(body)} bytes"
    return LENGTH.pack(len(body)) + body


def _token(message: Speech) -> str:
    """Return the name of the run that a message is of."""
    return run_token(message.job, message.attempt, message.rank)


def _name(message: Speech) -> str:
    return f"rank {message.rank} of {message.job} attempt {message.attempt}"


def _rank(message: Speech) -> Rank:
    return message.job, message.attempt, message.rank


def _who(message: Speech) -> tuple[Rank, int]:
    return _rank(message), message.part
