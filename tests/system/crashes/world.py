"""A real cluster seen from outside: its logs on the bus, agents' journals, sockets, processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from skep.wire import codec, subjects
from skep_services.adapters.journal import FRAME, MAGIC
from skep_services.ports import Delivery
from skep_services.supervisor import home as folder
from tests.support.bare_client import BareClient, bare_client
from tests.support.embedded import Embedded, open_bus
from tests.system.chaos.target import RUNNER, pids, words_of
from tests.system.crashes.judge import Fact

VC = "crash"
NODES, GPUS = ("node-1", "node-2"), 8
"""Room for every job that may be there, and for its growth, on either node."""
OPTIONS = (
    "--nodes",
    str(len(NODES)),
    "--gpus",
    str(GPUS),
    "--vc",
    f"{VC}={len(NODES) * GPUS}",
    "--port",
    "0",
)
DEADLINE_S = 60.0
LOOK_EVERY_S = 0.006
READY = re.compile(r"^warm process (\d+) for .*warm_trajectory.* imports, \d+ bytes", re.MULTILINE)
STREAMS = (subjects.ADMISSION, subjects.ALLOC, subjects.NODE)
ESTABLISHED = "01"
"""How the kernel's table of TCP sockets calls a connection that both sides have."""

T = TypeVar("T")


class Stream:
    """One stream as it grows: its facts or events as plain JSON."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self.facts: list[Fact] = []
        self.of: dict[str, list[Fact]] = {}
        """The same by the job that they are about."""
        self.last = 0
        self.records: list[tuple[Any, ...]] = []
        """Facts as messages, by record; nothing for node events."""

    async def take(self, delivery: Delivery) -> None:
        """Take over one message."""
        self.last = delivery.sequence
        message = json.loads(delivery.payload)
        facts = message.get("facts", [message])
        self.facts += facts
        for fact in facts:
            self.of.setdefault(fact.get("job", ""), []).append(fact)
        if "facts" not in message:
            return
        record = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        assert isinstance(record, codec.Facts), record
        self.records.append(record.facts)


class Journal:
    """An agent's journal as it grows."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self._path, self._at = path, len(MAGIC)
        self._facts: list[Fact] = []

    def facts(self) -> list[Fact]:
        """Return every fact in it, or that was in it before it was compacted."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._at:
                self._at = len(MAGIC)  # Compacted: what is older was read before.
            file.seek(self._at)
            while len(head := file.read(FRAME.size)) == FRAME.size:
                length, _ = FRAME.unpack(head)
                payload = file.read(length)
                if len(payload) < length:
                    break
                self._at += FRAME.size + length
                self._facts += json.loads(payload)["facts"]
        return self._facts


class World:
    """The cluster of `cluster`, up while the context lasts."""

    def __init__(self, cluster: Embedded) -> None:
        """Prepare; nothing is started yet."""
        self.cluster = cluster
        self.streams = {name: Stream() for name in STREAMS}
        self.journals = {node: Journal(cluster.home / node / "journal") for node in NODES}
        self.client: BareClient
        self._open = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[World]:
        """Start it, and follow its logs."""
        await asyncio.to_thread(self.cluster.up, *OPTIONS)
        await self.follow()
        try:
            yield self
        finally:
            await self._open.aclose()

    async def follow(self) -> None:
        """Follow the logs from where they were left: addresses change with a new start."""
        await self._open.aclose()
        about = self.cluster.about
        bus = await open_bus(about, "operator")
        self._open.push_async_callback(bus.close)
        for name, stream in self.streams.items():
            await bus.follow(name, stream.last, stream.take)
        self.client = await self._open.enter_async_context(bare_client(about, f"vc-{VC}"))

    def alloc(self, job: str) -> list[Fact]:
        """Return the allocator's facts about a job so far."""
        return self.streams[subjects.ALLOC].of.get(job, [])

    async def until(
        self, look: Callable[[], T | None], what: str, within_s: float = DEADLINE_S
    ) -> T:
        """Return the first true value of `look`; raises TimeoutError that says what was not."""
        deadline = time.monotonic() + within_s
        while not (found := look()):
            if time.monotonic() > deadline:
                text = f"not within {within_s:.0f} s: {what}"
                raise TimeoutError(text)
            await asyncio.sleep(LOOK_EVERY_S)
        return found

    async def publish(self, verb: str, message: Mapping[str, object]) -> int:
        """Publish a tenant's message; return its sequence once it is stored."""
        payload = json.dumps(message).encode()
        return int((await self.client.publish(f"skep.v1.{verb}.{VC}", payload)).seq)

    async def get(self, path: str) -> Any:
        """Return a document of the gateway."""
        return await asyncio.to_thread(self.cluster.get, path)

    # --- processes -----------------------------------------------------------------------------

    def service(self, name: str) -> int:
        """Return the pid of a service, an agent, the bus server or `supervisor`."""
        entry = self.cluster.entry(name)
        assert folder.is_alive(entry), f"{name} is not running: {entry}"
        return int(entry["pid"])

    def runner(self, node: str) -> int:
        """Return the pid of a node's runner."""
        state = os.fsencode(os.path.realpath(self.cluster.home / node))
        for pid in pids():
            words = words_of(pid)
            if state in words and any(word.endswith(RUNNER) for word in words):
                return pid
        text = f"{node} has no runner"
        raise LookupError(text)

    def warm(self, node: str) -> list[int]:
        """Return the living warm processes of a node that are ready, the newest last."""
        path = self.cluster.home / node / "runner.log"
        found = READY.findall(path.read_text()) if path.exists() else []
        return [int(pid) for pid in found if is_there(int(pid))]

    def forked(self, node: str, run: str) -> bool:
        """Return whether a node's agent says that a run was forked from a warm process."""
        log = Path(folder.service_log_path(str(self.cluster.home), node)).read_text()
        said = [line for line in log.splitlines() if f"run {run}" in line]
        return "forked from a warm process" in " ".join(said)

    async def back(self) -> None:
        """Return once everything that is kept up is ready."""

        def look() -> bool:
            entries = self.cluster.pids().values()
            return all(one.get("state") == "ready" and folder.is_alive(one) for one in entries)

        await self.until(look, "every service is ready")

    async def kill_everything(self) -> None:
        """Kill the supervisor and all that it keeps up at once; start again."""
        names = ("supervisor", *(name for name in self.cluster.pids()))
        entries = {name: self.cluster.entry(name) for name in names}
        for entry in entries.values():
            if folder.is_alive(entry):
                os.kill(entry["pid"], signal.SIGKILL)

        def gone() -> bool:
            return not any(folder.is_alive(entry) for entry in entries.values())

        await self.until(gone, "everything is gone")

    async def up_again(self) -> None:
        """Start the cluster again, and follow it."""
        await asyncio.to_thread(self.cluster.up)
        await self.follow()


def is_connected(pid: int, port: int) -> bool:
    """Tell whether a process has a TCP connection to a port of this machine."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == ESTABLISHED and int(words[2].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    with contextlib.suppress(OSError):
        for one in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{one}") in inodes:
                    return True
    return False


def is_there(pid: int) -> bool:
    """Tell whether a process lives: a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
