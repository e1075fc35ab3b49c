"""The socket on which running jobs say how far they are."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from skep.machines.agent import RankStats
from skep.units import Instant
from skep.wire.reports import RankProgress
from skep_services.ports import Clock

LENGTH = struct.Struct(">I")
MESSAGE_BYTES_MAX = 64 * 1024


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """A job's `stats` message; times are the host's monotonic clock."""

    job: str
    attempt: int
    rank: int
    steps: int
    step_ns: int
    monotonic_ns: int
    last_step_monotonic_ns: int
    memory_bytes: int = 0


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """A job's last message."""

    job: str
    attempt: int
    rank: int
    steps: int


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A job's first message."""

    job: str
    attempt: int
    rank: int


class Failed(msgspec.Struct, frozen=True, tag="error"):
    """The job's counting has failed; its training goes on."""

    job: str
    attempt: int
    rank: int
    error: str = ""


DECODER = msgspec.json.Decoder(Stats | Bye | Hello | Failed)


class JobSocket:
    """Listens on `<state>/jobs.sock` and turns what jobs say into events for the machine."""

    def __init__(
        self, state: Path, clock: Clock, put: Callable[[RankStats], Awaitable[None]]
    ) -> None:
        """Prepare to listen; `put` takes the events."""
        self._path = state / "jobs.sock"
        self._clock, self._put = clock, put
        self._server: asyncio.Server | None = None
        self._latest: dict[tuple[str, int, int], RankProgress] = {}

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
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one job's messages until it closes, or says something that cannot be read."""
        known: tuple[str, int, int] | None = None
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if length > MESSAGE_BYTES_MAX:
                    return
                message = DECODER.decode(await reader.readexactly(length))
                known = message.job, message.attempt, message.rank
                await self._take(message)
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            return
        finally:
            if known is not None:
                self._latest.pop(known, None)
            writer.close()

    async def _take(self, message: Any) -> None:
        key = message.job, message.attempt, message.rank
        match message:
            case Stats():
                offset = self._clock.now() - message.monotonic_ns
                last = message.last_step_monotonic_ns
                progress = RankProgress(
                    rank=message.rank,
                    steps=message.steps,
                    step_ns=message.step_ns,
                    last_step_at=Instant(last + offset if last else 0),
                    memory=message.memory_bytes,
                )
            case Bye():
                earlier = self._latest.get(key, RankProgress(rank=message.rank, steps=0))
                progress = msgspec.structs.replace(earlier, steps=message.steps)
            case _:
                return
        self._latest[key] = progress
        await self._put(RankStats(message.job, message.attempt, progress))
