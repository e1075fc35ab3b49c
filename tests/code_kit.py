"""What tests of code that travels share: a gateway's answers to a node, and a node's folders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from skep.wire import subjects
from skep.wire.commands import BindJob
from skep.wire.reasons import Reason
from skep.wire.runs import RunExited, RunNotStarted
from skep.wire.snapshot import AskCode, AskOutputs
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.agent.code import GATEWAY, REASON, REFUSED, JobCode
from skep_services.agent.outputs import JobOutputs
from skep_services.cli.snapshots import Taken
from skep_services.ports import Delivery, NodeRuntime
from tests.kit import bind


class Gateway:
    """Hands a node the chunks of one snapshot; `refused`, `changed` and `silent` say otherwise."""

    def __init__(self, bus: MemoryBus, taken: Taken) -> None:
        self._bus, self._taken = bus, taken
        self.asked: list[AskCode] = []
        self.refused: tuple[Reason, str] | None = None
        self.changed: dict[str, bytes] = {}
        self.silent = 0

    async def open(self) -> None:
        await self._bus.listen(subjects.code("*", subjects.ANY_GATEWAY), self._answer)
        await self._bus.listen(subjects.code("*", "gateway-1"), self._answer)

    async def _answer(self, asked: Delivery) -> None:
        ask = msgspec.json.decode(asked.payload, type=AskCode)
        self.asked.append(ask)
        if self.silent:
            self.silent -= 1
            return
        headers, payload = {GATEWAY: "gateway-1"}, b""
        if self.refused is not None:
            headers[REASON], headers[REFUSED] = self.refused
        else:
            payload = self._taken.chunk(ask.chunk) if ask.chunk else self._taken.raw
            payload = self.changed.get(ask.chunk, payload)
        await self._bus.send(asked.reply, payload, headers)


class CodeNode:
    """A node whose jobs bring their code, on a bus in memory."""

    def __init__(self, runtime: NodeRuntime, state: Path, shared: Path, taken: Taken) -> None:
        self.taken = taken
        self.bus = MemoryBus(MemoryBroker(ManualClock()), "node-1", print)
        self.gateway = Gateway(self.bus, taken)
        remove = getattr(runtime, "remove_work", None)
        self.code = JobCode(self.bus, runtime, state, shared, remove)
        self.outputs = JobOutputs(self.bus, self.code, shared)
        self.ends: asyncio.Queue[RunExited] = asyncio.Queue()

    def bind(self, attempt: int = 1, workdir: str = ".", *outputs: str) -> BindJob:
        given = bind("j1", attempt, code=self.taken.digest, workdir=workdir, outputs=outputs)
        return msgspec.structs.replace(given, owner="ada", vc="nlp")

    async def provide(self, command: BindJob) -> RunNotStarted | None:
        return await self.code.provide(command, "j1.1.0")

    async def ask(self, path: str = "", **more: object) -> Delivery:
        """Return the node's answer about its job's outputs."""
        ask = AskOutputs(job="j1", attempt=1, path=path, **more)  # type: ignore[arg-type]
        await self.outputs.answer(
            Delivery(subjects.outputs("node-1"), msgspec.json.encode(ask), reply="_INBOX.test.1")
        )
        return await self._heard.get()

    async def open(self) -> None:
        await self.gateway.open()
        self._heard: asyncio.Queue[Delivery] = asyncio.Queue()
        await self.bus.listen("_INBOX.test.1", self._heard.put)

    async def close(self) -> None:
        await self.outputs.close()
        await self.bus.close()
