"""Where gangs meet while they change size: a small process, `skep_job.store`, for each address.

It ends with this agent, by the end of its standard input. A gang needs it only while it changes:
an agent that comes back opens another when it tries again.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

OPEN_SECONDS_MAX = 60.0
"""From the start of the process until it listens: it imports PyTorch first."""

STORES_MAX = 16
"""More gangs than change their size at once on one node; the oldest goes first."""

TROUBLE_CHARS_MAX = 300


class Stores:
    """The meeting places that are open."""

    def __init__(self) -> None:
        """Open none yet."""
        self._open: dict[tuple[str, int], Process] = {}
        self._lock = asyncio.Lock()

    async def open(self, address: str, port: int) -> str:
        """Return once ranks can meet there, or why they cannot; an empty text if they can.

        Args:
            address: The address to listen at.
            port: The port to listen at.
        """
        key = address, port
        async with self._lock:
            known = self._open.pop(key, None)
            if known is not None and known.returncode is None:
                self._open[key] = known
                return ""
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "skep_job.store",
                "--host",
                address,
                "--port",
                str(port),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
            self._open[key] = process
            trouble = await _trouble(process)
            if trouble:
                await _end(self._open.pop(key))
                return trouble
            while len(self._open) > STORES_MAX:
                await _end(self._open.pop(next(iter(self._open))))
            return ""

    async def free(self, port: int) -> None:
        """Close what is open at a port that a gang begins with: the gang there has ended."""
        async with self._lock:
            for key in [key for key in self._open if key[1] == port]:
                await _end(self._open.pop(key))

    async def close(self) -> None:
        """Close all of them."""
        while self._open:
            await _end(self._open.popitem()[1])


async def _trouble(process: Process) -> str:
    """Return an empty text once a store listens, or why it does not."""
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(OPEN_SECONDS_MAX):
            if await process.stdout.readline():
                return ""
            said = (await process.stderr.read()).decode(errors="replace").strip()
    except TimeoutError:
        said = f"it did not listen within {OPEN_SECONDS_MAX:.0f} s"
    lines = said.splitlines() or ["it left no word"]
    return f"the gang cannot meet: {lines[-1][:TROUBLE_CHARS_MAX]}"


async def _end(process: Process) -> None:
    """End a store, which holds nothing that is needed."""
    if process.returncode is None:
        process.kill()
    await process.wait()
