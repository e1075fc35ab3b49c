"""A node's agent in this process, real but for its bus; it can be killed, and returns."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from skep.machines.agent import AgentMachine
from skep.machines.base import Effect
from skep.units import GIB, Instant
from skep.wire import codec, subjects
from skep.wire.commands import AGENT_PYTHON, BindJob, Change, ChangeJob, StopJob
from skep.wire.node import MemberChanged, NodeEvent, NodeJoined
from skep_services.adapters.clock import SystemClock
from skep_services.adapters.devices import CpuSlots, Devices
from skep_services.adapters.launcher_runtime import LauncherRuntime, find
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.adapters.process_runtime import ProcessRuntime
from skep_services.agent.__main__ import AgentJournal
from skep_services.agent.calls import AgentCalls
from skep_services.agent.jobs import JobSocket
from skep_services.links import ForeignSeen
from skep_services.shell import Shell
from skep_services.undecided import Undecided
from tests.kit import bind, plans
from tests.node_runtimes import DEADLINE_SECONDS, PATH, process_runtime
from tests.support.ports import free_port

JOBS = Path(__file__).parent / "e2e" / "jobs"
E = TypeVar("E")


class Quiet:
    """Sees every decision and says nothing."""

    def decided(
        self, event: Any, effects: Sequence[Effect], began: Instant, ended: Instant
    ) -> None:
        """Say nothing."""

    def report(self, what: str, **about: Any) -> None:
        """Fail: nothing goes wrong in these tests."""
        raise AssertionError(what, about)

    async def flush(self) -> None:
        """Have nothing to send."""


LAUNCHER = "SKEP_TEST_LAUNCHER"
"""What names the socket of a launcher, and that the tests are to run jobs by it, as OWNER."""
OWNER = "ada"


class LiveNode:
    """The node whose state is in `folder`/state; its bus is in memory, and outlives the agent."""

    def __init__(self, folder: Path, devices: Devices | None = None) -> None:
        self.folder, self.state = folder, folder / "state"
        self.state.mkdir(mode=0o700)
        self.shared, self.launcher = self.state, None  # type: Path, Path | None
        if os.environ.get(LAUNCHER):
            # What the tests' jobs write is in the folder of the test.
            for place in (folder, folder.parent):
                place.chmod(0o777)
            self.launcher = Path(os.environ[LAUNCHER])
        self.devices = devices or CpuSlots(4, "cpu")
        self.joined = NodeJoined(
            node="node-1",
            identity="id-node-1",
            incarnation=0,
            address="127.0.0.1",
            ports=(21000, 21099),
            gpus=self.devices.gpus(),
            cpus=4,
            memory=8 * GIB,
        )
        self.broker = MemoryBroker(ManualClock())
        self.broker.add_stream("NODE", ("skep.v1.node.*.*",))
        self.fatal: list[Exception] = []
        self.inherited = {"PATH": PATH, "SKEP_ADDRESS": "127.0.0.1"}
        self.machine = AgentMachine(self.joined)
        self.order = 0

    async def begin(self) -> None:
        """Start the agent."""
        self.machine = AgentMachine(self.joined)
        self.journal = AgentJournal(self.state / "journal", self.machine)
        self.bus = MemoryBus(self.broker, "node-node-1", self.fatal.append)
        if self.launcher is not None:
            self.shared = (await find(self.launcher)).folder
        self.runtime = self._runtime()
        launcher = self.runtime if isinstance(self.runtime, LauncherRuntime) else None
        self.calls = AgentCalls(
            self.bus,
            self.runtime,
            self.devices,
            self.state,
            self.inherited,
            self.fatal.append,
            launcher=launcher,
            shared=self.shared,
        )
        self.shell = Shell(
            self.machine,
            bus=self.bus,
            clock=SystemClock(),
            observer=Quiet(),
            owner="test",
            failures=Undecided(self.state / "undecided"),
            foreign=ForeignSeen(Quiet().report),
            facts=self.journal,
            calls=self.calls,
            listen=(subjects.command("node-1"),),
        )
        self.jobs = JobSocket(self.shared, SystemClock(), self.shell.hear, self.calls.access)
        self.calls.tell = self.jobs.tell
        self.calls.is_heard, self.calls.heard_out = self.jobs.is_heard, self.jobs.heard_out
        await self.calls.open(self.shell.put)
        await self.jobs.open()
        self.task = asyncio.create_task(self.shell.run())
        await asyncio.wait_for(self.shell.ready.wait(), DEADLINE_SECONDS)

    async def kill(self) -> None:
        """End the agent as a crash does: nothing more is carried out, connections break."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.jobs.close()
        await self.calls.close()
        self.journal.close()
        await self.bus.close()

    async def close(self) -> None:
        """End everything."""
        await self.kill()
        last = self._runtime()

        async def told(end: Any) -> None:
            pass

        await last.open(told)
        await last.shutdown(0.0)
        await last.close()
        assert self.fatal == []

    def _runtime(self) -> ProcessRuntime:
        if self.launcher is not None:
            return LauncherRuntime(self.state, self.launcher)
        return process_runtime(self.state)

    async def send(self, command: BindJob | ChangeJob | StopJob) -> None:
        """Give a command."""
        await self.bus.send(subjects.command("node-1"), codec.encode(command), {})

    def job(self, script: str, ranks: int = 1, first: int = 0, **fields: Any) -> BindJob:
        """Return the command to start a script of the tests, observed, from device `first` on."""
        self.order += 1
        argv = (AGENT_PYTHON, "-m", "skep_job", str(JOBS / script))
        devices = [(first + rank,) for rank in range(ranks)]
        given = {
            "argv": argv,
            "ranks": plans(*devices),
            "world": ranks,
            "master_address": "127.0.0.1",
            "master_port": free_port(),
            "distributed": True,
            "owner": OWNER if self.launcher is not None else "",
            "env": {"STEPS_FILE": str(self.folder / "steps"), "SKEP_REPORT_S": "0.1"},
            **fields,
        }
        return bind("j1", order=self.order, **given)

    async def change(self, change: Change, attempt: int = 1, deadline_ms: int = 60_000) -> int:
        """Ask for a change; return its order."""
        self.order += 1
        await self.send(
            ChangeJob(
                order=self.order,
                epoch=1,
                settled=0,
                node="node-1",
                identity="id-node-1",
                job="j1",
                attempt=attempt,
                change=change,
                deadline_ms=deadline_ms,
            )
        )
        return self.order

    async def changed(self, change: Change, **more: Any) -> MemberChanged:
        """Ask for a change and return its answer."""
        return await self.answer(await self.change(change, **more))

    async def answer(self, order: int) -> MemberChanged:
        """Return the answer to the change of this order."""
        return await self.event(MemberChanged, lambda one: one.order == order)

    def events(self) -> list[NodeEvent]:
        """Return what the node has told."""
        messages = self.broker.stream("NODE").messages
        return [msgspec.json.decode(one.payload, type=NodeEvent) for one in messages]

    async def event(self, kind: type[E], wanted: Callable[[E], bool] = lambda _: True) -> E:
        """Return the first event like that, waiting for it."""
        found: list[E] = []

        def look() -> bool:
            found[:] = [one for one in self.events() if isinstance(one, kind) and wanted(one)]
            return bool(found)

        await self.until(look)
        return found[0]

    def finish(self) -> None:
        """Have the job end after the mini-batch it is in."""
        (self.folder / "steps.stop").touch()

    def steps(self, rank: int = 0) -> list[list[str]]:
        """Return the words of every mini-batch that a rank has noted."""
        path = self.folder / f"steps.{rank}"
        text = path.read_text() if path.exists() else ""
        return [line.split() for line in text.splitlines() if line]

    async def trains(self, rank: int = 0, more: int = 3) -> None:
        """Return once a rank has made some more mini-batches."""
        wanted = len(self.steps(rank)) + more
        await self.until(lambda: len(self.steps(rank)) >= wanted)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once something holds."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert self.fatal == [], self.fatal
            assert not self.task.done(), self.task
            assert time.monotonic() < deadline, f"waited in vain: {self.events()[-5:]}"
            # tidy: allow sleep because files and processes of others have no event to wait on
            await asyncio.sleep(0.01)
