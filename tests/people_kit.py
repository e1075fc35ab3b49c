"""A gateway with people over a memory bus: the access machine answers there, with its signer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skep.machines.access.calls import Revoked, Sign, Signed
from skep.machines.base import Send
from skep.wire import codec, subjects
from skep_services.adapters.memory import MemoryBus
from skep_services.gateway.api import Tokens
from skep_services.gateway.peopled import PeopleSettings
from skep_services.gateway.server import Gateway
from skep_services.ports import Delivery
from tests.access_kit import Access, given
from tests.gateway_kit import TOKENS, BusCluster, Client, House


class AccessOnBus(Access):
    """The access machine as a service: requests come by the bus, facts go into ACCESS."""

    def __init__(self, cluster: BusCluster) -> None:
        self.cluster, self.stored = cluster, 0
        self.slow = False
        """Whether facts are kept back from the stream: `publish` stores them."""
        self.deaf = False
        super().__init__(thorough=False)
        self.publish()

    async def open(self) -> None:
        await self.cluster.bus.listen(subjects.ACCESS_ASKED, self._asked)

    async def _asked(self, delivery: Delivery) -> None:
        if self.deaf:
            return
        headers = {**delivery.headers, subjects.REPLY_HEADER: delivery.reply}
        event = codec.read(delivery.subject, delivery.payload, headers, 0, delivery.at)
        self.driver.now = max(self.driver.now, self.cluster.clock.now())
        effects = list(self.event(event))
        calls, self.calls = self.calls, []
        for call in calls:
            told: Any = Revoked(key=call.key)
            if isinstance(call, Sign):
                told = Signed(key=call.key, request=call.request, credentials=given(call))
            effects += self.event(told)
        if not self.slow:
            self.publish()
        for effect in effects:
            if isinstance(effect, Send):
                await self.cluster.bus.send(effect.subject, codec.encode(effect.message), {})

    def publish(self) -> None:
        """Store the facts that are not in the stream yet, as one record."""
        new = self.driver.facts[self.stored :]
        if new:
            self.stored += len(new)
            self.cluster.store_record(subjects.ACCESS_FACTS, new, self.driver.now)
            # Admission follows them too.
            event = codec.Facts(service="access", at=self.driver.now, facts=tuple(new))
            effects = self.cluster.admission(event, 0)
            self.cluster._record("ADMISSION", "admission", effects, 0)


class PeopleHouse(House):
    """A gateway with people."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder)
        self.settings = PeopleSettings(on=True, fingerprint="ab" * 32, **settings)

    async def open(self) -> None:
        self.access = AccessOnBus(self.cluster)
        await self.access.open()
        await super().open()

    async def start(self, bus: MemoryBus | None = None) -> None:
        self.bus = bus or MemoryBus(self.cluster.broker, "gateway", self.fatal.append)
        clock, tokens = self.cluster.clock, Tokens(TOKENS)
        self.gateway = Gateway(
            self.bus, clock, self.spans, tokens, self.path, "gateway", people=self.settings
        )
        port = await self.gateway.open("127.0.0.1", 0)
        self.base = f"http://127.0.0.1:{port}"
        self.serving = asyncio.create_task(self.gateway.serve())
        self.op, self.nlp = self.client("op"), self.client("nlp-token")
        self.vision, self.nobody = self.client("vision-token"), self.client("")

    def client(self, token: str) -> Client:
        return Client(self.session, self.base, token)

    async def person(self, name: str, **roles: str) -> Client:
        """Add a person with roles by VC (`cluster`: operator), and return it with a token."""
        await self.op.json("POST", "/v1/people/add", 200, {"person": name})
        for vc, role in roles.items():
            where = {} if vc == "cluster" else {"vc": vc}
            body = {"person": name, "role": role, **where}
            await self.op.json("POST", "/v1/roles/grant", 200, body)
        body = {"person": name, "name": "laptop"}
        made = await self.op.json("POST", "/v1/tokens", 201, body)
        return self.client(made["text"])

    async def sees(self, count: int) -> None:
        """Return once the gateway has read so many records of people."""
        view = self.gateway.people.view
        assert view is not None
        assert await self.gateway.watch.until("access", lambda: view.position >= count, 60)


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[PeopleHouse]:
    """A gateway with people, of the test's own."""
    made = PeopleHouse(folder, **settings)
    await made.open()
    yield made
    await made.close()
