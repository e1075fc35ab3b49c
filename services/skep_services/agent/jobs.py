"""The socket on which running jobs say how far they are, and are told what to do.

One connection speaks for one process of a rank, mostly the only one: it says hello with the token
of its run first, and nothing on it may come from another. Should a second process say that it is
the same one of a rank, it waits: it is heard and spoken to once the first is gone. Until then the
rank cannot give its devices' memory back, because the second one would not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from skep.machines.agent import RankSaid, RankStats
from skep.machines.agent.voices import merged
from skep.units import Instant
from skep.wire.bounds import UNDECODABLE
from skep.wire.reports import RankProgress
from skep.wire.talk import Bye, Can, Hello, Measured, Said, Speech, Stats, Told
from skep_services.ports import Clock

LENGTH = struct.Struct(">I")
MESSAGE_BYTES_MAX = 64 * 1024

WAITING_BYTES_MAX = 256 * 1024
"""What may wait for a rank that does not read: thousands of messages, of which it gets a few. One
that has that much waiting is hung up on, and is told again when it returns."""

CONNECTIONS_PER_RANK_MAX = 64
"""More processes of one run than would ever train beside one another: four on each of 16 GPUs."""

VALUES_MAX = 32
NAME_CHARACTERS_MAX = 64
"""Numbers that a job may tell about its training, and the length of their names."""

Rank = tuple[str, int, int]
"""Job, attempt, rank."""

DECODER = msgspec.json.Decoder(Said)
ENCODER = msgspec.json.Encoder()
KINDS = frozenset(kind.__struct_config__.tag for kind in Said.__args__)


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


class JobSocket:
    """Listens on `<state>/jobs.sock`; turns what jobs say into events, and tells them things."""

    def __init__(
        self,
        state: Path,
        clock: Clock,
        put: Callable[[RankStats | RankSaid], Awaitable[None]],
    ) -> None:
        """Prepare to listen; `put` takes the events."""
        self._path = state / "jobs.sock"
        self._clock, self._put = clock, put
        self._server: asyncio.Server | None = None
        self._latest: dict[Rank, dict[int, RankProgress]] = {}  # by process of the rank
        self._lines: dict[Rank, list[_Line]] = {}

    async def open(self) -> None:
        """Listen; a socket left by an earlier process is replaced."""
        self._path.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            # The address of a Unix socket holds 107 bytes; a short name for the folder always fits.
            short = f"/proc/self/fd/{folder}/{self._path.name}"
            self._server = await asyncio.start_unix_server(self._serve, short)
        finally:
            os.close(folder)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening, and hang up."""
        if self._server is not None:
            self._server.close()
        for lines in list(self._lines.values()):
            for line in lines:
                line.writer.close()

    def tell(self, message: Told) -> bool:
        """Say something to all processes of a rank; return whether it reached one at least.

        Never waits. A process that is away is told again by the machine, once it says hello.
        """
        lines = self._lines.get((message.job, message.attempt, message.rank), [])
        body = ENCODER.encode(message)
        assert len(body) <= MESSAGE_BYTES_MAX, f"a message of {len(body)} bytes"
        told = False
        for line in filter(self._speaks, lines):
            writer = line.writer
            if writer.transport.get_write_buffer_size() + len(body) > WAITING_BYTES_MAX:
                writer.transport.abort()
                continue
            writer.write(LENGTH.pack(len(body)) + body)
            told = True
        return told

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one job's messages until it closes, or says something that cannot be read."""
        line: _Line | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, *UNDECODABLE):
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if length > MESSAGE_BYTES_MAX:
                    break
                message = _read(await reader.readexactly(length))
                if message is None:
                    continue
                if line is None:
                    line = self._greet(writer, message)
                    if line is None:
                        break
                    if self._speaks(line):
                        await self._put(RankSaid(line.hello))
                    await self._review(line)
                elif isinstance(message, Hello) or _who(message) != _who(line.hello):
                    break  # It speaks for one process, and said which.
                elif isinstance(message, Can):
                    line.can = message
                    await self._review(line)
                elif self._speaks(line):
                    await self._take(message)
        if line is not None:
            await self._hang_up(line)
        writer.close()

    def _greet(self, writer: asyncio.StreamWriter, message: Said) -> _Line | None:
        """Return the line that begins with a message, None unless it may speak for its rank."""
        key = _rank(message)
        named = isinstance(message, Hello) and message.token == ".".join(map(str, key))
        if not named:
            return None
        assert isinstance(message, Hello)
        lines = self._lines.setdefault(key, [])
        if len(lines) >= CONNECTIONS_PER_RANK_MAX:
            return None
        line = _Line(writer, message)
        earlier = next((each for each in lines if each.hello.pid == message.pid), None)
        # A process that connects again has lost its first connection, even if nobody here has seen
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
        """Forget a connection; whoever waited behind it is heard from now on."""
        key, part = _rank(line.hello), line.hello.part
        spoke, same = self._speaks(line), [one for one in self._same(line) if one is not line]
        lines = self._lines[key]
        lines.remove(line)
        if not lines:
            del self._lines[key]
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
                )
            case Measured():
                if message.part or not _is_bounded(message.values):
                    return
                progress = msgspec.structs.replace(
                    earlier, values=message.values, values_step=message.step
                )
            case Bye():
                progress = msgspec.structs.replace(earlier, steps=message.steps)
            case _:
                await self._put(RankSaid(message))
                return
        of_rank[part] = progress
        self._latest[key] = of_rank
        told = merged(list(of_rank.values()))
        await self._put(RankStats(message.job, message.attempt, told))


def _is_bounded(values: dict[str, float]) -> bool:
    return len(values) <= VALUES_MAX and all(len(name) <= NAME_CHARACTERS_MAX for name in values)


def _read(body: bytes) -> Said | None:
    """Return a message, None for one of a kind that this version does not know."""
    try:
        said: Said = DECODER.decode(body)
    except msgspec.ValidationError:
        if msgspec.json.decode(body, type=_Kind).type in KINDS:
            raise
        return None
    return said


def _rank(message: Speech) -> Rank:
    return message.job, message.attempt, message.rank


def _who(message: Speech) -> tuple[Rank, int]:
    return _rank(message), message.part
